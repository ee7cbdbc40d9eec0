"""Write an operation of a traced script as a separate program, and time the program."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

from tfdock.errors import ProfileError, VerificationFailed
from tfdock.host.foreign_json import Line, Malformed, below, parse
from tfdock.host.untrusted_folders import UntrustedPath
from tfdock.knowledge import loader
from tfdock.trace.script_places import Script
from tfdock.trace.trace_facts import TracedOperation

LONGEST = "longest"  #: The name that stands for the longest operation that a script can make.
_CALL = "StatefulPartitionedCall/"  #: The call of a function: the prefix of the names of all nodes in the function.
_FUSED = "Fused"  #: Part of the types of operations that TensorFlow fuses from several; their program is known.
_MOST_JSON = 1 << 20
_SMALL = 64  #: The most numbers in an input that controls the operation; larger inputs are data.
#: Inputs that a program cannot invent.
_UNMADE = ("resource", "variant", "string")


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationCase:
    """An operation that was written as a separate program."""

    program: str  #: The program's file: `python case.py` times the operation.
    type: str  #: The operation's type, as in the trace.
    node: str  #: The operation's node; empty for an eager call.
    seconds: float  #: The median time of a call in the program.
    traced_seconds: float  #: The mean time of a call in the trace.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Leaf:
    dtype: Line
    shape: list[Annotated[int, below(1 << 40)] | None] | None
    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class _Collected:
    steps: list[Mapping[str, Any]]
    leaves: list[_Leaf]


_Timed = TypedDict("_Timed", {"seconds": Annotated[float, below(1 << 20)]})


def chosen(operations: Sequence[TracedOperation], name: str) -> TracedOperation:
    """Return the longest operation with this node or type, or of all for `longest`. Raises ProfileError if none."""
    names = (name, f"{_CALL}{name}")
    if name == LONGEST:  # no script can make TensorFlow's own types with `_`, except fused types
        fitting = (one for one in operations if not one.type.startswith("_") or _FUSED in one.type)
    else:
        fitting = (one for one in operations if one.node in names or one.type == name)
    found = next(fitting, None)
    if found is None:
        raise ProfileError.of(
            "operation-missing",
            f"no operation of the trace is called `{name}`",
            f"choose an operation of the list, by its node or its type, or `{LONGEST}`",
        )
    return found


def write_case(script: Script, operation: TracedOperation, folder: Path) -> OperationCase:
    """Run a script until it makes the operation, write the operation into `case.py` of a folder, and time it.

    Raises VerificationFailed if the operation cannot be written, or does not run.
    """
    request = {
        "node": operation.node.rpartition(_CALL)[2],
        "type": operation.type,
        "fused": _FUSED in operation.type,
    }
    templates = loader.templates()
    script.place.run(script.words, templates["trace/capture.py"], request, folder)
    found: _Collected | None = UntrustedPath(folder, "operation.json").load(_Collected, _MOST_JSON)
    if found is None:
        raise _unwritten(operation, "the script does not create it: TensorFlow creates some operations itself")
    document = {"steps": found.steps, "leaves": list(_leaves(operation, found.leaves))}
    program = UntrustedPath(folder, "case.py")
    program.write(templates["trace/case.py"].replace("@CASE@", json.dumps(document, indent=1)).encode())
    said = script.place.time_case(program.path.absolute())
    try:
        timed: _Timed = parse(_Timed, said)
    except Malformed as error:
        raise _unwritten(operation, f"{program} does not run: {said[:300] or 'it prints nothing'}") from error
    return OperationCase(
        program=str(program),
        type=operation.type,
        node=operation.node,
        seconds=timed["seconds"],
        traced_seconds=operation.seconds / operation.calls,
    )


def _leaves(operation: TracedOperation, leaves: Sequence[_Leaf]) -> Iterator[dict[str, Any]]:
    """Yield the inputs with complete shapes: from the trace if the graph leaves a size open."""
    traced = [_shape(text) for text in operation.inputs.strip("()").split(";")]
    for place, leaf in enumerate(leaves):
        shape = leaf.shape
        if (shape is None or None in shape) and len(traced) == len(leaves):
            shape = traced[place]
        if leaf.dtype in _UNMADE:
            raise _unwritten(
                operation, f"one of its inputs is of the type {leaf.dtype}, which a program cannot invent"
            )
        sizes = [size for size in shape or () if size is not None]
        if leaf.value is None and (shape is None or len(sizes) < len(shape)):
            raise _unwritten(operation, "the trace and the graph do not give the shape of an input")
        if leaf.value is None and leaf.dtype.startswith(("int", "uint")) and math.prod(sizes) <= _SMALL:
            raise _unwritten(operation, "one of its inputs is a size, axis or index known only at run time")
        yield {"dtype": leaf.dtype, "shape": shape, "value": leaf.value}


def _shape(text: str) -> list[int | None] | None:
    """Return the sizes in a text such as `float[8,64]`; None for a text without sizes."""
    sizes = re.fullmatch(r"\w+\[((?:\d+(?:,\d+)*)?)\]", text)
    return [int(size) for size in sizes[1].split(",") if size] if sizes else None


def _unwritten(operation: TracedOperation, why: str) -> VerificationFailed:
    named = f"{operation.type} {operation.node}".strip()
    fix = "choose another operation of the list: `--case NODE`"
    return VerificationFailed.of("operation-missing", f"{named} cannot be written as a program: {why}", fix)
