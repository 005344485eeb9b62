import errno
import os
import re
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure

from calibrl.errors import CalibrlError
from calibrl.runs.rows import FINISHED, Row, append, line, marks, read
from calibrl.runs.store import Run, Store, save_figures

FULL = Path("/dev/full")
"""Where every write finds the disk full."""
RUN = Run("dice", "", {})


def rows_of(job, *, steps=4, arm="fair"):
    return [Row("dice", "six", arm, 0, {"eyes": 3.5}, step=step, job=job) for step in range(1, steps + 1)]


ROWS = rows_of("dice")


def opened(folder, *, run=RUN, file="rows.jsonl", apart=None, **options):
    return Store(folder, run, file=file, apart=apart).open(**options)


def filled(folder, jobs=("a", "b"), **options):
    """A folder of finished jobs, each with an array."""
    with opened(folder, **options) as store:
        for job in jobs:
            for row in rows_of(job, arm=job):
                store.add(job, row)
            store.keep(job, {"name": np.array([job])})
            store.finish(job)


def test_rows_are_on_the_disk_at_once_and_a_job_is_finished_when_all_of_them_are(tmp_path, monkeypatch):
    store, order = opened(tmp_path), []
    assert [store.add("dice", row) for row in ROWS] == [True] * 4
    assert read(tmp_path / "rows.jsonl") == ROWS
    assert not store.finished("dice")

    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (order.append(Path(f"/proc/self/fd/{file}").readlink()), sync(file)))
    store.finish("dice")
    # Should the machine stop between the two, the job is run again.
    assert [path.name for path in order] == ["rows.jsonl", FINISHED]
    assert marks(tmp_path / FINISHED) == [("dice", 4, "")]
    assert store.finished("dice")
    assert store.finished("dice", until=4)
    assert not store.finished("dice", until=5)
    assert not store.finished("another")
    assert store.rows(["another", "dice"]) == ROWS
    store.close()


def test_a_row_is_written_once(tmp_path):
    with opened(tmp_path) as store:
        store.add("dice", ROWS[0])
        with pytest.raises(CalibrlError, match=r"job 'dice' gave two rows for \(.*; tell them apart by"):
            store.add("dice", ROWS[0])
        assert not store.add("dice", ROWS[0], again=True)
        assert store.add("other", ROWS[0])
    with opened(tmp_path, resume=True) as store:
        assert [store.add("dice", row) for row in ROWS] == [False, True, True, True]
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == 5


def test_one_at_a_time_has_a_folder_and_who_is_done_or_failed_lets_go(tmp_path):
    with opened(tmp_path), pytest.raises(CalibrlError, match="written to by another run; wait for it, or"):
        opened(tmp_path, resume=True)
    filled(tmp_path, force=True)
    with pytest.raises(CalibrlError, match="holds rows of this run already; --resume to go on"):
        opened(tmp_path)
    with opened(tmp_path, resume=True) as store:
        assert store.finished("a")
        store.close()  # twice is not too often
    assert not (tmp_path / "lock").exists()


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (Row("dice", "six", "fair", 0, {}, job="a", preset="loaded"), "another run (dice loaded), this one is dice;"),
        (Row("dice", "six", "fair", 0, {}, job="a", overrides={"n": 2}), "another run (dice n=2), this one is dice;"),
        (Row("coin", "six", "fair", 0, {}, job="a"), "another run (coin), this one is dice;"),
        (Row("dice", "six", "fair", 0, {}), "rows that belong to no job"),
    ],
)
@pytest.mark.parametrize("resume", [False, True])
def test_rows_of_others_are_left_alone_unless_forced(tmp_path, row, words, resume):
    append(tmp_path / "rows.jsonl", [row])
    with pytest.raises(CalibrlError, match=re.escape(words)):
        opened(tmp_path, resume=resume)
    assert read(tmp_path / "rows.jsonl") == [row]
    assert not (tmp_path / FINISHED).exists()
    with opened(tmp_path, force=True) as store:
        assert store.rows(["a", ""]) == []
    assert read(tmp_path / "rows.jsonl") == []


