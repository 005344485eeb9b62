"""Continuous control: learn a model of the world, calibrate it, and plan with it.

Importing this registers the MuJoCo tasks in Gymnasium, which has read no entry points since version 1.0:

    import gymnasium, calibrl.control
    env = gymnasium.make("calibrl/Cartpole-v0")

`gymnasium.make("calibrl.control:calibrl/Cartpole-v0")` does both.
"""

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from calibrl.lazy import exports

if TYPE_CHECKING:
    from calibrl.control.agent import Agent as Agent
    from calibrl.control.policy import Fleet as Fleet
    from calibrl.control.problems import Task as Task
    from calibrl.control.problems import task as task
    from calibrl.control.problems import task_from_env as task_from_env
    from calibrl.control.settings import TASKS as TASKS


def register() -> None:
    """Make `gymnasium.make("calibrl/Cartpole-v0")` and the others work. Calling it again changes nothing."""
    import gymnasium

    from calibrl.control.settings import ENVIRONMENTS

    for name, steps in ENVIRONMENTS.items():
        env_id = f"calibrl/{name}-v0"
        if env_id not in gymnasium.registry:
            gymnasium.register(env_id, entry_point=f"calibrl.control.envs:{name}", max_episode_steps=steps)


if "calibrl.cli" not in sys.modules:  # whose --help waits for nothing heavy; there `make_env` registers them
    with suppress(ImportError):  # without Gymnasium there is nowhere to register them
        register()

__getattr__, __dir__, __all__ = exports(__name__)
