"""What each experiment is, for tables and pages: its name, the question it asks, and how to read its numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from calibrl.runs.paper import TABLE_1, TABLE_2, Printed
from calibrl.runs.rows import Row


@dataclass(frozen=True)
class Metric:
    """One column of a table: a heading, how to print a number, and which way is better."""

    heading: str
    form: str = ".4g"
    better: str = ""


@dataclass(frozen=True)
class Axis:
    """A setting that rows were varied along, such as the amount of data: its name in `settings` and in words.

    `within` are the settings that stay the same along one curve.
    """

    setting: str
    heading: str
    within: tuple[str, ...]


@dataclass(frozen=True)
class Experiment:
    """A title, a question in a sentence or two, the arm others are compared with, and the metrics to show.

    paper: what the paper printed about it.
    thin: metrics m whose companions `m_200`, `m_400`, … in the same row say what m was after that many steps.
    along: draw metrics against this setting.
    step: what a step is, for the axis of learning curves.
    figures: what a saved figure shows, by the start of its file's name.
    picks: settings that say which problems and arms were run and change nothing about any of them.
    """

    title: str
    question: str
    baseline: str
    metrics: dict[str, Metric] = field(default_factory=dict)
    paper: Printed | None = None
    thin: tuple[str, ...] = ()
    along: Axis | None = None
    step: str = "step"
    figures: dict[str, str] = field(default_factory=dict)
    picks: tuple[str, ...] = ()


def by_run(rows: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    """Rows that may be compared, by their experiment and by the preset and what was changed about it, in words."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        picks = CATALOGUE[row.experiment].picks if row.experiment in CATALOGUE else ()
        changes = [f"{name}={value}" for name, value in row.overrides.items() if name not in picks]
        found.setdefault((row.experiment, ", ".join(filter(None, [row.preset, *changes]))), []).append(row)
    return found


def _times(form: str, *, peer: str = "peer", end: str = "s") -> dict[str, Metric]:
    """Our time and a peer's, in metrics whose names end so, and how many times faster we are."""
    return {
        "factor": Metric("times faster", form, "higher"),
        f"ours_{end}": Metric("seconds, calibrl", ".2g", "lower"),
        f"theirs_{end}": Metric(f"seconds, {peer}", ".2g"),
    }


