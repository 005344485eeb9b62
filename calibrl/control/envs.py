"""The MuJoCo tasks: cartpole, half cheetah, pusher and reacher, as in Chua et al. (2018), and variants with cliffs.

Of each there is the Gymnasium environment, and what planners compute of imagined steps: what the model sees and
forecasts, and what a step pays. Environments share seeded starts, pictures, and that they do not diverge in silence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, cast
from xml.etree import ElementTree

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

from calibrl.control.problems import Task, added, difference, same
from calibrl.control.rendering import Camera, Picture, picture
from calibrl.control.settings import ENVIRONMENTS
from calibrl.planning.rollout import Reward, World

Floats = NDArray[np.float64]
ASSETS = Path(__file__).parent / "assets"
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
    measure: Callable[[Tensor, Tensor, Tensor], dict[str, float]] | None = None,
) -> Task:
    """The task of an environment class: o and a are its `sizes`, actions lie within ±`limit`.

    The world's functions put numbers in one by one, never as a tensor made there: a CUDA graph could not capture its
    copy.
    """
    observation, action = sizes
    high = torch.full((action,), limit)
    return Task(
        name=kind.__name__.lower(),
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


def variant(task: Task, kind: type[MujocoEnvironment], name: str, **world: Any) -> Task:
    """The task of an environment like that of `task`, with what differs in its world."""
    changed = replace(task.world, **world)
    return replace(task, name=name, env_id=f"calibrl/{kind.__name__}-v0", world=changed, solved=None, solved_by="")


class WithCliff(MujocoEnvironment):
    """Put before an environment: each step that ends outside a safe set costs so much more."""

    cost: ClassVar[float] = 1.0

    @classmethod
    def margin(cls, observation: Tensor) -> Tensor:
        """How far observations (…, o) are inside: above 0 where it is safe."""
        raise NotImplementedError

    def _reward(self, seen: Floats, action: Floats) -> float:
        outside = bool(self.margin(torch.from_numpy(self._seen)) < 0)
        return super()._reward(seen, action) - self.cost * outside


def with_cliff(task: Task, kind: type[WithCliff], name: str) -> Task:
    """The task of an environment with a cliff, where `task` is the one without."""
    plain = cast(Reward, task.world.reward)

    def reward(observation: Tensor, action: Tensor, following: Tensor) -> Tensor:
        """The same, less what a step outside costs."""
        outside = (kind.margin(following) < 0).to(following.dtype)
        return plain(observation, action, following) - kind.cost * outside

    return variant(task, kind, name, reward=reward, safe=kind.margin)


# Swing a pole up and balance it, by pushing its cart.

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


def cartpole_model_input(observation: Tensor) -> Tensor:
    """Sine and cosine instead of an angle that may wind up."""
    angle = observation[..., 1:2]
    return torch.cat([angle.sin(), angle.cos(), observation[..., :1], observation[..., 2:]], -1)


def cartpole_reward(observation: Tensor, action: Tensor, following: Tensor) -> Tensor:  # noqa: ARG001
    """1 for a pole that is upright over the rail's middle, falling with the tip's distance from there."""
    position, angle = following[..., 0], following[..., 1]
    across, above = position - POLE * angle.sin(), -POLE * angle.cos() - POLE
    return (-(across.square() + above.square()) / POLE**2).exp() - 0.01 * action.square().sum(-1)


CARTPOLE = mujoco_task(
    Cartpole,
    world=World(cartpole_model_input, difference, added, cartpole_reward),
    sizes=(4, 1),
    limit=3,
    solved=181,
    solved_by="PETS, published",
)


class CartpoleRail(WithCliff, Cartpole):
    """The same, and each step that ends further than 0.4 m from the rail's middle costs 1.

    The quickest swing-up takes half a metre.
    """

    rail: ClassVar[float] = 0.4

    @classmethod
    def margin(cls, observation: Tensor) -> Tensor:
        """How much of the rail is left, in metres."""
        return cls.rail - observation[..., 0].abs()


WIND = 100.0
"""The strongest wind, in newtons, where it blows: a third of the strongest push."""


class CartpoleWind(CartpoleRail):
    """The same on a rail of ±0.6 m, in a wind that nobody sees: up to ±100 N on the cart, the same for an episode."""

    rail = 0.6

    def _start(self) -> None:
        super()._start()
        self.data.qfrc_applied[0] = self.np_random.uniform(-WIND, WIND)


CARTPOLE_RAIL = with_cliff(CARTPOLE, CartpoleRail, "cartpole-rail")
CARTPOLE_WIND = with_cliff(CARTPOLE, CartpoleWind, "cartpole-wind")


class CartpoleEffort(Cartpole):
    """The same, and pushing costs ten times as much: 0.1·a²."""

    def _reward(self, seen: Floats, action: Floats) -> float:
        return super()._reward(seen, action) - float(0.09 * (action @ action))


def cartpole_effort_reward(observation: Tensor, action: Tensor, following: Tensor) -> Tensor:
    """The same with ten times the cost of pushing."""
    return cartpole_reward(observation, action, following) - 0.09 * action.square().sum(-1)


CARTPOLE_EFFORT = variant(CARTPOLE, CartpoleEffort, "cartpole-effort", reward=cartpole_effort_reward)


# Run: Gymnasium's half cheetah.


class HalfCheetah(MujocoEnvironment):
    """Observation (18,): mean speed during the last action, the other 8 positions, 9 velocities. Action (6,): ±1.

    An action lasts 0.05 s. It pays the mean speed forward, less 0.1·‖a‖².
    """

    frame_skip = 5
    camera = Camera(view="side", centre=(0.0, 0.0, 0.6), width=3.4, follow="torso")

    def __init__(self, **options: Any) -> None:
        super().__init__(_halfcheetah_model(), **options)

    def _start(self) -> None:
        self.data.qpos[:] = self.model.qpos0 + self.np_random.normal(0, 0.001, self.model.nq)
        self.data.qvel[:] = self.np_random.normal(0, 0.001, self.model.nv)

    def _observe(self) -> Floats:
        speed = (self.data.qpos[:1] - self._before[:1]) / self.dt
        return np.concatenate([speed, self.data.qpos[1:], self.data.qvel])

    def _reward(self, seen: Floats, action: Floats) -> float:  # noqa: ARG002
        return float((self.data.qpos[0] - self._before[0]) / self.dt - 0.1 * (action @ action))


def _halfcheetah_model() -> mujoco.MjModel:
    """Gymnasium's model. Its `settotalmass` is deprecated, and MuJoCo says so on stderr and in a file: done by hand."""
    tree = ElementTree.parse(GYMNASIUM_ASSETS / "half_cheetah.xml").getroot()
    compiler = tree.find("compiler")
    mass = compiler.attrib.pop("settotalmass", None) if compiler is not None else None
    model = mujoco.MjModel.from_xml_string(ElementTree.tostring(tree, encoding="unicode"))
    if mass is not None:
        mujoco.mj_setTotalmass(model, float(mass))
        mujoco.mj_setConst(model, mujoco.MjData(model))
    return model


