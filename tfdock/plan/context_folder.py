"""Write a build context into a folder, for people who want to read it or build it by hand."""

from __future__ import annotations

import stat
from contextlib import suppress
from functools import partial
from pathlib import Path

from tfdock.errors import ProfileError
from tfdock.host.untrusted_folders import NotPlain, UntrustedFolder
from tfdock.plan.local_source import tree_files
from tfdock.plan.render import BuildContext

#: Lists the files that `render` wrote into the folder: a later `render` replaces only these files.
_MARK = ".tfdock-context"
_LARGEST = 64 << 20  #: The most bytes of the list. The list for TensorFlow has 3 MB.
_PIECE = 1 << 20


def write(context: BuildContext, tree: Path | None, folder: Path) -> list[str]:
    """Write the context, which replaces an earlier context by tfdock; return the written paths, sorted.

    Refuses a folder of another program, and a link in tfdock's own folder. Files of other programs are kept.
    """
    # Listed before anything is written: the folder may lie inside the checkout.
    sources = [file.relative_to(tree).as_posix() for file in tree_files(tree)] if tree else []
    if folder.exists() and not folder.is_dir():
        raise _not_our_folder(folder, "is a file")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with UntrustedFolder.opened(folder, follow=True) as ours:
            _empty(ours)
            for path, data in context.files.items():
                ours.write(path, [data], mode=0o755 if context.executable(path) else 0o644)
            if tree:
                with UntrustedFolder.opened(tree, follow=True) as checkout:
                    for name in sources:
                        _copy(checkout, name, ours)
            written = sorted([*context.files, *(f"source/{name}" for name in sources)])
            ours.write(_MARK, ["".join(f"{path}\n" for path in written).encode("utf-8", "surrogateescape")])
    except NotPlain as error:
        raise _not_our_folder(folder / error.name, f"is {error.kind}, which may point out of the folder") from error
    return written


def _copy(checkout: UntrustedFolder, name: str, ours: UntrustedFolder) -> None:
    """Copy a file of a checkout. A link is copied as a link, because its target may be outside the checkout."""
    mode, target = checkout.status(name).st_mode, f"source/{name}"
    if stat.S_ISLNK(mode):
        ours.remove(target)
        ours.make_link(target, checkout.link(name))
    else:
        with checkout.open(name) as file:
            ours.write(target, iter(partial(file.read, _PIECE), b""), mode=0o755 if mode & 0o100 else 0o644)


def _empty(ours: UntrustedFolder) -> None:
    """Remove the files that the list names. Raises ProfileError for a folder that has files but no list."""
    try:
        with ours.open(_MARK) as file:
            text = file.read(_LARGEST)
    except FileNotFoundError:
        if next(ours.walk(0), None):
            raise _not_our_folder(ours.path, "exists and was not written by `tfdock render`") from None
        return
    for path in text.decode("utf-8", "surrogateescape").splitlines():
        # The list is an untrusted file: it may name folders, or paths outside this folder.
        with suppress(ValueError, IsADirectoryError):
            ours.remove(path)


def _not_our_folder(path: Path, reason: str) -> ProfileError:
    fix = "give a new folder, or remove this folder yourself"
    return ProfileError.of("output-not-empty", f"{path} {reason}", fix, file=str(path))
