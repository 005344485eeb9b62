"""Soft actor-critic, the model-free baseline: Stable-Baselines3's, in exactly the environments the others act in."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from calibrl.arrays import device_named
from calibrl.control.checkpoint import drop_damaged, keep, unpack
from calibrl.control.loop import EXPERIMENT, Progress, refuse_impossible
from calibrl.control.policy import episode_seed
from calibrl.control.problems import Task, task_of
from calibrl.control.settings import ControlSettings, threads_worth
from calibrl.control.trials import begin_episode, make_step
from calibrl.errors import CalibrlError, MissingExtra, check_count, first_line
from calibrl.runs.experiment import Job, Report
from calibrl.runs.rows import Row

try:
    import gymnasium
    from gymnasium.wrappers import TimeLimit
    from stable_baselines3 import SAC
    from stable_baselines3.common.logger import Logger
except ImportError as problem:
    name = (problem.name or "").split(".")[0]
    raise MissingExtra("gymnasium" if name == "gymnasium" else "stable-baselines3", "sac") from None

FORMAT = "calibrl sac 1"


class Episode(NamedTuple):
    """Environment steps made so far, this episode's included, and what the episode earned."""

    step: int
    earned: float


@dataclass(frozen=True)
class SacSettings:
    """Stable-Baselines3's defaults, which are those of Haarnoja et al. (2018).

    learning_starts: steps of random actions before learning. One gradient step on `batch_size` rows follows every step.
    """

    lr: float = 3e-4
    learning_starts: int = 100
    batch_size: int = 256
    tau: float = 0.005
    gamma: float = 0.99
    hidden: tuple[int, ...] = (256, 256)
    buffer_size: int = 1_000_000


PUBLISHED = {"halfcheetah": SacSettings(learning_starts=10_000)}
"""Where the settings published with Stable-Baselines3 (its "zoo") differ from the defaults."""


def settings_for(task: Task) -> SacSettings:
    """The published settings of a task."""
    return PUBLISHED.get(task.name, SacSettings())


def train(
    task: Task,
    *,
    steps: int,
    seed: int,
    settings: SacSettings | None = None,
    device: str = "cpu",
    checkpoint: Path | None = None,
    every: int = 1,
    progress: Callable[[int], None] | None = None,
) -> Iterator[Episode]:
    """Learn for `steps` environment steps; yields every episode as it ends, those that were saved first.

    progress: told the number of every step. checkpoint: a file, written whole or not at all every `every`
    episodes; where there is one, learning goes on from it to the episodes that would have come.
    """
    learner = Sac(task, seed=seed, steps=steps, settings=settings, device=device)
    if checkpoint is not None and checkpoint.is_file() and not drop_damaged(checkpoint):
        learner.load(checkpoint)
    try:
        yield from learner.episodes
        while learner.step < steps:
            if (new := learner.learn_episode(progress)) is None:
                continue
            if checkpoint is not None and (len(learner.episodes) % every == 0 or learner.step >= steps):
                learner.save(checkpoint)
            yield new
    finally:
        learner.close()


