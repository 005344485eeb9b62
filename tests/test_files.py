import contextlib
import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import calibrl
from calibrl.__main__ import main
from calibrl.errors import CalibrlError
from calibrl.files import (
    check_regular,
    explain_os_error,
    fingerprint,
    hidden,
    in_place,
    lock,
    lock_folder,
    replacing,
    replacing_all,
    same_file,
    seal,
    sweep,
    unlock_folder,
    unseal,
    write_text,
)
from calibrl.runs.rows import Row, append


def test_a_locked_file_is_nobody_elses_until_it_is_closed(tmp_path):
    pytest.importorskip("fcntl")
    with (tmp_path / "lock").open("w") as first, (tmp_path / "lock").open("w") as second:
        assert lock(first)
        assert not lock(second)
        first.close()
        assert lock(second)


def test_a_disk_without_locks_is_taken_at_its_word(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")

    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with (tmp_path / "lock").open("w") as file:
        assert lock(file)


def test_a_full_disk_is_said_in_one_line():
    with (
        pytest.raises(CalibrlError, match=r"out.png: cannot be written \(No space left on device\)"),
        explain_os_error(Path("out.png")),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_files_are_whole_or_not_there(tmp_path):
    target = tmp_path / "file.txt"
    write_text(target, "first")

    def fail():
        with replacing(target) as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert target.read_text() == "first"
    assert list(tmp_path.iterdir()) == [target]
    assert target.stat().st_mode & 0o044


@pytest.fixture
def calls(monkeypatch):
    """The calls that put a file in its place, in order: which of them, and of what."""
    seen, names = [], {}

    def watched(module, name):
        real = getattr(module, name)

        def call(what, *rest, **options):
            found = real(what, *rest, **options)
            if name == "open":
                names[found] = Path(what).name
            else:
                seen.append((name, names[what] if name == "fsync" else Path(rest[0]).name))
            return found

        monkeypatch.setattr(module, name, call)

    for module, name in ((os, "open"), (os, "fsync"), (Path, "replace")):
        watched(module, name)
    return seen


def test_a_file_and_its_name_are_on_the_disk_when_it_is_there(tmp_path, calls):
    """The order decides: a name that is on the disk before the file's content is an empty file after a power cut."""
    write_text(tmp_path / "file.txt", "whole")
    (first, temporary), second, third = calls
    assert (first, second, third) == ("fsync", ("replace", "file.txt"), ("fsync", tmp_path.name))
    assert temporary.startswith(".file.txt.")
    assert temporary.endswith(".tmp")


def test_nothing_that_reads_files_by_suffix_sees_a_temporary_one(tmp_path):
    with replacing(tmp_path / "rows.jsonl") as temporary:
        assert temporary.suffix == ".tmp"
        assert hidden(temporary, tmp_path)
        assert not list(tmp_path.glob("*.jsonl"))


def test_files_keep_their_mode_and_new_ones_have_everybody_s(tmp_path):
    file, old = tmp_path / "file.txt", os.umask(0o027)
    try:
        write_text(file, "first")
        assert file.stat().st_mode & 0o777 == 0o640
        file.chmod(0o604)
        with replacing(file) as temporary:
            assert temporary.stat().st_mode & 0o022 == 0
            temporary.write_text("second")
    finally:
        os.umask(old)
    assert file.read_text() == "second"
    assert file.stat().st_mode & 0o777 == 0o604


@pytest.mark.parametrize("there", [True, False])
def test_several_files_are_all_replaced_or_none(tmp_path, there, monkeypatch):
    files = [tmp_path / name for name in ("a.csv", "b.csv", "taken")]
    (tmp_path / "taken").touch()
    for file in files[:2] if there else ():
        file.write_text("before")
    real = Path.replace

    def replace(path, target):
        if target.name == "taken":
            raise OSError(errno.EBUSY, "another has it")
        return real(path, target)

    monkeypatch.setattr(Path, "replace", replace)

    def write(paths):
        with replacing_all(paths) as places:
            for place in places:
                place.write_text("after")

    with pytest.raises(OSError, match="another has it"):
        write([files[0], files[2]])
    assert [file.read_text() for file in files[:1] if file.exists()] == (["before"] if there else [])
    with pytest.raises(OSError, match="another has it"):
        write(files)
    assert [file.read_text() for file in files[:2] if file.exists()] == (["before"] * 2 if there else [])
    assert {path.name for path in tmp_path.iterdir()} == ({"a.csv", "b.csv", "taken"} if there else {"taken"})
    write(files[:2])
    assert [file.read_text() for file in files[:2]] == ["after"] * 2
    assert {path.name for path in tmp_path.iterdir()} == {"a.csv", "b.csv", "taken"}


def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path):
    (tmp_path / "disk").mkdir()
    for name in ("here", "nowhere"):
        (tmp_path / name).symlink_to(Path("disk", name))
    (tmp_path / "disk" / "here").write_text("before")
    for name in ("here", "nowhere"):
        write_text(tmp_path / name, "after")
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / "disk" / name).read_text() == "after"
    assert len(list(tmp_path.iterdir())) == 3
    assert len(list((tmp_path / "disk").iterdir())) == 2


