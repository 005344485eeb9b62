"""Names as text in every place they go to."""

import io
import json
import sys

import matplotlib.pyplot as plt
import pytest
from rich.console import Console
from rich.table import Table

from calibrl.__main__ import main
from calibrl.runs.console import print_table
from calibrl.runs.rows import Row
from calibrl.text import for_json, for_plot, for_rich, for_sheet, for_terminal

NASTY = [
    "$5_$",
    r"\frac{1}{2}",
    "[/red]",
    "[bold",
    "\x1b]0;owned\x07",
    "\x9b2J",
    "a\u202eb",
    "_hidden",
    "=1+1",
    "a\\",
    "$x",
]


@pytest.mark.parametrize("name", NASTY)
def test_a_name_is_shown_and_nothing_more(name):
    assert for_terminal(name).isprintable()
    assert json.loads(for_json(json.dumps({name: 1}, ensure_ascii=False))) == {name: 1}
    assert for_json(json.dumps({name: 1}, ensure_ascii=False)).isprintable()
    out = io.StringIO()
    table = Table("name")
    table.add_row(for_rich(name, "bold"))
    Console(file=out, width=60).print(table)
    assert for_terminal(name) in out.getvalue()


@pytest.mark.parametrize("name", NASTY)
def test_a_plot_shows_every_name(name):
    figure, ax = plt.subplots()
    ax.plot([0, 1], label=for_plot(name))
    ax.set_title(for_plot(name))
    legend = ax.legend()
    drawn = io.StringIO()
    with plt.rc_context({"svg.fonttype": "none"}):
        figure.savefig(drawn, format="svg")
    plt.close(figure)
    assert len(legend.get_texts()) == 1
    assert drawn.getvalue().count(for_terminal(name).strip("_ ")) >= 2


def test_plain_text_stays():
    for text in ("shop 7", "größe", "日本", "-3.5", "+49 30 1234", "1e-5", "a=b", ""):
        assert for_terminal(text) == for_plot(text) == for_sheet(text) == for_json(text) == text


def test_a_stranger_s_table_prints_nothing_but_text(tmp_path, monkeypatch, capsys):
    """Hostile names of a file, a column, a group and a cell, on stdout, in JSON and in errors."""
    monkeypatch.chdir(tmp_path)
    esc = "\x1b]0;owned\x07"
    lines = [f"y,mean,std,{esc}", *(f"{k % 3},1,1,{['[/red]', esc, '$5_$'][k % 3]}" for k in range(30))]
    (tmp_path / f"{esc}[a].csv").write_text("\n".join(lines))
    (tmp_path / "bad\n.csv").write_text(f"y,mean,std\n1,{esc},1\n")
    page = ("--html", "p.html", "--plot", "p.png")
    for words in (
        (f"{esc}[a].csv", "--group", esc, *page),
        (f"{esc}[a].csv", "--group", esc, "--json"),
        ("bad\n.csv",),
    ):
        monkeypatch.setattr(sys, "argv", ["calibrl", "check", *words])
        with pytest.raises(SystemExit):
            main()
        out, err = capsys.readouterr()
        assert all(line.isprintable() for line in (out + err).splitlines())
        assert err.count("\n") == (words[0][0] == "b")
    assert "\x1b" not in (tmp_path / "p.html").read_text(encoding="utf-8")


def test_rows_of_strangers_are_shown_as_they_are(capsys):
    made = [
        Row("bandits", "[/red]", arm, seed, metrics={"reward": 1.0}) for arm in ("[bold", "\x1b[2J") for seed in (0, 1)
    ]
    print_table(made)
    shown = capsys.readouterr().out
    assert "[/red]" in shown
    assert "[bold" in shown
    assert "\x1b" not in shown
