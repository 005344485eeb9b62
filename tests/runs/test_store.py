import errno
import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure

from calibrl.errors import CalibrlError
from calibrl.runs.rows import Row
from calibrl.runs.store import Run, Store, save_figures

ROWS = [Row("dice", "six", "fair", seed, {"eyes": 3.5}, job="dice") for seed in range(4)]
FULL = Path("/dev/full")
"""Where every write finds the disk full."""


def opened(folder, **options):
    return Store(folder, Run("dice", "", {})).open(**options)


@pytest.mark.skipif(not FULL.exists(), reason="needs a device that is always full")
def test_rows_that_a_full_disk_refuses_are_told_in_one_line_and_written_later(tmp_path):
    store = opened(tmp_path)
    store.add("dice", ROWS[0])
    store._file.close()
    store._file = FULL.open("a", encoding="utf-8")
    with pytest.raises(CalibrlError, match=r"rows.jsonl cannot be written \(No space left.*; .* make room"):
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
        with pytest.raises(CalibrlError, match=r"npz cannot be written \(No space left"):
            store.keep("dice", {"eyes": np.arange(6)})
        assert store.arrays("dice")["eyes"].tolist() == [0, 1, 2]

    monkeypatch.setattr(Figure, "savefig", cut_short)
    (tmp_path / "table.png").write_bytes(b"as it was")
    figure = plt.figure()
    with pytest.raises(CalibrlError, match=r"table.png cannot be written \(No space left"):
        save_figures({"table": figure}, tmp_path)
    assert (tmp_path / "table.png").read_bytes() == b"as it was"
    plt.close(figure)
