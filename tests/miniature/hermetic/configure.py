"""Asks how to build and writes the answers to .tf_configure.bazelrc.

A variable of the environment answers its question beforehand. Without a terminal every other question takes its
default, and so does a bad answer that comes from a variable: convenient once, and the reason why this step can end
well with other values than those that were given.

What only one of the two roads asks is in configure_road.py beside this file.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys

import configure_road

ATTEMPTS = 10
DEFAULT_CAPABILITIES = "3.5,7.0"
TRUE_WORDS = ("1", "t", "true", "y", "yes")
FALSE_WORDS = ("0", "f", "false", "n", "no")


class UserInputError(Exception):
    """The environment holds something that no question could repair."""


class Configuration:
    """The answers so far and the file that they are written to."""

    def __init__(self, workspace):
        self.workspace = workspace
        self.answers = dict(os.environ)
        self.file = workspace / ".tf_configure.bazelrc"
        self.file.write_text("", encoding="utf-8")

    def write(self, line):
        with self.file.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def write_action_env(self, name, value):
        self.write(f'build --action_env {name}="{value}"')

    def is_on(self, name):
        return self.answers.get(name) == "1"

    def ask_text(self, name, question, default):
        """An empty variable counts as one that is not set."""
        return self.answers.get(name) or _ask(f"{question} [default: {default}]: ") or default

    def ask_until_valid(self, name, question, default, is_valid):
        """The answer, remembered; a bad one is asked again, at most ten times."""
        default = self.answers.get(name) or default
        for _ in range(ATTEMPTS):
            answer = self.ask_text(name, question, default)
            if is_valid(answer):
                self.answers[name] = answer
                return answer
            print(f"{name}: {answer!r} will not do.")
            self.answers[name] = ""
        self.give_up(name)

    def give_up(self, what):
        raise UserInputError(
            f"Invalid {what} setting was provided {ATTEMPTS} times in a row: this looks like a mistake in a script."
        )

    def ask_compiler(self, name, question, candidates):
        """The path of a compiler, with symbolic links resolved."""
        default = next((path for path in candidates if path and os.path.exists(path)), "")
        self.answers[name] = os.path.realpath(self.ask_until_valid(name, question, default, os.path.exists))
        return self.answers[name]

    def ask_boolean(self, name, question, default):
        """Remembers "1" or "0". Unlike everything else, a bad value in the environment stops the configuration."""
        given = self.answers.get(name)
        if given is None:
            hint = "Y/n" if default else "y/N"
            given = {"y": "y", "n": "n"}.get(_ask(f"{question} [{hint}]: ").lower(), "y" if default else "n")
        if given.strip().lower() not in TRUE_WORDS + FALSE_WORDS:
            raise UserInputError(
                f"Environment variable {name} must be set as a boolean indicator, not as {given!r}. "
                f"True is one of {', '.join(TRUE_WORDS)}; false is one of {', '.join(FALSE_WORDS)}."
            )
        self.answers[name] = "1" if given.strip().lower() in TRUE_WORDS else "0"
        return self.is_on(name)

    def ask_capabilities(self, name):
        """The list without blanks. One that cannot be read is dropped with a line in the log, and no error."""
        while True:
            question = "Compute capabilities, comma separated: x.y, sm_xy or compute_xy"
            capabilities = "".join(self.ask_text(name, question, DEFAULT_CAPABILITIES).split())
            if all([_capability_is_readable(capability) for capability in capabilities.split(",")]):
                self.answers[name] = capabilities
                return capabilities
            self.answers[name] = ""

    def write_library_path(self):
        if self.answers.get("LD_LIBRARY_PATH", "1") != "1":
            self.write_action_env("LD_LIBRARY_PATH", self.answers["LD_LIBRARY_PATH"])


def _ask(question):
    try:
        return input(question).strip()
    except EOFError:
        print()
        return ""


def _capability_is_readable(capability):
    """Only the beginning is looked at, so 7.0;8.0 and sm_86x pass here and fail in Bazel."""
    dotted = re.match("[0-9]+.[0-9]+", capability)
    named = re.match("(sm|compute)_?([0-9]{2,})", capability)
    if dotted:
        number = float(dotted.group())
    elif named:
        number = int(named.group(2)) / 10
    else:
        print(f"Invalid compute capability: {capability}")
        return False
    if number < 3.0:
        print(f"ERROR: compute capability {capability} is below 3.0, which is the lowest; leave it out of the list.")
        return False
    if number < 3.5:
        print(f"WARNING: XLA does not support compute capability {capability}.")
    return True


def _print_bazel_version():
    bazel = shutil.which("bazel") or shutil.which("bazelisk")
    if bazel is None:
        print("Cannot find bazel: there is neither bazel nor bazelisk on the PATH.")
        sys.exit(1)
    answer = subprocess.run([bazel, "--version"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    version = answer.stdout.decode().strip().replace("bazel ", "", 1)
    if re.fullmatch(r"\d+\.\d+(\.\d+)?", version.split("-")[0]):
        print(f"You have bazel {version} installed.")
    else:
        print("WARNING: current bazel installation is not a release version.")


def configure_python(configuration):
    """A path that is no program is replaced by the Python that runs this, without an error."""
    while True:
        python = configuration.ask_text("PYTHON_BIN_PATH", "Where is Python?", sys.executable)
        if os.path.isfile(python) and os.access(python, os.X_OK):
            break
        print(f"Invalid python path: {python} is not a program.")
        configuration.answers["PYTHON_BIN_PATH"] = ""
    configuration.answers["PYTHON_BIN_PATH"] = python

    search_path = [path for path in configuration.answers.get("PYTHONPATH", "").split(":") if path]
    library = configuration.answers.get("PYTHON_LIB_PATH")
    if not library:
        script = "import site; print('\\n'.join(site.getsitepackages()))"
        answer = subprocess.run([python, "-c", script], stdout=subprocess.PIPE, check=True).stdout.decode()
        libraries = [path for path in sorted({*search_path, *answer.splitlines()}) if os.path.isdir(path)]
        library = libraries[0]
        if configuration.answers.get("USE_DEFAULT_PYTHON_LIB_PATH") != "1":
            print("Python libraries were found here:", *libraries, sep="\n  ")
            library = _ask(f"Which one is to be used? [default: {library}]: ") or library

    configuration.write_action_env("PYTHON_BIN_PATH", python)
    configuration.write_action_env("PYTHON_LIB_PATH", library)
    configuration.write(f'build --python_path="{python}"')
    if library in search_path:
        configuration.write_action_env("PYTHONPATH", configuration.answers["PYTHONPATH"])
    script = configuration.workspace / "tools" / "python_bin_path.sh"
    script.parent.mkdir(exist_ok=True)
    script.write_text(f'export PYTHON_BIN_PATH="{python}"', encoding="utf-8")


def configure_xla(configuration):
    """Unlike the other switches this one is read as a number: "yes" ends in a ValueError."""
    wish = configuration.answers.get("TF_ENABLE_XLA")
    if wish is not None:
        configuration.write(f"build --define=with_xla_support={'true' if int(wish) else 'false'}")


def configure_rocm(configuration):
    if configuration.ask_boolean("TF_NEED_ROCM", "Build with ROCm?", default=False):
        configuration.write("build --config=rocm")
        configuration.write_library_path()
        for name in ("ROCM_PATH", "HIP_PLATFORM"):
            if configuration.answers.get(name):
                configuration.write_action_env(name, configuration.answers[name])


def configure_cuda(configuration):
    """Returns whether the compilers are settled with it."""
    wanted = configuration.ask_boolean("TF_NEED_CUDA", "Build with CUDA?", default=False)
    if not wanted or "TF_CUDA_CONFIG_REPO" in configuration.answers:
        return False
    configure_road.configure_cuda_toolkit(configuration)
    configuration.write_library_path()
    if configuration.ask_boolean("TF_CUDA_CLANG", "Shall clang compile the CUDA code?", default=True):
        configuration.write("build --config=cuda_clang")
        _silence_offsetof(configuration, _configure_clang(configuration, "CLANG_CUDA_COMPILER_PATH"))
        configuration.write("build --config=cuda_clang")  # Twice, as in the real one.
    else:
        question = "Which gcc shall be the host compiler of nvcc?"
        path = configuration.ask_compiler("GCC_HOST_COMPILER_PATH", question, [shutil.which("gcc")])
        configuration.write_action_env("GCC_HOST_COMPILER_PATH", path)
        configuration.write("build --config=cuda")
    return True


def configure_cpu_compiler(configuration):
    if configuration.ask_boolean("TF_NEED_CLANG", "Shall clang compile everything?", default=True):
        path = _configure_clang(configuration, "CLANG_COMPILER_PATH")
        configuration.write(f"build --repo_env=CC={path}")
        configuration.write(f"build --repo_env=BAZEL_COMPILER={path}")
        _silence_offsetof(configuration, path)


def _configure_clang(configuration, name):
    candidates = [*configure_road.CLANG_CANDIDATES, shutil.which("clang")]
    path = configuration.ask_compiler(name, "Where is clang?", candidates)
    configuration.write_action_env(name, path)
    return path


def _silence_offsetof(configuration, clang):
    """Some versions of clang reject what a dependency of the real tree does."""
    answer = subprocess.run([clang, "--version"], stdout=subprocess.PIPE, check=False).stdout.decode().lower()
    version = re.search(r"clang version (\d+)", answer)
    if version is None:
        print("WARNING: current clang installation is not a release version.")
    elif int(version.group(1)) in configure_road.CLANGS_THAT_REJECT_OFFSETOF:
        configuration.write("build --copt=-Wno-gnu-offsetof-extensions")


def configure_opt_flags(configuration):
    """The only place that defines --config=opt."""
    flags = configuration.ask_text("CC_OPT_FLAGS", "Compiler flags of --config=opt", "-Wno-sign-compare")
    for flag in flags.split():
        configuration.write(f"build:opt --copt={flag}")
        configuration.write(f"build:opt --host_copt={flag}")


def configure_system_libraries(configuration):
    libraries = configuration.answers.get("TF_SYSTEM_LIBS", "")
    if libraries:
        names = libraries.split(",") if "," in libraries else libraries.split()
        configuration.write_action_env("TF_SYSTEM_LIBS", ",".join(sorted(names)))
    for name in ("PREFIX", "LIBDIR", "INCLUDEDIR", "PROTOBUF_INCLUDE_PATH"):
        if name in configuration.answers:
            configuration.write(f"build --define={name}={configuration.answers[name]}")


def configure_android(configuration):
    """Asks for the NDK and goes no further: nobody builds the miniature for Android."""
    if configuration.ask_boolean("TF_SET_ANDROID_WORKSPACE", "Set up Android builds?", default=False):
        default = os.path.join(configuration.answers.get("HOME", "/"), "Android/Sdk/ndk-bundle")
        path = configuration.ask_until_valid(
            "ANDROID_NDK_HOME",
            "Where is the Android NDK?",
            default,
            lambda folder: os.path.exists(os.path.join(folder, "source.properties")),
        )
        configuration.write_action_env("ANDROID_NDK_HOME", path)


def configure_tests(configuration):
    configuration.write("test --test_size_filters=small,medium")
    filters = ["-benchmark-test", "-no_oss", "-oss_excluded"]
    if configuration.is_on("TF_NEED_CUDA") or configuration.is_on("TF_NEED_ROCM"):
        filters.append("-no_gpu")
        configuration.write("test --test_env=LD_LIBRARY_PATH")
    else:
        filters.append("-gpu")
    for api, extra in (("v1", []), ("v2", ["-v1only"])):
        configuration.write(f"test:{api} --test_tag_filters={','.join([*filters, '-oss_serial', *extra])}")
        configuration.write(f"test:{api} --build_tag_filters={','.join([*filters, *extra])}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workspace", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent)
    arguments = parser.parse_args()

    _print_bazel_version()
    configuration = Configuration(arguments.workspace)
    configure_python(configuration)
    configure_xla(configuration)
    configure_rocm(configuration)
    if not configure_cuda(configuration):
        configure_cpu_compiler(configuration)
    if configuration.is_on("TF_NEED_CUDA") and configuration.is_on("TF_NEED_ROCM"):
        raise UserInputError("CUDA and ROCm are mutually exclusive: at most one GPU platform can be configured.")
    configure_opt_flags(configuration)
    configure_system_libraries(configuration)
    configure_android(configuration)
    configure_tests(configuration)


if __name__ == "__main__":
    main()
