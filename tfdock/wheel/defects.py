"""Defects that make a file an invalid wheel, with the fix for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

FIXES: Mapping[str, str] = {
    "wheel-bad-compression": "Build the wheel again with stored or deflated members only.",
    "wheel-bad-metadata": "Build the wheel again with a current setuptools or wheel package.",
    "wheel-bad-name": "Name the file NAME-VERSION(-BUILD)-PYTHON-ABI-PLATFORM.whl, as the build did.",
    "wheel-bad-rewrite": "Give a PEP 440 version, a distribution name, a platform tag such as linux_x86_64.",
    "wheel-bomb": "Do not unpack this file. If it is yours, find out which member is almost all zeros.",
    "wheel-corrupt-member": "Fetch or build the wheel again: its bytes were damaged.",
    "wheel-duplicate-member": "Build the wheel again in an empty folder, so that files are packed once.",
    "wheel-encrypted": "Build the wheel without a password: installers cannot read encrypted members.",
    "wheel-header-mismatch": "Do not install this file: two programs may unpack it differently.",
    "wheel-hidden-data": "Do not install this file; build or fetch the wheel again.",
    "wheel-leading-data": "Remove what stands before the archive, or fetch the wheel again.",
    "wheel-missing-dist-info": "Build the wheel again: it needs exactly one NAME-VERSION.dist-info folder.",
    "wheel-missing-metadata": "Build the wheel again: its .dist-info folder needs WHEEL and METADATA.",
    "wheel-missing-record": "Build the wheel again: its .dist-info folder needs RECORD.",
    "wheel-name-mismatch": "Give the file back the name that it was built with.",
    "wheel-not-a-zip": "Name a wheel; if it was one, fetch or build it again.",
    "wheel-overlapping-members": "Do not unpack this file: its members share bytes, as in a zip bomb.",
    "wheel-record-mismatch": "Find out what changed the wheel after it was built; then build it again.",
    "wheel-special-file": "Build the wheel with regular files: wheels cannot carry links or devices.",
    "wheel-tag-mismatch": "Give the file back the name that it was built with, or retag it with `wheel tags`.",
    "wheel-too-large": "Strip debug information; if the file is not yours, do not unpack it.",
    "wheel-trailing-data": "Remove what follows the archive, or fetch the wheel again.",
    "wheel-unsafe-path": "Do not install this file. If it is yours, pack members under plain relative paths.",
    "wheel-version-mismatch": "Give the file back the name that it was built with.",
}
"""Every code a `WheelError` can have, with what to do about it."""


class WheelError(Exception):
    """A file that cannot be taken as a wheel.

    `code` is a stable kebab-case word (a key of `FIXES`), `message` one sentence naming the member and the
    values that disagree, `fix` one sentence saying what to do.
    """

    def __init__(self, code: str, message: str, fix: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.fix = fix


def fail(code: str, message: str) -> NoReturn:
    """Raise the `WheelError` of that code."""
    raise WheelError(code, message, FIXES[code])
