"""The page of a check: verdict, charts, coverage by group and in time, sharpness, and what calibrating would gain."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, cast

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from torch import Tensor
from torch.distributions import Categorical

from calibrl import __version__, plots
from calibrl.distributions import pit
from calibrl.tables import judging, output
from calibrl.tables.forecasts import Forecasts
from calibrl.tables.mapfile import How
from calibrl.text import document, for_html

INK = "#1f2430"
DARK = {INK: "#e7e8ec", "#ffffff": "#15171c", plots.BEFORE: "#ee7f66", plots.AFTER: "#45b8ae", plots.FAINT: "#6d7484"}
"""Colours of a chart, and what they are on a dark page."""

DRAWN = 100_000
"""Rows that charts are drawn from: more would not move a line."""

MOST_GROUPS = 25
COLORS = (plots.BEFORE, plots.AFTER)


@dataclass(frozen=True)
class Checked:
    """What a check knows.

    Parameters
    ----------
    table : Forecasts
        The table.
    seen : Tensor
        (m,) the numbers of its rows with outcomes.
    shown : mapping of str to function
        Forecasts by name: as they are, and perhaps after a map.
    found : mapping
        What was found, as it is printed.
    group : str, optional
        The column that tells groups apart.
    groups : mapping of str to Tensor
        The rows of each.
    """

    table: Forecasts
    seen: Tensor
    shown: Mapping[str, judging.ForecastOf]
    found: Mapping[str, Any]
    group: str | None
    groups: Mapping[str, Tensor]


def check_page(checked: Checked) -> str:
    """The page as text: complete in itself, in light and dark."""
    before, after = checked.found["as_forecast"], checked.found.get("after_map")
    title = f"Are the forecasts in {Path(checked.table.source).name} calibrated?"
    verdict = _verdict("As forecast" if after else "", before["summary"])
    if after:
        verdict += _verdict(f"After {Path(after['map']).name} ({after['fitted']})", after["summary"])
        if warning := output.reused(after):
            verdict += f"<p><strong>Careful:</strong> {for_html(warning)}.</p>"
    verdict += "".join(f"<p class='note'>{for_html(note)}.</p>" for note in checked.table.notes)
    numbers = _table(output.number_rows(before["summary"], after and after["summary"]), (0,))
    sharp = "sure" if checked.table.kind == "classes" else "wide"
    sections = [
        f"<section>{verdict}</section>",
        _section("Where outcomes fell", *_calibration(checked)),
        _by_group(checked),
        _in_time(checked),
        _section(f"How {sharp} the forecasts are", *_sharpness(checked)),
        "" if after else _gain(checked),
        f"<section><h2>Numbers</h2>{numbers}</section>",
    ]
    made = f"calibrl {__version__} · made {datetime.now(UTC):%Y-%m-%d %H:%M} UTC · this file is complete"
    body = (
        f"<header><h1>{for_html(title)}</h1><p>{for_html(output.what_was_read(dict(checked.found)))}</p></header>"
        f"<main>{''.join(sections)}</main><footer><p>{made}</p></footer>"
    )
    return document(title, body, kind="check")


def _verdict(heading: str, found: Any) -> str:
    first, *others = (for_html(sentence) for sentence in found.verdict())
    head = f"<h2>{for_html(heading)}</h2>" if heading else ""
    return f'{head}<p class="finding"><strong>{first}</strong>{"<br>".join(others)}</p>'


def _section(heading: str, words: str, *charts: str) -> str:
    drawn = f'<div class="charts">{"".join(charts)}</div>' if charts else ""
    return f"<section><h2>{for_html(heading)}</h2><p>{for_html(words)}</p>{drawn}</section>"


def _table(rows: list[list[str]], text: tuple[int, ...]) -> str:
    """Rows as a table, the first as its head."""
    lines = []
    for at, row in enumerate(rows):
        tag = "td" if at else "th"
        kinds = ["text" if k in text else "number" for k in range(len(row))]
        cells = (f'<{tag} class="{kind}">{for_html(cell)}</{tag}>' for kind, cell in zip(kinds, row, strict=True))
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f'<div class="scroll"><table><thead>{lines[0]}</thead><tbody>{"".join(lines[1:])}</tbody></table></div>'


# Charts.


def _chart(draw: Callable[[Axes], Any], caption: str, *, height: float = 3.4) -> str:
    """A chart as pictures for a light and a dark page."""
    look: Any = {"svg.fonttype": "none", "savefig.transparent": True, "svg.hashsalt": "calibrl"}
    look |= dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK)
    with plt.rc_context(look):
        figure, ax = plt.subplots(figsize=(4.6, height), layout="constrained")
        draw(ax)
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None})
        plt.close(figure)
    light = drawn.getvalue()
    dark = light
    for one, other in DARK.items():
        dark = dark.replace(one, other)
    ours, theirs = (f"data:image/svg+xml;base64,{base64.b64encode(text.encode()).decode()}" for text in (light, dark))
    words = for_html(caption)
    return (
        f'<figure><picture><source media="(prefers-color-scheme: dark)" srcset="{theirs}">'
        f'<img alt="{words}" width="460" height="{100 * height:.0f}" src="{ours}"></picture>'
        f"<figcaption>{words}</figcaption></figure>"
    )


def _some(rows: Tensor) -> Tensor:
    if len(rows) <= DRAWN:
        return rows
    return rows[torch.randperm(len(rows), generator=judging.seeded())[:DRAWN].sort().values]


def _calibration(checked: Checked) -> tuple[str, ...]:
    table, rows = checked.table, _some(checked.seen)
    y = cast(Tensor, table.y)[rows]
    named = len(checked.shown) > 1

    def each(draw: Callable[[str | None, judging.ForecastOf, str, Axes], Any]) -> Callable[[Axes], None]:
        def all_of_them(ax: Axes) -> None:
            for (name, forecast), color in zip(checked.shown.items(), COLORS, strict=False):
                draw(name if named else None, forecast, color, ax)

        return all_of_them

    if table.kind == "classes":
        curve = each(
            lambda name, forecast, color, ax: plots.class_reliability_curve(
                cast(Categorical, forecast(rows)).probs, y, ax, label=name, color=color, bars=True
            )
        )
        return (
            "Of all cases that were given 80 %, 80 % should come true: dots on the diagonal. The area of a dot is the "
            "number of cases, and its bar a 90 % interval.",
            _chart(curve, "How often the most likely class came true, by the probability it was given", height=4.2),
        )
    if table.kind == "quantiles":
        parts = [checked.found["as_forecast"], checked.found.get("after_map")]
        summaries = [part["summary"] for part in parts if part]

        def levels(ax: Axes) -> None:
            for name, found, color in zip(checked.shown, summaries, COLORS, strict=False):
                plots.level_shares(
                    found.levels, found.observed, found.n, ax, label=name if named else None, color=color
                )

        return (
            "Of all outcomes 90 % should be below the 90 % quantile: dots on the diagonal, up to chance, which is the "
            "grey band. The file says nothing about levels in between, and neither does this page.",
            _chart(levels, "The share of outcomes at or below each quantile, by its level", height=4.2),
        )
    pits = {name: pit(forecast(rows), y, generator=judging.seeded()) for name, forecast in checked.shown.items()}

    def curves(ax: Axes) -> None:
        for (name, values), color in zip(pits.items(), COLORS, strict=False):
            plots.reliability(values, ax, label=name if named else None, color=color)

    bars = [
        _chart(
            partial(plots.pit_bars, values, color=color),
            f"Where in its forecast each outcome fell (PIT){f', {name}' if named else ''}: flat if calibrated, up to "
            "chance, which is the grey band",
            height=4.2,
        )
        for (name, values), color in zip(pits.items(), COLORS, strict=False)
    ]
    return (
        "Of all outcomes 90 % should be below the 90 % quantile, and so on for every level: a curve on the diagonal. "
        "Its band holds what other outcomes of the same kind might have shown, 9 times in 10.",
        _chart(curves, "The share of outcomes below each predicted quantile, with a 90 % band", height=4.2),
        *bars,
    )


def _dots(parts: list[tuple[str, Tensor]], checked: Checked, caption: str) -> list[str]:
    """A chart of the share of hits in each part, for each forecast that is shown."""
    charts = []
    labels = [output.shortened(label, 24) for label, _ in parts]
    for (name, forecast), color in zip(checked.shown.items(), COLORS, strict=False):
        found = [judging.hits(checked.table, _some(rows), forecast) for _, rows in parts]
        share = [float(hit.inside.double().mean()) for hit in found]
        target = [float(hit.target.mean()) for hit in found]
        rows = [len(rows) for _, rows in parts]
        words = f"{caption}{f', {name}' if len(checked.shown) > 1 else ''}"
        draw = partial(plots.share_dots, labels, share, rows, target, color=color)
        charts.append(_chart(draw, words, height=1.1 + 0.24 * len(parts)))
    return charts


def _by_group(checked: Checked) -> str:
    if checked.group is None:
        return ""
    before, after = checked.found["as_forecast"], checked.found.get("after_map")
    rows = output.group_rows(checked.group, before["groups"], after and after["groups"])
    parts = [(name, rows) for name, rows in checked.groups.items() if len(rows) >= 2]
    words = _hit_words(checked)
    largest = {name for name, _ in sorted(parts, key=lambda part: -len(part[1]))[:MOST_GROUPS]}
    kept = [part for part in parts if part[0] in largest]
    dots = _dots(kept, checked, f"Share of {words} by {checked.group}, and what was promised (dashed)")
    note = f"<p class='note'>The {MOST_GROUPS} largest groups.</p>" if len(parts) > MOST_GROUPS else ""
    return (
        f"<section><h2>By {for_html(checked.group)}</h2><div class='charts'>{''.join(dots)}</div>{note}"
        f"{_table(rows, (0, len(rows[0]) - 1))}</section>"
    )


def _in_time(checked: Checked) -> str:
    column, parts = judging.periods(checked.table, checked.seen)
    if not parts:
        return ""
    words = _hit_words(checked)
    order = "as they stand in the file" if column == "rows of the file" else "in the order of time"
    dots = _dots(parts, checked, f"Share of {words}, from top to bottom {order}")
    return _section(
        "Over time",
        f"Each dot is about {len(parts[0][1])} outcomes, "
        + ("by row of the file" if column == "rows of the file" else f"named by the first of them in {column}")
        + ". Forecasts that were right once and drift away from the dashed line should be fitted on the recent past.",
        *dots,
    )


def _hit_words(checked: Checked) -> str:
    few = checked.seen[:2]
    words = judging.hits(checked.table, few, checked.table.distribution).words
    return "rows where " + words if checked.table.kind == "classes" else words


def _sharpness(checked: Checked) -> tuple[str, ...]:
    rows = _some(checked.seen)
    classes = checked.table.kind == "classes"
    what = "probability of the most likely class" if classes else "width of the interval"
    found = {name: judging.hits(checked.table, rows, forecast) for name, forecast in checked.shown.items()}
    if not classes:
        share = 100 * float(next(iter(found.values())).target[0])
        what = f"width of the {share:.4g} % interval" if share else what

    def draw(ax: Axes) -> None:
        for (name, hit), color in zip(found.items(), COLORS, strict=False):
            plots.width_bars(hit.width.double().numpy(), ax, color=color, label=name)
        ax.set(xlabel=what, ylabel="forecasts")
        ax.spines[["top", "right"]].set_visible(False)
        if len(found) > 1:
            ax.legend(frameon=False, fontsize=9)

    return (
        "Of two honest forecasts the sharper one is worth more."
        + ("" if classes else " Widths that hardly differ say that the model does not know when it is unsure."),
        _chart(draw, f"How many forecasts have which {what}"),
    )


def _gain(checked: Checked) -> str:
    table, seen = checked.table, checked.seen
    dates = table.dates()
    if dates is not None:
        seen = seen[torch.from_numpy(dates[1])[seen].argsort(stable=True)]
    found = judging.gain(table, seen, How(in_time=dates is not None))
    heading = "What calibrating would gain"
    if found is None:
        return _section(heading, "There are too few outcomes to say.")
    (old, new), (held, holds) = found.score, found.holds
    better = (old - new) / abs(old) if old else 0.0
    later = "later rows than it was fitted on" if dates is not None else "rows it was not fitted on"
    if better > 0.005:
        words = f"A map fitted on these outcomes would lower the {found.measure} by {better:.1%} on {later}."
    else:
        words = f"Little or nothing: on {later}, a map would change the {found.measure} by {-better:+.1%}."
    rows = [["", "as forecast", "calibrated"], [found.measure, output.number(old), output.number(new)]]
    rows.append([found.words, f"{held:.1%}", f"{holds:.1%}"])
    if table.kind == "classes":
        rows.append(["said to be", *(f"{part:.1%}" for part in found.target)])
    else:
        rows.append(["mean width", *map(output.number, found.width)])
    source = for_html(Path(table.source).name)
    return (
        f"<section><h2>{heading}</h2><p>{for_html(words)}</p>{_table(rows, (0,))}"
        f"<p class='note'>Judged on {found.rows} outcomes, fold by fold. To do it: "
        f"<code>calibrl fit {source} --out map.json</code></p></section>"
    )
