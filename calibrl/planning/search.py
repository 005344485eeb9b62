"""Searches for the best plan: random shooting, CEM, iCEM and MPPI, for one agent or for many side by side.

A plan is (h, a): h steps of a-dimensional actions between `low` and `high`. A search is a frozen class of its settings,
and written once, in `_search`, for g agents. `search` is a batch of one that draws its own chance. `search_batch` is
given all chance, has fixed shapes and reads no number back: an agent's plan does not depend on who plans beside it,
and a whole search can be captured in one CUDA graph.

PyTorch is imported when a search begins: settings are also read where nothing is run, for `--help`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from calibrl.errors import CalibrlError, check_count, check_within

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from calibrl.planning.candidates import BatchObjective, Objective, Task


@dataclass(frozen=True, eq=False)
class Bounds:
    """What a planner may do at each of `horizon` steps.

    Parameters
    ----------
    low, high, horizon
        The least and the greatest action, (a,) each, low < high; and how many steps a plan has.
    """

    low: Tensor
    high: Tensor
    horizon: int

    def __post_init__(self) -> None:
        if self.low.shape != self.high.shape or self.low.dim() != 1 or not bool((self.low < self.high).all()):
            raise CalibrlError(
                f"actions between {self.low.tolist()} and {self.high.tolist()} are no range; expected low < high, (a,)"
            )
        check_count("horizon", self.horizon)

    @property
    def middle(self) -> Tensor:
        """The plan (h, a) that stays half way between the bounds."""
        return ((self.low + self.high) / 2).expand(self.horizon, -1)

    def checked(self, plan: Tensor) -> Tensor:
        """A plan (h, a) moved between the bounds, or an error if it has another shape."""
        if plan.shape != self.middle.shape:
            raise CalibrlError(
                f"a start of shape {tuple(plan.shape)} does not fit plans of {tuple(self.middle.shape)}; "
                "expected one action for each step"
            )
        return plan.clamp(self.low, self.high)


class Found(NamedTuple):
    """What a search found, and what the next step's search may begin from; g comes first where agents search together.

    plan: to carry out, (h, a); NaN where agents search together and this one's objective was not finite. start: what is
    left of it once its first action is done, (h, a). elites: good plans to try again a step later, (k, h, a), NaN where
    an action is not known; only iCEM remembers any.
    """

    plan: Tensor
    start: Tensor
    elites: Tensor


def _setting(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True, kw_only=True)
class Search(ABC):
    """A way to search for a plan: its settings, and what can be done with any of them.

    Parameters
    ----------
    population_size, iterations
        Plans drawn in each iteration, and how many iterations.
    """

    name: ClassVar[str]
    uniform: ClassVar[bool]
    """Whether its chance is uniform on [0, 1), or standard normal."""
    double: ClassVar[bool] = False
    """Whether an agent on its own draws chance in float64, or in the precision of its bounds."""

    population_size: int = _setting(400, "plans drawn in each iteration of the search")
    iterations: int = _setting(5, "iterations per search")

    def __post_init__(self) -> None:
        for name in ("population_size", "iterations"):
            check_count(name, getattr(self, name))

    @property
    def carried(self) -> int:
        """How many plans are remembered from one search to the next."""
        return 0

    def search(
        self,
        objective: Objective,
        bounds: Bounds,
        *,
        start: Tensor | None = None,
        elites: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Found:
        """Search for the plan that an objective values most.

        Parameters
        ----------
        objective
            Takes plans (n, h, a) and gives one finite number each, (n,), the larger the better.
        bounds
            Between which actions to search, and for how many steps.
        start, elites
            Plan (h, a) to begin from, the middle of the bounds by default, and plans (k, h, a) to try again: what the
            last search left. The start is moved between the bounds.
        generator
            Where chance is drawn from, on the device of the bounds.

        Returns
        -------
        Found
            The plan (h, a), and `start` and `elites` for the next step's search.
        """
        from calibrl.planning.candidates import Task

        def value(plans: Tensor, _: int) -> Tensor:
            return objective(plans[0])[None]

        mean = bounds.middle if start is None else bounds.checked(start)
        known = mean.new_empty(0, *mean.shape) if elites is None else elites
        noise = self._noise(mean, len(known), generator)
        task = Task(value, bounds.low, bounds.high, mean[None], known[None], noise, alone=True)
        return Found(*(part[0] for part in self._search(task)))

    def search_batch(
        self, objective: BatchObjective, low: Tensor, high: Tensor, *, start: Tensor, elites: Tensor, noise: Tensor
    ) -> Found:
        """Search for every agent's best plan, without reading a number back.

        Parameters
        ----------
        objective
            Takes plans (g, n, h, a) and the number of the iteration, and gives one number for each plan, (g, n).
        low, high
            Bounds of the actions, (a,) each.
        start, elites
            Plans (g, h, a) to begin from, the middle of the bounds where an episode begins, and (g, k, h, a) to try
            again; NaN where an action is not known: there a drawn one is tried.
        noise
            Chance (iterations, g, population_size, h, a), as `draw` draws it.

        Returns
        -------
        Found
            Plans (g, h, a), of NaN for an agent whose objective was not finite (see `refuse_lost_plans`), and `start`
            and `elites` for the next search.
        """
        import torch

        from calibrl.planning.candidates import Task

        expected = (self.iterations, len(start), self.population_size, *start.shape[1:])
        if noise.shape != expected:
            raise CalibrlError(f"noise of shape {tuple(noise.shape)} does not fit the search; expected {expected}")
        task = Task(objective, low, high, start, elites, noise.unbind(), alone=False)
        plan, *warm = self._search(task)
        return Found(torch.where(task.lost[:, None, None], torch.nan, plan), *warm)

    def draw(
        self,
        shape: Sequence[int],
        *,
        generator: torch.Generator | None,
        device: torch.device,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """Chance of this search, of any shape."""
        import torch

        kind = torch.rand if self.uniform else torch.randn
        return kind(tuple(shape), generator=generator, device=device, dtype=dtype)

    @abstractmethod
    def _search(self, task: Task) -> Found:
        """The search itself, for g agents."""

    def _noise(self, mean: Tensor, known: int, generator: torch.Generator | None) -> Iterator[Tensor]:  # noqa: ARG002
        """Chance (1, n, h, a) of each iteration, drawn when it comes to it; known: elites of the last search."""
        like = mean.double() if self.double else mean
        for _ in range(self.iterations):
            shape = (1, self.population_size, *mean.shape)
            yield self.draw(shape, generator=generator, device=like.device, dtype=like.dtype)


@dataclass(frozen=True, kw_only=True)
class RandomShooting(Search):
    """The best of all plans, drawn uniformly between the bounds.

    Parameters
    ----------
    population_size, iterations
        population_size · iterations plans are tried.

    Examples
    --------
    >>> import torch
    >>> from calibrl.planning.search import Bounds, RandomShooting
    >>> bounds = Bounds(torch.tensor([-1.0]), torch.tensor([1.0]), horizon=2)
    >>> random = RandomShooting(population_size=1000)
    >>> found = random.search(lambda plans: plans.sum((1, 2)), bounds, generator=torch.Generator().manual_seed(0))
    >>> bool((found.plan > 0.9).all())
    True
    """

    name: ClassVar[str] = "random"
    uniform: ClassVar[bool] = True

    iterations: int = _setting(1, "iterations per search")

    def _search(self, task: Task) -> Found:
        from calibrl.planning.candidates import Best

        best = Best.none(task.start)
        for i, uniform in enumerate(task.noise):
            plans = task.low + uniform * (task.high - task.low)
            best = best.or_of(plans, task.value(plans, i), alone=task.alone)
        return Found(best.plan, task.start, task.elites)


@dataclass(frozen=True, kw_only=True)
class CEM(Search):
    """The cross-entropy method as published for PETS (Chua et al., 2018), by default with its settings on Cartpole.

    Plans are drawn from a normal cut off at ±2σ whose variance never exceeds (distance to the bound / 2)², so that no
    plan leaves the bounds. The variance begins at (high - low)² / 16.

    Parameters
    ----------
    population_size, elites, iterations
        Plans drawn in each iteration, the best of them, to which mean and variance are fitted; at most so many times.
    momentum
        The share that the old mean and variance keep, in [0, 1).
    min_variance
        The search ends once no variance is above it: as published of an action whose range, high - low, is 1 or more,
        and of a smaller range times its square, so that it is searched, too.
    keep_best
        Whether to return the best plan evaluated, as a promise about that very plan needs. By default it is the mean
        of the last elites, as published, which was never itself evaluated.

    Examples
    --------
    >>> import torch
    >>> from calibrl.planning.search import Bounds, CEM
    >>> bounds = Bounds(torch.tensor([-1.0]), torch.tensor([1.0]), horizon=3)
    >>> def objective(plans):
    ...     return -(plans - 0.5).square().sum((1, 2))
    >>> generator = torch.Generator().manual_seed(0)
    >>> cem = CEM(population_size=100, elites=10)
    >>> found = cem.search(objective, bounds, generator=generator)
    >>> bool((found.plan - 0.5).abs().max() < 0.1)
    True

    A step later, from what is left of that plan:

    >>> cem.search(objective, bounds, start=found.start, generator=generator).plan.shape
    torch.Size([3, 1])
    """

    name: ClassVar[str] = "cem"
    uniform: ClassVar[bool] = True
    double: ClassVar[bool] = True

    elites: int = _setting(40, "the best of them, around which the next iteration is drawn")
    momentum: float = _setting(0.1, "share of the old mean and variance kept in each iteration")
    min_variance: float = _setting(0.001, "the search stops when the largest variance is below this")
    keep_best: bool = _setting(False, "whether to take the best plan seen instead of the last mean")

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_elites(self)
        check_within("min_variance", self.min_variance, "[0, inf)", "0 ends no search early")

    def _search(self, task: Task) -> Found:
        import torch

        from calibrl.planning.candidates import Best, refitted, taken, within_room

        low, high = task.low, task.high
        mean = task.start.clamp(low, high)
        variance = ((high - low).square() / 16).expand_as(mean)
        narrow = self.min_variance * (high - low).clamp(max=1).square()
        best, searching = Best.none(mean), None
        draw, refit = task.quick(within_room), task.quick(refitted)
        if task.alone and bool((variance <= narrow).all()):
            return Found(mean, task.shifted(mean), task.elites)
        for i, uniform in enumerate(task.noise):
            plans = draw(mean, variance, uniform, low, high, alone=task.alone)
            value = task.value(plans, i)
            if not task.alone:  # an agent whose search has narrowed stays as it is while others go on
                searching = (variance > narrow).flatten(1).any(1)[:, None, None]
            if self.keep_best:
                best = best.or_of(plans, value, where=searching, alone=task.alone)
            elite = taken(plans, value.topk(self.elites).indices)
            moved, spread = refit(mean, variance, elite, momentum=self.momentum, variance=True)
            if searching is None:
                mean, variance = moved, spread
                if bool((variance <= narrow).all()):
                    break
            else:
                mean, variance = torch.where(searching, moved, mean), torch.where(searching, spread, variance)
        plan = best.plan if self.keep_best else mean
        return Found(plan, task.shifted(plan), task.elites)


@dataclass(frozen=True, kw_only=True)
class ICEM(Search):
    """iCEM: CEM with smooth noise and elites that survive, as published (Pinneri et al., 2020).

    Plans are drawn around the mean and cut at the bounds. Elites take part in the next iteration; those of the last
    search, shifted by a step and ended with a new action, in the first one. The mean itself takes part in the last one.
    The best plan of the last iteration is returned.

    Parameters
    ----------
    population_size
        New plans drawn in the first iteration; agents side by side have so many in all, elites included.
    elites, momentum, iterations
        The best of an iteration, to which mean and spread are fitted; the share that the old ones keep, in [0, 1);
        and how many iterations.
    noise_exponent
        β of the noise, whose power at frequency f is f^-β: 0 is white, larger is smoother in time. Published by task,
        from 0.25 (HalfCheetah) to 3.5.
    population_decay
        γ, by which each iteration draws fewer plans than the one before, never fewer than twice the elites; 1 or more.
    keep_elites
        The share of elites that enter the next iteration, and, shifted, the next search.
    noise_std
        The first standard deviation, as a share of half the range.

    Examples
    --------
    >>> import torch
    >>> from calibrl.planning.search import Bounds, ICEM
    >>> bounds = Bounds(torch.tensor([-1.0]), torch.tensor([1.0]), horizon=3)
    >>> icem, sums = ICEM(population_size=60), lambda plans: plans.sum((1, 2))
    >>> generator = torch.Generator().manual_seed(0)
    >>> found = icem.search(sums, bounds, generator=generator)
    >>> found = icem.search(sums, bounds, start=found.start, elites=found.elites, generator=generator)
    >>> bool((found.plan > 0.5).all())
    True
    """

    name: ClassVar[str] = "icem"
    uniform: ClassVar[bool] = False

    population_size: int = _setting(120, "plans drawn in each iteration of the search")
    iterations: int = _setting(3, "iterations per search")
    elites: int = _setting(10, "the best of them, around which the next iteration is drawn")
    momentum: float = _setting(0.1, "share of the old mean and spread kept in each iteration")
    noise_exponent: float = _setting(2.0, "colour of the noise: 0 is white, larger is smoother in time")
    population_decay: float = _setting(1.25, "factor by which each iteration draws fewer plans than the one before")
    keep_elites: float = _setting(0.3, "share of the elites that survive")
    noise_std: float = _setting(0.5, "initial standard deviation, relative to half the range")

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_elites(self)
        check_within("noise_exponent", self.noise_exponent, "[0, inf)", "0 is white")
        check_within("population_decay", self.population_decay, "[1, inf)", "1 draws as many plans every time")
        check_within("noise_std", self.noise_std, "(0, inf)", "it is a standard deviation")
        check_within("keep_elites", self.keep_elites, "[0, 1]", "0.3 carries three of ten")
        if self.carried >= self.population_size:
            raise CalibrlError(
                f"keep_elites {self.keep_elites} leaves no room for a new plan among {self.population_size}; use less"
            )

    @property
    def carried(self) -> int:
        """How many elites survive."""
        return int(self.keep_elites * self.elites)

    def plans_at(self, iteration: int) -> int:
        """How many plans an iteration draws, counted from 0."""
        return max(int(self.population_size * self.population_decay**-iteration), 2 * self.elites)

    def _search(self, task: Task) -> Found:
        import torch

        from calibrl.planning.candidates import coloring_on, refitted, taken

        low, high, refit = task.low, task.high, task.quick(refitted)
        mean, elites = task.start, task.elites
        best, std = mean, (self.noise_std * (high - low) / 2).expand_as(mean)
        color = coloring_on(mean.shape[1], self.noise_exponent, mean.device, mean.dtype)
        for i, white in enumerate(task.noise):
            # Chance that is passed in has room for the largest population.
            some = white if task.alone else white[:, : self.plans_at(i)]
            drawn = (mean.unsqueeze(1) + std.unsqueeze(1) * (color @ some)).clamp(low, high)
            # The last of the drawn plans make way for elites and, in the end, the mean.
            known = torch.cat([elites, mean.unsqueeze(1)], 1) if i == self.iterations - 1 else elites
            new, room = drawn.split([drawn.shape[1] - known.shape[1], known.shape[1]], 1)
            plans = torch.cat([new, torch.where(known.isnan(), room, known)], 1)
            elite = taken(plans, task.value(plans, i).topk(self.elites).indices)
            mean, std = refit(mean, std, elite, momentum=self.momentum, variance=False)
            best, elites = elite[:, 0], elite[:, : self.carried]
        # An elite loses its first step: its last one will come from a plan drawn for it.
        unknown = torch.full_like(elites[:, :, :1], torch.nan)
        return Found(best, torch.cat([mean[:, 1:], mean[:, -1:]], 1), torch.cat([elites[:, :, 1:], unknown], 2))

    def _noise(self, mean: Tensor, known: int, generator: torch.Generator | None) -> Iterator[Tensor]:
        """Chance of each iteration: for new plans and old elites' last steps; NaN in the room of what needs none."""
        import torch

        for i in range(self.iterations):
            more, room = (known, 0) if i == 0 else (0, self.carried)
            shape = (1, self.plans_at(i) + more, *mean.shape)
            white = self.draw(shape, generator=generator, device=mean.device, dtype=mean.dtype)
            nothing = white.new_full((1, room + (i == self.iterations - 1), *mean.shape), math.nan)
            yield torch.cat([white, nothing], 1)


