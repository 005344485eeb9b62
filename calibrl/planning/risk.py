"""What the imagined futures of a plan make of it: their mean, the worst of them, what networks disagree about, safety.

PyTorch is not imported here: settings are also read where nothing is run, for `--help`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from calibrl.errors import check_within

if TYPE_CHECKING:
    from torch import Tensor

DIVERGED = -1e6
"""The return of a particle that left the numbers, as published."""


@dataclass(frozen=True)
class Risk:
    """How the returns of a plan's particles become its value. By default their mean, as published.

    It asks for more than a mean of the model: that the spread of its futures is honest. Any model can be asked.

    Parameters
    ----------
    cvar : float
        The share, in (0, 1], of the worst particles whose mean counts: 0.2 looks at the worst fifth.
    optimism : float
        So many standard deviations between the mean returns that single networks imagine are added: what a plan may be
        worth where networks disagree, not where the world is noisy. Particles must stay with their network (TSinf).
    exploration : float
        What a step earns for each doubling of how far apart single networks imagine the world after it: a reward for
        going where it is not known what happens, whatever that pays. Particles must stay with their network (TSinf).
    safety : float
        The probability in [0, 1) with which a plan must stay in the world's safe set all along; 0 asks for nothing.
        Plans that do not rank below all that do, the safest first; those within 1 - safety of the safest are equals, of
        which the best is taken: also where nothing is safe an agent goes on.

    Examples
    --------
    Two plans of four particles; one is better on average, and left the safe set once:

    >>> import torch
    >>> returns = torch.tensor([[[1.0, 1.0, 1.0, 1.0], [0.0, 2.0, 2.0, 2.0]]])
    >>> broken = torch.tensor([[[False] * 4, [True, False, False, False]]])
    >>> Risk()(returns).tolist(), Risk(cvar=0.5)(returns).tolist()
    ([[1.0, 1.5]], [[1.0, 1.0]])
    >>> Risk(safety=0.9)(returns, broken)[0].argmax().item()
    0
    """

    cvar: float = 1.0
    optimism: float = 0.0
    safety: float = 0.0
    exploration: float = 0.0

    def __post_init__(self) -> None:
        check_within("cvar", self.cvar, "(0, 1]", "0.2 looks at the worst fifth, 1 at all")
        check_within("safety", self.safety, "[0, 1)", "0.9 asks to be safe nine times in ten")
        check_within("optimism", self.optimism, "(-inf, inf)", "1 adds a standard deviation, 0 nothing")
        check_within("exploration", self.exploration, "[0, inf)", "it is a reward, 0 for none")

    def novelty(self, states: Tensor, units: Tensor | None, *, networks: int) -> Tensor:
        """What imagined steps earn by what is not known of them.

        Parameters
        ----------
        states : Tensor (…, p, o)
            Observations after the steps, of p particles.
        units : Tensor (o,), optional
            What one unit of each observed number is; infinite where it does not count. By default 1.
        networks : int
            How many networks the particles belong to, in equal shares one after the other.

        Returns
        -------
        Tensor (…, 1)
        """
        apart = states.unflatten(-2, (networks, -1)).mean(-2).std(-2, correction=0)
        known = apart if units is None else apart / units
        counted = known.shape[-1] if units is None else units.isfinite().sum()
        # Doublings, not distances: where networks diverge nothing is to be learnt either.
        return self.exploration * (known.log1p().sum(-1, keepdim=True) / (counted * math.log(2)))

    def __call__(self, returns: Tensor, broken: Tensor | None = None, *, networks: int = 1) -> Tensor:
        """The value (…) of plans with particles' returns (…, p).

        Parameters
        ----------
        returns : Tensor (…, p)
            One that is not finite counts as -1e6: a plan under which the model diverges is a bad plan, not an error.
        broken : Tensor (…, p) bool, optional
            Which particles left the safe set.
        networks : int
            How many networks the particles belong to, in equal shares one after the other.

        Returns
        -------
        Tensor (…)
        """
        returns = returns.nan_to_num(DIVERGED, posinf=DIVERGED, neginf=DIVERGED)
        count = max(1, math.ceil(self.cvar * returns.shape[-1] - 1e-9))
        worst = returns if count == returns.shape[-1] else returns.topk(count, -1, largest=False, sorted=False).values
        value = worst.mean(-1)
        if self.optimism:
            value = value + self.optimism * returns.unflatten(-1, (networks, -1)).mean(-1).std(-1, correction=0)
        if not self.safety or broken is None:
            return value
        share, allowed = broken.to(value.dtype).mean(-1), 1 - self.safety + 1e-6
        # Ranked by the share alone, all would be alike to an agent to whom all seems equally dangerous.
        level = share.clamp(min=share.amin(-1, keepdim=True) + allowed)
        above = value - value.amin(-1, keepdim=True)
        among_equals = above / above.amax(-1, keepdim=True).clamp(min=1e-30) / (2 * returns.shape[-1])
        return value.where(share <= allowed, DIVERGED * (1 + level - among_equals))


MEAN = Risk()
"""The mean of the particles' returns."""
