"""A policy that survives a crash: every reward is on the disk before it counts as learnt.

A folder holds `policy.json`, a snapshot, and `journal.jsonl`, what happened since. A power cut or `kill -9` can
cut the journal's last line short; that line was never acknowledged and is dropped when the folder is opened.

Threads may share a `Durable`. Changes happen one after another; decisions wait while something is learnt, never for
the disk.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self, TypeVar

from calibrl.arrays import Array
from calibrl.bandits import storage
from calibrl.bandits.arms import Among, Arm, Forecast
from calibrl.bandits.decisions import Decision
from calibrl.bandits.features import plain_rows
from calibrl.bandits.policy import Policy, Taken, check_keep, from_plain
from calibrl.bandits.storage import Journal, NotKept
from calibrl.errors import CalibrlError
from calibrl.files import lock_folder, sweep, unlock_folder

if TYPE_CHECKING:
    from torch.distributions import Distribution

T = TypeVar("T")


class Durable:
    """A policy kept on disk, in a folder. Only one process at a time can open it; its threads can share it.

    It does what a `Policy` does; `update`, `fade`, `add_arm` and `remove_arm` are on the disk when they return, and
    have changed nothing if they raise.

    Parameters
    ----------
    folder
        Where the policy is kept; made if it is not there.
    make
        Builds the policy of a new folder; for an existing one it must build the same kind, with the same settings.
    snapshot_every
        Journal lines after which a new snapshot is written and the journal starts afresh.

    Examples
    --------
    >>> import tempfile
    >>> from calibrl.bandits import CalLinUCB, Durable
    >>> folder = tempfile.mkdtemp()
    >>> with Durable(folder, lambda: CalLinUCB(["a", "b"], dim=2)) as bandit:
    ...     bandit.update([1.0, 0.5], "b", 1.0)
    >>> with Durable(folder, lambda: CalLinUCB(["a", "b"], dim=2)) as bandit:
    ...     bandit.pulls
    {'a': 0, 'b': 1}
    """

    def __init__(self, folder: str | Path, make: Callable[[], Policy], *, snapshot_every: int = 1000) -> None:
        if not isinstance(snapshot_every, int) or snapshot_every < 1:
            raise CalibrlError(f"snapshot_every {snapshot_every!r} is not a number of lines; use 1 or more")
        if not callable(make):
            raise CalibrlError(f"make is {make!r}; pass a function that builds it: lambda: CalLinUCB(arms, dim)")
        self.folder = Path(folder)
        self.snapshot_every = snapshot_every
        self._lock: IO[str] | None = _lock(self.folder)
        self._process = os.getpid()
        self._changing, self._thinking = threading.RLock(), threading.RLock()
        self._journal: Journal | None = None
        self._line = 0
        try:
            sweep(self.folder)
            self.policy = make()
            if not isinstance(self.policy, Policy):
                raise CalibrlError(f"make() gave {self.policy!r}; expected a policy such as CalLinUCB(arms, dim)")
            if (self.folder / storage.SNAPSHOT).exists():
                wanted, (self.policy, self._line) = self.policy, storage.restore(self.folder, from_plain)
                _compare(self.folder, self.policy, wanted)
            elif lines := sum(1 for _ in storage.events(self.folder / storage.JOURNAL)):
                raise CalibrlError(
                    f"{self.folder} has {lines} lines in {storage.JOURNAL} but no {storage.SNAPSHOT} to begin from; "
                    "restore that from a backup, or use a new folder"
                )
            self.snapshot()
        except BaseException:
            self._let_go()
            raise

    # What a policy does.

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The arms on offer."""
        return self.policy.arms

    @property
    def pulls(self) -> dict[Arm, int]:
        """How many rewards each arm has had."""
        with self._thinking:
            return self.policy.pulls

    def choose(self, x: Array = None, *, among: Among | None = None) -> Arm:
        """The arm to take at x."""
        with self._thinking:
            return self.policy.choose(x, among=among)

    def decide(self, x: Array = None, *, among: Among | None = None, id: str | bool | None = None) -> Decision:
        """The arm to take at x, and the probability with which it was taken.

        With an id the decision and its context are in the journal when this returns, safe from the end of the process,
        though not from a power cut: only rewards wait for the disk itself.
        """
        if id is None:
            with self._thinking:
                return self.policy.decide(x, among=among)
        with self._changing:
            with self._thinking:
                again = id in self.policy.decisions.waiting
                made = self.policy.decide(x, among=among, id=id)
                waiting = self.policy.decisions.waiting[str(made.id)]
            if again:
                return made
            try:
                event = {"decide": {"id": made.id, **waiting._asdict()}}
                self._change(event, lambda _: None, None, sync=False)
            except BaseException:
                del self.policy.decisions.waiting[str(made.id)]
                raise
            return made

    def reward(self, id: str, reward: float) -> bool:
        """Learn the reward of a decision that was made with an id; False if it has had its reward before."""
        with self._changing:
            waiting = self.policy.decisions.find(id)
            if waiting is None:
                return False
            taken = self.policy.take(waiting.x, waiting.arm, reward)
            self.policy.ridge.judge(taken.rows)

            def learn(taken: Taken) -> None:
                self.policy.absorb(taken)
                self.policy.decisions.close(id)

            self._change({"reward": {"id": id, "reward": float(taken.rows.reward[0])}}, learn, taken)
            return True

    def probabilities(self, x: Array = None, *, among: Among | None = None) -> dict[Arm, float]:
        """The probability of each arm being chosen at x."""
        with self._thinking:
            return self.policy.probabilities(x, among=among)

    def forecast(self, x: Array = None, *, among: Among | None = None) -> Distribution | Forecast:
        """What each arm is expected to pay at x."""
        with self._thinking:
            return self.policy.forecast(x, among=among)

    # What changes it is checked, then written, then done: what cannot be written does not happen.

    def update(self, x: Array, arm: Arm | Sequence[Arm], reward: Array) -> None:
        """Learn what arms paid. When this returns, it is on the disk; when it raises, nothing was learnt."""
        with self._changing:
            taken = self.policy.take(x, arm, reward)
            self.policy.ridge.judge(taken.rows)
            arms = self.policy.arms
            names = [arms[position] for position in taken.rows.arm]
            event = {"x": plain_rows(x, taken.given), "arm": names, "reward": taken.rows.reward.tolist()}
            self._change({"update": event}, self.policy.absorb, taken)

    def fade(self, keep: float) -> None:
        """From now on what was learnt so far counts `keep` times as much."""
        with self._changing:
            share = check_keep(keep)
            self._change({"fade": share}, self.policy.fade, share)

    def add_arm(self, arm: Arm) -> None:
        """Offer one more arm."""
        with self._changing:
            (name,) = self.policy.offer.check_new([arm])
            self._change({"add": name}, self.policy.add_arm, name)

    def remove_arm(self, arm: Arm) -> None:
        """Offer this arm no more."""
        with self._changing:
            name = self.policy.offer.check_leaving(arm)
            self._change({"remove": name}, self.policy.remove_arm, name)

    # Keeping it.

    def snapshot(self) -> None:
        """Write the policy whole and start a fresh journal."""
        with self._changing:
            lines = self._opened()
            with self._thinking:
                self.policy.ridge.settle()
                stream = self.policy.generator.bit_generator.state
            # Decisions go on, and change nothing but the generator.
            plain = {**self.policy.to_plain(), "generator": stream}
            try:
                storage.write({"line": self._line, "policy": plain}, self.folder / storage.SNAPSHOT)
                # Should the machine stop here, the old journal's lines are older than the snapshot and will be skipped.
                lines.restart()
            except OSError as problem:
                raise NotKept(
                    f"{self.folder / storage.SNAPSHOT}: cannot be written ({problem.strerror or problem}); "
                    "make room on the disk: what was learnt since the last snapshot is in the journal"
                ) from None
            self._due = self.snapshot_every

    def close(self) -> None:
        """Write a snapshot and let another process open the folder."""
        with self._changing:
            if self._lock is not None:
                try:
                    self._try_snapshot()
                finally:
                    self._let_go()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # How.

    def _change(self, event: dict[str, Any], change: Callable[[T], None], what: T, *, sync: bool = True) -> None:
        """Write what changes, then change it."""
        with self._thinking:
            stream = self.policy.generator.bit_generator.state
        lines = self._opened()
        if not lines.in_place:
            warnings.warn(f"{lines.path} was moved or deleted; the policy is written whole there again", stacklevel=3)
            self.snapshot()
        lines.append({"line": self._line + 1, **event, "generator": stream}, sync=sync)
        self._line += 1
        self._due -= 1
        with self._thinking:
            change(what)
        if self._due <= 0:
            self._try_snapshot()

    def _opened(self) -> Journal:
        if self._lock is None:
            raise CalibrlError(f"{self.folder} was closed; open it again to learn more")
        if self._process != os.getpid():
            # Two processes would write lines of the same number, and one of each pair would be lost.
            raise CalibrlError(
                f"{self.folder} was opened by process {self._process}, of which this one, {os.getpid()}, is a fork; "
                "let one process learn, and open the folder there"
            )
        if self._journal is None:
            try:
                self._journal = Journal(self.folder / storage.JOURNAL)
            except OSError as problem:
                raise _unusable(self.folder, problem) from None
        return self._journal

    def _try_snapshot(self) -> None:
        """A snapshot only keeps the journal short: without one, what was acknowledged stands in the journal."""
        try:
            self.snapshot()
        except NotKept as problem:
            self._due = self.snapshot_every
            warnings.warn(str(problem), stacklevel=4)

    def _let_go(self) -> None:
        if self._journal is not None:
            self._journal.close()
            self._journal = None
        if self._lock is not None:
            unlock_folder(self.folder, self._lock)
            self._lock = None


