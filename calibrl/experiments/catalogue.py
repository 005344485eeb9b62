"""What each experiment is, for tables and pages: its name, the question it asks, and how to read its numbers."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Metric:
    """One column of a table: a heading, how to print a number, and which way is better."""

    heading: str
    form: str = ".4g"
    better: str = ""


@dataclass(frozen=True)
class Experiment:
    """A title, a question in a sentence or two, the arm others are compared with, and the metrics to show."""

    title: str
    question: str
    baseline: str
    metrics: dict[str, Metric] = field(default_factory=dict)


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
    ),
}
