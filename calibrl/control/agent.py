"""One model-based agent, for a loop of your own: act, observe, update.

agent = Agent(task("cartpole"))
action = agent.act(observation)                       # at random until it has learnt something
agent.observe(observation, action, following, reward)
agent.update()                                        # after an episode, say: Algorithm 1, steps 2 to 5
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Distribution, Normal

from calibrl.algorithm import recalibrate
from calibrl.control import checkpoint
from calibrl.control.arms import arm_named
from calibrl.control.checkpoint import agent_state, load_agents
from calibrl.control.policy import Fleet, Member, check_rows
from calibrl.control.problems import Task
from calibrl.control.settings import (
    SHARED_OUT,
    CalibrationSettings,
    ControlSettings,
    EnsembleSettings,
    PlannerSettings,
    preset_for_env,
    threads_for,
)
from calibrl.control.world import view_of
from calibrl.data import Data
from calibrl.distributions import Mixture
from calibrl.errors import CalibrlError
from calibrl.maps import Map
from calibrl.planning.rollout import matched
from calibrl.runs.experiment import identity
from calibrl.threads import check_device


class Agent:
    """A probabilistic ensemble, a map R on top, and a planner that imagines with R∘T, for one task.

    Parameters
    ----------
    task : Task
        What to do: `task("cartpole")`, or `task_from_env("Pendulum-v1")`.
    ensemble, planner, calibration : EnsembleSettings, PlannerSettings, CalibrationSettings, optional
        By default small enough for a laptop.
    calibrated : bool
        False leaves R out and changes nothing else.
    arm : str, optional
        Another way to use the rows, by its name in `calibrl.control.arms.ARMS`.
    seed : int
        Decides all random draws.
    device : str or torch.device
        Where the networks train and plans are made.

    Examples
    --------
    >>> import numpy as np
    >>> from calibrl.control import task
    >>> agent = Agent(task("cartpole"))
    >>> agent.act(np.zeros(4)).shape  # at random until it has learnt something
    (1,)
    """

    def __init__(
        self,
        task: Task,
        *,
        ensemble: EnsembleSettings | None = None,
        planner: PlannerSettings | None = None,
        calibration: CalibrationSettings | None = None,
        calibrated: bool = True,
        arm: str | None = None,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        if not isinstance(task, Task):
            raise CalibrlError(f'{task!r} is no Task; make one by task("cartpole") or task_from_env("Pendulum-v1")')
        given = {EnsembleSettings: ensemble, PlannerSettings: planner, CalibrationSettings: calibration}
        for kind, settings in given.items():
            if not isinstance(settings, kind | None):
                raise CalibrlError(f"{settings!r} is no {kind.__name__}; write {kind.__name__}(…)")
        chosen = arm_named(arm or ("calibrated" if calibrated else "uncalibrated"))
        if not calibrated and chosen.calibrated:
            raise CalibrlError(f"arm {chosen.name!r} fits a map, calibrated=False asks for none; leave one of them out")
        if not isinstance(seed, (int, np.integer)) or seed < 0:
            raise CalibrlError(f"seed {seed} is no seed; use a whole number, 0 or more")
        check_device(device)
        self.task = task
        base = preset_for_env(task.name, task.steps)
        self.settings: ControlSettings = replace(
            base,
            ensemble=ensemble or base.ensemble,
            planner=planner or base.planner,
            calibration=calibration or base.calibration,
        )
        self.member = Member(chosen, seed)
        view = view_of(task, device=device)
        self.fleet = Fleet(view, [self.member], self.settings, low=task.low, high=task.high, device=device)
        self._seen: list[tuple[Tensor, ...]] = []

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

    def act(self, observation: NDArray[Any]) -> NDArray[np.float32]:
        """The action to take at an observation.

        Parameters
        ----------
        observation : array (o,)
            What the environment shows.

        Returns
        -------
        array (a,) of float32
            Within the task's bounds; at random until the agent has learnt something.
        """
        seen = self._vector(observation, self.task.observation_size, "observation")
        with threads_for(self.settings):
            action: NDArray[np.float32] = self.fleet.act(seen[None])[0].cpu().numpy()
        return action

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
            self._vector(action, self.task.action_size, "action"),
            self._vector(following, size, "next observation"),
            self._vector(0.0 if reward is None else reward, 1, "reward")[0],
            torch.tensor(bool(terminated)),
        )
        # Here, where the step is at hand: a row that cannot be learnt must not wait among those that can.
        check_rows(x, y)
        self._seen.append((x, y))

    def update(self) -> None:
        """Learn what was observed since the last update: split, train the networks, fit R. Forgets nothing."""
        fewest = 1 + (self.settings.calibration.block if self.member.arm.holds_out else 1)
        if len(self._seen) < fewest:
            raise CalibrlError(
                f"{len(self._seen)} steps were observed since the last update; observe {fewest} or more, so that some "
                "can be held out"
            )
        x, y = (torch.stack(column)[None] for column in zip(*self._seen, strict=True))
        with threads_for(self.settings):
            self.fleet.update(Data(x, y))
        self._seen = []

    def forecast(self, observation: NDArray[Any], action: NDArray[Any]) -> Distribution:
        """R∘T of the next step as planning draws from it, in the environment's units.

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
        done = self._rows(action, self.task.action_size, "action")
        if len(seen) != len(done):
            raise CalibrlError(
                f"{len(seen)} observations and {len(done)} actions; give one action for each observation"
            )
        x = torch.cat([view.world.model_input(view.before(seen.to(view.device))).to(device), done.to(device)], -1)
        with torch.no_grad(), threads_for(self.settings):
            mean, variance = self.fleet.ensemble.nets.moments(x[None])
        if self.settings.planner.propagation not in SHARED_OUT:
            mean, variance = (part[:, None] for part in matched(mean, variance))
        means, sds = view.units * mean[0], view.units * variance[0].sqrt()
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
        agent = state.get("agent", state)
        if "nets" not in agent:
            raise CalibrlError(f"{path} holds an agent without its networks; let its run go on without --light")
        load_agents(self.fleet, [agent])
        self._seen = []
        return self

    def _identity(self) -> dict[str, Any]:
        return {**identity(self.settings), "arm": self.member.arm.name}

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
