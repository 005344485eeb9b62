"""A model-based agent in your own loop: build it, let it act and learn, save it, load it and continue.

python examples/control.py            # a short look
python examples/control.py --trials 8 # learns to swing up the pole, in a few minutes
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from calibrl.control import Agent, task
from calibrl.control.settings import CalibrationSettings, EnsembleSettings, PlannerSettings


def make_agent() -> Agent:
    """An agent, from a task and the settings of its ensemble, map and planner."""
    return Agent(
        task("cartpole"),
        ensemble=EnsembleSettings(members=3, hidden=(64, 64), weight_decay=(1e-4,), epochs=100),
        calibration=CalibrationSettings(map="smooth", held_out=0.2),
        planner=PlannerSettings(horizon=20, population_size=64, elites=8, iterations=3, particles=4),
    )


def episode(agent: Agent, *, seed: int, steps: int) -> float:
    """Act for one episode and learn from it; returns the sum of its rewards."""
    env = agent.task.make()
    observation, _ = env.reset(seed=seed)
    agent.begin()
    earned = 0.0
    for _ in range(steps):
        action = agent.act(observation)
        following, reward, terminated, _, _ = env.step(action)
        agent.observe(observation, action, following, float(reward), terminated=terminated)
        observation, earned = following, earned + float(reward)
    agent.update()
    env.close()
    return earned


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--trials", type=int, default=1)
    options.add_argument("--steps", type=int, default=0, help="steps per trial; default: 20, or 200 with --trials")
    given = options.parse_args()
    steps = given.steps or (20 if given.trials == 1 else 200)

    agent = make_agent()
    print(f"at random: {episode(agent, seed=0, steps=steps):.1f}")
    for trial in range(1, given.trials + 1):
        print(f"trial {trial}: {episode(agent, seed=trial, steps=steps):.1f}, from {agent.rows} rows")

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "agent.pt"
        agent.save(file)
        again = make_agent().load(file)
    print(f"loaded, and still learning: {episode(again, seed=100, steps=steps):.1f}")


if __name__ == "__main__":
    main()
