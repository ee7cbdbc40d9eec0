#include "tensorflow/core/framework/device.h"

#include <set>

namespace tensorflow {
namespace {

GpuCounter gpu_counter = nullptr;

std::set<std::string>& Features() {
  static auto* const features = new std::set<std::string>;
  return *features;
}

}  // namespace

std::string DeviceName(DeviceKind device) { return device == DeviceKind::kGpu ? "GPU" : "CPU"; }

void SetGpuCounter(GpuCounter counter) { gpu_counter = counter; }

int GpuCount() {
  static const int count = gpu_counter == nullptr ? 0 : gpu_counter();
  return count;
}

void AddFeature(const std::string& name) { Features().insert(name); }

bool HasFeature(const std::string& name) { return Features().count(name) > 0; }

}  // namespace tensorflow
