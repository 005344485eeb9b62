"""The arms of a policy, by name and by position, and the models that forecast what each pays.

A model is any forecaster (`any_forecaster.py`) or the compiled ridge regressions of LinUCB and its relatives, whose
decisions take microseconds: `CompiledRidge` is `Calibrated(RidgeArms(…), evidence=Rolling(), fit_map=fit_ecdf())`, or
`RidgeArms` alone, tested against these. Only forecasts as distributions need PyTorch, and load it: a service that
decides and learns starts without.
"""

from __future__ import annotations

import operator
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypedDict

import numpy as np
from numpy.typing import DTypeLike, NDArray
from scipy.special import ndtri

from calibrl.arrays import Array, is_tensor, plain_fields
from calibrl.errors import CalibrlError, check_known, check_within
from calibrl.kernels import arm_noise, ridge, ridge_policy
from calibrl.kernels.ridge_policy import Rules, State

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributions import Distribution

    from calibrl.data import Data

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Arm: TypeAlias = str | int
"""What an arm is called: an article's id, a treatment's name, a class number."""
Among: TypeAlias = Iterable[Arm] | Array
"""The arms a decision may take: their names, or a mask, True or False for every arm."""

REMEMBERED = 10_000
"""How many names of removed arms are kept, so that a year of them does not fill the memory."""


@dataclass(frozen=True)
class Arms:
    """The arms on offer, each at its position, and those removed last, in that order."""

    names: tuple[Arm, ...] = ()
    removed: tuple[Arm, ...] = ()

    @cached_property
    def position(self) -> dict[Arm, int]:
        """Where each arm is."""
        return {name: position for position, name in enumerate(self.names)}

    @cached_property
    def everyone(self) -> Ints:
        """The positions of all arms."""
        return np.arange(len(self.names))

    def __len__(self) -> int:
        return len(self.names)

    def plus(self, new: Sequence[Arm]) -> Arms:
        """With more arms at the end."""
        back = set(new)
        return Arms((*self.names, *new), tuple(name for name in self.removed if name not in back))

    def minus(self, gone: Arm) -> Arms:
        """Without an arm; those behind it move up."""
        names = tuple(name for name in self.names if name != gone)
        return Arms(names, (*self.removed, gone)[-REMEMBERED:])

    def at(self, arm: Any) -> int:
        """The position of an arm, or an error that says why it has none."""
        try:
            return self.position[arm]
        except (KeyError, TypeError):
            gone = isinstance(arm, (str, int, np.integer)) and arm in self.removed
            why = "was removed: leave it out" if gone else "was never offered: add it with add_arm"
            shown = ", ".join(map(repr, self.names[:8])) + (" …" if len(self) > 8 else "")
            raise CalibrlError(f"arm {arm!r} {why}; arms on offer: {shown}") from None

    def offered(self, among: Among) -> Ints:
        """The positions (n,) of the arms that a decision may take: in the order of names, or of all arms for a mask."""
        if isinstance(among, str) or not np.iterable(among):
            raise CalibrlError(f"among {among!r} is not a list; pass names such as ['news', 'music'], or a mask")
        values = among.tolist() if isinstance(among, np.ndarray) or is_tensor(among) else list(among)
        if values and all(isinstance(value, (bool, np.bool_)) for value in values):
            if len(values) != len(self):
                raise CalibrlError(f"among is a mask of {len(values)} for {len(self)} arms; pass a value for each")
            found = np.flatnonzero(values)
        else:
            found = np.array([self.at(name) for name in values], np.int64)
        if not len(found):
            raise CalibrlError("among leaves no arm to take; pass at least one, or do not ask for a decision")
        once, times = np.unique(found, return_counts=True)
        if len(once) < len(found):
            raise CalibrlError(f"among has arm {self.names[once[times.argmax()]]!r} twice; name each arm once")
        # A set has another order in every process: the same seed would take other arms.
        return once if isinstance(among, Set) else found

    def check_new(self, arms: Sequence[Arm]) -> list[Arm]:
        """Names that can be added, as plain strings and integers, or an error that says what is wrong."""
        if isinstance(arms, str):
            raise CalibrlError(f"arms {arms!r} is a word and no list; pass [{arms!r}]")
        for name in arms:
            if isinstance(name, bool) or not isinstance(name, (str, int, np.integer)):
                raise CalibrlError(f"arm {name!r} is not a name; use strings or integers")
        plain: list[Arm] = [str(name) if isinstance(name, str) else int(name) for name in arms]
        taken = set(self.names)
        for name in plain:
            if name in taken:
                raise CalibrlError(f"arm {name!r} is there already; arms need different names")
            taken.add(name)
        return plain

    def check_leaving(self, arm: Arm) -> Arm:
        """The name of an arm that can be removed, as it was added, or an error that says what is wrong."""
        name = self.names[self.at(arm)]
        if len(self) == 1:
            raise CalibrlError(f"arm {name!r} is the last one; a policy needs at least one arm")
        return name


