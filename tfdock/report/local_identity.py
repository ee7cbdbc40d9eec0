"""Find what identifies this machine and its user (names, folders), and the user's secrets in variables and logins.

Reports replace these texts. The texts are never printed or written.
"""

from __future__ import annotations

import base64
import os
import pwd
import re
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from tfdock.host.logins import unescaped
from tfdock.host.settings import Settings
from tfdock.host.untrusted_folders import open_plain_file
from tfdock.report.redaction import ADDRESS_LOGIN, KnownTexts

_REMOTE_HEADER = "TFDOCK_REMOTE_HEADER"
# Login files have kilobytes. A larger file is something else.
_MOST = 1 << 20  #: At most this many bytes of a file are read.
_DEEP = 3  #: A path with fewer parts (`/` is one) identifies nobody: `/tmp` is in every log.
# After a word such as `token`, the name ends or no small letter follows. `TOKEN_FILE` names a file, not a secret.
_SECRET_NAME = re.compile(
    r"(?i:passw(?:or)?d|pass[_-]?phrase|secret(?:[_-]?key)?|token|credentials?|(?:api|access|private|account)[_-]?key"
    r"|authorization|cookie|_auth|\bauth|pgpass)(?![a-z])"
    r"(?![\w-]{0,40}(?i:helper|file|path|dir|url|sock|name|type|count|limit|length|size)\b)"
    r"|^(?:[A-Z0-9_]{0,60}_(?:PASS|PWD|PAT)|SSHPASS|(?:[A-Z0-9_]{0,60}_)?(?:DEPLOY|SIGNING|ENCRYPTION|MASTER|SSH)_KEY)$"
)
# An expression, not a JSON parser: a damaged file may still have a login.
_DOCKER_LOGIN = re.compile(r'"(?:auth|identitytoken|registrytoken|password)"\s*:\s*"([^"]+)"')
_NETRC_PASSWORD = re.compile(r"\bpassword\s+(?:\"([^\"\n]+)\"|(\S+))")
#: Endings of the names of variables that hold the name of a person, such as `TFDOCK_REGISTRY_USER`.
_OF_USERS = ("USER", "USERNAME", "LOGNAME", "ACTOR", "USER_LOGIN", "USER_NAME", "AUTHOR_NAME", "COMMITTER_NAME")


def known_texts(
    settings: Settings, environment: Mapping[str, str] | None = None, profile: object = None, installed: str = ""
) -> KnownTexts:
    """Return the secret and personal texts of this machine.

    The folder of the file `profile` and the folder `installed` of an environment count as personal.
    """
    environment = os.environ if environment is None else environment
    # The path may come from a stranger's run document, and a path cannot contain a NUL.
    folder = str(Path(profile).parent) if isinstance(profile, str) and "\0" not in profile else ""
    return KnownTexts(
        secrets=frozenset(text.strip() for text in (*_in_variables(environment), *_in_login_files(environment))),
        users=frozenset(_users(environment)),
        hosts=frozenset(_hosts(environment)),
        places={
            **({folder: "<profile folder>"} if _is_deep(folder) else {}),
            **({installed: "<environment>"} if _is_deep(installed) else {}),
            **_places(settings),
        },
    )


def is_secret(variable: str) -> bool:
    """Return whether a variable of this name holds a secret."""
    return variable == _REMOTE_HEADER or _SECRET_NAME.search(variable) is not None


# --- secrets ------------------------------------------------------------------------------------------------------


def _in_variables(environment: Mapping[str, str]) -> Iterator[str]:
    for name, value in environment.items():
        if name == _REMOTE_HEADER:
            yield from _in_headers(value)
        elif is_secret(name):
            # A log may show a key line by line, with a prefix before each line.
            yield from (value, *value.splitlines())
        yield from _in_addresses(value)


def _in_headers(lines: str) -> Iterator[str]:
    """Yield the values of lines `Name: value`, and the last word of each value: the token in `Bearer TOKEN`."""
    for line in lines.splitlines():
        value = line.partition(":")[2].strip() or line
        yield from (value, value.rpartition(" ")[2])


def _in_addresses(text: str) -> Iterator[str]:
    """Yield users and passwords of the addresses in a text. Either may be a token instead."""
    for match in ADDRESS_LOGIN.finditer(text):
        user, _, password = match["login"].partition(":")
        # Programs print an address as written, or decoded.
        yield from (user, password, unescaped(user), unescaped(password))


def _in_login_files(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield the logins of Docker's configuration and of `.netrc`; no credential helper is called."""
    home = _home()
    docker = _text(Path(environment.get("DOCKER_CONFIG") or home / ".docker") / "config.json")
    for login in _DOCKER_LOGIN.findall(docker):
        yield from (login, _password(login))
    yield from _in_addresses(docker)  # logins of proxies
    for passwords in _NETRC_PASSWORD.findall(_text(Path(environment.get("NETRC") or home / ".netrc"))):
        yield from passwords


def _password(login: str) -> str:
    """Return the password of `user:password` in base64; nothing for a token."""
    with suppress(ValueError):
        return base64.b64decode(login).decode().partition(":")[2].strip("\0")
    return ""


def _text(path: Path) -> str:
    """Return the beginning of a file as text; empty if the file cannot be read."""
    # Resolve links first: `open_plain_file` follows none, and settings files are often links.
    with suppress(OSError), open_plain_file(path.resolve()) as file:
        return file.read(_MOST).decode("utf-8", "replace") if file else ""
    return ""


# --- names and folders --------------------------------------------------------------------------------------------


def _users(environment: Mapping[str, str]) -> Iterator[str]:
    yield from (value for name, value in environment.items() if name.endswith(_OF_USERS))
    # A container may run as a user whom /etc/passwd does not know.
    with suppress(KeyError):
        account = pwd.getpwuid(os.getuid())
        # The first field is the person's name: `Anna Example,,,`.
        yield from (account.pw_name, account.pw_gecos.partition(",")[0])
    yield _home().name


def _home() -> Path:
    """Return the user's home; `/` if neither HOME nor /etc/passwd names a home."""
    with suppress(RuntimeError):
        return Path.home()
    return Path("/")


def _hosts(environment: Mapping[str, str]) -> Iterator[str]:
    for name in (socket.gethostname(), environment.get("HOSTNAME", "")):
        # Logs show a host with or without its domain.
        yield from (name, name.partition(".")[0])


def _places(settings: Settings) -> dict[str, str]:
    """Return the folders that identify their user, and the placeholder of each. If a folder has several, the
    last placeholder counts.
    """
    replacements: dict[str, str] = {}
    for name, locate in (
        ("here", Path.cwd),
        ("temporary", lambda: Path(tempfile.gettempdir())),
        ("home", _home),
        ("state", settings.state_dir.absolute),
        ("cache", settings.cache_dir.absolute),
        ("wheelhouse", settings.wheelhouse.absolute),
    ):
        # The current folder may be deleted by now.
        with suppress(OSError):
            # Logs show a folder by its given path, or by the path that its links lead to.
            paths = (str(locate()), str(locate().resolve()))
            replacements |= {path: f"<{name}>" for path in paths if name == "home" or _is_deep(path)}
    # The home of some users is `/`, and every path begins with it.
    replacements.pop("/", None)
    return replacements


def _is_deep(path: str) -> bool:
    return len(Path(path).parts) >= _DEEP
