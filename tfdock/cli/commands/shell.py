"""The `shell` command: open the image of a build.

The command has its own module, so that `build` loads no build modules if everything is up to date.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperOption

from tfdock.builder import build as builds
from tfdock.builder.session import BuildRequest
from tfdock.cli.app import OneProfile, Trust, app, command, preparer_for
from tfdock.cli.build_progress import session_for, shown_progress
from tfdock.host.settings import Settings
from tfdock.host.supervise import Stop


class _ShellCommand(TyperCommand):
    """A command whose options stand before or after the profile. The first other word begins the command to run."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Move the options before the profile, then parse the arguments."""
        rest = self._after_options(ctx, args)
        if rest:
            profile, *behind = rest
            words = self._after_options(ctx, behind)
            own = [*args[: len(args) - len(rest)], *behind[: len(behind) - len(words)]]
            args = [*own, profile, *words]
        return super().parse_args(ctx, args)

    def _after_options(self, ctx: Any, args: list[str]) -> list[str]:
        """Return the arguments from the first that is not an option. Raises the usual error for an unknown option."""
        parser = type(self.make_parser(ctx))(ctx)
        for parameter in self.get_params(ctx):
            if isinstance(parameter, TyperOption):
                parameter.add_to_parser(parser, ctx)
        rest: list[str] = parser.parse_args(list(args))[1]
        return rest


@app.command(
    cls=_ShellCommand,
    epilog="Examples: `tfdock shell rtx3080`, then `bazel build …`; `tfdock shell --debug debug`, then "
    "`gdb python3`; `tfdock shell --gpu rtx3080 nvidia-smi`. "
    "Options of tfdock come before the command; `--` ends them.",
    # Everything after the command's first word belongs to the command, even options.
    context_settings={"allow_interspersed_args": False},
)
@command("tfdock.shell/1", "cache_dir", "knowledge", "allow_paths", "allow_endpoints")
def shell(
    settings: Settings,
    profile: OneProfile,
    command: Annotated[
        list[str] | None, typer.Argument(help="The command to run in place of a shell.", metavar="[COMMAND…]")
    ] = None,
    gpu: Annotated[bool, typer.Option("--gpu", help="Let the container use the GPUs of this machine.")] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Allow gdb to trace programs, and put the built wheel into /tf/wheel.")
    ] = False,
    trust: Trust = False,
) -> None:
    """The container has the caches of the build, and a network."""
    preparer = preparer_for(settings, trusted=trust)
    request = BuildRequest(prepared=preparer.prepare(profile))
    with shown_progress() as listen:
        # No signal handler: the terminal belongs to the container, and Ctrl-C is for the program in it.
        session = session_for(settings, preparer.knowledge, Stop())
        words = tuple(command or ("/bin/bash",))
        status = builds.shell(session, request, listen, words, listen.close, gpu=gpu, debug=debug)
    raise typer.Exit(status)
