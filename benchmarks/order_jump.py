"""How often a shop's 90 % intervals hold after demand has jumped from one day to the next.

    python benchmarks/order_jump.py [--shops 24] [--out results/shop/jump.jsonl]

Shops are simulated (those of `order_savings.py`, twelve items, half of them with swings that all items share; seeds
from 830 on). On day 400 the demand of every item is multiplied by 1.6, 0.6 or 1. Every evening forecasts tomorrow and
the seventh day with what was known then: trained every week, calibrated every evening. An arm is a `PACE` of the
adaptive width. `se_…`: standard errors of the shares, by shops.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from order_coverage import history_of
from order_savings import simulated

from calibrl.distributions.zscores import from_zscore
from calibrl.files import write_text
from calibrl.kernels import normal
from calibrl.runs.rows import Row, line, origin
from calibrl.shop import demand
from calibrl.shop.features import make_record, moving_sums
from calibrl.shop.orders import intervals

JUMP, BEFORE, AFTER, LEADS, FIRST_SEED = 400, 7, 28, 7, 830
KINDS: tuple[dict[str, float], ...] = ({"items": 12}, {"items": 12, "common": 0.25, "dispersion": 8})
PACES = (demand.PACE, 0.4)
EVEN = normal.quantile((torch.arange(300, dtype=torch.float64) + 0.5) / 300)


def replay(seed: int, factor: float, pace: float) -> Iterator[tuple[int, int, np.ndarray, np.ndarray]]:
    """Of each evening and lead: the day of the outcome, from the jump; which items held, and their interval scores."""
    sales, _ = simulated(seed, **KINDS[seed % 2])
    units, rng = sales.units.copy(), np.random.default_rng(seed)
    after = units[:, JUMP + 1 :]
    fewer = rng.binomial(np.nan_to_num(after).astype(int), min(factor, 1.0))
    units[:, JUMP + 1 :] = np.where(np.isnan(after), np.nan, np.rint(after * factor) if factor > 1 else fewer)
    history = history_of(replace(sales, units=units), "DE")
    level = np.nanmean(units[:, JUMP - 56 : JUMP], 1) + 1
    model, demand.PACE = None, pace
    for evening in range(JUMP - BEFORE, JUMP + AFTER):
        sums, rng = moving_sums(make_record(history.at(evening))), np.random.default_rng([0, evening])
        if model is None or (evening - JUMP) % 7 == 0:
            model = demand.train(sums, leads=LEADS, rng=rng)
        else:
            model = demand.calibrate(model, sums, rng=rng)
        shape = (len(EVEN), len(units), LEADS)
        drawn = from_zscore(model.forecast(sums), EVEN[:, None, None].expand(shape)).numpy()
        low, high = intervals(np.maximum(np.rint(drawn), 0).reshape(len(EVEN), -1).T, 0.9)
        low, high = low.reshape(shape[1:]), high.reshape(shape[1:])
        for lead in (1, LEADS):
            y, least, most = history.sales.units[:, evening + lead], low[:, lead - 1], high[:, lead - 1]
            known = ~np.isnan(y) & ~history.sales.closed[:, evening + lead] & (most > 0)
            score = (most - least + 20 * (np.maximum(least - y, 0) + np.maximum(y - most, 0))) / level
            yield evening - JUMP + lead, lead, ((least <= y) & (y <= most))[known], score[known]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--shops", type=int, default=24)
    options.add_argument("--out", type=Path)
    asked = options.parse_args()
    rows: list[Row] = []
    for factor in (1.6, 0.6, 1.0):
        for pace in PACES:
            found: dict[str, list[tuple[np.ndarray, ...]]] = defaultdict(list)
            for seed in range(FIRST_SEED, FIRST_SEED + asked.shops):
                for day, lead, held, score in replay(seed, factor, pace):
                    if day > 0:
                        week = "1" if day <= 7 else "2" if day <= 14 else "3-5"
                        found[f"lead_{lead}_week_{week}"].append((held, score, np.full(len(held), seed)))
            metrics = {}
            for name, parts in found.items():
                held, score, shop = (np.concatenate(part) for part in zip(*parts, strict=True))
                share, count = float(held.mean()), len(held)
                off = np.bincount(shop - FIRST_SEED, held - share)
                metrics |= {name: round(share, 4), f"se_{name}": round(float(np.sqrt((off**2).sum())) / count, 4)}
                metrics[f"score_{name}"] = round(float(score.mean()), 4)
            about = {"shops": asked.shops, "jump": factor}
            rows.append(
                Row("shop jump", f"demand times {factor:g}", f"pace {pace:g}", FIRST_SEED, metrics, settings=about)
            )
            print(rows[-1].problem, rows[-1].arm, metrics, flush=True)
    if asked.out:
        write_text(asked.out, "".join(map(line, [replace(rows[0], origin=origin()), *rows[1:]])))


if __name__ == "__main__":
    main()