def first_names(arms: int | Iterable[Arm]) -> list[Arm]:
    """The names of a new policy's arms: those given, or 0, 1, 2 … for a number of them."""
    # A word would be taken for the names of its letters.
    if isinstance(arms, (bool, str)) or not (isinstance(arms, (int, np.integer)) or np.iterable(arms)):
        raise CalibrlError(
            f"arms {arms!r} is neither a number of arms nor a list of names; pass 2 or ['news', 'music']"
        )
    names: list[Arm] = list(range(arms) if isinstance(arms, (int, np.integer)) else arms)
    if not names:
        raise CalibrlError("a policy needs at least one arm; pass a number of arms or their names")
    return names


class Rows(NamedTuple):
    """Rewards to learn: x (n, …), arm (n,) positions, reward (n,); and what `judge` says of each, (n,)."""

    x: Floats
    arm: Ints
    reward: Floats
    z: Floats
    error: Floats
    moved: Floats


class ArmModel(ABC):
    """A forecast for each of k arms, known by their positions 0 … k-1."""

    pulls: Ints
    """How many rewards each arm has had: (k,)."""
    row_shape: tuple[int, ...] | None = None
    """The shape of one row of x to learn from, None for any."""
    shared: bool = False
    """Whether a decision's x has a row of features for each arm on offer."""

    @abstractmethod
    def request(self, x: Array, offered: Ints) -> Floats:
        """A decision's context as the model wants it, or an error that says what is wrong with it."""

    @abstractmethod
    def quantiles(self, x: Floats, level: Floats) -> Floats:
        """Each arm's quantile (k,) at its level (k,), a z-score."""

    @abstractmethod
    def curves(self, x: Floats, level: Floats) -> Floats:
        """Each arm's quantiles (k, n) at the same levels (n,), z-scores."""

    @abstractmethod
    def means(self, x: Floats) -> Floats:
        """What each arm (k,) pays on average, as far as is known; on a scale of its own where only order matters."""

    @abstractmethod
    def forecast(self, x: Floats, offered: Ints) -> Distribution | Forecast:
        """What the arms at these positions (n,) are expected to pay: batch shape (n,)."""

    @abstractmethod
    def learn(self, rows: Rows) -> None:
        """Learn rows, each judged by the forecast as it stood before any of them; or an error, and nothing changes."""


NOTHING = np.ones(1)
"""The context of arms that have none."""


def as_floats(value: Array, what: str) -> Floats:
    """Numbers as float64, laid out as the kernels want them; None is the context of arms without one."""
    if value is None and what == "context":
        return NOTHING
    # Features may come from a network that is being trained, on a GPU, in half precision.
    given = value.detach().double().cpu() if is_tensor(value) else value
    if hasattr(given, "toarray"):  # SciPy's sparse rows
        given = given.toarray()
    try:
        return np.asarray(given, np.float64, order="C")
    except (TypeError, ValueError, OverflowError):
        shown = " ".join(reprlib.repr(given).split())
        raise CalibrlError(f"{what} {shown} is not made of numbers; pass an array of numbers") from None


