"""Send HTTP requests with bounds and retries, and follow redirects only to allowed addresses."""

from __future__ import annotations

import http.client
import io
import ipaddress
import random
import re
import socket
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar, cast

from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt

from tfdock.host.foreign_json import Malformed, parse
from tfdock.host.supervise import Output, streamed, watched

TIMEOUT = 30.0  #: The most seconds without data.
WHOLE = 120.0  #: Seconds for a request and its answer. `TIMEOUT` does not stop a server that sends single bytes.
LEAST = 10_000  #: The minimum of bytes per second. At this speed, 100 MB take three hours.
_MINUTE = 60.0  #: Seconds before the speed is checked.
_MOST_HEAD = 1 << 20  #: The most bytes of the head of an answer, with every `100 Continue` before it.
MOST = 64 << 20  #: The most bytes of an answer that is read into memory.
_MOST_ERROR = 64 << 10  #: The most bytes of the body of an error.
TRIES = 3
# Seconds between two calls of `check`, so that a stop takes effect soon.
_STEP = 0.25
_LONGEST_PAUSE = 60.0  #: Seconds between tries. If a server asks for a longer pause, tfdock does not retry.

_T = TypeVar("_T")


class StrangeAnswer(Exception):
    """An unusable answer. The message is for people."""


# ValueError: an address or a header from the server that cannot be parsed.
#: All errors of a request over a network.
HTTP_ERRORS = (StrangeAnswer, OSError, http.client.HTTPException, ValueError)


def ask(question: Callable[[], _T], check: Callable[[], None], seconds: float) -> _T:
    """Return the result of a function; stop after `seconds`. `check` is called meanwhile, and raises to stop.

    The function runs in another thread, because a call to a silent name server cannot be interrupted.
    """
    # After a stop, no request is sent.
    check()
    end = time.monotonic() + seconds

    def tick(_: float) -> None:
        check()
        if time.monotonic() > end:
            raise StrangeAnswer(f"there was no complete answer in {seconds:.0f} s")

    return watched(lambda _: question(), lambda _: None, tick, None)


def receive(read: Callable[[Output], None], check: Callable[[], None]) -> Iterator[bytes]:
    """Run `read(output)` in a thread and yield its output. Stop if the output is slower than `LEAST`.

    `check` is called meanwhile, and raises to stop.
    """
    check()
    waited, brought, since = 0.0, 0, time.monotonic()
    with closing(streamed(read)) as pieces:
        for piece in pieces:
            check()
            # The time that the caller takes for each piece does not count.
            waited, brought = waited + time.monotonic() - since, brought + len(piece)
            if waited > _MINUTE:
                if brought < _MINUTE * LEAST:
                    raise StrangeAnswer(f"it sends less than {LEAST:,} bytes a second")
                waited, brought = 0.0, 0
            if piece:
                yield piece
            since = time.monotonic()


# --- where one may go -----------------------------------------------------------------------------------------------


def scheme(host: str) -> str:
    """Return the scheme for a host. Plain HTTP is for this machine only."""
    return "http" if _is_loopback(urllib.parse.urlsplit(f"//{host}").hostname or "") else "https"


