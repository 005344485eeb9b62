"""Tonight's orders for people to read: the reason for each in a sentence, a table of all, the manager's page, figures.

The page is one HTML file, what is most at risk first, to search, read and print.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from calibrl.inventory.files import WEEKDAYS, Item
from calibrl.inventory.history import Day, History, counted, named
from calibrl.inventory.problems import Flags, Floats
from calibrl.kernels.stock import rounded_up
from calibrl.shop import backtest as ways
from calibrl.shop.backtest import CALIBRATED, HEURISTIC, PLANNED, UNCALIBRATED, Backtest
from calibrl.shop.files import Shop
from calibrl.shop.orders import Order
from calibrl.text import document, for_html, for_plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


OFTEN = 5
"""Days sold out in four weeks that are worth a word."""

NOTABLE = 0.15
"""A level or trend this far from the usual is worth a word."""

FEW_PROMOTIONS = 10
"""Days on promotion below which what one does is mostly a guess from other items, or from chance."""

ENOUGH = 2.0
"""Sales of an average day below which such a difference is chance."""


def reason(order: Order) -> str:
    """Why this order, in a sentence a shopkeeper can check: demand, what moves it, stock, and what may go wrong.

    Parameters
    ----------
    order : Order
        One of `make_orders`.

    Returns
    -------
    str
        Such as "Friday 29 May should sell about 80 (47 to 127 nine times in ten); nothing is on the shelf, so order 93
        (a 29 % chance to run out, about 16 may be wasted)."
    """
    if order.discontinued:
        return (
            f"Not sold for {order.idle} days, so nothing is ordered; if it should be, mark days that were closed, or "
            "plan the day it is sold again by a row with empty units."
        )
    if order.demand.max() == 0:
        state = "closed" if order.days_on_record else "closed, or before the first day it is planned for"
        be = "is" if len(order.when.cover) == 1 else "are"
        return f"{_period(order)} {be} {state}, so nothing is ordered."
    return f"{_demand(order)}; {_stock(order)}, so {_decision(order)}."


def _demand(order: Order) -> str:
    (low, high), middle = order.interval(0.9), order.quantile(0.5)
    words = f"{_period(order)} should sell about {middle:.0f} ({low:.0f} to {high:.0f} nine times in ten)"
    why = _drivers(order)
    return words + (f", {_listed(why)}" if why else "")


def _drivers(order: Order) -> list[str]:
    """What makes these days different from an average one."""
    if not order.days_on_record:
        return ["a guess from other stores or items, for want of sales"]
    found = []
    open_days = [day for day in order.when.cover if not order.shut[day]]
    closed = [day for day in order.when.cover if order.shut[day]]
    usual = order.daily[open_days].mean() / order.level if order.level > 0 and open_days else 1.0
    if order.promotion:
        found.append("with the promotion" + _sureness(order.promoted))
    if order.sold_out >= OFTEN:
        found.append(_sold_out(order))
    if order.exceptions:
        found.append(f"leaving aside the {_listed([f'{sold:,.0f} of {_date(day)}' for day, sold in order.exceptions])}")
    for ratio, words in ((usual, "{} an average day"), (order.trend, "after a week {} the month before")):
        if abs(ratio - 1) >= NOTABLE and order.level >= ENOUGH:
            far = f"{100 * abs(ratio - 1):.0f} %"
            found.append(words.format(f"{far} {'above' if ratio > 1 else 'below'}"))
    if closed and open_days:
        found.append(f"closed on {_listed([_when(order, order.day(day)) for day in closed])}")
    return found


def _sureness(promoted: int) -> str:
    """What the effect of a promotion rests on, where that is little."""
    if promoted >= FEW_PROMOTIONS:
        return ""
    own = f"it was on promotion on only {promoted} {'day' if promoted == 1 else 'days'} before"
    return f" ({own if promoted else 'its first, judged by other items if there are any'}: unsure)"


def _sold_out(order: Order) -> str:
    if not order.most_sold:
        return f"by what sold before it was out of stock on {order.sold_out} of the last 28 days"
    words = f"having sold out on {order.sold_out} of the last 28 days"
    return f"{words} (how much beyond {order.most_sold:.0f} a day is unknown)" if order.mostly_sold_out else words


def _stock(order: Order) -> str:
    if not order.on_hand and not order.under_way:
        later = f" until {_when(order, order.delivery)}" if order.when.day[0] > 0 else ""
        return f"nothing is on the shelf{later}"
    count = f"{order.on_hand:.0f} {'is' if round(order.on_hand) == 1 else 'are'}" if order.on_hand else "none is"
    words = f"{count} on the shelf"
    if order.under_way:
        words += f" and {order.under_way:.0f} under way"
    if order.expiring >= 0.5:
        some = "all" if order.expiring == order.on_hand > 1 else f"{order.expiring:.0f}"
        words += f", {some} of which {'expires' if round(order.expiring) == 1 else 'expire'} before the delivery"
    if order.when.day[0] == 0:
        return words
    delivery = _when(order, order.delivery)
    if order.decision.out_before >= 0.5:  # no order can mend it
        return f"{words}, and the shelf will probably be empty before {delivery}"
    return f"{words}, of which {order.position:.0f} should be left on {delivery}"


def _decision(order: Order) -> str:
    decision, item = order.decision, order.item
    if not decision.units:
        empty = f", because the smallest delivery, {_least(item)}, would cost more than it saves"
        return f"nothing is ordered{empty if decision.out >= 0.5 else ''} ({_chance(decision.out)} to run out)"
    amount = f"{decision.units}"
    if item.pack_size > 1:
        amount = f"{order.packs} {'pack' if order.packs == 1 else 'packs'} of {item.pack_size}"
    if order.order_by > order.today:
        amount += f" by {_when(order, order.order_by)}"
    why = ", the least one can order" if decision.units == _least(item) > 1 else ""
    risk = f"{_chance(decision.out)} to run out, {_some(decision.waste)} may be wasted"
    return f"order {amount}{why}{_lasting(order)} ({risk})"


def _least(item: Item) -> int:
    """The smallest delivery, in units."""
    return rounded_up(1.0, item.pack_size, item.minimum_order)


def _lasting(order: Order) -> str:
    """How long an order lasts or keeps, if that is not until the next delivery."""
    first, cover = order.when.day[0], [day for day in order.when.cover if not order.shut[day]]
    keeps = first + order.item.shelf_life - 1
    if keeps < cover[-1]:
        return f", which can be sold until {_when(order, order.day(keeps))}"
    enough = order.daily[first:].cumsum() <= order.position + order.decision.units
    lasts = min(first + int(enough.sum()) - 1, keeps)
    return f", enough until about {_when(order, order.day(lasts))}" if lasts > order.when.cover[-1] else ""


def _period(order: Order) -> str:
    days = list(order.when.cover)
    first, last = order.day(days[0]), order.day(days[-1])
    if len(days) == 2:
        return f"{_when(order, first)} and {_when(order, last)}"
    return _date(first) if len(days) == 1 else f"{_date(first)} to {_date(last)}"


def _weekday(day: Day) -> str:
    return WEEKDAYS[_calendar(day).weekday()]


def _when(order: Order, day: Day) -> str:
    """The weekday, with its date from a week ahead on, when there is another between."""
    far = (day - order.today).astype(np.int64) >= 7
    return _date(day) if far else _weekday(day)


def _date(day: Day) -> str:
    return f"{_weekday(day)} {_calendar(day).day} {_calendar(day):%B}"


def _calendar(day: Day) -> date:
    found: date = day.astype("datetime64[D]").item()
    return found


def _chance(probability: float) -> str:
    if probability < 0.005:
        return "hardly a chance"
    share = f"{100 * probability:.0f}"
    # Eight, eleven, eighteen and the eighties begin with a vowel.
    return f"{'an' if share.startswith('8') or share in ('11', '18') else 'a'} {share} % chance"


def _some(units: float) -> str:
    return "hardly any" if units < 0.05 else f"about {units:.1f}" if units < 3 else f"about {units:.0f}"


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def orders_frame(orders: Sequence[Order], *, stores: bool) -> pl.DataFrame:
    """Orders as a table: every number a shop may want, and the rules it rests on.

    Parameters
    ----------
    orders : sequence of Order
        From `make_orders`.
    stores : bool
        Whether to name the stores.

    Returns
    -------
    polars DataFrame
        One row per item-store; demand is that of the days from the delivery up to the day before the next, in units.
    """
    frame = pl.DataFrame([_row(order) for order in orders], infer_schema_length=None)
    return frame if stores else frame.drop("store")


def totals(orders: Sequence[Order]) -> str:
    """All orders in a line."""
    units = sum(order.decision.units for order in orders)
    waste, lost = (sum(part) for part in zip(*((o.decision.waste, o.decision.lost) for o in orders), strict=True))
    first, last = min(order.delivery for order in orders), max(order.delivery for order in orders)
    days = f"{first}" if first == last else f"{first} to {last}"
    items, stores = (len(set(names)) for names in zip(*(order.key for order in orders), strict=True))
    what = f"{items} item{'s' if items > 1 else ''}" + (f" in {stores} stores" if stores > 1 else "")
    return (
        f"{units:,} units of {what}, for delivery on {days}; "
        f"expected waste {waste:,.0f}, expected lost sales {lost:,.0f}."
    )


def _row(order: Order) -> dict[str, object]:
    item, decision = order.item, order.decision
    half, most = order.interval(0.5), order.interval(0.9)
    return {
        "item": order.key[0],
        "store": order.key[1],
        "order_by": _calendar(order.order_by),
        "delivery": _calendar(order.delivery),
        "lasts_until": _calendar(order.last_covered),
        "packs": order.packs,
        "units": decision.units,
        "demand": round(float(order.demand.mean()), 2),
        "demand_low_50": half[0],
        "demand_high_50": half[1],
        "demand_low_90": most[0],
        "demand_high_90": most[1],
        "on_hand": order.on_hand,
        "expected_waste": round(decision.waste, 2),
        "stockout_probability": round(decision.out, 3),
        "expected_lost_sales": round(decision.lost, 2),
        "reason": reason(order),
        **vars(item),
        "delivery_days": item.deliveries,
    }


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
        f'<div><p>{_unbroken(reason(order))}</p><p class="small">{_unbroken("; ".join(facts))}</p></div>'
        f"{_picture(order, shop, k)}</section>"
    )


def _unbroken(text: str) -> str:
    """A text as HTML, whose per cent signs stay with their numbers."""
    return for_html(text).replace(" %", "&nbsp;%")


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
        # A triangle is told from a dot also where there is no colour.
        f'<path class="out" d="M{at(j, value)}m0,-4l3.6,6.4h-7.2z"/>'
        if gone
        else '<circle class="dot" cx="{}" cy="{}" r="2.2"/>'.format(*at(j, value).split(","))
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
        f'<text x="24" y="{HEIGHT - 3}">{first:%d %b}</text>'
        f'<text x="{WIDTH - 4}" y="{HEIGHT - 3}" text-anchor="end">{last:%d %b}</text></svg>'
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
    rows = [(name, inside[k], count[k]) for k, name in enumerate(WEEKDAYS) if count[k]]
    rows.append(("all", inside.sum(), count.sum()))
    found = _table(("weekday", "inside", "days"), [(name, f"{a / b:.0%}", f"{int(b):,}") for name, a, b in rows])
    return (
        "<h2>Were the intervals right?</h2><p>Forecasts of the evening before, over the last four weeks, by a model "
        f"trained on earlier days: nine in ten should be inside.</p>{found}"
    )


def _so_far(tested: Backtest | None) -> str:
    """What each way of ordering wasted, missed and cost."""
    if tested is None:
        return ""
    policies = sorted(tested.units.items(), key=lambda pair: pair[0] in PLANNED)
    rows = [
        (name, f"{of.wasted.sum():,}", f"{of.unmet.sum():,}", f"{tested.money(name).sum():,.0f}")
        for name, of in policies
    ]
    return (
        f"<h2>Waste and missed sales so far</h2><p>Replayed from {tested.dates[0]} to {tested.dates[-1]}, each evening "
        f"with what was known then.</p>{_table(('way of ordering', 'units wasted', 'sales missed', 'cost'), rows)}"
    )


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    body = "".join(f"<tr>{''.join(f'<td>{for_html(cell)}</td>' for cell in row)}</tr>" for row in rows)
    head = "".join(f"<th>{name}</th>" for name in names)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead>{body}</table></div>'


COLORS = {
    ways.AS_DELIVERED: "#8a8d99",
    ways.STAND_IN: "#8a8d99",
    HEURISTIC: "#e09f3e",
    ways.TUNED: "#5b6ee1",
    ways.EMPIRICAL: "#9b59b6",
    UNCALIBRATED: "#c8553d",
    CALIBRATED: "#1b7f79",
}
"""One colour per policy: uncalibrated red, calibrated green, as in every figure."""


SHOWN_ITEMS, SHOWN_DAYS = 6, 35
"""Item-stores in a picture of orders, and days of the past."""


def orders_figure(orders: Sequence[Order], history: History) -> Figure:
    """The last weeks' sales of the first few item-stores, the days to come with their intervals, and the order."""
    from matplotlib.figure import Figure

    shown = orders[:SHOWN_ITEMS]
    rows = -(-len(shown) // 2)
    figure = Figure(figsize=(10, 2.4 * rows + 0.3), layout="constrained")
    axes = np.atleast_1d(figure.subplots(rows, 2, squeeze=False)).ravel()
    for ax in axes[len(shown) :]:
        ax.set_axis_off()
    for ax, order in zip(axes, shown, strict=False):
        _fan(ax, order, history)
    for ax in axes[::2]:
        ax.set_ylabel("units a day", fontsize=8)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False, fontsize=8)
    return figure