def check_finite(values: Floats, what: str) -> None:
    """Refuse NaN and infinity."""
    if not np.isfinite(values).all():
        wrong = values[~np.isfinite(values)][0]
        raise CalibrlError(f"a {what} holds {wrong}; repair or drop that row: nothing was learnt from the call")


class RidgeOptions(TypedDict, total=False):
    """What every policy of ridge regressions can be told: see `RidgeSettings`."""

    ridge: float
    shared: bool
    min_rewards: int
    window: int
    scale: bool


LINKS = ("linear", "logistic")
COMMON = ("rewards", "largest", "changes")
"""Parts of the state that are of all arms together."""


class Forecast(NamedTuple):
    """What is known of arms at a context, where noise is learnt: two distributions of batch shape (n,).

    Parameters
    ----------
    mean
        What an arm pays on average: its width is what is not known yet, and shrinks as rewards come.
    outcome
        What it pays next time, noise included: calibrated with the arm's own record; as long as all rewards were 0 or
        1 a `Bernoulli`, whose probability is corrected by how rewards turned out, and so is not the mean's.
    """

    mean: Distribution
    outcome: Distribution


@dataclass(frozen=True)
class RidgeSettings:
    """What a `CompiledRidge` is, apart from what it has learnt.

    Parameters
    ----------
    dim
        Length of a context, or of an arm's features if `shared`.
    calibrated
        Whether each arm's quantiles come from the arm's own record of z-scores.
    ridge
        The prior's strength, in rows.
    shared
        One model of arm features for all arms, instead of one model of contexts per arm.
    min_rewards
        Rewards an arm has had before its own record counts, 2 or more.
    window
        How many of an arm's last rewards its record holds.
    noisy
        Forecast single rewards, with their noise, instead of expected ones.
    step
        How far a reward moves its arm's levels, as z-scores, to keep coverage; 0 for never.
    target
        The level, as a z-score, whose coverage `step` keeps.
    learnt
        Scale widths by each arm's noise, as learnt, and come back to arms that had too few rewards
        (`calibrl.kernels.arm_noise`).
    link
        "linear", or "logistic" for rewards of 0 and 1: means are then probabilities. Only where `learnt`.
    keep
        How much of what is known of an arm is left after one more reward of it, in (0, 1]: 0.999 forgets half in 700.
    watch
        Look for changes, and when there is one, let everything known count a twentieth.
    scale
        Scale the columns of contexts as they come (`calibrl.bandits.features`).
    """

    dim: int
    calibrated: bool = False
    ridge: float = 1.0
    shared: bool = False
    min_rewards: int = 10
    window: int = 1024
    noisy: bool = False
    step: float = 0.0
    target: float = 1.0
    learnt: bool = False
    link: str = "linear"
    keep: float = 1.0
    watch: bool = False
    scale: bool = False

    def __post_init__(self) -> None:
        plain_fields(self, "a whole number", operator.index, "dim", "min_rewards", "window")
        plain_fields(self, "a number", float, "ridge", "step", "target", "keep")
        plain_fields(self, "True or False", bool, "calibrated", "shared", "noisy", "learnt", "watch", "scale")
        check_within("dim", self.dim, "[1, inf)", "give the number of features")
        check_within("ridge", self.ridge, "[1e-9, inf)", "use a number above 0, such as 1: less leaves it singular")
        if self.min_rewards < 2 or self.window < self.min_rewards:
            raise CalibrlError(
                f"min_rewards {self.min_rewards} and window {self.window} make no record; use 2 ≤ min_rewards ≤ window"
            )
        check_within("target", self.target, "(-inf, inf)", "use a z-score such as 1")
        check_within("step", self.step, "[0, inf)", "use 0 for never, or a small number such as 0.03")
        check_within("fade", self.keep, "(0, 1]", "use a share such as 0.999, or 1")
        check_known("link", self.link, LINKS)

    @property
    def rules(self) -> Rules:
        """The settings as the kernels want them."""
        # Below `min_rewards` an arm's own record does not count; uncalibrated, it never does.
        least = self.min_rewards if self.calibrated else np.iinfo(np.int64).max
        how = (self.learnt, self.link == "logistic", self.keep, self.watch, self.min_rewards)
        return Rules(self.ridge, self.noisy, least, ridge.edges(self.window), self.target, self.step, *how)


