"""A few order statistics of many numbers, without sorting them all."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

BINS = 65_536
"""Counting into them takes as long as sorting a quarter as many values."""


def order_statistics(values: Floats, ranks: NDArray[np.int64], *, low: float, high: float) -> Floats:
    """np.sort(values)[ranks] exactly, several times sooner when few ranks are wanted. values: (n,) without NaN.

    The values are counted into even bins of [low, high], those outside into the bins at the ends; only the
    bins that hold a wanted rank are sorted. Whatever the bins the answer is exact: they decide the speed.
    """
    if len(values) < max(8 * len(ranks), BINS // 4):
        return np.sort(values)[ranks]
    bin_of = ((values - low) * (BINS / (high - low))).clip(0, BINS - 1).astype(np.intp)
    count = np.bincount(bin_of, minlength=BINS)
    up_to = count.cumsum()
    home = np.searchsorted(up_to, ranks, side="right")
    wanted = np.zeros(BINS, dtype=bool)
    wanted[home] = True
    kept = np.sort(values[wanted[bin_of]])
    # What a rank loses when only the wanted bins are kept: everything in the bins below that are not.
    lost = (up_to - np.where(wanted, count, 0).cumsum())[home]
    return kept[ranks - lost]
