"""How a shop's demand is forecast: a line for all items, trees that correct it, a map on top, and paths of days.

**The line** is one robust linear model for all items, in units of each item's level, a lead day at a time. It starts
from the mean of the last four same weekdays and departs from it only as far as the rows insist (a ridge around that
mean). Medians are regressed, not means: one wedding cake for two hundred must not move Tuesday's bread.

**The trees** learn where it is wrong. Holidays, promotions and prices act differently on every item and weekday; a line
cannot say "closed on holidays, unless the shop opens on Sundays". Gradient-boosted trees can, given enough rows. With
few, the line is kept.

**Evening out.** One map for all items is too wide for slow sellers and too narrow around holidays. So before it, each
kind of day (by volume, weekday, distance to a holiday) is stretched as the latest days say, and after it, all days are,
while the latest fell outside their intervals too often.

**The map** has one column per lead day, pooled over all items, and is learnt on days after those that the forecaster is
trained on. A day that sold out enters as "demand was at least this", by the weights of Kaplan and Meier: its share of
the evidence goes to the days that did better. Where few or none did, the forecast itself says how much more there could
have been: goods that always sell out teach a map that changes nothing. Days are counted, not rows: items have their odd
days together.

**Paths** have each day's own margin, joined by the ranks of correlated draws, because good days come together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.special import stdtrit
from sklearn.ensemble import HistGradientBoostingRegressor
from torch import Tensor
from torch.distributions import Distribution, Normal

from calibrl.algorithm import Calibrated, Forecaster
from calibrl.arrays import Array, as_tensor
from calibrl.data import Data, Remembered
from calibrl.distributions import Recalibrated, Rounded, pit_z
from calibrl.distributions.zscores import from_zscore
from calibrl.errors import CalibrlError
from calibrl.evidence import Censored
from calibrl.inventory.problems import Flags, Floats
from calibrl.kernels import normal
from calibrl.maps import FitMap, Map, fit_isotonic
from calibrl.shop.features import (
    HISTORY,
    LEAD_IN,
    MONTHDAY,
    NEAR,
    SCALE,
    SHUT,
    SPREAD,
    WEEKDAY,
    MovingSums,
    draw_at_least,
    rows,
)

FOUR_WEEKS = 2
"""The regressor that is the mean of the last four same weekdays."""

PRIOR_ROWS = 5.0
"""How many rows the belief in that mean is worth."""

NEAR_SPREAD = 0.08
"""The least by which a holiday near by adds to the mean distance, as a share of the median: trees remember the holidays
they were shown, and the next is another."""

ROUNDS = 8
"""Reweighted least squares towards the median."""

ENOUGH_ROWS = 5_000
"""Rows from which on trees are grown."""

MOST_OUTCOMES = 60_000
"""Outcomes, over all lead days, that the trees are grown on: more take longer and gain little."""

TREES, LEARNING_RATE, LEAVES, LEAST_IN_LEAF = 60, 0.15, 31, 60

OUTCOMES = 200_000
"""Outcomes, over all lead days, to train on and to calibrate on: more change nothing and take longer."""

VOLUMES = 5
KINDS = (VOLUMES, 7, 3)
"""Kinds of days: by volume, weekday, and distance to a holiday."""

DOUBT, SWEEPS = 8.0, 2
"""Days that it takes to believe half-way that a kind of day differs; rounds in which the kinds take turns."""

UNSEEN = 2.0
"""How much less certain a holiday is than other days, to a shop that was never open on one."""

MISSED, PACE = 1.645, 0.15
"""The z-score at the ends of the 90 % interval, and how fast the width follows outcomes outside of it."""

DAYS_ALIKE, CHANCE = 7, 3.0
"""Days within which what all items share may last; how many times its variance the square of an offset must be, to be
believed at all."""

HELD_OUT = 120
"""Days at the end that the forecaster is not trained on; a quarter of a shorter history."""

PAST = 730
"""Days before those to train on."""


class LinearDemand:
    """Medians and spreads of demand, `leads` days ahead; a `Forecaster` on rows of `features.rows`.

    x: (n, leads, k); y: (n, leads) units, NaN where nobody knows; forecasts have batch shape (n, leads). `slopes`
    learns the line of one lead day from its rows. Learnt: slope (leads, k) of the median, and width (leads, 4) of the
    mean distance to it, by its parts.
    """

    def __init__(self, slopes: Callable[[Floats, Floats], Floats] | None = None) -> None:
        self.slopes = slopes or median_slopes
        self.rows = Remembered()
        self.slope = self.width = np.zeros((0, 0))

    def update(self, data: Data) -> None:
        """Learn from all rows, these and those given before."""
        data = self.rows.add(data)
        x, y = data.x.double().numpy(), data.y.double().numpy()
        if x.ndim != 3 or x.shape[:2] != y.shape:
            raise CalibrlError(f"features {x.shape} do not fit demand {y.shape}; expected (n, leads, k) and (n, leads)")
        self.slope = np.stack([self.slopes(x[:, lead], y[:, lead]) for lead in range(x.shape[1])])
        self.width = width_of(x, y, middle_of(x, self.slope))

    def __call__(self, x: Tensor) -> Rounded:
        """Whole units, never negative; a day that is closed sells nothing."""
        if not len(self.slope):
            self.update(Data(x[:0], x.new_zeros(0, x.shape[1])))
        rows = x.double().numpy()
        return as_counts(rows, middle_of(rows, self.slope), self.width)


def as_counts(x: Floats, middle: Floats, width: Floats) -> Rounded:
    """Counts around a median (n, leads) in units, with the spread that width (leads, 4) makes of the features."""
    learnt = 1.25 * (_parts(x, middle) * width).sum(-1)
    # A short record knows its own level less well; without any, nothing learnt from others says how far off it is.
    weeks = x[..., HISTORY]
    spread = np.where(weeks > 0, learnt * np.sqrt(1 + 1 / np.maximum(weeks, 0.25)), x[..., SPREAD])
    shut = x[..., SHUT] > 0
    loc = torch.from_numpy(np.where(shut, -1.0, middle))
    scale = torch.from_numpy(np.where(shut, 0.05, np.maximum(spread, 0.2)))
    return Rounded(Normal(loc, scale, validate_args=False))


def middle_of(x: Floats, slope: Floats) -> Floats:
    """(…): the median in units, on the line with these slopes."""
    return np.maximum((x[..., LEAD_IN:] * slope).sum(-1), 0.0) * x[..., SCALE]


def usable(x: Floats, y: Floats) -> NDArray[np.bool_]:
    """Outcomes to learn from: known, and not of a day that is closed."""
    return ~np.isnan(y) & (x[..., SHUT] == 0)


def width_of(x: Floats, y: Floats, middle: Floats) -> Floats:
    """(leads, 4): shares, none negative, in which the parts make up each lead day's mean distance to the median."""
    found = np.zeros((x.shape[1], 4))
    prior, believed = np.array([0.8, 0.2, 0.0, NEAR_SPREAD]), np.sqrt(PRIOR_ROWS) * np.eye(4)
    for lead, known in enumerate(usable(x, y).T):
        at = (known, lead)
        parts, over = _parts(x[at], middle[at]), np.sqrt(x[at][:, SCALE])
        off = np.minimum(np.abs(y[at] - middle[at]), 6 * parts[:, 0])
        design, target = (
            np.concatenate([parts / over[:, None], believed]),
            np.concatenate([off / over, believed @ prior]),
        )
        found[lead] = np.maximum(nnls(design, target)[0], [0.05, 0.05, 0.0, NEAR_SPREAD])
    return found


