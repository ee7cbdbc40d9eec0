"""Read JSON from an untrusted source, as a value of the type that the caller expects. Pure: no I/O.

Reading stops at the first value of a wrong type: a text of megabytes may have a million such values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints, is_typeddict

#: The most nested levels of a value of type `Any`. A record has about ten. Far more levels would exhaust the stack.
_DEEPEST = 40
_CHILDREN: Mapping[type, Callable[[Any], Iterable[Any]]] = {dict: dict.values, list: iter}
_Reader = Callable[[Any], Any]


class Malformed(ValueError):
    """Malformed data. The message names the place in the data, and is safe to print."""

    def __init__(self, message: str, place: str = "") -> None:
        self.message, self.place = message, place
        super().__init__(f"`{place[:80]}`: {message}" if place else message)


def matching(expression: str | re.Pattern[str]) -> Callable[[str], bool]:
    """Return a check for `Annotated`: whether a complete text matches."""
    # `fullmatch`: with `$`, a line break could follow.
    pattern = re.compile(expression)
    return lambda text: pattern.fullmatch(text) is not None


def below(limit: int) -> Callable[[float], bool]:
    """Return a check for `Annotated`: whether a number is at least 0 and below the limit (False for NaN)."""
    return lambda number: 0 <= number < limit


Text = Annotated[str, lambda text: len(text) <= 1 << 16]
#: A line for people: without control characters, and of limited length.
Line = Annotated[str, lambda text: text.isprintable() and len(text) <= 4096]
Sha256 = Annotated[str, matching("[0-9a-f]{64}")]  #: 64 hexadecimal digits.
Size = Annotated[int, below(1 << 50)]  #: Bytes.


def parse(kind: Any, data: bytes | str) -> Any:
    """Return the value in a JSON text as a value of this type; raises Malformed.

    A type is `str`, `int`, `float`, `bool`, `Any`, a list, a tuple, a mapping, `X | None`, `Literal` texts, a
    dataclass, `Annotated` with checks, or a TypedDict (unknown keys are kept). A missing key gets the field's
    default, or null. Of equal keys, the last one counts.
    """
    try:
        node = json.loads(data)
    # RecursionError: thousands of nested brackets. ValueError: not JSON, not UTF-8, or over 4,300 digits.
    except (ValueError, RecursionError):
        raise Malformed("not valid JSON") from None
    return _reader(kind)(node)


@cache
def _reader(kind: Any) -> _Reader:
    """Return the function that turns a node into a value of a type."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _checked(_reader(arguments[0]), arguments[1:])
    if origin is Literal:
        return _checked(_reader(str), (arguments.__contains__,))
    if type(None) in arguments:
        inner = _reader(arguments[0])
        return lambda node: None if node is None else inner(node)
    if origin is tuple and arguments[-1] is not Ellipsis:
        return _row(tuple(map(_reader, arguments)))
    if origin in (tuple, list):
        return _sequence(origin, _reader(arguments[0]))
    if origin in (dict, Mapping) and arguments == (str, Any):
        return _any_map
    if origin in (dict, Mapping):
        return _mapping(_reader(arguments[0]), _reader(arguments[1]))
    if is_dataclass(kind) or is_typeddict(kind):
        return _fields(kind)
    return _any if kind is Any else _plain(kind)


def _plain(kind: type) -> _Reader:
    def read(node: Any) -> Any:
        # Not `isinstance`: in Python, `True` is an int.
        if type(node) is kind or (kind is float and type(node) is int):
            return node
        raise _strange(node)

    return read


def _any(node: Any) -> Any:
    # Keep only lists and maps: one level may have millions of plain values.
    level = [node] if type(node) in _CHILDREN else []
    depth = 0
    while level and (depth := depth + 1) <= _DEEPEST:
        level = [child for one in level for child in _CHILDREN[type(one)](one) if type(child) in _CHILDREN]
    if level:
        raise Malformed("nested too deeply")
    return node


def _any_map(node: Any) -> Any:
    if type(node) is not dict:
        raise _strange(node)
    return _any(node)


def _checked(read: _Reader, checks: tuple[Callable[[Any], bool], ...]) -> _Reader:
    def checked(node: Any) -> Any:
        value = read(node)
        if all(check(value) for check in checks):
            return value
        raise _strange(node)

    return checked


def _sequence(kind: type, read: _Reader) -> _Reader:
    def sequence(node: Any) -> Any:
        if type(node) is not list:
            raise _strange(node)
        return kind(_read_at(str(place), read, item) for place, item in enumerate(node))

    return sequence


def _row(readers: tuple[_Reader, ...]) -> _Reader:
    def row(node: Any) -> tuple[Any, ...]:
        if type(node) is not list or len(node) != len(readers):
            raise _strange(node)
        return tuple(_read_at(str(place), readers[place], item) for place, item in enumerate(node))

    return row


def _mapping(key: _Reader, value: _Reader) -> _Reader:
    def mapping(node: Any) -> dict[Any, Any]:
        if type(node) is not dict:
            raise _strange(node)
        return {key(name): _read_at(name, value, item) for name, item in node.items()}

    return mapping


def _fields(kind: Any) -> _Reader:
    """Return the reader of a dataclass or a TypedDict."""
    readers = {name: _reader(hint) for name, hint in get_type_hints(kind, include_extras=True).items()}
    if is_typeddict(kind):
        return _keeping(readers)
    defaults = {field.name for field in fields(kind) if field.default is not MISSING}

    def record(node: Any) -> Any:
        if type(node) is not dict:
            raise _strange(node)
        names = [name for name in readers if name in node or name not in defaults]
        try:
            return kind(**{name: _read_at(name, readers[name], node.get(name)) for name in names})
        except Malformed:
            raise
        except ValueError as error:  # by `__post_init__`
            raise Malformed(str(error)) from None

    return record


def _keeping(readers: Mapping[str, _Reader]) -> _Reader:
    def keeping(node: Any) -> Any:
        _any_map(node)
        for name, read in readers.items():
            _read_at(name, read, node.get(name))
        return node

    return keeping


def _read_at(place: str, read: _Reader, node: Any) -> Any:
    try:
        return read(node)
    except Malformed as error:
        # A key may be a stranger's text.
        here = ascii(place[:60])[1:-1]
        raise Malformed(error.message, f"{here}.{error.place}" if error.place else here) from None


def _strange(node: Any) -> Malformed:
    """Return the error for a value. The value is shown without control characters, and cut."""
    if node is None:
        return Malformed("missing")
    shown = "a map" if isinstance(node, dict) else "a list" if isinstance(node, list) else f"{str(node)[:60]!a}"
    return Malformed(f"{shown} is invalid")
