"""Where the package lies and how it was built."""

import os

from tensorflow.python.platform import build_info as _build_info


def get_build_info():
    return _build_info.build_info


def get_lib():
    return os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
