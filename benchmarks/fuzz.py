"""Files that were damaged, mistyped or made to harm: what becomes of each, by the thousand.

    python benchmarks/fuzz.py [--share 1.0] [--seed 0] [--out results/reliability/fuzz.jsonl]

A case is *noticed* if it ends in a warning or in an error of one line; *right* if what was read is what had been
written; *used* if it is something else and nobody was told; *crashed* if it ended in a traceback. Of values that are of
the right kind but not what was written (a table's other number, a map's other slope) nobody can tell: there *used*
means that what came of them is no forecast or decision. The last two must be 0. Everything is drawn from the seed.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import dataclasses
import gzip
import hashlib
import io
import itertools
import json
import math
import os
import pickle
import random
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.request
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import polars as pl
import torch
import xlsxwriter

from calibrl.__main__ import main as main_of_calibrl
from calibrl.bandits import CalibratedUCB, CalLinUCB, Durable, Policy
from calibrl.bandits.decisions import read_log
from calibrl.control import Agent, checkpoint, task
from calibrl.control.sac import Sac, SacSettings
from calibrl.control.settings import EnsembleSettings, PlannerSettings
from calibrl.errors import CalibrlError
from calibrl.files import hidden, seal, unseal
from calibrl.inventory.problems import favorita
from calibrl.maps import MAPS, Map, fit_smooth, map_from_dict
from calibrl.maps.base import from_dict, read_checked, write_checked
from calibrl.maps.classes import CLASS_MAPS, class_map_from_dict
from calibrl.runs.rows import Row, append, origin, read
from calibrl.runs.store import Run, Store
from calibrl.shop.files import read_shop
from calibrl.tables import read_table, write_table
from calibrl.tables.forecasts import read_forecasts
from calibrl.tables.formats import WRITABLE

DATA = Path(__file__).parents[1] / "examples" / "data"
SERVICE = Path(__file__).parents[1] / "examples" / "bandit_service.py"
Case = Callable[[], bool]
"""What is done with a file; whether what came of it is right."""


def judged(case: Case) -> str:
    """What becomes of a case."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            right = case()
        except CalibrlError as problem:
            if len(str(problem).splitlines()) == 1:
                return "noticed"
            print(problem, file=sys.stderr)
            return "crashed"
        except Exception:
            traceback.print_exc()
            return "crashed"
    return "noticed" if told else "right" if right else "used"


def told(*words: Any) -> str:
    """What `calibrl` prints when it is given these words; an error of one line is raised, whatever else ends here."""
    printed, complained = io.StringIO(), io.StringIO()
    with (
        patch.object(sys, "argv", ["calibrl", *map(str, words)]),
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(complained),
    ):
        try:
            main_of_calibrl()
        except SystemExit as end:
            if end.code:
                raise CalibrlError(complained.getvalue().strip() or "an end without a word\n") from None
    return printed.getvalue() + complained.getvalue()


@contextlib.contextmanager
def deadline(seconds: int, *, computing: bool = False) -> Iterator[None]:
    """End what waits longer; or, however busy the machine is, what computes longer."""

    def late(*_: Any) -> None:
        raise TimeoutError(f"nothing happened for {seconds} s")

    alarm, clock = (signal.SIGPROF, signal.ITIMER_PROF) if computing else (signal.SIGALRM, signal.ITIMER_REAL)
    before = signal.signal(alarm, late)
    signal.setitimer(clock, seconds)
    try:
        yield
    finally:
        signal.setitimer(clock, 0)
        signal.signal(alarm, before)


# Damage.