class CompiledRidge(ArmModel):
    """Ridge regressions, one per arm or one shared, calibrated with each arm's own record or not, in compiled code.

    A `Forecaster` as well: `update(data)` learns rows x (n, dim), y (n, arms) with NaN for the arms that were not
    pulled, and calling it with x (n, dim) gives forecasts of batch shape (n, arms); not if `shared`.

    Parameters
    ----------
    arms
        How many arms there are.
    settings
        See `RidgeSettings`.
    """

    KEPT = ("rows", "gram", "moment", "sums", "pulls", "error", "shift", "noise", *COMMON)
    """The parts of the state that are saved: the rest follows from them and from the records."""

    def __init__(self, arms: int, settings: RidgeSettings) -> None:
        self.settings = settings
        self.rules = settings.rules
        self.row_shape, self.shared = (settings.dim,), settings.shared
        self.state = self._blank(1 if settings.shared else arms, arms)

    @property
    def pulls(self) -> Ints:  # type: ignore[override]
        """How many rewards each arm has had: (k,)."""
        return self.state.pulls

    # Decisions.

    def request(self, x: Array, offered: Ints) -> Floats:
        """The context as (1, dim), or the arms' features as (k, dim) where shared."""
        rows = as_floats(x, "context")
        shared, dim = self.settings.shared, self.settings.dim
        wanted = (len(offered), dim) if shared else (dim,)
        if rows.shape != wanted:
            what = "features of shape (arms on offer, dim)" if shared else "a context of shape (dim,)"
            raise CalibrlError(f"context has shape {rows.shape}; expected {wanted}: {what}")
        if not shared:
            return rows[None]
        # Every arm is scored; the score of one that is not on offer is never looked at.
        features = np.zeros((len(self.pulls), dim))
        features[offered] = rows
        return features

    def quantiles(self, x: Floats, level: Floats) -> Floats:
        """Each arm's quantile (k,) at its level (k,), a z-score."""
        return self._scores(x, level)[3]

    def curves(self, x: Floats, level: Floats) -> Floats:
        """Each arm's quantiles (k, n) at the same levels (n,), z-scores."""
        mean, _, sd, _ = self._scores(x, np.zeros(len(self.pulls)))
        return ridge_policy.quantiles(self.state, self.rules, mean, sd, level)

    def means(self, x: Floats) -> Floats:
        """Each arm's mean (k,), before the link."""
        return self._scores(x, np.zeros(len(self.pulls)))[0]

    def forecast(self, x: Floats, offered: Ints) -> Distribution | Forecast:
        """What the arms at these positions (n,) are expected to pay: batch shape (n,)."""
        mean, narrow, sd, single = self._scores(x, np.zeros(len(self.pulls)))
        if not self.settings.learnt:
            return self._calibrated(mean[offered], sd[offered], offered)
        ridge_policy.say(self.state, self.rules, x, mean, narrow, sd, single)
        known = self._known(mean[offered], sd[offered])
        if self.rules.logistic or ridge_policy.binary(self.state):
            import torch

            return Forecast(known, torch.distributions.Bernoulli(torch.from_numpy(single[offered])))
        return Forecast(known, self._calibrated(mean[offered], single[offered], offered))

    def _calibrated(self, mean: Floats, sd: Floats, offered: Ints) -> Distribution:
        """Forecasts by the arms' records."""
        bare = _normal(mean, sd)
        if not (self.settings.calibrated or self.settings.learnt):
            return bare
        from calibrl.algorithm import recalibrate
        from calibrl.maps.ecdf import ecdf_of

        columns = [self.record(a) for a in offered.tolist()]
        kept = [column if len(column) >= self.settings.min_rewards else column[:0] for column in columns]
        return recalibrate(bare, ecdf_of(kept, (len(kept),), shift=self.state.shift[offered]))

    def _known(self, mean: Floats, sd: Floats) -> Distribution:
        """What is known of means, from mean and sd before the link."""
        bare = _normal(mean, sd)
        if not self.rules.logistic:
            return bare
        from torch.distributions import SigmoidTransform, TransformedDistribution

        return TransformedDistribution(bare, SigmoidTransform(), validate_args=False)

    def _scores(self, x: Floats, level: Floats) -> Floats:
        """Each arm's mean, the model's sd of it, the sd of its forecast, and its quantile at a level: (4, k)."""
        found = np.empty((4, len(level)))
        if not ridge_policy.score_arms(self.state, self.rules, x, level, *found):
            check_finite(x, "context")
            raise CalibrlError(f"context with numbers up to {np.abs(x).max():.3g} overflows; standardise the features")
        return found

    # Learning.

    def learn(self, rows: Rows) -> None:
        """Learn rows, each judged by the forecast as it stood before any of them; or an error, and nothing changes."""
        self._refuse(rows, ridge_policy.judge_and_absorb(self.state, self.rules, *rows))

    def judge(self, rows: Rows) -> None:
        """Write what the forecasts as they stand say of rows into `rows`, or raise for one that cannot be learnt."""
        self._refuse(rows, ridge_policy.judge(self.state, self.rules, *rows))

    def absorb(self, rows: Rows) -> None:
        """Learn rows that `judge` has passed."""
        ridge_policy.absorb(self.state, self.rules, *rows)

    def _refuse(self, rows: Rows, wrong: int) -> None:
        """Say what is wrong with row `wrong`, if one is."""
        if wrong < 0:
            return
        check_finite(rows.x, "context")
        check_finite(rows.reward, "reward")
        if self.rules.logistic and not 0 <= rows.reward[wrong] <= 1:
            raise CalibrlError(
                f"reward {rows.reward[wrong]:.3g} (row {wrong}) is not between 0 and 1, as link='logistic' needs; "
                "leave the link out, or give yes and no as 1 and 0"
            )
        if abs(rows.reward[wrong]) > ridge_policy.LARGEST_REWARD:
            raise CalibrlError(
                f"reward {rows.reward[wrong]:.3g} (row {wrong}) is beyond ±{ridge_policy.LARGEST_REWARD:g}: sums of "
                "squares would overflow; repair or drop that row, or give rewards in a larger unit"
            )
        raise CalibrlError(
            f"context {wrong} with numbers up to {np.abs(rows.x[wrong]).max():.3g} (reward {rows.reward[wrong]:.3g}) "
            f"is too large for ridge {self.settings.ridge:g}: the regression would be singular; standardise the "
            "features"
        )

    def update(self, data: Data) -> None:
        """Learn rows x (n, dim), y (n, arms), NaN for arms that were not pulled."""
        self._refuse_shared()
        y = data.y.double().cpu().numpy()
        row, arm = np.nonzero(~np.isnan(y))
        if len(row):
            x = as_floats(data.x, "context")[row]
            self.learn(Rows(x, arm, np.ascontiguousarray(y[row, arm]), *np.empty((3, len(row)))))

    def __call__(self, x: Tensor) -> Distribution:
        """Forecasts of batch shape (n, arms) at contexts x (n, dim)."""
        self._refuse_shared()
        everyone = np.arange(len(self.pulls))
        level = np.zeros(len(everyone))
        scored = [self._scores(row[None], level) for row in as_floats(x, "context")]
        mean, sd = (np.stack([one[i] for one in scored]) for i in (0, 2))
        # Where noise is learnt, planners are to look at the bonus.
        return self._known(mean, sd) if self.settings.learnt else self._calibrated(mean, sd, everyone)

    def _refuse_shared(self) -> None:
        if self.settings.shared:
            raise CalibrlError("shared features are asked arm by arm, through a policy; use RidgeShared for tables")

    def fade(self, keep: float) -> None:
        """Let what was learnt so far count `keep` times as much."""
        ridge_policy.forget(self.state, self.rules, keep)

    def settle(self) -> None:
        """Invert every model afresh, so that one rebuilt from its sums behaves the same to the last bit."""
        s = self.state
        for m in range(len(s.theta)):
            ridge.refactor(s.theta[m], s.inverse[m], s.gram[m], s.moment[m], self.settings.ridge)

    # Arms and their records.

    def add(self, arms: int) -> None:
        """Take in more arms, behind the others, of which nothing is known."""
        new = self._blank(0 if self.settings.shared else arms, arms)
        parts = self.state._asdict()
        for key, part in new._asdict().items():
            if key not in COMMON:
                parts[key] = np.concatenate([parts[key], part])
        self.state = State(**parts)

    def remove(self, position: int) -> None:
        """Forget what is known of one arm alone; those behind it move up."""
        common = set(COMMON)
        if self.settings.shared:
            common |= {"theta", "moment", "sums", "inverse", "gram", "rows"}
        parts = self.state._asdict()
        parts = {key: part if key in common else np.delete(part, position, axis=0) for key, part in parts.items()}
        self.state = State(**parts)

    def record(self, position: int) -> Floats:
        """The z-scores an arm's forecasts met, oldest first: at most the last `window`."""
        seen, window = int(self.state.pulls[position]), self.settings.window
        ring = self.state.arrived[position]
        return np.roll(ring, -(seen % window)) if seen > window else ring[:seen].copy()

    def put_record(self, position: int, record: Floats) -> None:
        """Give an arm a record, oldest first: a z-score for each reward it has had, or for the last `window`."""
        n, seen = len(record), int(self.state.pulls[position])
        self.state.ordered[position, :n] = np.sort(record)
        # In a full ring the next one goes where the oldest stands.
        self.state.arrived[position, :n] = np.roll(record, seen % max(n, 1))

    def inherit(self, other: CompiledRidge, here: list[int], there: list[int]) -> None:
        """Take over what another knows of its arms `there` for those `here`, as if columns it lacks had been 0."""
        _check_heir(self.settings, other.settings)
        mine, theirs = self.state, other.state
        models = ([0], [0]) if self.settings.shared else (here, there)
        for name in ("moment", "sums", "gram"):
            # Packed row after row, the triangle of a smaller matrix is the beginning of a larger one's.
            known, space = getattr(theirs, name)[models[1]], getattr(mine, name)
            space[models[0]] = np.pad(known, ((0, 0), (0, space.shape[1] - known.shape[1])))
        mine.rows[models[0]] = theirs.rows[models[1]]
        for name in ("pulls", "error", "shift", "noise"):
            getattr(mine, name)[here] = getattr(theirs, name)[there]
        for name in COMMON:
            getattr(mine, name)[:] = getattr(theirs, name)
        if not self.settings.learnt:  # only where noise is learnt are rewards centred
            mine.moment[:] += mine.rewards[arm_noise.OFFSET] * mine.sums
            mine.rewards[arm_noise.OFFSET] = 0.0
        if self.settings.learnt and not other.settings.learnt:
            # All that the others know of noise: how far off their means were.
            seen, squares = theirs.pulls[there], theirs.error[there]
            mine.noise[here, :2] = np.stack([seen, squares], 1)
        for position, known_at in zip(here, there, strict=True):
            record = other.record(known_at)[-self.settings.window :]
            if self.settings.learnt != other.settings.learnt:
                # z-scores of another kind of forecast say nothing of ours; a normal's say that it is right.
                record = ndtri((np.arange(len(record)) + 0.5) / max(len(record), 1))
            self.put_record(position, record)
        self.settle()

    # As plain values.

    def to_plain(self) -> dict[str, Any]:
        """What a settled model has learnt, as plain values: sums Σ x xᵀ and Σ x r, and each arm's record.

        The inverse follows from the sums; the live model is inverted afresh as well (`settle`), so that from there on
        the two take the same decisions, bit for bit.
        """
        parts = {name: getattr(self.state, name).tolist() for name in self.KEPT}
        return {**parts, "record": [self.record(a).tolist() for a in range(len(self.pulls))]}

    def put_plain(self, saved: dict[str, Any], names: tuple[object, ...]) -> None:
        """Take over what `to_plain` described; `names` of the arms are for errors."""
        for name in self.KEPT:
            part = getattr(self.state, name)
            part[...] = _numbers(saved[name], part.dtype).reshape(part.shape)
            if name in COUNTS and (part[..., : COUNTS[name]] < 0).any():
                raise CalibrlError(f"{name} holds {part.min()}, which is below 0")
        for a, (arm, values) in enumerate(zip(names, saved["record"], strict=True)):
            seen, record = int(self.pulls[a]), _numbers(values, np.float64)
            if len(record) != min(seen, self.settings.window):
                raise CalibrlError(f"arm {arm!r} has {seen} rewards but a record of {len(record)}")
            self.put_record(a, record)
        self.settle()

    def _blank(self, models: int, arms: int) -> State:
        settings = self.settings
        return ridge_policy.blank(models, arms, settings.dim, ridge_=settings.ridge, window=settings.window)