@dataclass(frozen=True, kw_only=True)
class MPPI(Search):
    """MPPI: the mean of all plans tried, each weighted by e^(value / temperature) (Williams et al., 2017).

    Plans are drawn around the last one, with normal noise, and cut at the bounds.

    Parameters
    ----------
    population_size, iterations
        Plans drawn in each iteration, and how many; published is 1 for each step.
    temperature
        λ, in units of the objective: of two plans one λ apart the better weighs e times as much.
    noise_std
        The noise's standard deviation, as a share of half the range.
    control_cost
        The share of λ that steering costs, the information-theoretic term λ · uᵀΣ⁻¹ε; 0 leaves the objective as it is.

    Examples
    --------
    >>> import torch
    >>> from calibrl.planning.search import Bounds, MPPI
    >>> bounds = Bounds(torch.tensor([-1.0]), torch.tensor([1.0]), horizon=3)
    >>> mppi = MPPI(temperature=0.05, iterations=10)
    >>> found = mppi.search(lambda plans: plans.sum((1, 2)), bounds, generator=torch.Generator().manual_seed(0))
    >>> bool((found.plan > 0.5).all())
    True
    """

    name: ClassVar[str] = "mppi"
    uniform: ClassVar[bool] = False

    population_size: int = _setting(500, "plans drawn in each iteration of the search")
    iterations: int = _setting(1, "iterations per search")
    temperature: float = _setting(1.0, "difference in return at which the better plan weighs e times as much")
    noise_std: float = _setting(0.5, "standard deviation of the noise, relative to half the range")
    control_cost: float = _setting(0.0, "share of the temperature that steering costs")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_within("noise_std", self.noise_std, "(0, inf)", "it is a standard deviation")
        check_within("temperature", self.temperature, "(0, inf)", "it is a difference in return")
        check_within("control_cost", self.control_cost, "[0, inf)", "0 makes steering free")

    def _search(self, task: Task) -> Found:
        plan, std = task.start.clamp(task.low, task.high), self.noise_std * (task.high - task.low) / 2
        for i, white in enumerate(task.noise):
            tried = (plan.unsqueeze(1) + std * white).clamp(task.low, task.high)
            value = task.value(tried, i)
            steering = (plan.unsqueeze(1) * (tried - plan.unsqueeze(1)) / std.square()).sum((2, 3))
            weight = (value / self.temperature - self.control_cost * steering).softmax(1).to(tried.dtype)
            plan = (weight[:, :, None, None] * tried).sum(1)
        return Found(plan, task.shifted(plan), task.elites)