@pytest.mark.parametrize("kind", ["pipe", "circle", "folder"])
def test_what_is_no_file_is_not_replaced_by_one(tmp_path, kind):
    """Who may do anything could lose /dev/null to `--out /dev/null`."""
    target = tmp_path / "out.csv"
    {"pipe": os.mkfifo, "circle": lambda path: path.symlink_to(path), "folder": Path.mkdir}[kind](target)
    before = target.lstat()
    said = "a folder" if kind == "folder" else "no regular file"
    with pytest.raises(CalibrlError, match=rf"out\.csv is {said}; give the path of a file"):
        write_text(target, "lost")
    assert os.path.samestat(before, target.lstat())
    assert list(tmp_path.iterdir()) == [target]


def test_names_may_be_as_long_as_a_disk_takes(tmp_path):
    for name in ("l" * 251 + ".csv", "é" * 125 + ".csv", "😀" * 62 + ".csv"):
        write_text(tmp_path / name, "whole")
        assert (tmp_path / name).read_text() == "whole"


def test_a_pipe_called_lock_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "lock")
    with pytest.raises(CalibrlError, match="lock is no regular file; remove it, or choose another folder"):
        lock_folder(tmp_path)


def test_left_overs_are_swept_but_not_what_somebody_is_writing(tmp_path):
    pytest.importorskip("fcntl")
    for name in (".rows.jsonl.0123abcd.tmp", ".rows.jsonl.ab_3xyz9.jsonl", ".hidden", ".a.b.tmp", "rows.jsonl"):
        (tmp_path / name).write_text("x")
    with replacing(tmp_path / "rows.jsonl") as temporary:
        sweep(tmp_path)
        assert {path.name for path in tmp_path.iterdir()} == {".hidden", ".a.b.tmp", "rows.jsonl", temporary.name}
    sweep(tmp_path / "nowhere")


def test_a_folder_is_kept_to_one_and_its_lock_goes_with_it(tmp_path):
    pytest.importorskip("fcntl")
    first = lock_folder(tmp_path)
    waiting = (tmp_path / "lock").open()  # of somebody who opened it before it was removed
    assert lock_folder(tmp_path) is None
    unlock_folder(tmp_path, first)
    assert not list(tmp_path.iterdir())
    second = lock_folder(tmp_path)
    assert second is not None
    assert lock(waiting)  # but it is nobody's any more
    waiting.close()
    (tmp_path / "lock").unlink()
    third = lock_folder(tmp_path)
    unlock_folder(tmp_path, second)  # must not take the other's away
    assert lock_folder(tmp_path) is None
    unlock_folder(tmp_path, third)


def test_a_seal_notices_every_bit():
    text = seal('{"name": "näh", "n": [1, 2]}').encode()
    assert unseal(text + b"\n") == ({"name": "näh", "n": [1, 2]}, True)
    assert unseal(b'{"n": 1}') == ({"n": 1}, False)
    for bit in range(8 * len(text)):
        damaged = bytearray(text)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            found, sealed = unseal(bytes(damaged))
        except ValueError:
            continue
        # Where the name of the checksum itself was hit, a stranger stands beside what was said.
        assert not sealed
        assert len(found) == 3
    with pytest.raises(ValueError, match="nested too deeply"):
        unseal(b"[" * 100_000)


