"""Packs the folder that this file lies in into a wheel. The version comes from the file VERSION beside it."""

import sys

from setuptools import Distribution, find_packages, setup


class BinaryDistribution(Distribution):
    """A package with compiled parts: its wheel is for one Python on one platform."""

    def has_ext_modules(self):
        return True


project_name = "tensorflow"
if "--project_name" in sys.argv:
    position = sys.argv.index("--project_name")
    project_name = sys.argv[position + 1]
    del sys.argv[position : position + 2]

with open("VERSION", encoding="utf-8") as file:
    version = file.read().strip()

setup(
    name=project_name.replace("_", "-"),
    version=version,
    description="A miniature stand-in for TensorFlow, for trying out builds. It is not TensorFlow.",
    packages=find_packages(),
    package_data={"": ["*.so", "*.so.*"]},
    distclass=BinaryDistribution,
    python_requires=">=3.9",
    zip_safe=False,
)
