import re
import subprocess
import sys
from itertools import pairwise

import gymnasium
import numpy as np
import pytest
import torch
from PIL import Image

from calibrl.control import TASKS, rendering, task, task_from_env, video
from calibrl.control.rendering import Sketch
from calibrl.errors import CalibrlError


def moving(count=8, size=(40, 60)):
    """A white square on black that moves to the right."""
    frames = np.zeros((count, *size, 3), np.uint8)
    for i in range(count):
        frames[i, 10:20, 5 * i : 5 * i + 10] = 255
    return list(frames)


# Pictures.


@pytest.mark.parametrize("name", TASKS)
def test_sketches_show_what_moves(name):
    chosen = task(name)
    frames = video.episode(chosen, lambda _: chosen.high.numpy(), steps=6, renderer="sketch", width=240, height=160)
    assert len(frames) == 7
    assert all(frame.shape == (160, 240, 3) and frame.dtype == np.uint8 for frame in frames)
    assert len(np.unique(frames[0].reshape(-1, 3), axis=0)) > 5
    assert all((left != right).any() for left, right in pairwise(frames))


def test_a_sketch_puts_things_where_they_are():
    env = task("cartpole").make(render_mode="rgb_array", renderer="sketch").unwrapped
    env.reset(seed=0)
    env.data.qpos[:] = (1.0, np.pi)
    gymnasium_step = env.step(np.zeros(1))[0]
    pixels = env.render().astype(int)
    orange = np.argwhere((pixels[..., 0] > 180) & (pixels[..., 2] < 80))
    rows, columns = orange.mean(0)
    # The pole stands on the rail, which is in the middle of the picture: 0.3 m above it, at x = 1.
    scale = 480 / env.camera.width
    assert columns == pytest.approx(240 + scale * gymnasium_step[0], abs=3)
    assert rows == pytest.approx(160 - scale * 0.3, abs=6)


def test_every_shape_is_sketched():
    import mujoco

    geoms = [
        "<geom type='sphere' size='.2' pos='-2 0 1'/>",
        "<geom type='capsule' size='.1 .3' pos='-1 0 1'/>",
        "<geom type='cylinder' size='.2 .3' pos='0 0 1'/>",
        "<geom type='box' size='.2 .2 .2' pos='1 0 1'/>",
        "<geom type='ellipsoid' size='.1 .2 .3' pos='2 0 1'/>",
    ]
    for view in ("side", "top"):
        camera = rendering.Camera(view=view, centre=(0, 0, 1), width=6)
        seen = []
        for shown in ([], *[[geom] for geom in geoms]):
            plane = "<geom type='plane' size='4 4 .1'/>"
            model = mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{plane}{''.join(shown)}</worldbody></mujoco>")
            data = mujoco.MjData(model)
            mujoco.mj_forward(model, data)
            seen.append(Sketch(model, camera, (240, 120))(data))
        changed = [np.argwhere((pixels != seen[0]).any(-1))[:, 1].mean() for pixels in seen[1:]]
        np.testing.assert_allclose(changed, [120 + 40 * x for x in (-2, -1, 0, 1, 2)], atol=2)


def test_without_opengl_a_sketch_is_drawn(monkeypatch):
    monkeypatch.setattr(rendering, "works", lambda backend: False)
    env = task("reacher").make(render_mode="rgb_array")
    env.reset(seed=0)
    assert video.frame(env).shape == (320, 480, 3)
    assert isinstance(env.unwrapped._picture, Sketch)
    env.close()
    with pytest.raises(CalibrlError, match="OpenGL by egl does not work"):
        video.episode(task("reacher"), lambda _: np.zeros(7), steps=1, renderer="egl")


def test_a_backend_that_fails_is_no_crash():
    assert rendering.works("nonsense") is False


def test_opengl_draws_where_it_works():
    if not rendering.works("egl"):
        pytest.skip("no EGL here")
    chosen = task("cartpole")
    for _ in range(2):
        frames = video.episode(chosen, lambda _: chosen.high.numpy(), steps=3, renderer="egl", width=160, height=120)
        assert frames[0].shape == (120, 160, 3)
        assert (frames[0] != frames[-1]).any()


