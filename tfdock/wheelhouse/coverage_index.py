"""Find out which GPUs run which wheel of a wheelhouse. Each wheel is inspected once.

.tfdock/coverage/<sha256>.json      the answer, until the knowledge or the program changes
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tfdock import __version__
from tfdock.errors import WheelRefused
from tfdock.gpu.compatibility import XLA_TRACE, evidence_of
from tfdock.gpu.coverage import coverage
from tfdock.host.untrusted_folders import UntrustedPath
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.wheel.wheel_file import inspected
from tfdock.wheelhouse.store import Wheelhouse

SCHEMA = "tfdock.coverage/1"
_ANSWER = re.compile(r"[0-9a-f]{64}\.json")
_MOST_ANSWER = 4 << 20
"""Bytes of an answer; one about all known GPUs has some hundred thousand."""


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
    folder = house.private / "coverage"
    folder.make()
    key = f"{SCHEMA} {__version__} {judged_by}"
    for old in folder.entries():
        # The wheel has gone, or has other bytes.
        if _ANSWER.fullmatch(old.name) and old.name.removesuffix(".json") not in hashes.values():
            old.remove()
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
                cached.write(json.dumps(answer).encode())
        if answer["wheel"]["tensorflow"]:
            rows.append({"file": file, "sha256": sha256, **answer["wheel"]})
    return rows


def _cached_answer(path: UntrustedPath, key: str) -> dict[str, Any] | None:
    # An answer that cannot be read costs another inspection, and nothing else.
    answer = path.load(_MOST_ANSWER) or {}
    return answer if answer.get("key") == key and isinstance(answer.get("wheel"), dict) else None


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
