"""Remove secrets and the names of people and machines from texts that go to strangers. Pure.

First the redactor reads everything (`learn`). A secret shows itself by its form or by the name before it. It is then
removed wherever it stands, also in base64, hexadecimal or URL encoding. The placeholder names its kind. The search
for private keys, whole or cut off, takes time in proportion to the text.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

from tfdock.diagnose.log_lines import merge_spans
from tfdock.host.encodings import SHORTEST, Value, unescaped

_BEGIN = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_END = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_CODE = re.compile(r"[A-Za-z0-9+/=]{16,}[ \t\r]*$")
"""The end of a line of a key. A builder may have put a prefix before the line."""
# RFC 7468 has 64 characters a line, MIME (RFC 2045) has 76.
_FULL = re.compile(r"[ \t]*[A-Za-z0-9+/]{60,76}[ \t\r]*")
"""A full line of base64: part of a key whose first and last lines are elsewhere."""
_LONGEST_KEY = 20_000
"""Characters between the first and the last line; a key of 16,384 bits has 13,000."""
# `\n` as text as well: JSON and shells keep a key in one line. Every repeat has a bound, so that no text takes long.
_REST = re.compile(r"(?:(?:\\{1,4}[nr]|\s){0,8}[A-Za-z0-9+/=]{16,20000}){0,400}")
"""The rest of a key whose end was cut off, also in one line."""


def private_keys(text: str) -> list[tuple[int, int]]:
    """Return where keys begin and end, in order; none overlaps another."""
    return merge_spans(_places(text))


def _places(text: str) -> Iterator[tuple[int, int]]:
    ends = [match.end() for match in _END.finditer(text)]
    place = 0
    begins = list(_BEGIN.finditer(text))
    for match in begins:
        while place < len(ends) and ends[place] <= match.end():
            place += 1
        near = place < len(ends) and ends[place] - match.end() <= _LONGEST_KEY
        rest = _REST.match(text, match.end())
        assert rest
        yield match.start(), ends[place] if near else rest.end()
    # From the end, so that `pop` gives the next one.
    begins.reverse()
    begin, run, last = 0, 0, -_LONGEST_KEY
    for line in text.splitlines(keepends=True):
        end = begin + len(line)
        while begins and begins[-1].end() <= begin:
            last = begins.pop().start()
        # Begin at the first of the lines that may be of a key: only a line after them may show that they are.
        is_code = _CODE.search(line.rstrip("\n")[-200:]) is not None
        if _END.search(line):
            yield begin - run, end - line.endswith("\n")
        elif _FULL.fullmatch(line.rstrip("\n")) and _is_mixed(line):
            yield begin, end - line.endswith("\n")
        elif is_code and last >= begin - run - 200:
            yield begin - run, end - line.endswith("\n")
        run = run + len(line) if is_code else 0
        begin = end


def _is_mixed(line: str) -> bool:
    """Return whether a line has small and capital letters and digits. A hash or a name has not."""
    return all(any(map(has, line)) for has in (str.islower, str.isupper, str.isdigit))


_GENERIC = {
    "admin", "bazel", "build", "builder", "buildkitsandbox", "ci", "container", "cuda", "debian", "default", "dev",
    "docker", "fedora", "git", "gpu", "home", "host", "jenkins", "linux", "localhost", "localdomain", "nobody",
    "nvidia", "python", "root", "runner", "shared", "tensorflow", "test", "tf", "tfdock", "ubuntu", "user", "vagrant",
    "work", "worker",
}  # fmt: skip
"""Names that many machines have. Removing them would remove half of a log."""
_SHORTEST_NAME, _SHORTEST_LEARNT, _SHORTEST_WORD = 2, 8, 12
"""Characters that a text needs to be removed wherever it stands: a name, a learnt secret, a learnt secret of letters
alone, which may be a word of the language."""
_MOST_LEARNT = 500
"""Secrets that are learnt: each costs a search through every text."""
_LONGEST = 4000
"""Characters of a value, so that no expression takes long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalNames:
    """Hold what this machine adds: names of users and hosts, addresses, and folder -> placeholder (`<home>`)."""

    users: frozenset[str] = frozenset()
    hosts: frozenset[str] = frozenset()
    addresses: frozenset[str] = frozenset()
    places: Mapping[str, str] = field(default_factory=dict)


