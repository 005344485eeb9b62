"""The walks of `docs/design.md`: what they name is called, in that order, and never from below."""

import importlib
import re
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
MOST_HOPS = 8


def walks():
    """{title: [dotted name, …]}: the numbered lists under "Five walks"."""
    chapter = re.search(r"^## Five walks\n(.*?)(?=^## )", PAGE, re.MULTILINE | re.DOTALL)[1]
    parts = re.split(r"^### (.+)\n", chapter, flags=re.MULTILINE)[1:]
    return {
        title: re.findall(r"^\d+\. `([\w.<>]+)`", text, re.MULTILINE)
        for title, text in zip(parts[::2], parts[1::2], strict=True)
    }


WALKS = walks()


def layer_of(name):
    """How far up a module's layer is, 0 at the top."""
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    layers = [[part.strip() for part in row.split("|")] for row in contract["contracts"][0]["layers"]]
    return next(k for k, row in enumerate(layers) if any(f"{name}.".startswith(f"{part}.") for part in row))


class Trace:
    """Calls of calibrl's own functions while a block runs: each with those it was called from."""

    def __init__(self):
        self.calls, self._stack = [], []

    def __enter__(self):
        sys.setprofile(self._hear)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)

    def _hear(self, frame, event, _):
        home = frame.f_globals.get("__name__", "")
        if event not in ("call", "return") or not home.startswith("calibrl."):
            return
        name = f"{home}.{frame.f_code.co_qualname}"
        if event == "call":
            self.calls.append((name, tuple(self._stack)))
            self._stack.append(name)
        elif self._stack and self._stack[-1] == name:
            self._stack.pop()


def bandit_round():
    from calibrl.algorithm import Calibrated, learn
    from calibrl.bandits import loop
    from calibrl.bandits.problems import problem
    from calibrl.evidence import Rolling
    from calibrl.forecasters.linear import RidgeArms
    from calibrl.maps.ecdf import fit_ecdf
    from calibrl.planning.quantile import Exploration

    stream = problem("linear").stream(12, np.random.default_rng(0))
    model = Calibrated(RidgeArms(stream.reward.shape[1], stream.x.shape[1]), evidence=Rolling(), fit_map=fit_ecdf())
    list(learn(loop.collect_from(stream, Exploration(level=1.0)), model, rounds=12))


def inventory_day():
    from calibrl.algorithm import Calibrated, learn
    from calibrl.evidence import Rolling
    from calibrl.forecasters.seasonal import SeasonalNaive
    from calibrl.inventory.demand import features
    from calibrl.inventory.loop import collect_from
    from calibrl.inventory.policy import OrderUpTo
    from calibrl.inventory.problems import bakery

    rows = features(bakery().select(np.array([0])), "history", leads=5)
    model = Calibrated(SeasonalNaive(), evidence=Rolling())
    model.forecaster.update(rows[np.arange(100)].data)
    model.update(rows[np.arange(100, 200)].data)
    collect = collect_from(rows[np.arange(205, 215)], planner=OrderUpTo(), shelf_life=3, n_paths=50)
    list(learn(collect, model, rounds=8))


def shop_order(folder):
    from typer.testing import CliRunner

    from calibrl.cli import app

    sales = str(ROOT / "examples" / "data" / "sales.csv")
    found = CliRunner().invoke(app, ["order", "--sales", sales, "--out", str(folder / "orders.csv")])
    assert found.exit_code == 0, found.output


def control_trial(folder):
    from calibrl.control.experiment import EXPERIMENT
    from calibrl.runs.engine import run

    run(EXPERIMENT, EXPERIMENT.preset("tiny"), folder / "control")


def row_to_disk(folder):
    from typer.testing import CliRunner

    from calibrl.cli import app

    words = ["run", "bandits", "--problem", "linear", "--trials", "1", "--rounds", "20", "--out"]
    found = CliRunner().invoke(app, [*words, str(folder / "bandits")])
    assert found.exit_code == 0, found.output


RUNS = {
    "A bandit round": lambda _: bandit_round(),
    "A day of a shop": lambda _: inventory_day(),
    "An order": shop_order,
    "A control trial": control_trial,
    "A row from the command line to the disk": row_to_disk,
}


@pytest.mark.parametrize("title", RUNS)
def test_a_walk_goes_down_and_in_order(title, tmp_path, blank_figures):
    hops = WALKS[title]
    assert 3 <= len(hops) <= MOST_HOPS
    torch.manual_seed(0)
    with Trace() as trace:
        RUNS[title](tmp_path)
    first = {}
    for number, (name, above) in enumerate(trace.calls):
        first.setdefault(name, (number, above))
    compiled = [hop for hop in hops if ".kernels." in hop and hop not in first]
    for hop in compiled:  # machine code leaves no trace: it is there, and its callers are traced
        module, _, name = hop.rpartition(".")
        assert callable(getattr(importlib.import_module(module), name))
    hops = [hop for hop in hops if hop not in compiled]
    assert [hop for hop in hops if hop not in first] == []
    order = [first[hop][0] for hop in hops]
    assert order == sorted(order), "each is reached after the one before it"
    for k, hop in enumerate(hops[1:], start=1):
        callers = [name for name, above in ((n, a) for n, a in trace.calls if n == hop) for name in above]
        parents = [one for one in hops[:k] if one in callers]
        assert parents, f"{hop} is called by none of those before it"
        handed_up = parents[-1] == "calibrl.algorithm.learn" and hop.endswith("collect")
        assert handed_up or layer_of(hop) >= layer_of(parents[-1]), f"{hop} is above {parents[-1]}"


def test_every_walk_of_the_page_is_traced():
    assert list(WALKS) == list(RUNS)
