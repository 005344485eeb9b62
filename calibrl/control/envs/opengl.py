"""MuJoCo's own pictures, by OpenGL without a screen, and a safe way to learn whether it works.

Run as a script, `python opengl.py egl`, it draws a ball and ends well if it is seen. So this file needs nothing of
the package, which takes seconds to import.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import warnings
from functools import cache
from typing import TYPE_CHECKING, Any

import mujoco
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from calibrl.control.envs.rendering import Camera

BACKENDS = ("egl", "osmesa")
"""Ways to OpenGL without a screen, in the order they are tried."""


@cache
def works(backend: str) -> bool:
    """Whether MuJoCo can draw by this backend: tried in a process of its own, since a bad driver can crash one."""
    try:
        # -P: this file's folder holds no modules for others to import.
        trial = subprocess.run(
            [sys.executable, "-P", "-W", "ignore", __file__, backend], capture_output=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return trial.returncode == 0


class OpenGL:
    """Draws a model's states, size (width, height) in pixels."""

    def __init__(self, model: mujoco.MjModel, camera: Camera | None, size: tuple[int, int], *, backend: str) -> None:
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
        # Without a graphics card these two cost more than all the rest.
        for effect in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
            self._scene.flags[effect] = 0
        self._area = mujoco.MjrRect(0, 0, width, height)
        self._eye = mujoco.MjvCamera()
        if camera is not None:
            self._eye.azimuth, self._eye.elevation = 90, (-8 if camera.view == "side" else -65)
            field = np.deg2rad(float(model.vis.global_.fovy))
            self._eye.distance = camera.width * height / width / 2 / np.tan(field / 2)

    def __call__(self, data: mujoco.MjData) -> NDArray[np.uint8]:
        """Pixels (height, width, 3)."""
        self._window.make_current()
        if self._camera is not None:
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


def _ball_is_seen(backend: str) -> bool:
    """Draw a red ball, and look for red in the middle."""
    model = mujoco.MjModel.from_xml_string(
        "<mujoco><worldbody><light pos='0 0 3'/><geom size='.5' rgba='1 0 0 1'/></worldbody></mujoco>"
    )
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    red, green = OpenGL(model, None, (64, 64), backend=backend)(data)[32, 32, :2]
    return bool(red > green)


if __name__ == "__main__":
    raise SystemExit(0 if _ball_is_seen(sys.argv[1]) else 1)
