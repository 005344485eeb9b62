"""Arms: the ways in which agents use their rows, by name. What T trains on, what R is fitted on, and what follows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from calibrl.arrays import Array
from calibrl.control.settings import CalibrationSettings
from calibrl.data import Split, exact_split
from calibrl.errors import check_known
from calibrl.evidence import Evidence, HeldOut, Judged, Newest, Resplit, Trajectory, Uncalibrated, Wary
from calibrl.kernels import normal
from calibrl.maps import Affine, FitMap, Map, Sigmoid
from calibrl.maps.classes import ClassMap, FitClassMap

REMEMBERED_TRIALS = 10
"""Trials whose fresh z-scores are kept; what is older would hardly count."""

MakeEvidence = Callable[[CalibrationSettings, torch.Generator], Evidence]


@dataclass(frozen=True)
class Arm:
    """One way to use the rows of experience: what an agent trains on, and what its map R is fitted on.

    Parameters
    ----------
    name
        As rows and files call it.
    evidence
        Makes the evidence of one agent, which draws from the agent's own stream.
    holds_out
        Whether the networks go without the held-out rows.
    calibrated
        Whether there is a map at all.
    map
        A map by name, if not the preset's. Such a map is fitted on all outcomes alike, as the paper's recipe has it.
    fit
        What fits R, if not a map by name.
    rescales
        Whether the networks' inputs are standardised by the held-out rows once they are trained, as the paper's
        released code has it.
    limited
        Whether imagined steps stay within all outcomes so far, and as much again to either side.
    """

    name: str
    evidence: MakeEvidence
    holds_out: bool
    calibrated: bool = True
    map: str | None = None
    fit: FitMap | None = None
    rescales: bool = False
    limited: bool = False

    def __reduce__(self) -> tuple[Callable[[str], Arm], tuple[str]]:
        """By name: what a worker process is sent must be the same arm there, whatever functions it is made of."""
        return arm_named, (self.name,)


def _split(settings: CalibrationSettings, generator: torch.Generator) -> Split:
    return exact_split(settings.held_out, generator, block=settings.block)


def _held_out(settings: CalibrationSettings, generator: torch.Generator) -> Evidence:
    """Rows that pick their side once, on arrival; newer ones weigh more."""
    return HeldOut(_split(settings, generator), forget=settings.forget)


def _beyond(settings: CalibrationSettings, generator: torch.Generator, kind: type[Wary | Trajectory]) -> Evidence:
    """The same rows, and what new trajectories add to them."""
    return kind(_held_out(settings, generator), forget=settings.forget)


def _resplit(settings: CalibrationSettings, generator: torch.Generator, kind: type[Resplit] = Resplit) -> Evidence:
    """The same share, but every row draws its side anew after every trial, as the paper's released code does."""
    return kind(_split(settings, generator), generator=generator)


def _no_map(settings: CalibrationSettings, generator: torch.Generator) -> Evidence:
    """R is the identity, and the networks train on what those of a calibrated agent do."""
    return Uncalibrated(_split(settings, generator))


class ResplitWithoutMap(Resplit):
    """Rows change sides as in `Resplit`, and R stays the identity: the control of the paper's released code.

    Parameters
    ----------
    split, generator
        As in `Resplit`.
    """

    judges_held = False

    def fit(self, judged: Judged, mapping: Map | ClassMap, fit_map: FitMap | FitClassMap | None) -> Map | ClassMap:  # noqa: ARG002
        """The identity, or whatever R was."""
        return mapping


EPOCHS, BATCH_SIZE, LR, START = 200, 32, 5e-2, 0.05


