"""Names as text in every place they go to."""

import io
import json

import matplotlib.pyplot as plt
import pytest
from rich.console import Console
from rich.table import Table

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
