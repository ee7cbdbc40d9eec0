"""Run TensorFlow in an environment: import it, list its GPUs, multiply and convolve, in a separate process."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import suppress

from tfdock.diagnose.diagnose_logs import diagnose_log
from tfdock.host.foreign_json import Line, Malformed, parse
from tfdock.host.hardware import Answer, ask, last_line
from tfdock.installed.interpreter import AskedPython, ending
from tfdock.installed.verdicts import failed_check, ok_check, skipped_check
from tfdock.knowledge import loader
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.plan.preflight import PreflightCheck

#: A cold import takes up to a minute on a slow disk; the first kernel of a GPU without machine code, half an hour.
_SECONDS = 300.0
_MARK = "tfdock:"
_STEPS = ("import", "devices", "matmul", "convolution")


def try_tensorflow(python: AskedPython, knowledge: KnowledgeBase, *, expects_gpu: bool) -> Iterator[PreflightCheck]:
    """Yield a check for each step. The first step without a result fails, with the reason why the process ended.

    `expects_gpu`: TensorFlow is built for GPUs, and there is a GPU.
    """
    # Since 2.12, only this level logs the names of libraries that cannot be opened.
    variables = {"TF_CPP_VMODULE": "dso_loader=1"}
    program = loader.templates()["installed/tryout.py"]
    answer = ask(str(python.program), "-c", program, folder="/", seconds=_SECONDS, variables=variables)
    if answer.status is None:
        yield skipped_check(_STEPS[0], answer.text)
        return
    said = dict(_results(answer.text))
    for step in _STEPS:
        if step not in said:
            why = _explained(f"the process ends with {ending(answer.status)}", answer, knowledge)
            yield failed_check(step, "tensorflow-trial", *why)
            return
        if said[step].startswith("wrong"):
            yield failed_check(step, "tensorflow-trial", f"the result is {said[step]}", "")
        elif step == "devices" and expects_gpu and said[step].startswith("0"):
            yield failed_check(step, "tensorflow-trial", *_explained("TensorFlow lists no GPU", answer, knowledge))
        else:
            yield ok_check(step, said[step])


def _results(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        if line.startswith(_MARK):
            with suppress(Malformed):
                yield parse(tuple[Line, Line], line.removeprefix(_MARK))


def _explained(what: str, answer: Answer, knowledge: KnowledgeBase) -> tuple[str, str]:
    """Return the text of a failure, and the fix: from the diagnosis of the output, or else with its last line."""
    findings = diagnose_log(io.BytesIO(answer.text.encode()), knowledge, name="output").findings
    why, fix = (findings[0].cause, findings[0].fix) if findings else (last_line(answer.text)[:300], "")
    return f"{what}: {why}" if why else what, fix
