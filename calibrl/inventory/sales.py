"""Daily sales of many series: what was sold, what is missing, and what was known in advance."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from importlib import resources
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from calibrl.errors import CalibrlError

Floats: TypeAlias = NDArray[np.float64]
Flags: TypeAlias = NDArray[np.bool_]
Days: TypeAlias = NDArray[np.datetime64]


@dataclass(frozen=True)
class Sales:
    """Units sold by s series (an item in a store) on t days in a row.

    dates: (t,) datetime64[D], consecutive; series: s names; units: (s, t), NaN = no record, which is not zero;
    censored: (s, t), sold out, so that demand was at least the sales; closed: (s, t), the store was shut;
    promotion, price: (s, t) or None; marks: (s, t) flags by name that are known in advance (holidays);
    product: what each series sells, for what series share (s names, or none); note: what the data do not cover.
    """

    dates: Days
    series: tuple[str, ...]
    units: Floats
    censored: Flags
    closed: Flags
    promotion: Floats | None = None
    price: Floats | None = None
    marks: dict[str, Flags] = field(default_factory=dict)
    product: tuple[str, ...] = ()
    note: str = ""

    def __post_init__(self) -> None:
        shape = (len(self.series), len(self.dates))
        parts = {"units": self.units, "censored": self.censored, "closed": self.closed, **self.marks}
        parts |= {"promotion": self.promotion, "price": self.price}  # type: ignore[dict-item]
        for name, part in parts.items():
            if part is not None and part.shape != shape:
                raise CalibrlError(
                    f"{name} has shape {part.shape}, but there are {shape[0]} series and {shape[1]} days; "
                    "pass one row per series and one column per day"
                )
        if self.product and len(self.product) != len(self.series):
            raise CalibrlError(f"{len(self.product)} products for {len(self.series)} series; name one for each")
        if len(self.dates) > 1 and not bool((np.diff(self.dates) == np.timedelta64(1, "D")).all()):
            raise CalibrlError("the dates are not consecutive days; put NaN on days without a record")
        if bool((self.units < 0).any()):
            row, day = np.argwhere(self.units < 0)[0]
            raise CalibrlError(
                f"{self.series[row]} sold {self.units[row, day]:g} on {self.dates[day]}; sales cannot be negative: "
                "book returns apart"
            )

    @property
    def weekday(self) -> NDArray[np.int64]:
        """(t,): 0 is Monday."""
        # 1970-01-01 was a Thursday.
        return (self.dates.astype("datetime64[D]").astype(np.int64) + 3) % 7

    @property
    def demand(self) -> Floats:
        """(s, t): units where they show demand, NaN where there is no record or the shelf was empty."""
        return np.where(self.censored, np.nan, self.units)

    def day(self, date: str | np.datetime64) -> int:
        """The column of a date; dates outside count on, before the first (negative) and past the last."""
        try:
            wanted = np.asarray(date, dtype="datetime64[D]")
        except ValueError:
            raise CalibrlError(f"{date!r} is not a date; write it like 2018-06-01") from None
        return int((wanted - self.dates[0]).astype(np.int64))

    def select(self, series: NDArray[np.int64] | NDArray[np.bool_]) -> Sales:
        """Only these series, by index or mask."""
        index = np.arange(len(self.series))[series]
        return replace(
            self,
            series=tuple(self.series[i] for i in index),
            units=self.units[index],
            censored=self.censored[index],
            closed=self.closed[index],
            promotion=None if self.promotion is None else self.promotion[index],
            price=None if self.price is None else self.price[index],
            marks={name: mark[index] for name, mark in self.marks.items()},
            product=tuple(self.product[i] for i in index) if self.product else (),
        )

    def history(self, until: str | np.datetime64) -> NDArray[np.int64]:
        """(s,): days on record before `until`."""
        seen: NDArray[np.int64] = (~np.isnan(self.units[:, : max(0, self.day(until))])).sum(1)
        return seen


def bakery() -> Sales:
    """Three products in 35 shops of a bakery, 2016-01-02 to 2019-04-30: see `data/README.md` for the source.

    Days before a shop's first sale are not on record. A shop is closed when it sells none of its products.
    """
    with resources.files("calibrl.inventory").joinpath("data/bakery.npz").open("rb") as file:
        found = dict(np.load(file))
    units = found["units"].astype(np.float64)
    series, days = units.shape
    store, product = found["store"], found["product"]
    closed = np.empty((series, days), dtype=bool)
    for shop in np.unique(store):
        closed[store == shop] = (units[store == shop] == 0).all(0)
    before = np.arange(days) < (units > 0).argmax(1)[:, None]
    units[before] = np.nan
    return Sales(
        dates=np.datetime64(int(found["first_day"]), "D") + np.arange(days),
        series=tuple(f"shop {shop}, product {item}" for shop, item in zip(store, product, strict=True)),
        units=units,
        censored=np.zeros((series, days), dtype=bool),
        closed=closed & ~before,
        promotion=found["promotion"].astype(np.float64),
        marks={"holiday": found["holiday"].astype(bool), "school holiday": found["school"].astype(bool)},
        product=tuple(str(item) for item in product),
    )
