"""What a learner that starts afresh each time needs: all rows seen so far."""

from __future__ import annotations

from torch import Tensor

from calibrl.data import Data
from calibrl.errors import CalibrlError


class Remembered:
    """Every row a forecaster was given. `update` brings new rows only; batch learners learn them all again.

    Rows are kept once they have been learnt: rows that a model refuses must not spoil every later update.
    """

    def __init__(self) -> None:
        self._rows: Data | None = None

    def with_new(self, data: Data) -> Data:
        """All rows, the new ones last; they are not kept yet."""
        known = self._rows
        if known is not None and (known.x.shape[1:] != data.x.shape[1:] or known.y.shape[1:] != data.y.shape[1:]):
            raise CalibrlError(
                f"new rows have x {tuple(data.x.shape)} and y {tuple(data.y.shape)}, earlier ones x "
                f"{tuple(known.x.shape)} and y {tuple(known.y.shape)}; keep the columns the same"
            )
        return data if known is None else known + data

    def keep(self, rows: Data) -> None:
        """Remember what `with_new` gave, now that it has been learnt."""
        self._rows = rows

    def add(self, data: Data) -> Data:
        """All rows, the new ones last, kept at once."""
        self.keep(self.with_new(data))
        assert self._rows is not None
        return self._rows

    def outcomes(self) -> Tensor:
        """The outcomes y learnt so far, or an error when there are none."""
        if self._rows is None:
            raise CalibrlError(
                "this forecaster has learnt no rows yet; call its update(data) first, also before Prequential wraps it"
            )
        return self._rows.y
