"""A policy that is killed in the middle, again and again, loses nothing it has acknowledged."""

import json
import os
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from calibrl import CalibrlError
from calibrl.bandits import CalibratedUCB, CalLinUCB, CalThompson, Durable, LinUCB, NotKept, Policy, storage
from calibrl.bandits.storage import Journal
from calibrl.files import seal
from calibrl.runs.store import Run, Store


def live(bandit, rounds, seed):
    generator = np.random.default_rng(seed)
    chosen = []
    for _ in range(rounds):
        x = generator.standard_normal(3)
        arm = bandit.choose(x)
        bandit.update(x, arm, generator.random())
        chosen.append(arm)
    return chosen


def abandon(bandit):
    """What is left when a process dies: the files. The system lets go of its lock."""
    bandit._lock.close()
    bandit._journal.close()


@pytest.mark.parametrize("rounds", [0, 1, 19, 20, 21, 65])
def test_an_abandoned_folder_has_everything(tmp_path, rounds):
    bandit = Durable(tmp_path, lambda: CalThompson(3, 3), snapshot_every=20)
    live(bandit, rounds, seed=1)
    abandon(bandit)
    with Durable(tmp_path, lambda: CalThompson(3, 3)) as again:
        bandit.policy.ridge.settle()
        for mine, theirs in zip(bandit.policy.ridge.state, again.policy.ridge.state, strict=True):
            np.testing.assert_array_equal(mine, theirs)
        # Even the random stream goes on where it was.
        assert live(again, 50, seed=2) == live(bandit.policy, 50, seed=2)


def test_changes_of_the_arms_are_kept(tmp_path):
    bandit = Durable(tmp_path, lambda: CalLinUCB(["a", "b"], 3))
    live(bandit, 10, seed=1)
    bandit.add_arm("c")
    bandit.remove_arm("a")
    live(bandit, 10, seed=2)
    abandon(bandit)
    with Durable(tmp_path, lambda: CalLinUCB(["a", "b"], 3)) as again:
        assert again.arms == ("b", "c")
        assert again.pulls == bandit.policy.pulls


def test_a_line_cut_short_was_never_acknowledged(tmp_path, monkeypatch):
    bandit = Durable(tmp_path, lambda: CalLinUCB(2, 3))
    live(bandit, 6, seed=1)

    def power_cut(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", power_cut)
        patch.setattr(Journal, "_cut", lambda _: None)
        with pytest.raises(KeyboardInterrupt):
            live(bandit, 1, seed=1)
    abandon(bandit)
    journal = tmp_path / "journal.jsonl"
    journal.write_bytes(journal.read_bytes()[:-25])
    with Durable(tmp_path, lambda: CalLinUCB(2, 3)) as again:
        assert sum(again.policy.pulls.values()) == 6


@pytest.mark.parametrize("cut", [0, 1, 25], ids=["at a line's end", "before it", "in the line"])
def test_lines_that_were_acknowledged_and_are_cut_off_are_missed(tmp_path, cut):
    bandit = Durable(tmp_path, lambda: CalLinUCB(2, 3))
    live(bandit, 7, seed=1)
    abandon(bandit)
    journal = tmp_path / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:5]) + (lines[5][:-cut] if cut else b""))
    for load in (Policy.load, lambda folder: Durable(folder, lambda: CalLinUCB(2, 3))):
        with pytest.raises(CalibrlError, match=r"ends with line 5, but line 7 was acknowledged.*remove .*journal.last"):
            load(tmp_path)
    (tmp_path / "journal.last").unlink()
    assert sum(Policy.load(tmp_path).pulls.values()) == 5


def test_what_says_the_last_line_may_be_damaged_itself(tmp_path):
    bandit = Durable(tmp_path, lambda: CalLinUCB(2, 3))
    live(bandit, 7, seed=1)
    abandon(bandit)
    last = tmp_path / "journal.last"
    last.write_bytes(last.read_bytes().replace(b"7", b"9", 1))
    with pytest.warns(UserWarning, match=r"journal.last is damaged"):
        assert sum(Policy.load(tmp_path).pulls.values()) == 7


