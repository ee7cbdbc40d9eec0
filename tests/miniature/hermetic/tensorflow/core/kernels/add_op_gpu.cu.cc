#include <stdexcept>

#include "tensorflow/core/framework/op_registry.h"
#include "tensorflow/core/kernels/gpu_buffer.h"

namespace tensorflow {
// A namespace with a name: in one without, nvcc gives the kernel the number of its process, and no two builds agree.
namespace add_gpu {

constexpr unsigned kThreads = 256;

__global__ void AddKernel(const float* a, const float* b, float* sum, size_t count) {
  const size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) sum[i] = a[i] + b[i];
}

Tensor AddOnGpu(const std::vector<Tensor>& inputs) {
  const Tensor& a = inputs.at(0);
  const Tensor& b = inputs.at(1);
  if (!a.SameShape(b)) {
    throw std::invalid_argument("Add: the shapes differ: " + a.ShapeText() + " and " + b.ShapeText());
  }
  GpuBuffer gpu_a(a);
  GpuBuffer gpu_b(b);
  GpuBuffer sum(a.size());
  AddKernel<<<BlocksFor(a.size(), kThreads), kThreads>>>(gpu_a.data(), gpu_b.data(), sum.data(), a.size());
  return sum.ToTensor(a.rows, a.cols);
}

REGISTER_KERNEL("Add", DeviceKind::kGpu, AddOnGpu);

}  // namespace add_gpu
}  // namespace tensorflow
