#include "tensorflow/core/framework/tensor.h"

namespace tensorflow {

Tensor Tensor::Zeros(size_t rows, size_t cols) {
  Tensor zeros;
  zeros.rows = rows;
  zeros.cols = cols;
  zeros.values.assign(rows * cols, 0.0f);
  return zeros;
}

bool Tensor::SameShape(const Tensor& other) const { return rows == other.rows && cols == other.cols; }

std::string Tensor::ShapeText() const {
  return "[" + std::to_string(rows) + ", " + std::to_string(cols) + "]";
}

}  // namespace tensorflow