# --- what shows itself --------------------------------------------------------------------------------------------

# A name ends there or goes on with a capital, a dash or a line below: a tokenizer is none.
_SECRET_NAME = (
    r"(?:(?i:passw(?:or)?d|pass[ _-]?phrase|secret|token|credentials?|api[_-]?key|secret[_-]?key|access[_-]?key"
    r"|private[_-]?key|account[_-]?key|client[_-]?secret|authorization|cookie|_auth|\bauth|pgpass)(?![a-z]))"
)
_NO_SECRET = r"(?![\w-]{0,40}(?i:helper|file|path|dir|url|sock|name|type|count|limit|length|size)\b)"
"""How names of other things go on: `TOKEN_FILE`."""
_NAMED = re.compile(rf"{_SECRET_NAME}{_NO_SECRET}")
_VARIABLE = (
    r"(?:[A-Z0-9_]{0,60}_(?:PASS|PWD|PAT)|SSHPASS|(?:[A-Z0-9_]{0,60}_)?(?:DEPLOY|SIGNING|ENCRYPTION|MASTER|SSH)_KEY)"
)
"""Names of secrets that only variables have, in capitals."""
# A quote that is escaped ends nothing, and one that is never closed goes on to the end of its line.
_VALUE = (
    rf"(?:\$?(?P<quote>\\?[\"'])(?P<a>[^\n]{{1,{_LONGEST}}}?)(?:(?<!\\)(?P=quote)|(?=\n|\Z))"
    rf"|(?P<b>[^\s\"'<>][^\s\"'<>]{{0,{_LONGEST}}}))"
)
_LOGIN_OPTION = r"-u|--(?:proxy-)?user"
# Not ids of a user and a group, a user and his own group, an address, or a C++ name.
_LOGIN = (
    r"(?!(?P<own>[\w.-]{1,100}):(?:(?P=own)|\d{1,7})(?![^\s\"',;\])]))[A-Za-z0-9_][^\s\"':/]{0,200}:(?![/:])[^\s\"']"
)
"""How a login begins: the user, a colon, and the first letter of the password."""
_PASSWORD = r"(?i:pass(?:word|wd|[ _-]?phrase))"
# No word of a sentence: a digit beside letters, a capital after a small letter, capitals alone, or marks.
_ODD = (
    r"(?=[^\s\"'<>]{0,200}(?:[A-Za-z][^\s\"'<>]{0,60}\d|\d[^\s\"'<>]{0,60}[A-Za-z]|[a-z][A-Z]|[+/=!@#$%^&*~]\w)"
    r"|[A-Z][A-Z0-9_-]{3,200}(?![^\s\"'.,;)]))(?P<b>[A-Za-z0-9+_$!@#%^&*~][^\s\"'<>]{3,4000})"
)
_NOTHING = re.compile(
    r"(?i:true|false|none|null|yes|no|nil|undefined|auto|\d{1,3}|\W*|\$\{?\w+\}?|\$\{\{.*|%\w+%|<[\w ]+>.*|\*+\W*)"
)
"""Values that are no secret whatever their name: a word such as `true`, the name of a variable, stars."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """Hold how a secret shows itself. The group `a` or `b` of a match is the secret, without groups all of it.

    `learns`: the secret is then removed elsewhere too. Other matches may be ordinary words elsewhere.
    """

    kind: str
    expression: re.Pattern[str]
    learns: bool


def _rule(kind: str, pattern: str, *, learns: bool = True) -> _Rule:
    return _Rule(kind, re.compile(pattern), learns)


_RULES = (
    # A password may hold what ends a host, as long as it is no port.
    _rule(
        "login",
        r"\b[a-zA-Z][a-zA-Z0-9+.-]{0,20}://"
        r"(?P<a>[^/?#\s\"'<>]{1,400}|[^/?#\s\"'<>:@]{1,100}:(?!\d{0,5}[/?#])[^\s\"'<>]{1,300})@",
    ),
    _rule("secret", r"\"headers\\?\"\s{0,40}:\s{0,40}\{(?P<a>[^{}]{1,4000})\}", learns=False),
    _rule(
        "secret",
        r"(?i:\b(?:proxy-)?authorization|\b(?:set-)?cookie2?|\bx-[\w-]{0,40}(?:token|key|secret|auth|art-api)[\w-]{0,20})"
        r"\\?[\"']?[ \t]{0,3}[:=][ \t\[]{0,4}\\?[\"']?(?P<a>[^\"'\n\\]{1,4000})",
    ),
    _rule("secret", r"\b[Bb]earer[ \t]+(?P<a>[A-Za-z0-9+/=._~-]{8,4000})"),
    _rule("secret", r"(?<![\w-])--[\w-]{0,40}header[= ]\\?[\"']?[\w-]{1,60}=(?P<a>[^\"'\n]{1,4000})"),
    _rule("secret", rf"(?<![\w-])--?[\w-]{{0,40}}{_NAMED.pattern}[\w-]{{0,20}}[ \t]+{_VALUE}"),
    # Dockerfiles have a space as well: `ENV NAME value`.
    _rule("secret", rf"\b(?:ENV|ARG)[ \t]+(?:\w{{0,60}}{_NAMED.pattern}\w{{0,60}}|{_VARIABLE})[ \t]+{_VALUE}"),
    _rule("secret", rf"(?<![A-Z0-9_-]){_VARIABLE}[ \t]{{0,3}}[=:](?![:/=])[ \t]{{0,3}}{_VALUE}"),
    _rule(
        "secret",
        r"\becho[ \t]+(?:-n[ \t]+)?\\?[\"']?(?P<a>[^\s\"'|]{1,4000})[^\n|]{0,9}\|[^\n|]{0,300}--password-stdin",
    ),
    _rule("secret", r"\b(?:sshpass[ \t]+|twine\b[^\n]{0,300}?\s)-p[ =]?(?P<b>[^\s\"']{1,400})"),
    # Compilers have options with these letters: `-pthread`, `-pipe`, `-pg`.
    _rule(
        "secret",
        r"(?<![\w.-])(?:mysql\w{0,20}|mariadb[\w-]{0,20})[ \t](?:[^\n]{0,300}?[ \t])?"
        rf"-p(?!(?:ort|thread|ipe|ie|g|edantic)\b){_VALUE}",
    ),
    _rule("secret", rf"\bredis-cli[ \t](?:[^\n]{{0,300}}?[ \t])?(?:-a|--pass)[ \t=]{{1,3}}{_VALUE}"),
    # In words, where it does not look like one: not `password is required`.
    _rule(
        "secret",
        r"(?i:\bpass(?:word|wd|phrase)[ \t]+(?:is|was)):?[ \t]+[\"'`]?(?=[^\s\"'`<>]{0,60}\d)"
        r"(?P<a>[^\s\"'`<>]{5,400}[^\s\"'`<>.,;:!?)])",
    ),
    # Not the working folder (`PWD=/home/me`), nor an option of LLVM (`-debug-pass=Structure`).
    _rule("secret", rf"(?<![\w-])(?:\w{{1,40}}[_.])?(?i:pass|pwd)=(?![/~.]){_VALUE}", learns=False),
    _rule("secret", rf"(?i:\bapi[ _-]?key)(?:[ \t]{{1,3}}|[ \t]{{0,3}}:[ \t]{{0,3}}){_ODD}", learns=False),
    _rule(
        "secret", rf"(?i:\b(?:license|encryption|signing)[ _-]key)[ \t]{{0,3}}[=:][ \t]{{0,3}}{_VALUE}", learns=False
    ),
    _rule("secret", r"-pass(?:in|out)[ =]pass:(?P<b>[^\s\"']{1,400})"),
    _rule(
        "secret", r"\b(?:smb\w{1,20}|rpcclient)[ \t](?:[^\n]{0,300}?[ \t])?-U ?[^\s%]{1,100}%(?P<b>[^\s\"']{1,300})"
    ),
    _rule("secret", rf"\bldap\w{{1,20}}[ \t](?:[^\n]{{0,300}}?[ \t])?-w[ \t]?{_VALUE}"),
    # A line that ends in a name and a value: `NPM_TOKEN swordfish`.
    _rule(
        "secret",
        r"(?m)(?<![\w-])\w{1,60}[_-](?i:token|secret|password|passwd|(?:api|access|secret|private)[_-]?key)"
        r"[ \t]{1,3}(?P<b>[^\s\"'<>]{6,4000})$",
        learns=False,
    ),
    # `password VALUE`, `npm_token VALUE`. A short `token VALUE` has to look like a secret: compilers print that too.
    _rule(
        "secret", rf"(?<![\w-])(?:{_PASSWORD}|\w{{1,60}}[_-](?i:token|secret|key))[ \t]{{1,3}}{_ODD}", learns=False
    ),
    _rule("secret", rf"\b{_PASSWORD}[ \t]{{1,3}}(?P<quote>[\"'])(?P<a>[^\"'\n]{{4,400}})(?P=quote)", learns=False),
    _rule(
        "secret",
        r"(?<![\w-])(?i:token|secret)[ \t]{1,3}(?=[A-Za-z_-]{0,100}\d)(?=[\d_-]{0,100}[A-Za-z])(?P<a>[\w-]{16,4000})",
    ),
    # `Enter pass phrase for key.pem: VALUE`, as programs ask for it.
    _rule("secret", rf"\b{_PASSWORD} for (?:'[^'\n]{{1,300}}'|[^\s':]{{1,300}}):[ \t]{{1,3}}{_VALUE}"),
    _rule("secret", r"\b(?:docker|podman) login\b[^\n]{0,300}?\s-p[ =]?(?P<b>\S{1,400})"),
    _rule(
        "login",
        r"\bcurl\b[^\n]{0,400}?\s(?:(?:-u|--(?:proxy-)?user)[ =]?\\?[\"']?(?P<a>[^\s\"']{1,400})"
        r"|-[A-Za-z]{1,8}u ?\\?[\"']?(?P<b>[^\s\"':]{1,100}:[^\s\"']{1,300}))",
    ),
    _rule(
        "login",
        rf"(?<![\w-])(?:{_LOGIN_OPTION})(?:[ \t=]|\\?[\"'],[ \t]?)"
        rf"(?=\\?[\"']?{_LOGIN})(?:\\?[\"'](?P<a>[^\"'\n]{{3,500}})|(?P<b>[^\s\"']{{3,500}}))",
    ),
    # Of .netrc, which most people write in several lines.
    _rule("secret", r"\blogin\s{1,9}\S{1,200}\s{1,9}password\s{1,9}(?P<b>\S{1,400})"),
    _rule(
        "secret",
        r"[?&;](?i:sig|signature|key|x-[a-z]{2,9}-(?:signature|credential|security-token)|policy|key-pair-id"
        r"|[\w-]{0,40}(?:token|password|secret|auth))=(?P<a>[^&\s\"'<>]{1,4000})",
    ),
    _rule(
        "secret",
        rf"{_NAMED.pattern}[\w-]{{0,40}}(?:\\?[\"'])?[ \t]{{0,3}}(?:=>|:=|=(?!=)|:(?![:/]))[ \t]{{0,3}}"
        rf"(?:[|>][-+]?[ \t]*\n[ \t]*)?{_VALUE}",
    ),
    _rule("user", r"(?i:\\?\"username\\?\"[ \t]{0,3}:[ \t]{0,3}\\?\")(?P<a>[^\"\\\n]{1,200})", learns=False),
    _rule(
        "token",
        r"\b(?:gh[pousr]_[A-Za-z0-9]{16,255}|github_pat_\w{20,255}|gl(?:pat|dt|rtr?|cbt|ptt|ft|soat|agent|oas|imt|ffct)-"
        r"[\w-]{10,255}|(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}|xox[abeposr]-[\w-]{10,255}|AIza[\w-]{35}"
        r"|ya29\.[\w-]{10,2000}|npm_[A-Za-z0-9]{20,255}|pypi-[\w-]{16,2000}|dckr_[op]at_[\w-]{10,255}"
        r"|hf_[A-Za-z0-9]{20,255}|sk-[\w-]{20,255}|[rs]k_(?:live|test)_[A-Za-z0-9]{10,255}"
        r"|SG\.[\w-]{16,64}\.[\w-]{16,64}|hv[bsr]\.[\w-]{20,4000}|AGE-SECRET-KEY-1[A-Z0-9]{40,80}"
        r"|do[opr]_v1_[0-9a-f]{32,255}|shp(?:at|ca|pa|ss)_[A-Za-z0-9]{20,255}|dapi[0-9a-f]{32}(?:-\d)?"
        r"|ATATT3[\w=-]{20,400}|LS0tLS1CRUdJTi[A-Za-z0-9+/=]{20,8000}"
        r"|(?<=hooks\.slack\.com/)(?:services|workflows|triggers)/[\w/-]{8,255}"
        r"|(?<=/api/webhooks/)\d{1,30}/[\w-]{8,255}"
        r"|eyJ[\w-]{8,4000}\.[\w-]{4,4000}\.[\w-]{0,4000})",
    ),
    _rule("token", r"(?<!\d)\d{6,12}:AA[\w-]{30,40}(?![\w-])"),  # of a bot of Telegram; `bot` may stand before it
    # Not what linkers say of a symbol and its library's version: `cublasCreate@libcublas.so.12`.
    _rule(
        "email",
        r"(?<![\w.%+-])(?!git(?:@|%40))[A-Za-z0-9](?:[\w.+-]{0,62}[\w+-])?(?:@|%40)(?!lib[\w+-]{1,60}\.so\b)"
        r"(?:[A-Za-z0-9-]{1,63}\.){1,6}[A-Za-z]{2,24}(?![\w-])",
    ),
    # Bazel's folder of outputs, variables of shells and CI services, and what git says of people.
    _rule("user", r"(?<![A-Za-z0-9])_bazel_(?P<b>[\w.-]{1,64})", learns=False),
    _rule(
        "user",
        r"\b(?:USER|LOGNAME|USERNAME|SUDO_USER|GITHUB_ACTOR|GITLAB_USER_LOGIN)=\\?[\"']?(?P<b>[\w.@+-]{1,64})",
        learns=False,
    ),
    _rule(
        "user",
        r"\b(?:Author|Committer|Commit|Signed-off-by|Co-authored-by|Reviewed-by):[ \t]{0,9}"
        r"(?P<a>[^<>\n]{1,100}?)[ \t]{0,3}<",
        learns=False,
    ),
    _rule("host", r"\bHOSTNAME=\\?[\"']?(?P<b>[\w.-]{1,253})", learns=False),
    _rule("user", r"[\\/](?:home|Users)[\\/]{1,2}(?P<b>[^\\/\s\"':;,<>]{1,64})", learns=False),
    _rule(
        "address",
        r"(?<![\w:])(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}(?![\w:])"
        r"|\bGPU-[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b",
        learns=False,
    ),
)
_PARTED = re.compile(r"[\s,;]+|(?<=\w)[:=](?=\S)")
"""Separators in a header or a login: between name and value, user and password."""
_BASIC = re.compile(
    r"\b(?P<kind>[Bb]asic[ \t]+|\\?\"auth\\?\"\s{0,9}:\s{0,9}\\?\")(?P<a>[A-Za-z0-9+/_-]{4,4000}={0,2})"
)


class Redactor:
    """Removes from texts and documents what is secret or personal, and counts it by kind."""

    def __init__(self, known: LocalNames) -> None:
        self.counts: Counter[str] = Counter()
        self._known = known
        self._learnt: dict[str, str] = {}

    # --- learn ---------------------------------------------------------------------------------------------------

    def learn(self, text: str) -> None:
        """Learn the secrets that a text shows. Learn from every text before the first text is redacted."""
        for rule in _RULES:
            for match in rule.expression.finditer(text) if rule.learns else ():
                value = match[_secret_group(match)]
                if not _NOTHING.fullmatch(value):
                    self._learn_value(value, rule.kind)
        for match in _BASIC.finditer(text):
            self._learn_login(match["a"])

    def learn_document(self, node: object) -> None:
        """Learn the secrets of a JSON document, also by the names of its keys and by options before a value."""
        for name, text in _named_texts(node):
            self.learn(text)
            if kind := _kind_by_name(name, text):
                self._learn_value(text, kind)
                if kind == "secret" and len(text) >= SHORTEST and text.lower() not in _GENERIC:
                    self._keep(text, "secret")  # its name says what it is, so that it may be a word of the language

    def _learn_value(self, value: str, kind: str) -> None:
        parts = {value, unescaped(value)}
        if kind != "email":
            # The parts of an email address are ordinary words, and names of hosts.
            parts |= {part for text in parts for part in _PARTED.split(text)}
        for part in parts:
            if len(part) >= (_SHORTEST_WORD if part.isalpha() else _SHORTEST_LEARNT):
                self._keep(part, kind)
        if kind == "secret":
            # Behind `Basic ` or the like, the last word may be a login in base64.
            self._learn_login(value.rpartition(" ")[2])

    def _keep(self, value: str, kind: str) -> None:
        if not _NOTHING.fullmatch(value) and len(self._learnt) < _MOST_LEARNT and value not in self._learnt:
            self._learnt[value] = kind
            # Drop the cached list of values: it lacks this one.
            self.__dict__.pop("_values", None)

    def _learn_login(self, text: str) -> None:
        """Learn user and password in base64, as `Authorization: Basic` and Docker's `auth` have them."""
        if (login := _decode_login(text)) is not None:
            self._keep(text, "secret")
            # RFC 7617: a password may hold colons, and a user name may not.
            for part in login.split(":", 1):
                if len(part) >= SHORTEST and part.lower() not in _GENERIC:
                    self._keep(part, "login")

    @cached_property
    def _values(self) -> list[Value]:
        """Return every known value, the longest first, so that a value that contains another goes as a whole."""
        known = self._known
        values = {text: Value(text, kind) for text, kind in self._learnt.items()}
        values |= {path: Value(path, name.strip("<>"), word=True) for path, name in known.places.items()}
        for kind, names in (("user", known.users), ("host", known.hosts), ("address", known.addresses)):
            usable = (name for name in names if len(name) >= _SHORTEST_NAME and name.lower() not in _GENERIC)
            values |= {name: Value(name, kind, word=True) for name in usable}
        return sorted(values.values(), key=lambda value: -len(value.text))

    # --- redact --------------------------------------------------------------------------------------------------

    def text(self, text: str) -> str:
        """Return a text without what is secret or personal."""
        # Keys first: other rules would take single lines out of them, and the rest would not look like a key.
        text = self._without_private_keys(text)
        # Known values before forms: a rule may take out only a part of one.
        for value in self._values:
            text = value.replaced(text, partial(self._replacement, value.kind))
        text = _BASIC.sub(self._redact_basic, text)
        for rule in _RULES:
            text = rule.expression.sub(partial(self._redact, kind=rule.kind), text)
        return text

    def _without_private_keys(self, text: str) -> str:
        parts, place = [], 0
        for begin, end in private_keys(text):
            parts += [text[place:begin], self._replacement("private key")]
            place = end
        return "".join([*parts, text[place:]])

    def document(self, node: object, name: str = "") -> object:
        """Return a JSON document without what is secret or personal; the value of `PASSWORD` goes whatever it is."""
        if isinstance(node, Mapping):
            # A key may hold a secret or a name as well.
            return {self.text(str(key)): self.document(value, str(key)) for key, value in node.items()}
        if isinstance(node, list | tuple):
            return [self.document(item, item_name) for item_name, item in _named_items(node, name)]
        if not isinstance(node, str):
            return node
        kind = _kind_by_name(name, node)
        return self._replacement(kind) if kind and not _NOTHING.fullmatch(node) else self.text(node)

    def _replacement(self, kind: str, _: object = None) -> str:
        """Count a secret of that kind and return its placeholder."""
        self.counts[kind] += 1
        return f"<{kind}>"

    def _redact(self, match: re.Match[str], *, kind: str) -> str:
        """Return a match with its secret replaced."""
        group = _secret_group(match)
        value = match[group]
        if _NOTHING.fullmatch(value) or (kind in ("user", "host") and value.lower() in _GENERIC):
            return match[0]
        begin, end = match.start(group) - match.start(), match.end(group) - match.start()
        return f"{match[0][:begin]}{self._replacement(kind)}{match[0][end:]}"

    def _redact_basic(self, match: re.Match[str]) -> str:
        # Any word may stand behind `basic`: only what decodes to a login is one. In Docker's `auth` it always is.
        is_login = _decode_login(match["a"]) is not None or match["kind"].lstrip("\\").startswith('"')
        return self._redact(match, kind="secret") if is_login else match[0]