def _fan(ax: Axes, order: Order, history: History) -> None:
    row, now = history.keys.index(order.key), history.today
    past = slice(max(0, now + 1 - SHOWN_DAYS), now + 1)
    days, sold = history.sales.dates[past], history.sales.units[row, past]
    gone = history.sales.censored[row, past]
    ax.plot(days, sold, color="#2b2d42", lw=1, marker=".", ms=4, label="sold")
    ax.plot(days[gone], sold[gone], "^", color=COLORS[UNCALIBRATED], ms=5, label="sold out")
    ahead = order.today + 1 + np.arange(order.fan.shape[1])
    for low, high, alpha in ((0, 4, 0.2), (1, 3, 0.35)):
        ax.fill_between(ahead, order.fan[low], order.fan[high], color=COLORS[CALIBRATED], alpha=alpha, lw=0)
    ax.plot(ahead, order.fan[2], color=COLORS[CALIBRATED], lw=1.5, label="expected: median, 50 and 90 %")
    at: Any = order.delivery  # matplotlib draws dates, its types do not say so
    ax.axvline(at, color=COLORS[HEURISTIC], lw=1.2, ls="--", label="delivery")
    ax.set_title(for_plot(f"{named(order.key)}: order {order.decision.units}"), fontsize=9, loc="left")
    ax.set_ylim(0, None)
    _date_axis(ax, weekly=True)
    ax.tick_params(labelsize=7)
    ax.spines[["top", "right"]].set_visible(False)