def test_force_forgets_rows_ends_arrays_and_the_checkpoints_of_this_run(tmp_path):
    filled(tmp_path)
    (tmp_path / "checkpoint").mkdir()
    for name in ("a.pt", "of-another.pt"):
        (tmp_path / "checkpoint" / name).touch()
    with opened(tmp_path, force=True, checkpoints=["a*.pt"]) as store:
        assert not store.finished("a")
        assert store.arrays("a") == {}
        for row in rows_of("a", arm="a"):
            assert store.add("a", row)
    assert [path.name for path in (tmp_path / "checkpoint").iterdir()] == ["of-another.pt"]
    assert marks(tmp_path / FINISHED) == []


def test_force_makes_a_folder_that_is_not_there(tmp_path):
    with opened(tmp_path / "deep" / "run", force=True) as store:
        store.add("dice", ROWS[0])
    assert read(tmp_path / "deep" / "run") == ROWS[:1]


@pytest.mark.parametrize("kind", ["pipe", "circle"])
def test_a_pipe_called_like_the_log_is_not_waited_for(tmp_path, kind):
    if kind == "pipe":
        os.mkfifo(tmp_path / FINISHED)
    else:
        (tmp_path / FINISHED).symlink_to(tmp_path / FINISHED)
    with pytest.raises(CalibrlError, match=r"finished\.log is no regular file; remove it, or choose another --out"):
        opened(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [FINISHED]


def test_a_folder_for_checkpoints_is_made_where_there_will_be_some(tmp_path):
    opened(tmp_path / "without").close()
    assert not (tmp_path / "without" / "checkpoint").exists()
    opened(tmp_path / "with", checkpoints=["*.pt"]).close()
    assert (tmp_path / "with" / "checkpoint").is_dir()


@pytest.mark.parametrize("resume", [False, True])
def test_runs_that_share_a_folder_leave_each_other_alone(tmp_path, resume):
    filled(tmp_path)
    filled(tmp_path, ["c"], apart=lambda row: row.job != "c")
    with opened(tmp_path, apart=lambda row: row.job == "c", resume=resume, force=not resume) as store:
        assert [store.finished(job) for job in "abc"] == [resume, resume, False]
        assert store.rows("abc") == [row for job in "ab" for row in rows_of(job, arm=job) if resume]
        assert [bool(store.arrays(job)) for job in "abc"] == [resume, resume, True]
        assert [row.job for row in read(tmp_path / "rows.jsonl")] == [*"aaaabbbb"] * resume + [*"cccc"]
        store.put_in_order(["b", "a"])
    order = "cba" if resume else "c"
    assert read(tmp_path / "rows.jsonl") == [row for job in order for row in rows_of(job, arm=job)]
    assert [job for job, *_ in marks(tmp_path / FINISHED)] == (["a", "b", "c"] if resume else ["c"])


def test_left_overs_are_swept_from_every_folder(tmp_path):
    filled(tmp_path, checkpoints=["*.pt"])
    left = [tmp_path / folder / ".rows.jsonl.0123abcd.tmp" for folder in (".", "arrays", "checkpoint")]
    for path in left:
        path.touch()
    opened(tmp_path, resume=True).close()
    assert not any(path.exists() for path in left)


def test_a_job_of_which_a_row_is_damaged_or_gone_is_run_again(tmp_path):
    filled(tmp_path)
    whole = (tmp_path / "rows.jsonl").read_bytes()
    (tmp_path / "rows.jsonl").write_bytes(whole.replace(b'"step": 2', b'"step": 7', 1))
    with pytest.warns(UserWarning, match="line 2: damaged row skipped") as told:
        store = opened(tmp_path, resume=True)
    with store:
        assert [store.finished(job) for job in "ab"] == [False, True]
        assert [store.add("a", row) for row in rows_of("a", arm="a")] == [False, True, False, False]
        store.finish("a")
        store.put_in_order("ab")
    assert len(told) == 1
    assert (tmp_path / "rows.jsonl").read_bytes().splitlines()[0] == whole.splitlines()[0]
    assert [(row.job, row.step) for row in read(tmp_path)] == [
        *(("a", step) for step in (1, 3, 4, 2)),
        *(("b", step) for step in (1, 2, 3, 4)),
    ]


def test_a_job_whose_array_is_damaged_or_gone_is_run_again(tmp_path):
    filled(tmp_path)
    with opened(tmp_path, resume=True) as store:
        assert [store.finished(job) for job in "ab"] == [True, True]
    first, second = (next((tmp_path / "arrays").glob(f"{job}-*.npz")) for job in "ab")
    first.write_bytes(first.read_bytes()[:-30])
    second.unlink()
    with pytest.warns(UserWarning, match=r"a-\w{6}.npz is damaged \(.*: a is run again") as told:
        store = opened(tmp_path, resume=True)
    with store:
        assert [store.finished(job) for job in "ab"] == [False, False]
        assert store.arrays("a") == store.arrays("b") == {}
    assert len(told) == 1
    assert not first.exists()


def test_arrays_that_are_pickles_are_not_read(tmp_path):
    filled(tmp_path)
    with next((tmp_path / "arrays").glob("a-*.npz")).open("wb") as file:
        np.savez(file, name=np.array([{}], object))
    with pytest.warns(UserWarning, match="a is run again"):
        store = opened(tmp_path, resume=True)
    with store:
        assert not store.finished("a")
        with pytest.raises(ValueError, match="pickle"):
            store.keep("a", {"name": np.array([{}], object)})


def test_arrays_of_another_run_are_not_unpacked(tmp_path, monkeypatch):
    """A whole file with other arrays, perhaps 2 GB of zeros in 2 MB: known by its checksum before it is opened."""
    filled(tmp_path)
    with next((tmp_path / "arrays").glob("a-*.npz")).open("wb") as file:
        np.savez_compressed(file, other=np.zeros(10))
    monkeypatch.setattr(np, "load", lambda *_, **__: pytest.fail("it was opened"))
    with pytest.warns(UserWarning, match=r"its checksum does not fit\): a is run again"):
        store = opened(tmp_path, resume=True)
    with store:
        assert [store.finished(job) for job in "ab"] == [False, True]


def test_jobs_whose_names_look_alike_as_files_have_files_of_their_own(tmp_path):
    names = ["a/b", "a b", "../a/b", "a" * 300 + "1", "a" * 300 + "2"]
    with opened(tmp_path) as store:
        for name in names:
            store.keep(name, {"name": np.array([name])})
        assert [store.arrays(name)["name"].item() for name in names] == names
        assert len(list((tmp_path / "arrays").iterdir())) == len(names)


def test_lines_cut_short_stay_lines_of_their_own(tmp_path):
    filled(tmp_path)
    for name in ("rows.jsonl", FINISHED):
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-9])
    with pytest.warns(UserWarning, match="damaged row"):
        store = opened(tmp_path, resume=True)
    with store:
        assert [store.finished(job) for job in "ab"] == [True, False]
        assert [store.add("b", row) for row in rows_of("b", arm="b")] == [False, False, False, True]
        store.finish("b")
    with pytest.warns(UserWarning, match="damaged row"):
        store = opened(tmp_path, resume=True)
    with store:
        assert [store.finished(job) for job in "ab"] == [True, True]