def test_pipes_are_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CalibrlError, match="pipe is no regular file; give another"):
        check_regular(tmp_path / "pipe", "give another")
    check_regular(tmp_path / "none", "give another")


@pytest.mark.parametrize("way", [["-m", "calibrl"], ["-c", "from calibrl.__main__ import main; main()"]])
def test_files_of_the_current_folder_are_not_run(tmp_path, way):
    """A folder that somebody else filled, with modules that are called like packages we import."""
    names = ("typer", "click", "numpy", "torch", "polars", "gymnasium", "rich", "matplotlib", "sitecustomize")
    names += ("ast", "typing", "pathlib", "json", "html", "threading", "csv")
    # What Python imports before us, for -m or as it starts, is its own affair.
    names += () if "-m" in way else ("importlib",)
    for name in names:
        (tmp_path / f"{name}.py").write_text("import pathlib; pathlib.Path('taken').touch(); raise SystemExit(7)")
    path = {"PYTHONPATH": str(Path(calibrl.__file__).parents[1]), "PYTHONSAFEPATH": "" if "-m" in way else "1"}
    done = subprocess.run(
        [sys.executable, *way, "list", "maps"], cwd=tmp_path, env=os.environ | path, capture_output=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "taken").exists()


TAKES_OVER = """
import os, pickle, sys
from pathlib import Path

class Stranger:
    def __reduce__(self):
        return os.mkdir, ("taken",)

for index in Path("cache").rglob("*.nbi"):
    index.write_bytes(pickle.dumps(Stranger()))
"""


@pytest.mark.parametrize("way", [[], ["--backend", "processes", "--workers", "1"]], ids=["here", "in a worker"])
def test_settings_of_the_current_folder_are_not_obeyed(tmp_path, way):
    """Numba unpickles its cache, and a file of the current folder may say where that is; Matplotlib's names modules."""
    place = tmp_path / "stranger"
    place.mkdir()
    (place / ".numba_config.yaml").write_text("cache_dir: cache")
    (place / "matplotlibrc").write_text("backend: module://stranger\nfigure.figsize: 1, 1")
    path = os.environ | {"PYTHONPATH": str(Path(calibrl.__file__).parents[1]), "PYTHONSAFEPATH": "1"}

    def python(*words, **given):
        words = [sys.executable, *words]
        return subprocess.run(words, cwd=place, env=path | given, capture_output=True, text=True, timeout=120)

    # As somebody would make it who knows where calibrl is installed.
    warm = python("-c", "from calibrl.bandits import CalLinUCB; CalLinUCB(['a', 'b'], 2).choose([1.0, 0.0])")
    assert warm.returncode == 0, warm.stderr
    python("-c", TAKES_OVER)
    assert list(place.rglob("*.nbi")), "Numba does what it is told here"
    words = ["bandits", "--problem", "wine", "--rounds", "10", "--trials", "1", "--out", str(tmp_path / "out")]
    done = python("-m", "calibrl", "run", *words, *way)
    assert done.returncode == 0, done.stderr
    assert not (place / "taken").exists()
    assert list((tmp_path / "out").glob("*.png"))


def test_a_terminal_that_lacks_letters_gets_other_ones(tmp_path):
    append(tmp_path / "rows.jsonl", [Row("dice", "six", "a", seed, {"eyes": 3.5}) for seed in range(3)])
    words = [sys.executable, "-m", "calibrl", "summary", str(tmp_path)]
    path = {"PYTHONPATH": str(Path(calibrl.__file__).parents[1]), "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(words, env=os.environ | path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert r"\xb1 s.e." in done.stdout


def test_names_that_are_not_utf8_are_said_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("calibrl.cli.app", lambda: write_text(tmp_path / "page.html", "b\udcff.csv"))
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().err == "calibrl: b�.csv: a file's or folder's name is not UTF-8; rename it\n"


def test_python_processes_that_libraries_start_leave_the_current_folder_alone(monkeypatch):
    seen = []
    monkeypatch.setattr("calibrl.cli.app", lambda: seen.append(os.environ["PYTHONSAFEPATH"]))
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    main()
    assert seen == ["1"]
    assert "PYTHONSAFEPATH" not in os.environ


def test_one_file_is_known_by_all_its_names(tmp_path):
    one, link, other = tmp_path / "one", tmp_path / "link", tmp_path / "other"
    link.symlink_to(one)
    assert same_file(one, link)
    one.touch()
    other.hardlink_to(one)
    assert same_file(one, other)
    circle = tmp_path / "circle"
    circle.symlink_to(circle)
    assert same_file(circle, circle)
    assert not same_file(one, circle)
    assert not same_file(one, tmp_path / "none")


def test_an_error_of_ours_keeps_its_traceback(monkeypatch):
    def fail():
        raise RuntimeError("a shape is wrong")

    monkeypatch.setattr("calibrl.cli.app", fail)
    with pytest.raises(RuntimeError, match="a shape is wrong"):
        main()


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (MemoryError(), "not enough memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"), "enough memory"),
        (RecursionError("too deep"), r"beyond what can be computed with \(too deep\)"),
        (OverflowError("too large"), r"\(too large\)"),
    ],
)
def test_what_is_too_much_ends_in_one_line(monkeypatch, capsys, problem, words):
    def fail():
        raise problem

    monkeypatch.setattr("calibrl.cli.app", fail)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(words, line)