CATALOGUE: dict[str, Experiment] = {
    "core": Experiment(
        title="Calibrating forecasts of real data",
        question=(
            "Models trained on scikit-learn's diabetes and digits data say how sure they are. Are they as often right "
            "as they say? The uncalibrated arm trains on every row; the calibrated arm sets aside a third of them to "
            "learn its map; the cross-fitted arm needs to set none aside. All are tested on the same unseen rows."
        ),
        baseline="uncalibrated",
        metrics={
            "calibration_loss": Metric("calibration loss", ".4f", "lower"),
            "coverage_90": Metric("90 % interval holds", ".1%"),
            "crps": Metric("CRPS", ".2f", "lower"),
            "ece": Metric("calibration error", ".4f", "lower"),
            "nll": Metric("log loss", ".3f", "lower"),
            "accuracy": Metric("accuracy", ".1%", "higher"),
        },
        figures={
            "reliability": (
                "Top: the share of outcomes below each predicted quantile; calibrated is the diagonal. Bottom: where "
                "in its forecast each outcome fell (the PIT); calibrated is flat at 1. Without and with calibration"
            ),
            "intervals": "90 % intervals of the dropout network, without and with calibration; crosses are outside",
            "digits": "How sure the digit classifier was, and how often it was right; larger dots stand for more rows",
        },
    ),
    "bandits": Experiment(
        title="Contextual bandits",
        question=(
            "Each round shows a context; the policy picks an arm and sees only that arm's reward. LinUCB takes the "
            "arm with the highest 84 % quantile; CalLinUCB calibrates the quantiles with each arm's own record. "
            "Greedy, which never explores, is the control. All policies see the same contexts and random draws."
        ),
        baseline="linucb",
        metrics={
            "reward": Metric("reward", ".1f", "higher"),
            "regret": Metric("regret", ".1f", "lower"),
            "coverage": Metric("84 % quantile covers", ".1%"),
            "calibration_loss": Metric("calibration loss", ".3f", "lower"),
        },
        paper=TABLE_1,
        thin=("reward",),
        step="round",
        figures={
            "table": "Share of the optimal reward, problem by problem: mean over trials and its standard error",
            "learning": "Mean reward so far, and reliability on the chosen arms and on all arms",
            "beliefs": "What LinUCB and CalLinUCB expected of two arms where they disagreed: medians, 90 % intervals",
        },
        picks=("policies",),
    ),
    "inventory": Experiment(
        title="Perishable inventory",
        question=(
            "Every evening a shop orders goods that keep for a few days. Each unit that expires unsold (waste) or is "
            "asked for when there is none (stock-out) costs 1. The uncalibrated arm plans with its network's "
            "forecasts, the calibrated arm with R∘T; the heuristic orders up to 1.5 times the mean; the "
            "oracle knows the demand. All arms face the same days and customers."
        ),
        baseline="uncalibrated",
        metrics={
            "reward": Metric("reward", ",.0f", "higher"),
            "waste_share": Metric("waste", ".1%", "lower"),
            "stockout_share": Metric("stock-outs", ".1%", "lower"),
            "shipped": Metric("shipped", ",.0f"),
            "wasted": Metric("wasted", ",.0f", "lower"),
            "stockouts": Metric("units short", ",.0f", "lower"),
            "coverage_80": Metric("80 % interval holds", ".1%"),
            "calibration_loss": Metric("calibration loss", ".3f", "lower"),
        },
        paper=TABLE_2,
        figures={
            "table": (
                "Waste and stock-outs of every arm, as a share of the units shipped: mean over seeds and the standard "
                "error of their sum"
            ),
            "reliability": "Reliability by days ahead, without and with calibration, and coverage by series",
            "days": "Forecasts of one series over the test period, without and with calibration",
        },
        picks=("arms", "shelf_lives", "data", "period"),
    ),
    "control": Experiment(
        title="Continuous control: planning with a learnt model",
        question=(
            "An agent trains networks to forecast its world and plans with them, trial after trial. The calibrated "
            "arm uses a held-out fifth of its rows to fit a map on top of the networks; the uncalibrated arm has the "
            "same networks and no map. Arms with the same seed share initial weights and random draws. Calibration is "
            "measured on every new trajectory before it is trained on."
        ),
        baseline="uncalibrated",
        metrics={
            "return": Metric("return of a trial", ".1f", "higher"),
            "best": Metric("best return so far", ".1f", "higher"),
            "calibration_loss": Metric("calibration loss", ".3f", "lower"),
            "coverage_90": Metric("90 % interval holds", ".1%"),
            "crps": Metric("CRPS", ".4f", "lower"),
        },
        step="environment step",
        figures={
            "control-learning": "Return of each trial, and the best so far: mean over seeds and its standard error",
            "control-calibration": "Calibration of one-step forecasts on trajectories not yet trained on",
            "control-horizon": "Calibration of imagined rollouts, by number of steps ahead",
            "control-predictions": "One-step forecasts along new trajectories, with 90 % intervals",
        },
    ),
    "mdp": Experiment(
        title="Discrete MDPs: what calibration is worth",
        question=(
            "To get the value of a policy right, does a model have to be sharp, or calibrated? On random MDPs both are "
            "known exactly. On FrozenLake, CliffWalking, Taxi and mazes a model is learnt from too few rows (table) or "
            "with features that are too coarse (coarse): what return does it promise for its plan, what does the plan "
            "deliver (0 is acting at random, 1 is optimal), and does recalibrating the model help?"
        ),
        baseline="raw",
        metrics={
            "calibration_error": Metric("calibration error", ".3f", "lower"),
            "brier": Metric("Brier score", ".3f", "lower"),
            "value_error": Metric("error in the policy's value", ".1e", "lower"),
            "promise_error": Metric("|promised - delivered|", ".3f", "lower"),
            "delivered": Metric("delivered return", ".3f", "higher"),
        },
        along=Axis("rows_per_state_and_action", "rows for each state and action", ("task", "learner")),
        figures={
            "mdp-theory": "Two states, and random MDPs: only miscalibrated models get values wrong",
            "mdp-planning-table": (
                "Planning with a table that has too few rows, by amount of data: mean over seeds and its standard error"
            ),
            "mdp-planning-coarse": (
                "Planning with features that are too coarse, by amount of data: mean over seeds and its standard error"
            ),
        },
    ),
    "safety": Experiment(
        title="Safety: does 90 % safe mean safe nine times in ten?",
        question=(
            "An agent plans a path that is safe with 90 % probability according to its model, and executes it. How "
            "often does it leave the safe set? The over-confident arm trusts its uncalibrated model, the calibrated "
            "arm R∘T; two more correct R∘T on practice plans, with a map or with conformal ranks; the truth arm knows "
            "the real dynamics."
        ),
        baseline="over-confident",
        metrics={
            "violations": Metric("left the safe set", ".1%", "lower"),
            "expected_violations": Metric("the model expected", ".1%"),
            "return": Metric("return", ".3f", "higher"),
        },
        along=Axis("episodes", "episodes of experience", ("world",)),
        figures={
            "safety-rates": (
                "How often plans left the safe set, and what they earned, by amount of experience: mean over seeds and "
                "its standard error"
            ),
            "safety-paths": (
                "One plan under each model, executed many times from the dot to the star; paths that hit the disc are "
                "red. A plan is allowed to hit it in 10 % of its paths"
            ),
        },
    ),
    "quality": Experiment(
        title="Which map corrects a forecast best",
        question=(
            "The forecast is a standard normal, the truth is something else. How far is the corrected forecast's score "
            "from that of the truth, for each map and number of rows it learns from?"
        ),
        baseline="none",
        metrics={"excess_crps_x1000": Metric("excess CRPS × 1000", ".3g", "lower")},
        step="rows",
    ),
    "speed": Experiment(
        title="Speed compared with other libraries",
        question="How many times faster than a widely used library, in the same run on one thread?",
        baseline="",
        metrics=_times(".2f", end="seconds"),
    ),
    "mdp speed": Experiment(
        title="Speed of planning compared with other libraries",
        question="How many times faster is value iteration than loops in Python or a library, in the same run?",
        baseline="",
        metrics=_times(".1f"),
    ),
    "parallel speed": Experiment(
        title="Two workers compared with one",
        question="How many times faster do two workers produce the bandit table, by CPU time and by the wall clock?",
        baseline="",
        metrics={
            "cpu_factor": Metric("times faster, CPU", ".2f", "higher"),
            "wall_factor": Metric("times faster, wall", ".2f", "higher"),
            "load": Metric("load of the two cores", ".1f"),
        },
    ),
    "planning speed": Experiment(
        title="Speed of control compared with eager PyTorch",
        question=(
            "How many times faster is one action, or training, on a CPU than the same in eager PyTorch, one network "
            "after the other? And what does calibration cost, relative to the same without it (1.00)?"
        ),
        baseline="",
        metrics=_times(".2f"),
    ),
    "inventory speed": Experiment(
        title="Speed of ordering compared with NumPy",
        question="How many times faster is one evening's plan than the same written in NumPy, in the same run?",
        baseline="",
        metrics=_times(".1f", peer="NumPy"),
    ),
    "inventory savings": Experiment(
        title="What choices save in the shop",
        question="What share of the cost of one arm does another save? With a 95 % interval from resampling series.",
        baseline="",
        metrics={
            "saving": Metric("saving", ".1%", "higher"),
            "low": Metric("from", ".1%"),
            "high": Metric("to", ".1%"),
        },
    ),
    "gpu speed": Experiment(
        title="Planning and training on a GPU",
        question="How long does one action or one training step take, and how many times faster than plain PyTorch?",
        baseline="eager PyTorch",
        metrics={
            "speedup": Metric("times faster", ".1f", "higher"),
            "ms": Metric("milliseconds", ".3g", "lower"),
            "tflops": Metric("TFLOP/s", ".3g", "higher"),
        },
    ),
}