def test_rows_end_in_the_order_of_the_jobs_and_others_after_them(tmp_path):
    with opened(tmp_path) as store:
        for job in "cba":
            store.add(job, rows_of(job)[0])
        store.put_in_order("ab")
        # In the same place, so that later rows come after them.
        store.add("a", rows_of("a")[1])
        assert [row.job for row in read(tmp_path)] == ["a", "b", "c", "a"]
        store.put_in_order("ab")
        before = (tmp_path / "rows.jsonl").stat()
        store.put_in_order("ab")
        assert (tmp_path / "rows.jsonl").stat() == before, "written again without need"
    assert (tmp_path / "rows.jsonl").read_text() == "".join(
        line(row) for row in [*rows_of("a")[:2], rows_of("b")[0], rows_of("c")[0]]
    )


def test_names_are_kept_whatever_the_machine_s_encoding(tmp_path, monkeypatch):
    monkeypatch.setattr("locale.getencoding", lambda: "ascii")
    filled(tmp_path, ["größe"])
    with opened(tmp_path, resume=True) as store:
        assert store.finished("größe")
        store.put_in_order(["größe"])
        store.add("größe", rows_of("größe", arm="ß")[0])
    assert {row.arm for row in read(tmp_path / "rows.jsonl")} == {"größe", "ß"}


