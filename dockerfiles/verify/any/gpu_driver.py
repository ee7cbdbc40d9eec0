"""The versions of the driver and of the libraries that TensorFlow opens, as each of them reports it.

facts: `opened`, names of libraries.
"""

import ctypes
import glob
import os
import re
import sys

from probe import check

# Library -> its function for the version, whether a pointer receives the number, and how to split the number.
TELLS = {
    "libcuda": ("cuDriverGetVersion", True, lambda n: (n // 1000, n % 1000 // 10)),
    "libcudart": ("cudaRuntimeGetVersion", True, lambda n: (n // 1000, n % 1000 // 10)),
    "libcudnn": ("cudnnGetVersion", False, lambda n: parts(n, 90000)),
    "libnccl": ("ncclGetVersion", True, lambda n: parts(n, 10000)),
}


def probe(facts):
    found = {"driver": driver()}
    for name in facts["opened"]:
        version = version_of(name)
        if version:
            found[name] = version
    reason = "there is a GPU runtime, but no driver answers"
    return check(bool(found["driver"]), "a driver", found, reason)


def driver():
    try:
        with open("/proc/driver/nvidia/version") as file:
            match = re.search(r"Kernel Module.*?\s(\d+(\.\d+)+)\s", file.read())
            return match.group(1) if match else ""
    except EnvironmentError:
        return ""


def parts(number, since):
    """Split a number: 8907 is 8.9.7, 90300 is 9.3.0. From `since` on, the second part has two digits."""
    major = 10000 if number >= since else 1000
    return number // major, number % major // 100, number % 100


def version_of(name):
    """Return the version that a library reports; empty if it is missing, or no function for it is known."""
    tells = TELLS.get(name.split(".so")[0])
    library = opened(name) if tells else None
    if library is None:
        return ""
    function, pointer, made = tells
    value = ctypes.c_int(0)
    if pointer:
        getattr(library, function)(ctypes.byref(value))
        number = value.value
    else:
        getattr(library, function).restype = ctypes.c_size_t
        number = int(getattr(library, function)())
    return ".".join(str(part) for part in made(number)) if number else ""


def opened(name):
    paths = [path for folder in sys.path for path in glob.glob(os.path.join(folder, "nvidia", "*", "lib", name))]
    for path in paths + [name]:
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    return None
