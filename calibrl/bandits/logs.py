"""What another policy did: logged decisions with their rewards and the probabilities they were taken with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrl.bandits.policy import Arm
from calibrl.errors import CalibrlError
from calibrl.tables import read_table

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Log:
    """Logged decisions, oldest first: x (n, d); arm, n names; reward (n,); propensity (n,) in (0, 1]."""

    x: Floats
    arm: tuple[Arm, ...]
    reward: Floats
    propensity: Floats

    def __post_init__(self) -> None:
        n = len(self.arm)
        if self.x.ndim != 2 or len(self.x) != n or self.reward.shape != (n,) or self.propensity.shape != (n,) or not n:
            raise CalibrlError(
                f"contexts {self.x.shape}, {n} arms, rewards {self.reward.shape} and propensities "
                f"{self.propensity.shape} make no log; expected (n, d), n, (n,) and (n,), n ≥ 1"
            )
        for name, values in (("context", self.x), ("reward", self.reward), ("propensity", self.propensity)):
            broken = ~np.isfinite(values).reshape(n, -1).all(1)
            if broken.any():
                raise CalibrlError(f"log row {int(broken.argmax()) + 1} has no {name}; drop or repair that row")
        outside = (self.propensity <= 0) | (self.propensity > 1)
        if outside.any():
            row = int(outside.argmax())
            raise CalibrlError(
                f"log row {row + 1} has propensity {self.propensity[row]:g}; expected the probability in (0, 1] with "
                "which the logged arm was taken"
            )

    def __len__(self) -> int:
        return len(self.arm)

    def __getitem__(self, rows: slice) -> Log:
        return Log(self.x[rows], self.arm[rows], self.reward[rows], self.propensity[rows])

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The arms that appear, in order."""
        return tuple(sorted(set(self.arm), key=lambda arm: (isinstance(arm, str), arm)))


def read_log(
    path: str | Path,
    *,
    context: Sequence[str] | None = None,
    arm: str = "arm",
    reward: str = "reward",
    propensity: str | None = "propensity",
) -> Log:
    """A log from a CSV or Parquet file with a column each for arm, reward and propensity.

    context: the columns of the context, all others if not named. propensity None: every arm was as likely.
    """
    frame = read_table(path)
    named = [name for name in (arm, reward, propensity) if name is not None]
    columns = list(context) if context else [name for name in frame.columns if name not in named]
    for name in [*named, *columns]:
        if name not in frame.columns:
            raise CalibrlError(f"{path} has no column {name!r}; it has {', '.join(frame.columns)}")
    if not columns:
        raise CalibrlError(f"{path} has no context columns beside {', '.join(named)}; add the features as columns")
    names = tuple(frame[arm].to_list())
    if any(name is None or not isinstance(name, (str, int)) for name in names):
        raise CalibrlError(f"{path}: column {arm!r} holds values that name no arm; use whole numbers or text")
    count = len(set(names))
    likely = np.full(len(frame), 1 / count) if propensity is None else _numbers(frame[propensity], path)
    x = np.stack([_numbers(frame[name], path) for name in columns], 1)
    return Log(x, names, _numbers(frame[reward], path), likely)


def _numbers(column: Any, path: str | Path) -> Floats:
    if not column.dtype.is_numeric() and str(column.dtype) != "Boolean":
        raise CalibrlError(f"{path}: column {column.name!r} holds text; encode it as numbers, or leave it out")
    return np.array(column.cast(float).to_numpy(), np.float64)
