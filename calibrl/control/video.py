"""Frames of an episode, and files to show them: an animation that needs only Pillow, or MP4, which ffmpeg writes."""

from __future__ import annotations

import math
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from calibrl.control.problems import ChoiceEnvironment, Task
from calibrl.control.trials import begin_episode, make_step, name_of, run_trial
from calibrl.errors import CalibrlError, first_line
from calibrl.files import replacing

Frame = NDArray[np.uint8]
"""Pixels (height, width, 3)."""

ANIMATIONS = (".gif", ".webp")


def frame(env: Any) -> Frame:
    """A picture of an environment that was made with render_mode="rgb_array"."""
    try:
        pixels = env.render()
    except Exception as problem:
        raise CalibrlError(f"environment {name_of(env)} cannot be drawn: {first_line(problem)}") from None
    if not isinstance(pixels, np.ndarray) or pixels.ndim != 3 or pixels.shape[2] != 3:
        raise CalibrlError(f'environment {name_of(env)} gave no picture; make it with render_mode="rgb_array"')
    return pixels.astype(np.uint8, copy=False)


@contextmanager
def drawn(task: Task, **options: Any) -> Iterator[tuple[Any, Callable[[], Frame]]]:
    """An environment of the task, and what draws it as it stands. Those of Gymnasium's on MuJoCo need no screen."""
    plain = task.make()
    with closing(plain):
        inner: Any = plain.unwrapped
        if hasattr(inner, "mujoco_renderer"):
            from calibrl.control import rendering

            plain.reset(seed=0)
            model, data = inner.model, inner.data
            with closing(rendering.picture(model, rendering.camera_for(model, data), **options)) as picture:
                yield plain, lambda: picture(data)
            return
        # By what an environment says of itself: asked for a mode it does not know, it may fail in any words.
        modes = plain.metadata.get("render_modes", [])
        if "rgb_array" not in modes:
            raise CalibrlError(
                f"environment {name_of(plain)} draws no pictures: its metadata name the render_modes {list(modes)}, "
                'and "rgb_array" is needed'
            )
    with closing(task.make(render_mode="rgb_array", **options)) as env:
        yield env, lambda: frame(env)


def episode(
    task: Task, act: Callable[[NDArray[np.float64]], Any], *, seed: int = 0, steps: int | None = None, **options: Any
) -> list[Frame]:
    """Frames of one episode in which `act` turns an observation (o,) into an action (a,)."""
    with drawn(task, **options) as (env, draw):
        observation, frames = begin_episode(env, seed=seed), [draw()]
        numbers = env.choices.encode if isinstance(env, ChoiceEnvironment) else np.asarray
        for step in range(1, (steps or task.steps) + 1):
            answer = make_step(env, numbers(act(observation)).astype(np.float32), where=f"at step {step}")
            observation = answer.observation
            frames.append(draw())
            if answer.terminated or answer.truncated:
                break
        return frames


def replay(task: Task, actions: Tensor, *, seed: int, earned: float) -> tuple[list[Frame], float]:
    """Frames of a trial in which these actions (T, a) earned this, episode after episode, and how many make a second.

    Some are left out, so that there are about 12 a second of the environment's own time. What earns something else
    when it is repeated is another trial, and no video of this one.
    """
    frames: list[Frame] = []
    with drawn(task) as (env, draw):
        pace = float(env.metadata.get("render_fps") or 25)
        every = max(1, round(pace / 12.5))

        def on_step(step: int, _earned: Tensor) -> None:
            if (step - 1) % every == 0:
                frames.append(draw())

        (again,) = run_trial(_Script(actions), [env], steps=len(actions), seeds=[seed], on_step=on_step).returns
        if not math.isclose(again, earned, rel_tol=1e-4):
            raise CalibrlError(
                f"environment {name_of(env)} does not repeat itself: from the same seed, the actions that earned "
                f"{earned:g} now earn {again:g}; draw all of its chance from what reset(seed=…) seeds"
            )
    return frames, pace / every


