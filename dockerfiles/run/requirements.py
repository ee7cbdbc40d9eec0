"""requirements.py FOLDER FILE: write down what the setup.py in there says that its wheel requires, as a JSON list.

Nothing is built for it: setup.py runs with a stand-in for setuptools, which keeps what it is given. It runs on
whichever Python the image has.
"""

import json
import os
import runpy
import sys
import types


class Anything(type):
    """A class whose every attribute is that class again: what setup.py derives its own from, whatever its name."""

    def __getattr__(cls, name):
        return cls


Stub = Anything("Stub", (object,), {})


def nothing(*_, **__):
    """What a search for packages finds."""
    return []


class Module(types.ModuleType):
    """A module that has whatever it is asked for."""

    __path__ = ()

    def __getattr__(self, name):
        return nothing if name.startswith("find_") else Stub


def lines(found):
    """A line each, of what setuptools takes: a text, or a list of such in a list."""
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
