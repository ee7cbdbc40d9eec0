"""Writes the repository @local_config_cuda once it is known what was asked for; the same on both roads."""

_BUILD = """
package(default_visibility = ["//visibility:public"])

exports_files(["cuda_config.py"])

cc_library(
    name = "cuda_headers",
    hdrs = glob(["include/*.h", "include/*.hpp", "include/crt/*"]),
    includes = ["include"],
)

cc_library(
    name = "cudart_static",
    srcs = glob(["lib/libcudart_static.a"]),
    linkopts = ["-ldl", "-lpthread", "-lrt"],
)
"""

_BUILD_DEFS = """
def if_cuda(if_true, if_false = []):
    return select({
        "@local_config_cuda//:is_cuda_enabled": if_true,
        "//conditions:default": if_false,
    })
"""

def _file_of_assignments(values):
    return "".join(["%s = %r\n" % (name, values[name]) for name in sorted(values.keys())])

def write_cuda_repository(repository_ctx, settings_build, cuda_settings_build, cuda):
    """Writes build files and configuration.

    Args:
      repository_ctx: of the repository rule.
      settings_build: the build file at the root; it defines is_cuda_enabled, which differs between the roads.
      cuda_settings_build: what is added to the build file in cuda/.
      cuda: None for a build without CUDA, else a struct of toolkit_path, version, cudnn_version, capabilities,
        host_compiler, and device_compiler, which is None for nvcc.
    """
    repository_ctx.file("BUILD", settings_build)
    repository_ctx.file("cuda/BUILD", cuda_settings_build + _BUILD)
    repository_ctx.file("cuda/build_defs.bzl", _BUILD_DEFS)
    if cuda == None:
        repository_ctx.file("cuda/cuda_config.py", "config = {}\n")
        settings = {
            "CAPABILITIES": [],
            "CUDA_TOOLKIT_PATH": "",
            "DEVICE_COMPILER": "",
            "DEVICE_COMPILER_IS_CLANG": False,
            "HOST_COMPILER": "",
        }
    else:
        _link_toolkit(repository_ctx, cuda.toolkit_path)
        repository_ctx.file("cuda/cuda_config.py", "config = %r\n" % {
            "cpu_compiler": cuda.host_compiler,
            "cuda_compute_capabilities": cuda.capabilities,
            "cuda_version": cuda.version,
            "cudnn_version": cuda.cudnn_version,
        })
        settings = {
            "CAPABILITIES": cuda.capabilities,
            "CUDA_TOOLKIT_PATH": cuda.toolkit_path,
            "DEVICE_COMPILER": cuda.device_compiler or "",
            "DEVICE_COMPILER_IS_CLANG": cuda.device_compiler != None,
            "HOST_COMPILER": cuda.host_compiler,
        }
    repository_ctx.file("cuda/cuda_config.bzl", _file_of_assignments(settings))

def _link_toolkit(repository_ctx, toolkit_path):
    repository_ctx.symlink(toolkit_path + "/include", "cuda/include")
    for folder in ["lib64", "lib", "targets/x86_64-linux/lib"]:
        library = repository_ctx.path("%s/%s/libcudart_static.a" % (toolkit_path, folder))
        if library.exists:
            repository_ctx.symlink(library, "cuda/lib/libcudart_static.a")
            return
    fail("There is no libcudart_static.a under " + toolkit_path)
