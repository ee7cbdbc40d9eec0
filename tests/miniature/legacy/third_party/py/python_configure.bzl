"""@local_config_python on the legacy road: PYTHON_BIN_PATH decides for which Python the wheel is."""

load("//third_party/py:python_repository.bzl", "write_python_repository")

def _python_configure_impl(repository_ctx):
    python = repository_ctx.os.environ.get("PYTHON_BIN_PATH") or repository_ctx.which("python3")
    if python == None:
        fail("There is no python3 on the PATH; PYTHON_BIN_PATH names another one")
    write_python_repository(repository_ctx, str(python), {})

python_configure = repository_rule(
    implementation = _python_configure_impl,
    environ = ["PYTHON_BIN_PATH", "PATH"],
)
