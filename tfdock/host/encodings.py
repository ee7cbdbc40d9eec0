"""Find a known text in other texts, however it is written: plain, in JSON, in base64 and so on. Pure."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

SHORTEST = 5
"""Characters that a text needs to be searched in other encodings. A shorter one would be found everywhere."""
# A shorter one occurs in digests by chance.
_SHORTEST_IN_HEXADECIMAL = 8
_SHORTEST_WORD = 3
"""Characters that a name needs to count wherever it stands: `cc` is also the end of file names."""
_AROUND = (
    r"(?:(?<=@)|(?<=://)|(?<=\bon )|(?<=\bby )|(?<=\bas )|(?<=\bhost )|(?<=\buser )|(?<=\bhostname )"
    r"|(?<=\d\d:\d\d:\d\d )|(?=[A-Za-z0-9]{1,2}@))"
)
"""What stands around a shorter name where it is a name."""

# `%25` is an encoded `%`: a text that was encoded twice has `%2540` for an `@`.
_PERCENT = re.compile(r"%(?:25){0,3}[0-9A-Fa-f]{2}")
# Bounded: a file in base64 is one endless run, and each value in it would walk through all.
_RUN = re.compile(r"[A-Za-z0-9+/=_%-]{0,4000}")


def unescaped(text: str) -> str:
    """Return a text of an address with its `%` escapes decoded once."""
    if not _PERCENT.search(text):
        return text
    # Bytes, since an escape is a byte: a character of UTF-8 may have four of them.
    return re.sub(
        rb"%([0-9A-Fa-f]{2})", lambda escape: bytes.fromhex(escape[1].decode()), text.encode("utf-8", "replace")
    ).decode("utf-8", "replace")


@lru_cache(maxsize=4)
def _decodings(text: str) -> str:
    """Return every decoding of a text that is encoded up to four times; nothing where nothing is encoded.

    Each step counts: a secret may look encoded itself.
    """
    decoded = []
    for _ in range(4):
        before, text = text, unescaped(text)
        if text == before:
            break
        # Forms write a space as `+` (HTML, application/x-www-form-urlencoded).
        decoded += [text.replace("+", " "), text]
    return "\n".join(decoded)


@dataclass
class Value:
    """A known text of some kind. `word`: it counts only where it is not part of a longer word, and a very short one
    only where its surroundings say that it is a name."""

    text: str
    kind: str
    word: bool = False

    def replaced(self, text: str, counted: Callable[[object], str]) -> str:
        """Return a text with this value replaced in every encoding; `counted` returns the replacement."""
        if self._folded(self.text) in self._folded(text):
            text = self._plain.sub(counted, text)
        for form in self._escaped:
            if form in text:
                text = re.sub(re.escape(form), counted, text)
        # A short text is in the base64 of almost anything.
        if len(self.text) < SHORTEST:
            return text
        if self._folded(self.text) in self._folded(_decodings(text)):
            text = "\n".join(self._percent.sub(counted, line) if "%" in line else line for line in text.split("\n"))
        for begin, end, form in self._encoded:
            # Either end: a line break may cut the other one.
            if begin in text or end in text:
                broken = r"\s{0,8}".join(map(re.escape, form))  # `base64` breaks lines.
                text = _replace_runs(re.compile(broken), text, counted)
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
        """Return the value as JSON, as JSON in a text of JSON, and as a word of a shell."""
        # Logs hold JSON within JSON, such as an engine's message with a registry's answer in it.
        once = json.dumps(self.text)[1:-1]
        return [form for form in (once, json.dumps(once)[1:-1], self.text.replace("'", "'\\''")) if form != self.text]

    @cached_property
    def _percent(self) -> re.Pattern[str]:
        """Match the value in an address, where each byte may be encoded, and more than once."""
        parts = []
        for character in self.text:
            encoded = "".join(f"%(?:25){{0,3}}(?i:{byte:02x})" for byte in character.encode("utf-8", "replace"))
            parts.append(f"(?:{re.escape(character)}|{encoded}{'|[+]' if character == ' ' else ''})")
        before, after = (r"(?<![A-Za-z0-9])", r"(?![A-Za-z0-9])") if self.word else ("", "")
        return re.compile(f"(?:{before}|(?<=%[0-9A-Fa-f]{{2}})){''.join(parts)}{after}")

    @cached_property
    def _encoded(self) -> list[tuple[str, str, str]]:
        """Return (beginning, end, whole) of the value in hexadecimal, and in base64 at any place of other data.

        Most texts have neither beginning nor end. Looking for them first saves compiling an expression.
        """
        data = self.text.encode("utf-8", "replace")
        encoded = []
        # A byte before shifts the value by two bits, so its base64 has three forms.
        for skipped in range(3):
            code = base64.b64encode(b"\0" * skipped + data).decode().rstrip("=")
            # Leave out the characters that also encode bits of neighbouring bytes.
            core = code[(0, 2, 3)[skipped] : (skipped + len(data)) * 8 // 6]
            # The second is the alphabet for URLs and file names (RFC 4648, section 5).
            forms = {core, core.replace("+", "-").replace("/", "_")} if len(core) >= SHORTEST else ()
            encoded += [(form[:5], form[-5:], form) for form in forms]
        if len(data) >= _SHORTEST_IN_HEXADECIMAL:
            encoded += [(form, form, form) for form in (data.hex(), data.hex().upper())]
        return encoded


def _replace_runs(expression: re.Pattern[str], text: str, counted: Callable[[object], str]) -> str:
    """Replace what matches, with everything that is encoded together with it."""
    parts, place = [], 0
    for match in expression.finditer(text):
        if match.start() < place:
            continue
        # Reversed, because an expression cannot be matched backwards.
        before = _RUN.match(text[place : match.start()][::-1])
        after = _RUN.match(text, match.end())
        assert before
        assert after
        parts += [text[place : match.start() - before.end()], counted(match)]
        place = after.end()
    return "".join([*parts, text[place:]])