@pytest.mark.parametrize("name", ["journal.last", "journal.jsonl", "policy.json", "lock"])
def test_pipes_in_a_folder_are_not_waited_for(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(CalibrlError, match=f"{name} is no regular file"):
        Durable(tmp_path, lambda: CalLinUCB(2, 3))
    assert not (tmp_path / "lock").is_file()


def test_a_journal_of_an_earlier_version_is_learnt(tmp_path):
    """Without checksums, nor a number of the last line."""
    bandit = Durable(tmp_path, lambda: CalLinUCB(2, 3))
    live(bandit, 3, seed=1)
    abandon(bandit)
    for name in ("journal.jsonl", "policy.json"):
        lines = [json.loads(text) for text in (tmp_path / name).read_text().splitlines()]
        assert [len(line.pop("crc")) for line in lines] == [8] * len(lines)
        (tmp_path / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "journal.last").unlink()
    with Durable(tmp_path, lambda: CalLinUCB(2, 3)) as again:
        assert again.pulls == bandit.pulls


def test_left_overs_are_swept_and_modes_stay(tmp_path):
    bandit = Durable(tmp_path, lambda: CalLinUCB(2, 3))
    (tmp_path / "policy.json").chmod(0o600)
    live(bandit, 3, seed=1)
    bandit.close()
    (tmp_path / ".policy.json.0123abcd.tmp").write_text("{")
    with Durable(tmp_path, lambda: CalLinUCB(2, 3)):
        assert not list(tmp_path.glob(".*"))
        assert (tmp_path / "policy.json").stat().st_mode & 0o777 == 0o600


def test_a_run_and_a_policy_cannot_share_a_folder(tmp_path):
    store = Store(tmp_path, Run("dice", "", {})).open()
    with pytest.raises(CalibrlError, match="open in another process"):
        Durable(tmp_path, lambda: CalLinUCB(2, 3))
    store.close()
    with Durable(tmp_path, lambda: CalLinUCB(2, 3)), pytest.raises(CalibrlError, match="by another run"):
        Store(tmp_path, Run("dice", "", {})).open()


def test_a_crash_between_snapshot_and_fresh_journal_counts_nothing_twice(tmp_path):
    bandit = Durable(tmp_path, lambda: CalLinUCB(2, 3))
    live(bandit, 7, seed=1)
    old = (tmp_path / "journal.jsonl").read_bytes()
    bandit.snapshot()
    abandon(bandit)
    (tmp_path / "journal.jsonl").write_bytes(old)
    with Durable(tmp_path, lambda: CalLinUCB(2, 3)) as again:
        assert sum(again.policy.pulls.values()) == 7


def test_damage_in_the_middle_is_said_not_skipped(tmp_path):
    bandit = Durable(tmp_path, lambda: CalLinUCB(2, 3))
    live(bandit, 3, seed=1)
    abandon(bandit)
    journal = tmp_path / "journal.jsonl"
    lines = journal.read_text().splitlines()
    journal.write_text("\n".join([lines[0][:-9], *lines[1:]]) + "\n")
    with pytest.raises(CalibrlError, match="line 1 is damaged"):
        Durable(tmp_path, lambda: CalLinUCB(2, 3))


def test_refused_rewards_are_not_written(tmp_path):
    with Durable(tmp_path, lambda: CalLinUCB(2, 3)) as bandit:
        before = (tmp_path / "journal.jsonl").read_bytes()
        with pytest.raises(CalibrlError, match="never offered"):
            bandit.update([1.0, 0.0, 0.0], 9, 1.0)
        with pytest.raises(CalibrlError, match="nan"):
            bandit.update([1.0, 0.0, 0.0], 0, float("nan"))
        assert (tmp_path / "journal.jsonl").read_bytes() == before
        bandit.decide([1.0, 0.0, 0.0], id="visit")
        before = (tmp_path / "journal.jsonl").read_bytes()
        with pytest.raises(CalibrlError, match="overflow"):
            bandit.reward("visit", 1e200)
        assert (tmp_path / "journal.jsonl").read_bytes() == before


def test_only_one_process_may_have_it_open(tmp_path):
    with Durable(tmp_path, lambda: CalLinUCB(2, 3)) as bandit:
        with pytest.raises(CalibrlError, match="open in another process"):
            Durable(tmp_path, lambda: CalLinUCB(2, 3))
        assert bandit.forecast([1.0, 0.0, 0.0]).batch_shape == (2,)
        assert bandit.probabilities([1.0, 0.0, 0.0]) == bandit.policy.probabilities([1.0, 0.0, 0.0])
    for change in (lambda: bandit.update([1.0, 0.0, 0.0], 0, 1.0), lambda: bandit.add_arm(5), bandit.snapshot):
        with pytest.raises(CalibrlError, match="was closed"):
            change()
    assert bandit.arms == (0, 1)
    assert bandit.policy.pulls == {0: 0, 1: 0}


def test_arms_named_by_numpy_are_kept(tmp_path):
    bandit = Durable(tmp_path, lambda: CalLinUCB(["a"], 3))
    bandit.add_arm(np.int64(7))
    bandit.add_arm(np.str_("b"))
    bandit.update([1.0, 0.0, 0.0], np.int64(7), 1.0)
    abandon(bandit)
    with Durable(tmp_path, lambda: CalLinUCB(["a"], 3)) as again:
        assert again.policy.pulls == {"a": 0, 7: 1, "b": 0}
        again.remove_arm(np.int64(7))
        assert {type(arm) for arm in again.policy.removed} == {int}
    with Durable(tmp_path, lambda: CalLinUCB(["a"], 3)) as again:
        assert again.arms == ("a", "b")
        with pytest.raises(CalibrlError, match="was removed"):
            again.update([1.0, 0.0, 0.0], np.int64(7), 1.0)


def test_refused_arms_are_not_written(tmp_path):
    with Durable(tmp_path, lambda: CalLinUCB(2, 3)) as bandit:
        before = (tmp_path / "journal.jsonl").read_bytes()
        for change, arm in ((bandit.add_arm, 1), (bandit.add_arm, None), (bandit.remove_arm, 9)):
            with pytest.raises(CalibrlError):
                change(arm)
        assert (tmp_path / "journal.jsonl").read_bytes() == before


def test_a_line_that_cannot_be_learnt_is_named(tmp_path):
    bandit = Durable(tmp_path, lambda: CalLinUCB(2, 3))
    live(bandit, 2, seed=1)
    abandon(bandit)
    journal = tmp_path / "journal.jsonl"
    first, second, _ = journal.read_text().split("\n")
    event = json.loads(second)
    event["update"]["arm"] = [7]
    del event["crc"]
    journal.write_text(f"{first}\n{json.dumps(event)}\n")
    with pytest.raises(CalibrlError, match=r"journal.jsonl, line 2 cannot be learnt \(arm 7 was never offered"):
        Durable(tmp_path, lambda: CalLinUCB(2, 3))


# A disk that is full.


@pytest.fixture
def room():
    """Call it with a number of bytes, and no file may grow beyond; without, and there is room again."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def limit(most=before[0]):
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))

    yield limit
    limit()
    signal.signal(signal.SIGXFSZ, ignored)


def test_what_a_full_disk_refused_is_never_learnt(tmp_path, room):
    bandit = Durable(tmp_path, lambda: CalLinUCB(["a", "b"], 3))
    live(bandit, 5, seed=1)
    journal = tmp_path / "journal.jsonl"
    known, whole = bandit.policy.pulls, journal.read_bytes()
    room(len(whole) + 100)  # in the middle of the next line
    for change in (lambda: bandit.update([1.0, 0.0, 0.0], "a", 0.0), lambda: bandit.add_arm("c")):
        with pytest.raises(NotKept, match=r"journal.jsonl: cannot be written \(.*\), so nothing was learnt; make room"):
            change()
        assert journal.read_bytes() == whole
    assert bandit.policy.pulls == known
    room()
    bandit.update([1.0, 0.0, 0.0], "b", 1.0)
    abandon(bandit)
    with Durable(tmp_path, lambda: CalLinUCB(["a", "b"], 3)) as again:
        assert again.policy.pulls == known | {"b": known["b"] + 1}


def test_a_line_that_could_not_be_taken_back_is_taken_back_later(tmp_path, monkeypatch):
    bandit = Durable(tmp_path, lambda: CalLinUCB(["a"], 3))

    def broken(_):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", broken)
        patch.setattr(Journal, "_cut", broken)
        with pytest.raises(NotKept, match="Input/output error"):
            bandit.update([1.0, 0.0, 0.0], "a", 0.0)
    bandit.update([1.0, 0.0, 0.0], "a", 1.0)
    abandon(bandit)
    (line,) = (tmp_path / "journal.jsonl").read_text().splitlines()
    assert json.loads(line)["update"]["reward"] == [1.0]


def test_a_snapshot_that_fails_costs_no_reward(tmp_path, room):
    bandit = Durable(tmp_path, lambda: CalLinUCB(["a", "b"], 30), snapshot_every=3)
    generator = np.random.default_rng(0)
    room(6000)  # enough for the journal, not for a policy
    for _ in range(2):
        bandit.update(generator.standard_normal(30), "a", 1.0)
    with pytest.warns(UserWarning, match=r"policy.json: cannot be written"):
        bandit.update(generator.standard_normal(30), "a", 1.0)
    with pytest.raises(NotKept, match=r"policy.json: cannot be written"):
        bandit.snapshot()
    with pytest.warns(UserWarning, match=r"policy.json: cannot be written"):
        bandit.close()
    room()
    with Durable(tmp_path, lambda: CalLinUCB(["a", "b"], 30)) as again:
        assert again.policy.pulls == {"a": 3, "b": 0}


# Opening a folder.


def test_another_policy_than_the_folder_holds_is_refused(tmp_path):
    Durable(tmp_path, lambda: LinUCB(["a"], 3)).close()
    with pytest.raises(CalibrlError, match=r"with dim 3, calibrated False, ridge 1.0, and make\(\) .* dim 5, cal"):
        Durable(tmp_path, lambda: CalLinUCB(["a", "b"], 5, ridge=9))
    with pytest.raises(CalibrlError, match=r"with level 1.0, and make\(\) builds one with level 2.0"):
        Durable(tmp_path, lambda: LinUCB(["a"], 3, level=np.float32(2)))
    with pytest.warns(UserWarning, match="no arm 'b', which make"):
        Durable(tmp_path, lambda: LinUCB(["a", "b"], np.int64(3))).close()
    with pytest.raises(CalibrlError, match=r"make\(\) gave None"):
        Durable(tmp_path, lambda: None)
    with pytest.raises(CalibrlError, match="pass a function that builds it"):
        Durable(tmp_path, LinUCB(["a"], 3))
    with pytest.raises(CalibrlError, match="snapshot_every '9' is not a number"):
        Durable(tmp_path, lambda: LinUCB(["a"], 3), snapshot_every="9")
    Durable(tmp_path, lambda: LinUCB(["a"], 3)).close()


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CalibrlError, match=r"file: no policy can be kept there .*; give a folder"):
        Durable(tmp_path / "file", lambda: CalLinUCB(2, 3))


def test_a_folder_in_use_can_be_read(tmp_path):
    with Durable(tmp_path, lambda: CalLinUCB(["a", "b"], 3)) as bandit:
        live(bandit, 4, seed=1)
        assert Policy.load(tmp_path).pulls == bandit.policy.pulls
        assert sum(Policy.load(tmp_path / "policy.json").pulls.values()) == 0
    assert Policy.load(tmp_path / "policy.json").pulls == bandit.policy.pulls
    with pytest.raises(CalibrlError, match=r"policy.json does not exist; give .* a Durable's folder"):
        Policy.load(tmp_path.parent)


@pytest.mark.parametrize("snapshots", [1, 2])  # the second may be given the file number of the first
@pytest.mark.parametrize("function", ["events", "read"])
def test_a_snapshot_written_while_the_folder_is_read_loses_nothing(tmp_path, monkeypatch, function, snapshots):
    with Durable(tmp_path, lambda: CalLinUCB(["a", "b"], 3)) as bandit:
        live(bandit, 4, seed=1)
        read = getattr(storage, function)
        calls = []

        def meanwhile(path):
            found = read(path) if function == "read" else None
            if not calls:
                for _ in range(snapshots):
                    bandit.snapshot()
            calls.append(path)
            return found or read(path)

        monkeypatch.setattr(storage, function, meanwhile)
        assert Policy.load(tmp_path).pulls == bandit.policy.pulls
        assert len(calls) == 2


def test_a_journal_that_nothing_stands_before_is_not_thrown_away(tmp_path):
    bandit = Durable(tmp_path, lambda: CalLinUCB(2, 3))
    live(bandit, 3, seed=1)
    abandon(bandit)
    (tmp_path / "policy.json").rename(tmp_path / "elsewhere.json")
    with pytest.raises(CalibrlError, match=r"3 lines in journal.jsonl but no policy.json"):
        Durable(tmp_path, lambda: CalLinUCB(2, 3))
    (tmp_path / "elsewhere.json").rename(tmp_path / "policy.json")
    with Durable(tmp_path, lambda: CalLinUCB(2, 3)) as again:
        assert sum(again.policy.pulls.values()) == 3


def test_lines_that_are_missing_are_said(tmp_path):
    bandit = Durable(tmp_path, lambda: CalLinUCB(2, 3), snapshot_every=5)
    old = (tmp_path / "policy.json").read_bytes()
    live(bandit, 7, seed=1)
    abandon(bandit)
    (tmp_path / "policy.json").write_bytes(old)
    with (
        pytest.warns(UserWarning, match="from line 0 to line 6: what was learnt between is lost"),
        Durable(tmp_path, lambda: CalLinUCB(2, 3)) as again,
    ):
        assert sum(again.policy.pulls.values()) == 2


@pytest.mark.parametrize("tidy", [lambda folder: (folder / "journal.jsonl").rename(folder / "old"), shutil.rmtree])
def test_files_that_are_tidied_away_cost_no_reward(tmp_path, tidy):
    """Lines would go on to a file that nobody reads."""
    bandit = Durable(tmp_path / "kept", lambda: CalLinUCB(["a", "b"], 3))
    live(bandit, 3, seed=1)
    tidy(tmp_path / "kept")
    with pytest.warns(UserWarning, match=r"journal.jsonl was moved or deleted; the policy is written whole"):
        live(bandit, 1, seed=2)
    live(bandit, 2, seed=3)
    abandon(bandit)
    assert Policy.load(tmp_path / "kept").pulls == bandit.pulls
    assert sum(bandit.pulls.values()) == 6


# Sharing it.


def test_threads_lose_no_reward(tmp_path):
    """Each waits for the disk in its turn: two of the same number would be one too few when the journal is read."""
    bandit = Durable(tmp_path, lambda: CalThompson(["a", "b"], 3), snapshot_every=40)

    def work(number):
        for x in np.random.default_rng(number).standard_normal((15, 3)):
            bandit.choose(x)
            bandit.update(x, "ab"[number % 2], 1.0)
        bandit.add_arm(number)
        bandit.remove_arm(number)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    live(bandit, 3, seed=9)
    abandon(bandit)
    found = Policy.load(tmp_path)
    assert found.pulls == bandit.policy.pulls
    assert sum(found.pulls.values()) == 4 * 15 + 3
    assert json.loads((tmp_path / "journal.jsonl").read_text().splitlines()[-1])["line"] == 4 * 17 + 3


def test_decisions_do_not_wait_for_the_disk(tmp_path, monkeypatch):
    with Durable(tmp_path, lambda: CalLinUCB(2, 3)) as bandit:
        append = Journal.append

        def slow(self, event, **how):
            with ThreadPoolExecutor(1) as pool:
                assert pool.submit(bandit.choose, [1.0, 0.0, 0.0]).result(timeout=60) in (0, 1)
            append(self, event, **how)

        monkeypatch.setattr(Journal, "append", slow)
        bandit.update([1.0, 0.0, 0.0], 0, 1.0)


def test_decisions_do_not_wait_for_a_snapshot(tmp_path, monkeypatch):
    """It is made of a policy that nobody changes meanwhile, and written in pieces between which threads can run."""
    with Durable(tmp_path, lambda: CalThompson(range(50), 3), snapshot_every=5) as bandit:
        live(bandit, 4, seed=0)
        to_plain, seen = Policy.to_plain, []

        def slow(policy):
            with ThreadPoolExecutor(1) as pool:
                assert pool.submit(bandit.choose, [1.0, 0.0, 0.0]).result(timeout=60) in range(50)
            seen.append(to_plain(policy))
            return seen[-1]

        with monkeypatch.context() as patch:
            patch.setattr(Policy, "to_plain", slow)
            live(bandit, 1, seed=1)
        pieces = list(storage._pieces(seen[0]))
        assert "".join(pieces) == json.dumps(seen[0])
        assert max(map(len, pieces)) < 1500
        kept = Policy.load(tmp_path)
        # The snapshot's random stream is from before the decision that was taken while it was made.
        kept.choose([1.0, 0.0, 0.0])
        assert live(kept, 20, seed=2) == live(bandit.policy, 20, seed=2)


def test_a_fork_may_not_learn_beside_its_parent(tmp_path, monkeypatch):
    with Durable(tmp_path, lambda: CalLinUCB(2, 3)) as bandit:
        with monkeypatch.context() as fork:
            fork.setattr(os, "getpid", lambda: -1)
            with pytest.raises(CalibrlError, match="a fork; let one process learn"):
                bandit.update([1.0, 0.0, 0.0], 0, 1.0)
        assert bandit.policy.pulls == {0: 0, 1: 0}
        bandit.update([1.0, 0.0, 0.0], 0, 1.0)


def test_the_journal_stays_short(tmp_path):
    with Durable(tmp_path, lambda: CalLinUCB(2, 3, window=16), snapshot_every=10) as bandit:
        live(bandit, 95, seed=0)
        assert len((tmp_path / "journal.jsonl").read_text().splitlines()) < 10


def test_late_rewards_find_their_decision_and_repeats_do_not_count_twice(tmp_path):
    def make():
        return CalibratedUCB(["a", "b"], 2, explore=0.5)

    bandit = Durable(tmp_path, make)
    assert bandit.decide([1.0, 0.5]).arm in ("a", "b")
    with patch.object(os, "fsync", side_effect=AssertionError("decisions do not wait for the disk")):
        first = bandit.decide([1.0, 0.5], id="visit 1")
    written = (tmp_path / "journal.jsonl").read_bytes()
    assert bandit.decide([1.0, 0.5], id="visit 1") == first
    assert (tmp_path / "journal.jsonl").read_bytes() == written
    made_up = bandit.decide([0.0, 1.0], id=True)
    abandon(bandit)

    bandit = Durable(tmp_path, make)  # what was decided outlives the process
    assert [bandit.reward("visit 1", 1.0), bandit.reward("visit 1", 1.0)] == [True, False]
    abandon(bandit)

    with Durable(tmp_path, make) as bandit:
        assert bandit.reward("visit 1", 0.0) is False
        assert bandit.reward(made_up.id, 0.0) is True
        with pytest.raises(CalibrlError, match="decision 'visit 9' is unknown"):
            bandit.reward("visit 9", 1.0)
        with pytest.raises(CalibrlError, match="has had its reward"):
            bandit.decide([1.0, 0.5], id="visit 1")
    plain = make()
    plain.update([1.0, 0.5], first.arm, 1.0)
    plain.update([0.0, 1.0], made_up.arm, 0.0)
    with Durable(tmp_path, make) as bandit:
        assert bandit.pulls == plain.pulls
        np.testing.assert_allclose(bandit.policy.ridge.state.theta, plain.ridge.state.theta)


def test_a_decision_that_the_disk_refused_does_not_wait(tmp_path, room):
    with Durable(tmp_path, lambda: CalibratedUCB(2, 2)) as bandit:
        room(20)
        with pytest.raises(NotKept):
            bandit.decide([1.0, 0.0], id="visit")
        room()
        assert bandit.policy.decisions.waiting == {}
        assert bandit.reward(bandit.decide([1.0, 0.0], id="visit").id, 1.0)


def test_hundreds_of_decisions_that_wait_are_in_a_snapshot(tmp_path):
    def make():
        return CalibratedUCB(["a", "b"], 2, explore=0.5)

    with Durable(tmp_path, make) as bandit:
        made = [bandit.decide([1.0, k / 250], id=f"visit {k}") for k in range(250)]
    assert not (tmp_path / "journal.jsonl").read_bytes()
    with Durable(tmp_path, make) as bandit:
        assert [*bandit.policy.decisions.waiting] == [each.id for each in made]
        assert bandit.reward("visit 249", 1.0)
        assert bandit.pulls[made[-1].arm] == 1


def test_fading_is_kept(tmp_path):
    plain = CalLinUCB(2, 3, seed=0)
    bandit = Durable(tmp_path, lambda: CalLinUCB(2, 3, seed=0))
    for policy in (plain, bandit):
        policy.update([1.0, 0.0, 0.5], 0, 1.0)
        policy.fade(0.25)
    abandon(bandit)
    again = Policy.load(tmp_path)
    again.ridge.settle()
    plain.ridge.settle()
    for mine, theirs in zip(plain.ridge.state, again.ridge.state, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(
    "change", [{"fade": 0.5}, {"note": "x"}, {"update": None, "note": "x"}, {"line": "2"}, {"generator": None}, [1]]
)
def test_lines_that_are_no_event_are_refused(tmp_path, change):
    """With a checksum that fits. None: without that entry."""
    bandit = Durable(tmp_path, lambda: CalLinUCB(2, 3))
    live(bandit, 1, seed=1)
    abandon(bandit)
    journal = tmp_path / "journal.jsonl"
    event = json.loads(journal.read_text())
    del event["crc"]
    event = {k: v for k, v in {**event, **change}.items() if v is not None} if isinstance(change, dict) else change
    journal.write_text((seal(json.dumps(event)) if isinstance(event, dict) else json.dumps(event)) + "\n")
    with pytest.raises(CalibrlError, match=r"journal.jsonl, line 1 is damaged"):
        Policy.load(tmp_path)


def test_a_policy_there_is_no_memory_for_is_said(tmp_path, monkeypatch):
    CalLinUCB(2, 3).save(tmp_path / "policy.json")

    def unseal(_):
        raise MemoryError

    monkeypatch.setattr(storage, "unseal", unseal)
    with pytest.raises(CalibrlError, match=r"policy.json has \d+ bytes, more than there is memory for"):
        Policy.load(tmp_path / "policy.json")


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs the list of open files")
def test_a_policy_that_is_closed_leaves_no_file_open(tmp_path):
    before = len([*Path("/proc/self/fd").iterdir()])
    for _ in range(3):
        with Durable(tmp_path, lambda: CalLinUCB(2, 3)) as bandit:
            live(bandit, 1, seed=1)
    assert len([*Path("/proc/self/fd").iterdir()]) == before