def four_weeks(x: Floats) -> Floats:
    """(k,): slopes that give the mean of the last four same weekdays."""
    slope = np.zeros(x.shape[-1] - LEAD_IN)
    slope[FOUR_WEEKS] = 1.0
    return slope


def median_slopes(x: Floats, y: Floats) -> Floats:
    """(k,): slopes of the median of y over the item's level. x: (n, k + 4), y: (n,)."""
    known = usable(x, y)
    design, target = x[known, LEAD_IN:], (y / x[:, SCALE])[known]
    start = four_weeks(x)
    if not len(target):
        return start
    # Units count, not items; but no single item more than the largest twentieth of rows.
    level = x[known, SCALE]
    weight = np.minimum(level, np.quantile(level, 0.95))
    weight /= weight.mean()
    slope = start
    for _ in range(ROUNDS):
        off = np.abs(target - design @ slope)
        now = weight / np.maximum(off, 0.05)
        square = (design * now[:, None]).T @ design
        ridge = PRIOR_ROWS * np.mean(now) * np.eye(len(start))
        slope = start + np.linalg.solve(square + ridge, (design * now[:, None]).T @ (target - design @ start))
    return slope


def _parts(x: Floats, middle: Floats) -> Floats:
    """(…, 4): what the mean distance to the median is made of, in units."""
    return np.stack([x[..., SPREAD], np.sqrt(middle + 0.25), middle, middle * x[..., NEAR]], -1)


