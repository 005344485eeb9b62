"""Pictures of a MuJoCo model without a screen: MuJoCo's own where OpenGL works, else a sketch of its shapes."""

from __future__ import annotations

import contextlib
import importlib
from dataclasses import dataclass
from typing import Literal, Protocol

import mujoco
import numpy as np
from numpy.typing import NDArray

from calibrl.control.envs import opengl
from calibrl.errors import CalibrlError

Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class Camera:
    """Where from a model is seen: from its side (x to the right, z up) or from the top (x right, y up).

    centre and width are in metres; `follow` names a body whose x the camera keeps in the middle.
    """

    view: Literal["side", "top"] = "side"
    centre: tuple[float, float, float] = (0.0, 0.0, 0.5)
    width: float = 4.0
    follow: str | None = None

    def target(self, data: mujoco.MjData) -> tuple[float, float, float]:
        """What is in the middle of the picture now."""
        x, y, z = self.centre
        return (x + float(data.body(self.follow).xpos[0]) if self.follow else x), y, z


def camera_for(model: mujoco.MjModel, data: mujoco.MjData) -> Camera:
    """A view of any model: its shapes as they stand, from where most hinges are seen to turn, with who is followed."""
    shapes = model.geom_type != mujoco.mjtGeom.mjGEOM_PLANE
    at, reach = data.geom_xpos[shapes], model.geom_rbound[shapes, None]
    low, high = (at - reach).min(0), (at + reach).max(0)
    axes = np.abs(data.xaxis[model.jnt_type == mujoco.mjtJoint.mjJNT_HINGE]).sum(0)
    view: Literal["side", "top"] = "top" if axes.argmax() == 2 and axes.any() else "side"
    # The model's own cameras say which body to keep in sight.
    follow = next((model.body(body).name for body in model.cam_bodyid if body > 0), None)
    across, up = (high - low)[[0, 2 if view == "side" else 1]]
    x, y, z = (low + high) / 2
    middle = x - data.body(follow).xpos[0] if follow else x
    return Camera(view=view, centre=(middle, y, z), width=1.2 * max(across, 1.5 * up), follow=follow)


class Picture(Protocol):
    """Draws one model's states."""

    def __call__(self, data: mujoco.MjData) -> Pixels:
        """Pixels (height, width, 3) of this state."""

    def close(self) -> None:
        """Give back what drawing took."""


def picture(
    model: mujoco.MjModel, camera: Camera, *, renderer: str = "auto", size: tuple[int, int] = (480, 320)
) -> Picture:
    """What draws this model. renderer: "auto", "egl", "osmesa" or "sketch"; size: (width, height) in pixels."""
    from calibrl.control.envs.sketch import Sketch

    known = ("auto", "sketch", *opengl.BACKENDS)
    if renderer not in known:
        raise CalibrlError(f"renderer {renderer!r} is unknown; use one of {', '.join(known)}")
    if renderer == "sketch":
        return Sketch(model, camera, size)
    backends = opengl.BACKENDS if renderer == "auto" else (renderer,)
    works = next((backend for backend in backends if opengl.works(backend)), None)
    if works is not None:
        # Triton, which torch's optimisers import, and a software driver each bring an LLVM: Triton's takes the process
        # down unless it comes first.
        with contextlib.suppress(ImportError):
            importlib.import_module("triton")
        return opengl.OpenGL(model, camera, size, backend=works)
    if renderer != "auto":
        raise CalibrlError(f'OpenGL by {renderer} does not work on this machine; use renderer="sketch" or "auto"')
    return Sketch(model, camera, size)
