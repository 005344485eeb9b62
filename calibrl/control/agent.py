"""One model-based agent: it learns by itself, or in a loop of your own: act, observe, update.

agent = Agent("Pendulum-v1")                          # an id, an environment, what makes one, or a Task
agent.learn(trials=10)                                # or a loop of your own:
action = agent.act(observation)                       # at random until it has learnt something
agent.observe(observation, action, following, reward)
agent.update()                                        # after an episode, say: Algorithm 1, steps 2 to 5
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Distribution, Normal

from calibrl.algorithm import learn, recalibrate
from calibrl.arrays import device_named, off_mps
from calibrl.control import checkpoint
from calibrl.control.arms import arm_named
from calibrl.control.checkpoint import agent_state, load_agents
from calibrl.control.policy import Fleet, Member, check_rows, episode_seed
from calibrl.control.problems import Task, task_from_env
from calibrl.control.settings import (
    SHARED_OUT,
    CalibrationSettings,
    ControlSettings,
    EnsembleSettings,
    PlannerSettings,
    preset_for_env,
    threads_for,
)
from calibrl.control.trials import Trial, run_trial, view_of
from calibrl.data import Data
from calibrl.distributions import Mixture
from calibrl.errors import CalibrlError
from calibrl.maps import Map
from calibrl.planning.rollout import matched
from calibrl.runs.settings import identity

if TYPE_CHECKING:
    import gymnasium


@dataclass(frozen=True)
class TrialResult:
    """The result of a trial, as callbacks get it.

    Parameters
    ----------
    trial : int
        Its number; 0 is the random one.
    earned : float
        The mean return of its episodes, as rows count them.
    episodes : tuple of float
        The return of each episode, one that the trial's end cut short included.
    rows : int
        How many steps the agent has learnt from or holds out.
    evaluation : tuple of float, optional
        What episodes earned that nothing was learnt from.
    """

    trial: int
    earned: float
    episodes: tuple[float, ...]
    rows: int
    evaluation: tuple[float, ...] | None = None


class OneForAll:
    """One agent that acts in n environments side by side, in each with a plan of its own."""

    def __init__(self, fleet: Fleet, environments: int) -> None:
        self.fleet = fleet
        self.plans = [fleet.memory()] * environments

    def begin(self, agents: Sequence[int]) -> None:
        """Episodes begin in these environments."""
        self.fleet.begin([0])
        for k in agents:
            self.plans[k] = self.fleet.memory()

    def act(self, observation: Tensor) -> Tensor:
        """Actions (n, a) at observations (n, o)."""
        if len(observation) == 1:
            return self.fleet.act(observation)
        actions = []
        for k, seen in enumerate(observation):
            self.fleet.recall(self.plans[k])
            actions.append(self.fleet.act(seen[None])[0])
            self.plans[k] = self.fleet.memory()
        return torch.stack(actions)


class Agent:
    """A probabilistic ensemble, a map R on top, and a planner that imagines with R∘T, for one task.

    Parameters
    ----------
    task : Task, str, gymnasium.Env or function
        What to do: an environment's id in Gymnasium, an environment, what makes one, or a Task: `task("cartpole")`.
    ensemble, planner, calibration : EnsembleSettings, PlannerSettings, CalibrationSettings, optional
        By default small enough for a laptop.
    calibrated : bool
        False leaves R out, and imagined errors that go on; all else is the same (the arm "uncalibrated-limited").
    arm : str, optional
        A way to use the rows, by its name in `calibrl.control.arms.ARMS`: by default "calibrated-trajectory", whose
        imagined errors go on from those just seen. "calibrated" is the paper's, with a map of single steps.
    seed : int
        Decides all random draws.
    device : str or torch.device
        Where the networks train and plans are made: cpu, cuda, mps (Apple's GPU), or auto, the GPU where there is one.
        Maps are fitted in float64, which mps does not have, on the CPU.
    **of_task
        reward, terminated, steps, and options of the environment: as in `task_from_env`.

    Examples
    --------
    >>> import numpy as np
    >>> from calibrl.control import task
    >>> agent = Agent(task("cartpole"))
    >>> agent.act(np.zeros(4)).shape  # at random until it has learnt something
    (1,)

    Any environment is learnt in one line; here for three short trials, the first at random:

    >>> settings = {"planner": PlannerSettings(horizon=2, population_size=4, elites=2, iterations=1, particles=2)}
    >>> agent = Agent("CartPole-v1", steps=20, ensemble=EnsembleSettings(2, (8,), (1e-4,)), **settings)
    >>> [result.trial for result in agent.learn(trials=2)]
    [0, 1, 2]
    >>> agent.act(np.zeros(4)) in (0, 1)
    True
    """

    def __init__(
        self,
        task: Task | str | gymnasium.Env[Any, Any] | Callable[..., Any],
        *,
        ensemble: EnsembleSettings | None = None,
        planner: PlannerSettings | None = None,
        calibration: CalibrationSettings | None = None,
        calibrated: bool = True,
        arm: str | None = None,
        seed: int = 0,
        device: torch.device | str = "cpu",
        **of_task: Any,
    ) -> None:
        if not isinstance(task, Task):
            task = task_from_env(task, **of_task)
        elif of_task:
            raise CalibrlError(f"{task.name} is a Task already; give {', '.join(of_task)} to task_from_env")
        given = {EnsembleSettings: ensemble, PlannerSettings: planner, CalibrationSettings: calibration}
        for kind, settings in given.items():
            if not isinstance(settings, kind | None):
                raise CalibrlError(f"{settings!r} is no {kind.__name__}; write {kind.__name__}(…)")
        chosen = arm_named(arm or ("calibrated-trajectory" if calibrated else "uncalibrated-limited"))
        if not calibrated and chosen.calibrated:
            raise CalibrlError(f"arm {chosen.name!r} fits a map, calibrated=False asks for none; leave one of them out")
        if not isinstance(seed, (int, np.integer)) or seed < 0:
            raise CalibrlError(f"seed {seed} is no seed; use a whole number, 0 or more")
        device = device_named(device)
        self.task = task
        base = preset_for_env(task.name, task.steps)
        self.settings: ControlSettings = replace(
            base,
            ensemble=ensemble or base.ensemble,
            planner=planner or base.planner,
            calibration=calibration or base.calibration,
        )
        self.member = Member(chosen, seed)
        view = view_of(task, device=device, safety=self.settings.planner.safety)
        self.fleet = Fleet(
            view, [self.member], self.settings, low=task.low, high=task.high, choices=task.choices, device=device
        )
        self._seen: list[tuple[Tensor, ...]] = []
        self._episodes = 0

    @property
    def mapping(self) -> Map:
        """R, as it was last fitted."""
        return self.fleet.maps[0]

    @property
    def rows(self) -> int:
        """How many steps it has learnt from or holds out."""
        return self.fleet.rows

    def begin(self) -> None:
        """An episode begins: what was planned is over."""
        self.fleet.begin([0])
        if self._seen:
            self._seen[-1] = (*self._seen[-1][:2], torch.tensor(True))

    # Learning by itself.

    def learn(
        self,
        trials: int = 10,
        *,
        environments: int = 1,
        evaluate_every: int = 0,
        evaluation_episodes: int = 5,
        callback: Callable[[TrialResult], object] | None = None,
    ) -> list[TrialResult]:
        """Act and learn, trial after trial; the very first one at random.

        Parameters
        ----------
        trials : int
            After the random one.
        environments : int
            Copies of the environment that it acts in side by side; a trial has `task.steps` steps in each.
        evaluate_every, evaluation_episodes : int
            After every so many trials so many episodes are acted in that nothing is learnt from; 0: never.
        callback : function of a TrialResult, optional
            Hears of each trial once it is learnt; where it returns False, learning ends.

        Returns
        -------
        list of TrialResult
        """
        if trials < 1 or environments < 1 or evaluate_every < 0 or evaluation_episodes < 1:
            raise CalibrlError(
                f"{trials} trials in {environments} environments, evaluated every {evaluate_every} by "
                f"{evaluation_episodes} episodes, cannot be; use 1 or more each, evaluate_every 0 or more"
            )
        if self._seen:
            raise CalibrlError(f"{len(self._seen)} observed steps are not learnt yet; call update() before learn()")
        results: list[TrialResult] = []
        with ExitStack() as stack, threads_for(self.settings):
            made = [stack.enter_context(closing(self.task.make())) for _ in range(environments)]
            rounds = trials + (self.fleet.learnt == 0)
            for trial in learn(partial(self._collect, made), self.fleet, rounds=rounds):
                number = self.fleet.learnt - 1
                evaluated = evaluate_every and number and number % evaluate_every == 0
                returns = self.evaluate(evaluation_episodes) if evaluated else None
                episodes = [one for k in range(environments) for one in trial.episode_returns(k)]
                result = TrialResult(number, float(np.mean(trial.returns)), tuple(episodes), self.rows, returns)
                results.append(result)
                if callback is not None and callback(result) is False:
                    break
        return results

    def _collect(self, environments: Sequence[Any], fleet: Fleet) -> tuple[Data, Trial]:
        """Step 1 of Algorithm 1: a trial in each environment, and its rows."""
        seeds = [episode_seed(self.member.seed, self._episodes + k) for k in range(len(environments))]
        self._episodes += len(environments)
        trial = run_trial(OneForAll(fleet, len(environments)), environments, steps=self.task.steps, seeds=seeds)
        parts = (trial.observation, trial.action, trial.next_observation, trial.reward, trial.terminated)
        x, y = fleet.view.rows(*(part.flatten(0, 1)[None] for part in parts))
        return Data(x.cpu(), y.cpu(), last=trial.last.flatten()[None]), trial

    def evaluate(self, episodes: int = 5, *, seed: int = 10_000) -> tuple[float, ...]:
        """What whole episodes earn, of at most `task.steps` steps; nothing is learnt from them.

        Parameters
        ----------
        episodes : int
        seed : int
            Of the first; the others' follow.

        Returns
        -------
        tuple of float
            The return of each.
        """
        planned = self.fleet.memory()
        earned = []
        with closing(self.task.make()) as environment, threads_for(self.settings):
            for episode in range(episodes):
                trial = run_trial(self.fleet, [environment], steps=self.task.steps, seeds=[seed + episode])
                first = trial.episodes(0)[0]
                earned.append(float(trial.reward[0, first].double().sum()))
        self.fleet.recall(planned)
        return tuple(earned)

    def record(self, path: str | Path, *, seed: int = 10_000, fps: float = 25.0) -> Path:
        """Write a video of an episode: .gif, .webp or, with ffmpeg or the extra "video", .mp4.

        Parameters
        ----------
        path : str or Path
        seed : int
            Of the episode.
        fps : float
            Frames a second.

        Returns
        -------
        Path
        """
        from calibrl.control import video

        self.begin()
        return video.save(video.episode(self.task, self.act, seed=seed), path, fps=fps)

    # A loop of one's own.

    def act(self, observation: NDArray[Any]) -> Any:
        """The action to take at an observation.

        Parameters
        ----------
        observation : array (o,)
            What the environment shows.

        Returns
        -------
        array (a,) of float32, or a choice
            As the environment takes it; at random until the agent has learnt something.
        """
        seen = self._vector(observation, self.task.observation_size, "observation")
        with threads_for(self.settings):
            action: NDArray[np.float32] = self.fleet.act(seen[None])[0].cpu().numpy()
        return action if self.task.choice is None else self.task.choice.decode(action)

    def observe(
        self,
        observation: NDArray[Any],
        action: NDArray[Any],
        following: NDArray[Any],
        reward: float | None = None,
        *,
        terminated: bool = False,
    ) -> None:
        """Remember one step; `update` learns from it.

        Parameters
        ----------
        observation, action, following : array (o,), (a,), (o,)
            What was seen, what was done, and what was seen next.
        reward : float, optional
            What the step paid; may be left out where the task knows it.
        terminated : bool
            Whether the step ended its episode for good.
        """
        if reward is None and self.task.world.reward is None:
            raise CalibrlError(
                f"the reward of {self.task.name} has to be learnt, and this step came without one; give what it paid"
            )
        size = self.task.observation_size
        x, y = self.fleet.view.rows(
            self._vector(observation, size, "observation"),
            self._vector(self._numbers(action), self.task.action_size, "action"),
            self._vector(following, size, "next observation"),
            self._vector(0.0 if reward is None else reward, 1, "reward")[0],
            torch.tensor(bool(terminated)),
        )
        # Here, where the step is at hand: a row that cannot be learnt must not wait among those that can.
        check_rows(x, y)
        self._seen.append((x, y, torch.tensor(bool(terminated))))

    def update(self) -> None:
        """Learn what was observed since the last update: split, train the networks, fit R. Forgets nothing."""
        fewest = 1 + (self.settings.calibration.block if self.member.arm.holds_out else 1)
        if len(self._seen) < fewest:
            raise CalibrlError(
                f"{len(self._seen)} steps were observed since the last update; observe {fewest} or more, so that some "
                "can be held out"
            )
        x, y, last = (torch.stack(column)[None] for column in zip(*self._seen, strict=True))
        with threads_for(self.settings):
            self.fleet.update(Data(x, y, last=last))
        self._seen = []

    def forecast(self, observation: NDArray[Any], action: NDArray[Any]) -> Distribution:
        """R∘T of the next step, in the environment's units; what is expected of errors just seen is not added.

        Parameters
        ----------
        observation : array (o,) or (n, o)
            What is seen.
        action : array (a,) or (n, a)
            What would be done: as many rows.

        Returns
        -------
        Distribution of batch shape (n, d)
            The d numbers are what the task's World forecasts, in an environment of one's own how much each observed
            number changes; where they are learnt, the reward and the chance that the episode ends follow.
        """
        view, device = self.fleet.view, self.fleet.device
        seen = self._rows(observation, self.task.observation_size, "observation")
        done = self._rows(self._numbers(action), self.task.action_size, "action")
        if len(seen) != len(done):
            raise CalibrlError(f"{len(seen)} observations and {len(done)} actions; give an action for each observation")
        x = torch.cat([view.world.model_input(view.before(seen.to(view.device))).to(device), done.to(device)], -1)
        with torch.no_grad(), threads_for(self.settings):
            mean, variance = self.fleet.ensemble.nets.moments(x[None])
        if self.settings.planner.propagation not in SHARED_OUT:
            mean, variance = (part[:, None] for part in matched(mean, variance))
        means, sds = (off_mps(view.units.to(device) * part) for part in (mean[0], variance[0].sqrt()))
        parts = [recalibrate(Normal(*each, validate_args=False), self.mapping) for each in zip(means, sds, strict=True)]
        return parts[0] if len(parts) == 1 else Mixture(parts)

    # Keeping.

    def save(self, path: str | Path) -> None:
        """Write all of it to a file, whole or not at all.

        Parameters
        ----------
        path : str or Path
            The file.
        """
        if self._seen:
            raise CalibrlError(f"{len(self._seen)} observed steps are not learnt yet; call update() before save()")
        checkpoint.write(Path(path), self._identity(), self.fleet.learnt, agent_state(self.fleet, 0))

    def load(self, path: str | Path) -> Agent:
        """Go on from a file that `save` or a run wrote for an agent of the same task, arm and settings.

        A run's agents are in its folder: `checkpoint/calibrated-0.trial-10.pt`. Their seed may be another, random
        streams go on as they were, and so may the reward that plans were judged by: what was learnt holds for any.

        Parameters
        ----------
        path : str or Path
            The file.

        Returns
        -------
        Agent
            Itself.
        """
        state = checkpoint.read(Path(path), self._identity(), whatever=("seed", "reward"))
        # A run keeps an agent beside the record of its trials.
        agent = state.get("agent", state) if isinstance(state, dict) else state
        if isinstance(agent, dict) and "nets" not in agent:
            raise CalibrlError(f"{path} holds an agent without its networks; let its run go on without --light")
        load_agents(self.fleet, [agent])
        self._seen = []
        return self

    def _identity(self) -> dict[str, Any]:
        return {**identity(self.settings), "arm": self.member.arm.name}

    def _numbers(self, action: Any) -> Any:
        """Actions as models take them."""
        return action if self.task.choice is None else self.task.choice.encode(action)

    def _vector(self, value: Any, size: int, name: str) -> Tensor:
        """One row (size,)."""
        (found,) = self._rows(np.reshape(value, -1), size, name)
        return found

    def _rows(self, value: Any, size: int, name: str) -> Tensor:
        """Rows (n, size) of finite float32 numbers, or an error that names them."""
        given = np.atleast_2d(np.asarray(value))
        if given.ndim == 2 and given.shape[1] == size and given.dtype.kind in "fiub":
            found = torch.from_numpy(given.astype(np.float64)).float()
            # Learning squares them.
            if bool(found.square().isfinite().all()):
                return found
        wanted = "a finite number" if size == 1 else f"{size} finite numbers"
        got = given.tolist() if len(given) > 1 else given[0].tolist() if size > 1 else given.squeeze().tolist()
        raise CalibrlError(
            f"{name} {got} is not {wanted} (below 1e19 in size), as {self.task.name} needs; leave such steps out"
        )