def _compare(folder: Path, kept: Policy, wanted: Policy) -> None:
    """Refuse to go on with another policy than the one asked for."""
    theirs, ours = kept.settings, wanted.settings
    changed = [name for name in theirs if theirs[name] != ours[name]]
    if changed:
        there, here = (", ".join(f"{name} {of[name]}" for name in changed) for of in (theirs, ours))
        raise CalibrlError(
            f"{folder} holds a policy with {there}, and make() builds one with {here}; use the same settings, or a "
            f"new folder, with make().inherit(Policy.load({str(folder)!r})) to take along what was learnt"
        )
    known = {*kept.arms, *kept.removed}
    new = [name for name in wanted.arms if name not in known]
    if new:
        warnings.warn(f"{folder} has no arm {new[0]!r}, which make() offers; add it with add_arm", stacklevel=3)


def _lock(folder: Path) -> IO[str]:
    """Hold a lock on the folder for as long as the file stays open; the system lets go of it when a process dies."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = lock_folder(folder)
    except OSError as problem:
        raise _unusable(folder, problem) from None
    if file is None:
        raise CalibrlError(f"{folder} is open in another process; close that one, or use a folder each")
    return file


def _unusable(folder: Path, problem: OSError) -> CalibrlError:
    return CalibrlError(
        f"{folder}: no policy can be kept there ({problem.strerror or problem}); give a folder you may write to"
    )
