"""The tables of docs/replication.md, and some of docs/control-results.md, from the rows under results/.

python benchmarks/replication.py            prints them
python benchmarks/replication.py --write    puts them into the pages, between their comments
"""

from __future__ import annotations

import itertools
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calibrl.control.scoring import ENDPOINTS, PAIRS, WAYS, Samples, claim, endpoint
from calibrl.runs.rows import Row, mean_and_error, read

Floats = NDArray[np.float64]
ROOT = Path(__file__).parent.parent
PAGES = tuple(ROOT / "docs" / f"{name}.md" for name in ("replication", "control-results"))
TASKS = ("halfcheetah", "cartpole", "pusher", "reacher")
NAMES = {"halfcheetah": "HalfCheetah", "cartpole": "Cartpole", "pusher": "Pusher", "reacher": "Reacher"}
RUNS = {
    **{task: (task, NAMES[task]) for task in TASKS},
    "pusher-reference": ("pusher", "Pusher, plans scored as in the reference"),
    "cartpole-tsinf": ("cartpole", "Cartpole, TSinf"),
}
"""Files of rows at full size: the task of each, and what it is called."""
AHEAD = (1, 5, 10, 20)
ARMS = ("uncalibrated", "calibrated", "calibrated-trajectory")
FROM = 3
"""The first trial that counts for the honesty of imagined futures."""


def _rows(path: Path) -> list[Row]:
    return read(path) if path.exists() else []


def _head(*names: str) -> Iterator[str]:
    yield f"| {' | '.join(names)} |"
    yield "|---" * len(names) + "|"


def _pm(values: Sequence[float], form: str) -> str:
    mean, error = mean_and_error(values)
    words = f"{mean:{form}} ± {error:{form.lstrip('+')}}" if len(values) > 1 else f"{mean:{form}}"
    return words.replace("-", "−")


def _gains(rows: Sequence[Row], arm: str, other: str, first: int = 1) -> tuple[list[float], int]:
    """By how much one arm's return is above the other's, averaged over common trials from `first` on, for each seed;
    and how many trials."""
    found: dict[str, dict[int, dict[int, float]]] = {arm: {}, other: {}}
    for row in rows:
        if row.arm in found and row.metrics["trial"] >= first:
            found[row.arm].setdefault(row.seed, {})[row.step] = row.metrics["return"]
    seeds = sorted(found[arm].keys() & found[other].keys())
    steps = set.intersection(*(set(found[one][seed]) for one in found for seed in seeds)) if seeds else set()
    return [float(np.mean([found[arm][s][t] - found[other][s][t] for t in steps])) for s in seeds], len(steps)


def endpoints() -> Iterator[str]:
    """One line for each task and pair of arms of which there are rows at full size, on seeds from 100 on."""
    yield from _head(
        "task", "arms", "seeds × trials", "return a trial, paired", "steps to", "ratio of steps", "got there"
    )
    for run, (task, name) in RUNS.items():
        rows = _rows(ROOT / "results" / "replication" / f"{run}.jsonl")
        for arm, other in PAIRS:
            found = endpoint(rows, ENDPOINTS[task], arm, other)
            if found is None:
                continue
            gains, trials = _gains(rows, arm, other)
            yield (
                f"| {name} | `{arm}` − `{other}` | {len(gains)} × {trials} | "
                f"{_pm(gains, '+.0f' if task in ('halfcheetah', 'reacher') else '+.1f')} | "
                f"{ENDPOINTS[task]:.0f} | {_times(found)} | {found.reached[0]} and {found.reached[1]} |".replace(
                    " -", " −"
                )
            )


def _times(found: Samples) -> str:
    ratio, low, high = found.ratio
    return "not yet" if np.isnan(ratio) else f"{ratio:.2f}" + (f" [{low:.2f}, {high:.2f}]" if low == low else "")


