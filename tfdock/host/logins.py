"""Find the logins in addresses of package indexes and proxies, and remove them from output. Pure: no I/O."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_WORD = r"(?:[A-Za-z]{1,14}\d{0,4}|v?\d{1,9})"
#: A word or number that is not secret. Secret tokens mix letters and digits, or are longer.
_PLAIN = re.compile(rf"[+~]?{_WORD}?(?:[-_.+:]{_WORD})*")
_ESCAPES = re.compile(r"(?:%[0-9A-Fa-f]{2})+")
_SHORTEST = 5  #: The fewest characters of a login that is replaced. A shorter login would occur in many words.


def logins(value: str) -> tuple[str, ...]:
    """Return the parts that may be secret, of the addresses in a value.

    Such parts: the login before a host, a query, and each part of a path that does not consist of words and numbers.
    """
    secrets: list[str] = []
    for address in value.split():
        # The last `@`: a password may contain an `@` that is not encoded.
        login, _, place = _SCHEME.sub("", address).rpartition("@")
        user, _, password = login.partition(":")
        # A token may stand in the fragment as well as in the query.
        path, _, query = re.sub("#", "?", place).partition("?")
        parts = [user, *path.split("/")[1:]]
        secrets += [login, password, query, *(pair.rpartition("=")[2] for pair in re.split("[&;?]", query))]
        secrets += [part for part in parts if not _PLAIN.fullmatch(part)]
    # Programs print an address either unchanged or decoded.
    return tuple(dict.fromkeys(form for secret in secrets for form in (secret, unescaped(secret)) if form))


def unescaped(text: str) -> str:
    """Return a text from an address, with the `%` escapes decoded once."""
    # An escape is one byte; a character of UTF-8 may need four escapes.
    return _ESCAPES.sub(lambda run: bytes.fromhex(run[0].replace("%", "")).decode("utf-8", "replace"), text)


class LoginFilter:
    """Forwards output, and replaces each secret by `<login>`, even if a secret spans two pieces.

    Very short texts are not replaced: they would occur in many words.
    """

    def __init__(self, texts: Iterable[str], hear: Callable[[bytes], None]) -> None:
        # A variable of the environment may hold bytes that are not UTF-8.
        encoded = {text.encode("utf-8", "surrogateescape") for text in texts if len(text) >= _SHORTEST}
        # Longest first: `re` takes the first alternative that matches, and would leave the rest of a longer secret.
        known = sorted(encoded, key=len, reverse=True)
        self._known = re.compile(b"|".join(map(re.escape, known))) if known else None
        self._longest = len(known[0]) if known else 1
        self._hear, self._held = hear, b""

    def feed(self, data: bytes) -> None:
        """Forward some bytes. The last bytes wait for the next call if they may be the start of a secret."""
        data = self._held + data
        self._hand_on(data, max(len(data) - self._longest + 1, 0))

    def close(self) -> None:
        """Forward the rest of the text."""
        self._hand_on(self._held, len(self._held))

    def _hand_on(self, data: bytes, end: int) -> None:
        """Pass on the bytes and secrets that begin before `end`, and keep the rest."""
        parts, place = [], 0
        for match in self._known.finditer(data) if self._known else ():
            if match.start() >= end:  # a longer login may begin there
                break
            parts += [data[place : match.start()], b"<login>"]
            place = match.end()
        end = max(place, end)
        output = b"".join([*parts, data[place:end]])
        self._held = data[end:]
        if output:
            self._hear(output)
