"""How to read rows by name: those of benchmarks, which are described here, and those of experiments."""

from __future__ import annotations

from calibrl.runs.experiment import EXPERIMENTS, Description, Metric, experiment


def describe(name: str, *, baseline: str = "") -> Description:
    """How to read the rows of an experiment or benchmark; of one that is unknown, only its name and `baseline`."""
    if name in EXPERIMENTS:
        return experiment(name)
    return BENCHMARKS.get(name, Description(title=name, question="", baseline=baseline))


def _times(form: str, *, peer: str = "peer", end: str = "s") -> dict[str, Metric]:
    """Our time and a peer's, in metrics whose names end so, and how many times faster we are."""
    return {
        "factor": Metric("times faster", form, "higher"),
        f"ours_{end}": Metric("seconds, calibrl", ".2g", "lower"),
        f"theirs_{end}": Metric(f"seconds, {peer}", ".2g"),
    }


BENCHMARKS: dict[str, Description] = {
    "quality": Description(
        title="Which map corrects a forecast best",
        question=(
            "The forecast is a standard normal, the truth is something else. How far is the corrected forecast's score "
            "from that of the truth, for each map and number of rows it learns from?"
        ),
        baseline="none",
        metrics={"excess_crps_x1000": Metric("excess CRPS × 1000", ".3g", "lower")},
        step="rows",
    ),
    "trust": Description(
        title="Guarantees that hold, verdicts that are right",
        question="On simulated truths, how much do guaranteed intervals hold, and how often is a verdict right?",
        baseline="",
        metrics={"share": Metric("share", ".3f")},
        step="rows",
    ),
    "speed": Description(
        title="Speed compared with other libraries",
        question="How many times faster than a widely used library, in the same run on one thread?",
        baseline="",
        metrics=_times(".2f", end="seconds"),
    ),
    "mdp speed": Description(
        title="Speed of planning compared with other libraries",
        question="How many times faster is value iteration than loops in Python or a library, in the same run?",
        baseline="",
        metrics=_times(".1f"),
    ),
    "parallel speed": Description(
        title="Two workers compared with one",
        question="How many times faster do two workers produce the bandit table, by CPU time and by the wall clock?",
        baseline="",
        metrics={
            "cpu_factor": Metric("times faster, CPU", ".2f", "higher"),
            "wall_factor": Metric("times faster, wall", ".2f", "higher"),
            "load": Metric("load of the two cores", ".1f"),
        },
    ),
    "planning speed": Description(
        title="Speed of control compared with eager PyTorch",
        question=(
            "How many times faster is one action, or training, on a CPU than the same in eager PyTorch, one network "
            "after the other? And what does calibration cost, relative to the same without it (1.00)?"
        ),
        baseline="",
        metrics=_times(".2f"),
    ),
    "inventory speed": Description(
        title="Speed of ordering compared with NumPy",
        question="How many times faster is one evening's plan than the same written in NumPy, in the same run?",
        baseline="",
        metrics=_times(".1f", peer="NumPy"),
    ),
    "inventory savings": Description(
        title="What choices save in the shop",
        question="What share of the cost of one arm does another save? With a 95 % interval from resampling series.",
        baseline="",
        metrics={
            "saving": Metric("saving", ".1%", "higher"),
            "low": Metric("from", ".1%"),
            "high": Metric("to", ".1%"),
        },
    ),
    "gpu speed": Description(
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
