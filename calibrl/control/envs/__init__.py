"""The MuJoCo tasks as Gymnasium environments, and what these share: seeded starts, pictures, no silent divergence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrl.errors import CalibrlError, MissingExtra

try:
    import gymnasium
    import mujoco
    from gymnasium.spaces import Box
except ImportError as problem:
    raise MissingExtra(problem.name or "gymnasium", "control") from None

from calibrl.control.envs.rendering import Camera, Picture, picture
from calibrl.control.problems import Task
from calibrl.control.settings import ENVIRONMENTS
from calibrl.planning.rollout import World

Floats = NDArray[np.float64]
ASSETS = Path(__file__).parents[1] / "assets"
GYMNASIUM_ASSETS = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets"

_DIVERGED = (mujoco.mjtWarning.mjWARN_BADQPOS, mujoco.mjtWarning.mjWARN_BADQVEL, mujoco.mjtWarning.mjWARN_BADQACC)


class MujocoEnvironment(gymnasium.Env[Floats, NDArray[np.float32]]):
    """A task on a MuJoCo model. A task says how it starts, what is seen and what is earned; it never ends early.

    frame_skip: simulation steps for one action. renderer: "auto" takes MuJoCo's own pictures where OpenGL works
    without a screen and a sketch of the model's shapes elsewhere; "egl", "osmesa" and "sketch" insist.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"]}  # type: ignore[misc]
    frame_skip: ClassVar[int]
    camera: ClassVar[Camera]

    def __init__(
        self,
        model: mujoco.MjModel,
        *,
        render_mode: str | None = None,
        renderer: str = "auto",
        width: int = 480,
        height: int = 320,
    ) -> None:
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise CalibrlError(f'render_mode {render_mode!r} is unknown; use "rgb_array" or None')
        self.model, self.data = model, mujoco.MjData(model)
        self.render_mode = render_mode
        self.metadata = {**self.metadata, "render_fps": round(1 / self.dt)}  # type: ignore[misc]
        self._renderer, self._size = renderer, (width, height)
        self._picture: Picture | None = None
        self._steps = 0
        low, high = model.actuator_ctrlrange.astype(np.float32).T
        self.action_space = Box(low, high, dtype=np.float32)
        mujoco.mj_forward(model, self.data)
        # Joint positions when the last action began.
        self._before: Floats = self.data.qpos.copy()
        self._seen = self._observe()
        self.observation_space = Box(-np.inf, np.inf, self._seen.shape, np.float64)

    # What a task says.

    def _start(self) -> None:
        """Put `data` where an episode starts, with `np_random`."""
        raise NotImplementedError

    def _observe(self) -> Floats:
        """What is seen of `data`."""
        raise NotImplementedError

    def _reward(self, seen: Floats, action: Floats) -> float:
        """What the step earned that has just been made from observation `seen`."""
        raise NotImplementedError

    # Gymnasium's side.

    @property
    def dt(self) -> float:
        """Seconds that an action lasts."""
        return float(self.model.opt.timestep * self.frame_skip)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Floats, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed, options=options)
        mujoco.mj_resetData(self.model, self.data)
        self._steps = 0
        self._start()
        mujoco.mj_forward(self.model, self.data)
        self._before = self.data.qpos.copy()
        self._seen = self._observe()
        return self._seen.copy(), {}

    def step(self, action: NDArray[np.floating[Any]]) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        """Hold an action for `dt` seconds."""
        given = np.asarray(action, np.float64)
        if given.shape != (self.model.nu,) or not np.isfinite(given).all():
            raise CalibrlError(f"action {given.tolist()} is not {self.model.nu} finite numbers")
        self._steps += 1
        self._before = self.data.qpos.copy()
        self.data.ctrl[:] = given
        mujoco.mj_step(self.model, self.data, nstep=self.frame_skip)
        self._refuse_divergence()
        # A step ends with new joint angles and old positions of bodies: an observation shows one instant.
        mujoco.mj_kinematics(self.model, self.data)
        mujoco.mj_comPos(self.model, self.data)
        seen, self._seen = self._seen, self._observe()
        return self._seen.copy(), self._reward(seen, given), False, False, {}

    def render(self) -> NDArray[np.uint8] | None:
        """A picture (height, width, 3), or None without a render mode."""
        if self.render_mode is None:
            return None
        if self._picture is None:
            self._picture = picture(self.model, self.camera, renderer=self._renderer, size=self._size)
        return self._picture(self.data)

    def close(self) -> None:
        """Give back what drawing took."""
        if self._picture is not None:
            self._picture.close()
            self._picture = None

    def _refuse_divergence(self) -> None:
        # MuJoCo answers a diverged state by quietly starting again from the model's first one.
        if any(self.data.warning[kind].number for kind in _DIVERGED):
            name = self.spec.id if self.spec else type(self).__name__
            raise CalibrlError(
                f"the physics of {name} diverged at step {self._steps}, time {self._steps * self.dt:.2f} s; "
                "check the state it was set to, or take smaller time steps"
            )


def mujoco_task(
    kind: type[MujocoEnvironment],
    *,
    world: World,
    sizes: tuple[int, int],
    limit: float,
    solved: float | None = None,
    solved_by: str = "",
    name: str = "",
    measure: Callable[[Tensor, Tensor, Tensor], dict[str, float]] | None = None,
) -> Task:
    """The task of an environment class: o and a are its `sizes`, actions lie within ±`limit`.

    The world's functions put numbers in one by one, never as a tensor made there: a CUDA graph could not capture its
    copy.
    """
    observation, action = sizes
    high = torch.full((action,), limit)
    return Task(
        name=name or kind.__name__.lower(),
        env_id=f"calibrl/{kind.__name__}-v0",
        world=world,
        observation_size=observation,
        action_size=action,
        target_size=observation,
        low=-high,
        high=high,
        steps=ENVIRONMENTS[kind.__name__],
        solved=solved,
        solved_by=solved_by,
        terminates=False,
        measure=measure,
    )
