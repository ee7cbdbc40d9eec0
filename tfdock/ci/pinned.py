"""Check that a command installs only pinned packages: by a hash, by a commit, or as a path. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

_PROGRAM = re.compile(r"(.*/)?(pip|pip3|pip3\.\d+|pipx|uv|uvx)")
# A path or a local wheel is in the repository. A commit or a sha256 identifies the content.
_PINNED = re.compile(
    r"\.|(\.{0,2}|~)/.*|\$.*|file:.*"  # a path
    r"|.*\.whl"
    r"|([\w.,\[\]-]+ ?@ ?)?("
    r"git\+[a-z]+://.*@[0-9a-f]{40}(#.*)?"
    r"|[a-z]+://.*#(.*&)?sha256=[0-9a-f]{64}(&.*)?)"
)
# The word after these options is not a package. Otherwise the address in `-i https://…` would count as one.
_WITH_VALUE = frozenset(
    (
        *("-c", "--constraint", "--constraints", "-i", "--index-url", "--extra-index-url"),
        *("-f", "--find-links", "-t", "--target", "-p", "--python"),
    )
)


def unpinned(command: str) -> str:
    """Return the first package that a shell command installs from an index without a hash, or an empty text.

    Only pip, pipx and uv are understood. Other programs are ignored.
    """
    return next((name for words in _commands(command) for name in _from_an_index(words)), "")


def _commands(text: str) -> Iterator[list[str]]:
    """Return the words of each simple command in a line of shell; nothing if the line is not valid shell."""
    # Punctuation ends a command even without spaces around it: `pip install a&&pip install b`.
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""  # an address may contain `#`
    # A quote is not closed. The shell of the job reports that.
    try:
        words = list(lexer)
    except ValueError:
        return
    command: list[str] = []
    for word in words:
        # A shell comment begins at the start of a word.
        if word.startswith("#"):
            break
        if set(word) <= set(";&|()<>"):
            yield command
            command = []
        else:
            command.append(word)
    yield command


def _from_an_index(words: Sequence[str]) -> Iterator[str]:
    place = next((place for place, word in enumerate(words) if _PROGRAM.fullmatch(word)), None)
    if place is None:
        return
    rest = list(words[place + 1 :])
    # `uvx` runs a package without a verb: `uvx ruff`.
    if not words[place].endswith("uvx"):
        verb = next((place for place, word in enumerate(rest) if word in ("install", "run")), None)
        if verb is None:
            return
        rest = rest[verb + 1 :]
    # With this option, pip refuses every package without a hash, also in requirements files.
    if "--require-hashes" in rest:
        return
    following = iter(rest)
    for word in following:
        if word in ("-r", "--requirement", "--requirements"):
            # A requirements file may name any package, and without the option above, hashes are optional.
            yield next(following, word)
        elif word in _WITH_VALUE:
            next(following, None)
        elif not word.startswith("-") and not _PINNED.fullmatch(word):
            yield word
