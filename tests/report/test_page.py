"""The page holds every table and figure and asks nothing of the network."""

import base64
import re
import subprocess
import sys

import pytest

import calibrl as cal
from calibrl.report.page import write_report
from calibrl.results import Row, append

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.fixture
def folder(tmp_path):
    arms = {"uncalibrated": 0.5, "calibrated": 0.1}
    rows = [
        Row(
            "core", "<diabetes>", arm, seed, {"calibration_loss": value + seed / 100}, origin={"command": "calibrl run"}
        )
        for arm, value in arms.items()
        for seed in range(3)
    ]
    append(tmp_path / "core" / "rows.jsonl", [*rows, Row("mine", "p", "a", 0, {"score": 1.0})])
    (tmp_path / "core" / "figure.png").write_bytes(PIXEL)
    return tmp_path


def test_the_page_is_self_contained(folder):
    page = write_report(folder, folder / "report.html").read_text()
    assert "&lt;diabetes&gt;" in page
    assert "0.5100 ± 0.0058" in page
    assert "-0.4000 ± 0.0000" in page
    assert "Calibrating forecasts of real data" in page
    assert page.count("<section") == 2
    assert base64.b64encode(PIXEL).decode() in page
    assert not re.search(r'(src|href)="(?!data:|#)', page)
    assert "{{" not in page


def test_nothing_to_report_is_an_error(tmp_path):
    with pytest.raises(cal.CalibrlError, match="holds no rows"):
        write_report(tmp_path, tmp_path / "report.html")
    with pytest.raises(cal.CalibrlError, match="not a folder"):
        write_report(tmp_path / "nowhere", tmp_path / "report.html")


def test_the_command_ends_with_exit_code_two(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "calibrl", "report", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("calibrl: ")
    assert "Traceback" not in done.stderr
