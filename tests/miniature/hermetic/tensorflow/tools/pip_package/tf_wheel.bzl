"""The rule behind //tensorflow/tools/pip_package:wheel."""

load("@local_config_python//:defs.bzl", "PYTHON_BIN", "PYTHON_TAG", "WHEEL_NAME")
load("//third_party/gpus:flags.bzl", "FlagInfo")

def _tf_wheel_impl(ctx):
    cuda_is_enabled = ctx.attr._enable_cuda[FlagInfo].value
    if cuda_is_enabled and ctx.attr._include_cuda_libs[FlagInfo].value:
        fail("TF wheel shouldn't be built with CUDA dependencies. Please provide `--config=cuda_wheel` " +
             "beside the configuration that turns CUDA on.")

    wheel = ctx.actions.declare_file("wheel_house/{name}-{version}-{python}-{python}-linux_x86_64.whl".format(
        name = WHEEL_NAME,
        version = ctx.attr.version,
        python = PYTHON_TAG,
    ))
    arguments = ctx.actions.args()
    arguments.add(ctx.file._builder)
    arguments.add("--output", wheel)
    arguments.add("--project_name", WHEEL_NAME)
    arguments.add("--version", ctx.attr.version)
    arguments.add("--setup", ctx.file._setup)
    arguments.add_all(["%s=%s" % (file.short_path, file.path) for file in ctx.files.srcs])
    ctx.actions.run(
        inputs = ctx.files.srcs + [ctx.file._builder, ctx.file._setup],
        outputs = [wheel],
        executable = PYTHON_BIN,
        arguments = [arguments],
        mnemonic = "TfWheel",
        progress_message = "Packing %s" % wheel.basename,
        use_default_shell_env = True,
    )
    return [DefaultInfo(files = depset([wheel]))]

tf_wheel = rule(
    implementation = _tf_wheel_impl,
    attrs = {
        "srcs": attr.label_list(allow_files = True),
        "version": attr.string(mandatory = True),
        "_builder": attr.label(default = "//tensorflow/tools/pip_package:build_pip_package.py", allow_single_file = True),
        "_enable_cuda": attr.label(default = "@local_config_cuda//:enable_cuda"),
        "_include_cuda_libs": attr.label(default = "@local_config_cuda//cuda:include_cuda_libs"),
        "_setup": attr.label(default = "//tensorflow/tools/pip_package:setup.py", allow_single_file = True),
    },
)