@pytest.mark.skipif(not FULL.exists(), reason="needs a device that is always full")
def test_rows_that_a_full_disk_refuses_are_told_in_one_line_and_written_later(tmp_path):
    store = opened(tmp_path)
    store.add("dice", ROWS[0])
    store._file.close()
    store._file = FULL.open("a", encoding="utf-8")
    with pytest.raises(CalibrlError, match=r"rows.jsonl: cannot be written \(No space left.*; .* make room"):
        store.add("dice", ROWS[1])
    store.close()

    store = opened(tmp_path, resume=True)
    for row in ROWS:
        store.add("dice", row)
    store._log.close()
    store._log = FULL.open("a", encoding="utf-8")
    with pytest.raises(CalibrlError, match="No space left"):
        store.finish("dice")
    store.close()

    with opened(tmp_path, resume=True) as store:
        assert not store.finished("dice")
        assert store.rows(["dice"]) == ROWS


def test_what_a_full_disk_cut_short_takes_nothing_s_place(tmp_path, monkeypatch):
    def cut_short(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with opened(tmp_path) as store:
        store.keep("dice", {"eyes": np.arange(3)})
        monkeypatch.setattr(np, "savez_compressed", cut_short)
        with pytest.raises(CalibrlError, match=r"npz: cannot be written \(No space left"):
            store.keep("dice", {"eyes": np.arange(6)})
        assert store.arrays("dice")["eyes"].tolist() == [0, 1, 2]

    figure = plt.figure(figsize=(1, 1))
    assert save_figures({"table": figure}, tmp_path, dpi=50) == [tmp_path / "table.png"]
    assert not plt.fignum_exists(figure.number)
    assert plt.imread(tmp_path / "table.png").shape[:2] == (50, 50)

    monkeypatch.setattr(Figure, "savefig", cut_short)
    (tmp_path / "table.png").write_bytes(b"as it was")
    figure = plt.figure()
    with pytest.raises(CalibrlError, match=r"table.png: cannot be written \(No space left"):
        save_figures({"table": figure}, tmp_path)
    assert (tmp_path / "table.png").read_bytes() == b"as it was"
    plt.close(figure)


@pytest.mark.parametrize("how", ["deleted", "moved"])
def test_a_folder_that_goes_while_rows_are_written_is_missed_at_once(tmp_path, how):
    with opened(tmp_path / "run") as store:
        store.add("dice", ROWS[0])
        if how == "moved":
            (tmp_path / "run").rename(tmp_path / "kept")
        else:
            (tmp_path / "run" / "rows.jsonl").unlink()
        with pytest.raises(CalibrlError, match=r"rows\.jsonl was moved or deleted while rows went to it; put it back"):
            store.add("dice", ROWS[1])
    if how == "moved":
        (tmp_path / "kept").rename(tmp_path / "run")
    with opened(tmp_path / "run", resume=how == "moved") as store:
        assert [store.add("dice", row) for row in ROWS] == [how == "deleted", True, True, True]
    assert read(tmp_path / "run") == ROWS


class Stranger:
    """Makes a folder when it is unpickled."""

    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return os.mkdir, (str(self.place),)


def test_arrays_that_were_put_there_meanwhile_run_no_code(tmp_path):
    filled(tmp_path)
    with opened(tmp_path, resume=True) as store:
        with next((tmp_path / "arrays").glob("a-*.npz")).open("wb") as file:
            np.savez(file, name=np.array([Stranger(tmp_path / "taken")], object))
        with pytest.raises(ValueError, match="pickle"):
            store.arrays("a")
    assert not (tmp_path / "taken").exists()


def test_a_job_of_one_step_is_finished_too(tmp_path):
    with opened(tmp_path) as store:
        store.add("a", Row("dice", "six", "fair", 0, {"eyes": 3.5}, job="a"))
        store.finish("a")
        assert store.finished("a")
