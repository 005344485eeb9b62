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
        "population": "plans that a sweep of the cross-entropy method draws",
        "elites": "the best of them, which the next sweep is drawn around",
        "sweeps": "sweeps of a search",
        "inertia": "share of the old mean and variance that a sweep keeps",
        "smallest_variance": "a search whose widest variance is below this stops",
    }
    return {f"{prefix}.{name}": Meaning(meaning, sources) for name, meaning in words.items()}


BANDITS = {
    "problems": Meaning("problems, by name", _PAPERS),
    "rounds": Meaning("rounds of a trial, all scored, from a cold start", {"paper": "paper, by its optimum"}),
    "trials": Meaning("paired trials: all policies meet the same contexts and luck", _PAPERS),
    "policies": Meaning("policies, by name: LinUCB and CalLinUCB are the paper's, the others controls"),
    "seed": Meaning("seed of the first trial"),
}
MDP = {
    "problems": Meaning("random MDPs on which the theorem is checked"),
    "seeds": Meaning("paired seeds of planning with a learnt model"),
    "amounts": Meaning("rows of experience for each state and action"),
    "maze_size": Meaning("rows and columns of the maze"),
    "tables": Meaning("Gymnasium's tables to plan in"),
}
SAFETY = {
    "seeds": Meaning("paired seeds"),
    "episodes": Meaning("random episodes to learn from, each as long as a plan"),
    "practice": Meaning("plans carried out beforehand, to correct the 90 % on"),
    "plans": Meaning("plans to judge, of each arm"),
    "repeats": Meaning("how often a plan is carried out, to see how often it breaks"),
    "particles": Meaning("imagined futures of a plan"),
    **_search("search", {}),
    "search.keep_best": Meaning("whether the best plan seen is taken, not the last mean"),
}
INVENTORY = {
    "arms": Meaning("ways to order, by name: heuristic, uncalibrated and calibrated are the paper's"),
    "shelf_lives": Meaning("days that goods may be sold; the paper does not say"),
    "seeds": Meaning("paired seeds", _PAPERS),
    "seed": Meaning("the first seed"),
    "data": Meaning("sales, by name; the paper's set is not public"),
    "period": Meaning("which months are sold: the paper's, those after, or those to tune on"),
    "paths": Meaning("demand paths of a decision, and passes of a network", _PAPERS),
    "trajectories": Meaning("random orders that the paper's planner tries", _PAPERS),
    "series": Meaning("only so many products; all if None"),
    "days": Meaning("only so many days; all if None"),
    "training.steps": Meaning("steps of Adam, at most"),
    "training.batch": Meaning("rows of a step"),
    "training.rate": Meaning("Adam's first rate; it falls to a fiftieth"),
    "training.minimum": Meaning("never stop before this step"),
    "training.every": Meaning("steps between judgements on held-out rows"),
    "training.patience": Meaning("stop after so many judgements without a better one"),
    "training.slices": Meaning("stretches of rows that are held out for that"),
    "training.share": Meaning("share of the rows that they are together"),
    "training.gap": Meaning("rows left out on either side of a stretch"),
    "training.decay": Meaning("weight decay"),
}
CONTROL = {
    "task": Meaning("the task, by name", _PETS),
    "steps": Meaning("steps of a trial", _PETS),
    "trials": Meaning("trials after the random one", _PETS),
    "seeds": Meaning("paired seeds, side by side", _PAPERS_TASKS),
    "arms": Meaning("which agents, by name: calibrated and uncalibrated are the paper's", _PAPERS_TASKS),
    "ensemble.members": Meaning("networks of an ensemble", _PETS),
    "ensemble.hidden": Meaning("hidden layers' widths", _PETS),
    "ensemble.decay": Meaning("weight decay, layer by layer", _PETS),
    "ensemble.rate": Meaning("Adam's rate", _PETS),
    "ensemble.batch": Meaning("rows of a training step", _PETS),
    "ensemble.epochs": Meaning("passes over all rows after each trial", _PETS),
    "ensemble.probabilistic": Meaning("whether networks state a variance", _PETS),
    "planner.horizon": Meaning("steps that a plan looks ahead", _PETS),
    **_search("planner", _PETS),
    "planner.particles": Meaning("imagined futures of a plan", _PETS),
    "planner.propagation": Meaning("how they pass through the networks: DS, TS1, TSinf, E or MM", _PETS),
    "planner.method": Meaning("how plans are searched for: cem, icem, mppi or random", _PETS),
    "planner.colour": Meaning("of icem's noise: 0 is white, larger is smoother in time"),
    "planner.kept": Meaning("share of icem's elites that live on"),
    "planner.spread": Meaning("standard deviation of icem's first plans and of mppi's, of half the range"),
    "planner.temperature": Meaning("mppi: of two plans so far apart in return the better weighs e times as much"),
    "calibration.map": Meaning("which map R is fitted; sigmoid is the paper's"),
    "calibration.held_out": Meaning("share of the rows that R is fitted on", _PETS),
    "calibration.block": Meaning("consecutive rows that share a side"),
    "calibration.forget": Meaning("weight that R's rows keep for each newer trial; 1 forgets nothing"),
    "reward": Meaning("module:function that plans are judged by, if not the task's own", _PETS),
}
