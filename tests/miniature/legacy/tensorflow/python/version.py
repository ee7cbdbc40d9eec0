"""The version of the package and of what compiled it."""

from tensorflow.python import _pywrap_tensorflow_internal as _core

VERSION = _core.VERSION
GIT_VERSION = f"v{VERSION}-miniature"
COMPILER_VERSION = _core.COMPILER_VERSION
