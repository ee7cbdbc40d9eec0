#ifndef TENSORFLOW_CORE_FRAMEWORK_TENSOR_H_
#define TENSORFLOW_CORE_FRAMEWORK_TENSOR_H_

#include <cstddef>
#include <string>
#include <vector>

namespace tensorflow {

// A row-major matrix of floats: the only kind of tensor that the miniature knows.
struct Tensor {
  size_t rows = 0;
  size_t cols = 0;
  std::vector<float> values;

  static Tensor Zeros(size_t rows, size_t cols);

  size_t size() const { return rows * cols; }
  bool SameShape(const Tensor& other) const;
  std::string ShapeText() const;
};

}  // namespace tensorflow

#endif  // TENSORFLOW_CORE_FRAMEWORK_TENSOR_H_
