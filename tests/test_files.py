import errno
import os
from pathlib import Path

import pytest

from calibrl.errors import CalibrlError
from calibrl.files import explain_os_error, lock, replacing, write_text


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
        pytest.raises(CalibrlError, match=r"out.png cannot be written \(No space left on device\)"),
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
