"""Parse YAML into nodes that keep their raw text and position.

Numbers, dates and booleans keep their raw text: YAML reads `python: 3.10` as the number 3.1, and the error message
needs the raw text to print the fix. PyYAML silently accepts some things that are usually mistakes (equal keys,
aliases, tags, several documents, endless nesting). This module refuses them, each with its own code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

import yaml

from tfdock.errors import Fix, Problem, ProfileError

MAX_BYTES = 256 * 1024
MAX_DEPTH = 32
MAX_NODES = 50_000
_MOST_DIGITS = 100
_TOO_DEEP = ("yaml-too-deep", f"nested deeper than {MAX_DEPTH} levels", "a profile never needs more than four levels")

# libyaml is several times as fast as pure Python. Some packages of PyYAML lack libyaml.
LOADER: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_SCALARS = {
    "tag:yaml.org,2002:str": "text",
    "tag:yaml.org,2002:int": "number",
    "tag:yaml.org,2002:float": "number",
    "tag:yaml.org,2002:bool": "boolean",
    "tag:yaml.org,2002:null": "null",
    "tag:yaml.org,2002:timestamp": "date",
}
_TRUE = {"true", "yes", "on", "y"}


# One empty read-only map for all nodes.
_NONE: Mapping[str, Any] = MappingProxyType({})


# A named tuple, because a table has ten thousand nodes, and a frozen dataclass takes five times as long to create.
class Node(NamedTuple):
    """One value of a document and its place; `line` and `column` count from 1.

    `kind` is `map` or `list`; for a scalar, it is `text`, `number`, `boolean`, `null` or `date`. `raw` is a scalar's
    text as written, without quotes. `keys` has the place of each key of a map.
    """

    kind: str
    line: int
    column: int
    file: str = ""
    raw: str = ""
    items: tuple[Node, ...] = ()
    entries: Mapping[str, Node] = _NONE
    keys: Mapping[str, tuple[int, int]] = _NONE

    @property
    def value(self) -> object:
        """Plain Python data; dates, and numbers in unusual forms (`010`, `0x1f`, `12:30:45`), stay text."""
        match self.kind:
            case "map":
                return {key: child.value for key, child in self.entries.items()}
            case "list":
                return [child.value for child in self.items]
            case "boolean":
                return self.raw.lower() in _TRUE
            case "null":
                return None
            case "number":
                return _number(self.raw)
        return self.raw

    def problem(self, file: str, code: str, message: str, fix: Fix, **more: Any) -> Problem:
        """Return a problem with this node's place. `file` is used if the node names no file.

        `more` are further fields of the problem, such as `field`, `why` and `severity`.
        """
        return Problem(
            code=code, message=message, fixes=fix, file=self.file or file, line=self.line, column=self.column, **more
        )

    def at_field(self, field: str) -> Node:
        """Return the node of a field that is named as in problems: `gpus[0]`, `bazel.version`."""
        words = re.findall(r"[^.\[\]]+", field)
        return self.at(tuple(int(word) if word.isdigit() else word for word in words))

    def at(self, path: tuple[str | int, ...]) -> Node:
        """Return the deepest existing node on a path: if a key is missing, the map that lacks the key."""
        node = self
        for part in path:
            child = node.entries.get(part) if isinstance(part, str) else None
            if isinstance(part, int) and part < len(node.items):
                child = node.items[part]
            if child is None:
                return node
            node = child
        return node


def _number(raw: str) -> int | float | str:
    # YAML 1.1 reads 010 as 8, YAML 1.2 as 10; 12:30 is 750 in 1.1 and text in 1.2. No user means this. Python
    # refuses to convert numbers with very many digits, or takes them for infinity.
    if len(raw) > _MOST_DIGITS:
        return raw
    if re.fullmatch(r"[-+]?(0|[1-9][0-9]*)", raw):
        return int(raw)
    return float(raw) if re.fullmatch(r"[-+]?(0|[1-9][0-9]*)\.[0-9]*", raw) else raw


def shown(text: str) -> str:
    """Return a user's text for a message: on one line, without control characters, shortened if it is long."""
    # The text may be a stranger's: an escape sequence in a message would control the terminal.
    text = text if text.isprintable() else repr(text)[1:-1]
    return text if len(text) <= 80 else f"{text[:79]}…"


