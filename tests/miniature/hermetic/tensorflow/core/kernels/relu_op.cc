#include <algorithm>

#include "tensorflow/core/framework/op_registry.h"
#include "tensorflow/core/platform/compile_faults.h"

namespace tensorflow {
namespace {

Tensor Relu(const std::vector<Tensor>& inputs) {
  Tensor result = inputs.at(0);
  for (float& value : result.values) value = std::max(value, 0.0f);
  return result;
}

REGISTER_KERNEL("Relu", DeviceKind::kCpu, Relu);

}  // namespace
}  // namespace tensorflow
