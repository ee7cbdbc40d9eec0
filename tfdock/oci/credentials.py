"""What `docker login` keeps, by Docker's own configuration and its credential helpers. Never printed or written."""

from __future__ import annotations

import base64
import urllib.parse
import urllib.request
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field

from tfdock.errors import NetworkError, Problem
from tfdock.oci import http

_PATIENCE = 120.0
"""Seconds that a credential helper has: it may ask somebody for a passphrase."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """A user's name and password for a registry, or a token that stands for both."""

    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)

    @property
    def basic(self) -> str:
        """Name and password as a header says them."""
        return f"Basic {base64.b64encode(f'{self.user}:{self.password}'.encode()).decode()}"


def login_for(registry: str) -> Login | None:
    """The login for a registry (`docker.io`, `host:port`), if there is one; raises NetworkError."""
    try:
        found = http.asked(lambda: _kept(registry), http.nobody, _PATIENCE)
    except Exception as error:  # the SDK takes configurations and helpers as they are: it fails in any way
        late = isinstance(error, http.StrangeAnswer)
        raise NetworkError(
            Problem(
                code="credentials-unreadable",
                message=f"what `docker login` keeps for the registry {registry} cannot be read",
                why=f"the credential helper has not answered in {_PATIENCE:.0f} s"
                if late
                else f"{type(error).__name__}: its words are left out, they may hold a secret",
                fix="check Docker's `config.json` and the credential helper that it names; "
                f"then log in again: `docker login {registry}`",
            )
        ) from None
    entry = {str(key).lower(): str(value) for key, value in (found or {}).items() if value}
    token, password = entry.get("identitytoken", ""), entry.get("password", "")
    return Login(user=entry.get("username", ""), password=password, token=token) if token or password else None


def _kept(registry: str) -> Mapping[str, object] | None:
    # Here, not above: the SDK takes a while, and most registries ask for nothing.
    from docker import auth

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a helper that is not there, which is an error soon enough
        found: Mapping[str, object] | None = auth.load_config().resolve_authconfig(registry)
    return found


def token_request(realm: str, query: Mapping[str, str], login: Login | None) -> urllib.request.Request:
    """How a token is asked for: as anybody, by name and password, or by a token that stands for both (OAuth 2)."""
    if login and login.token:
        form = {**query, "grant_type": "refresh_token", "client_id": "tfdock", "refresh_token": login.token}
        return urllib.request.Request(realm, urllib.parse.urlencode(form).encode())
    headers = {"Authorization": login.basic} if login else {}
    return urllib.request.Request(f"{realm}?{urllib.parse.urlencode(query)}", headers=headers)
