"""A policy that is killed in the middle, again and again, loses nothing it has acknowledged."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from calibrl import CalibrlError
from calibrl.bandits import CalLinUCB, CalThompson, Durable

SERVICE = Path(__file__).parents[2] / "examples" / "bandit_service.py"


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
    bandit._file.close()


@pytest.mark.parametrize("rounds", [0, 1, 19, 20, 21, 65])
def test_an_abandoned_folder_has_everything(tmp_path, rounds):
    bandit = Durable(tmp_path, lambda: CalThompson(3, 3), snapshot_every=20)
    live(bandit, rounds, seed=1)
    abandon(bandit)
    with Durable(tmp_path, lambda: pytest.fail("the folder is not new")) as again:
        bandit.policy.settle()
        for mine, theirs in zip(bandit.policy.state, again.policy.state, strict=True):
            np.testing.assert_array_equal(mine, theirs)
        # Even the luck goes on where it was.
        assert live(again, 50, seed=2) == live(bandit.policy, 50, seed=2)


def test_changes_of_the_arms_are_kept(tmp_path):
    bandit = Durable(tmp_path, lambda: CalLinUCB(["a", "b"], 3))
    live(bandit, 10, seed=1)
    bandit.add_arm("c")
    bandit.remove_arm("a")
    live(bandit, 10, seed=2)
    abandon(bandit)
    with Durable(tmp_path, lambda: pytest.fail("the folder is not new")) as again:
        assert again.arms == ("b", "c")
        assert again.policy.pulls == bandit.policy.pulls


def test_a_line_cut_short_was_never_acknowledged(tmp_path):
    bandit = Durable(tmp_path, lambda: CalLinUCB(2, 3))
    live(bandit, 7, seed=1)
    abandon(bandit)
    journal = tmp_path / "journal.jsonl"
    journal.write_bytes(journal.read_bytes()[:-25])
    with Durable(tmp_path, lambda: pytest.fail("the folder is not new")) as again:
        assert sum(again.policy.pulls.values()) == 6


def test_a_crash_between_snapshot_and_fresh_journal_counts_nothing_twice(tmp_path):
    bandit = Durable(tmp_path, lambda: CalLinUCB(2, 3))
    live(bandit, 7, seed=1)
    old = (tmp_path / "journal.jsonl").read_bytes()
    bandit.snapshot()
    abandon(bandit)
    (tmp_path / "journal.jsonl").write_bytes(old)
    with Durable(tmp_path, lambda: pytest.fail("the folder is not new")) as again:
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


def test_only_one_process_may_have_it_open(tmp_path):
    with Durable(tmp_path, lambda: CalLinUCB(2, 3)) as bandit:
        with pytest.raises(CalibrlError, match="open in another process"):
            Durable(tmp_path, lambda: CalLinUCB(2, 3))
        assert bandit.forecast([1.0, 0.0, 0.0]).batch_shape == (2,)
    with pytest.raises(CalibrlError, match="was closed"):
        bandit.update([1.0, 0.0, 0.0], 0, 1.0)


def test_the_journal_stays_short(tmp_path):
    with Durable(tmp_path, lambda: CalLinUCB(2, 3, window=16), snapshot_every=10) as bandit:
        live(bandit, 95, seed=0)
        assert len((tmp_path / "journal.jsonl").read_text().splitlines()) < 10


# The service example, killed.


class Service:
    """The example as a process of its own."""

    def __init__(self, folder):
        command = [sys.executable, str(SERVICE), str(folder), "--port", "0", "--snapshot-every", "15"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.url = self.process.stdout.readline().strip()

    def post(self, path, content):
        data = json.dumps(content).encode()
        with urllib.request.urlopen(urllib.request.Request(self.url + path, data), timeout=30) as answer:
            return json.load(answer)

    def kill(self, how):
        self.process.send_signal(how)
        self.process.wait(timeout=30)
        self.process.stdout.close()


@pytest.mark.skipif(os.name != "posix", reason="kill -9 is POSIX")
def test_the_service_loses_nothing_to_kill_9(tmp_path):
    generator = np.random.default_rng(0)
    rows, acknowledged = [], 0
    for life in range(2):
        service = Service(tmp_path)
        for _ in range(20):
            x = generator.standard_normal(3).tolist()
            arm = service.post("/choose", {"x": x})["arm"]
            reward = float(x[0] > 0) if arm == "news" else 0.3
            acknowledged = service.post("/reward", {"x": x, "arm": arm, "reward": reward})["learnt"]
            rows.append((x, arm, reward))
            assert acknowledged == len(rows)
        service.kill(signal.SIGKILL if life < 1 else signal.SIGINT)

    with Durable(tmp_path, lambda: pytest.fail("everything was lost")) as bandit:
        unbroken = CalLinUCB(["news", "music"], 3)
        for row in rows:
            unbroken.update(*row)
        assert bandit.policy.pulls == unbroken.pulls
        asked = generator.standard_normal(3)
        np.testing.assert_allclose(bandit.forecast(asked).mean, unbroken.forecast(asked).mean, rtol=1e-9)


@pytest.mark.skipif(os.name != "posix", reason="kill -9 is POSIX")
def test_the_service_answers_bad_requests_with_words(tmp_path):
    service = Service(tmp_path)
    try:
        assert service.post("/arms", {"add": "sport"})["arms"] == ["news", "music", "sport"]
        with pytest.raises(urllib.error.HTTPError) as failure:
            service.post("/reward", {"x": [1, 2], "arm": "news", "reward": 1})
        assert "do not fit" in json.load(failure.value)["error"]
        failure.value.close()
        with urllib.request.urlopen(service.url, timeout=30) as answer:
            assert json.load(answer)["pulls"] == {"news": 0, "music": 0, "sport": 0}
    finally:
        service.kill(signal.SIGKILL)
