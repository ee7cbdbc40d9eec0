#include <stdexcept>

#include "tensorflow/core/framework/op_registry.h"
#include "tensorflow/core/platform/compile_memory.h"

namespace tensorflow {
namespace {

Tensor Add(const std::vector<Tensor>& inputs) {
  const Tensor& a = inputs.at(0);
  const Tensor& b = inputs.at(1);
  if (!a.SameShape(b)) {
    throw std::invalid_argument("Add: the shapes differ: " + a.ShapeText() + " and " + b.ShapeText());
  }
  Tensor sum = a;
  for (size_t i = 0; i < sum.size(); ++i) sum.values[i] += b.values[i];
  return sum;
}

REGISTER_KERNEL("Add", DeviceKind::kCpu, Add);

}  // namespace
}  // namespace tensorflow
