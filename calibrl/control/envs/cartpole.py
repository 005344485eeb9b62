"""Swing a pole up and balance it, by pushing its cart: the swing-up of Chua et al. (2018)."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np
import torch
from torch import Tensor

from calibrl.control.envs import ASSETS, Floats, MujocoEnvironment, mujoco_task
from calibrl.control.envs.rendering import Camera
from calibrl.control.problems import added, difference
from calibrl.planning.rollout import World

POLE = 0.6
"""Length of the pole in metres."""


class Cartpole(MujocoEnvironment):
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


# What planners compute of imagined steps.


def model_input(observation: Tensor) -> Tensor:
    """Sine and cosine instead of an angle that may wind up."""
    angle = observation[..., 1:2]
    return torch.cat([angle.sin(), angle.cos(), observation[..., :1], observation[..., 2:]], -1)


def reward(observation: Tensor, action: Tensor, following: Tensor) -> Tensor:  # noqa: ARG001
    """1 for a pole that is upright over the rail's middle, falling with the tip's distance from there."""
    position, angle = following[..., 0], following[..., 1]
    across, above = position - POLE * angle.sin(), -POLE * angle.cos() - POLE
    return (-(across.square() + above.square()) / POLE**2).exp() - 0.01 * action.square().sum(-1)


TASK = mujoco_task(
    Cartpole,
    world=World(model_input, difference, added, reward),
    sizes=(4, 1),
    limit=3,
    steps=200,
    solved=181,
    solved_by="PETS, published",
)