class BoostedDemand:
    """Medians by trees over the linear model's features and its answer; spreads as in the linear model.

    A `Forecaster` on the same rows as `LinearDemand`.
    """

    def __init__(self) -> None:
        self.line = LinearDemand()
        self.rows = Remembered()
        self.trees: HistGradientBoostingRegressor | None = None
        self.width = np.zeros((0, 4))

    def update(self, data: Data) -> None:
        """Learn from all rows, these and those given before."""
        self.line.update(data)
        data = self.rows.add(data)
        self.trees = None
        if len(data) < ENOUGH_ROWS:
            return
        x, y = data.x.double().numpy(), data.y.double().numpy()
        level = x[..., SCALE]
        known = np.flatnonzero(usable(x, y))
        # Large sellers are drawn more often: weights would say the same, and take four times as long to bin.
        weight = np.sqrt(np.minimum(level, np.quantile(level, 0.95))).reshape(-1)[known]
        count = min(len(known), MOST_OUTCOMES)
        chosen = np.random.default_rng(0).choice(known, count, p=weight / weight.sum())
        trees = HistGradientBoostingRegressor(
            loss="absolute_error",
            max_iter=TREES,
            learning_rate=LEARNING_RATE,
            max_leaf_nodes=LEAVES,
            min_samples_leaf=LEAST_IN_LEAF,
            l2_regularization=1.0,
            early_stopping=False,
            random_state=0,
        )
        seen, target = self._seen(x)[chosen], (y / level).reshape(-1)[chosen]
        self.trees = trees.fit(seen, target)
        self.width = width_of(x, y, self._middle(x))

    def __call__(self, x: Tensor) -> Rounded:
        """Whole units, never negative; a day that is closed sells nothing."""
        if self.trees is None:
            return self.line(x)
        rows = x.double().numpy()
        return as_counts(rows, self._middle(rows), self.width)

    def _middle(self, x: Floats) -> Floats:
        """(n, leads): the median in units. x: (n, leads, k)."""
        if self.trees is None or not len(x):
            return np.zeros(x.shape[:2])
        return np.maximum(self.trees.predict(self._seen(x)).reshape(x.shape[:2]), 0.0) * x[..., SCALE]

    def _seen(self, x: Floats) -> Floats:
        """(n · leads, …): what the trees are shown."""
        n, leads, _ = x.shape
        level = x[..., SCALE]
        line = middle_of(x, self.line.slope) / level
        lead = np.broadcast_to(np.arange(leads, dtype=np.float64), (n, leads))
        more = np.stack([np.log(level), x[..., SPREAD] / level, line, lead, x[..., NEAR], x[..., MONTHDAY]], -1)
        return np.concatenate([x[..., LEAD_IN:-1], more], -1).reshape(n * leads, -1)