def _normal(mean: Floats, sd: Floats) -> Distribution:
    import torch

    return torch.distributions.Normal(torch.from_numpy(mean), torch.from_numpy(sd), validate_args=False)


COUNTS = {**dict.fromkeys(("pulls", "rows", "error", "largest", "changes")), "noise": 1, "rewards": 1}
"""Parts of the state that are never below 0, and how many of their columns are, if not all."""
SAVED = (*CompiledRidge.KEPT, "record")
"""What a saved policy holds of what was learnt."""
ROOM = 1 << 26
"""Numbers that a small file may ask room for: half a gigabyte."""


def check_sizes(saved: dict[str, Any], settings: RidgeSettings) -> None:
    """Refuse a saved policy whose settings and lists do not fit each other, before memory is asked for."""
    if not all(isinstance(saved[name], list) for name in ("arms", "removed", *SAVED)):
        raise ValueError("a list is missing")
    arms, learnt = len(saved["arms"]), sum(map(len, saved["record"]))
    models = 1 if settings.shared else arms
    for name, size in (("moment", settings.dim), ("sums", settings.dim), ("gram", ridge.packed(settings.dim))):
        if [len(row) for row in saved[name]] != [size] * models:
            raise ValueError(f"{name} does not fit {arms} arms of dim {settings.dim}")
    if settings.window * (arms + 1) > max(ROOM, 100 * learnt):
        raise ValueError(f"window {settings.window} for {arms} arms asks for more room than {learnt} rewards need")


