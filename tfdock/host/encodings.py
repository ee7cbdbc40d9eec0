"""Find a known text in other texts, however it is written: plain, in JSON, in base64 and so on. Pure."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

SHORTEST = 5
"""Characters of what is looked for in other encodings, where something shorter would be everywhere."""
_SHORTEST_IN_HEXADECIMAL = 8
_SHORTEST_WORD = 3
"""Characters of a name that is taken for one wherever it stands: `cc` ends files' names as well."""
_AROUND = (
    r"(?:(?<=@)|(?<=://)|(?<=\bon )|(?<=\bby )|(?<=\bas )|(?<=\bhost )|(?<=\buser )|(?<=\bhostname )"
    r"|(?<=\d\d:\d\d:\d\d )|(?=[A-Za-z0-9]{1,2}@))"
)
"""What a shorter name stands behind, or before, where it is one."""

_PERCENT = re.compile(r"%(?:25){0,3}[0-9A-Fa-f]{2}")
_RUN = re.compile(r"[A-Za-z0-9+/=_%-]{0,4000}")


def unescaped(text: str) -> str:
    """What an address means by a text."""
    if not _PERCENT.search(text):
        return text
    return re.sub(
        rb"%([0-9A-Fa-f]{2})", lambda one: bytes.fromhex(one[1].decode()), text.encode("utf-8", "replace")
    ).decode("utf-8", "replace")


@lru_cache(maxsize=4)
def _meant(text: str) -> str:
    """Return what an address means that is encoded up to four times; nothing where nothing is encoded.

    Each time counts: a secret may look encoded itself.
    """
    meant = []
    for _ in range(4):
        before, text = text, unescaped(text)
        if text == before:
            break
        meant += [text.replace("+", " "), text]
    return "\n".join(meant)


@dataclass
class Value:
    """Something known. `word`: it counts only where it stands by itself, not as a part of a longer word; a very short
    one only where what stands around it says that it is a name."""

    text: str
    kind: str
    word: bool = False

    def replaced(self, text: str, counted: Callable[[object], str]) -> str:
        """A text without it, in whatever encoding."""
        if self._folded(self.text) in self._folded(text):
            text = self._plain.sub(counted, text)
        for form in self._escaped:
            if form in text:
                text = re.sub(re.escape(form), counted, text)
        if len(self.text) < SHORTEST:
            return text
        if self._folded(self.text) in self._folded(_meant(text)):
            text = "\n".join(self._percent.sub(counted, line) if "%" in line else line for line in text.split("\n"))
        for begin, end, form in self._encoded:
            if begin in text or end in text:
                broken = r"\s{0,8}".join(re.escape(one) for one in form)  # `base64` breaks lines
                text = _widely(re.compile(broken), text, counted)
        return text

    def _folded(self, text: str) -> str:
        return text.lower() if self.word else text

    @cached_property
    def _plain(self) -> re.Pattern[str]:
        before, after = (r"(?<![A-Za-z0-9])", r"(?![A-Za-z0-9])") if self.word else ("", "")
        if self.word and len(self.text) < _SHORTEST_WORD:
            before = rf"(?<![\w.-]){_AROUND}"
        return re.compile(f"{before}{re.escape(self.text)}{after}", re.IGNORECASE if self.word else 0)

    @cached_property
    def _escaped(self) -> list[str]:
        """In JSON, once and in a text of JSON."""
        once = json.dumps(self.text)[1:-1]
        return [form for form in (once, json.dumps(once)[1:-1], self.text.replace("'", "'\\''")) if form != self.text]

    @cached_property
    def _percent(self) -> re.Pattern[str]:
        """In an address, where any of its bytes may be encoded, and more than once."""
        parts = []
        for one in self.text:
            encoded = "".join(f"%(?:25){{0,3}}(?i:{byte:02x})" for byte in one.encode("utf-8", "replace"))
            parts.append(f"(?:{re.escape(one)}|{encoded}{'|[+]' if one == ' ' else ''})")
        before, after = (r"(?<![A-Za-z0-9])", r"(?![A-Za-z0-9])") if self.word else ("", "")
        return re.compile(f"(?:{before}|(?<=%[0-9A-Fa-f]{{2}})){''.join(parts)}{after}")

    @cached_property
    def _encoded(self) -> list[tuple[str, str, str]]:
        """In hexadecimal, and in base64 at any place in it: what stands around goes as well.

        Beginning, end and all of it: most texts have neither end, and an expression takes long to make.
        """
        data = self.text.encode("utf-8", "replace")
        found = []
        for skipped in range(3):
            code = base64.b64encode(b"\0" * skipped + data).decode().rstrip("=")
            # Characters that hold bits of what stands before or after are not those of the value alone.
            core = code[(0, 2, 3)[skipped] : (skipped + len(data)) * 8 // 6]
            forms = {core, core.replace("+", "-").replace("/", "_")} if len(core) >= SHORTEST else ()
            found += [(form[:5], form[-5:], form) for form in forms]
        if len(data) >= _SHORTEST_IN_HEXADECIMAL:
            found += [(form, form, form) for form in (data.hex(), data.hex().upper())]
        return found


def _widely(expression: re.Pattern[str], text: str, counted: Callable[[object], str]) -> str:
    """Replace what matches, with all that is encoded together with it."""
    parts, place = [], 0
    for match in expression.finditer(text):
        if match.start() < place:
            continue
        before = _RUN.match(text[place : match.start()][::-1])
        after = _RUN.match(text, match.end())
        assert before
        assert after
        parts += [text[place : match.start() - before.end()], counted(match)]
        place = after.end()
    return "".join([*parts, text[place:]])
