"""`calibrl report FOLDER`: one HTML page from results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from calibrl.text import say


def report(
    folder: Annotated[Path, typer.Argument(help="Folder with the rows and figures of one or more runs.")],
    out: Annotated[
        Path | None, typer.Option(help="Where to write the page; default: report.html in the folder.")
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Make one self-contained HTML page from a folder of results."""
    from calibrl.report.page import write_report
    from calibrl.runs.console import one_line_warnings

    with one_line_warnings():
        page = write_report(folder, out or folder / "report.html")
    say(f"Open {page.resolve()} in a browser")
    if show:
        import webbrowser

        webbrowser.open(page.resolve().as_uri())
