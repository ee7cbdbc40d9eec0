"""Find what identifies this machine and its user: names, addresses, folders, and the secrets of both.

They are collected to remove them from what leaves the machine. They are never printed or written.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from tfdock.diagnose.redaction import LocalNames, Redactor
from tfdock.host.settings import Settings
from tfdock.host.untrusted_folders import open_plain_file

# Login files have kilobytes; whatever is larger is none.
_MOST = 1 << 20
"""Bytes of a file that are read."""
_DEEP = 3
"""Parts of a path, `/` among them, that it needs to identify anybody: `/tmp` is in every log."""
_LOGIN_FILES = (
    ".docker/config.json",
    ".netrc",
    ".pypirc",
    ".git-credentials",
    ".npmrc",
    ".bazelrc",
    ".aws/credentials",
    ".config/containers/auth.json",
    ".config/pip/pip.conf",
)
_GIT_FILES = (".gitconfig", ".config/git/config")
_GIT_NAME = re.compile(r"^\s*name\s*=\s*\"?([^\"#;\n]+)", re.MULTILINE)
_OF_USERS = ("USER", "USERNAME", "LOGNAME", "ACTOR", "USER_LOGIN", "USER_NAME", "AUTHOR_NAME", "COMMITTER_NAME")
"""Endings of variables that hold the name of a person, such as `TFDOCK_REGISTRY_USER`."""
_OF_HOSTS = ("HOSTNAME", "COMPUTERNAME")
# The kernel's own table has every local address, and needs no program and no rights.
_ADDRESS = re.compile(r"\|-- (\d+\.\d+\.\d+\.\d+)\s+/32 host LOCAL")


def local_names(
    settings: Settings, environment: Mapping[str, str] | None = None, profile: object = None
) -> LocalNames:
    """Return what identifies this machine. `profile` is the path of the profile: its folder is personal too."""
    environment = os.environ if environment is None else environment
    # A run document may be a stranger's, and no path holds a NUL.
    folder = str(Path(profile).parent) if isinstance(profile, str) and "\0" not in profile else ""
    return LocalNames(
        users=frozenset(filter(None, _users(environment))),
        hosts=frozenset(filter(None, _hosts(environment))),
        addresses=frozenset(_addresses()),
        places={**({folder: "<profile folder>"} if _is_deep(folder) else {}), **_places(settings)},
    )


def learn(redactor: Redactor, environment: Mapping[str, str] | None = None) -> None:
    """Teach a redactor the secrets in this machine's variables and login files."""
    environment = os.environ if environment is None else environment
    redactor.learn_document(dict(environment))
    # Lines `Name: value`. The header's name need not look like that of a secret.
    for line in environment.get("TFDOCK_REMOTE_HEADER", "").splitlines():
        redactor.learn_document({"secret": line.partition(":")[2].strip() or line})
    # `DOCKER_CONFIG` names a folder and `NETRC` a file: logins need not lie at home.
    docker, netrc = environment.get("DOCKER_CONFIG"), environment.get("NETRC")
    files = [
        *(Path.home() / name for name in _LOGIN_FILES),
        *([Path(docker) / "config.json"] if docker else []),
        *([Path(netrc)] if netrc else []),
    ]
    for text in filter(None, map(_text, files)):
        redactor.learn(text)
        # Most of these files are no JSON.
        with suppress(ValueError, RecursionError):
            redactor.learn_document(json.loads(text))


def _text(path: Path, limit: int = _MOST) -> str:
    """Return up to `limit` bytes of a file as text, all of it for -1; nothing for what cannot be read."""
    # `open_plain_file` follows no link, and files of settings are often links.
    with suppress(OSError), open_plain_file(path.resolve()) as file:
        return file.read(limit).decode("utf-8", "replace") if file else ""
    return ""


def _users(environment: Mapping[str, str]) -> Iterator[str]:
    yield from (value for name, value in environment.items() if name.endswith(_OF_USERS))
    # Under sudo this user is root, and names of the person who called it are in the log.
    sudo = environment.get("SUDO_UID", "")
    for uid in {os.getuid(), *([int(sudo)] if sudo.isdecimal() else [])}:
        # A container may run as a user whom /etc/passwd does not know.
        with suppress(KeyError, OverflowError):
            account = pwd.getpwuid(uid)
            # The first field is the person's name: `Anna Example,,,`.
            yield from (account.pw_name, account.pw_gecos.partition(",")[0], Path(account.pw_dir).name)
    # Python finds no home where neither HOME nor /etc/passwd names one.
    with suppress(RuntimeError):
        yield Path.home().name
        for file in _GIT_FILES:
            yield from map(str.strip, _GIT_NAME.findall(_text(Path.home() / file)))


def _hosts(environment: Mapping[str, str]) -> Iterator[str]:
    names = (socket.gethostname(), _text(Path("/etc/hostname")), *(environment.get(name, "") for name in _OF_HOSTS))
    for name in map(str.strip, names):
        # Logs show a host with its domain or without.
        yield from (name, name.partition(".")[0])


def _addresses() -> Iterator[str]:
    """Yield the addresses of this machine's interfaces as the kernel lists them, without the loopback."""
    # The table of a router may have megabytes, and every local address counts.
    for address in _ADDRESS.findall(_text(Path("/proc/net/fib_trie"), limit=-1)):
        if not address.startswith("127."):
            yield address
    for line in _text(Path("/proc/net/if_inet6"), limit=-1).splitlines():
        packed = line.partition(" ")[0]
        # The file has an address as 32 digits; logs have the short form.
        with suppress(ValueError, OSError):
            address = socket.inet_ntop(socket.AF_INET6, bytes.fromhex(packed))
            if address != "::1":
                yield address


def _places(settings: Settings) -> dict[str, str]:
    """Return the folders that say whose they are, each with what replaces it. Of a folder with two names the last
    one counts.
    """
    replacements: dict[str, str] = {}
    for name, locate in (
        ("here", Path.cwd),
        ("temporary", lambda: Path(tempfile.gettempdir())),
        ("home", Path.home),
        ("state", settings.state_dir.absolute),
        ("cache", settings.cache_dir.absolute),
        ("wheelhouse", settings.wheelhouse.absolute),
    ):
        # The current folder may be deleted by now.
        with suppress(OSError, RuntimeError):
            # Logs show a folder as it was named, or where its links lead.
            paths = (str(locate()), str(locate().resolve()))
            replacements |= {path: f"<{name}>" for path in paths if name == "home" or _is_deep(path)}
    # The home of some users of services is `/`, and every path begins with it.
    replacements.pop("/", None)
    return replacements


def _is_deep(path: str) -> bool:
    return len(Path(path).parts) >= _DEEP