def may_lead_to(url: str, other: str) -> bool:
    """Return whether an address may redirect to another: not from HTTPS to HTTP, nor from another machine to this."""
    before, after = urllib.parse.urlsplit(url), urllib.parse.urlsplit(other)
    is_local = _is_loopback(after.hostname or "")
    if not _is_loopback(before.hostname or "") and (is_local or _resolves_to_here(after.hostname or "")):
        return False
    return after.scheme == "https" or (
        after.scheme == before.scheme == "http" and (is_local or after.netloc == before.netloc)
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _resolves_to_here(host: str) -> bool:
    """Return whether the system resolves a name or number (`0`, `127.1`, `a.lan`) to this machine or its local link.

    On the local link of a cloud machine, 169.254.169.254 serves credentials.
    """
    try:
        names = {entry[4][0] for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:  # behind a proxy this machine may be unable to resolve the name
        return False
    # A link-local address may have its zone after `%` (RFC 4007).
    addresses = [ipaddress.ip_address(str(name).partition("%")[0]) for name in names]
    # `::ffff:127.0.0.1` is this machine too (RFC 4291, 2.5.5.2).
    addresses = [getattr(address, "ipv4_mapped", None) or address for address in addresses]
    return any(address.is_loopback or address.is_link_local or address.is_unspecified for address in addresses)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follow allowed redirects, with the same method, and send credentials to no other host."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        # A registry could redirect to servers that it cannot reach itself: those of this machine.
        if not may_lead_to(req.full_url, newurl):
            fp.close()
            # Without query and fragment, which may hold signatures.
            place = urllib.parse.urlsplit(newurl)._replace(query="", fragment="").geturl()
            raise StrangeAnswer(f"it redirects to {place}, but this redirect is not allowed")
        new = super().redirect_request(req, fp, code, msg, headers, newurl)
        if new is not None:
            new.method = req.get_method()  # urllib turns HEAD into GET
            # urllib would send all headers to the new host.
            if new.host != req.host:
                new.remove_header("Authorization")
        return new


# --- asking ---------------------------------------------------------------------------------------------------------


class _Head:
    """The head of an answer, line by line. `http.client` limits each head, but not the number of heads."""

    def __init__(self, stream: io.BufferedIOBase) -> None:
        self._stream, self._left = stream, _MOST_HEAD

    def readline(self, most: int) -> bytes:
        line = self._stream.readline(most)
        self._left -= len(line)
        if self._left < 0:
            raise StrangeAnswer("the head of its answer is too long")
        return line


class _Response(http.client.HTTPResponse):
    def begin(self) -> None:
        """Read the head of the answer, up to a limit."""
        # `fp` is the stream of http.client. Its `begin` reads only from `fp`.
        stream, self.fp = self.fp, _Head(self.fp)  # type: ignore[assignment]
        try:
            super().begin()
        finally:
            self.fp = stream


class _BoundedHeads(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    def do_open(self, http_class: Any, req: Any, **arguments: Any) -> Any:
        """Open a connection that limits the heads of its answers."""

        def connect(*words: Any, **more: Any) -> http.client.HTTPConnection:
            connection: http.client.HTTPConnection = http_class(*words, **more)
            connection.response_class = _Response
            return connection

        return super().do_open(connect, req, **arguments)


def send(request: urllib.request.Request) -> Any:
    """Send a request; if the server asks for a pause, retry after the pause."""
    return retry(lambda: send_once(request))


def no_check() -> None:
    """Do nothing, so that the caller continues."""


def retry(
    do: Callable[[], _T], *, tries: int = TRIES, breaks: bool = False, check: Callable[[], None] = no_check
) -> _T:
    """Call a function that uses HTTP; if the server asks for a pause (429, 5xx), retry after the pause.

    With `breaks`, for repeatable requests, also retry after a broken connection. `check` is called during
    the pause, and raises to stop.
    """

    def delay(state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        return retry_delay(error, state.attempt_number, breaks=breaks) or 0.0

    retrying = Retrying(
        retry=retry_if_exception(lambda error: retry_delay(error, 1, breaks=breaks) is not None),
        wait=delay,
        stop=stop_after_attempt(tries),
        sleep=lambda seconds: wait(seconds, check),
        reraise=True,
    )
    return retrying(do)


def wait(seconds: float, check: Callable[[], None]) -> None:
    """Wait this many seconds; `check` is called meanwhile, and raises to stop."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        check()
        time.sleep(min(left, _STEP))


def send_once(request: urllib.request.Request, silence: float = TIMEOUT) -> Any:
    """Send a request; requests to this machine use no proxy. Raise HTTPError for every status from 300 on.

    `silence`: the longest time without data, in seconds.
    """
    is_local = _is_loopback(urllib.parse.urlsplit(request.full_url).hostname or "")
    handlers = [urllib.request.ProxyHandler({})] if is_local else []
    try:
        return urllib.request.build_opener(_Redirects, _BoundedHeads, *handlers).open(request, timeout=silence)
    except urllib.error.HTTPError as error:
        body = b""
        with error, suppress(*HTTP_ERRORS):
            # Read only what has arrived: an error's text is not worth waiting for.
            body = cast("http.client.HTTPResponse", error.fp).read1(_MOST_ERROR)
        # Keep the text of the error in memory: the connection is closed by now.
        raise urllib.error.HTTPError(error.url, error.code, error.msg, error.headers, io.BytesIO(body)) from None


def retry_delay(error: BaseException | None, tries: int, *, breaks: bool) -> float | None:
    """Return the seconds to wait before the next try; None if a retry is useless."""
    if isinstance(error, urllib.error.HTTPError):
        # Any other 4xx means a faulty request (RFC 9110, 15.5), which would fail again in the same way.
        if error.code != 429 and error.code < 500:
            return None
        seconds = _retry_after(error.headers.get("Retry-After", ""), float(tries))
        return seconds if seconds <= _LONGEST_PAUSE else None
    # A random delay, so that clients that lost their connections together do not return together.
    return random.uniform(0.25, 0.5) * 2 ** min(tries, 5) if breaks and _connection_broke(error) else None


def _retry_after(header: str, default: float) -> float:
    """Return the seconds of a `Retry-After` header: a number, or the time until a date."""
    # `Retry-After` is a number or a date (RFC 9110, 10.2.3).
    if re.fullmatch(r"\d{1,9}", header):
        return float(header)
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - time.time())
    except (ValueError, OverflowError):
        return default


def _connection_broke(error: BaseException | None) -> bool:
    """Return whether the connection failed, and not the request or the server's name or certificate."""
    inner = getattr(error, "reason", error)
    # An unknown name and an invalid certificate would fail again at the next try.
    if isinstance(inner, socket.gaierror | ssl.SSLCertVerificationError):
        return False
    return isinstance(inner, OSError | http.client.IncompleteRead | http.client.BadStatusLine | TruncatedAnswer)


def error_codes(error: urllib.error.HTTPError) -> str:
    """Return the error codes of a registry (OCI distribution specification, "Error Codes"): `DENIED, UNSUPPORTED`.

    Only the codes: the registry's messages may repeat secrets from the request.
    """
    try:
        codes = [row.code for row in parse(_Errors, error.read(_MOST_ERROR)).errors]
    except Malformed:
        return ""
    return ", ".join(code for code in codes if re.fullmatch(r"[A-Z_]{1,40}", code))[:200]


@dataclass(frozen=True, slots=True)
class _Error:
    code: str


@dataclass(frozen=True, slots=True)
class _Errors:
    errors: tuple[_Error, ...]


class TruncatedAnswer(StrangeAnswer):
    """An answer that ended early."""

    def __init__(self) -> None:
        super().__init__("it broke off")


def failure_reason(error: BaseException) -> object:
    """Return why a request failed, in the operating system's words if there are any."""
    if isinstance(error, urllib.error.HTTPError):
        return f"{error.code} {error.reason}"
    if isinstance(error, http.client.IncompleteRead):
        return "it broke off"
    if isinstance(error, ValueError | http.client.HTTPException) and not isinstance(error, OSError):
        return "its answer, or its address, is invalid"
    inner = getattr(error, "reason", None) or error
    return getattr(inner, "strerror", None) or inner


def read_all(response: Any, most: int = MOST) -> bytes:
    """Return the whole body of an answer; raise StrangeAnswer if it is too long, or shorter than its stated
    length."""
    # Read one byte more than allowed, to detect an answer that is too long.
    data = bytes(response.read(most + 1))
    if len(data) > most:
        raise StrangeAnswer("the answer is too long")
    if response.length:  # the missing bytes of the stated length
        raise TruncatedAnswer
    return data
