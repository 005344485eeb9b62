"""Runs that were killed, runs in pieces, and files that must not be mistaken for one another."""

import contextlib
import errno
import io
import json
import os
import pickle
import random
import re
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch

from calibrl.control import checkpoint
from calibrl.control.arms import ARMS
from calibrl.control.experiment import EXPERIMENT
from calibrl.control.policy import Member, fleets
from calibrl.control.settings import PRESETS
from calibrl.errors import CalibrlError
from calibrl.runs import engine
from calibrl.runs.engine import Watcher
from calibrl.runs.rows import read
from calibrl.runs.store import Run, Store

TINY = replace(PRESETS["tiny"], steps=12, trials=3, video=False)


def run(out, settings, *, light=False, device="cpu", **options):
    """Agents side by side in this process."""
    return engine.run(EXPERIMENT, replace(settings, light=light, device=device), out, **options)


TIMED = ("acting_s", "scoring_s", "training_s")


def told(path):
    """Rows of a file without what depends on the clock."""
    rows = [json.loads(line) for line in (path / "rows.jsonl").read_text().splitlines()]
    for row in rows:
        for name in TIMED:
            row["metrics"].pop(name)
        row.pop("seconds")
        row.pop("origin")
        row.pop("crc")
    return sorted(rows, key=lambda row: (row["arm"], row["seed"], row["step"]))


# One process that has everything imported, and a fork of it for every run that is to be killed.
SCRIPT = """
import os
import sys
from pathlib import Path
import torch._dynamo
from test_checkpoint import LONGER, run

for _ in sys.stdin:
    if not os.fork():
        print(os.getpid(), flush=True)
        run(Path(sys.argv[1]), LONGER, resume=True)
        os._exit(0)
    os.wait()
"""
LONGER = replace(TINY, trials=8, steps=40)


def test_a_run_that_is_killed_ends_with_the_rows_it_would_have_had(tmp_path):
    rows = tmp_path / "killed" / "rows.jsonl"
    chance, deadline = random.Random(0), time.monotonic() + 120
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "killed")],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        run(tmp_path / "whole", LONGER)
        for _ in range(2):
            before = rows.stat().st_size if rows.exists() else 0
            print("again", file=parent.stdin, flush=True)
            running = psutil.Process(int(parent.stdout.readline()))
            while running.is_running() and not (rows.exists() and rows.stat().st_size > before):
                assert time.monotonic() < deadline, "no row came"
                time.sleep(0.01)
            time.sleep(chance.random() / 4)
            with contextlib.suppress(psutil.NoSuchProcess):
                running.kill()
            running.wait(timeout=60)
    assert rows.exists()
    run(tmp_path / "killed", LONGER, resume=True)
    assert told(tmp_path / "killed") == told(tmp_path / "whole")


ALL_ARMS = replace(
    TINY, arms=tuple(name for name in ARMS if "width" not in name), planner=replace(TINY.planner, method="icem")
)


# Whole, as what was lived through, and in turns.
@pytest.mark.parametrize("light", [[False], [True], [True, False]])
def test_a_long_run_out_of_short_pieces(tmp_path, light):
    run(tmp_path / "whole", ALL_ARMS)
    heard, pieces = Heard(), 0
    while not run(
        tmp_path / "pieces", ALL_ARMS, resume=pieces > 0, minutes=0, light=light[pieces % len(light)], watchers=[heard]
    ).finished:
        pieces += 1
        assert pieces < 100
    assert pieces > 3
    assert told(tmp_path / "pieces") == told(tmp_path / "whole")
    assert bool(heard.relearnt_trials) == any(light)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.filterwarnings("default")  # compilers have warnings of their own
def test_networks_trained_again_on_a_gpu_are_the_same(tmp_path):
    run(tmp_path / "whole", TINY, device="cuda")
    run(tmp_path / "pieces", replace(TINY, trials=2), device="cuda", light=True)
    run(tmp_path / "pieces", TINY, device="cuda", resume=True)
    assert told(tmp_path / "pieces") == told(tmp_path / "whole")


class Heard(Watcher):
    def __init__(self):
        self.relearnt_trials = []

    def status(self, name, status):
        if "again" in status.text:
            self.relearnt_trials.append(status.text)


def test_agents_without_their_networks_take_little_room(tmp_path):
    wide = replace(TINY, trials=1, ensemble=replace(TINY.ensemble, hidden=(200, 200)))
    sizes = []
    for light in (False, True):
        run(tmp_path / str(light), wide, light=light)
        sizes.append(sum(file.stat().st_size for file in (tmp_path / str(light) / "checkpoint").iterdir()))
    assert sizes[1] < sizes[0] / 20


