"""Swing a pole up and balance it, by pushing its cart: the swing-up of Chua et al. (2018)."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np

from calibrl.control.envs.base import ASSETS, Floats, MujocoTask
from calibrl.control.envs.rendering import Camera

POLE = 0.6
"""Length of the pole in metres."""


class Cartpole(MujocoTask):
    """Observation (4,): position, angle (0 hangs down), and their velocities. Action (1,): push, ±3.

    An action lasts 0.04 s. It pays exp(-‖tip - upright tip above the rail's middle‖² / 0.6²) - 0.01·a².
    """

    frame_skip = 2
    camera = Camera(view="side", centre=(0.0, 0.0, 0.0), width=6.2)

    def __init__(self, **options: Any) -> None:
        super().__init__(mujoco.MjModel.from_xml_path(str(ASSETS / "cartpole.xml")), **options)

    def _start(self) -> None:
        self.data.qpos[:] = self.np_random.normal(0, 0.1, 2)
        self.data.qvel[:] = self.np_random.normal(0, 0.1, 2)

    def _observe(self) -> Floats:
        return np.concatenate([self.data.qpos, self.data.qvel])

    def _reward(self, seen: Floats, action: Floats) -> float:  # noqa: ARG002
        away = self.data.site("tip").xpos - (0.0, 0.0, POLE)
        return float(np.exp(-(away @ away) / POLE**2) - 0.01 * (action @ action))
