"""Text files: those that people write (profiles, locks, settings, knowledge), and those written for them."""

from __future__ import annotations

from pathlib import Path

from tfdock.errors import Problem, ProfileError


def read_text(path: Path, *, code: str = "file-unreadable") -> str:
    """A file's text, its line ends as they are; raises ProfileError for one that cannot be read or is not UTF-8."""
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        message, fix = f"not UTF-8 text (byte {error.start})", "save it as UTF-8; is it a YAML file at all?"
    except OSError as error:
        message, fix = f"cannot be read: {error.strerror}", "check the file's owner and mode"
    raise ProfileError(Problem(code=code, message=message, fix=fix, file=str(path)))


def write_text(path: Path, text: str) -> None:
    """Write a file, whole or not at all; raises ProfileError. Through a link, if it is one, to what it names."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes, *, private: bool = False, follow: bool = True) -> None:
    """The same for what is no text, and may be `private`: for nobody else to read. Where nobody chose the name, what
    has it already is replaced and not followed."""
    # Here, not above: who only reads needs no locks.
    from tfdock.wheelhouse.store import write_atomically

    try:
        if follow and path.exists() and not (path.is_file() or path.is_dir()):
            path.write_bytes(data)  # a pipe or a device takes it: nothing is put in the place of `/dev/null`
        else:
            write_atomically(path.resolve() if follow else path, data, private=private)
    except OSError as error:
        message, fix = f"cannot write {path}: {error.strerror}", "check the folder, its owner and its mode"
        raise ProfileError(Problem(code="file-error", message=message, fix=fix)) from error