def test_agents_learn_again_in_as_many_threads_as_they_first_did(tmp_path):
    class Counts(Watcher):
        def status(self, name, status):
            if "again" in status.text:
                seen.append(torch.get_num_threads())

    seen, before = [], torch.get_num_threads()
    run(tmp_path, replace(TINY, trials=1), light=True)
    torch.set_num_threads(2)
    try:
        run(tmp_path, replace(TINY, trials=2), light=True, resume=True, watchers=[Counts()])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert seen == [1, 1]


def test_agents_saved_in_different_ways_go_on_together(tmp_path):
    for light in (False, True):
        run(tmp_path / str(light), replace(TINY, trials=1), light=light)
    name = "checkpoint/calibrated-0.trial-1.pt"
    (tmp_path / "True" / name).replace(tmp_path / "False" / name)
    run(tmp_path / "False", TINY, resume=True)
    run(tmp_path / "whole", TINY)
    assert told(tmp_path / "False") == told(tmp_path / "whole")


@pytest.mark.parametrize("light", [False, True])
def test_agents_of_another_device_are_refused_before_anything_is_trained_again(tmp_path, light):
    run(tmp_path, replace(TINY, trials=1), light=light)
    for file in (tmp_path / "checkpoint").glob("*.pt"):
        content = torch.load(file, weights_only=True)
        content["state"]["agent"]["streams"]["planning"] = torch.zeros(16, dtype=torch.uint8)  # a GPU's
        checkpoint.keep(file, content)
    heard = Heard()
    with pytest.raises(CalibrlError, match=r"begun on another kind of device than cpu.*add --device cuda"):
        run(tmp_path, TINY, resume=True, watchers=[heard])
    assert not heard.relearnt_trials


def test_rows_that_a_crash_kept_from_the_file_come_back(tmp_path):
    run(tmp_path, replace(TINY, trials=1))
    whole = told(tmp_path)
    file = tmp_path / "rows.jsonl"
    lines = file.read_text().splitlines()
    file.write_text("\n".join(lines[:-1]) + "\n" + lines[-1][:40])
    with pytest.warns(UserWarning, match="damaged row skipped"):
        run(tmp_path, replace(TINY, trials=1), resume=True)
    file.write_text("".join(line + "\n" for line in file.read_text().splitlines() if line.endswith("}")))
    assert told(tmp_path) == whole


def test_rows_say_which_code_and_machine_began_and_went_on(tmp_path, monkeypatch):
    for trials, commit in ((1, "first"), (3, "second")):
        monkeypatch.setattr("calibrl.runs.rows._versions", lambda commit=commit: {"commit": commit})
        run(tmp_path, replace(TINY, trials=trials), resume=True)
    rows = [row for row in read(tmp_path / "rows.jsonl") if row.arm == "calibrated"]
    assert [row.origin.get("commit") for row in rows] == ["first", None, "second", None]


def test_a_run_may_be_prolonged_and_joined(tmp_path):
    run(tmp_path / "a", replace(TINY, trials=2, seeds=2))
    run(tmp_path / "b", replace(TINY, trials=1))
    run(tmp_path / "b", replace(TINY, trials=2, seeds=2), resume=True)
    assert told(tmp_path / "b") == told(tmp_path / "a")


@pytest.mark.parametrize("arms", [("calibrated", "calibrated-wary"), ("uncalibrated-all", "calibrated-fresh")])
def test_an_arm_may_be_added_later_and_goes_on_beside_the_others(tmp_path, arms):
    run(tmp_path / "whole", replace(TINY, arms=arms))
    for some, trials in ((arms[:1], 2), (arms[1:], 2), (arms, 3)):
        run(tmp_path / "added", replace(TINY, arms=some, trials=trials), resume=True)
    assert told(tmp_path / "added") == told(tmp_path / "whole")


def test_agents_go_on_from_the_last_trial_all_have_done(tmp_path):
    (members,) = fleets(["calibrated", "uncalibrated"], [0, 1])
    checkpoint.save(tmp_path, members, 3, [{"at": 3}] * 4, {"task": "t"})
    # A crash after two of four files.
    with pytest.MonkeyPatch.context() as patch:
        calls = []

        def failing(*args):
            calls.append(args)
            if len(calls) > 2:
                raise KeyboardInterrupt
            return write(*args)

        write = checkpoint.write
        patch.setattr(checkpoint, "write", failing)
        with pytest.raises(KeyboardInterrupt):
            checkpoint.save(tmp_path, members, 4, [{"at": 4}] * 4, {"task": "t"})
    assert checkpoint.together(tmp_path, members) == [(3, members)]
    assert checkpoint.load(tmp_path, members[0], 3, {"task": "t"}) == {"at": 3}
    (more,) = fleets(["calibrated", "uncalibrated"], [0, 1, 2])
    assert [(at, len(group)) for at, group in checkpoint.together(tmp_path, more)] == [(3, 4), (None, 2)]


