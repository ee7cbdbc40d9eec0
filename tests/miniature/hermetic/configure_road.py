"""What configure.py asks on the hermetic road only: CUDA is a version that Bazel fetches, or a folder of one's own."""

CLANG_CANDIDATES = [f"/usr/lib/llvm-{version}/bin/clang" for version in (18, 17, 16)]
CLANGS_THAT_REJECT_OFFSETOF = (16, 17)


def configure_cuda_toolkit(configuration):
    """Nothing is looked for and nothing is checked here: a version that does not exist is Bazel's to refuse."""
    for name in ("HERMETIC_CUDA_VERSION", "HERMETIC_CUDNN_VERSION"):
        _write_if_given(configuration, name, "Which version? Empty for that of .bazelrc")
    variable = "HERMETIC_CUDA_COMPUTE_CAPABILITIES"
    _write(configuration, variable, configuration.ask_capabilities(variable))
    for name in ("LOCAL_CUDA_PATH", "LOCAL_CUDNN_PATH", "LOCAL_NCCL_PATH"):
        _write_if_given(configuration, name, "Which folder instead of a download? Empty for the download")


def _write_if_given(configuration, name, question):
    value = configuration.ask_text(name, f"{name}: {question}", "")
    if value:
        _write(configuration, name, value)


def _write(configuration, name, value):
    configuration.write(f'build:cuda --repo_env {name}="{value}"')
