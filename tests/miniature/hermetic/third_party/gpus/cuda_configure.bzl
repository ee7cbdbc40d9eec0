"""@local_config_cuda on the hermetic road: CUDA is named by an exact version and given by --repo_env.

The real rule downloads the CUDA of that version. The miniature has nowhere to download it from: version X.Y.Z stands
for the toolkit at /usr/local/cuda-X.Y.
"""

load("//third_party/gpus:capabilities.bzl", "parse_capabilities")
load("//third_party/gpus:cuda_repository.bzl", "write_cuda_repository")

_CUDA_VERSIONS = ["11.8", "12.3.2", "12.4.1", "12.5.0", "12.5.1", "12.6.0", "12.8.0", "12.8.1", "12.9.0", "13.0.0"]
_CUDNN_VERSIONS = ["8.6", "8.9.4.25", "8.9.6", "8.9.7.29", "9.1.1", "9.2.0", "9.3.0", "9.8.0", "9.12.0"]

_SETTINGS = """
load("@org_tensorflow//third_party/gpus:flags.bzl", "bool_flag", "string_flag")

package(default_visibility = ["//visibility:public"])

bool_flag(
    name = "enable_cuda",
    build_setting_default = False,
)

string_flag(
    name = "cuda_compiler",
    build_setting_default = "nvcc",
    values = ["clang", "nvcc"],
)

config_setting(
    name = "is_cuda_enabled",
    flag_values = {":enable_cuda": "True"},
)
"""

_CUDA_SETTINGS = """
load("@org_tensorflow//third_party/gpus:flags.bzl", "bool_flag")

bool_flag(
    name = "include_cuda_libs",
    build_setting_default = True,
    visibility = ["//visibility:public"],
)
"""

def _get(repository_ctx, names, default = ""):
    """The first of these variables that is set and not empty. The older names are fallbacks only."""
    for name in names:
        value = repository_ctx.os.environ.get(name, "").strip()
        if value:
            return value
    return default

def _check_key(what, variable, version, known):
    if version not in known:
        fail(("The supported %s versions are %s. %s=%s is none of them: give one of these keys, all parts of it, " +
              "or a folder of your own.") % (what, known, variable, version))

def _check_folders(variable, path, folders, repository_ctx):
    for folder in folders:
        if not repository_ctx.path("%s/%s" % (path, folder)).exists:
            fail("%s=%s: there is no folder %s in it; it needs %s" % (variable, path, folder, ", ".join(folders)))

def _find_toolkit(repository_ctx):
    """Returns the path of the toolkit and its version as it goes into the build information."""
    version = _get(repository_ctx, ["HERMETIC_CUDA_VERSION", "TF_CUDA_VERSION"])
    local_path = _get(repository_ctx, ["LOCAL_CUDA_PATH"])
    if local_path:
        _check_folders("LOCAL_CUDA_PATH", local_path, ["include", "lib", "bin", "nvvm"], repository_ctx)
        return local_path, version
    _check_key("CUDA", "HERMETIC_CUDA_VERSION", version, _CUDA_VERSIONS)
    path = "/usr/local/cuda-" + ".".join(version.split(".")[:2])
    if not repository_ctx.path(path + "/bin/nvcc").exists:
        fail("CUDA %s could not be fetched: in the miniature that means that there is no %s/bin/nvcc" % (version, path))
    return path, version

def _find_cudnn_version(repository_ctx):
    version = _get(repository_ctx, ["HERMETIC_CUDNN_VERSION", "TF_CUDNN_VERSION"])
    local_path = _get(repository_ctx, ["LOCAL_CUDNN_PATH"])
    if local_path:
        _check_folders("LOCAL_CUDNN_PATH", local_path, ["include", "lib"], repository_ctx)
    else:
        _check_key("CUDNN", "HERMETIC_CUDNN_VERSION", version, _CUDNN_VERSIONS)
    return version.split(".")[0]

def _find_compilers(repository_ctx):
    """Returns the host compiler, and the compiler of GPU code unless that is nvcc.

    GCC_HOST_COMPILER_PATH is not read on this road, and nvcc is used only when TF_NVCC_CLANG says so.
    """
    wanted = _get(repository_ctx, ["CLANG_CUDA_COMPILER_PATH", "CC"], "clang")
    found = repository_ctx.path(wanted) if wanted.startswith("/") else repository_ctx.which(wanted)
    if found == None or not found.exists:
        fail("Cannot find the compiler %s; CLANG_CUDA_COMPILER_PATH and CC name another one" % wanted)
    compiler = str(found)
    if _get(repository_ctx, ["TF_NVCC_CLANG"]) in ["1", "True", "true"]:
        return compiler, None
    if "clang version" not in repository_ctx.execute([compiler, "--version"]).stdout:
        fail(("%s is not clang, and without TF_NVCC_CLANG=1 (--config=nvcc_clang) it is clang that compiles the " +
              "GPU code on this road, whatever TF_CUDA_CLANG says") % compiler)
    return compiler, compiler

def _cuda_configure_impl(repository_ctx):
    if _get(repository_ctx, ["TF_NEED_CUDA"]) != "1":
        write_cuda_repository(repository_ctx, _SETTINGS, _CUDA_SETTINGS, None)
        return
    toolkit_path, version = _find_toolkit(repository_ctx)
    host_compiler, device_compiler = _find_compilers(repository_ctx)
    write_cuda_repository(repository_ctx, _SETTINGS, _CUDA_SETTINGS, struct(
        toolkit_path = toolkit_path,
        version = version,
        cudnn_version = _find_cudnn_version(repository_ctx),
        capabilities = parse_capabilities(
            _get(
                repository_ctx,
                ["HERMETIC_CUDA_COMPUTE_CAPABILITIES", "TF_CUDA_COMPUTE_CAPABILITIES"],
                "compute_35,compute_52",
            ),
            digits = [2, 3],
            letters = ["a"],
        ),
        host_compiler = host_compiler,
        device_compiler = device_compiler,
    ))

cuda_configure = repository_rule(
    implementation = _cuda_configure_impl,
    environ = [
        "CC",
        "CLANG_CUDA_COMPILER_PATH",
        "HERMETIC_CUDA_COMPUTE_CAPABILITIES",
        "HERMETIC_CUDA_VERSION",
        "HERMETIC_CUDNN_VERSION",
        "LOCAL_CUDA_PATH",
        "LOCAL_CUDNN_PATH",
        "TF_CUDA_COMPUTE_CAPABILITIES",
        "TF_CUDA_VERSION",
        "TF_CUDNN_VERSION",
        "TF_NEED_CUDA",
        "TF_NVCC_CLANG",
    ],
)