def _date_axis(ax: Axes, *, weekly: bool) -> None:
    """Dates below the axes: every Monday, or as many as there is room for."""
    import matplotlib.dates

    dates: Any = matplotlib.dates  # has no types
    where = dates.WeekdayLocator(dates.MO) if weekly else dates.AutoDateLocator()
    form = dates.DateFormatter("%d %b") if weekly else dates.ConciseDateFormatter(where, show_offset=False)
    ax.xaxis.set(major_locator=where, major_formatter=form)


def backtest_figure(backtest: Backtest) -> Figure:
    """Left: cost so far, by day. Right: waste and lost sales in units, by policy."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    for name in backtest.units:
        left.plot(backtest.dates, backtest.money(name).sum(0).cumsum(), color=COLORS[name], lw=2, label=name)
    left.set(ylabel="cost so far: waste and lost sales", ylim=(0, None))
    _date_axis(left, weekly=False)
    left.tick_params(labelsize=8)
    left.legend(frameon=False, fontsize=8)
    height = np.arange(len(backtest.units))[::-1]
    for y, (name, found) in zip(height, backtest.units.items(), strict=True):
        wasted, unmet = int(found.wasted.sum()), int(found.unmet.sum())
        right.barh(y, wasted, color=COLORS[name], height=0.6)
        right.barh(y, unmet, left=wasted, color=COLORS[name], height=0.6, alpha=0.45, hatch="//", edgecolor="white")
        right.text(wasted + unmet, y, f"  {wasted:,} + {unmet:,}", va="center", fontsize=8)
    right.set_yticks(height, list(backtest.units), fontsize=8)
    right.set(xlabel="units wasted (solid) and lost sales (hatched)")
    right.margins(x=0.4)
    for ax in (left, right):
        ax.spines[["top", "right"]].set_visible(False)
    return figure
