"""Agents side by side: probabilistic ensembles, a map R on top of each, and one planner that imagines with R∘T.

Every purpose of every agent has a random stream of its own, which depends on the agent's seed alone: not on who else is
in the fleet, and arms of one seed draw alike.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Normal

from calibrl.algorithm import Calibrated, Forecaster
from calibrl.arrays import Array, off_mps
from calibrl.control.arms import Arm, arm_named
from calibrl.control.settings import SHARED_OUT, ControlSettings
from calibrl.control.trials import View
from calibrl.data import Data
from calibrl.errors import CalibrlError
from calibrl.evidence import Expected, Lasting, Outlook, Trajectory
from calibrl.forecasters.ensemble import BatchedEnsemble, EnsembleTraining, input_scale
from calibrl.forecasters.nets import Shape
from calibrl.maps import IDENTITY, FitMap, Map, fit_named
from calibrl.planning.candidates import chosen, refuse_lost_plans
from calibrl.planning.graph import CapturedPlanner, PlanInputs, Planner, for_device
from calibrl.planning.rollout import Errors, Model, matched, stacked_tables

CHUNK = 4096
"""Rows that the networks are asked about at once."""


def stream_seed(seed: int, purpose: str, index: int = 0) -> int:
    """A 31-bit seed for one purpose, different for each index (of a trial, say)."""
    words = np.random.SeedSequence([seed, zlib.crc32(purpose.encode()), index]).generate_state(1)
    return int(words[0]) & 0x7FFFFFFF


def episode_seed(seed: int, episode: int) -> int:
    """The seed of an agent's episode, counted from 0."""
    return int(np.random.SeedSequence([seed, episode]).generate_state(1)[0])


