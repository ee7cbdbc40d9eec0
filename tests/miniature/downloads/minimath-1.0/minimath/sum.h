#ifndef MINIMATH_SUM_H_
#define MINIMATH_SUM_H_

#include <cstddef>

namespace minimath {

// Adds pairs of halves, so that the error grows with the logarithm of the count.
inline float Sum(const float* values, std::size_t count) {
  if (count <= 8) {
    float sum = 0.0f;
    for (std::size_t i = 0; i < count; ++i) sum += values[i];
    return sum;
  }
  const std::size_t half = count / 2;
  return Sum(values, half) + Sum(values + half, count - half);
}

}  // namespace minimath

#endif  // MINIMATH_SUM_H_
