"""Writes @local_config_python: the headers and the name of one Python of this machine; the same on both roads."""

_BUILD = """
cc_library(
    name = "python_headers",
    hdrs = glob(["include/**/*.h"]),
    includes = ["include"],
    visibility = ["//visibility:public"],
)
"""

_QUESTION = "import sys, sysconfig; print(sysconfig.get_paths()['include']); print('cp%d%d' % sys.version_info[:2])"

def write_python_repository(repository_ctx, python, settings):
    """Writes the build file and defs.bzl.

    Args:
      repository_ctx: of the repository rule.
      python: path of the interpreter, as text.
      settings: further values for defs.bzl.
    """
    answer = repository_ctx.execute([python, "-c", _QUESTION])
    if answer.return_code:
        fail("%s cannot be asked about itself: %s" % (python, answer.stderr))
    include, tag = answer.stdout.strip().split("\n")
    if not repository_ctx.path(include + "/Python.h").exists:
        fail("There is no %s/Python.h: the headers of %s are not installed" % (include, python))
    repository_ctx.symlink(include, "include")
    repository_ctx.file("BUILD", _BUILD)
    values = dict(settings, PYTHON_BIN = python, PYTHON_TAG = tag)
    repository_ctx.file("defs.bzl", "".join(["%s = %r\n" % (name, values[name]) for name in sorted(values.keys())]))
