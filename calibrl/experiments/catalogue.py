"""What each experiment is, for tables and pages: its name, the question it asks, and how to read its numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from calibrl.experiments.paper import TABLE_1, TABLE_2, Printed
from calibrl.results import Row


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


CATALOGUE: dict[str, Experiment] = {
    "core": Experiment(
        title="Calibrating forecasts of real data",
        question=(
            "Models trained on scikit-learn's diabetes and digits sets say how sure they are. Are they right to be? "
            "The uncalibrated arm trains on every row; the calibrated arm gives up a third of them to learn its map; "
            "the cross-fitted arm gives up none. All are judged on the same rows none of them has seen."
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
                "How many outcomes fell below each promised level (above; honest is the diagonal), and where in its "
                "forecast each fell (below, the PIT; honest is flat at 1), without and with calibration"
            ),
            "intervals": "90 % intervals of the dropout network, without and with calibration; crosses fell outside",
            "digits": "How sure the classifier of digits was, and how often it was right; dots grow with the rows",
        },
    ),
    "bandits": Experiment(
        title="Contextual bandits",
        question=(
            "Every round shows a context; the policy picks an arm and sees only that arm's reward. LinUCB takes the "
            "arm with the highest 84 % quantile; CalLinUCB takes its quantiles from each arm's own record. Greedy is "
            "the control that must be shown. All policies meet the same contexts and the same luck."
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
            "learning": "Reward so far, and reliability on the chosen arms and on all arms",
            "beliefs": "What LinUCB and CalLinUCB expected of two arms where they disagreed: medians, 90 % intervals",
        },
        picks=("policies",),
    ),
    "inventory": Experiment(
        title="Perishable inventory",
        question=(
            "Every evening a shop orders what will be on its shelves for some days; what is not sold by then is waste, "
            "what is asked for and not there is a stock-out, and both cost one. The uncalibrated arm plans with what "
            "its network forecasts, the calibrated arm with R∘T; the heuristic orders up to 1.5 times the mean; the "
            "oracle knows tomorrow. All face the same days and customers."
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
            "reliability": "Reliability by days ahead, without and with calibration, and coverage series by series",
            "days": "Forecasts of one series along the test, without and with calibration",
        },
        picks=("arms", "shelf_lives", "data", "period"),
    ),
    "control": Experiment(
        title="Continuous control: planning with a learnt model",
        question=(
            "An agent learns networks that forecast its world and plans with them, trial after trial. The calibrated "
            "arm keeps a fifth of its rows to fit a map on top of the networks; the uncalibrated arm has the same "
            "networks and leaves the map out. Arms of one seed start alike and have the same luck. Honesty is measured "
            "on every new trajectory before it is trained on."
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
            "control-calibration": "How honest one-step forecasts were on trajectories not yet trained on",
            "control-horizon": "How honest imagined rollouts were, by how far they looked ahead",
            "control-predictions": "One-step forecasts along new trajectories, with 90 % intervals",
        },
    ),
    "mdp": Experiment(
        title="Discrete MDPs: why calibrated is the right kind of right",
        question=(
            "Does a model have to be sharp to value a policy right, or calibrated? On random MDPs both are known "
            "exactly. On FrozenLake, CliffWalking, Taxi and mazes a model is learnt from too few rows (table) or "
            "through too coarse features (coarse): what does it promise for its plan, what does the plan deliver "
            "(0 is acting at random, 1 is optimal), and does recalibrating the model help?"
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
        title="Safety: is a 90 % kept nine times in ten?",
        question=(
            "An agent plans a path that its model holds to be safe with 90 % and carries it out. How often does it "
            "leave the safe set? The over-confident arm believes its bare model, the calibrated one R∘T; two more "
            "correct R∘T on plans it made before, by a map or by conformal ranks; the truth is told the real dynamics."
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
                "One plan under each model, carried out many times from the dot towards the star; paths that hit the "
                "disc are red. A plan may hit it in 10 % of its paths"
            ),
        },
    ),
    "quality": Experiment(
        title="Which map repairs a forecast best",
        question=(
            "The forecast is a standard normal, the truth is something else. How far from the truth's own score is "
            "the forecast after each map, by the number of rows the map learns from?"
        ),
        baseline="none",
        metrics={"excess_crps_x1000": Metric("excess CRPS × 1000", ".3g", "lower")},
        step="rows",
    ),
    "speed": Experiment(
        title="Speed beside named peers",
        question="How many times faster than a library people use, in the same run on one thread?",
        baseline="",
        metrics={
            "factor": Metric("times faster", ".2f", "higher"),
            "ours_seconds": Metric("seconds, calibrl", ".2g", "lower"),
            "theirs_seconds": Metric("seconds, peer", ".2g"),
        },
    ),
    "mdp speed": Experiment(
        title="Speed of planning beside named peers",
        question="How many times faster is value iteration than loops in Python or a library, in the same run?",
        baseline="",
        metrics={
            "factor": Metric("times faster", ".1f", "higher"),
            "ours_s": Metric("seconds, calibrl", ".2g", "lower"),
            "theirs_s": Metric("seconds, peer", ".2g"),
        },
    ),
    "parallel speed": Experiment(
        title="Two workers beside one",
        question="How many times faster do two workers make the bandit table, by CPU time and by the wall clock?",
        baseline="",
        metrics={
            "cpu_factor": Metric("times faster, CPU", ".2f", "higher"),
            "wall_factor": Metric("times faster, wall", ".2f", "higher"),
            "load": Metric("load of the two cores", ".1f"),
        },
    ),
    "planning speed": Experiment(
        title="Speed of control beside eager PyTorch",
        question=(
            "How many times faster is one action, or training, on a CPU than the same in eager PyTorch, one network "
            "after the other? And how much does calibration cost: the same without it has 1.00."
        ),
        baseline="",
        metrics={
            "factor": Metric("times faster", ".2f", "higher"),
            "ours_s": Metric("seconds, calibrl", ".2g", "lower"),
            "theirs_s": Metric("seconds, peer", ".2g"),
        },
    ),
    "inventory speed": Experiment(
        title="Speed of ordering beside plain NumPy",
        question="How many times faster is one evening's plan than the same written in NumPy, in the same run?",
        baseline="",
        metrics={
            "factor": Metric("times faster", ".1f", "higher"),
            "ours_s": Metric("seconds, calibrl", ".2g", "lower"),
            "theirs_s": Metric("seconds, NumPy", ".2g"),
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
