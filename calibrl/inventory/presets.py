"""What is compared in the inventory experiment: models, arms, periods, and how much of it to run."""

from __future__ import annotations

from dataclasses import dataclass, field

from calibrl.errors import CalibrlError
from calibrl.forecasters.dropout import DropoutTraining
from calibrl.inventory.problems import PROBLEMS


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
last 120 days. noise: with learnt noise. plus: with more features.
best: with both, the closed-loop planner and the weekly map. weekday, tuned …: controls. oracle: it
knows demand.
"""

MAIN = tuple(name for name, arm in ARMS.items() if arm.model in ("paper", "weekday", ""))
"""Arms that need no other network than the paper's."""


@dataclass(frozen=True)
class InventorySettings:
    """How much to run: which arms, shelf lives in days, and paired seeds.

    paths: demand paths of a decision, and passes of a network; trajectories: those of the paper's search; series, days:
    only so many of them, or all.
    """

    name: str
    arms: tuple[str, ...] = MAIN
    shelf_lives: tuple[int, ...] = (3,)
    seeds: int = 10
    seed: int = 100
    data: str = "bakery"
    period: str = "test"
    paths: int = 300
    trajectories: int = 5000
    training: DropoutTraining = field(default_factory=DropoutTraining)
    series: int | None = None
    days: int | None = None

    def check(self) -> None:
        """Refuse what cannot be run before anything is."""
        for kind, names, known in (
            ("arm", self.arms, tuple(ARMS)),
            ("data", (self.data,), tuple(PROBLEMS)),
            ("period", (self.period,), tuple(PROBLEMS.get(self.data, PROBLEMS["bakery"]).periods)),
        ):
            unknown = [name for name in names if name not in known]
            if unknown:
                raise CalibrlError(f"{kind} {unknown[0]!r} is unknown; known: {'; '.join(known)}")
        for name in ("seeds", "paths", "trajectories"):
            if getattr(self, name) < 1:
                raise CalibrlError(f"{name} {getattr(self, name)} is nothing to run; use 1 or more")
        wrong = [days for days in self.shelf_lives if days < 1]
        if wrong or not self.shelf_lives:
            raise CalibrlError(f"shelf life {wrong[0] if wrong else 'none'} cannot be sold; use 1 day or more")


QUICK = DropoutTraining(steps=800, batch_size=256, lr=3e-3, min_steps=400, evaluate_every=50)
TINY = DropoutTraining(steps=20, batch_size=64, min_steps=1, evaluate_every=10, validation_slices=2)

PRESETS = {
    preset.name: preset
    for preset in (
        InventorySettings("small", seeds=2, seed=0, paths=150, training=QUICK, series=18, days=28),
        InventorySettings("paper", shelf_lives=(3, 2, 5)),
        InventorySettings("best", arms=tuple(ARMS), shelf_lives=(3, 2, 5)),
        InventorySettings("tiny", seeds=2, seed=0, paths=20, trajectories=50, training=TINY, series=4, days=8),
    )
}
"""small: a laptop's. paper: the paper's settings. best: every arm. tiny: for tests.

Settings were chosen on the period "tuning" and on seeds below 100.
"""


def chosen(name: str) -> InventorySettings:
    """The preset of that name, or an error."""
    if name not in PRESETS:
        raise CalibrlError(f"preset {name!r} is unknown; use one of {', '.join(PRESETS)}")
    return PRESETS[name]