class Evened:
    """A forecaster stretched so that its forecasts fit alike by volume, weekday and distance to a holiday.

    A map that all items share is right on average: too wide for one kind of day, too narrow for another. `even` learns
    by how much from rows the forecaster was not trained on; each kind is pulled towards all the more, the fewer days it
    was seen on. A `Forecaster` on rows of `features.rows`.

    Parameters
    ----------
    forecaster : Forecaster
        Answers `Rounded` Gaussians.
    """

    def __init__(self, forecaster: Forecaster) -> None:
        self.forecaster = forecaster
        self.edges = np.zeros(VOLUMES - 1)
        self.stretch = [np.ones(kinds) for kinds in KINDS]
        self.width = 1.0

    def update(self, data: Data) -> None:
        """Train the forecaster."""
        self.forecaster.update(data)

    def __call__(self, x: Tensor) -> Rounded:
        """The forecasts, stretched about their medians; closed days stay as they are."""
        gauss = cast(Normal, cast(Rounded, self.forecaster(x)).base)
        stretch = torch.from_numpy(self.width * self._stretch(x.numpy()))
        scale = torch.where(x[..., SHUT] > 0, gauss.scale, gauss.scale * stretch)
        return Rounded(Normal(gauss.loc, scale, validate_args=False))

    def even(self, rows: Data, day: NDArray[np.int64], generator: torch.Generator, *, holidays: int = 0) -> None:
        """Learn the stretches from rows the forecaster has not seen, whose outcomes came on day (n, leads).

        holidays: days of them that the shop has a record of. The next is another one: the fewer, the less is known.
        """
        x, self.width = rows.x.numpy(), 1.0
        z = np.clip(pit_z(self.forecaster(rows.x), rows.y, generator=generator).numpy(), -5, 5)
        known = ~np.isnan(z) & ~cast(Tensor, rows.censored).numpy()
        self.edges = np.quantile(x[:, 0, SCALE], np.arange(1, VOLUMES) / VOLUMES)
        self.stretch = [np.ones(kinds) for kinds in KINDS]
        for _ in range(SWEEPS):
            for k, kind in enumerate(self._kinds(x)):
                left = z / self._stretch(x)
                whole = _reach(left[known])
                for group in range(KINDS[k]):
                    seen = known & (kind == group)
                    days = len(np.unique(day[seen]))
                    if days and whole > 0:
                        self.stretch[k][group] *= max(_reach(left[seen]) / whole, 0.2) ** (days / (days + DOUBT))
        self.stretch[2][2] *= UNSEEN ** (DOUBT / (holidays + DOUBT))

    def adapt(self, z: Floats, day: NDArray[np.int64]) -> None:
        """Widen all forecasts if the latest days fell outside too often: adaptive conformal inference.

        z: (n, leads) of what was held out, calibrated, NaN where unknown. Day after day, the log of the width moves by
        so much for each outcome too many (or too few) outside the 90 % interval; it does not fall below 0, which is
        where the map has put it.
        """
        known, width = ~np.isnan(z), 0.0
        far, days = np.abs(z[known]) / MISSED, day[known]
        for today in np.unique(days):
            missed = float((far[days == today] > np.exp(width)).mean())
            width = max(0.0, width + PACE * (missed - 0.1))
        self.width = float(np.exp(width))

    def _kinds(self, x: Floats) -> tuple[NDArray[np.int64], ...]:
        """What kind each day is of: (n, leads), by volume, weekday, and whether it is near a holiday, or one."""
        volume = np.searchsorted(self.edges, x[..., SCALE])
        return volume, x[..., WEEKDAY].astype(np.int64), (2 * x[..., NEAR]).astype(np.int64)

    def _stretch(self, x: Floats) -> Floats:
        return np.prod([one[kind] for one, kind in zip(self.stretch, self._kinds(x), strict=True)], 0)


def _reach(z: Floats) -> float:
    """How far out z-scores reach: the distance from their median that nine in ten stay within."""
    return float(np.quantile(np.abs(z - np.median(z)), 0.9)) if len(z) else 1.0


def fit_by_days(day: NDArray[np.int64]) -> FitMap:
    """`fit_isotonic` for outcomes that came on day (n, leads), as far as so many days can be believed.

    A hundred items on an odd day say one thing, not a hundred: days are what is counted, and those close together as
    less. The side that most outcomes fell on is believed only beyond what chance makes of it; what is not believed, and
    what so few days leave open, is added to the spread, by Student's law.
    """

    def fit(pit: Array | None = None, *, weight: Array | None = None, z: Array | None = None) -> Map:
        shown = (normal.quantile(as_tensor(pit)) if z is None else as_tensor(z)).numpy().copy()
        counts = (~np.isnan(shown)).astype(float) if weight is None else as_tensor(weight).numpy()
        for lead in np.flatnonzero(counts[: len(day)].sum(0) > 0):
            shown[:, lead] = _settled(shown[:, lead], counts[:, lead], day[:, lead])
        return fit_isotonic(z=shown, weight=weight)

    return fit


