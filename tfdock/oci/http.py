"""HTTP as everything here speaks it: bounded, patient where that is safe, and led nowhere it should not go."""

from __future__ import annotations

import http.client
import io
import ipaddress
import json
import random
import re
import socket
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar, cast

from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt

from tfdock.host.supervise import watched

TIMEOUT = 30.0
"""Seconds of silence."""
MOST = 64 << 20
"""Bytes of an answer that is read into memory."""
_MOST_SAID = 64 << 10
"""The same of one that is an error."""
TRIES = 3
_STEP = 0.25
_LONGEST_PAUSE = 60.0
"""Seconds between tries; a server that wants more of them is not asked again."""

_T = TypeVar("_T")


class StrangeAnswer(Exception):
    """An answer that cannot be used, in words for people."""


TROUBLE = (StrangeAnswer, OSError, http.client.HTTPException, ValueError)
"""All that asking over a network raises."""


def asked(question: Callable[[], _T], check: Callable[[], None], seconds: float) -> _T:
    """The answer to a question, within its time; `check` is called meanwhile and raises to give up.

    The question runs in a thread of its own: a name server that is silent cannot be interrupted otherwise.
    """
    end = time.monotonic() + seconds

    def tick(_: float) -> None:
        check()
        if time.monotonic() > end:
            raise StrangeAnswer(f"there was no whole answer in {seconds:.0f} s")

    return watched(lambda _: question(), lambda _: None, tick, None)


# --- where one may go -----------------------------------------------------------------------------------------------


def scheme(host: str) -> str:
    """Plain HTTP is spoken with this machine only."""
    return "http" if _is_here(urllib.parse.urlsplit(f"//{host}").hostname or "") else "https"


