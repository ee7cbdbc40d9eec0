#ifndef TENSORFLOW_CORE_PLATFORM_COMPILE_MEMORY_H_
#define TENSORFLOW_CORE_PLATFORM_COMPILE_MEMORY_H_

// A fault on demand, as in compile_faults.h, in three C++ kernels at once: the compiler of each takes memory.
//   --copt=-DMINIATURE_HUNGRY_KERNELS=N  instantiates 2^N types in each

#if defined(MINIATURE_HUNGRY_KERNELS) || defined(MINIATURE_HUNGRY_COMPILE)
namespace miniature {

template <int kDepth, int kPath>
struct Tree {
  static constexpr int value = Tree<kDepth - 1, 2 * kPath>::value + Tree<kDepth - 1, 2 * kPath + 1>::value;
};

template <int kPath>
struct Tree<0, kPath> {
  static constexpr int value = 1;
};

}  // namespace miniature
#endif

#ifdef MINIATURE_HUNGRY_KERNELS
static_assert(miniature::Tree<MINIATURE_HUNGRY_KERNELS, 0>::value > 0, "");
#endif

#endif  // TENSORFLOW_CORE_PLATFORM_COMPILE_MEMORY_H_