def levels() -> Iterator[str]:
    """Steps to returns on the way, which seeds 0 to 9 fixed, there and on seeds from 100 on."""
    yield from _head("task", "of the way", "steps to", "seeds 0 to 9", "seeds from 100 on", "got there")
    for task in TASKS:
        first, second = (_rows(ROOT / "results" / part / f"{task}.jsonl") for part in ("control", "replication"))
        fixed = claim([row for row in first if row.arm != "sac"])
        for way, samples in zip(WAYS, fixed.samples, strict=True) if fixed is not None and fixed.seeds > 4 else ():
            both = [endpoint(rows, samples.level, "calibrated", "uncalibrated") for rows in (first, second)]
            if both[0] is None or both[1] is None:
                continue
            got = f"{both[1].reached[0]} and {both[1].reached[1]} of {len(both[1].arm)}"
            yield (
                f"| {NAMES[task]} | {100 * way:.0f} % | {samples.level:.0f} | {_times(both[0])} | {_times(both[1])} | "
                f"{got} |".replace(" -", " −")
            )


LEVELS = {
    "cartpole": (87.0, 133.0, 150.0, 170.0),
    "pusher": (-178.0, -118.0, -90.0),
    "reacher": (-300.0, -150.0, -90.0, -60.0),
}
"""On the way: Cartpole's and Pusher's are those of `levels` and the endpoints, Reacher's its endpoint and three chosen
afterwards."""


def whole() -> Iterator[str]:
    """Steps to returns on the way where whole trajectories are calibrated, single steps, or nothing."""
    pairs = ((ARMS[2], ARMS[0]), (ARMS[2], ARMS[1]), (ARMS[1], ARMS[0]))
    yield from _head("task", "steps to", *(f"`{arm}` ÷ `{other}`" for arm, other in pairs), f"`{ARMS[0]}` got there")
    for task, found in LEVELS.items():
        rows = _rows(ROOT / "results" / "replication" / f"{task}.jsonl")
        for level in found:
            both = [endpoint(rows, level, *pair) for pair in pairs]
            if any(one is None for one in both):
                continue
            cells = " | ".join(_times(one) for one in both if one is not None)
            got = f"{both[0].reached[1]} of {len(both[0].arm)}" if both[0] is not None else ""
            yield f"| {NAMES[task]} | {level:.0f} | {cells} | {got} |".replace("| -", "| −")


def _ahead() -> Iterator[str]:
    held = "90 % intervals hold, h = 1 / 5 / 10 / 20, %"
    yield from _head("task", "arm", "seeds × trials", held, "loss, h = 10 / 20", "returns, %")


