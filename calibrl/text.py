"""Names as text: what somebody else wrote, made harmless for each place it goes to.

A file's, a column's or an item's name may hold anything: escape sequences, markup, formulas. Each destination has one
function.
"""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

FORMULA = r"^(?:[=@\t\r]|[+-][\d\s.,()/%eE+-]*[^\d\s.,()/%eE+-])"
"""Text that a spreadsheet would compute: it begins like a formula, and is no number."""


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
    return "".join(
        letter if letter.isprintable() or letter == "\n" else "".join(f"\\u{unit:04x}" for unit in _utf16_units(letter))
        for letter in text
    )


def _utf16_units(letter: str) -> list[int]:
    data = letter.encode("utf-16-be", "surrogatepass")
    return [int.from_bytes(data[at : at + 2], "big") for at in range(0, len(data), 2)]


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
        With an apostrophe before what would be a formula; numbers stay numbers.

    Examples
    --------
    >>> for_sheet("=1+1"), for_sheet("-3.5"), for_sheet("-cmd|' /C calc'!A0")
    ("'=1+1", '-3.5', "'-cmd|' /C calc'!A0")
    """
    return f"'{text}" if re.match(FORMULA, text) else text
