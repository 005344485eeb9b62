"""A shelf of perishable goods: one day of it, exact, in whole units.

A day: the order is on the shelf before the doors open; demand D meets t units and sells min(t, D) of them; unsold
units in their last day are waste; the rest age a day.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrl.errors import CalibrlError

Stock: TypeAlias = NDArray[np.int64]
"""(L,) units on the shelf: entry l expires at the end of the (l + 1)-th day from now."""
Issuing = Literal["random", "fifo", "lifo"]
"""Which units customers take: any at random, the oldest first, or the newest first."""
ISSUING: tuple[Issuing, ...] = get_args(Issuing)


@dataclass(frozen=True)
class Costs:
    """What a unit thrown away and a unit of unmet demand cost.

    Parameters
    ----------
    waste, unmet : float
        Cost of a unit, 0 or more; not both 0.
    """

    waste: float = 1.0
    unmet: float = 1.0

    def __post_init__(self) -> None:
        for name in ("waste", "unmet"):
            value = getattr(self, name)
            if not (np.isfinite(value) and value >= 0):
                raise CalibrlError(f"cost of {name} {value} is no cost; use a number of 0 or more")
        if self.waste + self.unmet == 0:
            raise CalibrlError("costs of waste and of unmet demand are both 0; then every order is as good: set one")


@dataclass(frozen=True)
class Rules:
    """What may be ordered, and when it comes.

    Parameters
    ----------
    pack : int
        Units in a pack; orders are whole packs.
    minimum : int
        The least order that is taken, in units.
    lead_days : int
        1 if an order is on the shelf on the morning after it was placed, 2 if a morning later, and so on.
    """

    pack: int = 1
    minimum: int = 0
    lead_days: int = 1

    def __post_init__(self) -> None:
        for name, least in (("pack", 1), ("minimum", 0), ("lead_days", 1)):
            value = getattr(self, name)
            if not (np.isfinite(value) and value == int(value) and value >= least):
                raise CalibrlError(f"{name} {value} cannot be kept to; use a whole number of {least} or more")

    @property
    def smallest(self) -> int:
        """The smallest order that can be placed: the minimum, in whole packs."""
        return max(self.pack, -(-self.minimum // self.pack) * self.pack)

    def nearest(self, units: ArrayLike) -> NDArray[np.float64]:
        """The nearest quantities that can be ordered; half a pack rounds up."""
        wanted = np.maximum(np.asarray(units, dtype=np.float64), 0)
        packs = np.floor(wanted / self.pack + 0.5) * self.pack
        return np.where(packs >= self.smallest, packs, np.where(2 * wanted >= self.smallest, self.smallest, 0))


@dataclass(frozen=True)
class Day:
    """What a day did.

    Parameters
    ----------
    sold, wasted, unmet : int
        Units sold, thrown away at closing time, and asked for when there were none.
    stock : ndarray of int, shape (L,)
        Units left for the next morning, before its delivery, by days to expiry.
    """

    sold: int
    wasted: int
    unmet: int
    stock: Stock

    def cost(self, costs: Costs | None = None) -> float:
        """Waste and unmet demand at their costs, by default 1 a unit."""
        costs = costs or Costs()
        return costs.waste * self.wasted + costs.unmet * self.unmet


def empty_shelf(shelf_life: int) -> Stock:
    """An empty shelf for goods that can be sold on `shelf_life` days.

    Parameters
    ----------
    shelf_life : int
        L, in days: 1 for what is sold on its day of delivery only.

    Returns
    -------
    ndarray of int, shape (L,)
        Zeros.
    """
    if shelf_life < 1:
        raise CalibrlError(f"shelf life {shelf_life} days cannot be sold; use 1 (sold on its day of delivery) or more")
    return np.zeros(shelf_life, dtype=np.int64)


def one_day(
    stock: ArrayLike,
    demand: float,
    order: float,
    *,
    rng: np.random.Generator | None = None,
    issuing: Issuing = "random",
) -> Day:
    """Sell a day's demand from the stock and the order just delivered, which keeps for L days.

    Parameters
    ----------
    stock : array_like of int, shape (L,)
        Units on the shelf; stock[l] expires in l + 1 days, this one counted.
    demand, order : float
        Whole units asked for, and delivered before the doors open.
    rng : numpy.random.Generator, optional
        Draws the units sold under random issuing: without replacement from all on the shelf (a multivariate
        hypergeometric draw). The other ways of issuing need none.
    issuing : {"random", "fifo", "lifo"}
        Which units customers take: any, the oldest first or the newest first.

    Returns
    -------
    Day
        Units sold, wasted and unmet, and the stock of the next morning.

    Examples
    --------
    >>> one_day([4, 0, 0], demand=6, order=5, issuing="fifo")
    Day(sold=6, wasted=0, unmet=0, stock=array([0, 3, 0]))
    """
    issue = _ISSUE[check_issuing(issuing)]
    shelf = check_stock(stock).copy()
    shelf[-1] += check_units(order, "order")
    wanted = check_units(demand, "demand")
    sold = min(int(shelf.sum()), wanted)
    if sold:
        shelf -= issue(shelf, sold, rng)
    wasted = int(shelf[0])
    return Day(sold, wasted, wanted - sold, np.append(shelf[1:], 0))


def check_issuing(issuing: str) -> Issuing:
    """The name of a way to issue units, refused if unknown."""
    for name in ISSUING:
        if issuing == name:
            return name
    raise CalibrlError(f"issuing {issuing!r} is unknown; use one of {', '.join(ISSUING)}")


def check_stock(stock: ArrayLike) -> Stock:
    """Stock (L,) as whole units, refused unless it is that."""
    given = np.asarray(stock)
    if given.ndim != 1 or not given.size:
        raise CalibrlError(f"stock of shape {given.shape} is no shelf; expected (L,), one entry for each day of life")
    whole = given.astype(np.int64) if np.isfinite(given).all() else np.zeros_like(given, dtype=np.int64)
    wrong = (whole != given) | (whole < 0)
    if wrong.any():
        value = given[wrong][0]
        raise CalibrlError(f"stock of {value} units cannot be; use whole units of 0 or more, expired ones taken out")
    return whole


def check_units(value: float, name: str) -> int:
    """A number of whole units, refused if it is not."""
    if not (np.isfinite(value) and value >= 0 and value == int(value)):
        raise CalibrlError(f"{name} {value} is not a number of units; use a whole number of 0 or more: round it first")
    return int(value)


def _at_random(shelf: Stock, sold: int, rng: np.random.Generator | None) -> Stock:
    if rng is None:
        raise CalibrlError("random issuing draws, but rng is None; pass a numpy.random.Generator")
    return rng.multivariate_hypergeometric(shelf, sold, method="marginals")


def _oldest_first(shelf: Stock, sold: int, _: np.random.Generator | None) -> Stock:
    before = np.cumsum(shelf) - shelf
    return np.clip(sold - before, 0, shelf)


def _newest_first(shelf: Stock, sold: int, rng: np.random.Generator | None) -> Stock:
    return _oldest_first(shelf[::-1], sold, rng)[::-1]


_ISSUE: dict[Issuing, Callable[[Stock, int, np.random.Generator | None], Stock]] = {
    "random": _at_random,
    "fifo": _oldest_first,
    "lifo": _newest_first,
}
