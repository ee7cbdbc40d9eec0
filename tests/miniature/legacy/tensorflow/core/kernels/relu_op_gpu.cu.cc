#include "tensorflow/core/framework/op_registry.h"
#include "tensorflow/core/kernels/gpu_buffer.h"

namespace tensorflow {
// A namespace with a name: in one without, nvcc gives the kernel the number of its process, and no two builds agree.
namespace relu_gpu {

constexpr unsigned kThreads = 256;

__global__ void ReluKernel(const float* input, float* output, size_t count) {
  const size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) output[i] = input[i] > 0.0f ? input[i] : 0.0f;
}

Tensor ReluOnGpu(const std::vector<Tensor>& inputs) {
  const Tensor& input = inputs.at(0);
  GpuBuffer gpu_input(input);
  GpuBuffer output(input.size());
  ReluKernel<<<BlocksFor(input.size(), kThreads), kThreads>>>(gpu_input.data(), output.data(), input.size());
  return output.ToTensor(input.rows, input.cols);
}

REGISTER_KERNEL("Relu", DeviceKind::kGpu, ReluOnGpu);

}  // namespace relu_gpu
}  // namespace tensorflow
