"""What the paper printed (Malik et al., ICML 2019): its tables as data, to stand beside what was measured here."""

from __future__ import annotations

from calibrl.runs.experiment import ANY, Number, Printed


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
