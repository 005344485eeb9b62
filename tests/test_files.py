import errno
import os
from pathlib import Path

import pytest

from calibrl.errors import CalibrlError
from calibrl.files import explain_os_error, lock


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
