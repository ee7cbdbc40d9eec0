"""Make the page of a verification from its JSON document: one HTML file that loads and runs nothing.

The texts of the document may come from a stranger's wheel. They reach the page as escaped text only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tfdock.cli import console
from tfdock.cli.pages.coverage_picture import pictures
from tfdock.cli.pages.coverage_row import CoverageRow, limits_of
from tfdock.cli.pages.html_page import generator, render_page


def verify_page(document: Mapping[str, Any]) -> str:
    """Return the page for a document of `tfdock.verify/1`, the same text every time.

    Keys may be missing or None; a section without values is left out.
    """
    return render_page("verify.html.j2", _values(document))


def _values(document: Mapping[str, Any]) -> dict[str, object]:
    checks = [_check(number, row) for number, row in enumerate(document.get("checks") or (), start=1)]
    rows = [CoverageRow.from_document(row) for row in document.get("coverage") or ()]
    code: Mapping[str, Any] | None = document.get("gpu_code")
    libraries = [_library(row) for row in document.get("libraries") or ()]
    failures = [check for check in checks if check["status"] == "failed"]
    return {
        "generator": GENERATOR,
        "title": " ".join(str(document[key]) for key in ("name", "version") if document.get(key)) or "A wheel",
        "verdict": _verdict(document.get("ok"), checks),
        "problems": [_text(problem.get("message")) for problem in document.get("problems") or ()],
        "failures": failures[:_AT_THE_TOP],
        "more_failures": len(failures[_AT_THE_TOP:]),
        "checks": checks,
        "told_by_wheel": ", ".join(_text(name) for name in document.get("told_by_wheel") or ()),
        "pictures": list(pictures(rows, code or {})),
        "no_picture": _no_picture(code, document.get("coverage")),
        "limits": limits_of(rows),
        "gpus": [(row.target, row.architecture, row.name, row.words, row.reason) for row in rows],
        "libraries": [library for library in libraries if library["kinds"]],
        "other_libraries": [library for library in libraries if not library["kinds"]],
        "wheel": document.get("wheel") or "",
        "facts": list(_facts(document)),
    }


# --- the verdict, the checks, the facts ---------------------------------------------------------------------------

GENERATOR = generator("verify")
"""Stands in every page: what has it may be replaced by the next one."""
_AT_THE_TOP = 8
"""Failed checks that are named before all else."""
_STATUS = {"passed": ("✓", "passed"), "failed": ("✗", "failed"), "skipped": ("–", "skipped")}


def _verdict(ok: object, checks: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    counted = Counter(check["status"] for check in checks)
    # Not ok, and no check failed: then nothing could be tried, which is no failure of the wheel.
    status = "passed" if ok is True else "failed" if ok is False and counted["failed"] else "skipped"
    mark, word = _STATUS[status] if status != "skipped" else ("–", "no verdict" if ok is None else "not tried")
    parts = ", ".join(f"{counted[name]} {name}" for name in (*_STATUS, "unknown") if counted[name])
    total = f"{len(checks)} check{'s' if len(checks) != 1 else ''}"
    counts = f"{total}: {parts}." if checks else "No check was made."
    return {"status": status, "mark": mark, "word": word, "counts": counts}


def _check(number: int, row: Mapping[str, Any]) -> dict[str, Any]:
    status = str(row.get("status"))
    mark, word = _STATUS.get(status, ("?", status))
    return {
        "number": number,
        # It names a class of the page's style: only known words get there.
        "status": status if status in _STATUS else "unknown",
        "mark": mark,
        "word": word,
        **{key: _text(row.get(key)) for key in ("name", "expected", "found", "reason")},
    }


def _text(value: object) -> str:
    """Return a value of the document for people."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case Mapping():
            return "\n".join(f"{key}: {_text(part)}" for key, part in value.items())
        # Before `Iterable`, which a text is as well.
        case str():
            return value
        case Iterable():
            return ", ".join(map(_text, value))
        case _:
            return str(value)


def _size(count: object) -> str:
    return console.size(count) if isinstance(count, int) else ""


def _facts(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what identifies the wheel, as far as it is known."""
    size = document.get("size")
    exact = f"{_size(size)} ({size:,} bytes)" if isinstance(size, int) else ""
    facts = {"File": document.get("wheel"), "SHA-256": document.get("sha256"), "Size": exact}
    facts |= {title: document.get(key) for title, key in _FACTS.items()}
    yield from ((title, _text(value)) for title, value in facts.items() if value)


_FACTS = {
    "Name": "name",
    "Version": "version",
    "Python": "python_tag",
    "ABI": "abi_tag",
    "Platform": "platform_tag",
    "Profile": "profile",
    "Build": "build_id",
}


def _library(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a library and its images, by place and kind."""
    return {
        "path": row.get("path") or "",
        "size": _size(row.get("size")),
        "note": "" if row.get("own", True) else "from elsewhere: not TensorFlow's own kernels",
        "kinds": [
            (f"{kind}{where}", images)
            for key, where in _PLACES.items()
            for kind, images in _images(row.get(key) or {})
        ],
    }


_PLACES = {
    "gpu_code": "",
    "embedded_code": ", which the program itself hands to the driver",
    "relocatable_code": ", relocatable: never run as it is",
}
_KINDS = {"sass": "SASS", "ptx": "PTX", "amdgpu": "AMD", "unknown": "of a kind that is not known"}


def _images(code: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the targets by kind of code, with counts and sizes where the document has them."""
    # A document may have only the targets of each kind, without counts and sizes.
    images = code.get("images") or [
        {"kind": kind, "target": target} for kind in _KINDS for target in code.get(kind) or ()
    ]
    kinds = [
        (title, [(image["target"], _details(image)) for image in images if image["kind"] == kind])
        for kind, title in _KINDS.items()
    ]
    return [(title, images_of_kind) for title, images_of_kind in kinds if images_of_kind]


def _details(image: Mapping[str, Any]) -> str:
    """Return how many images of one kind and target there are, their size, and the ISA of PTX."""
    count, isa = image.get("count"), image.get("isa")
    details = [f"{count:,} image{'s' if count != 1 else ''}" if count else "", _size(image.get("size"))]
    return ", ".join(filter(None, [*details, f"ISA {isa}" if isa else ""]))


_NOT_READ = "What GPU code the wheel has is not known."
_NO_GPU_CODE = "TensorFlow's own libraries hold no GPU code: the wheel runs on the CPU alone."
_NO_GPU = "No GPU that is known runs it."
_NOT_ASKED = "Which GPUs run it was not asked."


def _no_picture(code: Mapping[str, Any] | None, coverage: object) -> str:
    """Return why there is no picture."""
    if code is None:
        return _NOT_READ
    if not _images(code):
        return _NO_GPU_CODE
    return _NOT_ASKED if coverage is None else _NO_GPU
