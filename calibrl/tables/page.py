"""The page of a check: verdict, figure, numbers and groups in one HTML file that opens without a network."""

from __future__ import annotations

import html
import io
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrl import __version__
from calibrl.tables import answers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE = """
:root { color-scheme: light dark; --ink: #1f2430; --paper: #fdfdfb; --soft: #5c6270; --line: #dfe0e6; }
@media (prefers-color-scheme: dark) { :root { --ink: #e7e8ec; --paper: #15171c; --soft: #a3a8b5; --line: #343843; } }
body {
  margin: 0 auto; max-width: 62rem; padding: 2rem 1.2rem 3rem; color: var(--ink); background: var(--paper);
  font: 1rem/1.6 system-ui, "Segoe UI", Roboto, "Noto Sans", sans-serif; font-variant-numeric: tabular-nums;
}
h1, h2 { font-family: Charter, Georgia, "Noto Serif", serif; line-height: 1.25; overflow-wrap: anywhere; }
h2 { margin: 2rem 0 .4rem; font-size: 1.3rem; }
header p, .note, footer { color: var(--soft); font-size: .9rem; }
figure { background: #fff; border-radius: 6px; padding: .5rem; margin: 2rem 0 .4rem; }
figure svg { display: block; width: 100%; height: auto; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; }
td, th { padding: .3rem .7rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
td.text, th.text { text-align: left; }
td:first-child, th:first-child { padding-left: 0; }
@media (max-width: 40rem) { td, th { padding: .3rem .4rem; font-size: .85rem; } td.text { white-space: normal; } }
"""
CAPTIONS = {
    "classes": "How often each class came true, by the probability it was given: on the diagonal if calibrated.",
    "": "Left: the share of outcomes below each predicted quantile, on the diagonal if calibrated. Then: where in its "
    "forecast each outcome fell, flat if calibrated; the grey band is what chance alone would produce.",
}


def page(found: dict[str, Any], figure: Figure, *, group: str | None) -> str:
    """The page as text. found: what `answers.print_check` prints."""
    before, after = found["as_forecast"], found.get("after_map")
    title = f"Are the forecasts in {Path(found['file']).name} calibrated?"
    parts = [_verdict("As forecast" if after else "", before["summary"])]
    if after:
        parts.append(_verdict(f"After {Path(after['map']).name} ({after['fitted']})", after["summary"]))
        if after["reused_rows"] > answers.REUSED:
            parts.append(f"<p><strong>Careful:</strong> {html.escape(answers.reused(after))}.</p>")
    parts.append(f"<figure>{_svg(figure)}</figure>")
    parts.append(f'<p class="note">{CAPTIONS.get(found["kind"], CAPTIONS[""])}</p>')
    parts.append(f"<h2>Numbers</h2>{_table(answers.number_rows(before['summary'], after and after['summary']), (0,))}")
    if group is not None:
        rows = answers.group_rows(group, before["groups"], after and after["groups"])
        parts.append(f"<h2>By {html.escape(group)}</h2>{_table(rows, (0, len(rows[0]) - 1))}")
    made = f"calibrl {__version__}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style>'
        f"</head><body><header><h1>{html.escape(title)}</h1><p>{html.escape(answers.what_was_read(found))}</p></header>"
        f"<main>{''.join(parts)}</main><footer><p>{made}</p></footer></body></html>\n"
    )


def _verdict(heading: str, found: Any) -> str:
    first, *others = (html.escape(sentence) for sentence in answers.verdict(found))
    head = f"<h2>{html.escape(heading)}</h2>" if heading else ""
    return f"{head}<p>{'<br>'.join([f'<strong>{first}</strong>', *others])}</p>"


def _table(rows: list[list[str]], text: tuple[int, ...]) -> str:
    """Rows as a table, the first as its head."""
    lines = []
    for at, row in enumerate(rows):
        tag = "td" if at else "th"
        kinds = ["text" if k in text else "number" for k in range(len(row))]
        cells = (f'<{tag} class="{kind}">{html.escape(cell)}</{tag}>' for kind, cell in zip(kinds, row, strict=True))
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f'<div class="wide"><table>{"".join(lines)}</table></div>'


def _svg(figure: Figure) -> str:
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg")
    return drawn.getvalue()[drawn.getvalue().index("<svg") :]