def _secret_group(match: re.Match[str]) -> str | int:
    """Return the group with the secret: `a` or `b`, else 0 for the whole match."""
    groups = match.groupdict()
    return next((name for name in ("a", "b") if groups.get(name) is not None), 0)


def _is_secret(name: str) -> bool:
    return name == "auth" or bool(_NAMED.search(name) or re.fullmatch(_VARIABLE, name))


def _kind_by_name(name: str, value: str) -> str:
    """Return `login` or `secret` where a variable, key or option of that name makes the value one; else nothing."""
    if re.fullmatch(_LOGIN_OPTION, name) and re.fullmatch(rf"{_LOGIN}.*", value):
        return "login"
    return "secret" if name and _is_secret(name) else ""


def _option(word: object) -> str:
    """Return an option whose next word is a secret or may be a login; else nothing."""
    if not isinstance(word, str) or not re.fullmatch(r"--?[A-Za-z][\w-]{0,60}", word):
        return ""
    return word if _is_secret(word) or re.fullmatch(_LOGIN_OPTION, word) else ""


def _decode_login(text: str) -> str | None:
    """Return `user:password` of a login in base64; None for any other text."""
    # RFC 4648 has two alphabets (sections 4 and 5), and padding is often left out.
    altchars = b"-_" if "-" in text or "_" in text else None
    try:
        login = base64.b64decode(text + "=" * (-len(text) % 4), altchars=altchars).decode()
    except (binascii.Error, ValueError):
        return None
    return login if ":" in login.strip(":") and login.isprintable() else None


def _named_items(items: Sequence[object], name: str) -> Iterator[tuple[str, object]]:
    """Yield each item of a list with its name: the option before it, such as `--password`, or the list's name."""
    for before, item in zip(("", *items), items, strict=False):
        yield _option(before) or name, item


def _named_texts(node: object, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield every text of a document with its name."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield "", str(key)
            yield from _named_texts(value, str(key))
    elif isinstance(node, list | tuple):
        for item_name, item in _named_items(node, name):
            yield from _named_texts(item, item_name)
    elif isinstance(node, str):
        yield name, node
