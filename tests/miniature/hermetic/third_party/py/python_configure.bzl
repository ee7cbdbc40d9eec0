"""@local_config_python on the hermetic road: HERMETIC_PYTHON_VERSION decides, and PYTHON_BIN_PATH does not.

The real rule downloads that Python. The miniature looks for pythonX.Y on the PATH.
"""

load("//third_party/py:python_repository.bzl", "write_python_repository")

_VERSIONS = ["3.9", "3.10", "3.11", "3.12", "3.13"]

def _python_configure_impl(repository_ctx):
    environ = repository_ctx.os.environ
    version = environ.get("HERMETIC_PYTHON_VERSION") or environ.get("TF_PYTHON_VERSION") or "system"
    if version != "system" and version not in _VERSIONS:
        fail("HERMETIC_PYTHON_VERSION=%s: there are lists of requirements for %s only" % (version, ", ".join(_VERSIONS)))
    name = "python3" if version == "system" else "python" + version
    python = repository_ctx.which(name)
    if python == None:
        fail("Python %s could not be fetched: in the miniature that means that there is no %s on the PATH" % (version, name))
    write_python_repository(repository_ctx, str(python), {
        "WHEEL_NAME": environ.get("WHEEL_NAME") or "tensorflow",
    })

python_configure = repository_rule(
    implementation = _python_configure_impl,
    environ = ["HERMETIC_PYTHON_VERSION", "TF_PYTHON_VERSION", "WHEEL_NAME", "PATH"],
)
