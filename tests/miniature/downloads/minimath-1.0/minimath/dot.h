#ifndef MINIMATH_DOT_H_
#define MINIMATH_DOT_H_

#include <cstddef>

namespace minimath {

// The dot product of two vectors with strides. Four sums at a time keep the floating-point units busy.
inline float Dot(const float* a, std::size_t stride_a, const float* b, std::size_t stride_b, std::size_t count) {
  float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  std::size_t i = 0;
  for (; i + 4 <= count; i += 4) {
    for (std::size_t lane = 0; lane < 4; ++lane) sums[lane] += a[(i + lane) * stride_a] * b[(i + lane) * stride_b];
  }
  for (; i < count; ++i) sums[0] += a[i * stride_a] * b[i * stride_b];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

}  // namespace minimath

#endif  // MINIMATH_DOT_H_
