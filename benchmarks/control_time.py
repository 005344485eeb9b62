"""What control costs in CPU time, on one thread: an action of each arm, and what planning and SAC earn by the minute.

python benchmarks/control_time.py actions --out results/control/action-time.jsonl
python benchmarks/control_time.py minutes --seed 500 --seeds 3 --out results/control/minutes.jsonl
python benchmarks/control_time.py minutes --preset halfcheetah-best-small --at 60,180,360 --seed 500 --seeds 3

`actions`: agents with default settings that have learnt two trials choose their next action turn by turn.
`minutes`: an agent and SAC learn by turns in one process, so that a busy machine slows both alike. Each time the agent
has used so many seconds of CPU time, SAC learns on until it has used as much, and then both are evaluated on the same
episodes, which is not counted.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from timing import Job, Timing, side_by_side

from calibrl.control import Agent
from calibrl.control.problems import task_from_env, task_of
from calibrl.control.sac import Sac
from calibrl.control.settings import PRESETS, ControlSettings
from calibrl.runs.rows import Row, append, origin

DEFAULT = "calibrated-trajectory"
ENVIRONMENTS = ("Pendulum-v1", "CartPole-v1", "HalfCheetah-v5")
EPISODES = 3


def actions(name: str, seed: int) -> list[Row]:
    """What an action of the default arm takes over one of each other arm, turn by turn."""
    found = []
    for other in ("calibrated", "uncalibrated"):
        agents = [Agent(task_from_env(name, steps=100), arm=arm, seed=seed) for arm in (DEFAULT, other)]
        jobs: list[Job] = []
        for agent in agents:
            agent.learn(trials=1)
            env = agent.task.make()
            seen, _ = env.reset(seed=seed)
            agent.begin()
            jobs.append(partial(agent.act, seen))
            env.close()
        ours, theirs = side_by_side(*jobs, repeats=60, clock=time.process_time)
        metrics = {"ratio": ours.median / theirs.median, "default_s": ours.median, "other_s": theirs.median}
        found.append(Row("control, an action's time", name, f"{DEFAULT} over {other}", seed, metrics))
        print(name, other, Timing(ours.seconds), f"{metrics['ratio']:.3f}", flush=True)
    return found


def minutes(seed: int, preset: ControlSettings, seconds: Sequence[float]) -> list[Row]:
    """What an agent and SAC have learnt to earn after as much CPU time."""
    what = task_of(preset)
    agent = Agent(what, ensemble=preset.ensemble, planner=preset.planner, seed=seed)
    sac = Sac(what, seed=seed, steps=100_000)
    used = {DEFAULT: 0.0, "sac": 0.0}
    found = []
    for at in seconds:
        while used[DEFAULT] < at:
            used[DEFAULT] += _took(partial(agent.learn, trials=1))
        while used["sac"] < used[DEFAULT]:
            used["sac"] += _took(sac.learn_episode)
        for arm, step, earned in ((DEFAULT, agent.rows, agent.evaluate(EPISODES)), ("sac", sac.step, _evaluate(sac))):
            metrics = {"at": at, "cpu_seconds": used[arm], "return": float(np.mean(earned))}
            found.append(Row("control, by the minute", what.name, arm, seed, metrics, step, preset.name))
            print(f"seed {seed}, {arm}: {used[arm]:.1f} s, {step} steps, {metrics['return']:.1f}", flush=True)
    sac.close()
    return found


def _took(job: Callable[[], object]) -> float:
    began = time.process_time()
    job()
    return time.process_time() - began


def _evaluate(sac: Sac, first: int = 10_000) -> list[float]:
    """The returns of the episodes that `Agent.evaluate` acts in."""
    env = sac.task.make()
    earned = []
    for episode in range(EPISODES):
        seen, _ = env.reset(seed=first + episode)
        total = 0.0
        for _ in range(sac.task.steps):
            seen, reward, *_ = env.step(sac.act(seen))
            total += float(reward)
        earned.append(total)
    env.close()
    return earned


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("actions", "minutes"))
    parser.add_argument("--seed", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--preset", choices=PRESETS, default="cartpole-small", metavar="NAME", help="minutes: of what")
    parser.add_argument("--at", default="30,60,120", help="minutes: after which seconds of CPU time")
    parser.add_argument("--out", type=Path, help="rows are added to this file")
    asked = parser.parse_args()
    where = origin(" ".join(["python benchmarks/control_time.py", *sys.argv[1:]]))
    # Compiled code is loaded, or made, before anything is timed.
    Agent("Pendulum-v1", steps=5, seed=asked.seed).learn(trials=1)
    for seed in range(asked.seed, asked.seed + asked.seeds):
        if asked.what == "minutes":
            rows = minutes(seed, PRESETS[asked.preset], [float(at) for at in asked.at.split(",")])
        else:
            rows = [row for name in ENVIRONMENTS for row in actions(name, seed)]
        for row in rows:
            row.origin.update(where)
        if asked.out:
            append(asked.out, rows)


if __name__ == "__main__":
    main()
