"""`calibrl report FOLDER`: one HTML page from results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    folder: Annotated[Path, typer.Argument(help="Folder that runs wrote their rows and figures to.")],
    out: Annotated[Path | None, typer.Option(help="The page; report.html in the folder if not given.")] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Make one self-contained HTML page of everything in a folder of results."""
    from calibrl.cli.execute import spoken_warnings
    from calibrl.report.page import write_report

    with spoken_warnings():
        page = write_report(folder, out or folder / "report.html")
    typer.echo(f"Open {page.resolve()} in a browser")
    if show:
        import webbrowser

        webbrowser.open(page.resolve().as_uri())
