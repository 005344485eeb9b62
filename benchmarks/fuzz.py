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
import io
import json
import math
import os
import pickle
import random
import signal
import subprocess
import sys
import tempfile
import traceback
import urllib.request
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from calibrl.bandits import CalibratedUCB, CalLinUCB, Durable, Policy
from calibrl.control import checkpoint
from calibrl.errors import CalibrlError
from calibrl.files import seal
from calibrl.maps import MAPS, Map, map_from_dict
from calibrl.maps.base import from_dict
from calibrl.maps.classes import CLASS_MAPS, class_map_from_dict
from calibrl.runs.rows import Row, append, origin, read
from calibrl.shop.files import read_shop
from calibrl.tables.forecasts import read_forecasts

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
            return "noticed" if len(str(problem).splitlines()) == 1 else "crashed"
        except Exception:
            traceback.print_exc()
            return "crashed"
    return "noticed" if told else "right" if right else "used"


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
    "tables of forecasts, damaged": (2460, tables),
    "sales and item files, damaged": (960, order_files),
    "checkpoints that would run code": (200, strangers),
    "kills of the example service": (20, service_kills),
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
