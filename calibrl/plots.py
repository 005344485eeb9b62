"""One function per figure: each draws on an Axes (a new one if none is given) and returns it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch.distributions import Distribution

from calibrl.arrays import Array, as_tensor
from calibrl.diagnostics import (
    class_reliability,
    coverage,
    pit_histogram,
    reliability_band,
    reliability_curve,
)
from calibrl.diagnostics.calibration import share_interval
from calibrl.distributions import from_zscore
from calibrl.errors import CalibrlError, check_within
from calibrl.kernels import normal
from calibrl.maps import Map
from calibrl.text import for_plot

BEFORE, AFTER, TRUTH, FAINT = "#c8553d", "#1b7f79", "#2b2d42", "#b8bcc8"
"""Uncalibrated, calibrated, what happened, and guide lines: the same in every figure."""

FINE_LEVELS = np.linspace(0.01, 0.99, 99)


def reliability(
    pit: Array, ax: Axes | None = None, *, label: str | None = None, color: str = BEFORE, band: bool = True
) -> Axes:
    """Draw the reliability curve: predicted level against observed share.

    Parameters
    ----------
    pit : array
        PITs of any shape, NaN where unseen.
    ax : Axes, optional
        A new one if not given.
    label, color : str, optional
        Of the curve.
    band : bool
        Whether a 90 % band is drawn around it.

    Returns
    -------
    Axes
        The one drawn on.
    """
    ax = _diagonal(ax, "predicted probability", "observed share")
    p = _flat(pit)
    curve = reliability_curve(p, FINE_LEVELS)
    if band:
        low, high = reliability_band(p, FINE_LEVELS)
        ax.fill_between(FINE_LEVELS, low, high, color=color, alpha=0.18, lw=0)
    ax.plot(curve.level, curve.observed, color=color, lw=2, label=label)
    return _tidy(ax, label)


def pit_bars(
    pit: Array, ax: Axes | None = None, *, bins: int = 20, label: str | None = None, color: str = BEFORE
) -> Axes:
    """Draw the PIT histogram: flat when calibrated, a bowl when over-confident, a hill when under-confident.

    Parameters
    ----------
    pit, ax, label, color
        As in `reliability`.
    bins : int
        How many bars.

    Returns
    -------
    Axes
        The one drawn on.
    """
    ax = _axes(ax)
    p = _flat(pit)
    height = pit_histogram(p, bins)
    edges = np.linspace(0, 1, bins + 1)
    # Were the forecast perfect, nine bars in ten would end inside this stripe.
    share = 1 / bins
    stray = 1.645 * np.sqrt(share * (1 - share) / len(p)) / share
    ax.axhspan(1 - stray, 1 + stray, color=FAINT, alpha=0.35, lw=0)
    ax.axhline(1, color=FAINT, lw=1, ls="--")
    ax.bar(edges[:-1], height, width=1 / bins, align="edge", color=color, alpha=0.75, edgecolor="white", label=label)
    ax.set(xlabel="PIT: where in its forecast the outcome fell", ylabel="density", xlim=(0, 1))
    ax.set_ylim(bottom=0)
    return _tidy(ax, label)


def interval_coverage(pit: Array, ax: Axes | None = None, *, label: str | None = None, color: str = BEFORE) -> Axes:
    """Draw the share of outcomes inside central intervals by the interval's nominal probability.

    Parameters
    ----------
    pit, ax, label, color
        As in `reliability`.

    Returns
    -------
    Axes
        The one drawn on.
    """
    ax = _diagonal(ax, "nominal coverage", "observed coverage")
    p = _flat(pit)
    levels = np.linspace(0.02, 0.98, 49)
    ax.plot(levels, [coverage(p, level) for level in levels], color=color, lw=2, label=label)
    return _tidy(ax, label)


def sharpness_bars(
    forecast: Distribution, ax: Axes | None = None, *, label: str | None = None, color: str = BEFORE
) -> Axes:
    """Draw how wide the forecasts are: a histogram of predictive standard deviations.

    Parameters
    ----------
    forecast : Distribution
        Of any batch shape.
    ax, label, color
        As in `reliability`.

    Returns
    -------
    Axes
        The one drawn on.
    """
    ax = _axes(ax)
    width_bars(forecast.stddev.detach().double().reshape(-1).cpu().numpy(), ax, color=color, label=label)
    ax.set(xlabel="predictive standard deviation", ylabel="forecasts")
    return _tidy(ax, label)


def width_bars(widths: NDArray[np.float64], ax: Axes, *, color: str, label: str | None) -> None:
    """Draw a histogram of widths, which may be equal but for rounding: bins so narrow are none.

    Parameters
    ----------
    widths : array of shape (n,)
        Not negative.
    ax, color, label
        As in `reliability`.
    """
    low, high = float(widths.min()), float(widths.max())
    around = 0.05 * high if high - low < 1e-6 * high else 0.0
    ax.hist(widths, bins=30, range=(low - around, high + around), color=color, alpha=0.6, label=label)


def map_curve(mapping: Map, ax: Axes | None = None, *, label: str | None = None, color: str = AFTER) -> Axes:
    """Draw the map R: what the forecaster said against what it should have said; a line per column.

    Parameters
    ----------
    mapping : Map
        What a fit returned.
    ax, label, color
        As in `reliability`.

    Returns
    -------
    Axes
        The one drawn on.
    """
    ax = _diagonal(ax, "p: said", "R(p): calibrated")
    p = torch.linspace(0, 1, 401, dtype=torch.float64)
    wide = p[:, None].expand(-1, *mapping.columns) if mapping.columns else p
    lines = ax.plot(p, mapping(wide), color=color, lw=2 if not mapping.columns else 1)
    lines[0].set_label(label)
    return _tidy(ax, label)


def intervals(
    forecast: Distribution,
    y: Array,
    ax: Axes | None = None,
    *,
    level: float = 0.9,
    most: int = 60,
    label: str | None = None,
    color: str = AFTER,
) -> Axes:
    """Draw forecast medians with central intervals, sorted by median, and the outcomes on top; misses are crosses.

    Parameters
    ----------
    forecast : Distribution
        Of batch shape (n,).
    y : array
        (n,) outcomes.
    ax, label, color
        As in `reliability`.
    level : float
        Probability of an interval, in (0, 1).
    most : int
        Rows that are drawn, from the first.

    Returns
    -------
    Axes
        The one drawn on.
    """
    outcome, shape = as_tensor(y).double().cpu(), forecast.batch_shape
    if len(shape) != 1 or outcome.shape != shape:
        raise CalibrlError(
            f"forecasts of shape {tuple(shape)} and outcomes of shape {tuple(outcome.shape)} are not one column; "
            "pass (n,) of both"
        )
    check_within("level", level, "(0, 1)", "0.9 draws 90 % intervals")
    ax, outcome = _axes(ax), outcome[:most]
    z = float(normal.quantile(torch.tensor((1 + level) / 2, dtype=torch.float64)))
    low, middle, high = (
        from_zscore(forecast, torch.full(shape, at, dtype=torch.float64)).detach().cpu()[:most] for at in (-z, 0.0, z)
    )
    order = middle.argsort()
    x = np.arange(len(order))
    missed = ((outcome < low) | (outcome > high))[order]
    ax.vlines(x, low[order], high[order], color=color, alpha=0.45, lw=3, label=label or "")
    ax.plot(x, middle[order], ".", color=color, ms=4)
    ax.plot(x[~missed], outcome[order][~missed], "o", color=TRUTH, ms=3)
    ax.plot(x[missed], outcome[order][missed], "x", color=BEFORE, ms=6, mew=1.6)
    ax.set(xlabel="forecasts, by median", ylabel="outcome")
    return _tidy(ax, label, loc="upper left")  # sorted by median, nothing is there


def class_reliability_curve(
    probs: Array,
    outcome: Array,
    ax: Axes | None = None,
    *,
    bins: int = 15,
    label: str | None = None,
    color: str = BEFORE,
    bars: bool = False,
) -> Axes:
    """Draw how often events came true by the probability they were given; a dot's area is the rows behind it.

    Of one event, or of two classes, that of class 1; of more classes that of the most likely one, confidence against
    accuracy. The band holds the true share of each bin in nine of ten cases; bins with less than half a percent of the
    rows are left out.

    Parameters
    ----------
    probs : array
        (n,) probabilities of an event, or (n, k) of classes.
    outcome : array
        (n,) numbers of the classes that came true.
    ax, label, color
        As in `reliability`.
    bins : int
        How many.
    bars : bool
        Whether each dot has a bar of its own instead of the band.

    Returns
    -------
    Axes
        The one drawn on.
    """
    ax = _diagonal(ax, "predicted probability", "observed share")
    given = as_tensor(probs)
    curve = class_reliability(given[:, 1] if given.dim() == 2 and given.shape[1] == 2 else given, outcome, bins=bins)
    full = (curve.rows > max(1.0, 0.005 * float(curve.rows.sum()))).numpy()
    x, y, rows = (part.numpy()[full] for part in curve)
    low, high = share_interval(y, rows)
    if bars:
        ax.vlines(x, low, high, color=color, lw=1.5)
    else:
        ax.fill_between(x, low, high, color=color, alpha=0.18, lw=0)
    ax.plot(x, y, color=color, lw=2, label=label)
    ax.scatter(x, y, s=12 + 160 * rows / rows.sum(), color=color, alpha=0.55, lw=0, clip_on=False)
    return _tidy(ax, label)


def level_shares(
    levels: Array, observed: Array, n: int, ax: Axes | None = None, *, label: str | None = None, color: str = BEFORE
) -> Axes:
    """Draw the reliability of quantiles at their own levels, with what chance alone would do.

    Parameters
    ----------
    levels, observed : array
        (k,) levels, and the shares of outcomes at or below their quantiles.
    n : int
        How many outcomes.
    ax, label, color
        As in `reliability`.

    Returns
    -------
    Axes
        The one drawn on.
    """
    ax = _diagonal(ax, "predicted level", "observed share")
    fine = np.linspace(0, 1, 101)
    stray = 1.645 * np.sqrt(fine * (1 - fine) / n)
    ax.fill_between(fine, (fine - stray).clip(0), (fine + stray).clip(max=1), color=FAINT, alpha=0.35, lw=0)
    x, y = as_tensor(levels).numpy(), as_tensor(observed).numpy()
    ax.plot(x, y, color=color, lw=2, marker="o", label=label)
    return _tidy(ax, label)


def share_dots(
    names: Sequence[str], share: Array, rows: Array, target: Array, ax: Axes | None = None, *, color: str = BEFORE
) -> Axes:
    """Draw shares side by side, each with its 90 % confidence interval, against what they should be.

    Parameters
    ----------
    names : sequence of str
        (m,) what each is the share of: groups, or periods of time.
    share, rows : array
        (m,) shares, and of how many rows.
    target : array
        (m,) what they should be, or one number for all.
    ax, color
        As in `reliability`.

    Returns
    -------
    Axes
        The one drawn on; first names are on top.
    """
    ax = _axes(ax)
    p, n = as_tensor(share).double().numpy(), as_tensor(rows).double().numpy()
    wanted = np.broadcast_to(as_tensor(target).double().numpy(), p.shape)
    low, high = share_interval(p, n)
    place = np.arange(len(p))[::-1]
    ax.hlines(place, low, high, color=color, lw=2)
    ax.scatter(p, place, color=color, zorder=3)
    ax.plot(wanted, place, color=FAINT, lw=1, ls="--", marker="|", zorder=1)
    ax.set(yticks=place, yticklabels=[for_plot(name) for name in names], ylim=(-0.6, len(p) - 0.4))
    ax.set_xlabel("share, with its 90 % interval")
    return _tidy(ax, None)


def overview(pits: dict[str, Array], *, title: str = "") -> Figure:
    """Draw reliability curves side by side with a PIT histogram for each named set of PITs.

    Parameters
    ----------
    pits : dict of str to array
        One or two, such as before and after a map.
    title : str
        Of the figure.

    Returns
    -------
    Figure
        A new one.
    """
    if not 1 <= len(pits) <= 2:
        raise CalibrlError(f"{len(pits)} sets of PITs were given; pass one or two, such as before and after")
    colors = (BEFORE, AFTER)
    figure, axes = plt.subplots(1, 1 + len(pits), figsize=(4.2 * (1 + len(pits)), 4), layout="constrained")
    for (name, values), color in zip(pits.items(), colors, strict=False):
        reliability(values, axes[0], label=name, color=color)
    for (name, values), ax, color in zip(pits.items(), axes[1:], colors, strict=False):
        pit_bars(values, ax, color=color)
        ax.set_title(name, fontsize=11)
    # One scale: bars of the same height mean the same before and after.
    top = max(ax.get_ylim()[1] for ax in axes[1:])
    for ax in axes[1:]:
        ax.set_ylim(top=top)
    figure.suptitle(for_plot(title))
    return figure


def _axes(ax: Axes | None) -> Axes:
    return plt.subplots(figsize=(4.2, 4), layout="constrained")[1] if ax is None else ax


def _diagonal(ax: Axes | None, xlabel: str, ylabel: str) -> Axes:
    """Axes of two probabilities, with the line on which they agree."""
    ax = _axes(ax)
    ax.plot([0, 1], [0, 1], color=FAINT, lw=1, ls="--", zorder=1)
    ax.set(xlabel=xlabel, ylabel=ylabel, xlim=(0, 1), ylim=(0, 1), aspect="equal")
    return ax


def tidy(figure: Figure) -> Figure:
    """Take the upper and right spines off all axes of a figure.

    Parameters
    ----------
    figure : Figure
        It is changed.

    Returns
    -------
    Figure
        The same.
    """
    for ax in figure.axes:
        ax.spines[["top", "right"]].set_visible(False)
    return figure


def _tidy(ax: Axes, label: str | None, *, loc: Literal["best", "upper left"] = "best") -> Axes:
    ax.spines[["top", "right"]].set_visible(False)
    if label is not None:
        ax.legend(frameon=False, fontsize=9, loc=loc)
    return ax


def _flat(pit: Array) -> np.ndarray:
    p = as_tensor(pit, "pit").detach().double().reshape(-1).cpu().numpy()
    return p[~np.isnan(p)]
