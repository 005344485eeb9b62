"""Somebody else's environment: held to what it promised, acted in for a trial, and turned into rows for the networks.

Where nobody wrote the reward down, and where episodes may terminate, an imagined observation carries two numbers
more: the reward of the step that led to it, and whether the episode goes on. Both are forecast by the same
networks. The reward is calibrated like every other dimension. The end is an event: once an agent has seen one, its
networks learn the chance of it by least squares, and what they imagine ends where a draw of chance p and variance
p (1 - p) is above a half; a map of CDFs has nothing to say of it. An imagined episode that has ended earns nothing
from then on. Where nobody knows the units of such an environment, one unit of a number is how much it varies in a
random episode.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from calibrl.errors import CalibrlError, first_line
from calibrl.planning.rollout import World

if TYPE_CHECKING:
    from calibrl.control.problems import Task

Environment = Any
"""A `gymnasium.Env` of Box observations and Box actions."""


class Answer(NamedTuple):
    """To a step: the next observation (o,) in float64, what it paid, and whether the episode ended, and why."""

    observation: np.ndarray
    reward: float
    terminated: bool
    truncated: bool


def begin_episode(environment: Environment, *, seed: int | None = None) -> np.ndarray:
    """The first observation (o,) of an episode."""
    when = "on reset()"
    found = _asked(environment, lambda: environment.reset(seed=seed), when=when)
    observation, _ = _parts(environment, found, ("observation", "info"), when=when)
    return observed(environment, observation, when=when)


def make_step(environment: Environment, action: np.ndarray, *, where: str) -> Answer:
    """What an action (a,) leads to; where: "at step 3", for messages."""
    # A copy: an environment may change what it is given.
    given = action.astype(environment.action_space.dtype)
    when = f"after action {action.tolist()} {where}"
    found = _asked(environment, lambda: environment.step(given), when=when)
    names = ("observation", "reward", "terminated", "truncated", "info")
    observation, reward, terminated, truncated, _ = _parts(environment, found, names, when=when)
    seen, paid = observed(environment, observation, when=when), np.asarray(reward)
    # Arrays that hold one number will do.
    if paid.size != 1 or not np.isfinite(paid).all():
        raise CalibrlError(f"environment {name_of(environment)} paid {reward} {when}; a reward is one finite number")
    return Answer(seen, float(paid.reshape(())), bool(terminated), bool(truncated))


def random_steps(environment: Environment, steps: int) -> Iterator[tuple[np.ndarray, np.ndarray, Answer]]:
    """Steps of random actions, the same each time: what was seen (o,), the action (a,), and the answer."""
    generator, space = np.random.default_rng(0), environment.action_space
    seen = begin_episode(environment, seed=0)
    for step in range(1, steps + 1):
        action = generator.uniform(space.low, space.high)
        answer = make_step(environment, action, where=f"at step {step}")
        yield seen, action, answer
        seen = begin_episode(environment) if answer.terminated or answer.truncated else answer.observation


def observed(environment: Environment, observation: Any, *, when: str) -> np.ndarray:
    """What an environment shows as it promised: finite numbers of its space's shape, in float64.

    A copy: an environment may answer with the array that it goes on computing in.
    """
    found, wanted = np.array(observation), environment.observation_space.shape
    if found.shape != wanted:
        raise CalibrlError(
            f"environment {name_of(environment)} observed shape {found.shape} {when}; its observation_space says "
            f"{wanted}: correct one of the two"
        )
    found = found.astype(np.float64, copy=False)
    if not np.isfinite(found).all():
        raise CalibrlError(
            f"environment {name_of(environment)} observed {found.tolist()} {when}, which is not finite; where its "
            "physics diverge, use a smaller time step or tighter action bounds"
        )
    return found


def name_of(environment: Environment) -> str:
    """What messages call an environment."""
    spec = environment.spec
    return repr(spec.id) if spec else type(environment.unwrapped).__name__


def _asked(environment: Environment, question: Callable[[], Any], *, when: str) -> Any:
    """The answer, or one line about the error that it raised instead."""
    try:
        return question()
    except CalibrlError:
        raise
    except Exception as problem:  # whatever the code of somebody's environment raises
        *_, place = traceback.extract_tb(problem.__traceback__)
        what = f"{type(problem).__name__}: {first_line(problem)}, {Path(place.filename).name} line {place.lineno}"
        raise CalibrlError(
            f"environment {name_of(environment)} failed {when} ({what}); correct it: trials that a run has finished "
            "are kept for --resume"
        ) from problem


def _parts(environment: Environment, answer: Any, names: tuple[str, ...], *, when: str) -> tuple[Any, ...]:
    """The parts of an answer, as many as Gymnasium says."""
    if not isinstance(answer, tuple) or len(answer) != len(names):
        got = f"{len(answer)} parts" if isinstance(answer, tuple) else type(answer).__name__
        raise CalibrlError(
            f"environment {name_of(environment)} answered with {got} {when}; Gymnasium expects ({', '.join(names)}), "
            "older environments of gym answer otherwise: change it, or wrap it with shimmy"
        )
    return answer


class Actor(Protocol):
    """Whoever decides: a fleet, random at first."""

    def act(self, observation: Tensor) -> Tensor:
        """Actions (g, a) at observations (g, o)."""

    def begin(self, agents: Sequence[int]) -> None:
        """These agents' episodes begin: whatever they had planned is over."""


