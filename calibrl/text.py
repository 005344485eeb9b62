"""Text on its way to a terminal, a table, a figure or an HTML page: what somebody else wrote, made harmless for it.

A file's, a column's or an item's name may hold anything: escape sequences, markup, formulas. Each destination has one
function. HTML pages are complete in one file, with a policy that lets nothing else in.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text


FORMULA = r"^(?:[=@＝＠＋－\t\r\n]|[+-][\d\s.,()/%eE+-]*[^\d\s.,()/%eE+-])"
"""Text that a spreadsheet would compute: it begins like a formula, and is no number."""
LATER_FORMULA = r"([;\t\r\n][ \"']*)([=@＝＠＋－]|[+-][\d .,()/%eE+-]*[^\d\s.,;()/%eE+-])"
"""The same behind what some spreadsheets, by their country, take for the end of a cell, whatever stands in quotes."""


def for_terminal(text: str) -> str:
    r"""Text without what a terminal would obey: control characters and marks that turn the direction of writing.

    Parameters
    ----------
    text : str
        Of any length; line feeds stay.

    Returns
    -------
    str
        The same, with a � in place of each such character.

    Examples
    --------
    >>> for_terminal("shop\x1b[31m red")
    'shop�[31m red'
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter == "\n" else "�" for letter in text)


def say(text: str, *, err: bool = False) -> None:
    """Print text for a person, with nothing in it that a terminal would obey.

    Parameters
    ----------
    text : str
        One line or several.
    err : bool
        Whether it goes to stderr.
    """
    import typer

    typer.echo(for_terminal(text), err=err)


def for_json(text: str) -> str:
    r"""JSON that a terminal can show: what `for_terminal` would take out is written as an escape.

    Parameters
    ----------
    text : str
        As `json.dumps` wrote it.

    Returns
    -------
    str
        The same value, in other characters.

    Examples
    --------
    >>> for_json('"\x9b2J"')
    '"\\u009b2J"'
    """
    if text.isprintable():
        return text
    escaped = (letter if letter.isprintable() or letter == "\n" else json.dumps(letter)[1:-1] for letter in text)
    return "".join(escaped).replace("\x7f", "\\u007f")  # the one that JSON lets stand


def for_html(text: str) -> str:
    """Text for a page, none of it taken for markup, in an element or in an attribute.

    Parameters
    ----------
    text : str
        A name, such as "<b>".

    Returns
    -------
    str
        With entities for what HTML would read.

    Examples
    --------
    >>> for_html('<b a="1">')
    '&lt;b a=&quot;1&quot;&gt;'
    """
    return html.escape(for_terminal(text))


def for_rich(text: str, style: str = "") -> Text:
    """Text for a cell or a line that Rich prints, none of it taken for markup.

    Parameters
    ----------
    text : str
        A name, such as "[/red]".
    style : str
        Rich's word for how it looks.

    Returns
    -------
    rich.text.Text
    """
    from rich.text import Text

    return Text(for_terminal(text), style=style)


def for_plot(text: str) -> str:
    r"""Text for a title, a label or a legend of Matplotlib, none of it taken for mathematics.

    Parameters
    ----------
    text : str
        A name, such as "$5_$".

    Returns
    -------
    str
        With every $ escaped; a legend leaves out labels that begin with _, so such a one begins with a space.

    Examples
    --------
    >>> print(for_plot("$5_$"))
    \$5_\$
    """
    plain = for_terminal(text).replace("$", r"\$")
    return f" {plain}" if plain.startswith("_") else plain


def for_sheet(text: str) -> str:
    """Text for a cell of a CSV file, which a spreadsheet will not compute.

    Parameters
    ----------
    text : str
        A cell, such as "=HYPERLINK(…)".

    Returns
    -------
    str
        With an apostrophe before what would be a formula, also behind a semicolon; numbers stay numbers.

    Examples
    --------
    >>> for_sheet("=1+1"), for_sheet("-3.5"), for_sheet("-cmd|' /C calc'!A0")
    ("'=1+1", '-3.5', "'-cmd|' /C calc'!A0")
    """
    whole = f"'{text}" if re.match(FORMULA, text) else text
    return re.sub(LATER_FORMULA, r"\1'\2", whole)


def document(title: str, body: str, *, styles: str = "", script: str = "", kind: str = "") -> str:
    """A page that is complete in one file, makes no network requests, and runs nothing but its own script.

    Parameters
    ----------
    title : str
        As the browser shows it.
    body : str
        HTML, in which whatever somebody else wrote has gone through `for_html`.
    styles, script : str
        Beside the style that pages share.
    kind : str
        The class of the body, for styles.

    Returns
    -------
    str
        HTML.
    """
    sheet = style() + styles
    own = f"<script>{script}</script>\n" if script else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        '<meta http-equiv="Content-Security-Policy" '
        f'content="{policy(styles=[sheet], scripts=[script] if script else [])}">\n'
        f'<title>{for_html(title)}</title>\n<link rel="icon" href="data:,">\n<style>{sheet}</style>\n</head>\n'
        f'<body class="{kind}">\n{body}\n{own}</body>\n</html>\n'
    )


def style() -> str:
    """The style sheet that every page shares, in light and dark."""
    return (Path(__file__).parent / "style.css").read_text(encoding="utf-8")


def policy(*, styles: Iterable[str] = (), scripts: Iterable[str] = ()) -> str:
    """A content-security policy that allows these style and script elements, pictures in the page, and nothing else.

    Parameters
    ----------
    styles, scripts : iterables of str
        What stands between their tags, every character of it.

    Returns
    -------
    str
        For a meta element; without styles or scripts, none is allowed.

    Examples
    --------
    >>> policy(styles=["p { color: red }"])
    "default-src 'none'; img-src data:; style-src 'sha256-ngewhhP73WDIbgwseeu52VAAJgKdGUsu1IUQQsAm8m4='"
    """
    parts = ["default-src 'none'", "img-src data:"]
    for kind, texts in (("style-src", styles), ("script-src", scripts)):
        marks = [f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in texts]
        parts += [" ".join([kind, *marks])] if marks else []
    return "; ".join(parts)
