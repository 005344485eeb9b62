"""The page holds every table and figure and asks nothing of the network."""

import base64
import hashlib
import json
import re
import subprocess
import sys
import time
from dataclasses import replace
from html.parser import HTMLParser

import pytest

import calibrl as cal
from calibrl.report.page import write_report
from calibrl.runs.rows import Row, append
from tests.report.conftest import HOSTILE, PIXEL, bandit_rows, core_rows, learning_rows


class Outline(HTMLParser):
    """Checks that tags nest, and collects ids, captions and text."""

    VOID = frozenset({"meta", "link", "img", "br", "input"})

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.tags, self.text = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] not in {"script", "style"}:
            self.text.append(data)


@pytest.fixture(scope="module")
def page(results, tmp_path_factory):
    return write_report(results, tmp_path_factory.mktemp("page") / "report.html").read_text()


@pytest.fixture(scope="module")
def outline(page):
    parsed = Outline()
    parsed.feed(page)
    assert not parsed.open
    return parsed


def test_tables_stand_in_the_page_itself(outline):
    text = " ".join(" ".join(outline.text).split())
    assert "Calibrating forecasts of real data" in text
    assert "Mean ± standard error over 6 seeds" in text
    assert "558.1 ± 3.5" in text  # the paper's LinUCB on Covertype
    assert "677.8 ± 5.0" in text
    assert "Malik et al. (2019), Table 1" in text
    assert "+100.0 [100.0, 100.0]" in text  # ours, paired
    assert outline.tags.count("table") == outline.tags.count("caption")


def test_fewer_rounds_than_in_the_paper_are_told(page, tmp_path):
    assert "they do not compare" not in page
    append(tmp_path / "rows.jsonl", [replace(row, step=200) for row in bandit_rows()])
    short = write_report(tmp_path, tmp_path / "report.html").read_text()
    assert "after 1200 rounds, ours after 200 (covertype): they do not compare" in short
    assert 'class="paper">558.1' not in short.split('<details class="aside">')[0], "apart from our numbers"


def test_the_papers_numbers_about_other_data_stand_apart(tmp_path):
    rows = [
        Row("inventory", "my shop", arm, s, {"reward": -5.0 * s})
        for arm in ("uncalibrated", "calibrated")
        for s in (1, 2)
    ]
    append(tmp_path / "rows.jsonl", rows)
    text = write_report(tmp_path, tmp_path / "report.html").read_text()
    ours, _, theirs = text.partition('<details class="aside">')
    assert "16,793" not in ours
    assert "16,793" in theirs
    assert "on other data than ours: they do not compare" in theirs


def test_each_section_begins_with_its_verdict(page, tmp_path):
    told = "Cross-fitted against uncalibrated, by “calibration loss”: better on 2 of 2 problems, worse on 0."
    assert f'<p class="verdict">{told}</p>' in page
    assert "On covertype, the reward of callinucb is 100.0 higher than that of linucb, which is better." in page
    append(tmp_path / "rows.jsonl", bandit_rows(trials=2))
    few = write_report(tmp_path, tmp_path / "report.html").read_text()
    assert "100.0 higher than that of linucb; with fewer than 5 seeds that cannot be told from chance." in few


def test_what_only_figures_show_is_not_counted(tmp_path):
    """The two-state problem of the MDPs has an arm for each belief, and no table."""
    shown = [Row("mdp", "maze", arm, seed, {"delivered": 0.1}) for arm in ("raw", "platt") for seed in range(3)]
    other = [Row("mdp", "two states", f"{k} %", 0, {"promised_value": 1.0}) for k in range(9)]
    append(tmp_path / "rows.jsonl", [*shown, *other])
    text = write_report(tmp_path, tmp_path / "report.html").read_text()
    assert "1 problem · 2 arms (what is compared) · 3 seeds · 15 rows" in text


def test_what_is_drawn_alive_is_not_repeated_as_a_picture(results, tmp_path):
    for name in ("reliability", "intervals"):
        append(tmp_path / "core" / "rows.jsonl", core_rows() if name == "reliability" else [])
        (tmp_path / "core" / f"{name}.png").write_bytes(PIXEL)
    assert write_report(tmp_path, tmp_path / "report.html").read_text().count("data:image/png") == 1
    alone = [row for row in core_rows() if row.arm == "calibrated"]
    (tmp_path / "core" / "rows.jsonl").unlink()
    append(tmp_path / "core" / "rows.jsonl", alone)
    assert write_report(tmp_path, tmp_path / "report.html").read_text().count("data:image/png") == 2


def test_arms_that_stopped_at_different_steps_are_told(page, tmp_path):
    assert "Not after equal experience" not in page
    rows = learning_rows(arms=2, seeds=2, steps=5)
    append(tmp_path / "rows.jsonl", [row for row in rows if row.arm == "arm 0" or row.step < 3])
    told = "Not after equal experience. Last steps: task: arm 0 4, arm 1 2."
    short = write_report(tmp_path, tmp_path / "report.html").read_text()
    assert short.count(told) == 2, "below the table, and above the chart"


