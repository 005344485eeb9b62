"""Steps 2 to 5 of Algorithm 1 for a shop: train on the past, calibrate on the months after it.

One map per lead day, pooled over all items. A day that sold out enters as "demand was at least this", by the weights
of Kaplan and Meier: its share of the evidence goes to the days that did better. Where few or none did, the forecast
itself says how much more there could have been: goods that always sell out teach a map that changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtri, ndtri_exp
from torch.distributions import Distribution

from calibrl.algorithm import Forecaster, recalibrate
from calibrl.data import Data
from calibrl.distributions import pit_z
from calibrl.maps import IDENTITY, FitMap, Map, fit_isotonic
from calibrl.runs.workers import one_thread
from calibrl.shop.boosted import BoostedDemand
from calibrl.shop.features import SHUT, Tables, rows
from calibrl.shop.joint import correlation
from calibrl.shop.record import draw_at_least

Floats = NDArray[np.float64]
Index = NDArray[np.int64]

OUTCOMES = 200_000
"""Outcomes, over all lead days, to train on and to calibrate on: more change nothing and take longer."""

HELD_OUT = 120
"""Days at the end that the forecaster is not trained on; a quarter of a shorter history."""

BELIEF, SHARES = 20.0, 200
"""Outcomes that the forecast's own word is worth where days sold out, and shares it is given in."""

PAST = 730
"""Days before those to train on."""


@dataclass(frozen=True)
class Demand:
    """A forecaster with its honest map, as learnt on one evening.

    leads: days ahead; mapping: R, one per lead day; rho: (leads, leads) correlation of the days' z-scores; taught:
    the last day the forecaster was trained on; rows: how many forecasts the map was learnt from.
    """

    forecaster: Forecaster
    mapping: Map
    rho: Floats
    leads: int
    taught: int
    rows: int

    def forecast(self, of: Tables, *, calibrated: bool = True) -> Distribution:
        """Demand of the next days, batch shape (s, leads), as seen on the record's last evening."""
        count = len(of.record.units)
        evening = np.full(count, of.record.today)
        x = rows(of, np.arange(count), evening, self.leads)
        forecast = self.forecaster(torch.from_numpy(x))
        return recalibrate(forecast, self.mapping) if calibrated else forecast


