"""Table 2 of the paper: perishable goods ordered with and without calibration, and the controls it lacks.

Here is what is compared (models and arms) and how much of it is run (settings and presets); `arms` does the work.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from calibrl.errors import CalibrlError
from calibrl.files import fingerprint
from calibrl.runs.experiment import ANY, AT_LEAST_0, LOSS, Experiment, Job, Metric, Number, Printed
from calibrl.runs.settings import PAPER, setting
from calibrl.text import for_rich

if TYPE_CHECKING:
    from calibrl.runs.engine import Found
    from calibrl.runs.rows import Row


@dataclass(frozen=True)
class Model:
    """A forecaster: which features, and for a network whether it learns the noise; `weekday` is no network."""

    recipe: str
    noise: bool = False

    @property
    def is_network(self) -> bool:
        """Whether it has to be trained."""
        return self.recipe != "history"


MODELS = {
    "paper": Model("paper"),
    "noise": Model("paper", noise=True),
    "plus": Model("plus"),
    "best": Model("plus", noise=True),
    "weekday": Model("history"),
}
"""paper: the paper's features, dropout's spread alone. weekday: the mean of the same weekday over four weeks."""


@dataclass(frozen=True)
class Arm:
    """A way to order: a model's forecast, the map on top of it, and a planner, by name in `calibrl.inventory.policy`.

    mapping: isotonic, smooth (the library's default), or none; window, every: days of evidence the map is learnt from,
    and after how many it is learnt again. tuned: the planner's parameter to be chosen, on the last days before the
    test, and the values to choose from.
    """

    model: str
    planner: str = "random-trajectories"
    mapping: str = ""
    window: int | None = None
    every: int | None = None
    tuned: tuple[str, tuple[float, ...]] | None = None


FACTORS = (1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6)
QUANTILES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.995)

ARMS = {
    "heuristic": Arm("paper", "heuristic"),
    "tuned heuristic": Arm("paper", "heuristic", tuned=("factor", FACTORS)),
    "uncalibrated": Arm("paper"),
    "calibrated": Arm("paper", mapping="isotonic"),
    "calibrated, weekly": Arm("paper", mapping="isotonic", window=120, every=7),
    "calibrated, default map": Arm("paper", mapping="smooth"),
    "uncalibrated, levels": Arm("paper", "order-up-to"),
    "calibrated, levels": Arm("paper", "order-up-to", mapping="isotonic"),
    "newsvendor": Arm("paper", "newsvendor", mapping="isotonic"),
    "tuned quantile": Arm("paper", "newsvendor", tuned=("quantile", QUANTILES)),
    "noise": Arm("noise"),
    "noise, calibrated": Arm("noise", mapping="isotonic"),
    "noise, levels": Arm("noise", "order-up-to"),
    "noise, calibrated, levels": Arm("noise", "order-up-to", mapping="isotonic"),
    "plus": Arm("plus"),
    "plus, calibrated": Arm("plus", mapping="isotonic"),
    "weekday": Arm("weekday", "order-up-to", mapping="isotonic"),
    "best, uncalibrated": Arm("best", "order-up-to"),
    "best": Arm("best", "order-up-to", mapping="isotonic", window=120, every=7),
    "oracle": Arm("", "oracle"),
}
"""The paper's three are heuristic, uncalibrated and calibrated. weekly: the map is learnt again every week, from the
last 120 days. noise: with learnt noise. plus: with more features. best: with both, the closed-loop planner and the
weekly map. weekday, tuned …: controls. oracle: it knows demand.
"""

MAIN = tuple(name for name, arm in ARMS.items() if arm.model in ("paper", "weekday", ""))
"""Arms that need no other network than the paper's."""


@dataclass(frozen=True)
class TrainingSettings:
    """How networks are trained: see `calibrl.forecasters.densenet.DropoutTraining`."""

    steps: int = setting(2000, help="maximum number of Adam steps", least=1)
    batch_size: int = setting(256, help="rows per step", least=1)
    lr: float = setting(2e-3, help="Adam's initial learning rate, which falls to a fiftieth")
    min_steps: int = setting(800, help="never stop before this step")
    evaluate_every: int = setting(100, help="steps between evaluations on held-out rows", least=1)
    patience: int = setting(6, help="stop after this many evaluations without improvement", least=1)
    validation_slices: int = setting(5, help="stretches of rows held out for early stopping", least=1)
    validation_fraction: float = setting(0.12, help="their total share of the rows")
    weight_decay: float = setting(1e-5, help="weight decay", least=0)


_PAPERS = {"paper": PAPER}


@dataclass(frozen=True)
class InventorySettings:
    """How much to run: which arms, shelf lives in days, and paired seeds."""

    name: str
    arms: tuple[str, ...] = setting(
        MAIN, flag="--arm", help="ways to order, by name: heuristic, uncalibrated and calibrated are the paper's"
    )
    shelf_lives: tuple[int, ...] = setting(
        (3,), flag="--shelf-life", help="days for which goods can be sold; the paper does not say", least=1
    )
    seeds: int = setting(10, help="how many paired seeds", source=_PAPERS, least=1, decides_rows=False)
    seed: int = setting(100, help="the first seed", least=0, decides_rows=False)
    data: str = setting(
        "bakery",
        help="sales data: bakery (included) or favorita (from the folder CALIBRL_DATA); the paper's are not public",
    )
    period: str = setting("test", help="test period: test (the paper's months), later (the months after), or tuning")
    sales: str | None = setting(None, help="a sales file of your own instead, as for calibrl order: date, item, units")
    items: str | None = setting(None, help="with --sales: each item's shelf_life, pack_size, lead_days and costs")
    columns: str | None = setting(None, help="with --sales: names of columns, as ours=theirs: units=Qty,item=SKU")
    date_format: str | None = setting(None, help="with --sales: dates are day-first, month-first or like %d.%m.%y")
    country: str | None = setting(None, help="with --sales: whose public holidays to expect, such as DE or DE-BW")
    n_paths: int = setting(
        300, flag="", help="demand paths per decision, and passes of a network", source=_PAPERS, least=1
    )
    trajectories: int = setting(
        5000, flag="", help="random plans that the paper's planner tries", source=_PAPERS, least=1
    )
    training: TrainingSettings = TrainingSettings()
    series: int | None = setting(None, flag="", help="number of series; all if None", least=1)
    days: int | None = setting(None, flag="", help="number of days; all if None", least=1)
    device: str = setting(
        "cpu", help="where to train networks and run the paper's planner: cpu, cuda or auto", decides_rows=False
    )

    @property
    def source(self) -> str:
        """What the sales are called: those of a file by its name."""
        return self.data if self.sales is None else Path(self.sales).name.split(".")[0]

    @property
    def fingerprint(self) -> str:
        """The name and the beginning of the checksum of the files that were given: others give other rows."""
        return fingerprint(*(path for path in (self.sales, self.items) if path is not None))


QUICK = TrainingSettings(steps=800, batch_size=256, lr=3e-3, min_steps=400, evaluate_every=50)
TINY = TrainingSettings(steps=20, batch_size=64, min_steps=1, evaluate_every=10, validation_slices=2)

PRESETS = {
    preset.name: preset
    for preset in (
        InventorySettings("small", seeds=2, seed=0, n_paths=150, training=QUICK, series=18, days=28),
        InventorySettings("paper", shelf_lives=(3, 2, 5)),
        InventorySettings("best", arms=tuple(ARMS), shelf_lives=(3, 2, 5)),
        InventorySettings("tiny", seeds=2, seed=0, n_paths=20, trajectories=50, training=TINY, series=4, days=8),
    )
}
"""small: a laptop's. paper: the paper's settings. best: every arm. tiny: for tests.

Settings were chosen on the period "tuning" and on seeds below 100.
"""


OWN_PERIODS = ("test", "tuning")
OF_SALES = ("items", "columns", "date_format", "country")
"""Periods that one's own sales are cut into, and settings that are about them."""


def check(settings: InventorySettings) -> None:
    """Refuse what cannot be run before anything is."""
    from calibrl.arrays import device_named
    from calibrl.inventory.problems import PROBLEMS

    if settings.sales is None:
        alone = next((name for name in OF_SALES if getattr(settings, name) is not None), None)
        if alone is not None:
            said = f"--{alone.replace('_', '-')} {getattr(settings, alone)}"
            raise CalibrlError(f"{said} is about a sales file; add --sales FILE")
    periods = PROBLEMS.get(settings.data, PROBLEMS["bakery"]).periods if settings.sales is None else OWN_PERIODS
    for kind, names, known in (
        ("arm", settings.arms, tuple(ARMS)),
        ("data", (settings.data,), tuple(PROBLEMS)),
        ("period", (settings.period,), tuple(periods)),
    ):
        unknown = [name for name in names if name not in known]
        if unknown:
            raise CalibrlError(f"{kind} {unknown[0]!r} is unknown; known: {'; '.join(known)}")
    wrong = [days for days in settings.shelf_lives if days < 1]
    if wrong or not settings.shelf_lives:
        raise CalibrlError(f"shelf life {wrong[0] if wrong else 'none'} cannot be sold; use 1 day or more")
    device_named(settings.device, float64=True)


def jobs(settings: InventorySettings) -> Sequence[Job]:
    """One job for each model and seed; its arms are paired, and so are seeds between models."""
    from calibrl.inventory.arms import play_model, world

    check(settings)
    # Read once here: files that are missing are missed before any work is begun.
    world(settings)
    source = settings.data if settings.sales is None else settings.fingerprint
    arms: dict[str, dict[str, Arm]] = {}
    for name in settings.arms:
        arms.setdefault(ARMS[name].model, {})[name] = ARMS[name]
    return [
        Job(
            f"{source}, {settings.period}, {model or 'oracle'}, seed {seed}",
            play_model,
            (settings, MODELS.get(model), of_model, seed),
        )
        for seed in range(settings.seed, settings.seed + settings.seeds)
        for model, of_model in arms.items()
    ]


def _draw(out: Path, _: InventorySettings, found: Found) -> None:
    from calibrl.inventory import figures

    figures.save(out, found)


def show(rows: Sequence[Row], _: InventorySettings) -> None:
    """Print Table 2 for each shelf life, next to the paper's, and how well the forecasts are calibrated."""
    from calibrl.runs.console import plain_table, table_console
    from calibrl.runs.rows import latest, table

    rows = latest(rows)
    names = ("shipped", "waste_share", "stockout_share", "reward", "coverage_80")
    cells = {name: table(rows, name, "uncalibrated") for name in names}
    console = table_console()
    for problem, arms in cells["reward"].items():
        about = next(row.settings for row in rows if row.problem == problem)
        seeds = max(cell.seeds for cell in arms.values())
        title = for_rich(f"{problem}: {about['series']} series × {about['days']} days × {seeds} seeds", "italic")
        headings = ("", "units", "waste", "short", "reward", "gain", "80 %", "paper")
        shown = plain_table(*headings, title=title, title_justify="left", padding=(0, 0, 0, 1))
        base = arms.get("uncalibrated")
        for arm, reward in arms.items():
            gain = ""
            if base is not None and base.mean and arm not in ("uncalibrated", "oracle"):
                gain = f"{100 * reward.difference / abs(reward.mean - reward.difference):+.0f}"
            printed = TABLE_2.at(problem, arm, "reward")
            holds = cells["coverage_80"].get(problem, {}).get(arm)
            shown.add_row(
                for_rich(arm),
                f"{cells['shipped'][problem][arm].mean / 1000:,.0f}k",
                f"{100 * cells['waste_share'][problem][arm].mean:.1f}",
                f"{100 * cells['stockout_share'][problem][arm].mean:.1f}",
                f"{reward.mean:,.0f}" + (f" ± {reward.error:,.0f}" if reward.seeds > 1 else ""),
                gain,
                f"{100 * holds.mean:.0f}" if holds else "",
                f"{printed.mean / 1000:,.1f}k" if printed else "",
            )
        console.print(shown)
        if about.get("note"):
            console.print(for_rich(f"Note: {about['note']}."))
    console.print(
        "units: shipped, in thousands. waste, short: units wasted and units out of stock, in % of those shipped. "
        "reward: minus what both cost (each 1, or as the item file says), ± standard error over seeds. gain: % saved "
        "over uncalibrated, on the same seeds. 80 %: share of days inside the 80 % interval. paper: its reward.",
        highlight=False,
    )


def _planners() -> Mapping[str, str]:
    from calibrl.inventory.policy import PLANNERS

    return {name: (type(planner).__doc__ or "").splitlines()[0].rstrip(".") for name, planner in PLANNERS.items()}


def _printed(*numbers: float) -> dict[str, Number]:
    names = ("shipped", "wasted", "stockouts", "waste_share", "stockout_share", "reward")
    return dict(zip(names, map(Number, numbers), strict=True))


TABLE_2 = Printed(
    "Malik et al. (2019), Table 2: units over 100 items of a grocery chain (other data than here), mean of 10 trials",
    {
        ANY: {
            "calibrated": _printed(332_150, 7_466, 9_327, 0.022, 0.028, -16_793),
            "uncalibrated": _printed(319_692, 3_148, 17_358, 0.010, 0.054, -20_506),
            "heuristic": _printed(338_011, 13_699, 11_817, 0.041, 0.035, -25_516),
        }
    },
)
"""Shares are of the units shipped."""

EXPERIMENT = Experiment(
    name="inventory",
    title="Perishable inventory",
    question=(
        "Every evening a shop orders goods that keep for a few days. Each unit that expires unsold (waste) or is "
        "asked for when there is none (stock-out) costs 1. The uncalibrated arm plans with its network's "
        "forecasts, the calibrated arm with R∘T; the heuristic orders up to 1.5 times the mean; the "
        "oracle knows the demand. All arms face the same days and customers."
    ),
    baseline="uncalibrated",
    metrics={
        "reward": Metric("reward", ",.0f", "higher", "minus the units wasted or short", (-math.inf, 0)),
        "waste_share": Metric("waste", ".1%", "lower", "units that expired unsold, as a share of the units shipped"),
        "stockout_share": Metric(
            "stock-outs",
            ".1%",
            "lower",
            "units asked for when there were none, as a share of the units shipped",
            AT_LEAST_0,
        ),
        "shipped": Metric("shipped", ",.0f", help="units ordered", limits=AT_LEAST_0),
        "wasted": Metric("wasted", ",.0f", "lower", "units that expired unsold", AT_LEAST_0),
        "stockouts": Metric("units short", ",.0f", "lower", "units asked for when there were none", AT_LEAST_0),
        "coverage_80": Metric(
            "80 % interval holds",
            ".1%",
            help="the share of days whose demand is inside the forecast's 80 % interval; 80 % is honest",
        ),
        "calibration_loss": Metric("calibration loss", ".3f", "lower", LOSS, AT_LEAST_0),
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
    subject="calibrated",
    picks=("arms", "shelf_lives", "data", "period", "sales"),
    presets=PRESETS,
    default="small",
    small=PRESETS["small"],
    full=PRESETS["paper"],
    jobs=jobs,
    draw=_draw,
    show=show,
    names={"planners": ("of perishable goods, calibrl.inventory.policy", _planners)},
    file="inventory.jsonl",
)
