"""What the kernels of `calibrl.kernels.stock` and `calibrl.kernels.bellman` should say, in plain Python and NumPy."""

from __future__ import annotations

import math

import numpy as np

from calibrl.kernels.stock import (
    COUNTS,
    HELD,
    LOST,
    LOST_BEFORE,
    ORDER_WASTE,
    OUT,
    OUT_BEFORE,
    SPARED,
    UNMET,
    WASTE,
    sell_and_age,
)


def open_loop_reference(arrivals, paths, stock, *, waste, unmet, issuing):
    """Mean cost (n,) of plans with arrivals (n, h) over paths (m, h), from stock (L,) by days to expiry."""
    shelf = _tiled(stock, len(arrivals), len(paths))
    cost = np.zeros(shelf.shape[1:])
    for k in range(paths.shape[1]):
        shelf[-1] += arrivals[:, k, None]
        cost += sell_and_age(shelf, paths[:, k], waste=waste, unmet=unmet, issuing=issuing)
    return cost.mean(1)


def closed_loop_reference(
    first,
    levels,
    paths,
    stock,
    *,
    incoming,
    lead,
    pack,
    minimum,
    waste,
    unmet,
    issuing,
):
    """Mean cost (n,) of policies that order `first` (n,) tonight and up to levels (n, h) on later evenings."""
    shelf = _tiled(stock, len(levels), len(paths))
    days = paths.shape[1]
    coming = np.broadcast_to(np.asarray(incoming, dtype=np.float64)[:, None, None], (days, *shelf.shape[1:])).copy()
    coming[lead - 1] += first[:, None]
    cost = np.zeros(shelf.shape[1:])
    for k in range(days):
        due = k + lead - 1
        if k > 0 and due < days:
            missing = np.maximum(levels[:, k, None] - shelf.sum(0) - coming[k : due + 1].sum(0), 0)
            packs = np.floor(missing / pack + 0.5) * pack
            coming[due] += np.where(packs >= minimum, packs, np.where(2 * missing >= minimum, minimum, 0))
        shelf[-1] += coming[k]
        cost += sell_and_age(shelf, paths[:, k], waste=waste, unmet=unmet, issuing=issuing)
    return cost.mean(1)


def _tiled(stock, plans, paths):
    return np.tile(np.asarray(stock, dtype=np.float64)[:, None, None], (1, plans, paths))


def follow_reference(path, opening, arriving, terms, order, level, expected):
    """What `follow` should count along one path (9,), in plain Python, from a dictionary of batches.

    dict are units by last day; the order in question is kept apart, half a day before.
    """
    day, decided, life, pack, minimum = terms
    h = len(path)
    ours = day[0] + life - 1.5
    shelf = {e: float(u) for e, u in enumerate(opening)}
    brought = [float(order)] + [0.0] * (len(day) - 1)
    out = np.zeros(COUNTS)

    def opened(shelf, d):
        shelf = dict(shelf)
        if len(arriving):
            for e in range(h + 1):
                shelf[e] = shelf.get(e, 0.0) + arriving[d][e]
        for k, when in enumerate(day):
            if when == d:
                last = min(d + life - 1, h) if k else ours
                shelf[last] = shelf.get(last, 0.0) + brought[k]
        return shelf

    def after(shelf, sold):
        total = sum(shelf.values())
        return {e: u * (1 - sold / total) if total else 0.0 for e, u in shelf.items()}

    def foreseen(shelf, now, until):
        for d in range(now + 1, until):
            shelf = opened(shelf, d)
            shelf = {e: u for e, u in after(shelf, min(expected[d], sum(shelf.values()))).items() if e > d}
        return sum(opened(shelf, until).values())

    for d in range(h):
        shelf = opened(shelf, d)
        sold = min(sum(shelf.values()), path[d])
        unmet = path[d] - sold
        shelf = after(shelf, sold)
        wasted = {e: shelf.pop(e) for e in sorted(shelf) if e <= d}
        waste = sum(wasted.values())
        if d < day[0]:
            out[LOST_BEFORE] += unmet
            out[OUT_BEFORE] = max(out[OUT_BEFORE], float(unmet > 0))
        else:
            out[UNMET] += unmet
            out[WASTE] += waste
            out[HELD] += sum(shelf.values())
            if d < day[1]:
                out[LOST] += unmet
                out[OUT] = max(out[OUT], float(unmet > 0))
            out[ORDER_WASTE] += wasted.get(ours, 0.0)
        for k in range(1, len(day)):
            if decided[k] == d:
                wanted = level[k] - foreseen(shelf, d, day[k])
                if wanted > 1e-9:
                    brought[k] = math.ceil(max(wanted, minimum) / pack - 1e-9) * pack
    # Beyond the path an average day sells the mean, as long as the last delivery that outlasts the path keeps.
    left = sum(shelf.values())
    lasting = [when + life - h for when, units in zip(day, brought, strict=True) if units and when + life > h]
    sells = min(left, np.mean(expected) * (lasting or [life])[-1])
    out[SPARED] = sells / np.mean(expected)
    out[HELD] += out[SPARED] * sells / 2
    out[WASTE] += left - sells
    out[ORDER_WASTE] += shelf.get(ours, 0.0) * (1 - sells / left) if left else 0.0
    return out


def reference_action_values(rows, successor, probability, reward, discount, value):
    """What `action_values` should say, in plain NumPy, one state and action at a time."""
    states, actions = reward.shape
    found = np.empty((states, actions))
    for s in range(states):
        for a in range(actions):
            here = slice(rows[s * actions + a], rows[s * actions + a + 1])
            found[s, a] = reward[s, a] + discount * np.dot(probability[here], value[successor[here]])
    return found