def test_a_name_that_an_edited_file_has_twice_is_refused():
    assert unseal(b'{"a": {"b": 1}, "b": 2}') == ({"a": {"b": 1}, "b": 2}, False)
    with pytest.raises(ValueError, match="twice"):
        unseal(b'{"a": {"b": 1, "b": 2}}')


def test_a_temporary_file_that_goes_while_a_folder_is_swept_is_nobody_s_trouble(tmp_path, monkeypatch):
    for name in (".a.csv.00000000.tmp", ".b.csv.11111111.tmp"):
        (tmp_path / name).touch()
    opened = Path.open

    def gone(path, *given, **named):
        (tmp_path / ".a.csv.00000000.tmp").unlink(missing_ok=True)
        return opened(path, *given, **named)

    monkeypatch.setattr(Path, "open", gone)
    sweep(tmp_path)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("problem", [errno.EINVAL, errno.ENOTSUP, errno.EIO])
def test_a_disk_that_cannot_sync_is_no_error_but_one_that_fails_is(tmp_path, monkeypatch, problem):
    def refuse(_):
        raise OSError(problem, os.strerror(problem))

    (tmp_path / "a.txt").write_text("before")
    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="put") if problem == errno.EIO else contextlib.nullcontext():
        write_text(tmp_path / "a.txt", "after")
    assert (tmp_path / "a.txt").read_text() == ("before" if problem == errno.EIO else "after")


def test_a_file_that_takes_a_program_s_place_does_not_run_as_its_owner(tmp_path):
    """Whoever writes it may be somebody else, root perhaps."""
    (tmp_path / "a.csv").touch()
    (tmp_path / "a.csv").chmod(0o6755)
    write_text(tmp_path / "a.csv", "new")
    assert (tmp_path / "a.csv").stat().st_mode & 0o7777 == 0o755


def test_a_fingerprint_is_the_same_in_every_version(tmp_path):
    """It is kept in folders that later versions go on with."""
    (tmp_path / "a").write_text("abc")
    (tmp_path / "b").touch()
    # From FIPS 180-2, and of nothing.
    assert fingerprint(tmp_path / "a", tmp_path / "b") == "a ba7816bf8f01, b e3b0c44298fc"


def test_what_a_killed_writer_leaves_is_swept_and_its_folder_is_made(tmp_path):
    with replacing(tmp_path / "new" / "folder" / "a.csv") as temporary:
        pass
    temporary.write_text("half")  # as a kill would have left it
    sweep(temporary.parent)
    assert [path.name for path in temporary.parent.iterdir()] == ["a.csv"]


def test_a_lock_that_was_removed_as_it_was_taken_is_taken_anew(tmp_path, monkeypatch):
    pytest.importorskip("fcntl")
    waits = [tmp_path / "lock"]

    def late(file):
        """Whoever had it lets go of it just now."""
        if waits:
            waits.pop().unlink()
        return lock(file)

    monkeypatch.setattr("calibrl.files.lock", late)
    mine = lock_folder(tmp_path)
    assert in_place(tmp_path / "lock", mine)
    unlock_folder(tmp_path, mine)
