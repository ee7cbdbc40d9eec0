"""Replace the caller's known secrets, names and folders in texts for strangers, and logins in addresses. Pure.

Nothing is guessed: other people's secrets, and secrets in another spelling, are not replaced. The user is told to
check the result.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

# A login in an address (`https://user:password@host`), even if a part of it is already replaced. A password may
# contain characters that end a host, unless a port follows. Every repeat is bounded, so that no text takes long.
ADDRESS_LOGIN = re.compile(
    r"(?P<scheme>\b[a-zA-Z][a-zA-Z0-9+.-]{0,20}://)"
    r"(?P<login>(?:[^/?#\s\"'<>]|<secret>){1,400}|[^/?#\s\"'<>:@]{1,100}:(?!\d{0,5}[/?#])[^\s\"'<>]{1,300})@"
)
#: Texts with fewer characters are not replaced: they occur in many words.
_SHORTEST_SECRET, _SHORTEST_NAME = 5, 3
#: Names that many machines have, and values that are not secret. Replacing them would remove half of a log.
_GENERIC = {
    "admin", "bazel", "build", "builder", "buildkitsandbox", "ci", "container", "cuda", "debian", "default", "dev",
    "docker", "false", "fedora", "git", "gpu", "home", "host", "jenkins", "linux", "localhost", "localdomain",
    "nobody", "nvidia", "python", "root", "runner", "shared", "tensorflow", "test", "tf", "tfdock", "ubuntu", "user",
    "vagrant", "work", "worker",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTexts:
    """The texts to replace: the caller's secrets, names of users and hosts, and folder -> placeholder (`<home>`)."""

    secrets: frozenset[str] = frozenset()
    users: frozenset[str] = frozenset()
    hosts: frozenset[str] = frozenset()
    places: Mapping[str, str] = field(default_factory=dict)


class Redactor:
    """Replaces the known texts in texts and documents, and counts the replacements by kind."""

    def __init__(self, known: KnownTexts) -> None:
        self.counts: Counter[str] = Counter()
        self._secrets = re.compile(_any_of(_usable(known.secrets, _SHORTEST_SECRET)))
        kinds = {
            **dict.fromkeys(_usable(known.hosts, _SHORTEST_NAME), "<host>"),
            **dict.fromkeys(_usable(known.users, _SHORTEST_NAME), "<user>"),
            **known.places,
        }
        # ASCII: otherwise `s` also matches letters whose lower case is not `s`.
        flags = re.IGNORECASE | re.ASCII
        self._names = re.compile(rf"(?<![A-Za-z0-9])(?:{_any_of(kinds)})(?![A-Za-z0-9])", flags)
        self._placeholders = {text.lower(): placeholder for text, placeholder in kinds.items()}

    def text(self, text: str) -> str:
        """Return a text with all known texts in it replaced."""
        # Replace secrets first: another rule might replace a part of a secret.
        text = self._secrets.sub(lambda _: self._counted("<secret>"), text)
        text = ADDRESS_LOGIN.sub(lambda match: f"{match['scheme']}{self._counted('<login>')}@", text)
        return self._names.sub(lambda match: self._counted(self._placeholders[match[0].lower()]), text)

    def document(self, node: object) -> object:
        """Return a JSON document with all known texts replaced, also in its keys."""
        if isinstance(node, Mapping):
            return {self.text(str(key)): self.document(value) for key, value in node.items()}
        if isinstance(node, list | tuple):
            return [self.document(item) for item in node]
        return self.text(node) if isinstance(node, str) else node

    def _counted(self, placeholder: str) -> str:
        self.counts[placeholder.strip("<>")] += 1
        return placeholder


def _usable(texts: Iterable[str], shortest: int) -> Iterable[str]:
    return (text for text in texts if len(text) >= shortest and text.lower() not in _GENERIC)


def _any_of(texts: Iterable[str]) -> str:
    """Return an expression that matches any of the texts; the longest one if several match at one place."""
    return "|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or "(?!)"
