"""Looks for CUDA and its companions on this machine; prints what it found, or says on stderr what is missing.

Arguments: cuda, cudnn, tensorrt. The environment says where (TF_CUDA_PATHS, CUDA_TOOLKIT_PATH) and which version
(TF_CUDA_VERSION, TF_CUDNN_VERSION). Both configure.py and the repository rule run this.

The real one wants cuBLAS, cuFFT, cuRAND, cuSOLVER, cuSPARSE, CUPTI and cuDNN as well. The miniature uses none of them,
so it only looks for what it compiles with; a cuDNN that is not there is believed to have the version that was asked for.
"""

import glob
import os
import re
import subprocess
import sys

HEADER_FOLDERS = ("", "include", "include/cuda", "include/*-linux-gnu")
LIBRARY_FOLDERS = ("", "lib64", "lib", "lib/*-linux-gnu")
OLDEST_CUDNN = 7


class NotFound(Exception):
    """A file is missing, or has another version than the one that was asked for."""


def find_files(bases, folders, name):
    for base in bases:
        for folder in folders:
            yield from glob.glob(os.path.join(base, folder, name))


def not_found(bases, folders, what):
    places = "".join(f"\n        {base}" for base in bases)
    return NotFound(f"Could not find any {what}. Looked into {', '.join(folders[1:])} of:{places}")


def find_first(bases, folders, name):
    for path in find_files(bases, folders, name):
        return path
    raise not_found(bases, folders, name)


def number_in_header(path, name):
    with open(path, encoding="utf-8", errors="replace") as header:
        match = re.search(rf"^\s*#\s*define\s+{name}\s+(\d+)", header.read(), re.MULTILINE)
    return match.group(1) if match else ""


def cuda_version_of(header):
    number = int(number_in_header(header, "CUDA_VERSION") or 0)
    return f"{number // 1000}.{number % 1000 // 10}"


def nvcc_version_of(nvcc):
    output = subprocess.run([nvcc, "--version"], stdout=subprocess.PIPE, check=True).stdout.decode()
    match = re.search(r"release \d+\.\d+, V(\d+\.\d+\.\d+)", output)
    return match.group(1) if match else ""


def find_version(bases, folders, name, wanted, version_of):
    """The first file of this name whose version starts with the wanted one, and that version."""
    for path in find_files(bases, folders, name):
        version = version_of(path)
        if version.startswith(wanted):
            return path, version
    raise not_found(bases, folders, f"{name} matching version {wanted!r}")


def find_cuda(bases, wanted):
    _, version = find_version(bases, HEADER_FOLDERS, "cuda.h", wanted, cuda_version_of)
    find_first(bases, LIBRARY_FOLDERS, f"libcudart.so.{version.split('.')[0]}*")
    nvcc, _ = find_version(bases, ("", "bin"), "nvcc", version, nvcc_version_of)
    find_first(bases, ("", "nvvm/libdevice"), "libdevice*.10.bc")
    toolkit = os.path.realpath(os.path.join(os.path.dirname(nvcc), ".."))
    return {"cuda_version": version, "cuda_toolkit_path": toolkit}


def find_cudnn(bases, wanted):
    def version_of(header):
        return ".".join(number_in_header(header, f"CUDNN_{part}") for part in ("MAJOR", "MINOR", "PATCHLEVEL"))

    if not any(find_files(bases, HEADER_FOLDERS, "cudnn_version.h")) and wanted:
        if int(wanted.split(".")[0]) >= OLDEST_CUDNN:
            return {"cudnn_version": wanted}
    _, version = find_version(bases, HEADER_FOLDERS, "cudnn_version.h", wanted, version_of)
    return {"cudnn_version": version}


def find_tensorrt(bases, wanted):
    def version_of(header):
        return ".".join(number_in_header(header, f"NV_TENSORRT_{part}") for part in ("MAJOR", "MINOR", "PATCH"))

    _, version = find_version(bases, HEADER_FOLDERS, "NvInferVersion.h", wanted, version_of)
    return {"tensorrt_version": version}


def main():
    cuda_version = os.environ.get("TF_CUDA_VERSION", "")
    usual = [*sorted(glob.glob(f"/usr/local/cuda-{cuda_version}*")), "/usr/local/cuda", "/usr", "/usr/local/cudnn"]
    bases = os.environ["TF_CUDA_PATHS"].split(",") if os.environ.get("TF_CUDA_PATHS") else usual
    bases = [path for path in bases if os.path.exists(path)]
    toolkit = os.environ.get("CUDA_TOOLKIT_PATH")
    found = {}
    try:
        if "cuda" in sys.argv:
            found.update(find_cuda(toolkit.split(",") if toolkit else bases, cuda_version))
        if "cudnn" in sys.argv:
            found.update(find_cudnn(bases, os.environ.get("TF_CUDNN_VERSION", "")))
        if "tensorrt" in sys.argv:
            found.update(find_tensorrt(bases, os.environ.get("TF_TENSORRT_VERSION", "")))
    except NotFound as error:
        sys.exit(str(error))
    for name in sorted(found):
        print(f"{name}: {found[name]}")


if __name__ == "__main__":
    main()
