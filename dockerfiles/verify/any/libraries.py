"""Which libraries are there: those that the wheel's own need, and those that it opens by name when it looks for GPUs.

facts: `linked` and `opened`, names of libraries. Found is where each one is, or why it is of no use.
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
    """The package of NVIDIA's among Python's that has the library: TensorFlow looks for it there."""
    for folder in sys.path:
        for path in glob.glob(os.path.join(folder, "nvidia", "*", "lib", name)):
            return {"there": True, "where": os.path.relpath(path, folder)}
    return None


def in_system(name):
    """Whether the loader finds it, by opening it."""
    try:
        ctypes.CDLL(name)
    except OSError as error:
        return {"there": False, "where": str(error)}
    return {"there": True, "where": "the system"}
