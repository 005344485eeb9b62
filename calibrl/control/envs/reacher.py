"""Reach a goal in the air with an arm of seven joints, as in Chua et al. (2018)."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np
import torch
from torch import Tensor

from calibrl.control.envs import ASSETS, Floats, MujocoEnvironment, mujoco_task
from calibrl.control.envs.rendering import Camera
from calibrl.control.problems import added, difference, same
from calibrl.planning.rollout import World

SHOULDER, SHOULDER_TO_LIFT, UPPER_ARM, FOREARM, HAND = -0.188, 0.1, 0.4, 0.321, 0.16828
"""The arm's base on the y axis, and the lengths of its links."""


class Reacher(MujocoEnvironment):
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


# What planners compute of imagined steps.


def reward(observation: Tensor, action: Tensor, following: Tensor) -> Tensor:  # noqa: ARG001
    """Nearness of the tip, computed from the joint angles, to the goal that the observation holds."""
    away = tip_position(following[..., :7]) - following[..., 7:10]
    return -away.square().sum(-1) - 0.01 * action.square().sum(-1)


def tip_position(angles: Tensor) -> Tensor:
    """Where the arm's tip is (…, 3), for its seven joint angles (…, 7); the last one only turns the hand.

    Forward kinematics. x, y and z are the axes of the link that has been reached: x along it, y the axis that
    the next joint bends about.
    """
    sine, cosine = angles.sin(), angles.cos()
    pan_s, pan_c, lift_s, lift_c = sine[..., 0], cosine[..., 0], sine[..., 1], cosine[..., 1]
    none = torch.zeros_like(pan_s)
    x = torch.stack([lift_c * pan_c, lift_c * pan_s, -lift_s], -1)
    y = torch.stack([-pan_s, pan_c, none], -1)
    tip = torch.stack([SHOULDER_TO_LIFT * pan_c, SHOULDER_TO_LIFT * pan_s + SHOULDER, none], -1) + UPPER_ARM * x
    for roll, bend, length in ((2, 3, FOREARM), (4, 5, HAND)):
        roll_s, roll_c, bend_s, bend_c = (part[..., joint, None] for joint in (roll, bend) for part in (sine, cosine))
        z = torch.linalg.cross(x, y)
        y, z = roll_c * y + roll_s * z, roll_c * z - roll_s * y
        x = bend_c * x - bend_s * z
        tip = tip + length * x
    return tip


TASK = mujoco_task(Reacher, world=World(same, difference, added, reward), sizes=(17, 7), limit=20, steps=150)
