"""Where chance comes from: every purpose of every agent has a generator of its own.

An agent's luck depends on its seed alone, not on who else is in the fleet; arms of one seed have the same luck.

The arms of the experiment: what an agent trains on, and what its map R is fitted on.

Agents side by side: probabilistic ensembles, a map R on top of each, and one planner that imagines with R∘T.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from calibrl.control import calibration
from calibrl.control.replay import Replay
from calibrl.control.settings import SHARED_OUT, ControlSettings
from calibrl.control.world import View
from calibrl.errors import CalibrlError
from calibrl.forecasters.ensemble import BatchedEnsemble
from calibrl.forecasters.ensemble_training import EnsembleTraining
from calibrl.forecasters.nets import Shape
from calibrl.maps import IDENTITY, Map
from calibrl.planning.candidates import refuse_lost_plans
from calibrl.planning.graph import CapturedPlanner, PlanInputs, Planner, for_device
from calibrl.planning.propagation import stacked_tables


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
class Arm:
    """One way to use the rows of experience.

    evidence: which rows R is fitted on. "none": R is the identity. "held-out": rows that picked their side once, on
    arrival, and that the networks never see; newer ones weigh more. "re-split": the same share, but every row
    draws its side anew after every trial, as the paper's released code does. "fresh": each trial's rows, judged
    before they are trained on.
    holds_out: whether the networks go without the held-out rows. map: a map by name, if not the preset's. wary: whether
    forecasts are widened as much as new trajectories lay further out than the held-out rows had promised.
    """

    name: str
    evidence: str
    holds_out: bool
    map: str | None = None
    wary: bool = False


ARMS = {
    arm.name: arm
    for arm in (
        Arm("calibrated", "held-out", holds_out=True),
        Arm("uncalibrated", "none", holds_out=True),
        Arm("uncalibrated-all", "none", holds_out=False),
        Arm("calibrated-paper", "re-split", holds_out=True, map="sigmoid"),
        Arm("calibrated-fresh", "fresh", holds_out=False),
        Arm("calibrated-wary", "held-out", holds_out=True, wary=True),
    )
}


def arm_named(name: str) -> Arm:
    """The arm of that name, or an error that lists the known ones."""
    if name not in ARMS:
        raise CalibrlError(f"arm {name!r} is unknown; use one of {', '.join(ARMS)}")
    return ARMS[name]


@dataclass(frozen=True)
class Member:
    """One agent of a fleet: its arm and its seed. Arms of one seed share all luck."""

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


REMEMBERED_TRIALS = 10
"""Trials whose fresh z-scores are kept; what is older would hardly count."""


class Fleet:
    """g agents that learn one task side by side; what each does depends on its own seed and arm alone.

    view: what they make of the environment. low, high: bounds of the action (a,). Until they have learnt something
    they act at random.
    """

    def __init__(
        self,
        view: View,
        members: Sequence[Member],
        settings: ControlSettings,
        *,
        low: Tensor,
        high: Tensor,
        device: torch.device | str = "cpu",
    ) -> None:
        if len({member.arm.holds_out for member in members}) != 1:
            raise CalibrlError(
                "agents that hold rows out cannot share a batch with agents that do not: they train on different "
                "numbers of rows; make two fleets"
            )
        self.view, self.members, self.settings = view, tuple(members), settings
        self.device = torch.device(device)
        self.low, self.high = low.float().to(self.device), high.float().to(self.device)
        seeds = [member.seed for member in members]
        self.exploring = [stream(seed, "explore") for seed in seeds]
        self.planning = [stream(seed, "plan", self.device) for seed in seeds]
        self.splitting = [stream(seed, "split") for seed in seeds]
        self.ensemble = BatchedEnsemble(
            _shape(view, settings),
            training=_training(settings),
            generators=[stream(seed, "train") for seed in seeds],
            device=self.device,
        )
        self.replay = Replay(len(members), view.inputs, view.outputs)
        self.maps: list[Map] = [IDENTITY] * len(members)
        self.fresh: list[Tensor] = []
        self.surprise = torch.zeros(len(members), 0, dtype=torch.float64)
        self.learnt = 0
        self.inputs = PlanInputs.empty(
            settings.planner.search,
            propagation=settings.planner.propagation,
            particles=settings.planner.particles,
            agents=len(members),
            observation_size=view.observation_size,
            outputs=view.outputs,
            start=self._middle,
            tables=self.tables() if any(member.arm.evidence != "none" for member in members) else None,
        )
        self._plan: Planner | CapturedPlanner | None = None

    def __len__(self) -> int:
        return len(self.members)

    # Step 1 of Algorithm 1: plan and act.

    def begin(self, agents: Sequence[int]) -> None:
        """These agents' episodes begin: what they had planned is over."""
        self.inputs.begin(agents, self._middle)

    @torch.no_grad()
    def act(self, observation: Tensor) -> Tensor:
        """The first actions (g, a) of the best plans from observations (g, o); at random before anything is learnt."""
        if not self.learnt:
            uniform = torch.stack([torch.rand(len(self.low), generator=one) for one in self.exploring])
            drawn = self.low + uniform.to(self.device) * (self.high - self.low)
            return drawn.clamp(self.low, self.high)
        if self._plan is None:
            nets, world = self.ensemble.nets, self.view.world
            self._plan = for_device(Planner(nets, world, self.inputs, low=self.low, high=self.high))
        self.inputs.observation.copy_(self.view.before(observation.to(self.device)))
        self.inputs.draw(self.planning)
        found = self._plan()
        # What rounding put beyond a bound is put back.
        action = refuse_lost_plans(found.plan)[:, 0].clamp(self.low, self.high)
        self.inputs.go_on(found)
        return action

    # Steps 2 to 4: split, train T, train R.

    @torch.no_grad()
    def learn(self, x: Tensor, y: Tensor) -> None:
        """New rows x (g, n, k), y (g, n, d): each picks its side, the networks train, the maps are fitted again."""
        check_rows(x, y)
        if self.learnt:
            self._be_surprised(x, y)
        self.replay.add(x, y, self._sides(x.shape[1]))
        self._split_again()
        # The replay decides which rows the networks see: those of a re-split are others every time.
        self.ensemble.x, self.ensemble.y = self.ensemble.x[:, :0], self.ensemble.y[:, :0]
        self.ensemble.update_fleet(*self.replay.training_rows(), events=self.events())
        self.show_networks_to_planner()
        self._fit_maps()
        self.learnt += 1

    def judge(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Z-scores and standard deviations (g, n, d) of rows under the networks as they stand, on the CPU."""
        by_member = self.settings.planner.propagation in SHARED_OUT
        return calibration.zscores(self.ensemble.nets, x.to(self.device), y.to(self.device), by_member=by_member)

    def events(self) -> Tensor:
        """Which outcomes (g, d) are events of which both kinds were seen; until then there is nothing to tell apart."""
        varies = (self.replay.y != self.replay.y[:, :1]).any(1)
        varies[:, : self.view.outputs - self.view.events] = False
        return varies

    def tables(self) -> Tensor:
        """What planning draws from: (g, d, cells, 2), the identity for those without a map."""
        mappings = [None if mapping is IDENTITY else mapping for mapping in self.maps]
        return stacked_tables(mappings, self.view.outputs, device=self.device)

    def show_networks_to_planner(self) -> None:
        """Let planning know that the networks have changed."""
        if self._plan is not None:
            self._plan.networks_changed()

    def show_maps_to_planner(self) -> None:
        """Put the maps as they are where planning reads them."""
        if self.inputs.tables is not None:
            self.inputs.tables.copy_(self.tables())

    def _sides(self, rows: int) -> Tensor:
        """Which of the new rows each agent holds out: (g, rows)."""
        if not self.members[0].arm.holds_out:
            return torch.zeros(len(self), rows, dtype=torch.bool)
        share, block = self.settings.calibration.held_out, self.settings.calibration.block
        return torch.stack([calibration.held_rows(rows, share, one, block=block) for one in self.splitting])

    def _split_again(self) -> None:
        for agent, member in enumerate(self.members):
            if member.arm.evidence == "re-split":
                order = torch.randperm(len(self.replay), generator=self.splitting[agent])
                self.replay.held[agent] = self.replay.held[agent, order]

    def _be_surprised(self, x: Tensor, y: Tensor) -> None:
        """See what new rows say of forecasts made before they are learnt, for those who want to know."""
        wary = [member.arm.wary for member in self.members]
        fresh = any(member.arm.evidence == "fresh" for member in self.members)
        if not (fresh or any(wary)):
            return
        z, _ = self.judge(x, y)
        if fresh:
            self.fresh = [*self.fresh, z][-REMEMBERED_TRIALS:]
        if any(wary):
            parts = zip(self.maps, z, self._allowances(), self.events(), strict=True)
            sizes = [calibration.surprise(mapping, own, allowance, event) for mapping, own, allowance, event in parts]
            self.surprise = torch.cat([self.surprise, torch.stack(sizes)[:, None]], 1)

    def _allowances(self) -> Tensor:
        """By how much (g,) the wary widen what held-out rows say, at least 1: by past surprises, most by newer ones."""
        weight = self.settings.calibration.forget ** torch.arange(self.surprise.shape[1]).flip(0).double()
        wary = torch.tensor([member.arm.wary for member in self.members])
        mean = (self.surprise * weight).sum(1) / weight.sum()
        return torch.where(wary & (mean > 1), mean.sqrt(), 1.0)

    def _fit_maps(self) -> None:
        kinds = {member.arm.evidence for member in self.members}
        held = self.judge(*self.replay.held_rows())[0] if kinds & {"held-out", "re-split"} else None
        # Where 0 or 1 lies in an event's forecast is no PIT; outcomes nobody saw leave its map the identity.
        # The paper's recipe maps every dimension alike.
        event = self.events()
        ages, forget, allowances = self.replay.held_ages(), self.settings.calibration.forget, self._allowances()
        for agent, member in enumerate(self.members):
            name = member.arm.map or self.settings.calibration.map
            if member.arm.evidence == "fresh" and self.fresh:
                z, age = self._fresh_evidence(agent)
                self.maps[agent] = calibration.fit(name, z.masked_fill(event[agent], torch.nan), age, forget=forget)
            elif member.arm.evidence == "held-out" and held is not None:
                age = ages[agent].repeat_interleave(held.shape[1] // ages.shape[1])
                z = held[agent].masked_fill(event[agent], torch.nan)
                mapping = calibration.fit(name, z, age, forget=forget)
                self.maps[agent] = calibration.widened(mapping, allowances[agent], event[agent])
            elif member.arm.evidence == "re-split" and held is not None:
                self.maps[agent] = calibration.fit(name, held[agent])
        self.show_maps_to_planner()

    def _fresh_evidence(self, agent: int) -> tuple[Tensor, Tensor]:
        """Z-scores (n, d) of an agent's last trajectories, each judged before it was learnt, and their ages (n,)."""
        parts = [z[agent] for z in reversed(self.fresh)]
        ages = [torch.full((len(part),), age) for age, part in enumerate(parts)]
        return torch.cat(parts), torch.cat(ages)

    @property
    def _middle(self) -> Tensor:
        """The plan (h, a) that stays between the bounds."""
        return ((self.low + self.high) / 2).expand(self.settings.planner.horizon, -1)


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


def _shape(view: View, settings: ControlSettings) -> Shape:
    ensemble = settings.ensemble
    return Shape(
        inputs=view.inputs,
        outputs=view.outputs,
        hidden=ensemble.hidden,
        members=ensemble.members,
        probabilistic=ensemble.probabilistic,
    )


def _training(settings: ControlSettings) -> EnsembleTraining:
    ensemble = settings.ensemble
    return EnsembleTraining(
        epochs=ensemble.epochs,
        batch_size=ensemble.batch_size,
        lr=ensemble.lr,
        weight_decay=ensemble.weight_decay_by_layer,
    )
