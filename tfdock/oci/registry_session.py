"""Requests to one repository of a registry: its address, the logins of `docker login`, and errors.

Logins come from the configuration of `docker login` and its credential helpers. Logins are never printed or written.
"""

from __future__ import annotations

import base64
import io
import re
import urllib.error
import urllib.parse
import urllib.request
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from tfdock.errors import Fix, NetworkError
from tfdock.host.foreign_json import Malformed, parse
from tfdock.host.settings import plain_http
from tfdock.oci import http
from tfdock.oci.http import HTTP_ERRORS, StrangeAnswer

_PATIENCE = 120.0  #: Seconds for a credential helper: it may ask a person for a passphrase.


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """A user's name and password for a registry, or a token in place of both."""

    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)

    @property
    def basic(self) -> str:
        """The value of an `Authorization` header with name and password."""
        return f"Basic {base64.b64encode(f'{self.user}:{self.password}'.encode()).decode()}"


def login_for(registry: str) -> Login | None:
    """Return the login for a registry (`docker.io`, `host:port`), if there is one; raise NetworkError."""
    try:
        stored = http.ask(lambda: _docker_login(registry), http.no_check, _PATIENCE)
    except Exception as error:  # the SDK does not check configurations and helpers, so it may raise any error
        timed_out = isinstance(error, http.StrangeAnswer)
        raise NetworkError.of(
            "credentials-unreadable",
            f"the login of `docker login` for the registry {registry} cannot be read",
            "check Docker's `config.json` and the credential helper that it names; "
            f"then log in again: `docker login {registry}`",
            why=f"the credential helper has not answered in {_PATIENCE:.0f} s"
            if timed_out
            else f"{type(error).__name__}: the message is left out, because it may contain a secret",
        ) from None
    # The SDK spells the keys of helpers (`Username`) and of config.json (`username`) differently.
    entry = {str(key).lower(): str(value) for key, value in (stored or {}).items() if value}
    token, password = entry.get("identitytoken", ""), entry.get("password", "")
    return Login(user=entry.get("username", ""), password=password, token=token) if token or password else None


def _docker_login(registry: str) -> Mapping[str, object] | None:
    # Imported here: the SDK takes a while to load, and most registries need no login.
    from docker import auth

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a missing helper, which soon raises an error anyway
        login: Mapping[str, object] | None = auth.load_config().resolve_authconfig(registry)
    return login


def token_request(realm: str, query: Mapping[str, str], login: Login | None) -> urllib.request.Request:
    """Return the request for a token: anonymous, by name and password, or by a token in place of both (OAuth 2)."""
    # The identity token of a helper is an OAuth 2 refresh token. It goes into a form, not into an address.
    if login and login.token:
        form = {**query, "grant_type": "refresh_token", "client_id": "tfdock", "refresh_token": login.token}
        return urllib.request.Request(realm, urllib.parse.urlencode(form).encode())
    headers = {"Authorization": login.basic} if login else {}
    return urllib.request.Request(f"{realm}?{urllib.parse.urlencode(query)}", headers=headers)


HUB = "docker.io"
_MOST_TOKEN = 1 << 20  #: The most bytes of the answer with a token.

_T = TypeVar("_T")


