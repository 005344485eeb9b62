"""How honest forecasts were, as numbers a row can carry, so that any page can draw the curves again.

A row that has `reliability_05 … reliability_95` says which share of the outcomes fell at or below the level 5 %, 10 %,
… 95 % of their forecasts: the reliability curve. Differences of neighbours are the PIT histogram in twenty bins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from calibrl.arrays import Array

PERCENT = tuple(range(5, 100, 5))
NAMES = tuple(f"reliability_{percent:02d}" for percent in PERCENT)
"""`reliability_05`, `reliability_10`, … `reliability_95`."""


def reliability_metrics(pit: Array) -> dict[str, float]:
    """The reliability curve of PITs (n,) or (n, d) as metrics of a row; columns are averaged."""
    # Imported here: who only reads rows should not wait for torch.
    from calibrl.diagnostics import reliability_curve

    observed = reliability_curve(pit, [percent / 100 for percent in PERCENT]).observed
    shares = observed if observed.ndim == 1 else observed.mean(1)
    return {name: round(float(share), 6) for name, share in zip(NAMES, shares, strict=True)}
