"""Write a change into the text of a profile. Only values of fields change; comments and layout do not. Pure.

PyYAML gives the place of each value. For PyYAML, a block includes the comments after it. So the end of a block is
taken from the block's last value.
"""

from __future__ import annotations

from collections.abc import Mapping

import yaml

from tfdock.profile.yaml_nodes import LOADER


def edited(text: str, change: Mapping[str, str | None], whole: Mapping[str, str | None]) -> str:
    """Return the text with fields set to values in YAML; a field whose new value is None is removed.

    If the change sets only a part of a map, `whole` has the complete new value of this map. The caller must parse the
    returned text again: for an unusual layout, such as all fields on one line, it may be damaged or empty.
    """
    begin = text[: text.startswith("\ufeff")]  # libyaml does not count a byte order mark in its positions
    text = text[len(begin) :]
    for path, value in change.items():
        try:
            root = yaml.compose(text, Loader=LOADER)
        except yaml.YAMLError:
            root = None
        if not isinstance(root, yaml.MappingNode):
            return ""
        field, _, inner = path.partition(".")
        entry = _entry(root, field)
        within = entry[1] if entry else None
        if not inner:
            text = _with_field(text, root, field, value)
        elif isinstance(within, yaml.MappingNode) and not within.flow_style and len(within.value) > (value is None):
            text = _with_field(text, within, inner, value)
        else:
            text = _with_field(text, root, field, whole[field])
    return begin + text


def _entry(node: yaml.MappingNode, key: str) -> tuple[yaml.Node, yaml.Node] | None:
    return next(((name, value) for name, value in node.value if name.value == key), None)


def _with_field(text: str, node: yaml.MappingNode, key: str, value: str | None) -> str:
    """Return the text with one entry of a block map changed, added below the others, or removed with its lines."""
    entry = _entry(node, key)
    if entry is None:
        # Only `null` removes a field that comes from an extended profile.
        absent = value is None and not _entry(node, "extends")
        return text if absent else _added(text, node, f"{key}: {value or 'null'}")
    name, old = entry
    end = _end(text, old)
    if value is None:
        begin = text.rfind("\n", 0, name.start_mark.index) + 1
        return text[:begin] + text[_line_end(text, end) :]
    # A block begins on a new line, and an empty value has no text.
    beside = old.end_mark.index > old.start_mark.index and (
        not isinstance(old, yaml.CollectionNode) or old.flow_style
    )
    if beside:
        return text[: old.start_mark.index] + value + text[end:]
    return f"{text[: name.end_mark.index]}: {value}{text[max(end, name.end_mark.index + 1) :]}"


def _added(text: str, node: yaml.MappingNode, line: str) -> str:
    at = _line_end(text, max(_end(text, value) for _, value in node.value))
    newline = "\r\n" if "\r\n" in text else "\n"
    before = text[:at] if text[:at].endswith("\n") else text[:at] + newline
    return f"{before}{' ' * node.start_mark.column}{line}{newline}{text[at:]}"


def _end(text: str, node: yaml.Node) -> int:
    """Return the index after the last character of a value."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(text, last[1] if isinstance(last, tuple) else last)
    begin, end = node.start_mark.index, node.end_mark.index
    return begin + len(text[begin:end].rstrip())


def _line_end(text: str, index: int) -> int:
    """Return where the next line begins."""
    found = text.find("\n", index)
    return len(text) if found < 0 else found + 1
