"""Where tables are printed."""

from __future__ import annotations

from rich.console import Console

PIPED = 160
"""Columns of output that is no terminal: a file has no edge at which a number would have to be cut."""


def table_console() -> Console:
    """The terminal as wide as it is; anything else wide enough for every table."""
    console = Console()
    return console if console.is_terminal else Console(width=max(console.width, PIPED))