def _settled(z: Floats, weight: Floats, day: NDArray[np.int64]) -> Floats:
    """(n,): z-scores, of which the first came on day (m,), moved and stretched to what days can tell."""
    own, share = np.clip(np.nan_to_num(z), -5, 5), weight / weight.sum()
    order = np.argsort(own)
    off = own[order][np.searchsorted(share[order].cumsum(), 0.5)]
    spread = max(float(share @ (own - off) ** 2), 1e-9)
    sides = np.bincount(day - day.min(), (share * np.sign(own - off))[: len(day)])
    lags = np.correlate(sides, sides, "full")[len(sides) - 1 :][:DAYS_ALIKE]
    together = 2 * lags @ (1 - np.arange(len(lags)) / DAYS_ALIKE) - lags[0]
    # As if one day more had been all on one side. A median varies by π/2 of what a mean does.
    doubt = np.pi / 2 * (max(together, lags[0]) + len(np.unique(day[weight[: len(day)] > 0])) ** -2.0)
    believed = max(0.0, 1 - CHANCE * doubt * spread / max(off**2, 1e-9))
    wide = np.sqrt(1 + doubt + (1 - believed**2) * off**2 / spread) * stdtrit(max(1 / doubt, 2.0), 0.95) / MISSED
    return np.concatenate([believed * off + (z - off)[: len(day)] * wide, z[len(day) :]])


def boosted() -> Evened:
    """The default: trees on a line, evened."""
    return Evened(BoostedDemand())


def correlation(z: Floats) -> Floats:
    """(d, d): correlation of columns with gaps, pulled towards none by 50 rows' worth of doubt, positive definite."""
    seen = ~np.isnan(z)
    tame = np.where(seen, np.clip(z, -4, 4), 0.0)
    both = seen.T.astype(np.float64) @ seen
    square = tame.T @ tame
    power = (tame**2).T @ seen
    rho = square / np.sqrt(np.maximum(power * power.T, 1e-12)) * both / (both + 50)
    np.fill_diagonal(rho, 1.0)
    value, vector = np.linalg.eigh(rho)
    fixed = (vector * np.maximum(value, 1e-3)) @ vector.T
    scale = np.sqrt(np.diag(fixed))
    return fixed / np.outer(scale, scale)


def ranks(rho: Floats, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """(count, d): the ranks of `count` joint draws with these correlations, each column a permutation."""
    draws = rng.standard_normal((count, len(rho))) @ np.linalg.cholesky(rho).T
    return np.asarray(draws.argsort(0).argsort(0), dtype=np.int64)


def paths(forecast: Distribution, rank: NDArray[np.int64], *, new: Flags) -> Floats:
    """(s, m, leads) whole units: each day's m values are its forecast's even quantiles, joined by rank (m, leads).

    new: (s,) items without a record: how well one will sell is unknown for all its days alike, which move as one.
    """
    count, leads = rank.shape
    z = normal.quantile((torch.arange(count, dtype=torch.float64) + 0.5) / count)[:, None].expand(count, leads)
    if isinstance(forecast, Recalibrated):
        # R is the same for all items: turned round once, not once for each.
        z = forecast.mapping.inverse_z(z)
        forecast = forecast.base
    joined = z.gather(0, torch.from_numpy(rank))
    drawn: Tensor = from_zscore(forecast, joined[:, None, :].expand(count, *forecast.batch_shape))
    found = np.ascontiguousarray(np.maximum(np.rint(drawn.numpy()), 0.0).transpose(1, 0, 2))
    found[new] = np.sort(found[new], 1)[:, rank[:, 0]]
    return found


@dataclass(frozen=True)
class DemandModel:
    """What was learnt of demand by one evening.

    model: forecaster and map, one column of it per lead day; rho: (leads, leads) correlation of the days' z-scores;
    trained_until: the last day the forecaster was trained on.
    """

    model: Calibrated
    rho: Floats
    trained_until: int

    def forecast(self, sums: MovingSums, *, calibrated: bool = True, series: range | None = None) -> Distribution:
        """Demand of the next days in units, batch shape (s, leads), as seen on the record's last evening.

        series: of which item-stores; default: all.
        """
        which = np.arange(len(sums.record.units)) if series is None else np.array(series)
        x = torch.from_numpy(rows(sums, which, np.full(len(which), sums.record.today), len(self.rho)))
        if calibrated:
            return self.model(x)
        bare = self.model.forecaster
        return (bare.forecaster if isinstance(bare, Evened) else bare)(x)

    def look_back(self, sums: MovingSums, days: int) -> Floats:
        """(s, 3, days): of each of the last days, as forecast the evening before, the 5, 50 and 95 % quantiles.

        The forecaster has not been trained on these days if they are among the latest.
        """
        count, found = len(sums.record.units), np.zeros((len(sums.record.units), 3, days))
        z = normal.quantile(torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64))
        for k in range(days):
            evening = np.full(count, sums.record.today - days + k)
            forecast = self.model(torch.from_numpy(rows(sums, np.arange(count), evening, len(self.rho))))
            drawn = from_zscore(forecast, z[:, None, None].expand(3, *forecast.batch_shape))
            found[:, :, k] = drawn[:, :, 0].T.numpy()
        return found


