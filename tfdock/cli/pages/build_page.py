"""Make the page of a build from its record and profile: one HTML file that loads and runs nothing.

Names of actions come from untrusted source code. They reach the page as escaped text only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tfdock.bazel.trace_profile import TraceProfile
from tfdock.cli import console, summary_text
from tfdock.cli.pages.html_page import bar_row, render_page
from tfdock.cli.pages.timeline import Bar, colours, shares, timeline

_SOURCES = {"disk": "from the disk cache", "remote": "from the remote cache", "cache": "from a cache"}


def build_page(record: Mapping[str, Any], profile: TraceProfile) -> str:
    """Return the page of a `tfdock.record/1`; unknown values are left out. The same record gives the same text."""
    bazel: Mapping[str, Any] = record.get("bazel") or {}
    account: Mapping[str, Any] = bazel.get("why") or {}
    path: Mapping[str, Any] = bazel.get("critical_path") or {}
    seconds: Mapping[str, float] = record.get("seconds") or {}
    counts = _counts(bazel)
    values = {
        "title": record.get("build_id") or "A build",
        "took": console.duration(sum(seconds.values())),
        "finished": summary_text.when(record.get("finished") or ""),
        "counts": counts,
        "legends": [(bar.kind, bar.title) for bar in counts],
        "why": account.get("sentences") or [],
        "since": summary_text.compared_with(account) if account.get("since") else "",
        "not_compared": ", ".join(account.get("not_compared") or ()),
        "phases": _rows(summary_text.phases(record)),
        "timeline": timeline(profile),
        "critical": _rows((action["name"], action["seconds"]) for action in path.get("actions") or ()),
        "critical_seconds": console.duration(path["seconds"]) if path else "",
        "slowest": [
            (console.duration(action["seconds"]), *(action.get(key) or "" for key in ("name", "mnemonic", "how")))
            for action in bazel.get("slowest") or ()
        ],
        "facts": [
            row
            for title, rows in summary_text.tables(record)
            if title in ("build", "actions", "resources")
            for row in rows
        ],
    }
    return render_page("build.html.j2", values)


def _counts(bazel: Mapping[str, Any]) -> list[Bar]:
    """Return the parts of the bar of hits and executed actions."""
    executed = dict(summary_text.most_first(bazel.get("executed_by_mnemonic")))
    # Without a profile the kinds are unknown: one part stands for all executed actions.
    if not executed and bazel.get("executed"):
        executed = {"": bazel["executed"]}
    kinds = colours(executed)
    parts = [
        ("cached", _SOURCES.get(source, source), count) for source, count in (bazel.get("sources") or {}).items()
    ]
    parts += [(kinds[name], f"executed: {name}" if name else "executed", count) for name, count in executed.items()]
    return shares([(kind, f"{count:,} {text}", count) for kind, text, count in parts if count > 0])


def _rows(rows: Iterable[tuple[str, float]]) -> list[dict[str, object]]:
    """Return names with their seconds, and their share of the longest in percent."""
    named = list(rows)
    # Phases may have taken no time at all.
    longest = max((seconds for _, seconds in named), default=0) or 1
    return [bar_row(name, console.duration(seconds), 100 * seconds / longest) for name, seconds in named]
