from calibrl.runs.console import PIPED, table_console


def test_a_pipe_is_wide_enough_for_every_table(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    assert table_console().width == PIPED
    monkeypatch.setenv("COLUMNS", "400")
    assert table_console().width == 400


def test_a_terminal_keeps_its_width(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # how rich is told that it writes to a terminal
    monkeypatch.setenv("COLUMNS", "72")
    assert table_console().width == 72