def test_other_settings_and_damaged_files_are_refused_and_nothing_is_lost(tmp_path):
    run(tmp_path, replace(TINY, trials=1))
    before = {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()}
    wider = replace(TINY.planner, horizon=7)
    with pytest.raises(CalibrlError, match=r"another run \(control tiny steps=12\), this one is .* planner\.horizon=7"):
        run(tmp_path, replace(TINY, planner=wider), resume=True)
    with pytest.raises(CalibrlError, match=r"another run \(control tiny steps=12\), this one is .* task=reacher"):
        run(tmp_path, replace(TINY, task="reacher"), resume=True)
    with pytest.raises(CalibrlError, match="holds rows of this run already; --resume to go on with it, --force"):
        run(tmp_path, TINY)
    assert {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()} == before

    file = tmp_path / "checkpoint" / "calibrated-0.trial-1.pt"
    checkpoint.keep(file, {"format": "another", "identity": {}, "state": 0})
    with pytest.raises(CalibrlError, match="has format 'another'"):
        run(tmp_path, TINY, resume=True)


def test_a_damaged_agent_begins_anew_and_ends_with_the_same_rows(tmp_path):
    run(tmp_path / "whole", replace(TINY, trials=2))
    run(tmp_path / "cut", replace(TINY, trials=1))
    file = tmp_path / "cut" / "checkpoint" / "calibrated-0.trial-1.pt"
    whole = file.read_bytes()
    for damaged in (whole[:100], whole[:-30] + bytes([whole[-30] ^ 4]) + whole[-29:], whole[:-1]):
        file.write_bytes(damaged)
        with pytest.warns(UserWarning, match=r"calibrated-0.trial-1.pt is damaged \(.*\): what it held is done again"):
            assert checkpoint.together(file.parent, [Member(ARMS["calibrated"], 0)])[0][0] is None
        assert not file.exists()
    run(tmp_path / "cut", replace(TINY, trials=2), resume=True)
    assert told(tmp_path / "cut") == told(tmp_path / "whole")


def test_every_bit_of_an_agent_counts(tmp_path):
    file, generator = tmp_path / "agent.pt", random.Random(0)
    checkpoint.write(file, {"arm": "a"}, 1, {"weights": torch.arange(64.0)})
    sealed = file.read_bytes()
    assert torch.load(file, weights_only=True)["trial"] == 1  # anybody's torch reads it
    assert checkpoint.read(file, {"arm": "a"})["weights"].tolist() == list(range(64))
    for _ in range(200):
        place = generator.randrange(8 * len(sealed))
        damaged = bytearray(sealed)
        damaged[place // 8] ^= 1 << place % 8
        file.write_bytes(damaged)
        with pytest.raises(CalibrlError, match="cannot be read"):
            checkpoint.read(file, {"arm": "a"})


def test_two_runs_do_not_write_to_one_folder(tmp_path):
    out = tmp_path / "run"
    with (
        Store(out, Run("control", "tiny", {})).open(),
        pytest.raises(CalibrlError, match="run is being written to by another run; wait for it, or choose another"),
    ):
        run(out, replace(TINY, trials=1))
    assert len(run(out, replace(TINY, trials=1)).rows) == 4


@pytest.mark.parametrize("place", ["file", "file/run", "taken"])
def test_a_folder_that_cannot_be_is_refused_before_anything_is_computed(place, tmp_path, monkeypatch):
    monkeypatch.setattr("calibrl.control.loop.collect", lambda *_, **__: pytest.fail("something was computed"))
    (tmp_path / "file").touch()
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "checkpoint").touch()
    with pytest.raises(CalibrlError, match=r"is a file, but rows go into a folder; choose another --out"):
        run(tmp_path / place, TINY)