def _numbers(values: Any, dtype: DTypeLike) -> NDArray[Any]:
    found = np.asarray(values)
    if found.size == 0:
        return found.astype(dtype)
    if found.dtype.kind not in ("iu" if np.dtype(dtype).kind == "i" else "iuf"):
        raise CalibrlError(f"numbers of type {found.dtype} stand where {np.dtype(dtype)} is expected")
    if not np.isfinite(found).all():
        raise CalibrlError(f"it holds {found[~np.isfinite(found)][0]}")
    return found.astype(dtype)


def _check_heir(ours: RidgeSettings, theirs: RidgeSettings) -> None:
    for name in ("shared", "link", "scale"):
        mine, other = getattr(ours, name), getattr(theirs, name)
        if mine != other:
            raise CalibrlError(f"one policy has {name}={mine!r}, the other {other!r}; build both alike")
    if ours.noisy != theirs.noisy:
        raise CalibrlError(
            "ConformalLinUCB forecasts single rewards and the others expected ones, so they cannot use each other's "
            "records; inherit from a policy of the same kind"
        )
    if ours.dim < theirs.dim:
        raise CalibrlError(
            f"contexts of {ours.dim} columns are shorter than the {theirs.dim} that were learnt; columns can only be "
            "added, at the end: give 0 for one that is gone"
        )
    if ours.window > theirs.window:
        raise CalibrlError(
            f"window {ours.window} is longer than the {theirs.window} rewards that were kept; use {theirs.window}"
        )
