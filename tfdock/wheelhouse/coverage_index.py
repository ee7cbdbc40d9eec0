"""Find out which GPUs run which wheel of a wheelhouse. Each wheel is inspected once.

.tfdock/coverage/<sha256>.json      the answer, until the knowledge or the program changes
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tfdock import __version__
from tfdock.errors import WheelRefused
from tfdock.gpu.compatibility import XLA_TRACE, evidence_of
from tfdock.gpu.coverage import coverage
from tfdock.host.files import write_atomically
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.wheel.wheel_file import inspected
from tfdock.wheelhouse.store import Wheelhouse

SCHEMA = "tfdock.coverage/1"


def load_coverage(
    house: Wheelhouse,
    hashes: Mapping[str, str],
    knowledge: KnowledgeBase,
    judged_by: str,
    progress: Callable[[str], object] = lambda _: None,
) -> list[dict[str, Any]]:
    """Return the facts of each wheel, given by file and sha256. Wheels without TensorFlow are left out.

    Keys: file, sha256, size, tensorflow (version), name, version, python_tag, abi_tag, platform_tag, accelerator (or
    None), and coverage, rows of `gpu/coverage`. `judged_by` names the knowledge: other knowledge gives a new answer.
    `progress` is called with the name of a wheel before it is read.
    """
    folder = house.root / ".tfdock" / "coverage"
    folder.mkdir(parents=True, exist_ok=True)
    key = f"{SCHEMA} {__version__} {judged_by}"
    for old in folder.glob("*.json"):
        # The wheel has gone, or has other bytes.
        if old.stem not in hashes.values():
            old.unlink(missing_ok=True)
    rows = []
    for file, sha256 in sorted(hashes.items()):
        cached = folder / f"{sha256}.json"
        answer = _cached_answer(cached, key)
        if answer is None:
            progress(file)
            try:
                answer = {"key": key, "wheel": _inspect_coverage(house.root / file, knowledge)}
            except (WheelRefused, OSError):
                continue  # it went, or changed, since it was indexed
            with house.changing():  # who tidies up then knows that nobody is at it
                write_atomically(cached, json.dumps(answer).encode())
        if answer["wheel"]["tensorflow"]:
            rows.append({"file": file, "sha256": sha256, **answer["wheel"]})
    return rows


def _cached_answer(path: Path, key: str) -> dict[str, Any] | None:
    # An answer that cannot be read costs another inspection, and nothing else.
    with suppress(OSError, ValueError):
        answer = json.loads(path.read_bytes())
        if isinstance(answer, dict) and answer.get("key") == key and isinstance(answer.get("wheel"), dict):
            return answer
    return None


def _inspect_coverage(path: Path, knowledge: KnowledgeBase) -> dict[str, Any]:
    inspection = inspected(path, traces=[XLA_TRACE.encode()])
    evidence, wheel = evidence_of(knowledge, inspection), inspection.wheel
    return {
        "tensorflow": evidence.version.partition("+")[0],
        "name": wheel.name,
        "version": wheel.version,
        "python_tag": wheel.python_tag,
        "abi_tag": wheel.abi_tag,
        "platform_tag": wheel.platform_tag,
        "size": wheel.size,
        "machine": evidence.machine,
        "accelerator": evidence.accelerator.accelerator if evidence.accelerator else None,
        "coverage": [asdict(row) for row in coverage(knowledge, evidence)],
    }
