"""Run: Gymnasium's half cheetah, seen as in Chua et al. (2018)."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import mujoco
import numpy as np
import torch
from torch import Tensor

from calibrl.control.envs import GYMNASIUM_ASSETS, Floats, MujocoEnvironment, mujoco_task
from calibrl.control.envs.rendering import Camera
from calibrl.planning.rollout import World


class HalfCheetah(MujocoEnvironment):
    """Observation (18,): mean speed during the last action, the other 8 positions, 9 velocities. Action (6,): ±1.

    An action lasts 0.05 s. It pays the mean speed forward, less 0.1·‖a‖².
    """

    frame_skip = 5
    camera = Camera(view="side", centre=(0.0, 0.0, 0.6), width=3.4, follow="torso")

    def __init__(self, **options: Any) -> None:
        super().__init__(_model(), **options)

    def _start(self) -> None:
        self.data.qpos[:] = self.model.qpos0 + self.np_random.normal(0, 0.001, self.model.nq)
        self.data.qvel[:] = self.np_random.normal(0, 0.001, self.model.nv)

    def _observe(self) -> Floats:
        speed = (self.data.qpos[:1] - self._before[:1]) / self.dt
        return np.concatenate([speed, self.data.qpos[1:], self.data.qvel])

    def _reward(self, seen: Floats, action: Floats) -> float:  # noqa: ARG002
        return float((self.data.qpos[0] - self._before[0]) / self.dt - 0.1 * (action @ action))


def _model() -> mujoco.MjModel:
    """Gymnasium's model. Its `settotalmass` is deprecated, and MuJoCo says so on stderr and in a file: done by hand."""
    tree = ElementTree.parse(GYMNASIUM_ASSETS / "half_cheetah.xml").getroot()
    compiler = tree.find("compiler")
    mass = compiler.attrib.pop("settotalmass", None) if compiler is not None else None
    model = mujoco.MjModel.from_xml_string(ElementTree.tostring(tree, encoding="unicode"))
    if mass is not None:
        mujoco.mj_setTotalmass(model, float(mass))
        mujoco.mj_setConst(model, mujoco.MjData(model))
    return model


# What planners compute of imagined steps.


def model_input(observation: Tensor) -> Tensor:
    """Without the last step's speed, which says nothing that the velocities do not."""
    angle = observation[..., 2:3]
    return torch.cat([observation[..., 1:2], angle.sin(), angle.cos(), observation[..., 3:]], -1)


def target(observation: Tensor, following: Tensor) -> Tensor:
    """The step's speed itself, and what changes in the rest."""
    return torch.cat([following[..., :1], following[..., 1:] - observation[..., 1:]], -1)


def next_observation(observation: Tensor, target: Tensor) -> Tensor:
    """The observation with that speed, and the changes added."""
    return torch.cat([target[..., :1], observation[..., 1:] + target[..., 1:]], -1)


def reward(observation: Tensor, action: Tensor, following: Tensor) -> Tensor:  # noqa: ARG001
    """Mean speed of the step, less the effort."""
    return following[..., 0] - 0.1 * action.square().sum(-1)


TASK = mujoco_task(
    HalfCheetah,
    world=World(model_input, target, next_observation, reward),
    sizes=(18, 6),
    limit=1,
    steps=1000,
    solved=9600,
    solved_by="SAC, published, at 1 M steps",
)
