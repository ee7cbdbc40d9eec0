#include "tensorflow/core/framework/op_registry.h"

#include <stdexcept>

namespace tensorflow {

OpRegistry& OpRegistry::Global() {
  static OpRegistry* const registry = new OpRegistry;
  return *registry;
}

void OpRegistry::Register(const std::string& op, DeviceKind device, Kernel kernel) {
  if (!kernels_.emplace(std::make_pair(op, device), kernel).second) {
    throw std::logic_error("two kernels for " + op + " on " + DeviceName(device));
  }
}

Kernel OpRegistry::Find(const std::string& op, DeviceKind device) const {
  const auto found = kernels_.find({op, device});
  return found == kernels_.end() ? nullptr : found->second;
}

std::vector<std::string> OpRegistry::OpNames() const {
  std::vector<std::string> names;
  for (const auto& entry : kernels_) {
    if (names.empty() || names.back() != entry.first.first) names.push_back(entry.first.first);
  }
  return names;
}

Result RunOp(const std::string& op, const std::vector<Tensor>& inputs, DeviceWish wish) {
  const OpRegistry& registry = OpRegistry::Global();
  if (wish == DeviceWish::kGpu && GpuCount() == 0) {
    throw std::invalid_argument("no GPU was found for " + op);
  }
  if (wish != DeviceWish::kCpu && GpuCount() > 0) {
    if (const Kernel kernel = registry.Find(op, DeviceKind::kGpu)) return {kernel(inputs), DeviceKind::kGpu};
    if (wish == DeviceWish::kGpu) throw std::invalid_argument("no GPU kernel is registered for " + op);
  }
  if (const Kernel kernel = registry.Find(op, DeviceKind::kCpu)) return {kernel(inputs), DeviceKind::kCpu};
  throw std::invalid_argument("no kernel is registered for " + op);
}

}  // namespace tensorflow