def flipped(content: bytes, luck: random.Random) -> bytes:
    """One bit is another, or some bytes are, or the end is missing, at a line's end perhaps."""
    damaged = bytearray(content)
    way = luck.random()
    if way < 0.7:
        damaged[luck.randrange(len(damaged))] ^= 1 << luck.randrange(8)
    elif way < 0.8:
        start = luck.randrange(len(damaged))
        damaged[start : start + 16] = luck.randbytes(16)
    elif way < 0.9:
        del damaged[luck.randrange(len(damaged)) :]
    else:
        ends = [place + 1 for place, byte in enumerate(damaged[:-1]) if byte == 10] or [len(damaged) // 2]
        del damaged[luck.choice(ends) :]
    return bytes(damaged)


STRANGE: tuple[Any, ...] = (
    *(None, True, -5, 0, 2**70, 1e308, -1e308, 1e-300, math.nan, math.inf, "x", "", "\x1b[31m", [], {}, [[]], [1, "x"]),
    *([-1.0, -2.0], {"kind": "affine"}, 10**400, [[[[[[[[1]]]]]]]], 100_000, 10**12),
)


def mistaken(content: Any, luck: random.Random) -> Any:
    """JSON with one value replaced, removed, repeated or turned around."""
    found = copy.deepcopy(content)
    place, key = luck.choice(list(_places(found)))
    way = luck.random()
    if way < 0.7:
        place[key] = copy.deepcopy(luck.choice(STRANGE))
    elif way < 0.8:
        del place[key]
    elif isinstance(place[key], list) and way < 0.9:
        place[key].reverse()
    elif isinstance(place[key], list):
        place[key] += place[key][-1:]
    elif isinstance(place[key], int | float):
        place[key] = -place[key]
    else:
        place[key] = [place[key]]
    return found


def _places(content: Any) -> Iterator[tuple[Any, Any]]:
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in list(items):
        yield content, key
        yield from _places(value)


# What is damaged. Each gives cases without end.


def row_files(luck: random.Random, folder: Path) -> Iterator[Case]:
    """Rows of a run, one bit or more of the file another."""
    rows = [Row("dice", "six", arm, seed, {"eyes": 3.5 + seed}, job=arm) for arm in "ab" for seed in range(4)]
    file = folder / "rows.jsonl"
    append(file, rows)
    whole = file.read_bytes()
    (folder / "finished.log").write_text(
        "".join(seal(json.dumps({"job": j, "rows": 4, "arrays": False})) + "\n" for j in "ab")
    )

    def case() -> bool:
        file.write_bytes(flipped(whole, luck))
        return read(folder) == rows

    while True:
        yield case


def row_values(luck: random.Random, folder: Path) -> Iterator[Case]:
    """Rows with a value of another kind, their checksum right."""
    file, row = folder / "rows.jsonl", Row("dice", "six", "a", 0, {"eyes": 3.5}, settings={"n": 1})
    append(file, [row])
    plain = json.loads(file.read_text())
    del plain["crc"]

    def case() -> bool:
        file.write_text(seal(json.dumps(mistaken(plain, luck))) + "\n")
        return all(math.isfinite(v) or math.isnan(v) for one in read(file) for v in one.metrics.values())

    while True:
        yield case


def _taught(folder: Path) -> tuple[Durable, dict[Any, int]]:
    bandit = Durable(folder, lambda: CalibratedUCB(["a", "b"], 3))
    generator = np.random.default_rng(0)
    for x in generator.standard_normal((12, 3)):
        bandit.update(x, bandit.choose(x), float(generator.random()))
    for x in generator.standard_normal((3, 3)):
        decision = bandit.decide(x, id=True)
    bandit.reward(str(decision.id), 1.0)
    return bandit, bandit.pulls


def _let_go(bandit: Durable) -> None:
    """What the end of a process does."""
    bandit._lock.close()  # type: ignore[union-attr]
    bandit._journal.close()  # type: ignore[union-attr]


def _state(policy: Policy) -> str:
    return json.dumps(policy.to_plain())


def journals(luck: random.Random, folder: Path) -> Iterator[Case]:
    """The journal of a policy."""
    bandit, _ = _taught(folder)
    _let_go(bandit)
    file = folder / "journal.jsonl"
    whole, right = file.read_bytes(), _state(Policy.load(folder))

    def case() -> bool:
        file.write_bytes(flipped(whole, luck))
        return _state(Policy.load(folder)) == right

    while True:
        yield case


def policies(luck: random.Random, folder: Path) -> Iterator[Case]:
    """Saved policies."""
    bandit, _ = _taught(folder)
    bandit.close()
    file = folder / "policy.json"
    whole, right = file.read_bytes(), _state(Policy.load(file))

    def case() -> bool:
        file.write_bytes(flipped(whole, luck))
        return _state(Policy.load(file)) == right

    while True:
        yield case


def policy_values(luck: random.Random, folder: Path) -> Iterator[Case]:
    """Saved policies with a value of another kind or size, their checksum right."""
    file, generator = folder / "policy.json", np.random.default_rng(0)
    kinds = []
    for made in (CalibratedUCB(["a", "b"], 2), CalLinUCB(["a", 1], 2)):
        for x in generator.standard_normal((12, 2)):
            made.update(x, made.choose(x), float(generator.random()))
        made.save(file)
        kinds.append({name: part for name, part in json.loads(file.read_text()).items() if name != "crc"})

    def case() -> bool:
        file.write_text(seal(json.dumps(mistaken(luck.choice(kinds), luck))))
        policy = Policy.load(file)
        decision = policy.decide([0.5] * policy.ridge.settings.dim)
        return decision.arm in policy.arms and 0 < decision.probability <= 1

    while True:
        yield case


def checkpoints(luck: random.Random, folder: Path) -> Iterator[Case]:
    """An agent of control."""
    file, generator = folder / "agent.pt", torch.Generator().manual_seed(0)
    state = {"weights": torch.randn(40, 40, generator=generator), "rows": [{"return": 1.5}], "step": 7}
    checkpoint.write(file, {"arm": "a"}, 1, state)
    whole = file.read_bytes()

    def case() -> bool:
        file.write_bytes(flipped(whole, luck))
        found = checkpoint.read(file, {"arm": "a"})
        return torch.equal(found["weights"], state["weights"]) and found["rows"] == state["rows"]

    while True:
        yield case


def maps(luck: random.Random, folder: Path) -> Iterator[Case]:  # noqa: ARG001
    """Saved maps of every kind with a value of another kind, size or order."""
    generator = torch.Generator().manual_seed(0)
    pits = [torch.rand(60, generator=generator) ** 2, torch.rand(60, 2, generator=generator) ** 2]
    saved = [fit(pit).to_dict() for fit in MAPS.values() for pit in pits]
    probs = torch.softmax(torch.randn(60, 3, generator=generator), -1)
    label = torch.randint(3, (60,), generator=generator)
    classes = [fit(probs, label).to_dict() for fit in CLASS_MAPS.values()]
    z = torch.linspace(-6, 6, 101, dtype=torch.float64)

    def case() -> bool:
        if luck.random() < 0.2:
            found = class_map_from_dict(json.loads(json.dumps(mistaken(luck.choice(classes), luck))))
            # As many classes as the map has: another number is refused when it is applied.
            given = probs[:, : found.classes or 3]
            after = found(given / given.sum(-1, keepdim=True))
            return bool(after.isfinite().all()) and bool((after >= 0).all())
        mapping = map_from_dict(json.loads(json.dumps(mistaken(luck.choice(saved), luck))))
        rows = z[:, None].expand(-1, *mapping.columns) if mapping.columns else z
        return _is_map(mapping, rows)

    while True:
        yield case


def _is_map(mapping: Map, z: torch.Tensor) -> bool:
    """Whether it takes probabilities to probabilities, in order."""
    p = mapping(torch.special.ndtr(z))
    back = mapping.inverse(torch.special.ndtr(z))
    return all(bool(((q >= 0) & (q <= 1)).all()) and bool((q.diff(dim=0) >= -1e-9).all()) for q in (p, back))


def nested(luck: random.Random, folder: Path) -> Iterator[Case]:
    """Files nested a hundred thousand deep, and maps within maps."""
    file = folder / "deep.json"

    def case() -> bool:
        depth = luck.choice([1_000, 100_000])
        file.write_text(luck.choice(["[", '{"a":', '{"kind": "chain", "before": ']) * depth)
        chain: Any = {"kind": "identity", "ranks": None, "note": ""}
        for _ in range(depth if depth == 1_000 else 3_000):
            chain = {"kind": "chain", "before": chain, "after": chain, "ranks": None, "note": 0}
        load = luck.choice([Policy.load, read, lambda _: from_dict(chain)])
        found = load(file)
        return found == []

    while True:
        yield case


def formats(luck: random.Random, folder: Path) -> Iterator[Case]:
    """Tables of forecasts in other formats than CSV."""
    frame = pl.read_csv(DATA / "diabetes_past.csv").head(60)
    text = frame.write_csv()
    wholes = {"a.csv.gz": gzip.compress(text.encode(), mtime=0), "a.csv": text.encode("utf-16")}
    for name in ("a.xlsx", "a.parquet", "a.feather"):
        write_table(frame, folder / name)
        wholes[name] = (folder / name).read_bytes()

    def case() -> bool:
        name = luck.choice(list(wholes))
        (folder / name).write_bytes(flipped(wholes[name], luck))
        return bool(read_forecasts(folder / name).values.isfinite().all())

    while True:
        yield case


def bombs(luck: random.Random, folder: Path) -> Iterator[Case]:
    """Small files that unpack to more than there is memory for: 64 MB, it is made to believe."""
    table = small_files_that_ask_for_everything

    def policy(size: int) -> Path:
        CalibratedUCB(["a"], 2).save(folder / "policy.json")
        plain = json.loads((folder / "policy.json").read_text())
        del plain["crc"]
        (folder / "policy.json").write_text(seal(json.dumps(plain).replace('"dim": 2', f'"dim": {size}')))
        return folder / "policy.json"

    def case() -> bool:
        size = luck.randrange(20_000_000, 60_000_000)
        with patch("calibrl.tables.formats.memory_left", lambda: 1 << 26), deadline(60):
            if luck.random() < 0.2:
                Policy.load(policy(size))
            else:
                read_table(luck.choice(table)(folder, size))
        return False

    while True:
        yield case


def _zeros(folder: Path, size: int) -> Path:
    pl.select(x=pl.zeros(size // 2)).write_parquet(folder / "a.parquet")
    return folder / "a.parquet"


def _lists(folder: Path, size: int) -> Path:
    frame = pl.select(x=1.0, y=pl.zeros(size // 2, eager=True).implode())
    path = folder / f"lists.{'feather' if size % 2 else 'parquet'}"
    if size % 2:
        frame.write_ipc(path, compression="zstd")
    else:
        frame.write_parquet(path)
    return path


def _text(folder: Path, size: int) -> Path:
    pl.DataFrame({"x": [1.0], "y": ["-" * 2 * size]}).write_parquet(folder / "text.parquet")
    return folder / "text.parquet"


def _packed(folder: Path, size: int) -> Path:
    (folder / "a.csv.gz").write_bytes(gzip.compress(b"x\n" + b"0\n" * size, 1))
    return folder / "a.csv.gz"


def _corner(folder: Path, size: int) -> Path:
    path = folder / "corner.xlsx"
    with xlsxwriter.Workbook(path) as book:
        sheet = book.add_worksheet()
        sheet.write(0, 0, "x")
        sheet.write(size // 60, 16_000, 1)
    return path


def _changed(book: Path, path: Path, change: Callable[[str, bytes], tuple[str, bytes]]) -> Path:
    """A workbook, each part of it under the name and with the content that `change` gives it."""
    with zipfile.ZipFile(book) as before, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as after:
        for part in before.infolist():
            after.writestr(*change(part.filename, before.read(part)))
    return path


def _hidden_corner(folder: Path, size: int) -> Path:
    """The sheet is in a part whose name is not that of XML."""
    names = ("sheet1.xml", "sheet1.dat")
    return _changed(
        _corner(folder, size),
        folder / "hidden.xlsx",
        lambda name, part: (name.replace(*names), part.replace(*(each.encode() for each in names))),
    )


def _claim(folder: Path, size: int) -> Path:
    """Readers make room for as many texts as a workbook says it has."""
    claim = f'uniqueCount="{20 * size}"'.encode()
    return _changed(
        _corner(folder, 60),
        folder / "claim.xlsx",
        lambda name, part: (name, re.sub(rb'uniqueCount="\d+"', claim, part)),
    )


def _lie(folder: Path, size: int) -> Path:
    """A part says that it unpacks to its first few bytes, with their checksum; other readers go on to its end."""
    path, text = folder / "lie.xlsx", b'<?xml version="1.0"?><sst><si><t>'
    _changed(_corner(folder, 60), path, lambda name, part: (name, text + b" " * size if "Strings" in name else part))
    with zipfile.ZipFile(path) as packed:
        (part,) = (part for part in packed.infolist() if "Strings" in part.filename)
    whole = path.read_bytes()
    for of, of_fake in ((part.file_size, len(text)), (part.CRC, zlib.crc32(text))):
        whole = whole.replace(of.to_bytes(4, "little"), of_fake.to_bytes(4, "little"))
    path.write_bytes(whole)
    return path


def _records(folder: Path, size: int) -> Path:
    """A workbook in records, `.xlsb`, whose second cell is far from the first."""
    kinds = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    links = "<Relationships xmlns='http://schemas.openxmlformats.org/package/2006/relationships'>{}</Relationships>"

    def linked(kind: str, target: str) -> str:
        return links.format(f"<Relationship Id='rId1' Type='{kinds}/{kind}' Target='{target}'/>")

    def record(kind: int, *numbers: int, more: bytes = b"") -> bytes:
        content = struct.pack(f"<{len(numbers)}I", *numbers) + more
        return (bytes([kind]) if kind < 128 else bytes([kind, 1])) + bytes([len(content)]) + content

    def wide(text: str) -> bytes:
        return struct.pack("<I", len(text)) + text.encode("utf-16-le")

    book = record(131) + record(143) + record(156, 0, 1, more=wide("rId1") + wide("a")) + record(144) + record(132)
    first = record(0, 0, 0, more=bytes(17)) + record(6, 0, 0, more=wide("x"))
    last = record(0, size // 60, 0, more=bytes(17)) + record(5, 16_000, 0, more=bytes(8))
    sheet = record(129) + record(148, 0, size // 60, 0, 16_000) + record(145) + first + last + record(146) + record(130)
    path = folder / "records.xlsb"
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("_rels/.rels", linked("officeDocument", "xl/workbook.bin"))
        packed.writestr("xl/_rels/workbook.bin.rels", linked("worksheet", "worksheets/sheet1.bin"))
        packed.writestr("xl/workbook.bin", book)
        packed.writestr("xl/worksheets/sheet1.bin", sheet)
    return path


small_files_that_ask_for_everything: list[Callable[[Path, int], Path]] = [
    *(_zeros, _lists, _text, _packed, _corner),
    *(_hidden_corner, _claim, _lie, _records),
]


def long_texts(luck: random.Random, folder: Path) -> Iterator[Case]:
    """Names and cells of many letters of a kind, which a search with the wrong pattern goes over again and again."""
    past, sales = ((DATA / name).read_text().splitlines() for name in ("diabetes_past.csv", "sales.csv"))
    (folder / "few.csv").write_text("\n".join(sales[:200]))
    told("order", "--sales", folder / "few.csv", "--out", folder / "out.csv")  # its kernels are compiled

    def case() -> bool:
        some = luck.choice(["1", " ", "0.", "_", "_1", "aA", "-", "%", "(", "a ", "\u0301", ";", '""', "=", "+1"])
        text = luck.choice(["", "x", "q_", "p"]) + some * luck.randrange(30_000) + luck.choice(["", "x", "a1", "%"])
        lines, words = luck.choice(
            [(past, ["check"]), (sales[:200], ["order", "--out", folder / "out.csv", "--sales"])]
        )
        head = f"{lines[0]},{text}" if luck.random() < 0.5 else f"{lines[0]},more"
        cells = f"{lines[1]},{text}" if head.endswith(",more") else f"{lines[1]},1"
        (folder / "long.csv").write_text("\n".join([head, cells, *(f"{line},1" for line in lines[2:])]))
        if luck.random() < 0.2:
            (folder / "long.csv").write_text(f"a  b\n1{text}  2\n" * 3)
        with deadline(20, computing=True):
            return bool(told(*words, folder / "long.csv"))

    while True:
        yield case


def shown_rows(luck: random.Random, folder: Path) -> Iterator[Case]:
    """Rows of every experiment with values of another kind, their checksum right, shown by every command that can."""
    published, file = DATA.parents[1] / "results", folder / "rows.jsonl"
    kinds = {}
    for name in ("bandits/long", "core/demo", "mdp/rows", "control/cartpole", "inventory/later", "safety/rows"):
        with (published / f"{name}.jsonl").open() as lines:
            kinds[name.split("/")[0]] = [unseal(line.encode())[0] for line in itertools.islice(lines, 40)]

    def case() -> bool:
        name = luck.choice(list(kinds))
        rows = [*kinds[name]]
        for at in luck.sample(range(len(rows)), 2):
            rows[at] = mistaken(rows[at], luck)
        file.write_text("".join(seal(json.dumps(row)) + "\n" for row in rows))
        shown = ["run", name, "--rows", folder, "--out", folder / "out"]
        with deadline(60):
            return bool(told(*luck.choice([["summary", folder], ["report", folder], shown, shown])))

    while True:
        yield case


def map_files(luck: random.Random, folder: Path) -> Iterator[Case]:
    """Files of `calibrl fit` with a value of another kind, their checksum right; what they make of forecasts."""
    saved = []
    for name, group in (("diabetes", []), ("digits", []), ("diabetes", ["--group", "sex"])):
        told("fit", DATA / f"{name}_past.csv", "--out", folder / "map.json", *group)
        saved.append((DATA / f"{name}_new.csv", read_checked(folder / "map.json")))

    def case() -> bool:
        new, content = luck.choice(saved)
        try:
            write_checked(folder / "map.json", mistaken(content, luck))
        except ValueError:  # a number that JSON cannot hold
            raise CalibrlError("cannot be written") from None
        told("apply", folder / "map.json", new, "--out", folder / "out.csv")
        return bool(np.isfinite(pl.read_csv(folder / "out.csv").select(pl.col(pl.Float64)).to_numpy()).all())

    while True:
        yield case


def logs(luck: random.Random, folder: Path) -> Iterator[Case]:
    """Logs of a bandit's decisions."""
    generator = np.random.default_rng(0)
    lines = ["id,x0,x1,arm,reward,propensity"]
    lines += [
        f"{i},{x[0]:.3f},{x[1]:.3f},{'ab'[i % 2]},{x[0] > 0:d},0.5" for i, x in enumerate(generator.random((80, 2)))
    ]
    whole = "\n".join(lines).encode()

    def case() -> bool:
        (folder / "log.csv").write_bytes(flipped(whole, luck))
        log = read_log(folder / "log.csv")
        return bool(np.isfinite(log.x).all() and np.isfinite(log.reward).all() and (log.propensity > 0).all())

    while True:
        yield case


def kaggle_files(luck: random.Random, folder: Path) -> Iterator[Case]:
    """Sales as Kaggle has them, and what is known of days, items and stores."""
    days = [str(np.datetime64("2016-01-01") + day) for day in range(30)]
    lines = [f"{k},{day},{7 + k % 2},{1 + k % 3},{10.5 * k},{k % 5 == 0}" for k, day in enumerate(days * 3)]
    whole = {
        "train.csv": ["id,date,store_nbr,item_nbr,unit_sales,onpromotion", *lines],
        "items.csv": ["item_nbr,family", "1,BREAD", "2,PRODUCE", "3,BREAD"],
        "stores.csv": ["store_nbr,city,state", "7,Quito,P", "8,Loja,L"],
        "holidays_events.csv": [
            "date,type,locale,locale_name,description,transferred",
            "2016-01-02,Holiday,National,Ecuador,a,False",
            "2016-01-03,Holiday,Local,Loja,b,False",
        ],
    }

    def case() -> bool:
        chosen = luck.choice(list(whole))
        for name, text in whole.items():
            content = "\n".join(text).encode()
            (folder / name).write_bytes(flipped(content, luck) if name == chosen else content)
        found = favorita(folder, items=2)
        return not np.isinf(found.units).any() and bool((np.nan_to_num(found.units) >= 0).all())

    while True:
        yield case


def learners(luck: random.Random, folder: Path) -> Iterator[Case]:
    """A saved learner of Stable-Baselines3 with a value of another kind or size, its checksum right."""
    file = folder / "sac.pt"
    settings = SacSettings(learning_starts=20, hidden=(8,), batch_size=8)
    learner = Sac(task("cartpole"), steps=20, seed=0, settings=settings)
    learner.save(file)
    content = checkpoint.unpack(file)

    def case() -> bool:
        part = luck.choice(list(content))
        changed = {**content, **mistaken({part: content[part]}, luck)}
        if luck.random() < 0.3:
            networks = copy.deepcopy(content["networks"])
            name = luck.choice(list(networks["policy"]))
            networks["policy"][name] = luck.choice(NO_TENSORS)(networks["policy"][name].float())
            changed = {**content, "networks": networks}
        checkpoint.keep(file, changed)
        learner.load(file)
        return all(bool(one.isfinite().all()) for one in learner._model.policy.state_dict().values())

    while True:
        yield case


# What is no file, or not the one that is meant.


def commands(folder: Path, name: str) -> list[list[Any]]:
    """Every command that reads a file, told to read this one."""
    file, out = folder / name, folder / "out"
    past = DATA / "diabetes_past.csv"
    figure = ["report", folder] if name.endswith(".png") else ["report", file, "--out", out / "page.html"]
    shop = [["--sales", file], *(["--sales", DATA / "sales.csv", what, file] for what in ("--items", "--stock"))]
    return [
        ["check", file],
        ["check", past, "--map", file],
        ["fit", file, "--out", out / "map.json"],
        ["apply", folder / "map.json", file, "--out", out / "new.csv"],
        ["apply", file, past, "--out", out / "new.csv"],
        *(["order", "--out", out / "orders.csv", *sales] for sales in shop),
        ["bandit", "evaluate", file],
        ["bandit", "evaluate", folder / "log.csv", "--load", file],
        ["run", "bandits", "--data", file, "--label", "y", "--out", out / "run"],
        ["run", "bandits", "--log", file, "--out", out / "run"],
        ["run", "bandits", "--rows", file, "--out", out / "run"],
        ["run", "inventory", "--sales", file, "--out", out / "run"],
        ["run", "inventory", "--sales", DATA / "sales.csv", "--items", file, "--out", out / "run"],
        ["summary", file],
        figure,
    ]


def no_files(luck: random.Random, folder: Path) -> Iterator[Case]:
    """Pipes, devices, folders, links that lead nowhere or in a circle, and files that are not there."""
    told("fit", DATA / "diabetes_past.csv", "--out", folder / "map.json")
    (folder / "log.csv").write_text("x0,arm,reward,propensity\n" + "0.5,a,1,0.5\n0.1,b,0,0.5\n" * 20)

    def case() -> bool:
        name = luck.choice(["a.csv", "a.parquet", "a.xlsx", "a.csv.gz", "a.jsonl", "a.json"])
        file = folder / name
        way = luck.choice(["pipe", "device", "folder", "nowhere", "circle", "none"])
        if way == "pipe":
            os.mkfifo(file)
        elif way == "folder":
            file.mkdir()
        elif way != "none":
            file.symlink_to({"device": "/dev/zero", "nowhere": folder / "gone", "circle": file}[way])
        words = luck.choice(commands(folder, name))
        try:
            with deadline(60):
                said = told(*words)
        finally:
            if file.is_dir() and not file.is_symlink():
                file.rmdir()
            else:
                file.unlink(missing_ok=True)
        return "0 rows" in said or "no rows" in said  # of an empty folder

    while True:
        yield case


def no_targets(luck: random.Random, folder: Path) -> Iterator[Case]:
    """Pipes, devices, folders and circles to write to, and in the place of a run's or a policy's own files."""
    told("fit", DATA / "diabetes_past.csv", "--out", folder / "map.json")
    past, number = DATA / "diabetes_past.csv", 0

    def case() -> bool:
        nonlocal number
        number += 1
        place = folder / str(number)
        place.mkdir()
        ways: list[tuple[str, Callable[[Path], object]]] = [
            ("map.json", lambda file: told("fit", past, "--out", file)),
            ("new.csv", lambda file: told("apply", folder / "map.json", past, "--out", file)),
            ("new.xlsx", lambda file: told("apply", folder / "map.json", past, "--out", file)),
            ("page.html", lambda file: told("check", past, "--html", file)),
            ("plot.png", lambda file: told("check", past, "--plot", file)),
            *((name, lambda file: told("run", "mdp", "--preset", "tiny", "--out", file.parent)) for name in RUNS_OWN),
            *((name, lambda file: Durable(file.parent, lambda: CalLinUCB(["a"], 2))) for name in POLICY_S_OWN),
        ]
        name, write = luck.choice(ways)
        file = place / name
        kind = luck.choice(["pipe", "folder", "circle", "device"])
        if kind == "pipe":
            os.mkfifo(file)
        elif kind == "folder":
            file.mkdir()
        else:
            file.symlink_to(file if kind == "circle" else "/dev/full")
        before = file.lstat()
        try:
            with deadline(60):
                write(file)
        finally:
            if not os.path.samestat(before, file.lstat()):
                raise RuntimeError(f"{name} is another")
        return False

    while True:
        yield case


RUNS_OWN = ("lock", "finished.log", "rows.jsonl")
POLICY_S_OWN = ("lock", "journal.jsonl", "journal.last", "policy.json")


def patterns(luck: random.Random, folder: Path) -> Iterator[Case]:
    """Names that look like patterns, beside files that the pattern would fit."""
    told("fit", DATA / "diabetes_past.csv", "--out", folder / "map.json")
    (folder / "log.csv").write_text("x0,arm,reward,propensity\n" + "0.5,a,1,0.5\n0.1,b,0,0.5\n" * 20)

    def case() -> bool:
        name, decoy = luck.choice([("a[1]", "a1"), ("a?", "ab"), ("*", "b"), ("a[!b]", "ac"), ("{a,b}", "a")])
        suffix = luck.choice([".csv", ".parquet", ".feather", ".jsonl", ".json"])
        words = luck.choice(commands(folder, name + suffix))
        for source in (DATA / "diabetes_past.csv", DATA / "sales.csv", folder / "map.json", folder / "log.csv"):
            (folder / (decoy + suffix)).write_bytes(source.read_bytes())
            try:
                with deadline(60):
                    told(*words)
                return False  # it read the other one
            except CalibrlError as problem:
                last = problem
            finally:
                (folder / (decoy + suffix)).unlink()
        raise last

    while True:
        yield case


# Disks, clocks, and other processes.


@contextlib.contextmanager
def room_for(size: int) -> Iterator[None]:
    """No file may grow beyond so many bytes, as on a disk that is full."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def full_disks(luck: random.Random, folder: Path) -> Iterator[Case]:
    """Files of every kind, written anew where there is no room for them: they stay as they were."""
    frame = pl.DataFrame({"x": np.random.default_rng(0).random(2000), "y": ["text"] * 2000})
    mapping = fit_smooth(torch.rand(400, generator=torch.Generator().manual_seed(0)))
    policy = CalibratedUCB(list("abcdef"), 9)
    writers: dict[str, Callable[[Path], object]] = {
        **{f"a{suffix}": lambda path: write_table(frame, path) for suffix in WRITABLE},
        "map.json": mapping.save,
        "policy.json": policy.save,
        "agent.pt": lambda path: checkpoint.write(path, {}, 1, {"weights": torch.randn(40, 40)}),
        "out.csv": lambda path: told("apply", folder / "fit.json", DATA / "diabetes_past.csv", "--out", path),
    }
    told("fit", DATA / "diabetes_past.csv", "--out", folder / "fit.json")

    def case() -> bool:
        name = luck.choice(list(writers))
        before = (folder / name).read_bytes() if (folder / name).exists() else None
        try:
            with room_for(luck.randrange(1, 4000)):
                writers[name](folder / name)
        except CalibrlError:
            if before != ((folder / name).read_bytes() if (folder / name).exists() else None):
                raise RuntimeError(f"{name} was changed") from None
            raise
        finally:
            if any(path.suffix == ".tmp" for path in folder.iterdir()):
                raise RuntimeError("something was left behind")
        return (folder / name).stat().st_size < 4000

    for name, write in writers.items():
        if luck.random() < 0.5:
            write(folder / name)
    while True:
        yield case


def full_journals(luck: random.Random, folder: Path) -> Iterator[Case]:
    """A policy and a run whose disk is full now and then: what was acknowledged is there, nothing else is."""
    bandit, learnt = Durable(folder / "policy", lambda: CalLinUCB(["a", "b"], 2), snapshot_every=7), 0
    rows, number = Store(folder / "run", Run("dice", "", {})).open(), 0
    files = [folder / "policy" / "journal.jsonl", folder / "run" / "rows.jsonl"]

    def case() -> bool:
        nonlocal learnt, number
        row = Row("dice", "six", "a", number, {"eyes": 1.0}, job="a")
        try:
            with room_for(max(file.stat().st_size for file in files) + luck.randrange(600)):
                bandit.update([0.5, luck.random()], "a", 1.0)
                learnt += 1
                rows.add("a", row)
                number += 1
        finally:
            if sum(Policy.load(folder / "policy").pulls.values()) != learnt or len(_whole_rows(files[1])) != number:
                raise RuntimeError("what was acknowledged is not what is there")
        return True

    with bandit, rows:
        while True:
            yield case


def _whole_rows(file: Path) -> list[Row]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return read(file)


def clocks(luck: random.Random, folder: Path) -> Iterator[Case]:
    """Policies and runs whose clock, and whose files' dates, jump back and forth."""
    number = 0

    def case() -> bool:
        nonlocal number
        with patch.object(time, "time", lambda: luck.uniform(0, 4e9)):
            with Durable(folder / "policy", lambda: CalLinUCB(["a", "b"], 2), snapshot_every=3) as bandit:
                for _ in range(5):
                    bandit.update([0.5, luck.random()], "a", 1.0)
                    for file in (folder / "policy").iterdir():
                        os.utime(file, (luck.uniform(0, 4e9),) * 2)
            with Store(folder / "run", Run("dice", "", {})).open(resume=True) as rows:
                rows.add("a", Row("dice", "six", "a", number, {"eyes": 1.0}, job="a", origin=origin("dice")))
                rows.finish("a")
            os.utime(folder / "run" / "rows.jsonl", (luck.uniform(0, 4e9),) * 2)
        number += 1
        return sum(Policy.load(folder / "policy").pulls.values()) == 5 * number and len(read(folder / "run")) == number

    while True:
        yield case


HOLD = """
import sys
from pathlib import Path
from calibrl.bandits import CalLinUCB, Durable
from calibrl.runs.store import Run, Store
folder, kind = sys.argv[1:]
if kind == "policy":
    held = Durable(folder, lambda: CalLinUCB(["a"], 2))
else:
    held = Store(Path(folder), Run("dice", "", {})).open()
print("held", flush=True)
sys.stdin.read()
"""


def neighbours(luck: random.Random, folder: Path) -> Iterator[Case]:
    """A folder that another process writes to, as a policy or as a run, opened as either."""
    with contextlib.ExitStack() as stack:
        for kind in ("policy", "run"):
            words = [sys.executable, "-c", HOLD, str(folder / kind), kind]
            other = stack.enter_context(subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            stack.callback(other.kill)
            assert other.stdout is not None
            other.stdout.readline()

        def case() -> bool:
            place = folder / luck.choice(["policy", "run"])
            way = luck.randrange(4)
            if way == 0:
                Durable(place, lambda: CalLinUCB(["a"], 2))
            elif way == 1:
                Store(place, Run("dice", "", {})).open(resume=luck.random() < 0.5, force=luck.random() < 0.5)
            else:
                told(
                    "run", luck.choice(["core", "bandits", "mdp"]), "--out", place, luck.choice(["--force", "--resume"])
                )
            return False

        while True:
            yield case


NO_TENSORS: tuple[Callable[[torch.Tensor], Any], ...] = (
    lambda part: part * math.nan,
    lambda part: part.to_sparse(),
    lambda part: part.to("meta"),
    lambda part: part.half(),
    lambda part: part.flatten()[:0],
    lambda _: torch.zeros(1).expand(10**6, 10**6),
    lambda part: -part.abs() * 1e300,
    lambda part: part.clone().requires_grad_(),
    lambda part: torch.atleast_1d(part).flip(0),
    lambda part: [part],
)
"""Tensors that no agent has: of other kinds and sizes, and some that ask for terabytes."""


def agents(luck: random.Random, folder: Path) -> Iterator[Case]:
    """A saved agent of control with a value of another kind or size, its checksum right."""
    agent = Agent(
        task("cartpole"),
        ensemble=EnsembleSettings(members=2, hidden=(8,), weight_decay=(1e-4,), epochs=1),
        planner=PlannerSettings(horizon=3, population_size=8, elites=2, iterations=2, particles=2),
    )
    file, generator = folder / "agent.pt", np.random.default_rng(0)
    for _ in range(40):
        agent.observe(generator.random(4), generator.random(1), generator.random(4))
    agent.update()
    agent.save(file)
    content = checkpoint.unpack(file)

    def case() -> bool:
        # Any part as often as any other: most of the numbers are a map's.
        part = luck.choice(list(content["state"]))
        state = {**content["state"], **mistaken({part: content["state"][part]}, luck)}
        if isinstance(state.get(part), torch.Tensor) and luck.random() < 0.7:
            state[part] = luck.choice(NO_TENSORS)(state[part].float())
        checkpoint.keep(file, {**content, "state": state})
        agent.load(file)
        return bool(np.isfinite(agent.act(np.zeros(4))).all())

    while True:
        yield case


def tables(luck: random.Random, folder: Path) -> Iterator[Case]:
    """Tables of forecasts."""
    sources = [path.read_bytes()[:6000] for path in (DATA / "diabetes_past.csv", DATA / "digits_past.csv")]

    def case() -> bool:
        file = folder / f"table{luck.choice(['.csv', '.tsv', '.csv', '.parquet'])}"
        content = luck.choice(sources)
        for _ in range(luck.randrange(1, 4)):
            content = flipped(content, luck)
            if not content:
                break
        file.write_bytes(content)
        return bool(read_forecasts(file).values.isfinite().all())

    while True:
        yield case


def order_files(luck: random.Random, folder: Path) -> Iterator[Case]:
    """A shop's sales and items."""
    head = b"".join((DATA / "sales.csv").read_bytes().splitlines(keepends=True)[:300])
    items = (DATA / "items.csv").read_bytes()

    def case() -> bool:
        first = luck.random() < 0.5
        (folder / "sales.csv").write_bytes(flipped(head, luck) if first else head)
        (folder / "items.csv").write_bytes(items if first else flipped(items, luck))
        return len(read_shop(folder / "sales.csv", items=folder / "items.csv").rules) > 0

    while True:
        yield case


class Stranger:
    """Makes a folder where it is unpickled without care."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)


def strangers(luck: random.Random, folder: Path) -> Iterator[Case]:
    """Checkpoints and arrays that run code when they are unpickled."""
    file, marker = folder / "agent.pt", folder / "taken"

    def case() -> bool:
        content, packed = {"format": checkpoint.FORMAT, "identity": {}, "state": Stranger(marker)}, io.BytesIO()
        way = luck.choice(["zip", "legacy", "pickle", "array"])
        if way == "array":
            np.savez(packed, np.array([Stranger(marker)], object))
        elif way == "pickle":
            packed.write(pickle.dumps(content))
        else:
            torch.save(content, packed, _use_new_zipfile_serialization=way == "zip")
        file.write_bytes(packed.getvalue() + (checkpoint._seal(packed.getbuffer()) if luck.random() < 0.5 else b""))
        try:
            checkpoint.read(file, {})
        finally:
            if marker.exists():
                marker.rmdir()
                raise RuntimeError("a stranger's code was run")
        return False

    while True:
        yield case


SHADOWED = (
    *("typer", "click", "rich", "numpy", "torch", "polars", "scipy", "sklearn", "numba", "matplotlib", "gymnasium"),
    *("ast", "typing", "pathlib", "json", "csv", "html", "threading", "socket", "struct", "random", "sitecustomize"),
)
"""Names of modules that commands import, their own and Python's."""


def strange_folders(luck: random.Random, folder: Path) -> Iterator[Case]:
    """Every command, in a folder whose files are called like modules that it imports."""
    place = folder / "stranger"
    place.mkdir()
    for name in SHADOWED:
        (place / f"{name}.py").write_text("import os; os.mkdir('taken'); raise SystemExit(7)")
    # Settings that Matplotlib and Numba would obey; the cache that they name holds code where kernels look for theirs.
    (place / "matplotlibrc").write_text("backend: module://stranger")
    (place / ".numba_config.yaml").write_text("cache_dir: cache")
    kernels = DATA.parents[1] / "calibrl" / "kernels"
    cache = place / "cache" / f"kernels_{hashlib.sha1(str(kernels).encode()).hexdigest()}"
    cache.mkdir(parents=True)
    for index in (kernels / "__pycache__").glob("*.nbi"):
        (cache / index.name).write_bytes(pickle.dumps(Stranger(place / "taken")))
    told("fit", DATA / "diabetes_past.csv", "--out", folder / "map.json")
    told("check", DATA / "diabetes_past.csv", "--map", folder / "map.json")
    past, sales, rows = DATA / "diabetes_past.csv", DATA / "sales.csv", DATA.parents[1] / "results" / "reliability"
    made = [
        ["check", past, "--html", folder / "a.html"],
        ["fit", past, "--out", folder / "b.json"],
        ["apply", folder / "map.json", past, "--out", folder / "c.xlsx"],
        ["order", "--sales", sales, "--out", folder / "d.csv", "--plot", folder / "d.png"],
        ["summary", rows],
        ["run", "core", "--seeds", "2", "--minutes", "0.001", "--backend", "processes", "--out", folder / "e"],
        ["run", "control", "--preset", "tiny", "--minutes", "0.001", "--out", folder / "f"],
        ["report", folder / "e"],
        ["list", "maps"],
        ["show", "bandits/small"],
    ]
    turn = itertools.cycle(luck.sample(made[:-3], len(made) - 3) + made[-3:])

    def case() -> bool:
        words = [sys.executable, "-m", "calibrl", *map(str, next(turn))]
        path = {"PYTHONPATH": str(DATA.parents[1])}
        done = subprocess.run(words, cwd=place, env=os.environ | path, capture_output=True, text=True, timeout=300)
        if (place / "taken").exists():
            (place / "taken").rmdir()
            raise RuntimeError(f"{words[3:]}: a stranger's code was run")
        if done.returncode:
            raise RuntimeError(f"{words[3:]}: {done.stderr}")
        return True

    while True:
        yield case


ZYGOTE = """
import json, os, signal, sys
import matplotlib.pyplot, numba, scipy.stats, torch
import calibrl.runs.engine, calibrl.shop.orders, calibrl.tables.commands
from calibrl.__main__ import main

def life(words, at):
    count, sync, me = 0, os.fsync, os.getpid()
    def operation(event, *_):
        nonlocal count
        if event in ("open", "os.rename", "os.remove", "os.mkdir", "os.chmod", "sync") and os.getpid() == me:
            count += 1
            if count == at:
                os.kill(me, signal.SIGKILL)
    sys.addaudithook(operation)
    os.fsync = lambda file: (operation("sync"), sync(file))[1]
    sys.argv = ["calibrl", *words]
    try:
        main()
    except SystemExit as end:
        return end.code or 0
    return 0

answer = os.dup(1)
for line in sys.stdin:
    words, at, folder = json.loads(line)
    child = os.fork()
    if child == 0:
        os.setsid()
        os.chdir(folder)
        os.dup2(os.open("said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
        os.dup2(1, 2)
        code = 70
        try:
            code = life(words, at)
        finally:
            sys.stdout.flush()
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.write(answer, json.dumps(code).encode() + b"\\n")
"""
"""Runs commands in forks of itself, each killed at one of its file operations, or not at all."""


@contextlib.contextmanager
def zygote() -> Iterator[Callable[..., int]]:
    """A function that runs `calibrl` with some words in a folder, killed at an operation; its exit status."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", ZYGOTE], env=os.environ | {"MPLBACKEND": "Agg"}, **pipes) as parent:  # type: ignore[call-overload]

        def life(words: list[Any], folder: Path, at: int = 0) -> int:
            parent.stdin.write(json.dumps([[*map(str, words)], at, str(folder)]) + "\n")
            parent.stdin.flush()
            with deadline(300):
                code = int(parent.stdout.readline())
            if code not in (0, -signal.SIGKILL):
                raise RuntimeError(f"{words}: {(folder / 'said').read_text()}")
            return code

        try:
            yield life
        finally:
            parent.kill()


def _seen(folder: Path) -> dict[str, bytes]:
    """The files in a folder that readers see."""
    files = (path for path in folder.rglob("*") if path.is_file() and not hidden(path, folder))
    # Without the time of day, which pages say.
    return {
        str(path.relative_to(folder)): re.sub(rb"\d\d:\d\d", b"", path.read_bytes())
        for path in files
        if path.name != "said"
    }


def file_kills(luck: random.Random, folder: Path) -> Iterator[Case]:
    """Commands that write files, killed anywhere: each file is as it was or as it will be, and nothing else is seen."""
    made, place = folder / "made", folder / "place"
    made.mkdir()
    told("fit", DATA / "diabetes_past.csv", "--out", folder / "map.json")
    outs: list[tuple[int, list[Any]]] = [
        (10, ["apply", folder / "map.json", DATA / "diabetes_new.csv", "--out", "a.csv"]),
        (10, ["apply", folder / "map.json", DATA / "diabetes_new.csv", "--out", "a.parquet"]),
        (40, ["check", DATA / "diabetes_past.csv", "--html", "a.html", "--plot", "a.png"]),
        (60, ["order", "--sales", DATA / "sales.csv", "--out", "a.csv", "--html", "a.html", "--plot", "a.png"]),
    ]
    with zygote() as life:

        def case() -> bool:
            most, words = luck.choice(outs)
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            life(words, place)
            after = _seen(place)
            before = dict.fromkeys(after, b"as it was") if luck.random() < 0.5 else {}
            shutil.rmtree(place)
            place.mkdir()
            for name, content in before.items():
                (place / name).write_bytes(content)
            life(words, place, luck.randrange(1, most))
            found = _seen(place)
            return found.keys() >= before.keys() and all(
                content in (before.get(name), after[name]) for name, content in found.items()
            )

        while True:
            yield case


def run_kills(luck: random.Random, folder: Path) -> Iterator[Case]:
    """Runs killed anywhere, resumed and killed again: in the end they have the rows of one that nobody disturbed."""
    words: dict[str, list[Any]] = {
        "mdp": ["run", "mdp", "--preset", "tiny", "--out", "run"],
        "bandits": ["run", "bandits", "--set", "rounds=60", "--set", "trials=2", "--out", "run"],
        "control": ["run", "control", "--preset", "tiny", "--out", "run"],
        "inventory": ["run", "inventory", "--preset", "tiny", "--out", "run"],
        "workers": ["run", "mdp", "--preset", "tiny", "--backend", "processes", "--workers", "2", "--out", "run"],
    }
    whole: dict[str, list[Row]] = {}

    def rows(place: Path) -> list[Row]:
        """Without what each run has its own of: where it ran, and how long its parts took."""
        found = []
        for row in read(place / "run"):
            metrics = {name: value for name, value in row.metrics.items() if not name.endswith("_s")}
            found.append(dataclasses.replace(row, seconds=0.0, origin={}, metrics=metrics))
        return found

    with zygote() as life:

        def case() -> bool:
            name, place = luck.choice(list(words)), folder / "place"
            if name not in whole:
                (folder / name).mkdir()
                life(words[name], folder / name)
                whole[name] = rows(folder / name)
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            for _ in range(luck.randrange(1, 4)):
                life([*words[name], "--resume"], place, luck.randrange(1, 120))
            life([*words[name], "--resume"], place)
            left = [path for path in place.rglob(".*") if path.suffix == ".tmp"]
            return not left and rows(place) == whole[name]

        while True:
            yield case


def service_kills(luck: random.Random, folder: Path) -> Iterator[Case]:
    """The example service, killed after some requests: nothing that it acknowledged is lost or counted twice."""
    rewards: list[str] = []

    def ask(url: str, path: str, content: Any) -> Any:
        with urllib.request.urlopen(
            urllib.request.Request(url + path, json.dumps(content).encode()), timeout=30
        ) as answer:
            return json.load(answer)

    def case() -> bool:
        command = [sys.executable, str(SERVICE), str(folder / "kept"), "--snapshot-every", "9"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service:
            assert service.stdout is not None
            url = service.stdout.readline().strip()
            for _ in range(luck.randrange(1, 30)):
                id = ask(url, "/choose", {"x": [luck.gauss(0, 1) for _ in range(3)]})["id"]
                ask(url, "/reward", {"id": id, "reward": luck.random()})
                rewards.append(id)
            again = ask(url, "/reward", {"id": rewards[0], "reward": 0.5})["learnt"]
            service.send_signal(signal.SIGKILL)
        logged = {line.split(",")[0] for line in (folder / "kept" / "decisions.csv").read_text().splitlines()[1:]}
        learnt = sum(Policy.load(folder / "kept").pulls.values())
        return not again and learnt == len(rewards) and logged == set(rewards)

    while True:
        yield case


KINDS: dict[str, tuple[int, Callable[[random.Random, Path], Iterator[Case]]]] = {
    "rows of a run, damaged": (400, row_files),
    "rows, values mistaken": (500, row_values),
    "journals of a policy, damaged": (300, journals),
    "policies, damaged": (300, policies),
    "policies, values mistaken": (700, policy_values),
    "control checkpoints, damaged": (200, checkpoints),
    "maps, values mistaken": (740, maps),
    "files nested too deeply": (40, nested),
    "map files of `fit`, values mistaken": (200, map_files),
    "saved agents, values mistaken": (200, agents),
    "tables of forecasts, damaged": (2460, tables),
    "Excel, Feather, Parquet, gz, UTF-16, damaged": (1000, formats),
    "logs of decisions, damaged": (300, logs),
    "sales and item files, damaged": (960, order_files),
    "rows of every experiment, mistaken, shown": (300, shown_rows),
    "names and cells of great length": (100, long_texts),
    "small files that ask for everything": (90, bombs),
    "pipes, devices, folders and links for files": (200, no_files),
    "the same to write to": (60, no_targets),
    "names that look like patterns": (60, patterns),
    "files that a full disk refuses": (300, full_disks),
    "journals and rows on a full disk": (300, full_journals),
    "clocks that go back": (20, clocks),
    "folders that another process writes to": (40, neighbours),
    "checkpoints that would run code": (200, strangers),
    "commands in a stranger's folder": (10, strange_folders),
    "kills of `apply`, `check` and `order`": (40, file_kills),
    "kills of runs, resumed": (25, run_kills),
    "kills of the example service": (28, service_kills),
    "Kaggle's files, damaged": (200, kaggle_files),
    "saved SAC learners, values mistaken": (100, learners),
}
"""What is tried: how often, and how."""


def tried(name: str, *, share: float = 1.0, seed: int = 0) -> Counter[str]:
    """How many cases of a kind were noticed, right, used or crashed; `share` of them, drawn from the seed."""
    count, kind = KINDS[name]
    found: Counter[str] = Counter({"noticed": 0, "right": 0, "used": 0, "crashed": 0})
    with tempfile.TemporaryDirectory() as folder:
        cases = kind(random.Random(f"{name} {seed}"), Path(folder))
        with contextlib.closing(cases):  # type: ignore[type-var]
            for _ in range(max(1, round(share * count))):
                found[judged(next(cases))] += 1
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=1.0, help="of the cases")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="one of the kinds")
    parser.add_argument("--out", type=Path, help="where to write rows")
    options = parser.parse_args()
    bad, rows = 0, []
    for name in [options.only] if options.only else KINDS:
        found = tried(name, share=options.share, seed=options.seed)
        print(f"{name:34}", *(f"{count:6} {what}" for what, count in found.items()), flush=True)
        bad += found["used"] + found["crashed"]
        rows.append(Row("fuzz", name, "calibrl", options.seed, dict(found), origin={} if rows else origin()))
    if options.out:
        options.out.unlink(missing_ok=True)
        append(options.out, rows)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
