"""A short version of `make fuzz`: whatever a file holds, it is right, or somebody is told."""

import json
from pathlib import Path

import pytest

from benchmarks.fuzz import KINDS, tried
from calibrl.runs.rows import read

ROOT = Path(__file__).parents[1]
SLOW = {
    *("kills of the example service", "kills of `apply`, `check` and `order`", "kills of runs, resumed"),
    *("commands in a stranger's folder", "folders that another process writes to"),
}
"""Kept to `make fuzz`, since they start processes; each has a test of its own."""
UNNOTICED = {"clocks that go back"}
"""What need not be."""


@pytest.mark.parametrize("name", [name for name in KINDS if name not in SLOW])
def test_nothing_is_used_in_silence_and_nothing_crashes(name):
    found = tried(name, share=0.05 if KINDS[name][0] > 200 else 0.02, seed=99)
    assert (found["used"], found["crashed"]) == (0, 0)
    assert found["noticed"] or name in UNNOTICED


def test_the_page_shows_what_was_tried():
    text = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    rows = read(ROOT / "results" / "reliability" / "fuzz.jsonl")
    assert [row.problem for row in rows] == list(KINDS)
    for row in rows:
        counts = {name: int(count) for name, count in row.metrics.items()}
        assert sum(counts.values()) == KINDS[row.problem][0]
        cells = (row.problem, sum(counts.values()), *(counts[name] for name in ("noticed", "right", "used", "crashed")))
        assert "| " + " | ".join(map(str, cells)) + " |" in text, json.dumps(cells)


def test_the_page_shows_what_the_service_answered():
    text = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    rows = read(ROOT / "results" / "reliability" / "service.jsonl")
    for problem in ("choosing", "choosing and rewarding"):
        found = [row.metrics for row in rows if row.problem == problem]
        cells = [sorted(each[name] for each in found) for name in ("per_second", "per_cpu_second")]
        spans = (f"{low:.0f} to {high:.0f}" for low, *_, high in cells)
        assert "| " + " | ".join((problem, *spans)) + " |" in text
    (kills,) = (row.metrics for row in rows if row.problem == "kills under load")
    said = "killed {kills} times under load: {cut} requests were cut short and sent again, {answered} "
    said += "rewards were acknowledged, {lost} were lost and {twice} counted twice"
    assert said.format(**kills) in " ".join(text.split())
