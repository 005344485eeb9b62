import warnings

from calibrl.runs.console import PIPED, one_line_warnings, table_console


def test_a_pipe_is_wide_enough_for_every_table(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    assert table_console().width == PIPED
    monkeypatch.setenv("COLUMNS", "400")
    assert table_console().width == 400


def test_a_terminal_keeps_its_width(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # how rich is told that it writes to a terminal
    monkeypatch.setenv("COLUMNS", "72")
    assert table_console().width == 72


def test_a_warning_is_one_line_whatever_a_file_is_called(capsys):
    with one_line_warnings():
        warnings.warn_explicit(
            "a\ncalibrl: all is well.jsonl: damaged\x1b[2J", UserWarning, "rows.py", 1, "calibrl.runs"
        )
    assert capsys.readouterr().err == "calibrl: a calibrl: all is well.jsonl: damaged�[2J\n"
