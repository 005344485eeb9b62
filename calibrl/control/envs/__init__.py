"""The MuJoCo tasks as Gymnasium environments. Importing this registers them: `calibrl/Cartpole-v0` and so on."""

from __future__ import annotations

from calibrl.errors import MissingExtra

try:
    import gymnasium
    import mujoco as mujoco
except ImportError as problem:
    raise MissingExtra(problem.name or "gymnasium", "control") from None

from calibrl.control.problems import task
from calibrl.control.settings import TASKS


def register() -> None:
    """Make `gymnasium.make("calibrl/Cartpole-v0")` and the others work. Calling it again changes nothing."""
    for found in map(task, TASKS):
        if found.env_id not in gymnasium.registry:
            _, _, kind = found.env_id.removesuffix("-v0").partition("/")
            entry = f"calibrl.control.envs.{found.name}:{kind}"
            gymnasium.register(found.env_id, entry_point=entry, max_episode_steps=found.steps)


register()
