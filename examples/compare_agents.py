"""The same task for SAC of Stable-Baselines3, which has no model, and for a calibrated agent, which plans with one.

python examples/compare_agents.py                        # a short look
python examples/compare_agents.py --steps 200 --trials 8 # what 1800 steps teach each of them, in a few minutes
"""

from __future__ import annotations

import argparse

import numpy as np
from stable_baselines3 import SAC
from stable_baselines3.common.evaluation import evaluate_policy

from calibrl.control import Agent, task_from_env
from calibrl.control.settings import EnsembleSettings, PlannerSettings


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--env", default="Pendulum-v1", help="any Gymnasium id that both can act in")
    options.add_argument("--steps", type=int, default=25, help="steps per trial")
    options.add_argument("--trials", type=int, default=1, help="trials after the random one")
    given = options.parse_args()

    small = given.trials == 1
    settings = {
        "ensemble": EnsembleSettings(members=3, hidden=(32, 32), weight_decay=(1e-4,), epochs=20),
        "planner": PlannerSettings(horizon=8, population_size=16, elites=4, iterations=2, particles=4),
    }
    task = task_from_env(given.env, steps=given.steps)
    agent = Agent(task, **(settings if small else {}))
    results = agent.learn(given.trials, callback=lambda result: print(f"trial {result.trial}: {result.earned:.0f}"))
    rows = results[-1].rows
    planned = agent.evaluate(1 if small else 5)

    env = task.make(max_episode_steps=given.steps)
    sac = SAC("MlpPolicy", env, seed=0, learning_starts=given.steps, verbose=0).learn(rows)
    learnt, _ = evaluate_policy(sac, env, n_eval_episodes=len(planned), return_episode_rewards=True, warn=False)
    print(f"after {rows} steps each: calibrated agent {np.mean(planned):.0f}, SAC {np.mean(learnt):.0f}")


if __name__ == "__main__":
    main()
