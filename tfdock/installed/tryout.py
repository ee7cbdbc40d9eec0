"""Run TensorFlow in an environment: import it, list its GPUs, multiply and convolve, in a process of its own."""

from __future__ import annotations

import io
from collections.abc import Iterator

from tfdock.diagnose.diagnose_logs import diagnose_log
from tfdock.errors import ExitCode
from tfdock.host.foreign_json import Line, Malformed, parse
from tfdock.host.hardware import Answer, ask, last_line
from tfdock.installed.interpreter import AskedPython, ending
from tfdock.knowledge import loader
from tfdock.knowledge.tables import KnowledgeBase
from tfdock.plan.preflight import FAILED, OK, SKIPPED, PreflightCheck

#: A cold import takes up to a minute on a slow disk, the first kernel of a GPU without machine code half an hour.
_SECONDS = 300.0
_MARK = "tfdock:"
_STEPS = ("import", "devices", "matmul", "convolution")


def try_tensorflow(python: AskedPython, knowledge: KnowledgeBase, *, expects_gpu: bool) -> Iterator[PreflightCheck]:
    """Yield a check for each step, and for the first one without a result why the process ended before it.

    `expects_gpu`: it is built for GPUs, and there is one.
    """
    # Since 2.12 the names of libraries that cannot be opened are told at this level alone.
    variables = {"TF_CPP_VMODULE": "dso_loader=1"}
    program = loader.templates()["installed/tryout.py"]
    answer = ask(str(python.program), "-c", program, folder="/", seconds=_SECONDS, variables=variables)
    if answer.status is None:
        yield PreflightCheck(name=_STEPS[0], status=SKIPPED, found=answer.text)
        return
    said = dict(_results(answer.text))
    for step in _STEPS:
        if step not in said:
            yield _failed(step, f"it ends with {ending(answer.status)}", answer, knowledge)
            return
        if said[step].startswith("wrong"):
            yield _failed(step, f"the result is {said[step]}")
        elif step == "devices" and expects_gpu and said[step].startswith("0"):
            yield _failed(step, "it lists no GPU", answer, knowledge)
        else:
            yield PreflightCheck(name=step, status=OK, found=said[step])


def _results(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        try:
            step, found = parse(tuple[Line, Line], line.removeprefix(_MARK)) if line.startswith(_MARK) else ("", "")
        except Malformed:
            continue
        yield step, found


def _failed(
    step: str, what: str, answer: Answer | None = None, knowledge: KnowledgeBase | None = None
) -> PreflightCheck:
    """Return a failed check, with what `diagnose` makes of all that was printed, else with the last line of it."""
    why, fixes = "", tuple[str, ...]()
    if answer and knowledge:
        log = io.BytesIO(answer.text.encode())
        findings = diagnose_log(log, knowledge, name="output").findings
        why, fixes = last_line(answer.text)[:300], ()
        if findings:
            why, fixes = findings[0].cause, (findings[0].fix,)
    return PreflightCheck(
        name=step,
        status=FAILED,
        code="tensorflow-trial",
        found=f"{what}: {why}" if why else what,
        fixes=fixes,
        exit_code=ExitCode.VERIFICATION,
    )