def test_triton_is_loaded_before_a_driver(monkeypatch):
    # The other way round, an agent that is made after a picture was drawn ends the process without a word.
    loaded = []
    monkeypatch.setattr(rendering, "works", lambda _: True)
    monkeypatch.setattr(rendering, "OpenGL", lambda *_, **__: loaded.append("OpenGL"))
    monkeypatch.setattr("importlib.import_module", loaded.append)
    rendering.picture(None, None, renderer="egl")
    assert loaded == ["triton", "OpenGL"]


def test_what_cannot_be_drawn():
    env = task("cartpole").make()
    env.reset(seed=0)
    with pytest.raises(CalibrlError, match="gave no picture"):
        video.frame(env)
    with pytest.raises(CalibrlError, match="renderer 'paint' is unknown"):
        video.episode(task("cartpole"), lambda _: np.zeros(1), renderer="paint")

    class Blind(gymnasium.Env):
        spec = None

        def render(self):
            raise RuntimeError("no pygame\nsecond line")

    with pytest.raises(CalibrlError, match=r"Blind cannot be drawn: no pygame$"):
        video.frame(Blind())


def test_an_environment_without_pictures_is_not_asked_for_any(recwarn):
    class Plain(gymnasium.Env):
        observation_space = action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    gymnasium.register("calibrl-tests/Plain-v0", Plain, max_episode_steps=5)
    with pytest.raises(CalibrlError, match=r"'calibrl-tests/Plain-v0' draws no pictures: .* render_modes \[\]"):
        video.episode(task_from_env("calibrl-tests/Plain-v0"), lambda _: np.zeros(1))
    assert not recwarn


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("env_id", "view"), [("InvertedPendulum-v5", "side"), ("Reacher-v5", "top"), ("Hopper-v5", "side")]
)
def test_gymnasiums_own_on_mujoco_are_drawn_without_a_screen(env_id, view, capfd):
    for module in ("imageio", "glfw"):
        pytest.importorskip(module)
    chosen = task_from_env(env_id)
    with video.drawn(chosen, renderer="sketch") as (env, draw):
        inner = env.unwrapped
        assert rendering.camera_for(inner.model, inner.data).view == view
        first = draw()
        env.step(chosen.high.numpy())
        second = draw()
    assert first.shape == (320, 480, 3)
    changed = np.argwhere((first != second).any(-1))
    # All that moves is well inside the picture.
    assert len(changed)
    assert (changed.min(0) > 5).all()
    assert (changed.max(0) < (315, 475)).all()
    assert "GLFW" not in "".join(capfd.readouterr())


def test_a_camera_keeps_the_body_in_sight_that_the_models_own_does():
    import mujoco

    body = "<body name='{}' pos='{} 0 1'><freejoint/><geom size='.2'/>{}</body>"
    parts = body.format("left", -3, "") + body.format("runs", 3, "<camera name='track' mode='trackcom' pos='0 -3 0'/>")
    model = mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{parts}</worldbody></mujoco>")
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    camera = rendering.camera_for(model, data)
    assert (camera.follow, camera.view) == ("runs", "side")
    assert camera.target(data) == pytest.approx((0, 0, 1))
    assert camera.width > 6.4
    data.qpos[7] += 2
    mujoco.mj_forward(model, data)
    assert camera.target(data)[0] == pytest.approx(2)


