"""Contexts as users have them, dicts, sparse rows or arrays, as rows of numbers; scaled, where asked for, as they come.

A dict has a column for every name that was learnt, and one for every word that a name has had, `country=fr`, behind a
constant 1 in the first. Scaled means: (v - mean) / sd over the rows learnt so far and v's own (Welford, 1962), 0 while
a column has not varied. Columns that never held anything but 0 and 1, constants and indicators, stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrl.arrays import Array
from calibrl.errors import CalibrlError

Floats = NDArray[np.float64]
LARGEST = 1e100
"""Beyond it squares overflow."""


@dataclass(frozen=True)
class Features:
    """What is known of the columns of contexts: their names, where contexts are dicts, and their scales.

    Parameters
    ----------
    dim
        How many columns there are.
    scale
        Whether they are scaled.
    columns
        The names in the order of their columns, the constant's '' first; none as long as no dict was learnt.
    seen
        How many rows were learnt.
    mean, squares
        Of each column (dim,): its mean, and the sum of squared distances from it.
    flags
        Whether a column has held nothing but 0 and 1, (dim,).
    """

    dim: int
    scale: bool = False
    columns: tuple[str, ...] = ()
    seen: int = 0
    mean: Floats = field(default_factory=lambda: np.zeros(0))
    squares: Floats = field(default_factory=lambda: np.zeros(0))
    flags: NDArray[np.bool_] = field(default_factory=lambda: np.ones(0, np.bool_))

    def __post_init__(self) -> None:
        # Columns that a wider policy has more were 0 in the past.
        for name, value in (("mean", 0.0), ("squares", 0.0), ("flags", True)):
            part = getattr(self, name)
            object.__setattr__(self, name, np.pad(part, (0, self.dim - len(part)), constant_values=value))

    def numbers(self, x: Array) -> tuple[Array, tuple[str, ...]]:
        """Dicts as (dim,) or (n, dim), and the names of columns with theirs; anything else as it is."""
        if not is_named(x):
            return x, self.columns
        rows = [_cells(one) for one in ([x] if isinstance(x, Mapping) else x)]
        place = {name: at for at, name in enumerate(self.columns or ("",))}
        for row in rows:
            for name in row:
                if place.setdefault(name, len(place)) >= self.dim:
                    raise CalibrlError(
                        f"feature {name!r} is new, and all of dim {self.dim} columns are taken (a constant, then "
                        f"{', '.join(list(place)[1:5])} …); leave it out, or let a policy with more inherit this one"
                    )
        found = np.zeros((len(rows), self.dim))
        found[:, 0] = 1.0
        for i, row in enumerate(rows):
            found[i, [place[name] for name in row]] = list(row.values())
        return found[0] if isinstance(x, Mapping) else found, tuple(place)

    def scaled(self, rows: Floats) -> Floats:
        """Rows (…, dim) as the model sees them, each as if it were the next; nothing is remembered."""
        return self._after(rows)[0] if self.scale and self._usable(rows) else rows

    def learnt(self, rows: Floats, columns: tuple[str, ...]) -> tuple[Floats, Features]:
        """Rows (n, dim), each scaled with those up to it, and what is known after them."""
        if not (self.scale and self._usable(rows)):
            return rows, self if columns == self.columns else replace(self, columns=columns)
        after, found = self, np.empty_like(rows)
        for i, row in enumerate(rows):
            found[i], mean, squares, flags = after._after(row)
            after = Features(self.dim, True, columns, after.seen + 1, mean, squares, flags)
        return found, after

    def _after(self, row: Floats) -> tuple[Floats, Floats, Floats, NDArray[np.bool_]]:
        """A row scaled, and the mean, squares and flags with it."""
        count, off = self.seen + 1, row - self.mean
        mean = self.mean + off / count
        squares = self.squares + off * (row - mean)
        flags = self.flags & ((row == 0) | (row == 1))
        sd = np.sqrt(squares / count)
        # What rounding leaves of a constant is no variation.
        varied = sd > 1e-9 * np.abs(mean)
        z = np.divide(row - mean, sd, out=np.zeros_like(row), where=varied)
        return np.where(flags, row, z), mean, squares, flags

    def _usable(self, rows: Floats) -> bool:
        """Whether rows can be scaled; if not, what looks at them next says why."""
        if rows.shape[-1:] != (self.dim,) or not np.isfinite(rows).all():
            return False
        if rows.size and (largest := np.abs(rows).max()) > LARGEST:
            raise CalibrlError(f"context with numbers up to {largest:.3g} overflows; use a larger unit")
        return True

    def to_plain(self) -> dict[str, Any]:
        """All but what the settings say, as plain values."""
        plain: dict[str, Any] = {"columns": list(self.columns), "seen": self.seen}
        return plain | {name: getattr(self, name).tolist() for name in ("mean", "squares", "flags") if self.scale}

    @classmethod
    def from_plain(cls, saved: dict[str, Any], dim: int, *, scale: bool) -> Features:
        """What `to_plain` described; ValueError where it cannot be."""
        columns, seen = tuple(saved["columns"]), saved["seen"]
        if not all(isinstance(name, str) for name in columns) or len({*columns}) < len(columns) or len(columns) > dim:
            raise ValueError(f"{len(columns)} names of features do not fit dim {dim}")
        if not isinstance(seen, int) or isinstance(seen, bool) or seen < 0:
            raise ValueError(f"features were seen {seen!r} times")
        if not scale:
            return cls(dim, False, columns, seen)
        mean, squares = (np.asarray(saved[name], np.float64) for name in ("mean", "squares"))
        flags = np.asarray(saved["flags"])
        if not mean.shape == squares.shape == flags.shape == (dim,) or flags.dtype != np.bool_:
            raise ValueError(f"the scales of features do not fit dim {dim}")
        if not (np.isfinite(mean).all() and np.isfinite(squares).all() and (squares >= 0).all()):
            raise ValueError("a scale of a feature is no number")
        return cls(dim, True, columns, seen, mean, squares, flags)


def is_named(x: Array) -> bool:
    """Whether contexts are dicts: one, or a list of them."""
    return isinstance(x, Mapping) or (isinstance(x, (list, tuple)) and bool(x) and isinstance(x[0], Mapping))


def plain_rows(x: Array, rows: Floats) -> Sequence[Any]:
    """Contexts as a journal keeps them, one by one: dicts as they are, others, given as (n, dim), as lists."""
    if not is_named(x):
        return list(rows.tolist())
    return [
        {name: value if isinstance(value, str) else float(value) for name, value in one.items()}
        for one in ([x] if isinstance(x, Mapping) else x)
    ]


def _cells(row: Any) -> dict[str, float]:
    """A dict's names and numbers; text counts as a name of its own, with a 1."""
    if not isinstance(row, Mapping):
        raise CalibrlError(f"context {row!r} stands among dicts; give all contexts alike")
    cells = {}
    for name, value in row.items():
        if not isinstance(name, str) or not name:
            raise CalibrlError(f"feature {name!r} is not a name; use text such as 'age'")
        if isinstance(value, str):
            cells[f"{name}={value}"] = 1.0
        elif isinstance(value, (Real, np.bool_)):
            cells[name] = float(value)
        else:
            raise CalibrlError(f"feature {name!r} is {value!r}; give a number or text, or leave it out")
    return cells
