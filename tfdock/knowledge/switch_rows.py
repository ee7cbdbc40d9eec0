"""Rows about switches, which change or show how an installed TensorFlow runs. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from pydantic import Field

from tfdock.knowledge.rows import ReleaseRange, Row, RowPart, in_range

_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_.]*|--(?:tf_)?xla_[a-z0-9_]+)=(.*)")
_CARRIERS = ("TF_XLA_FLAGS", "XLA_FLAGS")


class SwitchFacts(RowPart):
    """A switch of TensorFlow, or of a library that TensorFlow uses."""

    switch: str  #: Its name.
    #: An environment `variable`, an XLA `flag` in such a variable, or a `setting` in a program.
    kind: Literal["variable", "flag", "setting"]
    reads: str  #: What reads it.
    values: str = ""  #: What it may be.
    default: str = ""  #: Its default value.
    does: str  #: The effect of the switch.
    use: str  #: When to use it.
    python: str = ""  #: The call that makes this setting in TensorFlow 2.
    #: The TensorFlow releases whose official wheels contain the name; of each, the newest patch release was searched.
    releases: ReleaseRange | None = None
    since: str = ""  #: The first version of the library that reads the switch.
    until: str = ""  #: The last version of the library that reads the switch.
    presets: Mapping[str, str] = Field(default_factory=dict)  #: Presets that set the switch, with the value.


class Switch(SwitchFacts, Row):
    """The name: a variable, an XLA flag (`--xla_dump_to`), or a setting in a program (`gpu_options.allow_growth`)."""

    KEY = ("switch",)

    @property
    def variable(self) -> str:
        """The environment variable for the switch; empty for a setting in a program."""
        return "" if self.kind == "setting" else _carrier(self.switch)


def _carrier(name: str) -> str:
    """Return the environment variable of a switch by its name: XLA reads all its flags from one."""
    if not name.startswith("--"):
        return name
    return "TF_XLA_FLAGS" if name.startswith("--tf_xla") else "XLA_FLAGS"


def release_span(span: str) -> str:
    """Return a range of releases in words: `2.4 and newer`, `1.8 to 2.15`, `2.2`."""
    first, dots, last = span.partition("..")
    return f"{first} to {last}" if last else f"{first} and newer" if dots else first


def presets(switches: Mapping[str, Switch]) -> dict[str, dict[str, str]]:
    """Return the presets by name, each with the switches that it sets and their values."""
    found: dict[str, dict[str, str]] = {}
    for row in switches.values():
        for name, value in row.presets.items():
            found.setdefault(name, {})[row.switch] = value
    return found


def variables(asked: Iterable[str], switches: Mapping[str, Switch]) -> dict[str, str]:
    """Return the environment variables of `NAME=VALUE`, `--xla_flag=VALUE` and presets (`deterministic`).

    Raises ValueError for any other text, for a setting of the program, and for a switch that is given twice.
    """
    known, found, given = presets(switches), dict[str, str](), set[str]()
    for text in asked:
        match = _VARIABLE.fullmatch(text) if text.isprintable() else None
        if match and (row := switches.get(match[1])) and row.kind == "setting":
            call = f": `{row.python}`" if row.python else ""
            raise ValueError(f"`{match[1]}` is a setting of the program: no variable can set it{call}")
        if (not match or "." in match[1]) and text not in known:
            names = ", ".join(f"`{name}`" for name in sorted(known))
            neither = "is neither a switch with a value, like `TF_ENABLE_ONEDNN_OPTS=0`, nor a preset"
            raise ValueError(f"`{text}` {neither}: {names}")
        for name, value in [match.groups()] if match else known[text].items():
            if name.startswith("--") and re.search(r"\s", value):
                raise ValueError(f"`{name}` takes no value with blanks: XLA would read several flags")
            carrier = _carrier(name)
            said = value if carrier == name else f"{name}={value}"
            for one in [name, *_flags(said)] if name in _CARRIERS else [name]:
                if one in given:
                    raise ValueError(f"`{one}` is given twice")
                given.add(one)
            found = laid_over(found, {carrier: said})
    return found


def _flags(text: str) -> list[str]:
    """Return the names of the flags in the value of a variable that carries flags."""
    return [word.partition("=")[0] for word in text.split()]


def laid_over(own: Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
    """Return the variables `own`, with `more` merged over them.

    XLA's flags share a variable, so new flags are appended to it.
    """
    found = dict(own)
    for name, value in more.items():
        found[name] = f"{own[name]} {value}" if name in _CARRIERS and name in own else value
    return found


def doubts(found: Mapping[str, str], switches: Mapping[str, Switch], release: str) -> Iterator[str]:
    """Yield a sentence for each variable or flag without a row, or that this minor release does not read."""
    names = [name for name in found if name not in _CARRIERS]
    names += [flag for name in _CARRIERS if name in found for flag in _flags(found[name])]
    for name in names:
        row = switches.get(name)
        ends = "; TensorFlow exits if it finds an unknown flag" if name.startswith("--") else ""
        if row is None:
            near = difflib.get_close_matches(name, switches, n=1, cutoff=0.8)
            yield f"tfdock knows no `{name}`{ends}" + (f"; did you mean `{near[0]}`?" if near else "")
        elif release and row.releases and not in_range(release, row.releases):
            wheels = f"the name is in the official wheels of {release_span(row.releases)}"
            yield f"TensorFlow {release} reads no `{name}`: {wheels}{ends}"