def halfcheetah_model_input(observation: Tensor) -> Tensor:
    """Without the last step's speed, which says nothing that the velocities do not."""
    angle = observation[..., 2:3]
    return torch.cat([observation[..., 1:2], angle.sin(), angle.cos(), observation[..., 3:]], -1)


def halfcheetah_target(observation: Tensor, following: Tensor) -> Tensor:
    """The step's speed itself, and what changes in the rest."""
    return torch.cat([following[..., :1], following[..., 1:] - observation[..., 1:]], -1)


def halfcheetah_next_observation(observation: Tensor, target: Tensor) -> Tensor:
    """The observation with that speed, and the changes added."""
    return torch.cat([target[..., :1], observation[..., 1:] + target[..., 1:]], -1)


def halfcheetah_reward(observation: Tensor, action: Tensor, following: Tensor) -> Tensor:  # noqa: ARG001
    """Mean speed of the step, less the effort."""
    return following[..., 0] - 0.1 * action.square().sum(-1)


def halfcheetah_measure(observation: Tensor, action: Tensor, following: Tensor) -> dict[str, float]:  # noqa: ARG001
    """The share of steps after which the torso is turned by more than a right angle, and the mean speed of others."""
    fallen = following[:, 2].cos() < 0
    standing = following[~fallen, 0]
    return {"fallen": float(fallen.float().mean()), "cruising_speed": float(standing.sum() / max(len(standing), 1))}


