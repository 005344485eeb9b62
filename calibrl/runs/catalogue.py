"""What each experiment is, for tables and pages: its name, the question it asks, and how to read its numbers."""

from __future__ import annotations

from calibrl.runs.experiment import Description, Metric

CATALOGUE: dict[str, Description] = {
    "control": Description(
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
}
