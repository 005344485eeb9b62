"""What a day without a row means: the shop was shut, nothing was sold, or nobody wrote it down.

Each item-store is judged by its own record, between its first day and today:

- nothing is on record in the whole store: the store was closed. (A store whose items often have no row may simply have
  sold nothing; there a day counts as closed only if that weekday is hardly ever on record.)
- the item's record has zeros in it: whoever keeps it writes zeros down, so a day without a row is missing;
- it has none: only sales are written down, so the day sold nothing, unless the gap is so long that the item cannot
  have been on offer: longer than two weeks, and than three times the gaps it usually has. Then it is missing.

A store that was closed was closed for all its items, also for those it did not sell yet: a new item knows the weekdays
on which its store is shut. A day marked closed in the file is closed, whatever was sold. Missing is never taken for
zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrl.inventory.sales import Days, Flags, Floats

HARDLY_EVER = 0.05
"""Share of a weekday's dates with any record, below which the store is closed on it; and the chance that an open store
has no record, below which one without is closed."""

LONGEST_GAP = 14
"""Days without a sale after which an item may not have been on offer."""


@dataclass(frozen=True)
class Settled:
    """units: (s, t) with zeros and NaN where they belong; closed: (s, t); notes: in words."""

    units: Floats
    closed: Flags
    notes: tuple[str, ...]


def settle(units: Floats, store: NDArray[np.int64], promised: Flags, days: Days) -> Settled:
    """Decide about every day without a record. units: (s, t), NaN without a row; promised: closed in the file."""
    units = units.copy()
    recorded = ~np.isnan(units)
    begun = np.maximum.accumulate(recorded, 1)
    closed = promised | _shut(recorded, store, days)
    units[promised & begun & np.isnan(units)] = 0.0
    writes_zeros = (units == 0).any(1, where=recorded) if units.size else np.zeros(len(units), dtype=bool)
    empty = begun & ~recorded & ~closed
    zeros = 0
    for row in np.flatnonzero(empty.any(1) & ~writes_zeros):
        sold_nothing = _short_gaps(empty[row], begun[row], recorded[row])
        units[row, sold_nothing] = 0.0
        zeros += int(sold_nothing.sum())
    missing = int((begun & np.isnan(units) & ~closed).sum())
    notes = []
    if zeros:
        notes.append(f"{zeros} item-days without a row count as no sales: the items' records hold sales only.")
    if missing:
        notes.append(f"{missing} item-days without a row count as missing, not as zero.")
    return Settled(units, closed, tuple(notes))


def _shut(recorded: Flags, store: NDArray[np.int64], days: Days) -> Flags:
    """(s, t): days on which the whole store has no record, since its first."""
    weekday = (days.astype(np.int64) + 3) % 7
    found = np.zeros_like(recorded)
    for each in np.unique(store):
        rows = store == each
        some = recorded[rows].any(0)
        first = int(some.argmax())
        share = np.array([_share(some[first:][weekday[first:] == day]) for day in range(7)])
        unlikely = np.minimum(_chance_of_none(recorded[rows]), share[weekday]) < HARDLY_EVER
        found[rows] = ~some & np.maximum.accumulate(some) & unlikely
    return found


def _chance_of_none(recorded: Flags) -> Floats:
    """(t,): that none of a store's items (k, t) has a record though the store is open, as of its last record.

    How often an item has one is counted on the days on which another has: on these the store was open for certain.
    """
    on_offer = np.maximum.accumulate(recorded, 1) & np.maximum.accumulate(recorded[:, ::-1], 1)[:, ::-1]
    open_days = on_offer & (recorded.sum(0) - recorded > 0)
    # Half a day of either kind, so that a short record is not taken for certainty.
    none = 1 - ((recorded & open_days).sum(1) + 0.5) / (open_days.sum(1) + 1)
    chance: Floats = np.exp(np.log(none) @ on_offer)
    last = np.maximum.accumulate(np.where(recorded.any(0), np.arange(recorded.shape[1]), 0))
    return chance[last]


def _share(seen: Flags) -> float:
    return float(seen.mean()) if len(seen) else 0.0


def _short_gaps(empty: Flags, begun: Flags, recorded: Flags) -> Flags:
    """(t,): the empty days in gaps short enough to mean that nothing was sold."""
    edge = np.diff(np.concatenate([[False], ~recorded & begun, [False]]).astype(np.int8))
    start, end = np.flatnonzero(edge == 1), np.flatnonzero(edge == -1)
    length = end - start
    # Every sale that follows another at once is a gap of zero: a steady seller has short gaps as a rule.
    usual = np.quantile(np.concatenate([length, np.zeros(int(recorded.sum()))]), 0.95)
    short = length <= max(LONGEST_GAP, 3 * usual)
    found = np.zeros_like(empty)
    for a, b, small in zip(start, end, short, strict=True):
        found[a:b] = small
    return found & empty
