"""Pictures of a MuJoCo model without a screen: MuJoCo's own where OpenGL works, else a sketch of its shapes.

Run as a script, `python rendering.py egl`, it draws a ball and ends well if it is seen.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import subprocess
import sys
import warnings
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Protocol

import mujoco
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from scipy.spatial import ConvexHull, QhullError

from calibrl.errors import CalibrlError

BACKENDS = ("egl", "osmesa")
"""Ways to OpenGL without a screen, in the order they are tried."""


@cache
def works(backend: str) -> bool:
    """Whether MuJoCo can draw by this backend: tried in a process of its own, since a bad driver can crash one."""
    # -P: this file's folder holds no modules for others to import.
    command = [sys.executable, "-P", "-W", "ignore", __file__, backend]
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        trial = subprocess.run(command, capture_output=True, timeout=60, check=False, env=path)
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
    known = ("auto", "sketch", *BACKENDS)
    if renderer not in known:
        raise CalibrlError(f"renderer {renderer!r} is unknown; use one of {', '.join(known)}")
    if renderer == "sketch":
        return Sketch(model, camera, size)
    backends = BACKENDS if renderer == "auto" else (renderer,)
    found = next((backend for backend in backends if works(backend)), None)
    if found is not None:
        # Triton, which torch's optimisers import, and a software driver each bring an LLVM: Triton's takes the process
        # down unless it comes first.
        with contextlib.suppress(ImportError):
            importlib.import_module("triton")
        return OpenGL(model, camera, size, backend=found)
    if renderer != "auto":
        raise CalibrlError(f'OpenGL by {renderer} does not work on this machine; use renderer="sketch" or "auto"')
    return Sketch(model, camera, size)


Floats = NDArray[np.float64]
FINE = 3
"""Drawn this many times larger and then shrunk: smooth edges."""

_TURN = np.linspace(0, 2 * np.pi, 28, endpoint=False)
_RING = np.stack([np.cos(_TURN), np.sin(_TURN)], 1)
_CORNERS = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], np.float64)
_BALL = np.array(
    [[s * np.cos(v), t * np.cos(v), np.sin(v)] for s, t in _RING for v in np.linspace(-np.pi / 2, np.pi / 2, 9)]
)
_SKY, _GROUND, _MARK = (250, 250, 252), (226, 229, 235), (178, 184, 196)


class Sketch:
    """Draws the geoms of a model from the side or the top, the farthest first."""

    def __init__(self, model: mujoco.MjModel, camera: Camera, size: tuple[int, int]) -> None:
        self._model, self._camera, self._size = model, camera, size
        self._scale = FINE * size[0] / camera.width
        # Across, up and towards the eye, as axes of the world.
        self._axes = (0, 2, 1) if camera.view == "side" else (0, 1, 2)
        self._colours = _colours(model)
        kinds = model.geom_type
        seen = (self._colours[:, 3] > 0) & (model.geom_group < 3)
        self._planes = [g for g in range(model.ngeom) if seen[g] and kinds[g] == mujoco.mjtGeom.mjGEOM_PLANE]
        self._shapes = {g: shape for g in range(model.ngeom) if seen[g] and (shape := _shape(model, g)) is not None}

    def __call__(self, data: mujoco.MjData) -> Pixels:
        """Pixels (height, width, 3)."""
        width, height = (FINE * n for n in self._size)
        image = Image.new("RGB", (width, height), _SKY)
        draw = ImageDraw.Draw(image)
        middle = np.array(self._camera.target(data))[list(self._axes[:2])]
        for geom in self._planes:
            self._ground(draw, data.geom_xpos[geom], geom, middle)
        sign = -1 if self._camera.view == "side" else 1
        for geom in sorted(self._shapes, key=lambda g: sign * data.geom_xpos[g, self._axes[2]]):
            points, radius = self._shapes[geom]
            world = points @ data.geom_xmat[geom].reshape(3, 3).T + data.geom_xpos[geom]
            flat = world[:, list(self._axes[:2])]
            outline = _hull((flat[:, None] + radius * _RING).reshape(-1, 2) if radius else flat)
            fill = tuple(int(255 * c) for c in self._colours[geom, :3])
            edge = tuple(int(0.55 * c) for c in fill)
            draw.polygon([*map(tuple, self._pixels(outline, middle))], fill=fill, outline=edge, width=FINE)
        return np.asarray(image.resize(self._size, Image.Resampling.LANCZOS))

    def close(self) -> None:
        """Nothing was taken."""

    def _pixels(self, flat: Floats, middle: Floats) -> Floats:
        """Metres (n, 2) to pixels (n, 2), whose rows count downwards."""
        width, height = (FINE * n for n in self._size)
        return (flat - middle) * (self._scale, -self._scale) + (width / 2, height / 2)

    def _ground(self, draw: ImageDraw.ImageDraw, at: Floats, geom: int, middle: Floats) -> None:
        half = np.where(self._model.geom_size[geom, :2] > 0, self._model.geom_size[geom, :2], 1e3)
        if self._camera.view == "top":
            corners = self._pixels(at[:2] + np.array([[-1, 1], [1, -1]]) * half, middle)
            draw.rectangle([*map(tuple, corners)], fill=_GROUND, outline=_MARK, width=FINE)
            return
        width, height = (FINE * n for n in self._size)
        level = float(self._pixels(np.array([[0.0, at[2]]]), middle)[0, 1])
        draw.rectangle([(0, level), (width, max(level, height))], fill=_GROUND)
        draw.line([(0, level), (width, level)], fill=_MARK, width=FINE)
        # A mark at every half metre, so that what runs is seen to move.
        reach = self._camera.width / 2
        for step in range(int(np.floor((middle[0] - reach) * 2)), int(np.ceil((middle[0] + reach) * 2)) + 1):
            x = float(self._pixels(np.array([[step / 2, 0.0]]), middle)[0, 0])
            depth = 14 if step % 2 == 0 else 7
            draw.line([(x, level), (x, level + FINE * depth)], fill=_MARK, width=FINE)


def _shape(model: mujoco.MjModel, geom: int) -> tuple[Floats, float] | None:
    """Points (n, 3) in the geom's frame and the radius of the balls around them whose hull is the shape."""
    kind, size = mujoco.mjtGeom(int(model.geom_type[geom])), model.geom_size[geom]
    if kind == mujoco.mjtGeom.mjGEOM_SPHERE:
        return np.zeros((1, 3)), float(size[0])
    if kind == mujoco.mjtGeom.mjGEOM_CAPSULE:
        return np.array([[0, 0, -size[1]], [0, 0, size[1]]]), float(size[0])
    if kind == mujoco.mjtGeom.mjGEOM_BOX:
        return _CORNERS * size, 0.0
    if kind == mujoco.mjtGeom.mjGEOM_CYLINDER:
        rims = [np.column_stack([_RING * size[0], np.full(len(_RING), z)]) for z in (-size[1], size[1])]
        return np.concatenate(rims), 0.0
    if kind == mujoco.mjtGeom.mjGEOM_ELLIPSOID:
        return _BALL * size, 0.0
    if kind == mujoco.mjtGeom.mjGEOM_MESH:
        mesh = model.geom_dataid[geom]
        first = model.mesh_vertadr[mesh]
        return model.mesh_vert[first : first + model.mesh_vertnum[mesh]].astype(np.float64), 0.0
    return None


def _hull(points: Floats) -> Floats:
    """The corners of what a rubber band around the points would enclose."""
    try:
        return points[ConvexHull(points).vertices]
    except QhullError:
        # A flat shape seen from its edge.
        return points


def _colours(model: mujoco.MjModel) -> Floats:
    """Colours (geoms, 4): the geom's own, or its material's where it has none."""
    own = model.geom_rgba.astype(np.float64)
    plain = (own == 0.5).all(1) | (np.isclose(own, (0.5, 0.5, 0.5, 1))).all(1)
    for geom in np.flatnonzero(plain & (model.geom_matid >= 0)):
        own[geom] = model.mat_rgba[model.geom_matid[geom]]
    return own


if __name__ == "__main__":
    raise SystemExit(0 if _ball_is_seen(sys.argv[1]) else 1)
