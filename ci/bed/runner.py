#!/usr/bin/env python3
"""runner.py CAS RUN… --action=FILE …: what a buildbox worker calls to run an action that a Bazel before 5 has sent.

Such a Bazel names the outputs of a command as `output_files` and `output_directories`; buildbox 1.4 reads their
successor `output_paths` only, and would neither make their folders nor find them. Here they are named both ways. CAS
is the folder of BuildGrid's storage, RUN… the runner itself.
"""

import hashlib
import os
import re
import sys
from pathlib import Path


def number(data, at):
    """A varint: its value, and where it ends."""
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return value, at


def written(value):
    """A number as a varint."""
    data = b""
    while value >= 0x80:
        data += bytes((value & 0x7F | 0x80,))
        value >>= 7
    return data + bytes((value,))


def fields(data):
    """(number, bytes) of the fields of a message that hold bytes or text."""
    at = 0
    while at < len(data):
        tag, at = number(data, at)
        size, start = number(data, at)
        at = start if tag & 7 == 0 else start + size
        if tag & 7 == 2:
            yield tag >> 3, data[start:at]


def text(field, value):
    """A field that holds bytes or text."""
    return written(field << 3 | 2) + written(len(value)) + value


def main(cas, *words):
    if "--validate-parameters" not in words:
        name_outputs(Path(cas, "cas/objects"), words)
    os.execv(words[0], words)


def name_outputs(blobs, words):
    """Change the action, and the command that it names, where that is needed."""
    (action,) = (Path(found[1]) for word in words if (found := re.fullmatch("--action=(.+)", word)))
    asked = action.read_bytes()
    digest = next(value for field, value in fields(asked) if field == 1)
    name = next(value for field, value in fields(digest) if field == 1).decode()
    command = blobs.joinpath(name[:2], name[2:]).read_bytes()
    found = list(fields(command))
    if any(field == 7 for field, _ in found):
        return
    # What is appended to a message is merged into it.
    command += b"".join(text(7, value) for field, value in found if field in (3, 4))
    name = hashlib.sha256(command).hexdigest()
    blob = blobs.joinpath(name[:2], name[2:])
    blob.parent.mkdir(exist_ok=True)
    part = blob.with_name(f"{blob.name}.{os.getpid()}")
    part.write_bytes(command)
    part.rename(blob)
    action.write_bytes(asked + text(1, text(1, name.encode()) + b"\x10" + written(len(command))))


main(*sys.argv[1:])
