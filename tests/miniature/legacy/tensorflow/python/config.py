"""The devices of this machine."""

import collections

from tensorflow.python import _pywrap_tensorflow_internal as _core

PhysicalDevice = collections.namedtuple("PhysicalDevice", "name device_type")


def list_physical_devices(device_type=None):
    devices = [PhysicalDevice("/physical_device:CPU:0", "CPU")]
    devices += [PhysicalDevice(f"/physical_device:GPU:{i}", "GPU") for i in range(_core.gpu_count())]
    return [device for device in devices if device_type in (None, device.device_type)]
