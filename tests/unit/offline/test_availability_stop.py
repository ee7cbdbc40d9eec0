"""A question to servers ends at Ctrl-C, whichever thread the system gives the signal to."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tfdock.cli.app import stoppable
from tfdock.errors import Interrupted
from tfdock.host.settings import Settings
from tfdock.offline import availability


def test_a_signal_that_another_thread_gets_ends_the_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Event()
    never = threading.Event()

    def silent() -> Any:
        asked.set()
        never.wait()

    def interrupt() -> None:
        asked.wait()
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    def questions(*_: object) -> Iterator[Any]:
        yield silent

    looks = iter(range(40))

    def check() -> None:
        stop.check()
        assert next(looks, None) is not None, "nobody acts on the signal"

    monkeypatch.setattr(availability, "_questions", questions)
    threading.Thread(target=interrupt, daemon=True).start()
    with stoppable() as stop, pytest.raises(Interrupted):
        availability.ask([(None, None)], None, Settings(), check)  # type: ignore[list-item, arg-type]
    never.set()