@dataclass(frozen=True, eq=False)
class Trial:
    """What happened to g agents in T steps each.

    Parameters
    ----------
    observation, next_observation : Tensor (g, T, o)
        Before and after each step.
    action : Tensor (g, T, a)
    reward : Tensor (g, T)
    terminated : bool Tensor (g, T)
        Where the step ended its episode for good.
    last : bool Tensor (g, T)
        Where an episode ended for whatever reason, the trial's end included.
    cut : bool Tensor (g,)
        Whose last episode would have gone on if the trial had.
    """

    observation: Tensor
    action: Tensor
    next_observation: Tensor
    reward: Tensor
    terminated: Tensor
    last: Tensor
    cut: Tensor

    @property
    def returns(self) -> list[float]:
        """The mean return of each agent's episodes.

        One that the trial cut counts if it is the only one, or has lasted as long as the others on average: to leave
        out one that was still going well would be the greater error, to count one that had just begun, too.
        """
        found = []
        for agent, reward in enumerate(self.reward.double()):
            *before, newest = self.episodes(agent)
            usual = newest.start / max(len(before), 1)
            counts = not bool(self.cut[agent]) or newest.stop - newest.start >= usual
            counted = [*before, newest] if counts or not before else before
            found.append(sum(float(reward[one].sum()) for one in counted) / len(counted))
        return found

    def episode_returns(self, agent: int) -> list[float]:
        """What each episode of one agent earned."""
        return [float(self.reward[agent, one].double().sum()) for one in self.episodes(agent)]

    def episodes(self, agent: int) -> list[slice]:
        """The steps of each episode of one agent."""
        ends = (self.last[agent].nonzero()[:, 0] + 1).tolist()
        return [slice(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def run_trial(
    actor: Actor,
    environments: Sequence[Environment],
    *,
    steps: int,
    seeds: Sequence[int],
    on_step: Callable[[int, Tensor], None] = lambda *_: None,
) -> Trial:
    """Act for `steps` in every environment. One that ends before starts again, so that all have equally many rows.

    Parameters
    ----------
    actor : Actor
        Decides for all agents.
    environments : sequence of gymnasium.Env
        One for each agent.
    steps : int
        Of the trial.
    seeds : sequence of int
        What each environment's chance is seeded with.
    on_step : function of (int, Tensor (g,))
        Hears of each step, and what the episodes under way have earned so far.

    Returns
    -------
    Trial
    """
    observation = np.stack([begin_episode(env, seed=seed) for env, seed in zip(environments, seeds, strict=True)])
    agents = range(len(environments))
    actor.begin(list(agents))
    kept: list[tuple[np.ndarray, ...]] = []
    earned = torch.zeros(len(environments), dtype=torch.float64)
    for step in range(steps):
        chosen = actor.act(torch.as_tensor(observation, dtype=torch.float32))
        action = chosen.detach().cpu().numpy()
        where = f"at step {step + 1}"
        answers = [make_step(env, one, where=where) for env, one in zip(environments, action, strict=True)]
        after, reward, terminated, truncated = map(np.array, zip(*answers, strict=True))
        ended = terminated | truncated
        last = ended | (step == steps - 1)
        kept.append((observation, action, after, reward, terminated, last))
        earned += torch.from_numpy(reward)
        on_step(step + 1, earned)
        observation = after.copy()
        begun = [agent for agent in agents if last[agent] and step < steps - 1]
        for agent in begun:
            observation[agent] = begin_episode(environments[agent])
        if begun:
            actor.begin(begun)
            earned[begun] = 0
    columns = [np.stack(column, 1) for column in zip(*kept, strict=True)]
    numbers = [torch.from_numpy(column).float() for column in columns[:4]]
    flags = (torch.from_numpy(column.astype(bool)) for column in (*columns[4:], ~ended))
    return Trial(*numbers, *flags)


@dataclass(frozen=True)
class View:
    """What an agent makes of its environment.

    world: on imagined observations. before: an observation (…, o) as imagination starts from it. after: (next
    observation (…, o), reward (…), terminated (…)) → the imagined observation it should have led to.
    inputs, outputs: of the networks, the action counted among the inputs. events: how many of the outputs, the last
    ones, are 0 or 1. device: where its functions compute. scales: the units of the other outputs, where these are not
    the environment's.
    """

    world: World
    before: Callable[[Tensor], Tensor]
    after: Callable[[Tensor, Tensor, Tensor], Tensor]
    observation_size: int
    inputs: int
    outputs: int
    events: int = 0
    device: torch.device | str = "cpu"
    scales: Scales | None = None

    @property
    def units(self) -> Tensor:
        """One unit of each output (outputs,), in those of the environment."""
        one = torch.ones(self.outputs, device=self.device)
        if self.scales is not None:
            one[: -self.events] = torch.cat([self.scales.target, self.scales.reward[None]])
        return one

    def rows(
        self, observation: Tensor, action: Tensor, next_observation: Tensor, reward: Tensor, terminated: Tensor
    ) -> tuple[Tensor, Tensor]:
        """What the networks are given, x (…, inputs), and what they are to forecast, y (…, outputs)."""
        parts = (observation, action, next_observation, reward, terminated)
        observation, action, next_observation, reward, terminated = (part.to(self.device) for part in parts)
        before = self.before(observation)
        x = torch.cat([self.world.model_input(before), action], -1)
        return x, self.world.target(before, self.after(next_observation, reward, terminated))


def view_of(task: Task, *, device: torch.device | str = "cpu", safety: float = 0.0) -> View:
    """What an agent makes of a task: its reward and its end are learnt unless they are known; safety: as asked for."""
    if safety and task.world.safe is None:
        raise CalibrlError(
            f"planner.safety {safety} asks for a safe set, and {task.name} has none; leave it at 0, give its World one "
            "(safe=…), or take a task that has: cartpole-rail, cartpole-wind, halfcheetah-fall"
        )
    if task.world.reward is not None and task.terminates is False:
        return View(
            world=task.world,
            before=lambda observation: observation,
            after=lambda following, _reward, _terminated: following,
            observation_size=task.observation_size,
            inputs=task.input_size,
            outputs=task.target_size,
        )
    with closing(task.make()) as environment:
        scales = probe(environment, task.world, steps=task.steps, device=device)
    return learnt(task, scales)


def learnt(task: Task, scales: Scales) -> View:
    """The view of an environment whose episodes may terminate, and whose reward is learnt unless the task has one."""
    world, known_reward, known_safe = task.world, task.world.reward, task.world.safe

    def bare(imagined: Tensor) -> Tensor:
        return imagined[..., :-2]

    def target(before: Tensor, after: Tensor) -> Tensor:
        unit, paid = scales.on(after.device)
        change = world.target(bare(before), bare(after)) / unit
        return torch.cat([change, after[..., -2:-1] / paid, 1 - after[..., -1:]], -1)

    def next_observation(before: Tensor, forecast: Tensor) -> Tensor:
        unit, paid = scales.on(forecast.device)
        following = world.next_observation(bare(before), forecast[..., :-2] * unit)
        ends = ~(forecast[..., -1:] < 0.5) if task.terminated is None else task.terminated(following)[..., None]
        goes_on = before[..., -1:] * ~ends
        return torch.cat([following, forecast[..., -2:-1] * paid, goes_on], -1)

    def reward(before: Tensor, action: Tensor, after: Tensor) -> Tensor:
        paid = after[..., -2] if known_reward is None else known_reward(bare(before), action, bare(after))
        return paid * before[..., -1]

    def start(observation: Tensor) -> Tensor:
        one = torch.ones_like(observation[..., :1])
        return torch.cat([observation, torch.zeros_like(one), one], -1)

    def after(following: Tensor, paid: Tensor, terminated: Tensor) -> Tensor:
        return torch.cat([following, paid[..., None], 1 - terminated[..., None].to(following.dtype)], -1)

    return View(
        world=World(
            model_input=lambda imagined: world.model_input(bare(imagined)),
            target=target,
            next_observation=next_observation,
            reward=reward,
            units=_observed_units(task, scales),
            safe=None if known_safe is None else lambda imagined: known_safe(bare(imagined)),
        ),
        before=start,
        after=after,
        observation_size=task.observation_size + 2,
        inputs=task.input_size,
        outputs=task.target_size + 2,
        events=1,
        device=scales.target.device,
        scales=scales,
    )


def _observed_units(task: Task, scales: Scales) -> Tensor:
    """One unit of each imagined number: how much it changes; reward and end are no places to explore."""
    known = scales.target if len(scales.target) == task.observation_size else torch.ones(task.observation_size)
    return torch.cat([known, known.new_full((2,), torch.inf)])


ROUNDING = 2.0**-23
"""How far apart float32 numbers are, as a share of their size."""
JITTER = 1e-4
"""Smaller changes may be those of something at rest: that float32 does not see them is not worth a word."""


@dataclass(frozen=True, eq=False)
class Scales:
    """What one unit of a target is: of each dimension of the dynamics (d,), and of the reward ()."""

    target: Tensor
    reward: Tensor

    def on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Both where numbers to be measured are: a kernel's functions are translated on the CPU."""
        return self.target.to(device), self.reward.to(device)

    def load(self, other: Mapping[str, Tensor]) -> None:
        """Take on the units of rows that were learnt, in place: whoever computes with them sees the change."""
        self.target.copy_(other["target"])
        self.reward.copy_(other["reward"])


def probe(environment: Any, world: World, *, steps: int, device: torch.device | str = "cpu") -> Scales:
    """Scales from one random episode that no agent sees, the same for all agents."""
    made = list(random_steps(environment, steps))
    before, after = torch.from_numpy(np.array([(seen, answer.observation) for seen, _, answer in made])).unbind(1)
    change = world.target(before, after)
    lost = (world.target(before, after * (1 + ROUNDING)) - change).abs().amax(0)
    _refuse_rounding(environment, after, change, lost)
    paid = torch.tensor([answer.reward for _, _, answer in made])
    target = _unit(world.target(before.float(), after.float()), lost.float())
    return Scales(target.to(device), _unit(paid, ROUNDING * paid.abs().amax()).to(device))


def _unit(values: Tensor, lost: Tensor) -> Tensor:
    """One unit (…) of values (n, …): how they vary; their size where they do not; 1 where they are 0.

    lost: (…), what float32 cannot tell from 0.
    """
    spread, size = values.std(0, correction=0), values.square().mean(0).sqrt()
    return torch.where(spread > lost, spread, torch.where(size > lost, size, 1.0))


def _refuse_rounding(environment: Any, seen: Tensor, change: Tensor, lost: Tensor) -> None:
    """Refuse what changes (n, d) by less than float32 tells apart, lost: (d,), where it stands: seen (n, o)."""
    size = change.square().mean(0).sqrt()
    for number in ((size > JITTER) & (lost > size / 2)).nonzero()[:1, 0].tolist():
        raise CalibrlError(
            f"number {number} of what {name_of(environment)} observes changes by about {float(size[number]):.2g} a "
            f"step, and of numbers as far from 0 (up to {float(seen.abs().max()):.3g} is observed) float32, in which "
            f"networks compute, tells only {float(lost[number]):.2g} apart; subtract a constant from it inside"
        )
