"""`init`: a first profile, from questions or from flags."""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tfdock.errors import ExitCode, Incompatible, Problem, ProfileError
from tfdock.talk import console
from tfdock.talk.app import AsJson, Knowledge, app, command, knowledge_for, print_json, settings_for

if TYPE_CHECKING:
    from tfdock.decide.starter import Devices, Starter
    from tfdock.read.knowledge import KnowledgeBase

_NO_GPU = "cpu"


@app.command(epilog="Examples: `tfdock init`, `tfdock init my --gpu rtx5080 --tensorflow 2.20`, `tfdock init --yes`.")
@command("tfdock.init/1")
def init(
    name: Annotated[str, typer.Argument(help="The profile to write: NAME.yaml.", metavar="NAME")] = "profile",
    gpu: Annotated[
        list[str] | None,
        typer.Option("--gpu", help="A GPU's name, a capability, or cpu; may be repeated.", show_default=False),
    ] = None,
    tensorflow: Annotated[
        str | None, typer.Option(help="A release; the newest that fits by default.", metavar="X", show_default=False)
    ] = None,
    python: Annotated[
        str | None, typer.Option(help="A Python; the newest that fits by default.", metavar="Y", show_default=False)
    ] = None,
    detect: Annotated[bool, typer.Option("--detect", help="Take this machine's GPUs.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Take the defaults, ask nothing.")] = False,
    knowledge: Knowledge = None,
    as_json: AsJson = False,
) -> None:
    """Write a first profile. Asks on a terminal; otherwise give flags."""

    path = _new_file(name)
    base = knowledge_for(settings_for(knowledge=knowledge))
    asking = sys.stdin.isatty() and not yes and not as_json
    if not (asking or gpu or detect or yes):
        raise ProfileError(
            Problem(
                code="init-nobody-to-ask",
                message="there is no terminal to ask for which GPU",
                fix="say it: `tfdock init --gpu rtx3080`, `--gpu cpu`, `--detect`, or `--yes` for the defaults",
            )
        )
    try:
        devices = _devices(base, gpu, detect=detect, asking=asking)
        found = _starter(base, devices, tensorflow, python, asking=asking)
    except typer.Abort as error:
        console.say("interrupted")
        raise typer.Exit(ExitCode.INTERRUPTED) from error
    _write(path, found.text)
    if as_json:
        document = {"profile": str(path), "build_id": found.resolution.build_id, "text": found.text}
        print_json("tfdock.init/1", True, document)
        return
    console.say(str(path), stream=sys.stdout)
    console.tell(f"It makes {found.resolution.build_id}.")
    console.tell(f"Next: `tfdock check {path}`, `tfdock plan {path} --why`, `tfdock build {path}`.")


def _new_file(name: str) -> Path:
    path = Path(name if name.endswith((".yaml", ".yml")) else f"{name}.yaml")
    if path.exists() or path.is_symlink():
        raise ProfileError(_taken(path))
    return path


def _taken(path: Path) -> Problem:
    message, fix = f"`{path}` is there already", "give another name: `tfdock init NAME`; nothing is overwritten"
    return Problem(code="init-file-exists", message=message, fix=fix)


def _write(path: Path, text: str) -> None:
    from tfdock.do.workspace import write_atomically

    try:
        path.open("x").close()  # the name is ours, or somebody else's already
        try:
            write_atomically(path, text.encode())
        except BaseException:
            path.unlink(missing_ok=True)
            raise
    except FileExistsError as error:
        raise ProfileError(_taken(path)) from error
    except OSError as error:
        message, fix = f"cannot write {path}: {error.strerror}", "check the folder, its owner and its mode"
        raise ProfileError(Problem(code="file-error", message=message, fix=fix)) from error


# --- answers, from flags, from this machine, or from somebody at a terminal ---------------------------------------


def _devices(base: KnowledgeBase, asked: list[str] | None, *, detect: bool, asking: bool) -> Devices:
    from tfdock.decide.starter import devices_of

    words = [word.strip() for one in asked or () for word in one.split(",") if word.strip()]
    if words and not detect:
        return devices_of(base, words)
    local = _local_gpus()
    if detect and not local:
        raise ProfileError(
            Problem(
                code="gpu-local-none",
                message="`--detect` found no GPU on this machine",
                fix="name it: `--gpu rtx3080`, or `--gpu cpu`; for `--detect`, `nvidia-smi` or `rocminfo` must work",
            )
        )
    if detect or not asking:
        return devices_of(base, [*words, *local] or [_NO_GPU])
    while True:
        answer = _ask("For which GPU (names or capabilities, with commas; or cpu)", ", ".join(local) or _NO_GPU)
        try:
            return devices_of(base, [word.strip() for word in answer.split(",") if word.strip()] or [_NO_GPU])
        except ProfileError as error:
            console.show_problems(error.problems)


def _local_gpus() -> list[str]:
    """Names of this machine's GPUs, each once."""
    from tfdock.do.machine import local_gpus

    return list(dict.fromkeys(local_gpus()))


def _starter(
    base: KnowledgeBase, devices: Devices, tensorflow: str | None, python: str | None, *, asking: bool
) -> Starter:
    """The profile; somebody at a terminal may choose anew what does not fit."""
    from tfdock.decide.starter import starter

    machine = platform.machine()
    if not asking:
        return starter(base, devices, tensorflow=tensorflow, python=python, machine=machine)
    while True:
        release = tensorflow
        if release is None:
            # With the Python that was given: where no release has it, there is nothing to ask for.
            newest = starter(base, devices, python=python, machine=machine).resolution.version
            release = _ask("Which TensorFlow", str(newest))
        try:
            found = starter(base, devices, tensorflow=release, python=python, machine=machine)
        except (ProfileError, Incompatible) as error:
            if tensorflow is not None:
                raise  # no answer could change what was given
            console.show_problems(error.problems)
            continue
        if python is not None:
            return found
        answer = _ask("Which Python", found.resolution.python)
        try:
            return starter(base, devices, tensorflow=release, python=answer, machine=machine)
        except (ProfileError, Incompatible) as error:
            console.show_problems(error.problems)


def _ask(question: str, default: str) -> str:
    answer: str = typer.prompt(question, default=default, err=True)
    return answer.strip()
