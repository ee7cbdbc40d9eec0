"""Compiles CUDA sources for exactly the capabilities that were asked for, one action per file."""

load(
    "@local_config_cuda//cuda:cuda_config.bzl",
    "CAPABILITIES",
    "CUDA_TOOLKIT_PATH",
    "DEVICE_COMPILER",
    "DEVICE_COMPILER_IS_CLANG",
    "HOST_COMPILER",
)

def _nvcc_code_flags():
    flags = []
    for capability in CAPABILITIES:
        kind, number = capability.split("_")
        code = "[sm_{0},compute_{0}]" if kind == "compute" else "sm_{0}"
        flags.append("-gencode=arch=compute_{0},code={1}".format(number, code.format(number)))
    return flags

def _clang_code_flags():
    flags = ["--no-cuda-include-ptx=all"]
    for capability in CAPABILITIES:
        kind, number = capability.split("_")
        flags.append("--cuda-gpu-arch=sm_" + number)
        if kind == "compute":
            flags.append("--cuda-include-ptx=sm_" + number)
    return flags

def _flags_of_the_build(ctx):
    if ctx.var["COMPILATION_MODE"] == "dbg":
        return ["-g", "-O0"]
    return ["-O2", "-DNDEBUG"]

def _compile_with_nvcc(ctx, source, output, context, include_flags):
    # The object carries the names of nvcc's temporary files, and they carry the number of the process unless they have
    # a folder of their own. PWD is what Bazel sets for C++: debug information names it as the folder of the sources.
    scratch = output.path + ".tmp"
    command = [
        CUDA_TOOLKIT_PATH + "/bin/nvcc",
        "-c",
        "-x",
        "cu",
        source.path,
        "-o",
        output.path,
        "-std=c++17",
        "-ccbin",
        HOST_COMPILER,
        "-Xcompiler",
        "-fPIC",
        "--keep",
        "--keep-dir",
        scratch,
    ] + _nvcc_code_flags() + _flags_of_the_build(ctx) + include_flags
    ctx.actions.run_shell(
        inputs = depset([source], transitive = [context.headers]),
        outputs = [output],
        command = 'scratch=$1; shift; mkdir -p "$scratch" && PWD=/proc/self/cwd "$@" && rm -r "$scratch"',
        arguments = [scratch] + command,
        mnemonic = "CudaCompile",
        progress_message = "Compiling %s for %s" % (source.short_path, ", ".join(CAPABILITIES)),
        use_default_shell_env = True,
    )

def _compile_with_clang(ctx, source, output, context, include_flags):
    ctx.actions.run(
        inputs = depset([source], transitive = [context.headers]),
        outputs = [output],
        executable = DEVICE_COMPILER,
        arguments = [
            "-c",
            "-x",
            "cuda",
            source.path,
            "-o",
            output.path,
            "-std=c++17",
            "-fPIC",
            "--cuda-path=" + CUDA_TOOLKIT_PATH,
        ] + _clang_code_flags() + _flags_of_the_build(ctx) + include_flags,
        mnemonic = "CudaCompile",
        progress_message = "Compiling %s for %s" % (source.short_path, ", ".join(CAPABILITIES)),
        use_default_shell_env = True,
    )

def _cuda_library_impl(ctx):
    if not CAPABILITIES:
        fail("%s needs CUDA, and this build is not configured for it: TF_NEED_CUDA is not 1" % ctx.label)
    context = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps]).compilation_context
    include_flags = ["-I."]
    for folder in context.includes.to_list() + context.system_includes.to_list():
        include_flags.append("-I" + folder)

    compile = _compile_with_clang if DEVICE_COMPILER_IS_CLANG else _compile_with_nvcc
    objects = []
    for source in ctx.files.srcs:
        output = ctx.actions.declare_file(source.basename.replace(".cu.cc", ".cu.pic.o"))
        compile(ctx, source, output, context, include_flags)
        objects.append(output)
    return [DefaultInfo(files = depset(objects))]

cuda_library = rule(
    implementation = _cuda_library_impl,
    attrs = {
        "deps": attr.label_list(providers = [CcInfo]),
        "srcs": attr.label_list(allow_files = [".cu.cc"]),
    },
)
