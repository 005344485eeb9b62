"""The shop's default forecaster: the linear model, and trees that learn where it is wrong.

Holidays, promotions and prices act differently on every item and weekday; a line cannot say "closed on holidays,
unless the shop opens on Sundays". Gradient-boosted trees can, given enough rows. With few, the line is kept.
"""

from __future__ import annotations

from typing import cast

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor
from torch import Tensor

from calibrl.data import Data, Remembered
from calibrl.distributions import Rounded
from calibrl.shop.demand import Fitted, Floats, LinearDemand, as_counts, middle_of, usable, width_of
from calibrl.shop.features import LEAD_IN, SCALE, SPREAD

ENOUGH_ROWS = 5_000
"""Rows from which on trees are grown."""

MOST_OUTCOMES = 60_000
"""Outcomes, over all lead days, that the trees are grown on: more take longer and gain little."""

TREES, LEARNING_RATE, LEAVES, LEAST_IN_LEAF = 60, 0.15, 31, 60


class BoostedDemand:
    """Medians by trees over the linear model's features and its answer; spreads as in the linear model.

    A `Forecaster` on the same rows as `LinearDemand`.
    """

    def __init__(self) -> None:
        self.line = LinearDemand()
        self.rows = Remembered()
        self.trees: HistGradientBoostingRegressor | None = None
        self.width = np.zeros((0, 3))

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
        chosen = np.random.default_rng(0).permutation(known)[:MOST_OUTCOMES]
        weight = np.sqrt(np.minimum(level, np.quantile(level, 0.95)))
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
        self.trees = trees.fit(seen, target, sample_weight=weight.reshape(-1)[chosen])
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
        line = middle_of(x, cast(Fitted, self.line.fitted).slope) / level
        lead = np.broadcast_to(np.arange(leads, dtype=np.float64), (n, leads))
        more = np.stack([np.log(level), x[..., SPREAD] / level, line, lead], -1)
        return np.concatenate([x[..., LEAD_IN:-1], more], -1).reshape(n * leads, -1)