@dataclass
class Session:
    """A session with a repository of a registry. `login` is called when the registry asks for a login.

    `check` is called repeatedly, and raises to stop.
    """

    registry: str
    name: str
    login: Callable[[str], Login | None] = login_for
    check: Callable[[], None] = http.no_check
    _authorization: str | None = field(default=None, repr=False)

    @cached_property
    def url(self) -> str:
        """The address of the repository. Docker Hub uses another host and longer names."""
        host, name = self.registry, self.name
        if host == HUB:
            # Docker's official images are in `library`.
            host, name = "registry-1.docker.io", name if "/" in name else f"library/{name}"
        scheme = "http" if plain_http(self.registry) else http.scheme(self.registry)
        return f"{scheme}://{host}/v2/{name}"

    @contextmanager
    def error_context(self, subject: str, *, writing: bool = False) -> Iterator[None]:
        """Turn errors of requests for `subject` into NetworkError."""
        try:
            yield
        except urllib.error.HTTPError as error:
            raise self._refusal(subject, error, writing=writing) from error
        except HTTP_ERRORS as error:
            verb = "cannot be given" if writing else "cannot be asked for"
            mirror = "" if writing else ", or set a registry mirror"
            raise NetworkError.of(
                "registry-unreachable",
                f"the registry {self.registry} {verb} {subject}: {http.failure_reason(error)}",
                f"check the network and proxies{mirror}; "
                "a registry on another machine must use HTTPS, or be listed in the setting `plain_http`",
            ) from error

    def _refusal(self, subject: str, error: urllib.error.HTTPError, *, writing: bool) -> NetworkError:
        where, login = f"the registry {self.registry}", f"log in: `docker login {self.registry}`"
        verb = "take" if writing else "show"
        meanings: dict[int, tuple[str, str, Fix]] = {
            401: (
                "registry-denied",
                f"{where} refuses to {verb} {subject} without a login, or with this login",
                login,
            ),
            403: (
                "registry-denied",
                f"{where} refuses to {verb} {subject}",
                f"{login}, as a user who has permission",
            ),
            404: ("image-not-found", f"{where} has no {subject}, or it is private", ("check name and tag", login)),
            429: (
                "registry-rate-limited",
                f"{where} got too many requests from this machine",
                "wait, or set a mirror",
            ),
        }
        # Some registries answer 404 to a push if the repository does not exist yet.
        if writing:
            no_place = f"{where} has no repository `{self.name}` that accepts {subject}, or it is private"
            meanings[404] = (
                "image-not-found",
                no_place,
                ("check the name; create the repository in the registry", login),
            )
        code = "registry-unreachable" if error.code >= 500 else "registry-refused"
        message = f"{where} answers {error.code} {error.reason} for {subject}"
        fix: Fix = "try again later" if error.code >= 500 else "ask the operator of the registry why this is refused"
        code, message, fix = meanings.get(error.code, (code, message, fix))
        codes = http.error_codes(error)
        return NetworkError.of(code, message, fix, why=f"it says {codes}" if codes else "")

    def holds(self, digest: str) -> bool:
        """Return whether the repository already has a blob."""
        try:
            self.send("HEAD", f"{self.url}/blobs/{digest}").close()
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return False
            raise
        return True

    # --- requests -----------------------------------------------------------------------------------------------

    def send(self, method: str, url: str, headers: dict[str, str] | None = None, data: bytes | None = None) -> Any:
        """Send a repeatable request; retry it after a broken connection."""
        return self.retry(lambda: self.send_once(method, url, headers, data))

    def retry(self, do: Callable[[], _T], tries: int = http.TRIES) -> _T:
        return http.retry(do, tries=tries, breaks=True, check=self.check)

    def send_once(
        self,
        method: str,
        url: str,
        headers: dict[str, str] | None = None,
        data: bytes | None = None,
        more: float = 0.0,
    ) -> Any:
        """Send a request; if the registry asks for a login, send it again with a login.

        `more`: additional seconds that the registry may take before its first byte.
        """
        # The credential helper may ask a person for a passphrase meanwhile.
        whole = _PATIENCE + http.WHOLE + more + len(data or b"") / http.LEAST
        return http.ask(lambda: self._send(method, url, headers, data, http.TIMEOUT + more), self.check, whole)

    def _send(self, method: str, url: str, headers: dict[str, str] | None, data: bytes | None, silence: float) -> Any:
        shown = self._authorization
        try:
            return http.send_once(self._request(method, url, headers, data), silence)
        except urllib.error.HTTPError as error:
            # A server that the registry redirects to, such as a blob store, gets no login even if it asks for one.
            if error.code != 401 or not self._is_own(error.url):
                raise
            login = self._authorize(error.headers.get("WWW-Authenticate", ""))
            # Without a new authorization, the same request would get the same answer.
            if self._authorization in (None, shown):
                raise
        try:
            return http.send_once(self._request(method, url, headers, data), silence)
        except urllib.error.HTTPError as error:
            if error.code == 401 and login is None and method in ("GET", "HEAD"):
                error.code = 404  # Docker Hub answers 401 for a repository that does not exist
            raise

    def _request(
        self, method: str, url: str, headers: dict[str, str] | None, data: bytes | None
    ) -> urllib.request.Request:
        # Send a file object: then the time of silence holds for each block, and not for the whole body.
        body = data if data is None else io.BytesIO(data)
        request = urllib.request.Request(url, body, headers or {}, method=method)
        if data is not None:
            request.add_header("Content-Length", str(len(data)))
        if self._authorization and self._is_own(url):
            request.add_header("Authorization", self._authorization)
        return request

    def _is_own(self, url: str) -> bool:
        """Return whether the registry itself answers at an address."""
        return urllib.parse.urlsplit(url).netloc == urllib.parse.urlsplit(self.url).netloc

    def _authorize(self, challenge: str) -> Login | None:
        """Answer a challenge, if possible; return the login that was used."""
        login = self.login(self.registry)
        if challenge.lower().startswith("basic") and login and login.password:
            self._authorization = login.basic
        elif challenge.lower().startswith("bearer"):
            # No nested repetition: the registry sends the challenge, which may be long.
            token = self._token(dict(re.findall(r'\b(\w+)="([^"]*)"', challenge)), login)
            self._authorization = f"Bearer {token}" if token else self._authorization
        return login

    def _token(self, challenge: dict[str, str], login: Login | None) -> str | None:
        """Return the token for a login. Docker Hub and others give a token to anonymous readers too."""
        realm = challenge.get("realm", "")
        # The registry chooses this address: the login must not leave TLS, nor go to a server of this machine.
        if not http.may_lead_to(self.url, realm):
            return None
        # Not every registry names the scope that it wants.
        scope = challenge.get("scope", f"repository:{self.name}:pull")
        request = token_request(realm, {"scope": scope, "service": challenge.get("service", "")}, login)
        place = urllib.parse.urlsplit(realm).netloc
        try:
            with http.send(request) as response:
                answer = parse(dict[str, Any], http.read_all(response, _MOST_TOKEN))
        except urllib.error.HTTPError as error:
            # These errors tell the user what to do. Any other error is a fault of the token service.
            if error.code == 429 or (error.code in (401, 403) and login):
                raise
            raise StrangeAnswer(
                f"it sends tfdock to {place} for a token, which answers {http.failure_reason(error)}"
            ) from error
        except Malformed as error:
            raise StrangeAnswer(f"it sends tfdock to {place} for a token, which sends none") from error
        # `access_token` is OAuth 2's name for Docker's `token`.
        token = answer.get("token") or answer.get("access_token")
        # The token becomes a header: a line break in the token would begin another header.
        return token if isinstance(token, str) and token.isascii() and token.isprintable() else None