def train(
    sums: MovingSums, *, leads: int, rng: np.random.Generator, make_forecaster: Callable[[], Forecaster] = boosted
) -> DemandModel:
    """Train a forecaster on what is known, and calibrate it on the latest days, which it has not seen."""
    today = sums.record.today
    cut = today - min(HELD_OUT, (today + 1) // 4)
    past, _ = _data(sums, range(max(28, cut - PAST), cut), cut, leads, rng, training=True)
    return _learn(make_forecaster(), past, sums, leads=leads, since=cut, rng=rng)


def calibrate(known: DemandModel, sums: MovingSums, *, rng: np.random.Generator) -> DemandModel:
    """Learn the map of a forecaster anew, from the latest days after those it was trained on."""
    return _learn(known.model.forecaster, None, sums, leads=len(known.rho), since=known.trained_until, rng=rng)


def _learn(
    forecaster: Forecaster, past: Data | None, sums: MovingSums, *, leads: int, since: int, rng: np.random.Generator
) -> DemandModel:
    """Steps 2 to 4 of Algorithm 1: T is trained on the past, if any is given, and R on the latest days since."""
    today = sums.record.today
    latest, day = _data(sums, range(max(28, since, today - HELD_OUT), today), today, leads, rng)
    held_out = Censored(lambda data: torch.full((len(data),), data is latest), rng=rng)
    generator = torch.Generator().manual_seed(int(rng.integers(2**31)) if len(latest) else 0)
    model = Calibrated(forecaster, evidence=held_out, fit_map=fit_by_days(day), generator=generator)
    if past is not None:
        model.update(past)
    if isinstance(forecaster, Evened) and len(latest):
        forecaster.even(latest, day, generator, holidays=sums.record.holidays)
    model.update(latest)
    if not len(latest):
        return DemandModel(model, np.eye(leads), since)
    calibrated = cast(Map, model.mapping).forward_z(torch.from_numpy(held_out.z))
    known = calibrated.masked_fill(cast(Tensor, latest.censored), torch.nan).numpy()
    if isinstance(forecaster, Evened):
        forecaster.adapt(known, day)
    return DemandModel(model, correlation(known), since)


def _data(
    sums: MovingSums, evenings: range, last: int, leads: int, rng: np.random.Generator, *, training: bool = False
) -> tuple[Data, NDArray[np.int64]]:
    """Rows of item-stores on evenings, censored where a day sold out, and the days (n, leads) they are about.

    Nothing after `last` is seen.

    training: leave out days that were shut against the habit, which teach a model nothing about open days unless it
    knew of the event (a map that never met them would promise too much), and draw the demand of a day that sold out
    from what it could have been.
    """
    record = sums.record
    begun = record.begun[:, [max(0, day - 28) for day in evenings]] & (record.history.days_on_record > 0)[:, None]
    found = np.argwhere(begun)
    most = OUTCOMES // leads
    if len(found) > most:
        found = found[np.sort(rng.choice(len(found), most, replace=False))]
    series, evening = found[:, 0], found[:, 1] + (evenings.start if len(evenings) else 0)
    # In the order of time.
    order = np.argsort(evening, kind="stable")
    series, evening = series[order], evening[order]
    x = rows(sums, series, evening, leads)
    day = evening[:, None] + np.arange(1, leads + 1)
    inside = np.minimum(day, record.units.shape[1] - 1)
    at = (series[:, None], inside)
    y = np.where(day <= last, record.units[at], np.nan)
    unknown = (x[..., SHUT] > 0) | record.history.sales.closed[at] | record.wild[at]
    if training:
        cut = record.history.sales.censored[at] & ~np.isnan(y)
        y[cut] = draw_at_least(y[cut], record.typical[at][cut], rng)
        announced = np.any([flag[at] for flag in record.event.values()], 0) if record.event else False
        unknown |= record.odd[at] & ~np.asarray(announced)
    y[unknown] = np.nan
    sold_out = record.history.sales.censored[at] & ~np.isnan(y)
    return Data(torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(sold_out)), day
