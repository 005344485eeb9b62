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
