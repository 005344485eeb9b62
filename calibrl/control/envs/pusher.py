"""Push an object to a goal with an arm of seven joints: Gymnasium's pusher, set as in Chua et al. (2018)."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import mujoco
import numpy as np
from torch import Tensor

from calibrl.control.envs import GYMNASIUM_ASSETS, Floats, MujocoEnvironment, mujoco_task
from calibrl.control.envs.rendering import Camera
from calibrl.control.problems import added, difference, same
from calibrl.planning.rollout import World

OBJECT_DENSITY = 10.0
"""kg/m³, which makes the object weigh 8 g. At 0.00001, as it once was, MuJoCo ≥ 3.0 does not let it be pushed."""

GOAL = (0.45, -0.05, -0.323)
"""Where the object should go."""


class Pusher(MujocoEnvironment):
    """Observation (20,): 7 joint angles, 7 velocities, fingertips (3,), object (3,). Action (7,): torques, ±2.

    An action lasts 0.04 s. It pays -0.5·‖tip - object‖₁ - 1.25·‖object - goal‖₁ - 0.1·‖a‖², of the state it was
    taken in. The tip is the point between the two fingertips.
    """

    frame_skip = 4
    camera = Camera(view="top", centre=(0.35, -0.2, 0.0), width=1.9)

    def __init__(self, **options: Any) -> None:
        super().__init__(_model(), **options)

    def _start(self) -> None:
        self.data.qpos[:] = self.model.qpos0
        # The object slides along y first, then x; the goal, the last two, stays where the model has it.
        self.data.qpos[-4:-2] = self.np_random.normal((-0.25, 0.15), 0.025)
        self.data.qvel[:7] = self.np_random.uniform(-0.005, 0.005, 7)

    def _observe(self) -> Floats:
        tip, thing = self.data.body("tips_arm").subtree_com, self.data.body("object").xpos
        return np.concatenate([self.data.qpos[:7], self.data.qvel[:7], tip, thing])

    def _reward(self, seen: Floats, action: Floats) -> float:
        tip, thing = seen[14:17], seen[17:20]
        near, there = np.abs(tip - thing).sum(), np.abs(thing - self.data.body("goal").xpos).sum()
        return float(-0.5 * near - 1.25 * there - 0.1 * (action @ action))


def _model() -> mujoco.MjModel:
    tree = ElementTree.parse(GYMNASIUM_ASSETS / "pusher_v5.xml").getroot()
    sky = {"type": "skybox", "builtin": "flat", "rgb1": "1 1 1", "rgb2": "1 1 1", "width": "32", "height": "192"}
    ElementTree.SubElement(ElementTree.SubElement(tree, "asset"), "texture", sky)
    for geom in tree.iter("geom"):
        geom.attrib.setdefault("rgba", "0.62 0.65 0.72 1")
    for geom in tree.iterfind(".//body[@name='object']/geom"):
        geom.attrib |= {"density": str(OBJECT_DENSITY), "rgba": "0.85 0.45 0.13 1"}
    for geom in tree.iterfind(".//geom[@name='table']"):
        geom.attrib["rgba"] = "0.88 0.9 0.93 1"
    for joint in tree.iterfind(".//joint[@name='r_shoulder_pan_joint']"):
        # The published task lets the shoulder turn further than Gymnasium's model, 1.71 rad.
        joint.attrib["range"] = "-2.2854 2.0"
    return mujoco.MjModel.from_xml_string(ElementTree.tostring(tree, encoding="unicode"))


# What planners compute of imagined steps.


def reward(observation: Tensor, action: Tensor, following: Tensor) -> Tensor:  # noqa: ARG001
    """Nearness of tip and object, and of object and goal, before the step: the environment pays for those."""
    tip, thing = observation[..., 14:17], observation[..., 17:20]
    near = (tip - thing).abs().sum(-1)
    there = sum((thing[..., i] - GOAL[i]).abs() for i in range(3))
    return -0.5 * near - 1.25 * there - 0.1 * action.square().sum(-1)


TASK = mujoco_task(
    Pusher,
    world=World(same, difference, added, reward),
    sizes=(20, 7),
    limit=2,
    steps=150,
    solved=-68,
    solved_by="published, at 15 000 steps",
)
