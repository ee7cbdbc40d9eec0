"""The application and its commands: names, order and summaries. Calling a command imports its module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

#: Each command's module in `tfdock.cli.commands`, and the first sentence of the command's help. The docstring has the
#: rest of the help.
Table = Mapping[str, tuple[str, str]]

# The help of all commands reads these tables instead of the modules: 0.1 s instead of 0.4 s with one module.
#: The sections of the help. Commands are in the order in which users need them. A summary fits a line of 80 columns.
SECTIONS: Mapping[str, Table] = {
    "Decide": {
        "advise": ("advise", "Check if an official wheel runs on a GPU, or a build is better."),
        "init": ("init", "Write a first profile."),
        "check": ("check", "Check whether profiles can be built."),
        "plan": ("plan", "Show what a build makes, its inputs, and its cost."),
        "matrix": ("matrix", "List the wheels of a matrix, and what they cost."),
        "gpus": ("know", "List the known GPUs, or the releases for one GPU."),
        "releases": ("know", "List the known TensorFlow releases, or describe one."),
    },
    "Build": {
        "lock": ("lock", "Pin the downloads of a build in PROFILE.lock."),
        "fetch": ("fetch", "Download what builds need, into the caches or into a bundle."),
        "build": ("build", "Build wheels: check, image, fetch, compile, seal, verify."),
        "status": ("status", "Show the running builds, their progress, and the last results."),
        "logs": ("status", "Print the log of a build, and follow it while it runs."),
        "report": ("report", "Show the phases of a build, and what took long."),
        "diagnose": ("diagnose", "Find the cause of a failure in a log, and how to fix it."),
        "shell": ("shell", "Open the image that builds a profile, for bazel or gdb."),
        "render": ("plan", "Write the build context: the Dockerfile and its files."),
    },
    "Look into wheels": {
        "inspect": ("inspect", "List what is in a wheel: GPU code, libraries, damage."),
        "verify": ("verify", "Check a wheel against a profile, and try it in a container."),
        "trace": ("trace", "Find out why a TensorFlow program is slow."),
        "bench": ("bench", "Compare the speed of two installed TensorFlows."),
    },
    "Share": {
        "pull": ("pull", "Pull finished wheels from a registry into the wheelhouse."),
        "image": ("image", "Pack or push wheels as images, or make an image to run one."),
        "wheelhouse": ("wheelhouse", "List, index, serve or prune the finished wheels."),
        "ci": ("ci", "Write the CI pipeline that makes the wheels of a matrix."),
    },
    "Maintain": {
        "doctor": ("doctor", "Find what this machine lacks, or why TensorFlow sees no GPU."),
        "cache": ("cache", "List, verify, prune, clean, push or pull Bazel's caches."),
        "explain": ("know", "Explain an error code, a switch, a preset or a topic."),
        "schema": ("plan", "Print the JSON Schema of profiles, or of a document."),
    },
}
#: Options of the program that may also follow a command.
_SHARED = frozenset({"color", "quiet", "verbose"})
COMMANDS: Table = {name: row for rows in SECTIONS.values() for name, row in rows.items()}
CACHE_COMMANDS: Table = {
    "list": ("cache", "List the caches by toolchain, with size and last use."),
    "verify": ("cache", "Hash every entry of Bazel's disk caches again."),
    "prune": ("cache", "Remove unused entries, then the least recently used."),
    "clean": ("cache", "Remove the whole cache, or one toolchain's."),
    "push": ("cache_exchange", "Send Bazel's disk cache to a registry."),
    "pull": ("cache_exchange", "Take Bazel's disk cache from a registry."),
}
IMAGE_COMMANDS: Table = {
    "pack": ("image", "Write images of finished wheels into a file."),
    "push": ("image", "Send images of finished wheels to a registry."),
    "runtime": ("image_runtime", "Make a small image with Python, a wheel and its requirements."),
}


class LazyGroup(TyperGroup):
    """A group of commands that imports only the module of the called command.

    Help, completion and suggestions for mistyped names need no module.
    """

    sections: ClassVar[Mapping[str, Table]]
    table: ClassVar[Table]  #: The commands of all sections.
    application: ClassVar[typer.Typer]  #: Where the modules register their commands.

    def __init__(self, *, commands: Mapping[str, Any], **attributes: Any) -> None:
        stubs = [TyperCommand(name=name, help=summary) for name, (_, summary) in self.table.items()]
        super().__init__(commands=stubs, **attributes)
        for name, command in commands.items():
            command.help = "\n\n".join(filter(None, [self.table[name][1], command.help]))
        self.registered = commands

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - click's
        """Write the sections, with one column of names."""
        width = max(map(len, self.table))
        for title, rows in self.sections.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), summary) for name, (_, summary) in rows.items()])

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the name, command and arguments. The real command replaces its entry in the help."""
        name, stub, arguments = super().resolve_command(ctx, args)
        if ctx.resilient_parsing and name and not isinstance(self.registered.get(name), LazyGroup):
            from tfdock.cli.completion import values_of  # here: it loads the settings

            words = name if ctx.parent is None else f"{ctx.info_name} {name}"
            command = values_of(words, next(reversed(arguments), ""), partial(self.load_command, name))
            skip_conversion(command, ctx)
            return name, command, arguments
        # A stub has no options: the real command must parse the arguments.
        return name, self.load_command(name) if name and stub else None, arguments

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options before the command."""
        if ctx.resilient_parsing:
            skip_conversion(self, ctx)
        with _hints(" ".join(args)):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Parse the command's options, and run the command."""
        with _hints():
            return super().invoke(ctx)

    def load_command(self, name: str) -> Any:
        """Import the module of a command and return the command."""
        module, _ = self.table[name]
        import_module(f"tfdock.cli.commands.{module}")
        # Typer builds a new group from all commands registered so far.
        group = typer.main.get_group(self.application)
        assert isinstance(group, LazyGroup)
        # As in uv, these options may stand before or after the command.
        known = {option.name for option in group.registered[name].params}
        shared = [option for option in self.params if option.name in _SHARED - known]
        group.registered[name].params += shared
        return group.registered[name]


