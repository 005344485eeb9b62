"""The perishable store as a Gymnasium environment, to train any agent in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrl.errors import CalibrlError, MissingExtra
from calibrl.inventory.problems import Costs, Issuing, Rules, check_issuing, check_units, empty_shelf, one_day

try:
    import gymnasium
except ModuleNotFoundError:
    raise MissingExtra("gymnasium", "control") from None

Sampler: TypeAlias = Callable[[np.random.Generator, int], ArrayLike]
"""Demand of an episode: (generator, days) → (days,) whole units."""
Observation: TypeAlias = NDArray[np.float32]

LARGEST = 10**9
"""Units: no hypergeometric draw is made from more."""


class PerishableStore(gymnasium.Env[Observation, Any]):
    """One good of one shop: order in the evening, sell in the day, throw away what expired.

    An observation is a vector of sine and cosine of the weekday and of the day of the year to come, the demand of
    the last `memory` days (newest first; 0 before the first), the stock by days to expiry (L,) and the units on
    their way (lead_days - 1). An action is the number of packs (`Discrete`), or the share of the largest order
    (`Box`), rounded to what can be ordered. The reward is -(waste + unmet demand) at their costs; an episode is
    cut off after `days`.

    Parameters
    ----------
    demand : array_like, shape (s, t) or (t,), or callable
        Whole units of s series, of which an episode takes any `days` days in a row; or a function
        (numpy Generator, days) → (days,) that draws an episode's demand.
    shelf_life : int
        L, days for which the good can be sold.
    days : int
        Length of an episode.
    memory : int
        Days of past demand in an observation.
    most : int, optional
        The largest order in units; default: the table's largest demand times the shelf life.
    actions : {"packs", "share"}
        `Discrete` packs, or a `Box` share of the largest order.
    first_day : date
        Of the table's first column, or of every drawn episode's first day.
    issuing : {"random", "fifo", "lifo"}
        Which units customers take.
    costs : Costs, optional
        Of a unit wasted and a unit of unmet demand; default: 1 each.
    rules : Rules, optional
        Packs, the least order, and days until delivery; default: none, and delivery in the morning.

    Examples
    --------
    >>> import numpy as np
    >>> store = PerishableStore(np.full((1, 60), 12), shelf_life=3, days=30)
    >>> seen, _ = store.reset(seed=0)
    >>> seen, reward, terminated, truncated, info = store.step(12)
    >>> reward, info["sold"]
    (0.0, 12)
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (declared so by Gymnasium)

    def __init__(
        self,
        demand: ArrayLike | Sampler,
        *,
        shelf_life: int = 3,
        days: int = 90,
        memory: int = 7,
        most: int | None = None,
        actions: Literal["packs", "share"] = "packs",
        first_day: str | np.datetime64 = "2018-01-01",
        issuing: Issuing = "random",
        costs: Costs | None = None,
        rules: Rules | None = None,
    ) -> None:
        _refuse_fractions(shelf_life=shelf_life, days=days, memory=memory)
        self.shelf_life, self.days, self.memory = len(empty_shelf(shelf_life)), days, memory
        self.issuing, self.costs, self.rules = check_issuing(issuing), costs or Costs(), rules or Rules()
        if days < 1 or memory < 0:
            raise CalibrlError(f"an episode of {days} days with {memory} remembered cannot be; use 1 and 0 or more")
        self._sampler = demand if callable(demand) else None
        self._table = None if callable(demand) else _checked_table(demand, days)
        if self._table is None and most is None:
            raise CalibrlError("demand is a function, whose largest value is unknown; pass most, the largest order")
        if most is None:
            assert self._table is not None
            most = max(int(self._table.max()) * shelf_life, self.rules.smallest)
        if most < self.rules.smallest:
            raise CalibrlError(f"most {most} is less than the smallest order, {self.rules.smallest}; allow that much")
        self.most = most
        self._first_day = _as_date(first_day)
        self.action_space: gymnasium.Space[Any]
        if actions == "packs":
            self.action_space = gymnasium.spaces.Discrete(most // self.rules.pack + 1)
        elif actions == "share":
            self.action_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
        else:
            raise CalibrlError(f"actions {actions!r} are unknown; use packs (Discrete) or share (Box)")
        largest_demand = LARGEST if self._table is None else max(int(self._table.max()), 1)
        largest_order = float(self.rules.nearest(most))
        counts = [largest_demand] * memory + [largest_order] * (self.shelf_life + self.rules.lead_days - 1)
        high = np.array([1.0] * 4 + counts, dtype=np.float32)
        low = np.array([-1.0] * 4 + [0.0] * len(counts), dtype=np.float32)
        self.observation_space = gymnasium.spaces.Box(low, high, dtype=np.float32)
        self._demand, self._day = np.zeros(0, dtype=np.int64), 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode with an empty shelf; options `series` and `start` (columns of the table) fix which."""
        super().reset(seed=seed)
        self._demand, self._today = self._episode(options or {})
        self._recent = np.zeros(self.memory, dtype=np.int64)
        self._stock = empty_shelf(self.shelf_life)
        self._incoming: list[int] = [0] * (self.rules.lead_days - 1)
        self._day = 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Order, wait for the delivery that is due, and sell a day."""
        if self._day >= len(self._demand):
            state = f"is over after {self.days} days" if len(self._demand) else "has not begun"
            raise CalibrlError(f"the episode {state}; call reset() before step()")
        if not self.action_space.contains(action):
            raise CalibrlError(f"action {action} is not an order; expected one of {self.action_space}")
        units = float(action[0]) * self.most if np.ndim(action) else float(action) * self.rules.pack
        order = int(self.rules.nearest(units))
        self._incoming.append(order)
        delivered = self._incoming.pop(0)
        demand = int(self._demand[self._day])
        day = one_day(self._stock, demand, delivered, rng=self.np_random, issuing=self.issuing)
        self._stock = day.stock
        self._recent = np.concatenate([[demand], self._recent])[: self.memory]
        self._day += 1
        info = {"demand": demand, "order": order, "delivered": delivered}
        info |= {"sold": day.sold, "wasted": day.wasted, "unmet": day.unmet}
        return self._observation(), 0.0 - day.cost(self.costs), False, self._day >= self.days, info

    def _episode(self, options: dict[str, Any]) -> tuple[NDArray[np.int64], np.datetime64]:
        """An episode's demand (days,) and its first date."""
        if self._sampler is not None:
            drawn = np.asarray(self._sampler(self.np_random, self.days))
            if drawn.shape != (self.days,):
                raise CalibrlError(f"demand drew shape {drawn.shape}; expected ({self.days},), the days of an episode")
            return _whole(drawn), self._first_day
        assert self._table is not None
        series, columns = self._table.shape
        row = int(options.get("series", self.np_random.integers(series)))
        start = int(options.get("start", self.np_random.integers(columns - self.days + 1)))
        if not (0 <= row < series and 0 <= start <= columns - self.days):
            raise CalibrlError(
                f"series {row} from day {start} is outside the table; use series 0 … {series - 1} "
                f"and start 0 … {columns - self.days}"
            )
        return self._table[row, start : start + self.days], self._first_day + start

    def _observation(self) -> Observation:
        date = self._today + self._day
        weekday = (date - np.datetime64("1970-01-05", "D")).astype(np.int64) % 7
        of_year = (date - date.astype("datetime64[Y]").astype("datetime64[D]")).astype(np.int64)
        angles = 2 * np.pi * np.array([weekday / 7, of_year / 365.25])
        return np.concatenate([np.sin(angles), np.cos(angles), self._recent, self._stock, self._incoming]).astype(
            np.float32
        )


def _refuse_fractions(**counts: float) -> None:
    for name, value in counts.items():
        if not isinstance(value, int | np.integer):
            raise CalibrlError(f"{name} {value!r} is not a number of days; use a whole number")


def _as_date(day: str | np.datetime64) -> np.datetime64:
    try:
        found: np.datetime64 = np.datetime64(str(day), "D")
    except ValueError:
        found = np.datetime64("NaT")
    if np.isnat(found):
        raise CalibrlError(f"first_day {str(day)!r} is not a date; write it like 2018-12-31")
    return found


def _checked_table(demand: ArrayLike, days: int) -> NDArray[np.int64]:
    table = np.atleast_2d(np.asarray(demand))
    if table.ndim != 2 or not table.size:
        raise CalibrlError(f"demand of shape {table.shape} is no table; expected (s, t), one row for each series")
    if table.shape[1] < days:
        raise CalibrlError(f"demand of {table.shape[1]} days is shorter than an episode of {days}; use fewer days")
    return _whole(table)


def _whole(units: NDArray[Any]) -> NDArray[np.int64]:
    wrong = ~(np.isfinite(units) & (units >= 0) & (units == np.floor(units)))
    if wrong.any():
        check_units(float(units[wrong][0]), "demand")
    if units.max() > LARGEST:
        raise CalibrlError(f"demand {units.max()} is more than {LARGEST} units; count in larger ones")
    return units.astype(np.int64)
