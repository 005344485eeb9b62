"""What each experiment is, for tables and pages: its name, the question it asks, and how to read its numbers."""

from __future__ import annotations

from calibrl.runs.experiment import Description, Metric
from calibrl.runs.paper import TABLE_2

CATALOGUE: dict[str, Description] = {
    "inventory": Description(
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
