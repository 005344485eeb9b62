"""Where rows came from: the settings they were made with and the exact commands."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from typing import Any

from calibrl.runs.rows import Row

MOST = 12
"""The most values of a setting that are listed one by one."""


def facts(rows: Sequence[Row]) -> str:
    """The section "How this was made": each command with its versions and machine, and every setting."""
    return f"{_commands(rows)}{_settings(rows)}"


def _commands(rows: Sequence[Row]) -> str:
    origins: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row.origin:
            origins.setdefault(str(row.origin.get("command", "")), row.origin)
    lines = []
    for command, where in origins.items():
        packages = ", ".join(f"{name} {version}" for name, version in where.get("packages", {}).items())
        named = {"calibrl": "version", "commit": "commit", "Python": "python"}
        known = [f"{words} {where[key]}" for words, key in named.items() if where.get(key)]
        known += [packages, str(where.get("machine", "")), str(where.get("date", ""))]
        words = html.escape(" · ".join(filter(None, known)))
        lines.append(f"<li><pre><code>{html.escape(command)}</code></pre>{words}</li>")
    return f'<ul class="commands">{"".join(lines)}</ul>' if lines else "<p>These rows do not record their origin.</p>"


def _settings(rows: Sequence[Row]) -> str:
    seen: dict[str, dict[str, None]] = {}
    for row in rows:
        for name, value in (*row.settings.items(), *row.overrides.items()):
            seen.setdefault(name, {})[_words(value)] = None
    listed = {
        "preset": _listed(dict.fromkeys(row.preset for row in rows if row.preset)),
        "seeds": _ranges({row.seed for row in rows}),
        **{name: _listed(values) for name, values in seen.items()},
        "time spent": _time(sum(row.seconds for row in rows)),
    }
    items = "".join(
        f"<tr><th scope='row'>{html.escape(name.replace('_', ' '))}</th><td>{html.escape(value)}</td></tr>"
        for name, value in listed.items()
        if value
    )
    return f"<table class='settings'><caption>Settings</caption><tbody>{items}</tbody></table>"


def _time(seconds: float) -> str:
    """Seconds, minutes or hours of computing, over all rows; empty if rows do not say."""
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 1 else ""
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _words(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _listed(values: Iterable[str]) -> str:
    found = list(values)
    more = f" and {len(found) - MOST} more" if len(found) > MOST else ""
    return ", ".join(found[:MOST]) + more


def _ranges(numbers: Iterable[int]) -> str:
    """0, 1, 2, 5 as "0–2, 5"."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return _listed(f"{low}" if low == high else f"{low}–{high}" for low, high in spans)