@dataclass(frozen=True, kw_only=True)
class CategoricalCEM(Search):
    """The cross-entropy method over choices: at every step one of n things, or one of each of several kinds.

    An action is one number for each thing, 1 for what is chosen and 0 for the rest: (a,), a = n₁ + n₂ + …. Plans are
    drawn from independent probabilities, which move towards the elites' frequencies; the likeliest are returned.

    Parameters
    ----------
    choices
        n₁, n₂, …: how many things there are of each kind, 2 or more.
    population_size, elites, iterations, momentum
        As in `CEM`.
    smoothing
        The share of the uniform distribution that probabilities keep, in [0, 1): nothing is ruled out.

    Examples
    --------
    >>> import torch
    >>> from calibrl.planning.search import Bounds, CategoricalCEM
    >>> bounds = Bounds(torch.zeros(3), torch.ones(3), horizon=4)
    >>> best = torch.tensor([2, 0, 1, 2])
    >>> def objective(plans):
    ...     return (plans.argmax(-1) == best).double().sum(-1)
    >>> cem = CategoricalCEM(choices=(3,), population_size=100, elites=10)
    >>> found = cem.search(objective, bounds, generator=torch.Generator().manual_seed(0))
    >>> found.plan.argmax(-1).tolist()
    [2, 0, 1, 2]
    """

    name: ClassVar[str] = "categorical"
    uniform: ClassVar[bool] = True

    choices: tuple[int, ...]
    elites: int = 40
    momentum: float = 0.1
    smoothing: float = 0.02

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_elites(self)
        if not self.choices or min(self.choices) < 2:
            raise CalibrlError(f"choices {self.choices} leave nothing to choose; give 2 or more things of each kind")
        check_within("smoothing", self.smoothing, "[0, 1)", "0.02 rules nothing out")

    def _search(self, task: Task) -> Found:
        import torch

        from calibrl.planning.candidates import chosen, taken

        even = torch.cat([torch.full((n,), 1 / n) for n in self.choices]).to(task.start)
        # Half way between the bounds, where episodes begin, is no probability; what a search leaves behind is one.
        total = [part.sum(-1, keepdim=True).expand_as(part) for part in task.start.split(self.choices, -1)]
        share = task.start.clamp(min=0) / torch.cat(total, -1).clamp(min=1e-9)
        for i, uniform in enumerate(task.noise):
            share = (1 - self.smoothing) * share + self.smoothing * even
            # Gumbel's way to draw: the largest of log p - log(-log u).
            keys = share.log().unsqueeze(1) - (-uniform.clamp(1e-12, 1 - 1e-7).log()).log().to(share)
            plans = chosen(keys, self.choices)
            elite = taken(plans, task.value(plans, i).topk(self.elites).indices)
            share = self.momentum * share + (1 - self.momentum) * elite.mean(1)
        rest = torch.cat([share[:, 1:], even.expand(len(share), 1, -1)], 1)
        return Found(chosen(share, self.choices), rest, task.elites)


SEARCHES: dict[str, type[Search]] = {each.name: each for each in (CEM, ICEM, MPPI, RandomShooting)}
"""Every search by its name."""


def _check_elites(search: CEM | ICEM | CategoricalCEM) -> None:
    if not 1 <= search.elites <= (most := search.population_size):
        raise CalibrlError(f"elites {search.elites} of {most} plans cannot be; use 1 … {most}")
    check_within("momentum", search.momentum, "[0, 1)", "0.1 keeps a tenth of the old distribution")