def stream(seed: int, purpose: str, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator for one purpose of one agent."""
    return torch.Generator(device).manual_seed(stream_seed(seed, purpose))


@dataclass(frozen=True)
class Member:
    """One agent of a fleet: its arm and its seed. Arms of one seed draw alike."""

    arm: Arm
    seed: int

    @property
    def name(self) -> str:
        """As files and messages call it."""
        return f"{self.arm.name}-{self.seed}"


def fleets(arms: Sequence[str], seeds: Sequence[int]) -> list[list[Member]]:
    """Agents grouped so that those of a group have equally many training rows and can share a batch."""
    chosen = [arm_named(name) for name in dict.fromkeys(arms)]
    groups = ([one for one in chosen if one.holds_out], [one for one in chosen if not one.holds_out])
    return [[Member(one, seed) for seed in seeds for one in group] for group in groups if group]


class AgentEnsembles:
    """T of g agents: ensembles of networks that train and forecast in one computation; rows have an agent axis.

    Parameters
    ----------
    ensemble
        The networks.
    by_member
        Whether networks are judged one by one, because planning follows single ones.
    rescales
        Agents whose inputs are standardised by the rows held out once their networks are trained.

    Attributes
    ----------
    events : Tensor (g, d) bool
        Which outcomes are events, 0 or 1: their forecast mean is the chance of 1.
    """

    def __init__(self, ensemble: BatchedEnsemble, *, by_member: bool, rescales: Sequence[int] = ()) -> None:
        self.ensemble, self.by_member, self.rescales = ensemble, by_member, list(rescales)
        self.events = torch.zeros(ensemble.nets.agents, ensemble.nets.shape.outputs, dtype=torch.bool)

    def update(self, data: Data) -> None:
        """Train on new rows x (g, n, k), y (g, n, d) and all before."""
        self.ensemble.update_fleet(data.x, data.y, events=self.events)

    def retrain(self, data: Data) -> None:
        """Train on these rows alone, from where the networks stand."""
        self.ensemble.x, self.ensemble.y = self.ensemble.x[:, :0], self.ensemble.y[:, :0]
        self.update(data)

    def rescale(self, held: Data) -> None:
        """Standardise the inputs of some agents by rows x (g, n, k), until they train again."""
        if self.rescales:
            nets = self.ensemble.nets
            found = input_scale(held.x[self.rescales].to(nets.input_mean))
            nets.input_mean[self.rescales], nets.input_std[self.rescales] = found

    def __call__(self, x: Tensor) -> Normal:
        """The Gaussian of the networks' mean and variance at x (g, n, k): batch shape (g, n, d)."""
        mean, variance = matched(*self.ensemble.nets.moments(x.to(self.ensemble.x)))
        return Normal(mean, variance.sqrt(), validate_args=False)

    def zscores(self, data: Data) -> tuple[Tensor, Tensor]:
        """What outcomes say of the forecasts that planning draws from, as the networks stand.

        Rows x (g, n, k), y (g, n, d) → z-scores and standard deviations (g, n, d) of the moment-matched Gaussian, in
        float64 on the CPU; with `by_member` (g, n · e, d), each network judged on its own.
        """
        device = self.ensemble.x.device
        return zscores(self.ensemble.nets, Data(data.x.to(device), data.y.to(device)), by_member=self.by_member)


def judge(forecaster: Forecaster, data: Data, generator: torch.Generator) -> Tensor:  # noqa: ARG001 (none is a count)
    """What rows say of the forecasts of g agents: z-scores (g, n, d), or (g, n · e, d)."""
    return cast(AgentEnsembles, forecaster).zscores(data)[0]


def zscores(nets: Model, data: Data, *, by_member: bool, chunk: int = CHUNK) -> tuple[Tensor, Tensor]:
    """Z-scores and standard deviations of rows under networks: see `AgentEnsembles.zscores`."""
    found = []
    for some_x, some_y in zip(data.x.split(chunk, 1), data.y.split(chunk, 1), strict=True):
        mean, variance = (off_mps(part).double() for part in nets.moments(some_x))
        if not by_member:
            spread = mean.var(1, correction=0, keepdim=True)
            mean, variance = mean.mean(1, keepdim=True), variance.mean(1, keepdim=True) + spread
        # Deterministic networks that agree say they are certain; a certainty has no z-score.
        sd = variance.clamp(min=1e-12).sqrt()
        z = (some_y.to(mean)[:, None] - mean) / sd
        # Networks last, then flat: rows stay together.
        found.append(torch.stack([z, sd]).movedim(2, 3).flatten(2, 3).cpu())
    z, sd = torch.cat(found, 2).unbind(0)
    return z.clamp(-1e6, 1e6), sd


class Fleet:
    """Agents that learn one task side by side; what each does depends on its own seed and arm alone.

    Until they have learnt something they act at random. A model for `calibrl.learn`, whose rows have an agent axis.

    Parameters
    ----------
    view : View
        What they make of the environment.
    members : sequence of Member
        The g agents: arms and seeds. Either all hold rows out, or none does.
    settings : ControlSettings
        Networks, planner and calibration.
    low, high : Tensor (a,)
        Bounds of the action.
    choices : tuple of int
        Where actions are choices: how many things there are of each kind. An action is then 1 for each chosen thing.
    device : str or torch.device
        Where networks train and plans are made.
    """

    def __init__(
        self,
        view: View,
        members: Sequence[Member],
        settings: ControlSettings,
        *,
        low: Tensor,
        high: Tensor,
        choices: tuple[int, ...] = (),
        device: torch.device | str = "cpu",
    ) -> None:
        if len({member.arm.holds_out for member in members}) != 1:
            raise CalibrlError(
                "agents that hold rows out cannot share a batch with agents that do not: they train on different "
                "numbers of rows; make two fleets"
            )
        self.view, self.members, self.settings = view, tuple(members), settings
        self.device, self.choices = torch.device(device), choices
        self.low, self.high = low.float().to(self.device), high.float().to(self.device)
        seeds = [member.seed for member in members]
        self.exploring = [stream(seed, "explore") for seed in seeds]
        self.planning = [stream(seed, "plan", self.device) for seed in seeds]
        self.splitting = [stream(seed, "split") for seed in seeds]
        networks, planner, calibration = settings.ensemble, settings.planner, settings.calibration
        ensemble = BatchedEnsemble(
            Shape(view.inputs, view.outputs, networks.hidden, networks.members, networks.probabilistic),
            training=EnsembleTraining(
                networks.epochs,
                networks.batch_size,
                networks.lr,
                networks.weight_decay_by_layer,
                min_steps=networks.min_steps,
            ),
            generators=[stream(seed, "train") for seed in seeds],
            device=self.device,
        )
        rescales = [agent for agent, member in enumerate(members) if member.arm.rescales]
        self.forecaster = AgentEnsembles(ensemble, by_member=planner.propagation in SHARED_OUT, rescales=rescales)
        parts = zip(members, self.splitting, strict=True)
        self.model = Calibrated(
            self.forecaster,
            evidence=[member.arm.evidence(calibration, generator) for member, generator in parts],
            fit_map=[self._fit_map(agent) for agent in range(len(members))],
            judge=judge,
            remember=True,
        )
        for one in self.model.evidence:
            if isinstance(one, Trajectory):
                one.events = view.events
        self.following = Following(self) if any(member.arm.limited for member in members) else None
        self.inputs = PlanInputs.empty(
            planner.search_among(choices),
            propagation=planner.propagation,
            particles=planner.particles,
            agents=len(members),
            observation_size=view.observation_size,
            outputs=view.outputs,
            start=self._middle,
            tables=self.tables() if any(member.arm.calibrated for member in members) else None,
            errors=None if self.following is None else self.following.here(),
            risk=planner.risk,
        )
        self._plan: Planner | CapturedPlanner | None = None

    def __len__(self) -> int:
        return len(self.members)

    # Step 1 of Algorithm 1: plan and act.

    def begin(self, agents: Sequence[int]) -> None:
        """These agents' episodes begin: what they had planned is over."""
        self.inputs.begin(agents, self._middle)
        if self.following is not None:
            self.following.begin(agents)

    def memory(self) -> list[Tensor]:
        """What agents have in mind in the middle of an episode, for `recall` after another one."""
        return [part.clone() for part in self._in_mind]

    def recall(self, memory: Sequence[Tensor]) -> None:
        """Go on where `memory` was asked for."""
        for part, was in zip(self._in_mind, memory, strict=True):
            part.copy_(was)

    @property
    def _in_mind(self) -> list[Tensor]:
        return [self.inputs.start, self.inputs.elites, *(() if self.following is None else self.following.buffers)]

    @torch.no_grad()
    def act(self, observation: Tensor) -> Tensor:
        """The first actions of the best plans; at random before anything is learnt.

        Parameters
        ----------
        observation : Tensor (g, o)
            What each agent sees.

        Returns
        -------
        Tensor (g, a)
        """
        if not self.learnt:
            uniform = torch.stack([torch.rand(len(self.low), generator=one) for one in self.exploring])
            drawn = self.low + uniform.to(self.device) * (self.high - self.low)
            return chosen(drawn, self.choices) if self.choices else drawn.clamp(self.low, self.high)
        if self._plan is None:
            nets, world = self.ensemble.nets, self.view.world
            self._plan = for_device(Planner(nets, world, self.inputs, low=self.low, high=self.high))
        before = self.view.before(observation.to(self.device))
        self.inputs.observation.copy_(before)
        if self.following is not None:
            self.following.look(observation.to(self.device))
            for buffer, now in zip(self.inputs.errors or (), self.following.here(), strict=True):
                buffer.copy_(now)
        self.inputs.draw(self.planning)
        if self.settings.planner.surprise < 1:
            self.inputs.particle_noise.mul_(self.settings.planner.surprise)
        found = self._plan()
        # What rounding put beyond a bound is put back.
        action = refuse_lost_plans(found.plan)[:, 0].clamp(self.low, self.high)
        self.inputs.go_on(found)
        if self.following is not None:
            self.following.act(before, action)
        return action

    # Steps 2 to 4: split, train T, train R.

    @torch.no_grad()
    def update(self, data: Data) -> None:
        """New rows x (g, n, k), y (g, n, d): each picks its side, the networks train, the maps are fitted again."""
        check_rows(data.x, data.y)
        new = Data(data.x.cpu(), data.y.cpu(), last=data.last)
        rows = self.model.rows
        self.forecaster.events = self._events(new if rows is None else rows + new)
        self.model.update(new)
        self.show_to_planner()

    @property
    def ensemble(self) -> BatchedEnsemble:
        """The networks of all agents."""
        return self.forecaster.ensemble

    @property
    def maps(self) -> list[Map]:
        """R of each agent, the identity for those without."""
        return cast(list[Map], self.model.maps)

    @property
    def learnt(self) -> int:
        """How often they have learnt."""
        return self.model.updates

    @property
    def rows(self) -> int:
        """How many rows each agent has learnt from or holds out."""
        return 0 if self.model.rows is None else len(self.model.rows)

    def tables(self) -> Tensor:
        """What planning draws from: (g, d, cells, 2), the identity for those without a map."""
        mappings = [None if mapping is IDENTITY else mapping for mapping in self.maps]
        return stacked_tables(mappings, self.view.outputs, device=self.device)

    def show_to_planner(self) -> None:
        """Let planning know that the networks have changed, and put the maps where it reads them."""
        if self._plan is not None:
            self._plan.networks_changed()
        if self.inputs.tables is not None:
            self.inputs.tables.copy_(self.tables())
        if self.following is not None:
            self.following.learn()

    def forget_planner(self) -> None:
        """Make one anew for the next action: what it read once, as units of an environment, has changed."""
        self._plan = None

    def _events(self, data: Data) -> Tensor:
        """Which outcomes (g, d) are events of which both kinds were seen; until then there is nothing to tell apart."""
        varies = (data.y != data.y[:, :1]).any(1)
        varies[:, : self.view.outputs - self.view.events] = False
        return varies

    def _fit_map(self, agent: int) -> FitMap:
        arm = self.members[agent].arm
        fit = arm.fit or fit_named(arm.map or self.settings.calibration.map)

        def without_events(pit: Array | None = None, *, weight: Array | None = None, z: Array | None = None) -> Map:
            """Where 0 or 1 lies in an event's forecast is no PIT: its column keeps the identity."""
            assert isinstance(z, Tensor)
            return fit(pit, z=z.masked_fill(self.forecaster.events[agent], torch.nan), weight=weight)

        return fit if arm.map else without_events

    @property
    def _middle(self) -> Tensor:
        """The plan (h, a) that stays between the bounds."""
        return ((self.low + self.high) / 2).expand(self.settings.planner.horizon, -1)


class Following:
    """What agents' newest errors say of the next ones, step by step while they act: see `calibrl.evidence.Lasting`.

    Parameters
    ----------
    fleet : Fleet
        The g agents. Of those whose evidence says nothing of how errors go on, errors are independent.

    Attributes
    ----------
    lasting : Lasting (g, 1, 2, d)
        How errors go on.
    expected : Expected (g, e, 2, d)
        What the next error is expected to be: of e networks, or with e = 1 of all together.
    limits : Tensor (2, g, 1, 1, d)
        Nothing is imagined further beyond all outcomes so far than these are apart; infinite for arms without limits.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.networks = fleet.settings.ensemble.members if fleet.forecaster.by_member else 1
        # What was seen when the last action was chosen, NaN where there was none, and what networks were asked then.
        self._before = torch.zeros(len(fleet), fleet.view.observation_size, device=fleet.device)
        self._x = torch.zeros(len(fleet), 1, fleet.view.inputs, device=fleet.device)
        self.learn()

    def learn(self) -> None:
        """Take over what evidence says now; what was expected before networks were trained again is forgotten."""
        none = torch.zeros(2, self.fleet.view.outputs).double()
        found = [one.lasting or Lasting(none, none, none[0] + 1) for one in self.fleet.model.evidence]
        parts = (torch.stack([getattr(one, name) for one in found]) for name in ("kept", "gain", "spread"))
        self.lasting = Lasting(*(part[:, None] for part in parts))
        self.expected = Expected(*(part.repeat_interleave(self.networks, 1) for part in self.lasting.unknown()))
        self._outlook = Outlook(self.lasting, self.fleet.settings.planner.horizon)
        self.limits = torch.tensor([-torch.inf, torch.inf])[:, None, None].repeat(1, len(found), none.shape[-1])
        for agent, member in enumerate(self.fleet.members):
            if member.arm.limited and (rows := self.fleet.model.rows) is not None:
                low, high = rows.y[agent].amin(0), rows.y[agent].amax(0)
                self.limits[:, agent] = torch.stack([2 * low - high, 2 * high - low])
        self.limits = self.limits[:, :, None, None]
        self._before.fill_(torch.nan)

    def begin(self, agents: Sequence[int]) -> None:
        """Episodes of these agents begin: nothing is known of their errors."""
        for now, unknown in zip(self.expected, self.lasting.unknown(), strict=True):
            now[list(agents)] = unknown[list(agents)]
        self._before[list(agents)] = torch.nan

    def act(self, before: Tensor, action: Tensor) -> None:
        """Agents that are at (g, o) choose actions (g, a)."""
        self._before.copy_(before)
        self._x[:, 0] = torch.cat([self.fleet.view.world.model_input(before), action], -1)

    def look(self, observation: Tensor) -> None:
        """They see what came of it, (g, o)."""
        view = self.fleet.view
        unpaid = torch.full_like(observation[:, 0], torch.nan)  # what it paid is not asked for here
        came = view.world.target(self._before, view.after(observation, unpaid, torch.zeros_like(unpaid)))
        error = self._errors(self.fleet.forecaster.zscores(Data(self._x, came[:, None]))[0])
        for buffer, now in zip(self.expected, self.lasting.seen(self.expected, error), strict=True):
            buffer.copy_(now)

    def ahead(self, expected: Expected, steps: int, particles: int) -> Errors:
        """How errors of so many particles go on from what is expected where n trajectories begin, (g, n, e, …)."""
        return self._errors_from(expected.mean, self.lasting.ahead(expected.doubt[:, :, 0], steps), particles)

    def here(self) -> Errors:
        """How imagined errors of a plan go on from here; the agent will plan again once it has seen new ones."""
        steps = self._outlook(self.expected.doubt[:, None, 0])
        return self._errors_from(self.expected.mean[:, None], steps, self.fleet.settings.planner.particles)

    def _errors_from(self, start: Tensor, steps: Tensor, particles: int) -> Errors:
        if self.fleet.settings.planner.propagation == "TSinf":
            start = start.repeat_interleave(particles // self.networks, 2)
        elif self.networks > 1:  # particles of TS1 change networks all the time
            start = start.mean(2, keepdim=True)
        return Errors(*(part.float().to(self.fleet.device) for part in (start, steps, *self.limits)))

    def along(self, z: Tensor, last: Tensor) -> Expected:
        """What was expected before each of T steps, (g, T, e, …), that were z (g, T · e, d) off; last: (g, T)."""
        errors = self._errors(z).unflatten(1, (-1, self.networks))
        if self.fleet.view.events:
            errors[..., -1 - self.fleet.view.events] = torch.nan  # what a step paid: nobody tells while they act
        unknown = Expected(*(part.repeat_interleave(self.networks, 1) for part in self.lasting.unknown()))
        now, found = unknown, []
        for error, ended in zip(errors.unbind(1), last.unbind(1), strict=True):
            found.append(now)
            now = self.lasting.seen(now, error)
            for part, before in zip(now, unknown, strict=True):
                part[ended] = before[ended]
        return Expected(*(torch.stack(part, 1) for part in zip(*found, strict=True)))

    def _errors(self, z: Tensor) -> Tensor:
        """Recalibrated z-scores (g, n, d), cut off as evidence cuts them off."""
        recalibrated = [mapping.forward_z(one) for mapping, one in zip(self.fleet.maps, z, strict=True)]
        return torch.stack(recalibrated).clamp(-Trajectory.FURTHEST, Trajectory.FURTHEST)

    @property
    def buffers(self) -> list[Tensor]:
        """All that changes while they act."""
        return [*self.expected, self._before, self._x]


def check_rows(x: Tensor, y: Tensor) -> None:
    """Refuse rows x (…, k), y (…, d) that networks cannot learn; once among the others, they would spoil all."""
    for part, name in ((x, "an input"), (y, "an outcome")):
        # Squares, because the loss takes the square of a forecast's error.
        good = part.square().isfinite()
        if not bool(good.all()):
            raise CalibrlError(
                f"{name} of the networks is {float(part[~good][0])}; its square must be finite in float32: leave such "
                "steps out, or scale the environment's observations and rewards down"
            )
