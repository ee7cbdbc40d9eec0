"""A real browser for the tests of pages: what it shows, and what people can read of it."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import select
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
PATIENCE = 60.0  #: Seconds that an answer of the browser may take.
LOOK = Path(__file__).with_name("look.js").read_text("utf-8")


class Browser:
    """A Chromium without a window, spoken to over two pipes in the DevTools protocol."""

    def __init__(self, program: str, profile: Path) -> None:
        commands, self._to = os.pipe()
        self._from, answers = os.pipe()
        # Above 9, so that none of them is a number that the browser wants them at.
        ends = [fcntl.fcntl(one, fcntl.F_DUPFD, 10) for one in (commands, answers)]
        options = [
            "--headless",
            "--no-sandbox",
            "--disable-dev-shm-usage",
            "--disable-gpu",
            "--remote-debugging-pipe",
        ]
        self._process = subprocess.Popen(
            [
                "bash",
                "-c",
                f'exec "$0" "$@" 3<&{ends[0]} 4>&{ends[1]}',
                program,
                *options,
                f"--user-data-dir={profile}",
            ],
            pass_fds=ends,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for one in (commands, answers, *ends):
            os.close(one)
        self._numbers = itertools.count(1)
        self._unread = b""
        self._session: dict[str, str] = {}
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = {"sessionId": self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def _message(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._from], [], [], max(0.0, end - time.monotonic()))
            part = os.read(self._from, 1 << 20) if ready else b""
            assert part, "the browser says no more"
            self._unread += part
        message, _, self._unread = self._unread.partition(b"\0")
        return dict(json.loads(message))

    def call(self, method: str, **params: object) -> dict[str, Any]:
        """Ask and wait for the answer; what happens meanwhile is in `events`."""
        number = next(self._numbers)
        request = {"id": number, "method": method, "params": params, **self._session}
        os.write(self._to, json.dumps(request).encode() + b"\0")
        while (message := self._message()).get("id") != number:
            self.events.append(message)
        assert "error" not in message, message
        return dict(message["result"])

    def open(self, page: Path | str, width: int, scheme: str, media: str = "") -> None:
        """Show a page, by its file or its URL, in a window of that width, and wait until it is loaded."""
        phone = width < 500
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=phone)
        # They would go when the picture is taken, and all that is centred would move.
        self.call("Emulation.setScrollbarsHidden", hidden=True)
        wanted = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=media, features=wanted)
        self.events.clear()
        self.call("Page.navigate", url=page if isinstance(page, str) else page.as_uri())
        while not self.seen("Page.loadEventFired"):
            self.events.append(self._message())
        self.run(LOOK)

    def seen(self, *methods: str) -> list[dict[str, Any]]:
        """The events of that kind since the page was opened."""
        return [event["params"] for event in self.events if event.get("method") in methods]

    def run(self, script: str) -> Any:
        """The value of a script's promise in the page."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def picture(self) -> str:
        """The whole page as a PNG, in base64."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        return str(self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"])

    def close(self) -> None:
        """End it."""
        with contextlib.suppress(AssertionError, OSError):
            self.call("Browser.close")
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, 9)
            self._process.wait(10)
        os.close(self._to)
        os.close(self._from)


#: What a stranger may put into a name.
HOSTILE = """<script>hacked=1</script>"'><img src=x onerror=hacked=1> </svg></style><a href=//x>\u202e&amp; {{ 1 }}"""


def overlap(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    """Whether two boxes share more than a hair. A line of text is higher than its letters."""
    across = min(one["x"] + one["width"], other["x"] + other["width"]) - max(one["x"], other["x"])
    down = min(one["y"] + one["height"], other["y"] + other["height"]) - max(one["y"], other["y"])
    return across > 1 and down > 4


def faint(browser: Browser) -> dict[tuple[str, str], float]:
    """The texts of the page that do not stand out from what is behind them: text and colour there -> contrast."""
    return {
        (one["text"], ground): contrast(one["colour"], ground)
        for one in browser.run("texts()")
        for ground in one["grounds"]
        if contrast(one["colour"], ground) < 4.5
    }


def assert_fits(browser: Browser, page: Path, width: int) -> dict[str, Any]:
    """Nothing of a page is wider than a window of that width; what is seen there."""
    browser.open(page, width, "light")
    seen: dict[str, Any] = browser.run("look()")
    assert seen["window"] == seen["page"] == width
    assert seen["wide"] == []
    return seen


def assert_quiet(browser: Browser, page: Path, forbidden: str) -> None:
    """A page runs nothing, loads nothing and complains of nothing, and has no element that is forbidden."""
    browser.open(page, 1400, "light")
    assert browser.run(f"[typeof hacked, document.querySelectorAll('{forbidden}').length]") == ["undefined", 0]
    loaded = {one["request"]["url"] for one in browser.seen("Network.requestWillBeSent")}
    assert loaded - {"data:,"} == {page.as_uri()}
    assert browser.seen("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown") == []


def contrast(one: str, other: str) -> float:
    """The ratio of the Web Content Accessibility Guidelines, for two colours as a browser writes them."""
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    assert colour.startswith("rgb("), colour
    parts = [int(one) / 255 for one in colour[4:-1].split(",")]
    red, green, blue = (one / 12.92 if one <= 0.03928 else ((one + 0.055) / 1.055) ** 2.4 for one in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
