"""The manager's page of tonight's orders: one HTML file, what is most at risk first, to search, read and print."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from string import Template

import numpy as np
from numpy.typing import NDArray

from calibrl.inventory.files import WEEKDAYS
from calibrl.inventory.history import counted, named
from calibrl.inventory.problems import Flags, Floats
from calibrl.shop.backtest import CALIBRATED, PLANNED, Backtest
from calibrl.shop.files import Shop
from calibrl.shop.orders import Order
from calibrl.shop.reasons import reason, totals
from calibrl.text import document, for_html

PAGE, SHEET, SCRIPT = (Path(__file__).with_name(f"orders.{kind}") for kind in ("html", "css", "js"))

MOST_ITEMS = 2000
"""Items on one page; a browser scrolls through more, but nobody does."""

WIDTH, HEIGHT, SHOWN = 300, 84, 14
"""Of a picture, in pixels, and the days of the past in it."""


def orders_page(shop: Shop, orders: Sequence[Order], tested: Backtest | None = None) -> str:
    """Orders as a page.

    Parameters
    ----------
    shop : Shop
        From `read_shop`.
    orders : sequence of Order
        From `make_orders(shop, look_back=28)`.
    tested : Backtest, optional
        From `run_backtest`, for what was wasted and missed so far.

    Returns
    -------
    str
        HTML, complete and without network requests.
    """
    ranked = sorted(orders, key=lambda order: -order.at_risk)
    place = {key: k for k, key in enumerate(shop.history.keys)}
    items = [_item(order, shop, place[order.key], tested) for order in ranked[:MOST_ITEMS]]
    left = len(ranked) - len(items)
    more = f"<p>{counted(left, 'item')} with less at risk are in the table of orders only.</p>" if left else ""
    template, sheet, script = (path.read_text(encoding="utf-8") for path in (PAGE, SHEET, SCRIPT))
    title = f"Orders of the evening of {shop.history.date}"
    risk = sum(order.at_risk for order in orders)
    notes = "".join(f"<li>{for_html(note)}</li>" for note in (*shop.notes, shop.done))
    body = Template(template).substitute(
        title=title,
        totals=f"{for_html(totals(orders))} At risk: {risk:,.2f}, the expected cost of waste and lost sales.",
        items="".join(items),
        more=more,
        after=_honesty(orders, shop) + _so_far(tested),
        notes=notes,
    )
    return document(title, body, styles=sheet, script=script)


def _item(order: Order, shop: Shop, k: int, tested: Backtest | None) -> str:
    name = named(order.key)
    packs = f"{order.packs} × {order.item.pack_size}" if order.item.pack_size > 1 and order.packs else ""
    held, _ = _held(order, shop, k)
    facts = [f"at risk {order.at_risk:,.2f}"]
    if len(held):
        facts.append(f"{int(held.sum())} of the last {len(held)} days inside their 90 % interval")
    if order.sold_out:
        facts.append(f"sold out on {order.sold_out} of the last 28 days")
    if tested is not None:
        found = tested.units[CALIBRATED]
        wasted, lost = int(found.wasted[k].sum()), int(found.unmet[k].sum())
        facts.append(f"in the replay {wasted:,} wasted and {lost:,} missed of {int(found.sold[k].sum()) + lost:,}")
    day = order.delivery.astype("datetime64[D]").item()
    return (
        f'<section class="item" data-name="{for_html(name.lower())}" data-risk="{order.at_risk:.4f}" '
        f'data-units="{order.decision.units}"><div><h2>{for_html(name)}</h2>'
        f'<p class="units">{order.decision.units:,}</p>'
        f'<p class="small">{packs + ", " if packs else ""}for {day:%a %d %b}</p></div>'
        f'<div><p>{for_html(reason(order))}</p><p class="small">{for_html("; ".join(facts))}</p></div>'
        f"{_picture(order, shop, k)}</section>"
    )


def _held(order: Order, shop: Shop, k: int) -> tuple[Flags, NDArray[np.int64]]:
    """(d,): of the last days with known demand, whether it was inside its 90 % interval; and their weekdays."""
    days = slice(shop.history.today + 1 - order.past.shape[1], shop.history.today + 1)
    demand = shop.history.sales.demand[k, days]
    known = ~np.isnan(demand) & (order.past[2] > 0)
    return ((order.past[0] <= demand) & (demand <= order.past[2]))[known], shop.history.sales.weekday[days][known]


def _picture(order: Order, shop: Shop, k: int) -> str:
    """The last days, sold over expected, and the days to come."""
    now = shop.history.today
    days = min(SHOWN, now + 1)
    sold = shop.history.sales.units[k, now + 1 - days : now + 1]
    out = shop.history.sales.censored[k, now + 1 - days : now + 1]
    past = order.past[:, -days:] if order.past.size else np.zeros((3, 0))
    fan, ahead = order.fan, order.fan.shape[1]
    top = max(1.0, float(np.nanmax(np.concatenate([np.nan_to_num(sold), past[2], fan[4]]))))
    step = (WIDTH - 30) / max(days + ahead - 1, 1)

    def at(day: int, units: float) -> str:
        return f"{24 + step * day:.1f},{HEIGHT - 14 - (HEIGHT - 22) * min(units / top, 1.0):.1f}"

    def band(low: Floats, high: Floats, first: int, name: str) -> str:
        if not len(low):
            return ""
        points = [at(first + j, low[j]) for j in range(len(low))]
        points += [at(first + j, high[j]) for j in reversed(range(len(high)))]
        return f'<polygon class="{name}" points="{" ".join(points)}"/>'

    def line(values: Floats, first: int, name: str) -> str:
        points = [at(first + j, value) for j, value in enumerate(values) if not np.isnan(value)]
        return f'<polyline class="{name}" points="{" ".join(points)}"/>' if points else ""

    begun = days - past.shape[1]
    dots = "".join(
        '<circle class="{}" cx="{}" cy="{}" r="2.2"/>'.format("out" if gone else "dot", *at(j, value).split(","))
        for j, (value, gone) in enumerate(zip(sold, out, strict=True))
        if not np.isnan(value)
    )
    edge = 24 + step * (days - 0.5)
    first, last = (order.day(j).astype("datetime64[D]").item() for j in (-days, ahead - 1))
    label = f"Sold up to today and expected demand of {named(order.key)}"
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{for_html(label)}">'
        f"{band(past[0], past[2], begun, 'wide')}{line(past[1], begun, 'median')}"
        f"{band(fan[0], fan[4], days, 'wide')}{band(fan[1], fan[3], days, 'half')}{line(fan[2], days, 'median')}"
        f"{line(sold, 0, 'sold')}{dots}"
        f'<line class="now" x1="{edge:.1f}" x2="{edge:.1f}" y1="4" y2="{HEIGHT - 14}"/>'
        f'<text x="0" y="12">{top:,.0f}</text><text x="0" y="{HEIGHT - 14}">0</text>'
        f'<text x="24" y="{HEIGHT - 2}">{first:%d %b}</text>'
        f'<text x="{WIDTH - 4}" y="{HEIGHT - 2}" text-anchor="end">{last:%d %b}</text></svg>'
    )


def _honesty(orders: Sequence[Order], shop: Shop) -> str:
    """How often 90 % intervals held, by weekday."""
    place = {key: k for k, key in enumerate(shop.history.keys)}
    inside, count = np.zeros(7), np.zeros(7)
    for order in orders:
        held, weekday = _held(order, shop, place[order.key])
        inside += np.bincount(weekday[held], minlength=7)
        count += np.bincount(weekday, minlength=7)
    if not count.sum():
        return ""
    cells = "".join(
        f"<tr><td>{name}</td><td>{inside[k] / count[k]:.0%}</td><td>{int(count[k]):,}</td></tr>"
        for k, name in enumerate(WEEKDAYS)
        if count[k]
    )
    return (
        "<h2>Were the intervals right?</h2><p>Forecasts of the evening before, over the last four weeks, by a model "
        "trained on earlier days: nine in ten should be inside.</p>"
        f"<table><tr><th>weekday</th><th>inside</th><th>days</th></tr>{cells}"
        f"<tr><td>all</td><td>{inside.sum() / count.sum():.0%}</td><td>{int(count.sum()):,}</td></tr></table>"
    )


def _so_far(tested: Backtest | None) -> str:
    """What each way of ordering wasted, missed and cost."""
    if tested is None:
        return ""
    rows = "".join(
        f"<tr><td>{for_html(name)}</td><td>{found.wasted.sum():,}</td><td>{found.unmet.sum():,}</td>"
        f"<td>{tested.money(name).sum():,.0f}</td></tr>"
        for name, found in sorted(tested.units.items(), key=lambda pair: pair[0] in PLANNED)
    )
    return (
        f"<h2>Waste and missed sales so far</h2><p>Replayed from {tested.dates[0]} to {tested.dates[-1]}, each evening "
        'with what was known then.</p><div class="scroll"><table><tr><th>way of ordering</th><th>units wasted</th>'
        f"<th>sales missed</th><th>cost</th></tr>{rows}</table></div>"
    )