def may_lead_to(url: str, other: str) -> bool:
    """Return whether one address may send us to another: not out of HTTPS, and to this machine only from itself."""
    before, after = urllib.parse.urlsplit(url), urllib.parse.urlsplit(other)
    here = _is_here(after.hostname or "")
    if not _is_here(before.hostname or "") and (here or _stands_for_here(after.hostname or "")):
        return False
    return after.scheme == "https" or (
        after.scheme == before.scheme == "http" and (here or after.netloc == before.netloc)
    )


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _stands_for_here(host: str) -> bool:
    """Return whether the system reads a name or number as this machine or its link: `0`, `127.1`, `a.lan`.

    On the link 169.254.169.254 tells a machine of a cloud its credentials.
    """
    try:
        found = {entry[4][0] for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:  # behind a proxy nobody here knows the name
        return False
    addresses = [ipaddress.ip_address(str(name).partition("%")[0]) for name in found]
    addresses = [getattr(address, "ipv4_mapped", None) or address for address in addresses]
    return any(address.is_loopback or address.is_link_local or address.is_unspecified for address in addresses)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows where it may lead, with the same method, and tells secrets to nobody else."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if not may_lead_to(req.full_url, newurl):
            fp.close()
            # Without what follows the path: signatures stand there.
            place = urllib.parse.urlsplit(newurl)._replace(query="", fragment="").geturl()
            raise StrangeAnswer(f"it sends us to {place}, which is no address that it may send us to")
        new = super().redirect_request(req, fp, code, msg, headers, newurl)
        if new is not None:
            new.method = req.get_method()  # HEAD would have become GET
            if new.host != req.host:
                new.remove_header("Authorization")
        return new


# --- asking ---------------------------------------------------------------------------------------------------------


def send(request: urllib.request.Request) -> Any:
    """Send a request, again where the server asks for patience."""
    return again(lambda: send_once(request))


def nobody() -> None:
    """Nobody wants to stop."""


def again(
    do: Callable[[], _T], *, tries: int = TRIES, breaks: bool = False, check: Callable[[], None] = nobody
) -> _T:
    """Do something over HTTP, again where the server asks for patience (429, 5xx), as long as it asks for.

    With `breaks`, again also where the connection broke: only for what may be done twice. `check` is called while it
    waits, and raises to give up.
    """
    retrying = Retrying(
        retry=retry_if_exception(lambda error: pause(error, 1, breaks=breaks) is not None),
        wait=lambda state: _wait(state, breaks=breaks),
        stop=stop_after_attempt(tries),
        sleep=lambda seconds: rest(seconds, check),
        reraise=True,
    )
    return retrying(do)


def rest(seconds: float, check: Callable[[], None]) -> None:
    """Wait; `check` is called meanwhile."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        check()
        time.sleep(min(left, _STEP))


def send_once(request: urllib.request.Request, silence: float = TIMEOUT) -> Any:
    """Send a request, past the proxies where it goes to this machine; HTTPError for every status from 300 on.

    `silence`: seconds in which nothing may come.
    """
    here = _is_here(urllib.parse.urlsplit(request.full_url).hostname or "")
    handlers = [urllib.request.ProxyHandler({})] if here else []
    try:
        return urllib.request.build_opener(_Redirects, *handlers).open(request, timeout=silence)
    except urllib.error.HTTPError as error:
        said = b""
        with error, suppress(*TROUBLE):
            # What has come so far: nobody waits for an error's words to be complete.
            said = cast("http.client.HTTPResponse", error.fp).read1(_MOST_SAID)
        raise urllib.error.HTTPError(error.url, error.code, error.msg, error.headers, io.BytesIO(said)) from None


def _wait(state: RetryCallState, *, breaks: bool) -> float:
    error = state.outcome.exception() if state.outcome else None
    return pause(error, state.attempt_number, breaks=breaks) or 0.0


def pause(error: BaseException | None, tries: int, *, breaks: bool) -> float | None:
    """Seconds to wait after so many tries, before the same is asked again; None where that is of no use."""
    if isinstance(error, urllib.error.HTTPError):
        if error.code != 429 and error.code < 500:
            return None
        seconds = _patience(error.headers.get("Retry-After", ""), float(tries))
        return seconds if seconds <= _LONGEST_PAUSE else None
    # By chance, so that those who were thrown out together do not come back together.
    return random.uniform(0.25, 0.5) * 2 ** min(tries, 5) if breaks and _broke(error) else None


def _patience(said: str, otherwise: float) -> float:
    """Seconds that a `Retry-After` asks for: so many, or until a date."""
    if re.fullmatch(r"\d{1,9}", said):
        return float(said)
    try:
        return max(0.0, parsedate_to_datetime(said).timestamp() - time.time())
    except (ValueError, OverflowError):
        return otherwise


def _broke(error: BaseException | None) -> bool:
    """Whether it is the connection that failed, not what was asked, nor the name or certificate of the server."""
    inner = getattr(error, "reason", error)
    if isinstance(inner, socket.gaierror | ssl.SSLCertVerificationError):
        return False
    return isinstance(inner, OSError | http.client.IncompleteRead | http.client.BadStatusLine | TruncatedAnswer)


def error_codes(error: urllib.error.HTTPError) -> str:
    """What a registry gives as its reasons (OCI distribution specification, "Error Codes"): `DENIED, UNSUPPORTED`.

    The codes alone: what it says in its own words may repeat what it was shown.
    """
    try:
        codes = [row["code"] for row in json.loads(error.read())["errors"]]
    except (ValueError, LookupError, TypeError, RecursionError):
        return ""
    return ", ".join(code for code in codes if isinstance(code, str) and re.fullmatch(r"[A-Z_]{1,40}", code))[:200]


class TruncatedAnswer(StrangeAnswer):
    """An answer that ended before it was whole."""

    def __init__(self) -> None:
        super().__init__("it broke off")


def reason(error: BaseException) -> object:
    """Why, in the operating system's words where it has some."""
    if isinstance(error, urllib.error.HTTPError):
        return f"{error.code} {error.reason}"
    if isinstance(error, http.client.IncompleteRead):
        return "it broke off"
    if isinstance(error, ValueError | http.client.HTTPException) and not isinstance(error, OSError):
        return "its answer, or its address, cannot be understood"
    inner = getattr(error, "reason", None) or error
    return getattr(inner, "strerror", None) or inner


def whole(response: Any, most: int = MOST) -> bytes:
    """All that an answer holds; raises Strange where that is too long, or less than the length it states."""
    data = bytes(response.read(most + 1))
    if len(data) > most:
        raise StrangeAnswer("the answer is too long")
    if response.length:  # what is missing of the length that was stated
        raise TruncatedAnswer
    return data