def test_anchors_are_distinct_and_links_lead_to_them(page, outline):
    assert len(set(outline.ids)) == len(outline.ids)
    for target in re.findall(r'href="#([^"]+)"', page):
        assert target in outline.ids


def test_the_page_is_self_contained(page):
    assert base64.b64encode(PIXEL).decode() in page
    assert not re.search(r'\b(src|href)="(?!data:|#)', page)
    assert "http" not in re.sub(r"http-equiv|http://www\.w3\.org/2000/svg", "", page)
    assert "default-src 'none'" in page


def test_only_the_scripts_and_styles_of_the_page_itself_are_allowed(page):
    policy = re.search(r'Content-Security-Policy"\s+content="([^"]+)"', page)[1]
    assert "unsafe" not in policy
    for tag in ("style", "script"):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy.split("; ")
    assert not re.search(r"<[^>]* (style|on\w+)=", re.sub(r"<(script|style)>.*?</\1>", "", page, flags=re.DOTALL))


def test_whatever_rows_say_is_text(page, outline):
    assert "<script>alert" not in page
    assert "my <b>experiment" not in page
    text = "".join(outline.text)
    assert HOSTILE in text
    assert "my <b>experiment</b>" in text


def test_the_command_and_the_settings_are_told(outline):
    text = "".join(outline.text)
    assert f"calibrl run core --out {HOSTILE}" in text
    assert "200–204" in text


def test_presets_are_sections_of_their_own(tmp_path):
    rows = bandit_rows()
    small = [Row("bandits", row.problem, row.arm, row.seed, row.metrics, preset="small") for row in rows]
    append(tmp_path / "rows.jsonl", [*rows, *small])
    page = write_report(tmp_path, tmp_path / "report.html").read_text()
    assert 'id="bandits-paper"' in page
    assert 'id="bandits-small"' in page


def test_runs_with_other_settings_are_not_pooled(tmp_path):
    def rows(value, **changes):
        overrides = {f"planner.{name}": what for name, what in changes.items()}
        return [
            Row("control", "cartpole", "calibrated", seed, {"return": value}, preset="tiny", overrides=overrides)
            for seed in (1, 2)
        ]

    append(tmp_path / "plain" / "rows.jsonl", rows(180.0))
    append(tmp_path / "random" / "rows.jsonl", rows(90.0, method="random"))
    (tmp_path / "random" / "control-learning.png").write_bytes(PIXEL)
    page = write_report(tmp_path, tmp_path / "report.html").read_text()
    plain, random = page.split('<section id="')[1:]
    assert plain.startswith("control-tiny")
    assert "180.0" in plain
    assert "90.0" not in plain
    assert "(tiny, planner.method=random)" in random
    assert "90.0" in random
    assert ("<figure" in plain, "<figure" in random) == (False, True), "each shows the figures of its own folder"


def test_anchors_stay_distinct_whatever_experiments_are_called(tmp_path):
    rows = [Row(name, "p", "a", 0, {"m": 1.0}) for name in ("main", "a b", "a-b", "A.B", "!", "core.1")]
    append(tmp_path / "rows.jsonl", rows)
    parsed = Outline()
    parsed.feed(write_report(tmp_path, tmp_path / "report.html").read_text())
    assert len(set(parsed.ids)) == len(parsed.ids)


def test_small_studies_keep_their_seeds_when_a_large_one_cannot(tmp_path, monkeypatch):
    append(tmp_path / "rows.jsonl", [*learning_rows(arms=3, seeds=5, steps=20), *bandit_rows()])
    monkeypatch.setattr("calibrl.report.page.NUMBERS", 100)
    page = write_report(tmp_path, tmp_path / "report.html").read_text()
    data = {key: json.loads(text) for key, text in re.findall(r'json" id="([^"]+)-data">(.*?)</script>', page)}
    assert {key: found["each"] for key, found in data.items()} == {"bandits.1": True, "my-b-experiment-b.1": False}


def test_a_hundred_thousand_rows_make_a_small_page_in_seconds(many, tmp_path):
    start = time.process_time()
    page = write_report(many, tmp_path / "report.html")
    assert time.process_time() - start < 12
    assert page.stat().st_size < 5e6


def test_nothing_to_report_is_an_error(tmp_path):
    with pytest.raises(cal.CalibrlError, match="holds no rows"):
        write_report(tmp_path, tmp_path / "report.html")
    with pytest.raises(cal.CalibrlError, match="nowhere does not exist"):
        write_report(tmp_path / "nowhere", tmp_path / "report.html")


def test_the_command_opens_the_page_when_asked(results, tmp_path, monkeypatch):
    from calibrl.cli import report

    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    report(results, out=tmp_path / "quiet.html")
    assert opened == []
    report(results, out=tmp_path / "shown.html", show=True)
    assert opened == [(tmp_path / "shown.html").as_uri()]


def test_the_command_ends_with_exit_code_two(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "calibrl", "report", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("calibrl: ")
    assert "Traceback" not in done.stderr