class Ends(gymnasium.Env):
    """Over after three steps. Without a screen or pygame Gymnasium's own cannot be drawn: this one can."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 50}  # noqa: RUF012
    observation_space = action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.tone = 0, self.np_random.integers(100, 200)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(1, np.float32), float(self.tone), self.steps == 3, False, {}

    def render(self):
        return np.full((4, 4, 3), (self.steps, self.tone, 0), np.uint8)


@pytest.fixture
def ends():
    gymnasium.register("calibrl-tests/Drawn-v0", entry_point=Ends)
    yield task_from_env("calibrl-tests/Drawn-v0")
    del gymnasium.registry["calibrl-tests/Drawn-v0"]


def test_episodes_end_when_they_are_over(ends):
    frames = video.episode(ends, lambda _: np.zeros(1))
    assert [int(frame[0, 0, 0]) for frame in frames] == [0, 1, 2, 3]


def test_a_trial_is_shown_with_all_its_episodes_at_its_own_pace(ends):
    # Only the first is seeded, as in the trial; the last is cut short, and does not count.
    drawn = gymnasium.utils.seeding.np_random(5)[0].integers(100, 200, 5)
    earned = 3 * drawn[:4].mean()
    frames, pace = video.replay(ends, torch.zeros(14, 1), seed=5, earned=earned)
    # 50 steps are a second: every fourth is shown.
    assert pace == 12.5
    assert [int(frame[0, 0, 0]) for frame in frames] == [1, 2, 3, 1]
    assert [int(frame[0, 0, 1]) for frame in frames] == [drawn[0], drawn[1], drawn[2], drawn[4]]
    with pytest.raises(CalibrlError, match=r"does not repeat itself: .* that earned 7 now earn \d+.*; draw all of its"):
        video.replay(ends, torch.zeros(14, 1), seed=5, earned=7.0)


# Files.


@pytest.mark.parametrize("kind", ["gif", "webp"])
def test_an_animation_reads_back(tmp_path, kind):
    frames = moving()
    path = video.save(frames, tmp_path / f"clip.{kind}", fps=20)
    with Image.open(path) as image:
        assert image.n_frames == len(frames)
        assert image.is_animated
        total = 0
        for i, frame in enumerate(frames):
            image.seek(i)
            image.load()
            total += image.info["duration"]
            # WebP is lossy: close is enough.
            assert np.abs(np.asarray(image.convert("RGB")).astype(int) - frame).mean() < 4
        assert total == pytest.approx(50 * len(frames))
    assert [p.name for p in tmp_path.iterdir()] == [f"clip.{kind}"]


def test_mp4_is_a_video_of_that_size_and_length(tmp_path, monkeypatch):
    program = pytest.importorskip("imageio_ffmpeg").get_ffmpeg_exe()
    monkeypatch.setattr(video.shutil, "which", lambda name: None)
    path = video.save(moving(), tmp_path / "clip.mp4", fps=10)
    told = subprocess.run([program, "-i", str(path), "-f", "null", "-"], capture_output=True, text=True, check=True)
    frames, height, width = len(moving()), *moving()[0].shape[:2]
    assert f"{width + width % 2}x{height + height % 2}" in told.stderr
    assert re.search(r"Video: h264|Video: mpeg4", told.stderr)
    assert re.findall(r"frame= *(\d+)", told.stderr)[-1] == str(frames)


def test_mp4_without_ffmpeg_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(CalibrlError, match=r"needs ffmpeg.*calibrl\[video\].*use .gif or .webp"):
        video.save(moving(), tmp_path / "clip.mp4")
    assert not list(tmp_path.iterdir())


def test_mp4_is_handed_to_ffmpeg(tmp_path, monkeypatch):
    # A stand-in that keeps what it was told and what it was given.
    script = tmp_path / "ffmpeg"
    script.write_text('#!/bin/sh\nfor last; do :; done\n{ echo "$*" | head -c 400; wc -c; } > "$last"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    video.save(moving(), tmp_path / "clip.mp4", fps=10)
    told, given = (tmp_path / "clip.mp4").read_text().splitlines()
    assert "-s 60x40 -r 10" in told
    assert int(given) == 8 * 40 * 60 * 3
    script.write_text("#!/bin/sh\necho unknown encoder >&2\nexit 1\n")
    with pytest.raises(CalibrlError, match="ffmpeg failed: unknown encoder"):
        video.save(moving(), tmp_path / "other.mp4")
    assert not (tmp_path / "other.mp4").exists()


def test_frames_that_are_no_animation(tmp_path):
    with pytest.raises(CalibrlError, match="no frames"):
        video.save([], tmp_path / "a.gif")
    with pytest.raises(CalibrlError, match="differ in size"):
        video.save([*moving(), np.zeros((3, 3, 3), np.uint8)], tmp_path / "a.gif")
    with pytest.raises(CalibrlError, match=r"a frame of shape \(40, 60\)"):
        video.save([frame[..., 0] for frame in moving()], tmp_path / "a.gif")
    with pytest.raises(CalibrlError, match=r"use .gif, .webp or .mp4"):
        video.save(moving(), tmp_path / "a.avi")
    with pytest.raises(CalibrlError, match="0 frames a second"):
        video.save(moving(), tmp_path / "a.gif", fps=0)