class Sac:
    """A learner that goes on episode by episode. Its chance is its own: global generators are left as they were."""

    def __init__(
        self, task: Task, *, seed: int, steps: int, settings: SacSettings | None = None, device: str = "cpu"
    ) -> None:
        check_count("steps", steps, "teach nothing")
        self.task, self.seed, self.steps = task, seed, steps
        self.settings = settings or settings_for(task)
        self._env = _Episodes(TimeLimit(task.make(), max_episode_steps=task.steps), seed)
        self._streams: dict[str, Any] | None = None
        chosen = self.settings
        with self._own_streams():
            self._model = SAC(
                "MlpPolicy",
                self._env,
                learning_rate=chosen.lr,
                # What is never filled need not be kept.
                buffer_size=min(chosen.buffer_size, steps),
                learning_starts=chosen.learning_starts,
                batch_size=chosen.batch_size,
                tau=chosen.tau,
                gamma=chosen.gamma,
                policy_kwargs={"net_arch": list(chosen.hidden)},
                seed=seed,
                device=device,
            )
        self._model.set_logger(Logger(folder=None, output_formats=[]))

    @property
    def step(self) -> int:
        """Environment steps made."""
        return int(self._model.num_timesteps)

    @property
    def episodes(self) -> list[Episode]:
        """The episodes that have ended."""
        return list(self._env.ended)

    def learn_episode(self, progress: Callable[[int], None] | None = None) -> Episode | None:
        """Act and learn until an episode ends, or until `steps` are made: then None if they cut it short."""
        before = len(self._env.ended)

        def on_step(_locals: dict[str, Any], _globals: dict[str, Any]) -> bool:
            if progress is not None:
                progress(self.step)
            return True

        with self._threads(), self._own_streams():
            while len(self._env.ended) == before and self.step < self.steps:
                # All steps at once where an episode's length is known; asking step by step costs little.
                many = self.task.steps if self.task.terminates is False else 1
                many = min(many, self.steps - self.step)
                self._model.learn(many, callback=on_step, reset_num_timesteps=False)
        return self._env.ended[-1] if len(self._env.ended) > before else None

    def act(self, observation: NDArray[Any]) -> NDArray[np.float32]:
        """The policy's most likely action (a,) at an observation (o,)."""
        with self._threads():
            action, _ = self._model.predict(np.asarray(observation), deterministic=True)
        return np.asarray(action, np.float32)

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    # Checkpoints.

    def save(self, path: str | Path) -> None:
        """Write all that the rest of the run depends on, between episodes."""
        if self._env.length:
            raise CalibrlError(f"an episode is under way, at step {self._env.length}; save between episodes")
        memory = self._model.replay_buffer
        assert memory is not None
        filled = memory.buffer_size if memory.full else memory.pos
        state = {
            "format": FORMAT,
            "identity": self._identity(),
            "step": self.step,
            "updates": self._model._n_updates,
            "episodes": [tuple(episode) for episode in self._env.ended],
            "networks": self._model.get_parameters(),
            "entropy": self._entropy().detach().clone(),
            "memory": {key: torch.from_numpy(getattr(memory, key)[:filled].copy()) for key in _COLUMNS},
            "position": memory.pos,
            "full": memory.full,
            "streams": self._streams,
            "space": self._model.action_space.np_random.bit_generator.state,
        }
        keep(Path(path), state)

    def load(self, path: str | Path) -> None:
        """Go on from a file that `save` wrote, if it is of the same task, seed and settings; also for more steps."""
        try:
            self._go_on(unpack(Path(path)), path)
        except Exception as problem:  # torch.load raises whatever a damaged file makes it raise
            why = f"{path} cannot be read ({first_line(problem)}); remove it to start afresh"
            raise problem if isinstance(problem, CalibrlError) else CalibrlError(why) from None

    def _go_on(self, state: dict[str, Any], path: str | Path) -> None:
        if state["format"] != FORMAT:
            raise CalibrlError(f"{path} has format {state['format']!r}, expected {FORMAT!r}; remove it to start afresh")
        for key, mine in self._identity().items():
            if (there := state["identity"][key]) != mine:
                raise CalibrlError(f"{path} was made with {key} {there!r}, this run has {mine!r}; use another file")
        if state["step"] > self.steps:
            raise CalibrlError(f"{path} has made {state['step']} steps, more than {self.steps}; ask for as many")
        numbers = [*state["memory"].values(), state["entropy"], *state["networks"]["policy"].values()]
        if not all(part.isfinite().all() for part in numbers):
            raise ValueError("a number in it is not finite")
        memory = self._model.replay_buffer
        assert memory is not None
        filled = len(state["memory"]["rewards"])
        for key in _COLUMNS:
            getattr(memory, key)[:filled] = state["memory"][key].cpu().numpy()
        # What was full for fewer steps has room for more.
        memory.full = filled == memory.buffer_size
        memory.pos = int(state["position"]) if memory.full else filled
        self._model.set_parameters(state["networks"], device=self._model.device)
        self._entropy().data.copy_(state["entropy"])
        self._model.num_timesteps, self._model._n_updates = int(state["step"]), int(state["updates"])
        self._model._episode_num = len(state["episodes"])
        self._env.ended[:] = [Episode(int(step), float(earned)) for step, earned in state["episodes"]]
        with self._own_streams():
            _set_streams(state["streams"])
        self._model.action_space.np_random.bit_generator.state = state["space"]

    def _entropy(self) -> torch.Tensor:
        """The logarithm of the entropy's weight, which is learnt but no part of `get_parameters`."""
        assert self._model.log_ent_coef is not None
        return self._model.log_ent_coef

    def _identity(self) -> dict[str, Any]:
        return {"env_id": self.task.env_id, "seed": self.seed, "episode": self.task.steps, **asdict(self.settings)}

    def _threads(self) -> contextlib.AbstractContextManager[None]:
        return threads_worth(self.settings.batch_size * max(self.settings.hidden))

    @contextlib.contextmanager
    def _own_streams(self) -> Iterator[None]:
        """Stable-Baselines3 draws from the global generators: lend it this learner's states of them."""
        others = _streams()
        if self._streams is not None:
            _set_streams(self._streams)
        try:
            yield
        finally:
            self._streams = _streams()
            _set_streams(others)


