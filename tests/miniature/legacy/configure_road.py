"""What configure.py asks on the legacy road only: CUDA is looked for on this machine."""

import os
import subprocess

CLANG_CANDIDATES = ["/usr/lib/llvm-16/bin/clang"]
CLANGS_THAT_REJECT_OFFSETOF = (16,)

ATTEMPTS = 10
WRITTEN_WHEN_FOUND = (
    "TF_CUDA_VERSION",
    "TF_CUBLAS_VERSION",
    "TF_CUDNN_VERSION",
    "TF_TENSORRT_VERSION",
    "TF_NCCL_VERSION",
    "TF_CUDA_PATHS",
    "CUDA_TOOLKIT_PATH",
    "CUDNN_INSTALL_PATH",
    "NCCL_INSTALL_PATH",
    "NCCL_HDR_PATH",
    "TENSORRT_INSTALL_PATH",
)


def configure_cuda_toolkit(configuration):
    """Looks first and asks only when nothing was found: then each question is asked ten times, and that is the end."""
    answers = configuration.answers
    if configuration.ask_boolean("TF_NEED_TENSORRT", "Build with TensorRT?", default=False):
        configuration.write("build --config=tensorrt")
    before = dict(answers)
    for _ in range(ATTEMPTS):
        if _find_toolkit(configuration):
            break
        answers.clear()
        answers.update(before)
        _ask_where_it_is(configuration)
    else:
        configuration.give_up("CUDA")
    for name in WRITTEN_WHEN_FOUND:
        if name in answers:
            configuration.write_action_env(name, answers[name])
    variable = "TF_CUDA_COMPUTE_CAPABILITIES"
    configuration.write_action_env(variable, configuration.ask_capabilities(variable))


def _find_toolkit(configuration):
    """Runs find_cuda_config.py, which says on stderr what it missed."""
    libraries = ["cuda", "cudnn"]
    if configuration.is_on("TF_NEED_TENSORRT"):
        libraries.append("tensorrt")
    script = os.path.join("third_party", "gpus", "find_cuda_config.py")
    command = [configuration.answers["PYTHON_BIN_PATH"], str(configuration.workspace / script), *libraries]
    answer = subprocess.run(command, stdout=subprocess.PIPE, env=configuration.answers, check=False)
    if answer.returncode:
        print("CUDA was not found; asking for details.\n")
        return False
    found = dict(line.split(": ", 1) for line in answer.stdout.decode().splitlines())
    print(f"Found CUDA {found['cuda_version']} in {found['cuda_toolkit_path']}, cuDNN {found['cudnn_version']}.")
    configuration.answers["CUDA_TOOLKIT_PATH"] = found["cuda_toolkit_path"]
    return True


def _ask_where_it_is(configuration):
    questions = [
        ("TF_CUDA_VERSION", "Which version of CUDA?", "11"),
        ("TF_CUDNN_VERSION", "Which version of cuDNN?", "2"),
        ("TF_NCCL_VERSION", "Which installed version of NCCL? Empty for none", ""),
        ("TF_CUDA_PATHS", "Where to look for CUDA? Folders, comma separated; empty for the usual ones", ""),
    ]
    if configuration.is_on("TF_NEED_TENSORRT"):
        questions.append(("TF_TENSORRT_VERSION", "Which version of TensorRT?", "6"))
    for name, question, default in questions:
        value = configuration.ask_text(name, question, default)
        if value or name == "TF_NCCL_VERSION":
            configuration.answers[name] = value
