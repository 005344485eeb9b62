"""Do plans earn what was imagined of them? Each is made, imagined, and then carried out blindly in a copy of the world.

python benchmarks/control_plans.py cartpole-small --seeds 2 --seed 340 --trials 6 --out results/control/plans.jsonl

Rows of `calibrl run control` compare what is imagined with what came of the actions that were taken. Those were chosen
step by step, in answer to what had happened, which no imagined future can know. Here every ninth plan of a trial is
carried out to its end from where it was made, as imagination has it; the agent itself goes on as ever.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from calibrl.control.arms import arm_named
from calibrl.control.loop import rows_of
from calibrl.control.policy import Fleet, Member, episode_seed, stream_seed
from calibrl.control.problems import task_of
from calibrl.control.settings import PRESETS
from calibrl.control.trials import Environment, run_trial, view_of
from calibrl.evidence import Expected
from calibrl.files import write_text
from calibrl.planning.rollout import Errors, imagine, noise_shape
from calibrl.runs.rows import Row, line, origin

EXPERIMENT = "control, plans carried out"
EVERY, PARTICLES = 9, 100


class Tried:
    """Agents that act as ever, and whose plans are tried out on the side.

    started: the step of each plan that is tried, where the agents stood, and how their errors would go on if nobody
    answered new ones. blind: returns imagined of plans (g, particles), and what they earned carried out blindly, (g,).
    """

    def __init__(self, fleet: Fleet, environments: list[Environment]) -> None:
        self.fleet, self.environments, self.step = fleet, environments, 0
        self.started: list[tuple[int, Tensor, Errors | None]] = []
        self.blind: list[tuple[Tensor, Tensor]] = []

    def begin(self, agents: Sequence[int]) -> None:
        self.fleet.begin(agents)

    def act(self, observation: Tensor) -> Tensor:
        fleet, at = self.fleet, self.step
        action = fleet.act(observation)
        self.step += 1
        horizon, following = fleet.settings.planner.horizon, fleet.following
        if fleet.learnt and at % EVERY == 0 and at + horizon <= fleet.settings.steps:
            expected = None if following is None else Expected(*(part[:, None] for part in following.expected))
            errors = None if expected is None else following.ahead(expected, horizon, PARTICLES)
            self.started.append((at, fleet.inputs.observation.clone(), errors))
            plan = torch.cat([action[:, None], fleet.inputs.start[:, :-1]], 1)
            earned = [_carried_out(*pair) for pair in zip(self.environments, plan.double().numpy(), strict=True)]
            self.blind.append((self.imagined(*self.started[-1], plan), torch.tensor(earned)))
        return action

    def imagined(self, at: int, observation: Tensor, errors: Errors | None, plan: Tensor) -> Tensor:
        """Returns (g, particles) imagined of plans (g, h, a)."""
        fleet, planner = self.fleet, self.fleet.settings.planner
        size = {"horizon": plan.shape[1], "plans": 1, "particles": PARTICLES, "outputs": fleet.view.outputs}
        shape = noise_shape(planner.propagation, agents=1, **size)
        noise = torch.randn(shape, generator=torch.Generator().manual_seed(stream_seed(0, "plans", at)))
        how = {"propagation": planner.propagation, "particles": PARTICLES, "errors": errors}
        how |= {"tables": fleet.inputs.tables, "noise": noise.expand(len(fleet), *shape[1:])}
        steps = imagine(fleet.ensemble.nets, fleet.view.world, observation, plan[:, None], **how)
        return sum(fleet.view.world.reward(*step) for step in steps)[:, 0]


def _carried_out(environment: Environment, plan: np.ndarray) -> float:
    """What a plan earns in a copy of the environment as it stands."""
    world = copy.deepcopy(environment)
    return sum(float(world.step(action)[1]) for action in plan)


def score(pairs: list[tuple[Tensor, Tensor]], agent: int) -> dict[str, float]:
    """Coverage of 90 % intervals, what lay below and above them, and the mean error of what was imagined."""
    pits = np.array([float(((drawn[agent] < came[agent]).sum() + 0.5) / (PARTICLES + 1)) for drawn, came in pairs])
    wrong = [float(drawn[agent].mean() - came[agent]) for drawn, came in pairs]
    held = (pits > 0.05) & (pits < 0.95)
    below, above = float((pits <= 0.05).mean()), float((pits >= 0.95).mean())
    return {"coverage_90": float(held.mean()), "below": below, "above": above, "imagined_more": float(np.mean(wrong))}


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset")
    parser.add_argument("--arms", default="uncalibrated,calibrated,calibrated-trajectory")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--seed", type=int, default=340)
    parser.add_argument("--trials", type=int, default=6)
    parser.add_argument("--out", type=Path, help="rows are added to this file")
    asked = parser.parse_args()
    settings = replace(PRESETS[asked.preset], arms=tuple(asked.arms.split(",")))
    what, seeds = task_of(settings), range(asked.seed, asked.seed + asked.seeds)
    members = [Member(arm_named(arm), seed) for seed in seeds for arm in settings.arms]
    fleet = Fleet(view_of(what), members, settings, low=what.low, high=what.high)
    environments: list[Environment] = [what.make() for _ in members]
    rows: list[Row] = []
    for trial in range(asked.trials + 1):
        tried = Tried(fleet, environments)
        episodes = [episode_seed(member.seed, trial) for member in members]
        made = run_trial(tried, environments, steps=settings.steps, seeds=episodes)
        taken = []
        for start in tried.started:
            while_planned = slice(start[0], start[0] + settings.planner.horizon)
            taken.append((tried.imagined(*start, made.action[:, while_planned]), made.reward[:, while_planned].sum(1)))
        for agent, member in enumerate(members) if taken else ():
            for how, pairs in (("blindly", tried.blind), ("as taken", taken)):
                metrics = {"trial": float(trial), **score(pairs, agent), "plans": float(len(pairs))}
                arm, step = f"{member.arm.name}: {how}", (trial + 1) * settings.steps
                where = {} if rows else origin()
                rows.append(Row(EXPERIMENT, settings.task, arm, member.seed, metrics, step, asked.preset, origin=where))
        fleet.update(rows_of(fleet.view, made))
    for arm in dict.fromkeys(row.arm for row in rows):
        late = [row.metrics for row in rows if row.arm == arm and row.metrics["trial"] >= 3]
        means = {name: float(np.mean([one[name] for one in late])) for name in late[0]} if late else {}
        print(arm, {name: round(value, 3) for name, value in means.items()})
    if asked.out:
        before = asked.out.read_text() if asked.out.exists() else ""
        write_text(asked.out, before + "".join(map(line, rows)))


if __name__ == "__main__":
    main()
