"""Reach a goal in the air with an arm of seven joints, as in Chua et al. (2018)."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np

from calibrl.control.envs.base import ASSETS, Floats, MujocoTask
from calibrl.control.envs.rendering import Camera


class Reacher(MujocoTask):
    """Observation (17,): 7 joint angles, goal (3,), 7 velocities. Action (7,): torques, ±20.

    An action lasts 0.02 s. It pays -‖tip - goal‖² - 0.01·‖a‖². The tip is between the fingers' middle joints.
    """

    frame_skip = 2
    camera = Camera(view="top", centre=(0.2, -0.05, 0.0), width=2.2)

    def __init__(self, **options: Any) -> None:
        super().__init__(mujoco.MjModel.from_xml_path(str(ASSETS / "reacher.xml")), **options)

    def _start(self) -> None:
        self.data.mocap_pos[0] = self.np_random.normal((0.0, 0.25, 0.0), 0.1)

    def _observe(self) -> Floats:
        return np.concatenate([self.data.qpos, self.data.mocap_pos[0], self.data.qvel])

    def _reward(self, seen: Floats, action: Floats) -> float:  # noqa: ARG002
        away = self.data.site("tip").xpos - self.data.mocap_pos[0]
        return float(-(away @ away) - 0.01 * (action @ action))
