#include <stdexcept>

#include "tensorflow/core/framework/op_registry.h"
#include "tensorflow/core/kernels/gpu_buffer.h"

namespace tensorflow {
// A namespace with a name: in one without, nvcc gives the kernel the number of its process, and no two builds agree.
namespace matmul_gpu {

constexpr int kTile = 16;

// Each block computes one tile of the product; the tiles of a and b that it needs pass through shared memory.
__global__ void MatMulKernel(const float* a, const float* b, float* product, int rows, int inner, int cols) {
  __shared__ float tile_a[kTile][kTile];
  __shared__ float tile_b[kTile][kTile];
  const int row = blockIdx.y * kTile + threadIdx.y;
  const int col = blockIdx.x * kTile + threadIdx.x;
  float sum = 0.0f;
  for (int start = 0; start < inner; start += kTile) {
    const int along_a = start + threadIdx.x;
    const int along_b = start + threadIdx.y;
    tile_a[threadIdx.y][threadIdx.x] = row < rows && along_a < inner ? a[row * inner + along_a] : 0.0f;
    tile_b[threadIdx.y][threadIdx.x] = along_b < inner && col < cols ? b[along_b * cols + col] : 0.0f;
    __syncthreads();
    for (int k = 0; k < kTile; ++k) sum += tile_a[threadIdx.y][k] * tile_b[k][threadIdx.x];
    __syncthreads();
  }
  if (row < rows && col < cols) product[row * cols + col] = sum;
}

Tensor MatMulOnGpu(const std::vector<Tensor>& inputs) {
  const Tensor& a = inputs.at(0);
  const Tensor& b = inputs.at(1);
  if (a.cols != b.rows) {
    throw std::invalid_argument("MatMul: the inner sizes differ: " + a.ShapeText() + " times " + b.ShapeText());
  }
  GpuBuffer gpu_a(a);
  GpuBuffer gpu_b(b);
  GpuBuffer product(a.rows * b.cols);
  const dim3 blocks(BlocksFor(b.cols, kTile), BlocksFor(a.rows, kTile));
  MatMulKernel<<<blocks, dim3(kTile, kTile)>>>(gpu_a.data(), gpu_b.data(), product.data(), static_cast<int>(a.rows),
                                               static_cast<int>(a.cols), static_cast<int>(b.cols));
  return product.ToTensor(a.rows, b.cols);
}

REGISTER_KERNEL("MatMul", DeviceKind::kGpu, MatMulOnGpu);

}  // namespace matmul_gpu
}  // namespace tensorflow
