"""Find the libraries that the wheel's libraries need, and those that TensorFlow opens by name when it looks for GPUs.

facts: `linked` and `opened`, names of libraries. The result says where each library is, or why it cannot be loaded.
"""

import ctypes
import glob
import os
import sys

from probe import passed


def probe(facts):
    found = {}
    for name in facts["linked"] + facts["opened"]:
        found[name] = in_packages(name) or in_system(name)
    return passed("", found)


def in_packages(name):
    """Find a library in NVIDIA's Python packages, where TensorFlow looks for it; None if none has it."""
    for folder in sys.path:
        for path in glob.glob(os.path.join(folder, "nvidia", "*", "lib", name)):
            return {"there": True, "where": os.path.relpath(path, folder)}
    return None


def in_system(name):
    """Find out whether the system's loader finds a library, by opening it."""
    try:
        ctypes.CDLL(name)
    except OSError as error:
        return {"there": False, "where": str(error)}
    return {"there": True, "where": "the system"}
