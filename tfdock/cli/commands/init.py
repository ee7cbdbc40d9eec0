"""The `init` command: write a first profile, from answers to questions or from options."""

from __future__ import annotations

import platform
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from tfdock.cli import console
from tfdock.cli.app import AsJson, app, command, knowledge_for, print_json
from tfdock.errors import DiskFull, Incompatible, Problem, ProfileError
from tfdock.gpu.devices import local_words, means_gpu, resembles_gpu, unknown_gpu
from tfdock.host import hardware
from tfdock.host.files import FULL, write_atomically
from tfdock.host.settings import Settings
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.plan.wish import Wish
from tfdock.resolve.advice import official_note
from tfdock.resolve.resolve import read_text
from tfdock.resolve.starter import AcceptedProfile, check_together

_Answer = TypeVar("_Answer")
_NO_GPU = "cpu"
_LOCAL = "local"  #: The GPUs of this machine.
_SCHEMA_FILE = "tfdock.schema.json"  #: The file name of the schema in the help of `tfdock schema`.
_SCHEMA_LINE = f"# yaml-language-server: $schema={_SCHEMA_FILE}\n"
_ROOM = 24  #: The most columns of a default answer, so that a narrow terminal has room for the user's answer.


@app.command(epilog="Examples: `tfdock init`, `tfdock init my --gpu rtx5080 --tensorflow 2.20`, `tfdock init --yes`.")
@command("tfdock.init/1", "knowledge")
def init(
    settings: Settings,
    wish: Wish,
    name: Annotated[
        str | None,
        typer.Argument(
            help="Write NAME.yaml. The default is the GPU's name. If NAME is a GPU, the profile is for this GPU.",
            metavar="NAME",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Use the defaults and ask nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """On a terminal, the command asks questions. Without a terminal, give options."""

    if wish.source:
        message = f"`init` does not write `{next(reversed(wish.source))}`"
        raise ProfileError.of("wish-malformed", message, "leave the option out, and add the field to the file")
    # `init rtx3080` and `init --gpu rtx3080` write the same file.
    words = [word for word in re.findall(r"[\w.-]+", " ".join(wish.gpus)) if word != _LOCAL]
    path = _new_file(name if name is not None else "-".join(words)[:40] or "profile")
    base = knowledge_for(settings)
    asking = sys.stdin.isatty() and not yes and not as_json
    wish = wish if wish.gpus else replace(wish, gpus=_gpus_of_name(base, path.stem, asking=asking))
    if not (asking or wish.gpus or yes):
        raise ProfileError.of(
            "init-nobody-to-ask",
            "there is no terminal to ask which GPU the profile is for",
            "give `--gpu rtx3080`, `--gpu local`, `--gpu cpu`, or `--yes` for the defaults",
        )
    start = _starter(base, wish, asking=asking)
    # If the file is missing, editors would report an error for the line.
    text = (_SCHEMA_LINE if (path.parent / _SCHEMA_FILE).is_file() else "") + start.text
    write_profile(path, text)
    if as_json:
        document = {"profile": str(path), "build_id": start.resolution.build_id, "text": text}
        print_json("tfdock.init/1", True, document)
        return
    console.say(str(path), stream=sys.stdout)
    console.tell(f"It makes {start.resolution.build_id}.")
    note = official_note(base, read_text(start.text, base)[0], start.resolution)
    if note:
        console.tell(f"note: {note}")
    file = shlex.quote(str(path))
    console.tell(f"Next: `tfdock check {file}`, `tfdock plan {file} --why`, `tfdock build {file}`.")


def _new_file(name: str) -> Path:
    """Return the path of the new profile. Raise ProfileError if its folder does not exist."""
    if not name.strip() or name.endswith("/") or Path(name).name in ("", "-", "..", ".yaml", ".yml"):
        message, fix = f"`{name}` names no profile", "give a name: `tfdock init my` writes my.yaml"
        raise ProfileError.of("file-error", message, fix)
    path = Path(name if name.endswith((".yaml", ".yml")) else f"{name}.yaml")
    # Not `exists`: it follows a link, and a broken link would be written through.
    if path.exists() or path.is_symlink():
        raise ProfileError(_file_exists(path))
    if not path.parent.is_dir():
        message, fix = f"the folder {path.parent} does not exist", f"`mkdir -p {shlex.quote(str(path.parent))}`"
        raise ProfileError.of("file-error", message, fix)
    return path


def _file_exists(path: Path) -> Problem:
    message, fix = f"`{path}` is there already", "give another name; no file is overwritten"
    return Problem("init-file-exists", message, fix)


def write_profile(path: Path, text: str) -> None:
    """Write a new file, whole or not at all. Raises ProfileError (`init-file-exists`, `file-error`) and DiskFull."""
    try:
        path.open("x").close()  # another file may have this name already
        # Remove a partial or empty profile.
        try:
            write_atomically(path, text.encode())
        except BaseException:
            path.unlink(missing_ok=True)
            raise
    except FileExistsError as error:
        raise ProfileError(_file_exists(path)) from error
    except OSError as error:
        if error.errno in FULL:
            message, fix = f"cannot write {path}: {error.strerror}", "free space on that disk, or write elsewhere"
            raise DiskFull.of("disk-full", message, fix) from error
        message, fix = f"cannot write {path}: {error.strerror}", "check the folder, its owner and its mode"
        raise ProfileError.of("file-error", message, fix) from error


# --- answers from flags, from this machine, or from a user at a terminal ---------------------------------------


def _gpus_of_name(base: KnowledgeBase, name: str, *, asking: bool) -> tuple[str, ...]:
    """Return the GPU that a profile's name means; empty if the name is not a GPU.

    Raise ProfileError if the name looks like an unknown GPU and there is no terminal to ask.
    """
    if means_gpu(base, name):
        return (name,)
    if not asking and resembles_gpu(base, name):
        problem = unknown_gpu(base, name)
        say = f"name the GPU of the profile: `tfdock init {shlex.quote(name)} --gpu GPU`, or `--gpu cpu`"
        raise ProfileError(replace(problem, fixes=(*problem.fixes, say)))
    return ()


def _starter(base: KnowledgeBase, wish: Wish, *, asking: bool) -> AcceptedProfile:
    """Return the profile. At a terminal, ask for missing values, and again for a value that does not fit."""
    # Run the drivers' tools only if the answer counts.
    local = local_words(base, hardware.local_gpus()) if _LOCAL in (wish.gpus or [_LOCAL]) else []
    # Many names would leave no room for the answer.
    names = ", ".join(local)
    default = (names if len(names) <= _ROOM else _LOCAL) or _NO_GPU

    def for_gpus(answer: str) -> Wish:
        words = [word.strip() for word in answer.split(",") if word.strip()] or [_NO_GPU]
        wished = replace(wish, gpus=tuple(local if local and answer in (default, _LOCAL) else words))
        check_together(base, wished.devices(base, local))
        return wished

    def with_values(**fields: str) -> tuple[Wish, AcceptedProfile]:
        wished = replace(wish, fields={**wish.fields, **fields})
        return wished, wished.profile(base, local, platform.machine(), allow_untested=False)

    if not wish.gpus and asking:
        console.tell("GPUs by name or capability, with commas between them; `cpu` for none.")
        wish = _ask("For which GPU", default, for_gpus)
    elif not wish.gpus:
        wish = replace(wish, gpus=tuple(local) or (_NO_GPU,))
    # Use the given Python: if no release supports it, the question makes no sense.
    wish, start = with_values()
    if asking and not wish.release:
        newest = str(start.resolution.version)
        wish, start = _ask("Which TensorFlow", newest, lambda answer: with_values(tensorflow=answer))
    if asking and "python" not in wish.fields:
        wish, start = _ask("Which Python", start.resolution.python, lambda answer: with_values(python=answer))
    return start


def _answerable(problems: Sequence[Problem]) -> list[Problem]:
    """Return the problems, without fixes that do not answer the question."""
    return [
        replace(
            problem,
            fixes=tuple(fix for fix in problem.fixes if "allow_untested" not in fix),
            ways=tuple(way for way in problem.ways if "allow_untested" not in way.change),
        )
        for problem in problems
    ]


def _ask(question: str, default: str, read: Callable[[str], _Answer]) -> _Answer:
    """Ask until `read` accepts the answer, and return the result of `read`."""
    while True:
        console.release()
        answer: str = typer.prompt(question, default=default, err=True)
        try:
            return read(answer.strip())
        except (ProfileError, Incompatible) as error:
            console.show_problems(_answerable(error.problems))
