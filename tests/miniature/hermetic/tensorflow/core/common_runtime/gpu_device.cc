#include <cuda_runtime_api.h>

#include "tensorflow/core/framework/device.h"

namespace tensorflow {
namespace {

// The CUDA runtime is linked statically and looks for the driver itself: without one the count is an error, not a crash.
int CountGpus() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

struct GpuRuntimeRegistration {
  GpuRuntimeRegistration() {
    SetGpuCounter(CountGpus);
    AddFeature("cuda");
  }
};

const GpuRuntimeRegistration registration;

}  // namespace
}  // namespace tensorflow