class Released(Resplit):
    """Rows change sides as in `Resplit`, and R is fitted as the paper's released code does it.

    sigmoid(a · p + b) of each dimension on PITs p, against the share of PITs below: cross-entropy, by Adam, in 200
    epochs of shuffled batches of 32. Parameters start uniform within ±0.05 and are carried from fit to fit, with Adam's
    memory: R is not the optimum but as far as Adam has come.

    Parameters
    ----------
    split, generator
        As in `Resplit`; the generator's first seed also decides the start and the shuffles.
    """

    def __init__(self, split: Split, *, generator: torch.Generator) -> None:
        super().__init__(split, generator=generator)
        self.state: dict[str, Any] | None = None

    def fit(self, judged: Judged, mapping: Map | ClassMap, fit_map: FitMap | FitClassMap | None) -> Map | ClassMap:  # noqa: ARG002
        """R as far as Adam has come."""
        if not isinstance(judged.held, Tensor):
            return mapping
        p = normal.cdf(judged.held).numpy()
        n, d = p.shape
        if self.state is None:
            first = self._rng(0).uniform(-START, START, (2, d))
            self.state = {"theta": torch.from_numpy(first), "moments": torch.zeros(2, 2, d).double(), "steps": 0}
        below = np.stack([np.searchsorted(np.sort(column), column) for column in p.T], 1) / n
        # A stream of its own for every fit: the split draws alike with a map and without.
        rng = self._rng(1 + self.state["steps"])
        orders = np.stack([rng.permutation(n) for _ in range(EPOCHS)])
        theta, moments = (self.state[name].numpy().copy() for name in ("theta", "moments"))
        steps = _adam(p, below, orders, theta, moments, self.state["steps"])
        self.state = {"theta": torch.from_numpy(theta), "moments": torch.from_numpy(moments), "steps": steps}
        # A slope that has not yet turned positive has no inverse that draws could be read from.
        return Sigmoid(a=self.state["theta"][0].clamp(min=1e-3), b=self.state["theta"][1])

    def state_dict(self) -> dict[str, Any]:
        """Parameters, Adam's memory and steps; nothing before the first fit."""
        return {} if self.state is None else dict(self.state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.state = dict(state) if state else None

    def _rng(self, number: int) -> np.random.Generator:
        return np.random.default_rng([self.generator.initial_seed(), number])


@numba.njit(cache=True)
def _adam(p: Any, target: Any, orders: Any, theta: Any, moments: Any, steps: int) -> int:
    """Adam on the cross-entropy of sigmoid(a · p + b), batch after batch, in place; returns how many steps were made.

    p, target: (n, d); orders: (epochs, n); theta: (2, d), a and b; moments: (2, 2, d), of first and second order.
    """
    n, d = p.shape
    slope = np.empty((2, d))
    for order in orders:
        for start in range(0, n, BATCH_SIZE):
            rows = order[start : start + BATCH_SIZE]
            slope[:] = 0
            for row in rows:
                for j in range(d):
                    excess = 1 / (1 + np.exp(-(theta[0, j] * p[row, j] + theta[1, j]))) - target[row, j]
                    slope[0, j] += excess * p[row, j]
                    slope[1, j] += excess
            steps += 1
            rate = LR * np.sqrt(1 - 0.999**steps) / (1 - 0.9**steps)
            for k in range(2):
                for j in range(d):
                    g = slope[k, j] / (len(rows) * d)
                    moments[0, k, j] = 0.9 * moments[0, k, j] + 0.1 * g
                    moments[1, k, j] = 0.999 * moments[1, k, j] + 0.001 * g * g
                    theta[k, j] -= rate * moments[0, k, j] / (np.sqrt(moments[1, k, j]) + 1e-8)
    return steps


def constant_width(factor: float) -> FitMap:
    """Fits the map that makes forecasts `factor` times as wide, whatever outcomes say."""

    def fit(pit: Array | None = None, *, weight: Array | None = None, z: Array | None = None) -> Map:  # noqa: ARG001
        """Columns of z (n, d) without outcomes are left as they are."""
        assert isinstance(z, Tensor)
        return Affine(shift=torch.zeros(z.shape[1]).double(), scale=torch.where(z.isnan().all(0), 1.0, factor).double())

    return fit


def _width(factor: float) -> Arm:
    return Arm(f"width-{factor:g}", _held_out, holds_out=True, fit=constant_width(factor))


ARMS = {
    arm.name: arm
    for arm in (
        Arm("calibrated", _held_out, holds_out=True),
        Arm("uncalibrated", _no_map, holds_out=True, calibrated=False),
        Arm("uncalibrated-all", lambda *_: Uncalibrated(), holds_out=False, calibrated=False),
        Arm("uncalibrated-limited", _no_map, holds_out=True, calibrated=False, limited=True),
        Arm("calibrated-paper", _resplit, holds_out=True, map="sigmoid"),
        Arm("calibrated-fresh", lambda settings, _: Newest(REMEMBERED_TRIALS, forget=settings.forget), holds_out=False),
        Arm("calibrated-wary", partial(_beyond, kind=Wary), holds_out=True),
        Arm("calibrated-trajectory", partial(_beyond, kind=Trajectory), holds_out=True, limited=True),
        Arm("released", partial(_resplit, kind=Released), holds_out=True, map="sigmoid", rescales=True),
        Arm("released-control", partial(_resplit, kind=ResplitWithoutMap), holds_out=True, calibrated=False),
        _width(0.5),
        _width(1.4),
    )
}


def arm_named(name: str) -> Arm:
    """The arm of that name, or an error that lists the known ones."""
    return ARMS[check_known("arm", name, ARMS)]
