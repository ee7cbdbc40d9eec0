#ifndef TENSORFLOW_CORE_FRAMEWORK_OP_REGISTRY_H_
#define TENSORFLOW_CORE_FRAMEWORK_OP_REGISTRY_H_

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/device.h"
#include "tensorflow/core/framework/tensor.h"

namespace tensorflow {

using Kernel = Tensor (*)(const std::vector<Tensor>& inputs);

// Which function computes which op on which kind of device. Kernels enter themselves when their library is loaded.
class OpRegistry {
 public:
  static OpRegistry& Global();

  void Register(const std::string& op, DeviceKind device, Kernel kernel);
  Kernel Find(const std::string& op, DeviceKind device) const;
  std::vector<std::string> OpNames() const;

 private:
  std::map<std::pair<std::string, DeviceKind>, Kernel> kernels_;
};

struct Result {
  Tensor tensor;
  DeviceKind device;
};

// Runs the op where the wish says; without a wish on the GPU if there is one and the op has a kernel for it.
Result RunOp(const std::string& op, const std::vector<Tensor>& inputs, DeviceWish wish);

struct KernelRegistration {
  KernelRegistration(const char* op, DeviceKind device, Kernel kernel) {
    OpRegistry::Global().Register(op, device, kernel);
  }
};

#define REGISTER_KERNEL(op, device, kernel) \
  static const ::tensorflow::KernelRegistration registration_of_##kernel(op, device, kernel)

}  // namespace tensorflow

#endif  // TENSORFLOW_CORE_FRAMEWORK_OP_REGISTRY_H_