def _honest(rows: Sequence[Row], label: str) -> Iterator[str]:
    by_arm: dict[str, dict[int, list[dict[str, float]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.metrics["trial"] >= FROM and f"coverage_90_ahead_{AHEAD[-1]}" in row.metrics:
            by_arm[row.arm][row.seed].append(row.metrics)
    for arm in ("uncalibrated", "calibrated", "calibrated-trajectory", "released-control", "released"):
        if arm not in by_arm:
            continue
        seeds = list(by_arm[arm].values())
        come = sorted({int(max(one["trial"] for one in rows)) for rows in seeds})
        trials = f"{FROM}–{come[-1]}" + (f", some to {come[0]}" if len(come) > 1 else "")

        def mean(name: str, seeds: list[list[dict[str, float]]] = seeds) -> float:
            return float(np.mean([np.mean([one[name] for one in rows]) for rows in seeds]))

        held = " / ".join(f"{100 * mean(f'coverage_90_ahead_{h}'):.0f}" for h in AHEAD)
        loss = " / ".join(f"{mean(f'calibration_loss_ahead_{h}'):.2f}" for h in AHEAD[2:])
        yield (
            f"| {label} | `{arm}` | {len(seeds)} × {trials} | {held} | {loss} | "
            f"{100 * mean('return_coverage_90'):.0f} |"
        )


def horizon() -> Iterator[str]:
    """How honest imagined futures were on trajectories not yet trained on: a line for each task, size and arm."""
    yield from _ahead()
    small = _rows(ROOT / "results" / "control" / "horizon.jsonl")
    for task in TASKS:
        yield from _honest([row for row in small if row.problem == task], f"{NAMES[task]}, small")
        for run, (of, name) in RUNS.items():
            if of == task:
                yield from _honest(_rows(ROOT / "results" / "replication" / f"{run}.jsonl"), f"{name}, full size")


def plans() -> Iterator[str]:
    """How many returns 90 % intervals held: of plans carried out blindly, and of actions as they were taken."""
    yield from _head("task", "arm", "seeds × trials", "plans carried out blindly, %", "actions as taken, %")
    rows = [row for row in _rows(ROOT / "results" / "control" / "plans.jsonl") if row.metrics["trial"] >= FROM]
    for task in TASKS:
        for arm in ARMS:
            mine = [row for row in rows if row.problem == task and row.arm.startswith(f"{arm}: ")]
            if not mine:
                continue
            held = (
                100 * float(np.mean([row.metrics["coverage_90"] for row in mine if row.arm.endswith(how)]))
                for how in ("blindly", "as taken")
            )
            size = f"{len({row.seed for row in mine})} × {FROM}–{max(row.metrics['trial'] for row in mine):.0f}"
            yield f"| {NAMES[task]}, small | `{arm}` | {size} | " + " | ".join(f"{one:.0f}" for one in held) + " |"


RAIL = 120.0
"""The return on the short rail to which samples are counted, fixed on seeds 900 and 901."""
SETTLED = 2
"""The first trial whose steps outside count in the wind: before, one random trial in one wind is all that is known."""


def _outside(rows: Sequence[Row], arm: str, first: int = 1) -> list[float]:
    """Per cent of steps outside from trial `first` on, for each seed of an arm."""
    found: dict[int, list[float]] = defaultdict(list)
    for row in rows:
        if row.arm == arm and row.metrics["trial"] >= first:
            found[row.seed].append(100 * row.metrics["unsafe"])
    return [float(np.mean(found[seed])) for seed in sorted(found)]


def _earned(rows: Sequence[Row], arm: str, first: int = 1) -> list[float]:
    mine = [row for row in rows if row.arm == arm and row.metrics["trial"] >= first]
    return [
        float(np.mean([row.metrics["return"] for row in mine if row.seed == s])) for s in sorted({r.seed for r in mine})
    ]


def rail() -> Iterator[str]:
    """Arms with the same chance-constrained planner on Cartpole with a short rail."""
    paired = ("return, paired", f"steps to {RAIL:.0f}, over `uncalibrated`", "got there")
    yield from _head("arm", "seeds × trials", "steps outside, %", "return a trial", *paired)
    rows = _rows(ROOT / "results" / "control" / "rail.jsonl")
    for arm in ARMS:
        found = endpoint(rows, RAIL, arm, ARMS[0])
        if found is None:
            continue
        gains, trials = _gains(rows, arm, ARMS[0])
        own = f"{_pm(_outside(rows, arm), '.2f')} | {_pm(_earned(rows, arm), '.1f')}"
        against = f"{_pm(gains, '+.1f')} | {_times(found)} | {found.reached[0]} and {found.reached[1]}"
        reached = f" | | {found.reached[1]}"
        yield f"| `{arm}` | {len(gains)} × {trials} | {own} | {reached if arm == ARMS[0] else against} |"


def _share(mine: Sequence[float], base: Sequence[float]) -> str:
    """One arm's mean over the other's with a 95 % interval: pairs of seeds drawn again, 10 000 times."""
    pairs = np.array([mine, base]).T
    drawn = pairs[np.random.default_rng(0).integers(len(pairs), size=(10_000, len(pairs)))].mean(1)
    low, high = np.nanpercentile(drawn[:, 0] / np.where(drawn[:, 1] > 0, drawn[:, 1], np.nan), [2.5, 97.5])
    return f"{np.mean(mine) / np.mean(base):.2f} [{low:.2f}, {high:.2f}]"


def wind() -> Iterator[str]:
    """Arms with the same chance-constrained planner on Cartpole in a wind that lasts, errors in one part."""
    yield from _wind("wind.jsonl")


def parts() -> Iterator[str]:
    """The same on other seeds, errors in two parts."""
    yield from _wind("wind-parts.jsonl")


def surprise() -> Iterator[str]:
    """The same on other seeds again, and plans count half of what is new."""
    yield from _wind("wind-surprise.jsonl")


def _wind(name: str) -> Iterator[str]:
    outside = (f"steps outside from trial {SETTLED} on, %", "over `uncalibrated`", "in all trials, %")
    yield from _head("arm", "seeds × trials", *outside, "return a trial", "return, paired")
    rows = _rows(ROOT / "results" / "control" / name)
    for arm in [arm for arm in ARMS if any(row.arm == arm for row in rows)]:
        gains, trials = _gains(rows, arm, ARMS[0])
        mine, base = (_outside(rows, one, SETTLED) for one in (arm, ARMS[0]))
        over, more = ("", "") if arm == ARMS[0] else (_share(mine, base), _pm(gains, "+.1f"))
        own = f"{_pm(mine, '.2f')} | {over} | {_pm(_outside(rows, arm), '.2f')} | {_pm(_earned(rows, arm), '.1f')}"
        yield f"| `{arm}` | {len(gains)} × {trials} | {own} | {more} |"


HALFWAY = {**ENDPOINTS, "pusher": -178.0}
"""The returns to which steps are counted at laptop size."""


def faster() -> Iterator[str]:
    """Return and samples of the arms on the small tasks."""
    base = [f"less `{arm}`'s" for arm in ARMS[:2]]
    yield from _head("task", "arm", "seeds × trials", "return a trial", *base, "steps to", "over `uncalibrated`")
    for name, tasks in (("faster", TASKS[1:]), ("horizon", TASKS[:1])):
        rows = _rows(ROOT / "results" / "control" / f"{name}.jsonl")
        for task, arm in itertools.product(tasks, ARMS):
            mine = [row for row in rows if row.problem == task]
            gains = [_gains(mine, arm, other) for other in ARMS[:2]]
            if not gains[0][0]:
                continue
            less = ["" if arm == other else _pm(gain, "+.1f") for other, (gain, _) in zip(ARMS, gains, strict=False)]
            found = endpoint(mine, HALFWAY[task], arm, ARMS[0]) if arm != ARMS[0] and task != "halfcheetah" else None
            to = ("", "") if found is None else (f"{HALFWAY[task]:.0f}".replace("-", "−"), _times(found))
            own = f"{len(gains[0][0])} × {gains[0][1]} | {_pm(_earned(mine, arm), '.1f')}"
            yield f"| {NAMES[task]}, small | `{arm}` | {own} | {' | '.join([*less, *to])} |"


OTHERS = {
    "Pendulum-v1": "`Pendulum-v1`",
    "noisy_pendulum:NoisySensors-v0": "… seen through noise",
    "noisy_pendulum:NoisyMotor-v0": "… pushed by noise",
    "CartPole-v1": "`CartPole-v1`",
    "InvertedPendulum-v5": "`InvertedPendulum-v5`",
}
"""Environments that nothing was chosen on, and what they are called."""
SETS = (500, 600)
"""The first seeds of the two sets."""


def others() -> Iterator[str]:
    """Return of the arms in environments that nothing was chosen on."""
    base = [f"less `{arm}`'s" for arm in ARMS[:2]]
    yield from _head("environment", "arm", "seeds", "return a trial from trial 2 on", *base)
    rows = _rows(ROOT / "results" / "control" / "others.jsonl")
    for (problem, name), first, arm in itertools.product(OTHERS.items(), SETS, ARMS):
        mine = [row for row in rows if row.problem == problem and first <= row.seed < first + 100]
        gains = [_gains(mine, arm, other, SETTLED)[0] for other in ARMS[:2]]
        if not gains[0]:
            continue
        less = ["" if arm == other else _pm(gain, "+.1f") for other, gain in zip(ARMS, gains, strict=False)]
        seeds = f"{first} to {first + len(gains[0]) - 1}"
        yield f"| {name} | `{arm}` | {seeds} | {_pm(_earned(mine, arm, SETTLED), '.1f')} | {' | '.join(less)} |"


def frontier() -> Iterator[str]:
    """The wind with planners that ask for more and less safety, and both arms where they earn the same."""
    yield from _frontier(_rows(ROOT / "results" / "control" / "wind-frontier.jsonl"), (ARMS[0], ARMS[2]))


LIMITED = "uncalibrated-limited"


def limits() -> Iterator[str]:
    """What bare networks gain by the limits that whole trajectories have, and what these gain besides."""
    pairs = ((LIMITED, ARMS[0]), (ARMS[1], LIMITED), (ARMS[2], LIMITED))
    names = (f"`{arm}`'s less `{other}`'s" for arm, other in pairs)
    yield from _head("task", "seeds × trials", f"`{LIMITED}`, return a trial", *names)
    found = [_rows(ROOT / "results" / "control" / f"{name}.jsonl") for name in ("faster", "others", "limits")]
    rows = [row for part in found for row in part]
    small = ((task, f"{NAMES[task]}, small", 1) for task in TASKS[1:])
    for task, name, first in (*small, *((*other, SETTLED) for other in OTHERS.items())):
        mine = [row for row in rows if row.problem == task]
        gains = [_gains(mine, *pair, first) for pair in pairs]
        if gains[0][0]:
            own = f"{len(gains[0][0])} × {gains[0][1]} | {_pm(_earned(mine, LIMITED, first), '.1f')}"
            yield f"| {name} | {own} | {' | '.join(_pm(gain, '+.1f') for gain, _ in gains)} |"


RELEASED = ("released", "released-control")


def tsinf() -> Iterator[str]:
    """What the arms gain at laptop size with either propagation: DS, as the paper says, and TSinf, as its code does."""
    pairs = (RELEASED, (LIMITED, ARMS[0]), (ARMS[1], ARMS[0]), (ARMS[2], ARMS[0]), (ARMS[2], LIMITED))
    names = (f"`{arm}`'s less `{other}`'s" for arm, other in pairs)
    yield from _head("task", "propagation", "seeds × trials", *names)
    found = [_rows(ROOT / "results" / "control" / f"{name}.jsonl") for name in ("faster", "limits", "tsinf")]
    rows = [row for part in found for row in part]
    for task, way in itertools.product(TASKS[1:], ("DS", "TSinf")):
        mine = [r for r in rows if r.problem == task and r.overrides.get("planner.propagation", "DS") == way]
        gains = [_gains(mine, *pair) for pair in pairs]
        if all(gain for gain, _ in gains):
            size = f"{len(gains[0][0])} × {gains[0][1]}"
            yield f"| {NAMES[task]}, small | {way} | {size} | {' | '.join(_pm(gain, '+.1f') for gain, _ in gains)} |"


def tsinf_horizon() -> Iterator[str]:
    """How honest futures are that single networks imagine, each its own."""
    yield from _ahead()
    rows = _rows(ROOT / "results" / "control" / "tsinf.jsonl")
    for task in TASKS[1:]:
        mine = [row for row in rows if row.problem == task and row.overrides]
        yield from _honest(mine, f"{NAMES[task]}, small, TSinf")


def wind_limits() -> Iterator[str]:
    """The wind, and bare networks with the limits that whole trajectories have."""
    found = [_rows(ROOT / "results" / "control" / f"{name}.jsonl") for name in ("wind-frontier", "limits")]
    rows = [row for part in found for row in part if row.problem == "cartpole-wind"]
    yield from _frontier(rows, (LIMITED, ARMS[2]))


def _frontier(rows: Sequence[Row], arms: tuple[str, str]) -> Iterator[str]:
    outside = f"steps outside from trial {SETTLED} on, %"
    yield from _head("arm", "`planner.safety`", "seeds × trials", outside, f"over `{arms[0]}`", "return a trial")
    asked = sorted({row.overrides["planner.safety"] for row in rows})
    runs = {
        (arm, one): [r for r in rows if r.arm == arm and r.overrides["planner.safety"] == one]
        for arm in arms
        for one in asked
    }
    # A seed counts once every run has made all of its trials.
    last = max((row.step for row in rows), default=0)
    done = [{row.seed for row in mine if row.step == last} for mine in runs.values()]
    seeds = set.intersection(*done) if done else set()
    runs = {key: [row for row in mine if row.seed in seeds] for key, mine in runs.items()}
    found = {key: (_earned(mine, key[0]), _outside(mine, key[0], SETTLED)) for key, mine in runs.items()}
    for (arm, one), (earned, left) in found.items():
        size = f"{len(left)} × {max(row.metrics['trial'] for row in runs[arm, one]):.0f}"
        yield f"| `{arm}` | {one} | {size} | {_pm(left, '.2f')} | | {_pm(earned, '.1f')} |"
    if not seeds:
        return
    # (arms, settings, earned or outside, seeds)
    each = np.array([[found[arm, one] for one in asked] for arm in arms])
    level, held = _at_equal_return(each.mean(-1)[..., None])
    again = np.random.default_rng(0).integers(len(seeds), size=(10_000, len(seeds)))
    _, drawn = _at_equal_return(each[..., again].mean(-1))
    low, high = np.nanpercentile(drawn[1] / np.where(drawn[0] > 0, drawn[0], np.nan), [2.5, 97.5])
    for arm, share in zip(arms, held[:, 0], strict=True):
        over = "" if arm == arms[0] else f"{held[1, 0] / held[0, 0]:.2f} [{low:.2f}, {high:.2f}]"
        yield f"| `{arm}` | mixed | {len(seeds)} | {share:.2f} | {over} | {level[0]:.1f} |"


def _at_equal_return(found: Floats) -> tuple[Floats, Floats]:
    """The highest return that both arms reach (n,), and the least that each is outside for it (2, n).

    found: (2, settings, earned or outside, n). An arm may mix two of its settings, and may earn more than is asked for.
    """
    earned, outside = found[:, :, 0], found[:, :, 1]
    level = earned.max(1).min(0)
    least = np.where(earned >= level, outside, np.inf).min(1)
    for one, other in itertools.permutations(range(earned.shape[1]), 2):
        between = (earned[:, one] < level) & (earned[:, other] >= level)
        gap = np.where(between, earned[:, other] - earned[:, one], 1)
        part = (level - earned[:, one]) / gap
        mixed = outside[:, one] + part * (outside[:, other] - outside[:, one])
        least = np.where(between, np.minimum(least, mixed), least)
    return level, least


SEARCHED = {task: f"{NAMES[task]}, small" for task in TASKS[1:]} | OTHERS | {"HalfCheetah-v5": "`HalfCheetah-v5`"}
SAME = ", the same noise"


def searches() -> Iterator[str]:
    """What an agent earns with each search, and with the same noise for all plans."""
    pairs = (("icem", "cem"), (f"cem{SAME}", "cem"), (f"icem{SAME}", "icem"))
    names = ("icem less cem", "cem, the same noise less its own", "icem, the same noise less its own")
    yield from _head("environment", "seeds × trials", f"cem, return a trial from trial {SETTLED} on", *names)
    for problem, name in SEARCHED.items():
        mine = [replace(row, arm=_search(row)) for row in _searched(problem)]
        gains = [_gains(mine, *pair, SETTLED) for pair in pairs]
        seeds, trials = next(((gain, trials) for gain, trials in gains if gain), ([], 0))
        if seeds:
            own = f"{len(seeds)} × {trials} | {_pm(_earned(mine, 'cem', SETTLED), '.1f')}"
            yield f"| {name} | {own} | {' | '.join(_pm(gain, '+.1f') if gain else '' for gain, _ in gains)} |"


def _searched(problem: str, arm: str = ARMS[2]) -> list[Row]:
    rows = _rows(ROOT / "results" / "control" / "search.jsonl")
    return [row for row in rows if row.problem == problem and row.arm == arm]


def _search(row: Row) -> str:
    return row.overrides.get("planner.method", "cem") + (SAME if row.overrides.get("planner.same_noise") else "")


def upright() -> Iterator[str]:
    """HalfCheetah at laptop size by a recipe of our own: what limits gain, errors that persist, and the same noise."""
    others = (ARMS[0], LIMITED, ARMS[2])
    yield from _head("arm", "seeds × trials", "return a trial", *(f"less `{arm}`'s" for arm in others))
    found = _rows(ROOT / "results" / "control" / "halfcheetah-best-small.jsonl")
    rows = [replace(row, arm=f"{row.arm}{SAME}") if row.overrides else row for row in found]
    for arm in (*others, f"{ARMS[2]}{SAME}"):
        gains = [_gains(rows, arm, other) for other in others]
        if not gains[0][0]:
            continue
        name, _, how = arm.partition(",")
        # Six of the twelve seeds had the same noise: that is compared with itself without, and with nothing else.
        shown = [
            gain if any(gain) and (not how or other == ARMS[2]) else []
            for other, (gain, _) in zip(others, gains, strict=True)
        ]
        less = [_pm(gain, "+.0f") if gain else "" for gain in shown]
        size = f"{len(gains[0][0])} × {gains[0][1]}"
        yield f"| `{name}`{how and ','}{how} | {size} | {_pm(_earned(rows, arm), '.0f')} | {' | '.join(less)} |"


def upright_horizon() -> Iterator[str]:
    """How honest the futures are that these agents imagine."""
    yield from _ahead()
    rows = [row for row in _rows(ROOT / "results" / "control" / "halfcheetah-best-small.jsonl") if not row.overrides]
    yield from _honest(rows, "HalfCheetah, small, our own recipe")


def limits_icem() -> Iterator[str]:
    """The same as `limits` of agents that search by icem: what whole trajectories gain on top."""
    words = (f"`{LIMITED}`, return a trial from trial {SETTLED} on", f"`{ARMS[2]}`'s less `{LIMITED}`'s")
    yield from _head("environment", "seeds × trials", *words)
    for problem, name in SEARCHED.items():
        rows = [row for arm in (LIMITED, ARMS[2]) for row in _searched(problem, arm) if _search(row) == "icem"]
        gains, trials = _gains(rows, ARMS[2], LIMITED, SETTLED)
        if gains:
            own = f"{len(gains)} × {trials} | {_pm(_earned(rows, LIMITED, SETTLED), '.1f')}"
            yield f"| {name} | {own} | {_pm(gains, '+.1f')} |"


SWUNG = -150.0
"""The return of Pendulum-v1, in 150 steps, to which steps are counted."""


def pendulum() -> Iterator[str]:
    """Pendulum-v1 on fresh seeds: what whole trajectories gain on top of the limits."""
    yield from _head("arm", "seeds × trials", f"return a trial from trial {SETTLED} on", "paired", "steps to", "ratio")
    rows = _rows(ROOT / "results" / "control" / "pendulum-limits.jsonl")
    gains, trials = _gains(rows, ARMS[2], LIMITED, SETTLED)
    found = endpoint(rows, SWUNG, ARMS[2], LIMITED)
    for arm in (LIMITED, ARMS[2]) if found is not None else ():
        own = f"{len(gains)} × {trials} | {_pm(_earned(rows, arm, SETTLED), '.1f')}"
        against = " |  | " if arm == LIMITED else f"{_pm(gains, '+.1f')} | −150 | {_times(found)}"
        yield f"| `{arm}` | {own} | {against} |"


TABLES = {"endpoints": endpoints, "levels": levels, "horizon": horizon, "plans": plans, "rail": rail, "wind": wind}
TABLES |= {"parts": parts, "surprise": surprise, "frontier": frontier, "faster": faster}
TABLES |= {"whole": whole, "others": others, "limits": limits, "wind limits": wind_limits, "tsinf": tsinf}
TABLES |= {"tsinf horizon": tsinf_horizon, "searches": searches}
TABLES |= {"upright": upright, "upright horizon": upright_horizon, "pendulum": pendulum, "limits icem": limits_icem}


def written(page: str) -> str:
    """A page with each of its tables as the rows have it."""
    for name, table in TABLES.items():
        if f"<!-- {name} -->" not in page:
            continue
        between = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        lines = list(table())
        body = "\n" + "\n".join(lines if len(lines) > 2 else ["*No rows yet.*"]) + "\n\n"
        page = between.sub(lambda found, body=body: found[1] + body + found[2], page)
    return page


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        for page in PAGES:
            page.write_text(written(page.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        for name, table in TABLES.items():
            print(f"\n{name}\n", *table(), sep="\n")
