"""@local_config_rocm: the ROCm half of the contract. There is no HIP code in the miniature, so it ends in an error."""

def _rocm_configure_impl(repository_ctx):
    environ = repository_ctx.os.environ
    if environ.get("TF_NEED_ROCM", "").strip() == "1":
        rocm_path = environ.get("ROCM_PATH") or "/opt/rocm"
        if not repository_ctx.path(rocm_path + "/bin/hipcc").exists:
            fail("Cannot find the ROCm toolkit: there is no %s/bin/hipcc" % rocm_path)
        for target in environ.get("TF_ROCM_AMDGPU_TARGETS", "").split(","):
            if not target.startswith("gfx"):
                fail("Invalid AMDGPU target: " + target)
        fail("The miniature has no HIP kernels: --config=rocm can be asked for, but not built")
    repository_ctx.file("BUILD", "")
    repository_ctx.file("rocm/BUILD", "")
    repository_ctx.file("rocm/build_defs.bzl", """
def if_rocm(if_true, if_false = []):
    return if_false
""")

rocm_configure = repository_rule(
    implementation = _rocm_configure_impl,
    environ = ["TF_NEED_ROCM", "TF_ROCM_AMDGPU_TARGETS", "ROCM_PATH"],
)
