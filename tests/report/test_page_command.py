"""`calibrl report`: whatever is in the folder, or on the disk, is told in one line."""

import errno
import os
import sys
from pathlib import Path

import pytest

from calibrl.__main__ import main
from calibrl.runs.rows import Row, append


@pytest.fixture
def folder(tmp_path):
    append(tmp_path / "mine" / "rows.jsonl", [Row("e", "p", "a", 0, {"m": 1.0})])
    return tmp_path / "mine"


@pytest.fixture
def shell(monkeypatch, capsys):
    def run(*words):
        monkeypatch.setattr(sys, "argv", ["calibrl", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code or 0, capsys.readouterr()

    return run


def test_what_is_damaged_is_named_and_left_out(folder, shell):
    (folder / "cut-short.png").write_bytes(b"\x89PNG")
    with (folder / "rows.jsonl").open("a") as file:
        file.write("{half a row")
    code, said = shell("report", folder)
    assert code == 0
    assert said.out == f"Open {folder / 'report.html'} in a browser\n"
    assert said.err.splitlines() == [
        f"calibrl: {folder / 'rows.jsonl'}, line 2: damaged row skipped",
        f"calibrl: {folder / 'cut-short.png'} is no PNG and is left out; draw it again",
    ]
    assert "<figure" not in (folder / "report.html").read_text()


@pytest.mark.timeout(60)
def test_figures_that_are_no_files_are_left_out(folder, shell):
    os.mkfifo(folder / "a.png")
    (folder / "b.png").symlink_to("/dev/zero")
    (folder / "c.png").symlink_to(folder / "gone")
    (folder / "d.png").mkdir()
    code, said = shell("report", folder)
    assert code == 0
    assert sorted(said.err.splitlines()) == [
        f"calibrl: {folder / name}.png is no PNG and is left out; draw it again" for name in "abcd"
    ]


def test_a_figure_that_claims_to_be_huge_is_left_out(folder, shell):
    with (folder / "huge.png").open("wb") as file:
        file.write(b"\x89PNG")
        file.truncate(10**12)
    code, said = shell("report", folder)
    assert code == 0
    assert said.err == f"calibrl: {folder / 'huge.png'} is larger than 50 MB and is left out; draw it again\n"


def test_what_cannot_be_done_is_one_line(folder, shell):
    for words, expected in (
        ((folder / "rows.jsonl",), f"is a file; give the folder that it is in, {folder}"),
        ((folder / "none",), "none does not exist; run an experiment with --out"),
        ((folder, "--out", folder), f"calibrl: {folder} is a folder; give the path of a file"),
        ((folder, "--out", folder / "rows.jsonl" / "page.html"), "cannot be written (File exists); choose"),
    ):
        code, said = shell("report", *words)
        assert code == 2
        assert expected in said.err
        assert said.err.count("\n") == 1


def test_a_full_disk_leaves_the_page_as_it_was(folder, shell, monkeypatch):
    page = folder / "report.html"
    page.write_text("as it was")

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", full)
        code, said = shell("report", folder)
    assert (code, said.err.count("\n")) == (2, 1)
    assert f"{page}: cannot be written (No space left on device)" in said.err
    assert page.read_text() == "as it was"
    assert {path.name for path in folder.iterdir()} == {"report.html", "rows.jsonl"}
