"""requirements.py FOLDER FILE: write the requirements that FOLDER/setup.py gives its wheel to FILE, as a JSON list.

Nothing is built. setup.py runs with a replacement for setuptools, which only keeps the arguments of `setup`. Runs on
any Python that the image has.
"""

import json
import os
import runpy
import sys
import types


class Anything(type):
    """The type of a class whose every attribute is the class itself. setup.py derives its own classes from it."""

    def __getattr__(cls, name):
        return cls


Stub = Anything("Stub", (object,), {})


def nothing(*_, **__):
    """Return what a search for packages finds here: nothing."""
    return []


class Module(types.ModuleType):
    """A module that has every attribute."""

    __path__ = ()

    def __getattr__(self, name):
        return nothing if name.startswith("find_") else Stub


def lines(found):
    """Return the requirements, one a line, from a text or from nested lists of texts, as setuptools accepts them."""
    if isinstance(found, (list, tuple)):
        return [line for one in found for line in lines(one)]
    return [" ".join(line.split()) for line in found.splitlines() if line.strip()]


folder, target = sys.argv[1:]
target = os.path.abspath(target)
given = {}
for name in ("setuptools", "distutils"):
    parts = (
        "",
        ".command",
        ".command.install",
        ".command.sdist",
        ".command.build_ext",
        ".command.bdist_wheel",
        ".dist",
    )
    for part in parts:
        sys.modules[name + part] = Module(name + part)
    sys.modules[name].setup = given.update

sys.argv = ["setup.py", "bdist_wheel"]
os.chdir(folder)
runpy.run_path("setup.py", run_name="__main__")
with open(target, "w") as file:
    json.dump(lines(given.get("install_requires", [])), file)
