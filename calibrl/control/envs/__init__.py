"""The MuJoCo tasks as Gymnasium environments. Importing this registers them: `calibrl/Cartpole-v0` and so on."""

from __future__ import annotations

from calibrl.errors import MissingExtra

try:
    import gymnasium
    import mujoco as mujoco
except ImportError as problem:
    raise MissingExtra(problem.name or "gymnasium", "control") from None

STEPS = {"Cartpole": 200, "HalfCheetah": 1000, "Pusher": 150, "Reacher": 150}
"""Steps of an episode, by the class's name."""


def register() -> None:
    """Make `gymnasium.make("calibrl/Cartpole-v0")` and the others work. Calling it again changes nothing."""
    for name, steps in STEPS.items():
        env_id = f"calibrl/{name}-v0"
        if env_id not in gymnasium.registry:
            entry = f"calibrl.control.envs.{name.lower()}:{name}"
            gymnasium.register(env_id, entry_point=entry, max_episode_steps=steps)


register()
