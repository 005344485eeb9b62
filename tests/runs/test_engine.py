"""Jobs with checkpoints and parts, and runs that stop in time."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from calibrl.errors import CalibrlError
from calibrl.runs.engine import Arrays, Watcher, Workers, run
from calibrl.runs.experiment import Experiment, Job, Status
from calibrl.runs.rows import Row, read
from calibrl.runs.settings import setting


@dataclass(frozen=True)
class WalkSettings:
    """Walkers that go `trials` steps."""

    name: str = "tiny"
    walkers: int = setting(3, help="walkers", decides_rows=False)
    trials: int = setting(4, help="steps", decides_rows=False)
    stride: float = setting(1.0, help="length of a step")
    together: bool = setting(True, help="whether they walk in one job", decides_rows=False)
    falls_at: int = setting(-1, help="where a walk breaks off", decides_rows=False)


def walk(trials, stride, falls_at, *, checkpoint, parts, report):
    """Walkers side by side, each step saved before it is told; those that stand further ahead wait for the others."""

    def saved(part):
        file = checkpoint / f"{part}.txt"
        return [float(line) for line in file.read_text().split()] if file.exists() else []

    def row(part, step, place):
        return Row("walk", "plain", "a", int(part.split()[1]), {"place": place}, step=step, job=part)

    places = {part: saved(part) for part in parts}
    yield [row(part, step, place) for part, known in places.items() for step, place in enumerate(known)]
    for step in range(trials):
        report(Status(f"step {step}", step / trials))
        late = [part for part in parts if len(places[part]) <= step]
        for part in late:
            places[part].append(stride * (step + 1))
            (checkpoint / f"{part}.txt").write_text(" ".join(map(str, places[part])))
        if step == falls_at:
            raise CalibrlError("fell")
        yield [row(part, step, places[part][-1]) for part in late]
    for part in parts:
        yield Arrays({"places": np.array(places[part])}, part)


def jobs(settings):
    names = [f"walker {number}" for number in range(settings.walkers)]
    groups = [tuple(names)] if settings.together else [(name,) for name in names]
    arguments = (settings.trials, settings.stride, settings.falls_at)
    return [
        Job("fleet " + group[0], walk, arguments, parts=group, checkpoint="*.txt", until=settings.trials - 1)
        for group in groups
    ]


TINY = WalkSettings()
WALK = Experiment(
    name="walk", title="Walk", question="How far?", baseline="a", presets={"tiny": TINY}, default="tiny", jobs=jobs
)


def places(rows):
    return {(row.seed, row.step): row.metrics["place"] for row in rows}


WHOLE = {(walker, step): step + 1.0 for walker in range(3) for step in range(4)}


@pytest.mark.parametrize("by", [Workers(), Workers("processes", 2)])
@pytest.mark.parametrize("together", [True, False])
def test_a_fleet_is_a_job_with_parts(tmp_path, by, together):
    found = run(WALK, replace(TINY, together=together), tmp_path, by=by)
    assert places(found.rows) == WHOLE
    assert [row.job for row in read(tmp_path)] == [f"walker {n}" for n in range(3) for _ in range(4)]
    assert found.arrays("walker 2")["places"].tolist() == [1, 2, 3, 4]
    assert sum(bool(row.origin) for row in found.rows) == 3


def test_a_job_goes_on_from_its_checkpoint_and_no_row_is_there_twice(tmp_path):
    with pytest.raises(CalibrlError, match="fell"):
        run(WALK, replace(TINY, falls_at=2), tmp_path)
    # Saved, not told: the step it fell at is told when it goes on.
    assert max(row.step for row in read(tmp_path)) == 1
    heard = Listener()
    found = run(WALK, TINY, tmp_path, resume=True, watchers=[heard])
    assert places(found.rows) == WHOLE == places(read(tmp_path))
    assert len(heard.rows) == 6, "only new rows are told"
    assert [bool(row.origin) for row in found.rows if row.seed == 0] == [True, False, True, False]


def test_fleets_may_be_put_together_differently_and_go_on_for_more_trials(tmp_path):
    run(WALK, replace(TINY, walkers=2, trials=2), tmp_path)
    found = run(WALK, replace(TINY, together=False), tmp_path, resume=True)
    assert places(found.rows) == WHOLE
    heard = Listener()
    run(WALK, TINY, tmp_path, resume=True, watchers=[heard])
    assert (heard.began, heard.rows) == ((3, 3), []), "nothing is missing: nothing is run"
    with pytest.raises(CalibrlError, match=r"another run \(walk tiny\), this one is walk tiny stride=2.0"):
        run(WALK, replace(TINY, stride=2.0), tmp_path, resume=True)


def test_force_leaves_no_checkpoint_to_go_on_from(tmp_path):
    run(WALK, TINY, tmp_path)
    (tmp_path / "checkpoint" / "sitter.dat").touch()
    found = run(WALK, replace(TINY, stride=2.0), tmp_path, force=True)
    assert (tmp_path / "checkpoint" / "sitter.dat").exists(), "another run's"
    assert places(found.rows) == {key: 2 * place for key, place in WHOLE.items()}


@pytest.mark.parametrize("by", [Workers(), Workers("processes", 1)])
def test_minutes_stop_a_run_after_a_whole_step(tmp_path, by):
    stopped = run(WALK, TINY, tmp_path, minutes=0, by=by)
    assert not stopped.finished
    for _ in range(3):
        steps = [row.step for row in read(tmp_path)]
        # A worker that is stopped may have saved some walkers' next step.
        assert by.backend == "processes" or all(steps.count(step) in (0, 3) for step in range(4)), "whole steps"
        stopped = run(WALK, TINY, tmp_path, minutes=0, by=by, resume=True)
        assert len(read(tmp_path)) > len(steps) or len(steps) == len(WHOLE), "every time it gets on"
    assert run(WALK, TINY, tmp_path, resume=True).finished
    assert places(read(tmp_path)) == WHOLE


def test_rows_of_a_run_beside_this_one_are_left_alone(tmp_path):
    sitting = replace(WALK, apart=lambda _, row: row.arm != "a")
    file = tmp_path / "rows.jsonl"
    other = Row("walk", "plain", "b", 0, {"place": 0.0}, preset="other", job="sitter")
    from calibrl.runs.rows import append

    append(file, [other])
    (tmp_path / "finished.log").write_text('{"job": "sitter", "rows": 1, "arrays": false}\n')
    run(sitting, TINY, tmp_path)
    found = run(sitting, replace(TINY, stride=3.0), tmp_path, force=True)
    rows = read(tmp_path)
    assert rows[0] == other
    assert places(rows[1:]) == places(found.rows) == {key: 3 * place for key, place in WHOLE.items()}
    assert "sitter" in (tmp_path / "finished.log").read_text()


class Listener(Watcher):
    def __init__(self):
        self.rows, self.began, self.texts = [], None, []

    def started(self, total, done):
        self.began = (total, done)

    def row(self, row):
        self.rows.append(row)

    def status(self, name, status):
        self.texts.append((name, status.text))


@pytest.mark.parametrize("by", [Workers(), Workers("processes", 1)])
def test_a_job_says_where_it_is(tmp_path, by):
    heard = Listener()
    run(WALK, TINY, tmp_path, watchers=[heard], by=by)
    assert heard.texts == [("fleet walker 0", f"step {step}") for step in range(4)]
