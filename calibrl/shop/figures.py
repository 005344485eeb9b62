"""Pictures for a shop: sales and what is expected next, and what each way of ordering would have cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrl.inventory.history import History, named
from calibrl.shop import backtest as ways
from calibrl.shop.backtest import CALIBRATED, HEURISTIC, UNCALIBRATED, Backtest
from calibrl.shop.orders import Order
from calibrl.text import for_plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
    _date(ax, weekly=True)
    ax.tick_params(labelsize=7)
    ax.spines[["top", "right"]].set_visible(False)


def _date(ax: Axes, *, weekly: bool) -> None:
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
    _date(left, weekly=False)
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