def parse(text: str, file: str) -> Node:
    """Read one document; raises ProfileError with the file, line and column of the mistake."""
    # Lone surrogates are refused below, with their place. Counting the bytes must not fail because of them.
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise ProfileError.of(
            "yaml-too-large",
            f"the file is larger than {MAX_BYTES // 1024} KiB",
            "a profile is a few dozen lines; is this the right file?",
            file=file,
        )
    try:
        try:
            return _Reader(file).document(text, LOADER)
        except yaml.scanner.ScannerError as error:
            # libyaml 0.2.6 stops at 1,000 levels before it has reported the first level.
            if error.problem != "exceeded maximum nesting depth":
                raise
            return _Reader(file).document(text, yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        # PyYAML leaves one or the other out.
        mark = error.problem_mark or error.context_mark
        message = f"not valid YAML: {error.problem or error.context}"
        fix = "correct the line; text that contains `:` or `#` needs quotes"
        if mark and _begins_with_tab(text, mark.line):
            message, fix = "YAML needs spaces, but this line has a tab", "indent with spaces only"
        line, column = (mark.line + 1, mark.column + 1) if mark else (None, None)
        raise ProfileError.of("yaml-syntax", message, fix, file=file, line=line, column=column) from error
    except (yaml.reader.ReaderError, UnicodeEncodeError) as error:
        # The reader's own position counts bytes in libyaml and characters in Python.
        character = text[error.start] if isinstance(error, UnicodeEncodeError) else chr(error.character)
        before = text[: text.find(character)]
        raise ProfileError.of(
            "yaml-syntax",
            f"not valid YAML: the character U+{ord(character):04X} is not allowed",
            "save the file as plain UTF-8 text without control characters",
            file=file,
            line=before.count("\n") + 1,
            column=len(before) - before.rfind("\n"),
        ) from error
    # Deeply nested text exhausts the stack of the parser.
    except RecursionError as error:
        raise ProfileError.of(*_TOO_DEEP, file=file) from error


def _begins_with_tab(text: str, line: int) -> bool:
    """Return whether a line's indentation has a tab.

    `line` counts from 0, in lines as YAML counts them.
    """
    # The line breaks of YAML 1.1, which differ from the line breaks of `str.splitlines`.
    lines = re.split("\r\n|[\n\r\x85\u2028\u2029]", text)
    return line < len(lines) and "\t" in re.split(r"[^ \t]", lines[line], maxsplit=1)[0]


class _Reader:
    """Builds nodes directly from parser events, so that a YAML bomb is refused before it is expanded."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._nodes = 0
        # Equal keys do not stop the reading: all of them are reported at once.
        self._duplicates: list[Problem] = []

    def document(self, text: str, loader: type[yaml.SafeLoader]) -> Node:
        events: Iterator[Any] = iter(yaml.parse(text, Loader=loader))
        root: Node | None = None
        documents = 0
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self._refuse(
                        event,
                        "yaml-several-documents",
                        "the file contains several YAML documents (`---`)",
                        "keep only one document in the file",
                    )
            elif isinstance(event, yaml.NodeEvent):
                root = self._node(event, events, 0)
        if self._duplicates:
            raise ProfileError(*self._duplicates)
        if root is None:
            raise ProfileError.of(
                "yaml-empty",
                "the file is empty",
                'begin with `schema: 1`; a profile needs `tensorflow: "2.18.0"` too, a matrix `base: NAME.yaml`',
                file=self._file,
                line=1,
                column=1,
            )
        return root

    def _refuse(self, event: Any, code: str, message: str, fix: str) -> None:
        mark = event.start_mark
        raise ProfileError.of(code, message, fix, file=self._file, line=mark.line + 1, column=mark.column + 1)

    def _node(self, event: Any, events: Iterator[Any], depth: int) -> Node:
        line, column = event.start_mark.line + 1, event.start_mark.column + 1
        self._nodes += 1
        if depth > MAX_DEPTH:
            self._refuse(event, *_TOO_DEEP)
        if self._nodes > MAX_NODES:
            self._refuse(event, "yaml-too-large", f"more than {MAX_NODES} values", "is this the right file?")
        # Nine anchors of nine aliases each unpack to gigabytes ("billion laughs").
        if isinstance(event, yaml.AliasEvent) or event.anchor:
            self._refuse(
                event,
                "yaml-alias",
                "anchors (`&`) and aliases (`*`) are not supported",
                "write out the value, or put shared fields into a file that `extends:` names",
            )
        if isinstance(event, yaml.SequenceStartEvent):
            self._check_tag(event, "tag:yaml.org,2002:seq")
            return Node(
                kind="list", file=self._file, line=line, column=column, items=tuple(self._items(events, depth))
            )
        if isinstance(event, yaml.MappingStartEvent):
            self._check_tag(event, "tag:yaml.org,2002:map")
            return self._map(line, column, events, depth)
        return Node(kind=self._scalar_kind(event), file=self._file, line=line, column=column, raw=event.value)

    def _items(self, events: Iterator[Any], depth: int) -> Iterator[Node]:
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            yield self._node(event, events, depth + 1)

    def _map(self, line: int, column: int, events: Iterator[Any], depth: int) -> Node:
        entries: dict[str, Node] = {}
        keys: dict[str, tuple[int, int]] = {}
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            key = self._node(event, events, depth + 1)
            child = self._node(next(events), events, depth + 1)
            # `<<` is the merge key of YAML 1.1, which is used with an alias.
            if key.kind in ("map", "list") or key.raw == "<<" or not key.raw.isprintable():
                self._refuse(event, "yaml-key", "a key must be plain text", "write a name before the `:`")
            if key.raw in entries:
                message = f"`{shown(key.raw)}` is written twice, first in line {keys[key.raw][0]}"
                fix = "keep only one of these lines: YAML would silently use the last one"
                problem = key.problem(self._file, "yaml-duplicate-key", message, fix, field=key.raw)
                self._duplicates.append(problem)
                continue
            entries[key.raw] = child
            keys[key.raw] = (key.line, key.column)
        return Node(kind="map", file=self._file, line=line, column=column, entries=entries, keys=keys)

    def _check_tag(self, event: yaml.CollectionStartEvent | yaml.ScalarEvent, expected: str) -> None:
        # Tags can make PyYAML build objects. `!` alone only says "no tag" (YAML 1.1, non-specific tags).
        if event.tag not in (None, "!", expected):
            self._refuse(event, "yaml-tag", f"the tag `{shown(event.tag)}` is not supported", "remove the tag")

    def _scalar_kind(self, event: yaml.ScalarEvent) -> str:
        if event.tag is not None and event.tag != "!" and event.tag not in _SCALARS:
            self._refuse(event, "yaml-tag", f"the tag `{shown(event.tag)}` is not supported", "remove the tag")
        if event.tag in _SCALARS:
            return _SCALARS[event.tag]
        # Quoted text is never a number.
        if event.tag == "!" or not event.implicit[0]:
            return "text"
        return _plain_kind(event.value)


_RESOLVER: Any = yaml.SafeLoader("")


@lru_cache(maxsize=1024)  # most texts are the keys of rows
def _plain_kind(text: str) -> str:
    # Ask the resolver as a loader would: plain `3.10` is a float in YAML 1.1, `no` a boolean.
    return _SCALARS.get(_RESOLVER.resolve(yaml.ScalarNode, text, (True, False)), "text")
