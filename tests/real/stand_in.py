"""A stand-in for NVIDIA's driver and libraries: TensorFlow asks them, and lists a GPU that nobody has.

`libcuda.so.1` answers the questions that come before a GPU is listed, and 0 to all others. The libraries of CUDA
hold nothing but their names. `IN_PLACE` runs a command in a mount namespace of its own, in which the driver's module
and its device files are there.
"""

from __future__ import annotations

import mmap
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

#: What TensorFlow 2.18 opens, by the folder of pip's package below `nvidia`.
LIBRARIES = {
    "cuda_runtime": ["libcudart.so.12"], "cublas": ["libcublas.so.12", "libcublasLt.so.12"],
    "cufft": ["libcufft.so.11"], "cusolver": ["libcusolver.so.11"], "cusparse": ["libcusparse.so.12"],
    "cudnn": ["libcudnn.so.9"],
}  # fmt: skip
MODULE = "550.54.14"
IN_PLACE = r"""
mount --make-rprivate /
mount -t tmpfs none /proc/driver
mkdir /proc/driver/nvidia
echo "NVRM version: NVIDIA UNIX x86_64 Kernel Module  $MODULE  Thu Feb 22 2024" >/proc/driver/nvidia/version
if [ -n "${MODEL:-}" ]; then
  mkdir -p /proc/driver/nvidia/gpus/0000:01:00.0
  printf 'Model: \t\t %s\nIRQ:   \t\t 60\n' "$MODEL" >/proc/driver/nvidia/gpus/0000:01:00.0/information
fi
mount -t tmpfs none "$SCRATCH"
mkdir "$SCRATCH/upper" "$SCRATCH/work"
mount -t overlay none -o "lowerdir=/dev,upperdir=$SCRATCH/upper,workdir=$SCRATCH/work" /dev
for node in $NODES; do mknod -m 666 "/dev/$node" c 1 3; done
exec "$@"
"""
_ANSWERS = {
    # As NVIDIA's: without a visible GPU it says CUDA_ERROR_NO_DEVICE.
    "cuInit": '(unsigned f) { char *v = getenv("CUDA_VISIBLE_DEVICES"); return v && v[0] == 45 ? 100 : 0; }',
    "cuGetErrorName": '(int e, const char **s) { *s = "CUDA_ERROR_OF_STAND_IN"; return 0; }',
    "cuGetErrorString": '(int e, const char **s) { *s = "an error of the stand-in"; return 0; }',
    "cuDriverGetVersion": "(int *v) { *v = 12060; return 0; }",
    "cuDeviceGetCount": "(int *n) { *n = 1; return 0; }",
    "cuDeviceGet": "(int *d, int i) { *d = i; return 0; }",
    "cuDeviceGetName": '(char *s, int n, int d) { strncpy(s, "NVIDIA Stand-in", n); return 0; }',
    # 75 and 76 are the compute capability (cuda.h, CUdevice_attribute).
    "cuDeviceGetAttribute": "(int *v, int a, int d) { *v = a == 75 ? 8 : a == 76 ? 6 : 1024; return 0; }",
    "cuDeviceTotalMem_v2": "(size_t *s, int d) { *s = 8ull << 30; return 0; }",
    "cuDeviceGetPCIBusId": '(char *s, int n, int d) { strncpy(s, "0000:01:00.0", n); return 0; }',
    "cuMemGetInfo_v2": "(size_t *a, size_t *b) { *a = *b = 8ull << 30; return 0; }",
    "cuCtxGetCurrent": "(void **c) { *c = 0; return 0; }",
    "cuDevicePrimaryCtxRetain": "(void **c, int d) { *c = (void *)8; return 0; }",
}
_CUDNN = "unsigned long cudnnGetVersion() { return 90300; }"


def driver(folder: Path, asker: Path) -> None:
    """Make the driver's libraries, with every function of the driver that a library of TensorFlow names."""
    with asker.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        names = {name.decode() for name in re.findall(rb"\0(cu[A-Z]\w+)(?=\0)", content)}
    silent = "".join(f"int {name}() {{ return 0; }}\n" for name in sorted(names - set(_ANSWERS)))
    answers = "".join(f"int {name}{body}\n" for name, body in _ANSWERS.items())
    shared(folder / "libcuda.so.1", f"#include <stdlib.h>\n#include <string.h>\n{silent}{answers}")
    shared(folder / "libnvidia-ml.so.1", "int nvmlInit_v2() { return 0; }")


def libraries(site: Path) -> None:
    """Make the libraries of CUDA where pip's packages have them."""
    for package, names in LIBRARIES.items():
        for name in names:
            shared(site / "nvidia" / package / "lib" / name, _CUDNN if package == "cudnn" else "int nothing;")


def shared(path: Path, source: str, needs: Iterable[Path] = ()) -> None:
    """Make a shared library of that name, from C; it needs others by their names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    named = ["-shared", "-fPIC", f"-Wl,-soname,{path.name}", "-Wl,--no-as-needed", "-o", str(path)]
    command = ["gcc", "-w", *named, "-x", "c", "-", "-x", "none", *map(str, needs)]
    subprocess.run(command, input=source, text=True, check=True)