@one_thread()  # trees of this size are grown no sooner by two, and three times as late beside other work
def learn(
    of: Tables,
    *,
    leads: int,
    rng: np.random.Generator,
    make: Callable[[], Forecaster] = BoostedDemand,
    fit_map: FitMap = fit_isotonic,
) -> Demand:
    """Train a forecaster on what is known, and calibrate it on the latest days, which it has not seen."""
    forecaster, today = make(), of.record.today
    cut = today - min(HELD_OUT, (today + 1) // 4)
    train, _ = _data(of, range(max(28, cut - PAST), cut), cut, leads, rng, teaching=True)
    forecaster.update(train)
    return calibrate(forecaster, of, since=cut, leads=leads, rng=rng, fit_map=fit_map)


@one_thread()
def calibrate(
    forecaster: Forecaster,
    of: Tables,
    *,
    since: int,
    leads: int,
    rng: np.random.Generator,
    fit_map: FitMap = fit_isotonic,
) -> Demand:
    """Learn the map of a forecaster that was trained on days up to `since`, from the latest days after it."""
    today = of.record.today
    judged, sold_out = _data(of, range(max(28, since, today - HELD_OUT), today), today, leads, rng)
    if not len(judged):
        return Demand(forecaster, IDENTITY, np.eye(leads), leads, since, 0)
    generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
    with torch.no_grad():
        z = pit_z(forecaster(judged.x), judged.y, generator=generator)
    shown, weight = evidence(z.numpy(), sold_out, rng)
    mapping = fit_map(z=torch.from_numpy(np.where(weight > 0, shown, np.nan)), weight=torch.from_numpy(weight))
    honest = torch.where(torch.from_numpy(sold_out), torch.nan, mapping.forward_z(z))
    used = int((weight > 0)[: len(z), 0].sum())
    return Demand(forecaster, mapping, correlation(honest.numpy()), leads, since, used)


def _data(
    of: Tables, evenings: range, last: int, leads: int, rng: np.random.Generator, *, teaching: bool = False
) -> tuple[Data, NDArray[np.bool_]]:
    """Rows of item-stores on evenings, and (n, leads) which outcomes are sold out; nothing after `last` is seen.

    teaching: leave out days that were shut against the habit, which teach a model nothing about open days unless it
    was told of the event (a map that never met them would promise too much), and draw the demand of a day that sold out
    from what it could have been.
    """
    record = of.record
    begun = record.begun[:, [max(0, day - 28) for day in evenings]] & (record.history.days_on_record > 0)[:, None]
    found = np.argwhere(begun)
    most = OUTCOMES // leads
    if len(found) > most:
        found = found[np.sort(rng.choice(len(found), most, replace=False))]
    series, evening = found[:, 0], found[:, 1] + (evenings.start if len(evenings) else 0)
    # In the order of time.
    order = np.argsort(evening, kind="stable")
    series, evening = series[order], evening[order]
    x = rows(of, series, evening, leads)
    day = evening[:, None] + np.arange(1, leads + 1)
    inside = np.minimum(day, record.units.shape[1] - 1)
    at = (series[:, None], inside)
    y = np.where(day <= last, record.units[at], np.nan)
    unknown = (x[..., SHUT] > 0) | record.history.sales.closed[at]
    if teaching:
        blind = record.history.sales.censored[at] & ~np.isnan(y)
        y[blind] = draw_at_least(y[blind], record.typical[at][blind], rng)
        told = np.any([flag[at] for flag in record.event.values()], 0) if record.event else np.zeros(at[1].shape, bool)
        unknown |= record.odd[at] & ~told
    y[unknown] = np.nan
    sold_out = record.history.sales.censored[at] & ~np.isnan(y)
    return Data(torch.from_numpy(x), torch.from_numpy(y)), sold_out


def evidence(z: Floats, sold_out: NDArray[np.bool_], rng: np.random.Generator) -> tuple[Floats, Floats]:
    """(n + SHARES, d) z-scores that show demand, and their weights; those of `sold_out` are at least z.

    Where days sold out, outcomes as the forecast expects them stand beside the real ones, so that no single day
    inherits the share of all that sold out below it; a day that sold out above every other is placed where the
    forecast would have it, given that it was at least there.
    """
    count, blind = len(z), sold_out.any(0)
    believed = np.where(blind, ndtri((np.arange(SHARES)[:, None] + 0.5) / SHARES), np.nan)
    z, cut = np.concatenate([z, believed]), np.concatenate([sold_out, np.zeros(believed.shape, dtype=bool)])
    best = np.where(cut | np.isnan(z), -np.inf, z).max(0)
    beyond = cut & (z > best)
    z[beyond] = -ndtri_exp(log_ndtr(-z[beyond]) + np.log1p(-rng.random(int(beyond.sum()))))
    return z, kaplan_meier(z, cut & ~beyond, np.where(np.arange(len(z)) < count, 1.0, BELIEF / SHARES))


def kaplan_meier(z: Floats, sold_out: NDArray[np.bool_], mass: Floats | None = None) -> Floats:
    """(n, d): the weight of each z-score, when those of `sold_out` are only known to be at least z. NaN weighs 0.

    mass: (n,) what each counts for at first, by default 1.
    """
    mass = np.ones(len(z)) if mass is None else mass
    weight = np.where(np.isnan(z), 0.0, mass[:, None])
    for column in np.flatnonzero(sold_out.any(0)):
        seen = np.flatnonzero(~np.isnan(z[:, column]))
        # Among equals, what was seen comes before what was cut short.
        order = seen[np.lexsort((sold_out[seen, column], z[seen, column]))]
        cut = sold_out[order, column]
        cut[-1:] = False  # the largest has nobody to pass its share on to
        own = mass[order]
        at_risk = own[::-1].cumsum()[::-1]
        survive = np.cumprod(np.where(cut, 1.0, 1 - own / at_risk))
        before = np.concatenate([[1.0], survive[:-1]])
        weight[order, column] = np.where(cut, 0.0, before * own / at_risk) * own.sum()
    return weight
