"""What a step earns in each MuJoCo task, as tensor functions that planners call on imagined steps.

They take an observation (…, o), the action (…, a) taken there and the next observation (…, o), and give the
reward (…). Numbers go in one by one, never as a tensor made here: a CUDA graph could not capture its copy.
"""

from __future__ import annotations

import torch
from torch import Tensor

POLE = 0.6
GOAL = (0.45, -0.05, -0.323)
"""Where Pusher's object should go."""
SHOULDER, SHOULDER_TO_LIFT, UPPER_ARM, FOREARM, HAND = -0.188, 0.1, 0.4, 0.321, 0.16828
"""Reacher's base on the y axis, and the lengths of its links."""


def cartpole(observation: Tensor, action: Tensor, following: Tensor) -> Tensor:  # noqa: ARG001
    """1 for a pole that is upright over the rail's middle, falling with the tip's distance from there."""
    position, angle = following[..., 0], following[..., 1]
    across, above = position - POLE * angle.sin(), -POLE * angle.cos() - POLE
    return (-(across.square() + above.square()) / POLE**2).exp() - 0.01 * action.square().sum(-1)


def halfcheetah(observation: Tensor, action: Tensor, following: Tensor) -> Tensor:  # noqa: ARG001
    """Mean speed of the step, less the effort."""
    return following[..., 0] - 0.1 * action.square().sum(-1)


def pusher(observation: Tensor, action: Tensor, following: Tensor) -> Tensor:  # noqa: ARG001
    """Nearness of tip and object, and of object and goal, before the step: the environment pays for those."""
    tip, thing = observation[..., 14:17], observation[..., 17:20]
    near = (tip - thing).abs().sum(-1)
    there = sum((thing[..., i] - GOAL[i]).abs() for i in range(3))
    return -0.5 * near - 1.25 * there - 0.1 * action.square().sum(-1)


def reacher(observation: Tensor, action: Tensor, following: Tensor) -> Tensor:  # noqa: ARG001
    """Nearness of the tip, computed from the joint angles, to the goal that the observation holds."""
    away = reacher_tip(following[..., :7]) - following[..., 7:10]
    return -away.square().sum(-1) - 0.01 * action.square().sum(-1)


def reacher_tip(angles: Tensor) -> Tensor:
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
