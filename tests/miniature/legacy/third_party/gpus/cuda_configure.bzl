"""@local_config_cuda on the legacy road: CUDA is found on this machine, by the variables that configure passes on."""

load("//third_party/gpus:capabilities.bzl", "parse_capabilities")
load("//third_party/gpus:cuda_repository.bzl", "write_cuda_repository")

# find_cuda_config.py reads these.
_SEARCH_VARIABLES = [
    "CUDA_TOOLKIT_PATH",
    "TENSORRT_INSTALL_PATH",
    "TF_CUDA_PATHS",
    "TF_CUDA_VERSION",
    "TF_CUDNN_VERSION",
    "TF_TENSORRT_VERSION",
]

_SETTINGS = """
config_setting(
    name = "is_cuda_enabled",
    define_values = {"using_cuda": "true"},
    visibility = ["//visibility:public"],
)
"""

def _find_cuda(repository_ctx, python, libraries):
    """Runs find_cuda_config.py and returns what it printed as a dictionary."""
    environ = repository_ctx.os.environ
    script = repository_ctx.path(Label("@org_tensorflow//third_party/gpus:find_cuda_config.py"))
    answer = repository_ctx.execute(
        [python, str(script)] + libraries,
        environment = {name: environ[name] for name in _SEARCH_VARIABLES if name in environ},
    )
    if answer.return_code:
        fail("Failed to run find_cuda_config.py: " + answer.stderr)
    return dict([line.split(": ") for line in answer.stdout.strip().split("\n")])

def _find_compiler(repository_ctx, variable, name):
    wanted = repository_ctx.os.environ.get(variable, "").strip() or name
    found = repository_ctx.path(wanted) if wanted.startswith("/") else repository_ctx.which(wanted)
    if found == None or not found.exists:
        fail("Cannot find the compiler %s; %s names another one" % (wanted, variable))
    return str(found)

def _cuda_configure_impl(repository_ctx):
    environ = repository_ctx.os.environ
    if environ.get("TF_NEED_CUDA", "").strip() != "1":
        write_cuda_repository(repository_ctx, _SETTINGS, "", None)
        return
    python = environ.get("PYTHON_BIN_PATH") or "python3"
    tensorrt = ["tensorrt"] if environ.get("TF_NEED_TENSORRT", "").strip() == "1" else []
    found = _find_cuda(repository_ctx, python, ["cuda", "cudnn"] + tensorrt)
    uses_clang = environ.get("TF_CUDA_CLANG", "").strip() == "1"
    if uses_clang:
        compiler = _find_compiler(repository_ctx, "CLANG_CUDA_COMPILER_PATH", "clang")
    else:
        compiler = _find_compiler(repository_ctx, "GCC_HOST_COMPILER_PATH", "gcc")
    write_cuda_repository(repository_ctx, _SETTINGS, "", struct(
        toolkit_path = found["cuda_toolkit_path"],
        version = found["cuda_version"],
        cudnn_version = found["cudnn_version"].split(".")[0],
        capabilities = parse_capabilities(
            environ.get("TF_CUDA_COMPUTE_CAPABILITIES") or "compute_35,compute_52",
            digits = [2],
            letters = [],
        ),
        host_compiler = compiler,
        device_compiler = compiler if uses_clang else None,
    ))

cuda_configure = repository_rule(
    implementation = _cuda_configure_impl,
    environ = _SEARCH_VARIABLES + [
        "CLANG_CUDA_COMPILER_PATH",
        "GCC_HOST_COMPILER_PATH",
        "PYTHON_BIN_PATH",
        "TF_CUDA_CLANG",
        "TF_CUDA_COMPUTE_CAPABILITIES",
        "TF_NEED_CUDA",
        "TF_NEED_TENSORRT",
    ],
)
