"""The backtest as a picture: what each policy cost as the days went by, and what that was made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from calibrl.inventory.shop.backtest import BARE, HEURISTIC, HONEST, PRESENT, STAND_IN, Replay

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = {PRESENT: "#8a8d99", STAND_IN: "#8a8d99", HEURISTIC: "#e09f3e", BARE: "#c8553d", HONEST: "#1b7f79"}
"""One colour per policy: uncalibrated red, calibrated green, as in every figure."""


def backtest_figure(replay: Replay) -> Figure:
    """Left: cost so far, by day. Right: waste and lost sales in units, by policy."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    for name in replay.outcome:
        left.plot(replay.dates, replay.money(name).sum(0).cumsum(), color=COLORS[name], lw=2, label=name)
    left.set(ylabel="cost so far: waste and lost sales", ylim=(0, None))
    left.tick_params(axis="x", labelrotation=30, labelsize=8)
    left.legend(frameon=False, fontsize=8)
    height = np.arange(len(replay.outcome))[::-1]
    for y, (name, found) in zip(height, replay.outcome.items(), strict=True):
        wasted, unmet = int(found.wasted.sum()), int(found.unmet.sum())
        right.barh(y, wasted, color=COLORS[name], height=0.6)
        right.barh(y, unmet, left=wasted, color=COLORS[name], height=0.6, alpha=0.45, hatch="//", edgecolor="white")
        right.text(wasted + unmet, y, f"  {wasted:,} + {unmet:,}", va="center", fontsize=8)
    right.set_yticks(height, list(replay.outcome), fontsize=8)
    right.set(xlabel="units wasted (solid) and lost sales (hatched)")
    right.margins(x=0.25)
    for ax in (left, right):
        ax.spines[["top", "right"]].set_visible(False)
    return figure
