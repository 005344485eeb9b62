"""Pictures of a MuJoCo model without a screen: MuJoCo's own where OpenGL works, else a sketch of its shapes."""

from __future__ import annotations

import importlib
import subprocess
import sys
import warnings
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Protocol

import mujoco
import numpy as np
from numpy.typing import NDArray

from calibrl.errors import CalibrlError

Pixels = NDArray[np.uint8]
OPENGL = ("egl", "osmesa")
"""Ways to OpenGL without a screen, in the order they are tried."""


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

    if renderer not in ("auto", "sketch", *OPENGL):
        raise CalibrlError(f'renderer {renderer!r} is unknown; use "auto", "sketch", {", ".join(map(repr, OPENGL))}')
    if renderer == "sketch":
        return Sketch(model, camera, size)
    backends = OPENGL if renderer == "auto" else (renderer,)
    works = next((backend for backend in backends if opengl_works(backend)), None)
    if works is not None:
        return OpenGL(model, camera, size, backend=works)
    if renderer != "auto":
        raise CalibrlError(f'OpenGL by {renderer} does not work on this machine; use renderer="sketch" or "auto"')
    return Sketch(model, camera, size)


@cache
def opengl_works(backend: str) -> bool:
    """Whether MuJoCo can draw by this backend: tried in a process of its own, since a bad driver can crash one."""
    try:
        trial = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "calibrl.control.envs.rendering", backend],
            capture_output=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return trial.returncode == 0


class OpenGL:
    """MuJoCo's own pictures."""

    def __init__(self, model: mujoco.MjModel, camera: Camera, size: tuple[int, int], *, backend: str) -> None:
        self._model, self._camera = model, camera
        width, height = size
        model.vis.global_.offwidth = max(model.vis.global_.offwidth, width)
        model.vis.global_.offheight = max(model.vis.global_.offheight, height)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._window: Any = importlib.import_module(f"mujoco.{backend}").GLContext(width, height)
        self._window.make_current()
        self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        self._scene, self._options = mujoco.MjvScene(model, 1000), mujoco.MjvOption()
        self._area = mujoco.MjrRect(0, 0, width, height)
        self._eye = mujoco.MjvCamera()
        self._eye.azimuth, self._eye.elevation = 90, (-8 if camera.view == "side" else -65)
        field = np.deg2rad(float(model.vis.global_.fovy))
        self._eye.distance = camera.width * height / width / 2 / np.tan(field / 2)

    def __call__(self, data: mujoco.MjData) -> Pixels:
        """Pixels (height, width, 3)."""
        self._window.make_current()
        self._eye.lookat[:] = self._camera.target(data)
        everything = mujoco.mjtCatBit.mjCAT_ALL
        mujoco.mjv_updateScene(self._model, data, self._options, None, self._eye, everything, self._scene)
        mujoco.mjr_render(self._area, self._scene, self._context)
        pixels = np.empty((self._area.height, self._area.width, 3), np.uint8)
        mujoco.mjr_readPixels(pixels, None, self._area, self._context)
        # OpenGL's rows start at the bottom.
        return np.ascontiguousarray(pixels[::-1])

    def close(self) -> None:
        """Free the context."""
        if self._window is not None:
            self._window.make_current()
            self._context.free()
            self._window.free()
            self._window = None


def _try(backend: str) -> None:
    """Draw a red ball, and fail unless red is seen."""
    model = mujoco.MjModel.from_xml_string(
        "<mujoco><worldbody><light pos='0 0 3'/><geom size='.5' rgba='1 0 0 1'/></worldbody></mujoco>"
    )
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    pixels = OpenGL(model, Camera(centre=(0, 0, 0), width=2.0), (64, 64), backend=backend)(data)
    red, green = pixels[32, 32, :2]
    raise SystemExit(0 if red > green else 1)


if __name__ == "__main__":
    _try(sys.argv[1])
