"""Test a runtime image as its users run it: not as root, with only /tmp writable, and without a network."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfdock import events
from tfdock.engine.protocol import RUN_LABEL, ContainerSpec, ImageInfo
from tfdock.errors import VerificationFailed
from tfdock.knowledge import loader
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.verify.trial import MarkedLines
from tfdock.verify.trial_container import HERE, TrialContainers, TrialEnvironment, describe_end, read_only_mount
from tfdock.verify.trial_plan import plan_trial
from tfdock.wheel.inspection import Inspection

_TRIED = ("import", "op")  #: Checks of a wheel that are repeated in its image.
# `exec`: Docker mounts a tmpfs `noexec` otherwise, and then no library can be loaded from it.
_TMP = {"/tmp": "rw,exec,mode=1777,size=512m"}


class RuntimeTrial(TrialContainers):
    """The test of an image with an inspected wheel."""

    def __init__(self, environment: TrialEnvironment, knowledge: KnowledgeBase, inspection: Inspection) -> None:
        super().__init__(environment, inspection.wheel.python_tag, inspection.wheel.abi_tag)
        self._knowledge, self._inspection = knowledge, inspection

    def check(self, image: ImageInfo, name: str) -> None:
        """Raise VerificationFailed (`runtime-image-broken`) if the image does not work. `name` is its future name."""
        plan = plan_trial(self._knowledge, self._inspection, xla=None, without_gpu="the image is tested without GPUs")
        checks = [{"check": own, "script": None} for own in ("user", "dependencies")]
        checks += [{"check": task.check, "script": task.script} for task in plan.tasks if task.check in _TRIED]
        mark = f"tfdock-{secrets.token_hex(8)}"
        folder = self._scripts({"mark": mark, "facts": dict(plan.facts), "checks": checks})
        # No `user`: the trial runs as the image's own user.
        spec = ContainerSpec(
            name=f"tfdock-{self._environment.supervisor.run_id}-try",
            image=image.id,
            command=("python", f"{HERE}/try/try.py", f"{HERE}/try/request.json"),
            mounts=(read_only_mount(folder, "try"),),
            labels={RUN_LABEL: self._environment.supervisor.run_id},
            network="none",
            memory=min(self._environment.memory, self._environment.info.memory),
            pids=16384,
            tmpfs=_TMP,
            read_only=True,
        )
        marked = MarkedLines(
            mark, lambda count: self._environment.supervisor.listen(events.Progress(done=count, total=len(checks)))
        )
        state = self._run_container(spec, f"trial of {name}", marked)
        documents = {
            str(document.get("check")): document for document in marked.documents if isinstance(document, dict)
        }
        failures = [_describe_failure(str(check["check"]), documents.get(str(check["check"]))) for check in checks]
        failed = [line for line in failures if line]
        if failed:
            if not documents:
                failed = [describe_end(state, self._environment.supervisor.output.tail)]
            raise _broken(failed, self._environment.supervisor.log.name)

    def _scripts(self, request: Mapping[str, object]) -> Path:
        """Return the folder with the scripts and their request, for any user to read."""
        folder = self._folder("try")
        texts = {name: text for name, text in loader.templates().items() if name.startswith("verify/")}
        texts |= {"try.py": loader.templates()["runtime/try.py"], "request.json": json.dumps(request)}
        for name, text in texts.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
            # Set this whatever the umask is: the image's user is another user than this one.
            path.chmod(0o644)
        for path in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
            path.chmod(0o755)
        return folder


def _describe_failure(name: str, document: Mapping[str, Any] | None) -> str:
    """Return a failed check in one line; empty if it passed."""
    if document is None:
        return f"`{name}`: no result"
    if document.get("outcome") == "passed":
        return ""
    words = (document.get("found"), document.get("reason"))
    return f"`{name}`: {'; '.join(str(word) for word in words if word)}"


def _broken(failed: Sequence[str], log: str) -> VerificationFailed:
    return VerificationFailed.of(
        "runtime-image-broken",
        "the image was built, but does not work:\n  " + "\n  ".join(failed),
        f"read the log, {log}; test only the wheel (`tfdock verify`); use another base image: `runtime: …`",
        why="the image got no name",
    )
