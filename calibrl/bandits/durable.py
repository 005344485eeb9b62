"""A policy that survives a crash: every reward is on the disk before it counts as learnt.

A folder holds `policy.json`, a snapshot, and `journal.jsonl`, what happened since. A power cut or `kill -9` can
cut the journal's last line short; that line was never acknowledged and is dropped when the folder is opened.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from torch.distributions import Distribution

from calibrl.arrays import Array
from calibrl.bandits import storage
from calibrl.bandits.policy import Arm, Decision, Policy
from calibrl.errors import CalibrlError
from calibrl.files import replacing


class Durable:
    """A policy kept in a folder. One process at a time may have it open.

    make: builds the policy when the folder is new; snapshot_every: journal lines after which a new snapshot is
    written and the journal starts afresh.
    """

    def __init__(self, folder: str | Path, make: Callable[[], Policy], *, snapshot_every: int = 1000) -> None:
        if snapshot_every < 1:
            raise CalibrlError(f"snapshot_every {snapshot_every} is not a number of lines; use 1 or more")
        self.folder = Path(folder)
        self.snapshot_every = snapshot_every
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(self.folder / "lock")
        self._snapshot, self._journal = self.folder / "policy.json", self.folder / "journal.jsonl"
        self._file: IO[str] | None = None
        self._line = 0
        try:
            self.policy = self._restore() if self._snapshot.is_file() else make()
            self.snapshot()
        except BaseException:
            self._unlock()
            raise

    # What a policy does.

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The arms on offer."""
        return self.policy.arms

    def choose(self, x: Array) -> Arm:
        """The arm to take at x."""
        return self.policy.choose(x)

    def decide(self, x: Array) -> Decision:
        """The arm to take at x, and the probability with which it was taken."""
        return self.policy.decide(x)

    def forecast(self, x: Array) -> Distribution:
        """What each arm is expected to pay at x."""
        return self.policy.forecast(x)

    def update(self, x: Array, arm: Arm | Sequence[Arm], reward: Array) -> None:
        """Learn what arms paid. When this returns, it is on the disk."""
        rows = self.policy.check(x, arm, reward)
        names = [self.policy.arms[position] for position in rows.arm]
        self._write({"update": {"x": rows.x.tolist(), "arm": names, "reward": rows.reward.tolist()}})
        self.policy.learn(rows)
        self._maybe_snapshot()

    def add_arm(self, arm: Arm) -> None:
        """Offer one more arm."""
        self.policy.add_arm(arm)
        self._write({"add": arm})
        self._maybe_snapshot()

    def remove_arm(self, arm: Arm) -> None:
        """Offer this arm no more."""
        self.policy.remove_arm(arm)
        self._write({"remove": arm})
        self._maybe_snapshot()

    # Keeping it.

    def snapshot(self) -> None:
        """Write the policy whole and start a fresh journal."""
        with replacing(self._snapshot) as temporary, temporary.open("w", encoding="utf-8") as file:
            json.dump({"line": self._line, "policy": storage.to_dict(self.policy)}, file)
            file.flush()
            os.fsync(file.fileno())
        _sync_folder(self.folder)
        # Should the machine stop here, the old journal's lines are older than the snapshot and will be skipped.
        self._close_journal()
        self._file = self._journal.open("w", encoding="utf-8")
        self._written = 0

    def close(self) -> None:
        """Write a snapshot and let another process open the folder."""
        if self._lock is not None:
            self.snapshot()
            self._close_journal()
            self._unlock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # How.

    def _write(self, event: dict[str, Any]) -> None:
        if self._file is None:
            raise CalibrlError(f"{self.folder} was closed; open it again to learn more")
        self._line += 1
        luck = self.policy.generator.bit_generator.state
        self._file.write(json.dumps({"line": self._line, **event, "generator": luck}) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._written += 1

    def _maybe_snapshot(self) -> None:
        if self._written >= self.snapshot_every:
            self.snapshot()

    def _restore(self) -> Policy:
        try:
            saved = json.loads(self._snapshot.read_text(encoding="utf-8"))
            self._line, plain = saved["line"], saved["policy"]
        except (KeyError, TypeError, ValueError) as problem:
            raise CalibrlError(f"{self._snapshot} is damaged ({problem}); restore it from a backup") from None
        policy = storage.from_dict(plain)
        for event in self._events():
            if event["line"] <= self._line:
                continue
            if "update" in event:
                policy.update(**event["update"])
            elif "add" in event:
                policy.add_arm(event["add"])
            else:
                policy.remove_arm(event["remove"])
            policy.generator.bit_generator.state = event["generator"]
            self._line = event["line"]
        return policy

    def _events(self) -> Iterator[dict[str, Any]]:
        lines = self._journal.read_bytes().split(b"\n") if self._journal.is_file() else [b""]
        # What follows the last line break was cut short by a crash, before anyone was told it was learnt.
        for number, line in enumerate(lines[:-1], start=1):
            try:
                yield json.loads(line)
            except ValueError:
                raise CalibrlError(
                    f"{self._journal}, line {number} is damaged; restore the folder from a backup, or delete that line "
                    "and lose its reward"
                ) from None

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _close_journal(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _lock(path: Path) -> IO[str] | None:
    """Hold a lock on the folder for as long as the file stays open; the system lets go of it when a process dies."""
    file = path.open("w", encoding="utf-8")
    try:
        import fcntl
    except ImportError:  # Windows has no such lock; there the promise of one process is the user's
        return file
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise CalibrlError(f"{path.parent} is open in another process; close that one, or use a folder each") from None
    return file


def _sync_folder(folder: Path) -> None:
    """See a renamed file's new name onto the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
