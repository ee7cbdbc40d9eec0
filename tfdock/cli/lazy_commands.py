"""The application and its commands: names, order and summaries. A command's module is imported on its call."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

#: Command -> its module below `tfdock.cli.commands`, and the first sentence of its help; a docstring has the rest.
Table = Mapping[str, tuple[str, str]]

# A table, because the help of all commands must not wait for their modules: 0.1 s with it, 0.4 s with one of them.
#: In the order in which one meets them.
COMMANDS: Table = {
    "advise": ("advise", "Say how an official wheel runs on a GPU, and which profile would do better."),
    "init": ("init", "Write a first profile."),
    "check": ("check", "Say whether profiles can be built, and what this machine has to say to it."),
    "plan": ("plan", "Print exactly what `build` would run."),
    "render": ("plan", "Write the build context: the Dockerfile and the files it copies."),
    "lock": ("lock", "Pin all that a build takes from elsewhere: writes PROFILE.lock for each."),
    "fetch": (
        "fetch",
        "Make images and download what builds need: into the caches, or into a bundle that builds without a network.",
    ),
    "matrix": (
        "matrix",
        "Say which wheels a matrix asks for: which there are, which are missing, which cannot be, what each costs.",
    ),
    "build": ("build", "Build wheels: check, image, fetch, compile, seal, verify."),
    "pull": (
        "pull",
        "Pull finished wheels from a registry into the wheelhouse, and say how this machine's GPUs run them.",
    ),
    "inspect": (
        "inspect",
        "List what is in a wheel: its GPU code by architecture, what its libraries need, whether its files are "
        "whole.",
    ),
    "verify": (
        "verify",
        "Check a wheel against a profile, then install and try it in a clean container without network.",
    ),
    "diagnose": (
        "diagnose",
        "Say what went wrong in a log of a build or of a program that imports TensorFlow, and what to do about it.",
    ),
    "report": (
        "report",
        "Tell what happened in a build: phases, cache, actions executed, what took long, and why it was not warm.",
    ),
    "shell": (
        "shell",
        "Open the image that builds a profile, with its caches and its network, ready to call bazel or gdb.",
    ),
    "doctor": ("doctor", "Say what this machine lacks for building, and how to get it."),
    "bench": ("bench", "Say whether one installed TensorFlow is faster than another, and how sure that is."),
    "gpus": ("know", "List the GPUs that are known, or say who compiles for one and which releases take it."),
    "releases": ("know", "List the TensorFlow releases that are known, or all that is known of one."),
    "explain": (
        "know",
        "Say what an error's code means, with an example and the ways out; without a code list them all.",
    ),
    "schema": ("plan", "Print the JSON Schema of profiles, or of a document."),
    "cache": ("cache", "Look after what outlives the builds: Bazel's caches, on this machine and in a registry."),
    "ci": (
        "ci",
        "Write a CI pipeline that makes the wheels of a matrix, and see that it is what the matrix asks for.",
    ),
    "image": ("image", "Finished wheels as images that any engine pulls: into a file, or into a registry."),
    "wheelhouse": (
        "wheelhouse",
        "See what is in the wheelhouse, give it an index for pip and uv, serve it, tidy it up.",
    ),
}
CACHE_COMMANDS: Table = {
    "list": ("cache", "Say what is in the cache: sizes by toolchain, and when they were used last."),
    "verify": ("cache", "Hash every entry of Bazel's disk caches again, and name each damaged one (exit status 4)."),
    "prune": ("cache", "Remove what nobody needs, then what was used least recently."),
    "clean": ("cache", "Remove the whole cache, or one toolchain's: the next build compiles everything again."),
    "push": ("cache_exchange", "Send Bazel's disk cache to a registry: what is there already is not sent again."),
    "pull": (
        "cache_exchange",
        "Take Bazel's disk cache from a registry: only what is missing here, and only what is what it should be.",
    ),
}
IMAGE_COMMANDS: Table = {
    "pack": ("image", "Write images of finished wheels into a file: an OCI image layout, the same bytes every time."),
    "push": ("image", "Send images of finished wheels to a registry: what is there is not sent again."),
    "runtime": (
        "image_runtime",
        "Make a small image with Python, the wheel and what it requires, for `docker run … python`; not root's.",
    ),
}


class LazyGroup(TyperGroup):
    """A group of commands that imports the module of the command that is called, and no other.

    The help of the group, completion and suggestions for a mistyped name are made from the table alone.
    """

    table: ClassVar[Table]
    application: ClassVar[typer.Typer]  #: Where the modules register their commands.

    def __init__(self, *, commands: Mapping[str, Any], **attributes: Any) -> None:
        stubs = [TyperCommand(name=name, help=summary) for name, (_, summary) in self.table.items()]
        super().__init__(commands=stubs, **attributes)
        for name, command in commands.items():
            command.help = "\n\n".join(filter(None, [self.table[name][1], command.help]))
        self.registered = commands

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the name, command and arguments; the command itself in place of what stands for it in the help."""
        name, stub, arguments = super().resolve_command(ctx, args)
        # A stub knows no options: the command itself must read its words.
        return name, self.load_command(name) if name and stub else None, arguments

    def load_command(self, name: str) -> Any:
        """Return a command of the table, its module imported."""
        module, _ = self.table[name]
        import_module(f"tfdock.cli.commands.{module}")
        # Typer builds a group anew from all commands that are registered by now.
        group = typer.main.get_group(self.application)
        assert isinstance(group, LazyGroup)
        return group.registered[name]


def lazy_typer(commands: Table, **settings: Any) -> typer.Typer:
    """Return an application of these commands; importing their modules registers them there."""

    class _Commands(LazyGroup):
        table = commands

    # Without rich: it takes long to load, and would read `[…]` in a help text as markup.
    _Commands.application = typer.Typer(cls=_Commands, no_args_is_help=True, rich_markup_mode=None, **settings)
    return _Commands.application


app = lazy_typer(
    COMMANDS,
    name="tfdock",
    help="Build TensorFlow wheels that fit your GPU, in containers, from a short YAML profile.",
    epilog="Start with: `tfdock check rtx3080`, `tfdock plan rtx3080 --why`, `tfdock build rtx3080`.",
    # `main` reports unexpected errors in one sentence, without a traceback.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
cache_group = lazy_typer(CACHE_COMMANDS, name="cache")
image_group = lazy_typer(IMAGE_COMMANDS, name="image")
app.add_typer(cache_group)
app.add_typer(image_group)
