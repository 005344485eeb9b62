"""A model's shapes, flattened onto a plane and filled: pictures that need no graphics driver."""

from __future__ import annotations

import mujoco
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from scipy.spatial import ConvexHull, QhullError

from calibrl.control.envs.rendering import Camera, Pixels

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