class _Episodes(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Seeds every episode by its number, keeps what each earned, and holds the environment to its spaces."""

    def __init__(self, env: gymnasium.Env[Any, Any], seed: int) -> None:
        super().__init__(env)
        self._seed = seed
        self.ended: list[Episode] = []
        self.length, self._earned = 0, 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:  # noqa: ARG002
        self.length, self._earned = 0, 0.0
        return begin_episode(self.env, seed=episode_seed(self._seed, len(self.ended))), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.length += 1
        where = f"at step {self.length} of episode {len(self.ended) + 1}"
        answer = make_step(self.env, np.asarray(action), where=where)
        self._earned += answer.reward
        if answer.terminated or answer.truncated:
            before = self.ended[-1].step if self.ended else 0
            self.ended.append(Episode(before + self.length, self._earned))
        return (*answer, {})


_COLUMNS = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")
"""The replay buffer's arrays."""


def _streams() -> dict[str, Any]:
    """States of the global generators, as what a checkpoint may hold."""
    _, keys, position, has_gauss, gauss = np.random.get_state()  # noqa: NPY002
    return {
        "python": random.getstate(),
        "numpy": (torch.from_numpy(np.asarray(keys).astype(np.int64)), position, has_gauss, gauss),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
    }


def _set_streams(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    keys, *rest = state["numpy"]
    np.random.set_state(("MT19937", keys.cpu().numpy().astype(np.uint32), *rest))  # noqa: NPY002
    torch.set_rng_state(state["torch"].cpu())
    if state["cuda"]:
        torch.cuda.set_rng_state_all([one.cpu() for one in state["cuda"]])


ARM = "sac"


def jobs(settings: ControlSettings) -> list[Job]:
    """A job for each seed: as many environment steps as the agents that plan make, one row for each episode."""
    refuse_impossible(settings)
    seeds = range(settings.seed, settings.seed + settings.seeds)
    # An episode that the last step cuts off has no row.
    until = settings.trials * settings.steps + 1
    return [
        Job(f"{settings.task}, {ARM}, seed {seed}", learn_alone, (settings, seed), checkpoint="*.sac", until=until)
        for seed in seeds
    ]


def learn_alone(settings: ControlSettings, seed: int, *, checkpoint: Path, report: Report) -> Iterator[Row]:
    """All episodes of one learner, those that were saved first."""
    what, earned, progress = task_of(settings), [0.0], Progress(settings, 1, report)

    def on_step(step: int) -> None:
        trial, within = divmod(step - 1, settings.steps)
        progress.step([ARM], trial, within + 1, earned[-1:])

    checkpoint.mkdir(parents=True, exist_ok=True)  # on another machine than the run's folder is on
    episodes = train(
        what,
        steps=(settings.trials + 1) * settings.steps,
        seed=seed,
        device=device_named(settings.device),
        checkpoint=checkpoint / f"{ARM}-{seed}.sac",
        every=max(1, settings.trials // 20),
        progress=on_step,
    )
    for count, episode in enumerate(episodes):
        earned.append(episode.earned)
        row = Row(
            experiment=EXPERIMENT,
            problem=what.name,
            arm=ARM,
            seed=seed,
            step=episode.step,
            metrics={"trial": float(count), "return": episode.earned, "best": max(earned[1:])},
            settings=asdict(settings_for(what)) if count == 0 else {},
        )
        progress.trial([row])
        yield row
