#ifndef TENSORFLOW_CORE_KERNELS_GPU_BUFFER_H_
#define TENSORFLOW_CORE_KERNELS_GPU_BUFFER_H_

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

#include "tensorflow/core/framework/tensor.h"

namespace tensorflow {

inline void CheckCuda(cudaError_t status, const char* what) {
  if (status != cudaSuccess) {
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
  }
}

// The values of a tensor in GPU memory, for as long as this object lives.
class GpuBuffer {
 public:
  explicit GpuBuffer(size_t count) : bytes_(count * sizeof(float)) {
    CheckCuda(cudaMalloc(reinterpret_cast<void**>(&data_), bytes_), "cudaMalloc");
  }
  explicit GpuBuffer(const Tensor& tensor) : GpuBuffer(tensor.size()) {
    CheckCuda(cudaMemcpy(data_, tensor.values.data(), bytes_, cudaMemcpyHostToDevice), "copy to the GPU");
  }
  ~GpuBuffer() { cudaFree(data_); }
  GpuBuffer(const GpuBuffer&) = delete;
  GpuBuffer& operator=(const GpuBuffer&) = delete;

  float* data() { return data_; }

  // Also the place where an error inside the kernel comes to light: "no kernel image is available" among them.
  Tensor ToTensor(size_t rows, size_t cols) const {
    CheckCuda(cudaGetLastError(), "kernel launch");
    Tensor tensor = Tensor::Zeros(rows, cols);
    CheckCuda(cudaMemcpy(tensor.values.data(), data_, bytes_, cudaMemcpyDeviceToHost), "copy from the GPU");
    return tensor;
  }

 private:
  size_t bytes_;
  float* data_ = nullptr;
};

inline unsigned BlocksFor(size_t count, unsigned threads) {
  return static_cast<unsigned>((count + threads - 1) / threads);
}

}  // namespace tensorflow

#endif  // TENSORFLOW_CORE_KERNELS_GPU_BUFFER_H_