def test_a_full_disk_is_said_and_the_trials_before_are_kept(tmp_path, monkeypatch):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    run(whole, TINY)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    run(cut, replace(TINY, trials=1))
    for written in ("calibrl.files.os.fsync", "calibrl.runs.store.line"):
        monkeypatch.setattr(written, full)
        with pytest.raises(
            CalibrlError, match=r"cannot be written \(No space left on device\); what was written before"
        ):
            run(cut, TINY, resume=True)
        monkeypatch.undo()
    (cut / "checkpoint" / ".calibrated-0.trial-2.pt.0a1b2c3d.tmp").write_text("half of an agent")
    run(cut, TINY, resume=True)
    assert told(cut) == told(whole)
    assert {path.name for path in (cut / "checkpoint").iterdir()} == {
        path.name for path in (whole / "checkpoint").iterdir()
    }


class Stranger:
    """What runs a command where a file is unpickled without care."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("sealed", [True, False], ids=["with our checksum", "without"])
@pytest.mark.parametrize("form", ["zip", "legacy", "pickle"])
def test_no_checkpoint_runs_code(tmp_path, form, sealed):
    file, marker, bytes_ = tmp_path / "agent.pt", tmp_path / "run", io.BytesIO()
    content = {"format": checkpoint.FORMAT, "identity": {}, "state": Stranger(marker), "trial": 0}
    if form == "pickle":
        bytes_.write(pickle.dumps(content))
    else:
        torch.save(content, bytes_, _use_new_zipfile_serialization=form == "zip")
    file.write_bytes(bytes_.getvalue() + (checkpoint._seal(bytes_.getbuffer()) if sealed else b""))
    with pytest.raises(CalibrlError, match=r"agent.pt cannot be read"):
        checkpoint.read(file, {})
    assert not marker.exists()
    pickle.loads(pickle.dumps(Stranger(marker)))
    assert marker.exists(), "it would have"


def _deflated(packed):
    """The same parts, compressed: torch reads those, too, whatever they unpack to."""
    with zipfile.ZipFile(io.BytesIO(packed)) as parts, zipfile.ZipFile(again := io.BytesIO(), "w", 8) as small:
        for part in parts.infolist():
            small.writestr(part.filename, parts.read(part))
    return again.getvalue()


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (torch.zeros(1).expand(10**6, 10**6), "larger than what there is of it"),
        (torch.zeros(10).expand(2, 10), "larger than what there is of it"),
        ([{"deep": (torch.ones(3).to_sparse(),)}], "none of numbers alone"),
        (torch.zeros(2, 3, device="meta"), "none of numbers alone"),
        (torch.ones(3, requires_grad=True), "none of numbers alone"),
        ("deflated", "it unpacks to more than it holds"),
        ("legacy", "File is not a zip file"),
    ],
    ids=["stride 0", "twice", "sparse", "meta", "grad", "deflated", "legacy"],
)
@pytest.mark.filterwarnings("ignore:Sparse invariant")  # some versions of PyTorch say so before it is refused
def test_no_tensor_is_larger_than_its_file(tmp_path, state, words):
    file, content = tmp_path / "agent.pt", {"format": checkpoint.FORMAT, "identity": {}, "state": state}
    if isinstance(state, str):
        content["state"] = torch.zeros(100_000)
        torch.save(content, packed := io.BytesIO(), _use_new_zipfile_serialization=state != "legacy")
        small = packed.getvalue() if state == "legacy" else _deflated(packed.getvalue())
        file.write_bytes(small + checkpoint._seal(small))
    else:
        checkpoint.keep(file, content)
    with pytest.raises(CalibrlError, match=re.escape(words)):
        checkpoint.read(file, {})


@pytest.mark.parametrize("identity", [None, [], "x", {"planner": 3}, {"arm": torch.zeros(2)}])
def test_a_checkpoint_of_nobody_is_refused_in_one_line(tmp_path, identity):
    checkpoint.write(tmp_path / "agent.pt", identity, 1, {})
    with pytest.raises(CalibrlError, match=r"agent.pt (cannot be read|was made with)"):
        checkpoint.read(tmp_path / "agent.pt", {"arm": "a", "planner": {}})


def test_only_damaged_agents_are_dropped_and_only_other_settings_refused(tmp_path):
    file = tmp_path / "agent.pt"
    checkpoint.write(file, {"room": {"size": 3}}, 1, {"step": 7})
    assert checkpoint.drop_damaged(file) is False
    assert checkpoint.read(file, {"room": {"size": 3}}) == {"step": 7}
    for other, words in (
        ({"size": 4}, "room.size 3, this run has 4"),
        (5, "room {'size': 3}, this run has 5"),
    ):
        with pytest.raises(CalibrlError, match=re.escape(words)):
            checkpoint.read(file, {"room": other})
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.warns(UserWarning, match="agent.pt is damaged"):
        assert checkpoint.drop_damaged(file) is True
    assert not file.exists()