def skip_conversion(command: Any, ctx: Any) -> None:
    """Keep the values of a command's parameters as typed: typer's converters load slowly, and are not needed here."""
    for parameter in command.get_params(ctx):
        parameter.process_value = lambda ctx, value: value  # noqa: ARG005 - click's


@contextmanager
def _hints(words: str = "") -> Iterator[None]:
    """Add to the error about an unknown option where its value belongs: behind the command, or into `--set`.

    `words` are the arguments of the program, if the option stands before the command.
    """
    try:
        yield
    except Exception as caught:
        error: Any = caught  # typer does not export the class of this error
        name = getattr(error, "option_name", "").removeprefix("--").replace("-", "_")
        if name and hasattr(error, "possibilities"):
            from tfdock.profile.profile import field_named  # here: an error may take its time

            command = next((word for word in words.split() if word in COMMANDS), None)
            takes_fields = error.ctx and any(option.name == "sets" for option in error.ctx.command.params)
            if command:
                error.message += f"; write it after the command: `tfdock {command} {error.option_name} …`"
            elif takes_fields and (field := field_named(name)):
                error.message += f"; it is a field of the profile: `--set {field}=…`"
                error.possibilities = None
        raise


def lazy_typer(titled: Mapping[str, Table], **settings: Any) -> typer.Typer:
    """Return an application with these sections of commands. Importing a command's module registers it."""

    class _Commands(LazyGroup):
        sections = titled
        table: ClassVar[Table] = {name: row for rows in titled.values() for name, row in rows.items()}

    # Help without rich: rich loads slowly, and would read `[…]` in a help text as markup.
    _Commands.application = typer.Typer(cls=_Commands, no_args_is_help=True, rich_markup_mode=None, **settings)
    return _Commands.application


app = lazy_typer(
    SECTIONS,
    name="tfdock",
    help="Build TensorFlow wheels that fit your GPU, in containers, from a short YAML profile.",
    epilog="Start with: `tfdock advise rtx3080`, `tfdock check rtx3080`, `tfdock build rtx3080`.",
    # `main` reports unexpected errors in one sentence, without a traceback.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
cache_group = lazy_typer({"Commands": CACHE_COMMANDS}, name="cache")
image_group = lazy_typer({"Commands": IMAGE_COMMANDS}, name="image")
app.add_typer(cache_group)
app.add_typer(image_group)
