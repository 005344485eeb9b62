"""What the paper printed (Malik et al., ICML 2019): its tables as data, to stand beside what was measured here."""

from __future__ import annotations

from calibrl.runs.experiment import ANY, Number, Printed


def _bandit(linucb: Number, callinucb: Number, optimal: float) -> dict[str, dict[str, Number]]:
    return {
        "linucb": {"reward": linucb},
        "callinucb": {"reward": callinucb},
        "optimal": {"reward": Number(optimal)},
    }


TABLE_1 = Printed(
    "Malik et al. (2019), Table 1: cumulative reward, mean ± standard error of 10 trials",
    {
        "linear": _bandit(Number(1209.8, 12.1), Number(1210.3, 12.1), 1231.8),
        "beta": _bandit(Number(1176.3, 11.9), Number(1174.6, 12.0), 1202.3),
        "mushroom": _bandit(Number(1429.4, 154.0), Number(1676.1, 164.1), 3122.0),
        "covertype": _bandit(Number(558.14, 3.5), Number(677.8, 5.0), 1200.0),
        "adult": _bandit(Number(131.3, 1.2), Number(198.9, 4.7), 1200.0),
        "census": _bandit(Number(207.6, 1.7), Number(603.7, 3.8), 1200.0),
    },
    step=1200,
)


def _stock(
    shipped: float, wasted: float, stockouts: float, waste: float, short: float, reward: float
) -> dict[str, Number]:
    return {
        "shipped": Number(shipped),
        "wasted": Number(wasted),
        "stockouts": Number(stockouts),
        "waste_share": Number(waste),
        "stockout_share": Number(short),
        "reward": Number(reward),
    }


TABLE_2 = Printed(
    "Malik et al. (2019), Table 2: units over 100 items of a grocery chain (other data than here), mean of 10 trials",
    {
        ANY: {
            "calibrated": _stock(332_150, 7_466, 9_327, 0.022, 0.028, -16_793),
            "uncalibrated": _stock(319_692, 3_148, 17_358, 0.010, 0.054, -20_506),
            "heuristic": _stock(338_011, 13_699, 11_817, 0.041, 0.035, -25_516),
        }
    },
)
"""Shares are of the units shipped."""
