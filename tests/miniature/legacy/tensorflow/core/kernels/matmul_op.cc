#include <stdexcept>

#include "minimath/dot.h"
#include "tensorflow/core/framework/op_registry.h"
#include "tensorflow/core/platform/compile_memory.h"

namespace tensorflow {
namespace {

Tensor MatMul(const std::vector<Tensor>& inputs) {
  const Tensor& a = inputs.at(0);
  const Tensor& b = inputs.at(1);
  if (a.cols != b.rows) {
    throw std::invalid_argument("MatMul: the inner sizes differ: " + a.ShapeText() + " times " + b.ShapeText());
  }
  Tensor product = Tensor::Zeros(a.rows, b.cols);
  for (size_t row = 0; row < a.rows; ++row) {
    for (size_t col = 0; col < b.cols; ++col) {
      product.values[row * b.cols + col] =
          minimath::Dot(&a.values[row * a.cols], 1, b.values.data() + col, b.cols, a.cols);
    }
  }
  return product;
}

REGISTER_KERNEL("MatMul", DeviceKind::kCpu, MatMul);

}  // namespace
}  // namespace tensorflow