HALFCHEETAH = mujoco_task(
    HalfCheetah,
    world=World(halfcheetah_model_input, halfcheetah_target, halfcheetah_next_observation, halfcheetah_reward),
    sizes=(18, 6),
    limit=1,
    solved=9600,
    solved_by="SAC, published, at 1 M steps",
    measure=halfcheetah_measure,
)


class HalfCheetahFall(WithCliff, HalfCheetah):
    """The same, and each step that ends with the torso turned by more than a right angle costs 5."""

    cost = 5.0

    @classmethod
    def margin(cls, observation: Tensor) -> Tensor:
        """The cosine of the torso's angle: 0 at a right angle."""
        return observation[..., 2].cos()


HALFCHEETAH_FALL = with_cliff(HALFCHEETAH, HalfCheetahFall, "halfcheetah-fall")
halfcheetah_upright_reward = cast(Reward, HALFCHEETAH_FALL.world.reward)
"""Half cheetah's reward, less 5 for a step upside down: plans for the task without the cliff can be judged by it."""


# Push an object to a goal with an arm of seven joints: Gymnasium's pusher.

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
        super().__init__(_pusher_model(), **options)

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


def _pusher_model() -> mujoco.MjModel:
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


def pusher_reward(observation: Tensor, action: Tensor, following: Tensor) -> Tensor:  # noqa: ARG001
    """Nearness of tip and object, and of object and goal, before the step: the environment pays for those."""
    tip, thing = observation[..., 14:17], observation[..., 17:20]
    near = (tip - thing).abs().sum(-1)
    there = sum((thing[..., i] - GOAL[i]).abs() for i in range(3))
    return -0.5 * near - 1.25 * there - 0.1 * action.square().sum(-1)


def pusher_next_reward(observation: Tensor, action: Tensor, following: Tensor) -> Tensor:  # noqa: ARG001
    """The same of the state after the step: what the reference judges plans by, though the environment pays the other.

    A plan's last action then counts, and the state it starts from, which no plan can change, does not.
    """
    return pusher_reward(following, action, following)


PUSHER = mujoco_task(
    Pusher,
    world=World(same, difference, added, pusher_reward),
    sizes=(20, 7),
    limit=2,
    solved=-68,
    solved_by="published, at 15 000 steps",
)


# Reach a goal in the air with an arm of seven joints.

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


def reacher_reward(observation: Tensor, action: Tensor, following: Tensor) -> Tensor:  # noqa: ARG001
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


REACHER = mujoco_task(Reacher, world=World(same, difference, added, reacher_reward), sizes=(17, 7), limit=20)

NEAR = 0.2
"""How near the goal the tip must be to be paid, in metres, where only that pays."""


class ReacherNear(Reacher):
    """The same, and only what ends within 0.2 m of the goal pays: 1, less 0.0001·‖a‖² wherever."""

    def _reward(self, seen: Floats, action: Floats) -> float:  # noqa: ARG002
        away = self.data.site("tip").xpos - self.data.mocap_pos[0]
        return float(away @ away < NEAR**2) - float(1e-4 * (action @ action))


def reacher_near_reward(observation: Tensor, action: Tensor, following: Tensor) -> Tensor:  # noqa: ARG001
    """1 near the goal, nothing elsewhere, less a little for effort."""
    away = tip_position(following[..., :7]) - following[..., 7:10]
    return (away.square().sum(-1) < NEAR**2).to(following.dtype) - 1e-4 * action.square().sum(-1)


REACHER_NEAR = variant(REACHER, ReacherNear, "reacher-near", reward=reacher_near_reward)

_VARIANTS = (CARTPOLE_RAIL, CARTPOLE_WIND, CARTPOLE_EFFORT, HALFCHEETAH_FALL, REACHER_NEAR)
MUJOCO_TASKS: dict[str, Task] = {task.name: task for task in (CARTPOLE, HALFCHEETAH, PUSHER, REACHER, *_VARIANTS)}
