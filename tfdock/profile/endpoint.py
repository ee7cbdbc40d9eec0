"""Parse the addresses of remote caches and executors into `Endpoint`. Pure."""

from __future__ import annotations

import re

from tfdock.types import Endpoint

# A name of at most 253 characters (RFC 1035), or an IPv6 address in brackets (RFC 3986).
_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|\[[0-9A-Fa-f:.]{2,45}\])"
_PORT = r"[1-9]\d{0,4}"
_PATH = r"(?:/[A-Za-z0-9._~-]+)*/?"
#: The form of a cache's address: HTTP or gRPC. Plain gRPC has no default port.
CACHE = rf"https?://{_HOST}(:{_PORT})?{_PATH}|grpcs://{_HOST}(:{_PORT})?/?|grpc://{_HOST}:{_PORT}/?"
EXECUTOR = rf"grpcs://{_HOST}(:{_PORT})?/?|grpc://{_HOST}:{_PORT}/?"  #: An executor speaks gRPC only.

#: The form of any address in settings: of a cache or executor, a registry, or a git server.
SERVER = rf"{CACHE}|git://{_HOST}(:{_PORT})?{_PATH}"

_PARTS = re.compile(rf"(https?|grpcs?)://({_HOST})(?::({_PORT}))?({_PATH})", re.ASCII)
_PORTS = {"http": 80, "https": 443, "grpcs": 443}
# Before the first slash, an `@` ends the user part of an address (RFC 3986, 3.2).
_LOGIN = re.compile(r"[a-z]+://[^/]*@")


def has_login(text: str) -> bool:
    """Return whether an address contains a user or a password."""
    return _LOGIN.match(text) is not None


def is_address(text: str) -> bool:
    """Return whether `parse` accepts a text."""
    try:
        parse(text)
    except ValueError:
        return False
    return True


def parse(text: str) -> Endpoint:
    """Return the endpoint of an address that matches `CACHE` or `EXECUTOR`; raises ValueError for any other."""
    match = _PARTS.fullmatch(text)
    # The pattern accepts five digits, so also 99999, which is not a valid port.
    if match is None or int(match[3] or _PORTS.get(match[1], 0)) not in range(1, 65536):
        raise ValueError("not the address of a cache or executor")
    scheme, host, port, path = match.groups()
    # One server must have one spelling: host names are not case-sensitive.
    return Endpoint(scheme, host.lower(), int(port or _PORTS[scheme]), path.rstrip("/"))


def server(text: str) -> str:
    """Return an address's scheme, host and port, without a user's name: `https://git.example`."""
    scheme, _, rest = text.partition("://")
    return f"{scheme}://{rest.partition('/')[0].rpartition('@')[2].lower()}"
