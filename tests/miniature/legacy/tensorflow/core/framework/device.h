#ifndef TENSORFLOW_CORE_FRAMEWORK_DEVICE_H_
#define TENSORFLOW_CORE_FRAMEWORK_DEVICE_H_

#include <string>

namespace tensorflow {

enum class DeviceKind { kCpu, kGpu };
enum class DeviceWish { kAny, kCpu, kGpu };

std::string DeviceName(DeviceKind device);

// The GPU library enters the function that counts its devices; in a CPU build nobody does, and there are none.
using GpuCounter = int (*)();
void SetGpuCounter(GpuCounter counter);
int GpuCount();

// Optional parts ("cuda", "xla") say that they were built in.
void AddFeature(const std::string& name);
bool HasFeature(const std::string& name);

}  // namespace tensorflow

#endif  // TENSORFLOW_CORE_FRAMEWORK_DEVICE_H_
