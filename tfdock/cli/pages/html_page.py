"""The shared parts of all pages: templates, style, and the formats of values."""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tfdock.cli import console

if TYPE_CHECKING:
    from jinja2 import Environment

_PAGES = Path(__file__).parent
_CODE = re.compile(r"`([^`\n]+)`")


def bar_row(name: str, took: str, percent: float) -> dict[str, object]:
    """Return a row with a bar, which is at least half a percent long: a shorter bar would not be seen."""
    return {"name": name, "took": took, "share": round(max(percent, 0.5), 2)}


def render_page(template: str, values: Mapping[str, object]) -> str:
    """Fill a template of this folder with `values`. All text is escaped. The same values give the same text."""
    css = (_PAGES / "page.css").read_text("utf-8")
    # A browser accepts only the style with this hash, even if a bug puts another style into the page.
    css_hash = f"sha256-{base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()}"
    page = _environment().get_template(template)
    return page.render(values, css=css, css_hash=css_hash).rstrip() + "\n"


@functools.cache
def _environment() -> Environment:
    # A command that writes no page must not load jinja2.
    from jinja2 import FileSystemLoader, StrictUndefined, sandbox

    # Values may be untrusted, so a template can neither change them nor call dangerous methods.
    environment = sandbox.ImmutableSandboxedEnvironment(
        loader=FileSystemLoader(_PAGES),
        # A misspelt name in a template raises an error instead of rendering nothing.
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        # Every value passes through this function, so that none stays unescaped.
        finalize=_clean,
    )
    environment.filters["spans"] = _spans
    return environment


def _spans(text: str) -> list[tuple[bool, str]]:
    """Split the text into pieces: (whether the piece is between backticks, the text)."""
    return [(bool(index % 2), part) for index, part in enumerate(_CODE.split(text)) if part]


def _clean(value: object) -> object:
    """Remove control characters and direction marks, which can reorder or hide text; keep markup."""
    # Markup, a subclass of `str`, is escaped already.
    return console.clean(value.expandtabs()) if type(value) is str else value
