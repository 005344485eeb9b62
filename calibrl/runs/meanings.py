"""What the fields of every experiment's presets mean, and where their values come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

PAPER, REFERENCE, OURS = "paper", "reference code", "ours"
"""Printed by Malik et al. (2019); read in the authors' released code, which builds on PETS'; chosen here."""


@dataclass(frozen=True)
class Meaning:
    """What a field is for, and the source of its value where it is not ours: by preset."""

    words: str
    sources: Mapping[str, str] = field(default_factory=dict)

    def source(self, preset: str) -> str:
        """Where this preset's value comes from."""
        return self.sources.get(preset, OURS)


_PAPERS = {"paper": PAPER}
_PETS = dict.fromkeys(("cartpole", "halfcheetah", "pusher", "reacher"), REFERENCE)
_PAPERS_TASKS = dict.fromkeys(("cartpole", "halfcheetah", "pusher"), PAPER)
"""Presets with published settings: of PETS, whose settings the paper took over, and of the paper."""


def _search(prefix: str, sources: Mapping[str, str]) -> dict[str, Meaning]:
    """The cross-entropy method's settings, wherever they stand."""
    words = {
        "population_size": "plans drawn in each iteration of the search",
        "elites": "the best of them, around which the next iteration is drawn",
        "iterations": "iterations per search",
        "momentum": "share of the old mean and variance kept in each iteration",
        "min_variance": "the search stops when the largest variance is below this",
    }
    return {f"{prefix}.{name}": Meaning(meaning, sources) for name, meaning in words.items()}


CONTROL = {
    "task": Meaning("the task, by name", _PETS),
    "steps": Meaning("steps per trial", _PETS),
    "trials": Meaning("trials after the random one", _PETS),
    "seeds": Meaning("paired seeds", _PAPERS_TASKS),
    "arms": Meaning("which agents, by name: calibrated and uncalibrated are the paper's", _PAPERS_TASKS),
    "ensemble.members": Meaning("networks in the ensemble", _PETS),
    "ensemble.hidden": Meaning("widths of the hidden layers", _PETS),
    "ensemble.weight_decay": Meaning("weight decay, layer by layer", _PETS),
    "ensemble.lr": Meaning("Adam's learning rate", _PETS),
    "ensemble.batch_size": Meaning("rows per training step", _PETS),
    "ensemble.epochs": Meaning("passes over all rows after each trial", _PETS),
    "ensemble.probabilistic": Meaning("whether networks predict a variance", _PETS),
    "planner.horizon": Meaning("steps planned ahead", _PETS),
    **_search("planner", _PETS),
    "planner.particles": Meaning("imagined futures per plan", _PETS),
    "planner.propagation": Meaning("how they pass through the networks: DS, TS1, TSinf, E or MM", _PETS),
    "planner.method": Meaning("how plans are searched for: cem, icem, mppi or random", _PETS),
    "planner.noise_exponent": Meaning("icem: colour of the noise; 0 is white, larger is smoother in time"),
    "planner.keep_elites": Meaning("icem: share of the elites that survive"),
    "planner.noise_std": Meaning("icem, mppi: initial standard deviation, relative to half the range"),
    "planner.temperature": Meaning("mppi: difference in return at which the better plan weighs e times as much"),
    "planner.population_decay": Meaning("icem: factor by which each iteration tries fewer plans than the one before"),
    "planner.keep_best": Meaning("cem: whether to take the best plan seen instead of the last mean"),
    "planner.control_cost": Meaning("mppi: share of the temperature that steering costs"),
    "calibration.map": Meaning("which map R to fit; sigmoid is the paper's"),
    "calibration.held_out": Meaning("share of the rows held out to fit R", _PETS),
    "calibration.block": Meaning("consecutive rows on the same side of the split"),
    "calibration.forget": Meaning("factor on a row's weight for each newer trial; 1 forgets nothing"),
    "reward": Meaning("module:function that scores plans, if not the task's own", _PETS),
}