class _Script:
    """An actor who does what was once done."""

    def __init__(self, actions: Tensor) -> None:
        self._left = iter(actions)

    def act(self, observation: Tensor) -> Tensor:  # noqa: ARG002
        return next(self._left)[None]

    def begin(self, agents: Sequence[int]) -> None:
        """Nothing was planned."""


def save(frames: Iterable[Frame], path: str | Path, *, fps: float = 25.0) -> Path:
    """Write frames as an animation, .gif, .webp or (with ffmpeg, or the extra "video") .mp4. Whole or not at all."""
    target = Path(path)
    pictures = [_checked(pixels) for pixels in frames]
    if not pictures:
        raise CalibrlError(f"no frames for {target}; an animation needs one or more")
    if len({pixels.shape for pixels in pictures}) > 1:
        raise CalibrlError(f"the frames for {target} differ in size: {sorted({p.shape[:2] for p in pictures})}")
    if fps <= 0:
        raise CalibrlError(f"{fps} frames a second are no animation; use a number above 0")
    kind = target.suffix.lower()
    if kind not in (*ANIMATIONS, ".mp4"):
        raise CalibrlError(f"{target.name} is no animation this can write; use {', '.join(ANIMATIONS)} or .mp4")
    with replacing(target) as temporary:
        if kind == ".mp4":
            _mp4(pictures, temporary, fps)
        else:
            _animation(pictures, temporary, fps, kind)
    return target


def _animation(pictures: Sequence[Frame], path: Path, fps: float, kind: str) -> None:
    images = [Image.fromarray(pixels) for pixels in pictures]
    options: dict[str, Any] = {"quality": 80, "method": 4}
    if kind == ".gif":
        # One palette for all: colours do not flicker, and what stands still is stored once.
        palette = _palette(images)
        images = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images]
        # GIF counts time in hundredths of a second.
        options = {"optimize": False, "disposal": 1}
    wait = max(20, round(1000 / fps))
    images[0].save(path, kind[1:], save_all=True, append_images=images[1:], duration=wait, loop=0, **options)


def _palette(images: Sequence[Image.Image]) -> Image.Image:
    """256 colours for all frames, from a few of them side by side."""
    some = [images[i] for i in np.unique(np.linspace(0, len(images) - 1, 6).astype(int))]
    width, height = some[0].size
    sheet = Image.new("RGB", (width * len(some), height))
    for i, image in enumerate(some):
        sheet.paste(image, (width * i, 0))
    return sheet.quantize(256)


def _mp4(pictures: Sequence[Frame], path: Path, fps: float) -> None:
    program = shutil.which("ffmpeg")
    if program is None:
        try:
            from imageio_ffmpeg import get_ffmpeg_exe
        except ImportError:
            raise CalibrlError(
                f".mp4 needs ffmpeg, which is not installed; run: pip install 'calibrl[video]', or use "
                f"{' or '.join(ANIMATIONS)}"
            ) from None
        program = get_ffmpeg_exe()
    height, width, _ = pictures[0].shape
    # yuv420p, which every player shows, needs even sides.
    command = [program, "-y", "-loglevel", "error", "-f", "rawvideo", "-pix_fmt", "rgb24"]
    command += ["-s", f"{width}x{height}", "-r", str(fps), "-i", "-", "-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2"]
    command += ["-pix_fmt", "yuv420p", "-movflags", "+faststart", "-f", "mp4", str(path)]
    done = subprocess.run(command, input=b"".join(p.tobytes() for p in pictures), capture_output=True, check=False)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise CalibrlError(f"ffmpeg failed: {said[-1] if said else done.returncode}; use {' or '.join(ANIMATIONS)}")


def _checked(pixels: Frame) -> Frame:
    found = np.asarray(pixels)
    if found.ndim != 3 or found.shape[2] != 3 or found.dtype != np.uint8:
        raise CalibrlError(f"a frame of shape {found.shape} and {found.dtype}; expected (height, width, 3) of uint8")
    return np.ascontiguousarray(found)
