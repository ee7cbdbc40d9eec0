"""What was built in."""

from tensorflow.python import _pywrap_tensorflow_internal as _core
from tensorflow.python import config
from tensorflow.python.platform.build_info import build_info


def is_built_with_cuda():
    return _core.has_feature("cuda")


def is_built_with_rocm():
    return build_info["is_rocm_build"]


def is_built_with_gpu_support():
    return is_built_with_cuda() or is_built_with_rocm()


def is_built_with_xla():
    return _core.has_feature("xla")


def gpu_device_name():
    return "/device:GPU:0" if config.list_physical_devices("GPU") else ""
