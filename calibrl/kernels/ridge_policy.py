"""A bandit's two moves, compiled: score every arm at a context, and learn from rewards.

Both are `Calibrated(RidgeArms(…), evidence=Rolling(), fit_map=fit_ecdf())`, an arm at a time: each row is judged by the
model as it stands, then learnt; the map is the sorted history itself, so it is never refitted.
`play` is a whole trial in one loop: the same moves, without the calls between them. What it calls for every arm or
round is inlined: handing the state over, thirteen arrays, took a fifth of a trial's time.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from calibrl.kernels import arm_noise, ridge
from calibrl.kernels.ridge import phi

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LARGEST_SD = 1e6
"""Beyond this a row is so much longer than the prior expects that rounding would swallow everything else."""
FADE_EVERY = 64
"""Rewards between two fadings, where every reward fades what came before: a fading costs an inversion."""
LARGEST_REWARD = 1e100
"""Beyond this sums of squares would overflow, and the arm could never be forecast again."""


class State(NamedTuple):
    """All a bandit knows, in m = k models (one per arm) or m = 1 (shared by the arms), updated in place.

    theta, moment, sums: (m, d), sums of rows x without rewards; inverse, gram: (m, d(d+1)/2) packed lower triangles;
    rows: (m,) learnt; ordered, arrived: (k, window) z-scores of each arm; pulls: (k,); error: (k,) sums of squared
    errors of the forecast mean; shift: (k,) how far each arm's levels were moved, as z-scores, to keep what they
    promise; noise: (k, 7) and rewards: (8,) from `arm_noise`; largest: (1,) the largest reward so far, as a size;
    changes: (2,) how often the world was found changed, and how many rewards were neither 0 nor 1. Where rewards lie
    far from 0, theta and moment are of rewards less rewards[OFFSET].
    """

    theta: Floats
    moment: Floats
    sums: Floats
    inverse: Floats
    gram: Floats
    rows: Ints
    ordered: Floats
    arrived: Floats
    pulls: Ints
    error: Floats
    shift: Floats
    noise: Floats
    rewards: Floats
    largest: Floats
    changes: Ints


class Rules(NamedTuple):
    """How the state is used. The same for a whole run.

    prior: the ridge; noisy: whether a reward's own noise is part of its forecast; min_rewards: pulls before an arm's
    own evidence counts; edge: from `ridge.edges`; target: the level, as a z-score, whose coverage is steered; step: how
    far one reward moves an arm's levels, 0 for never; learnt: whether widths follow the noise as learnt (`arm_noise`);
    logistic: whether means are probabilities, the logistic function of xᵀθ; keep: how much of what an arm knows is left
    after one more reward; watch: whether to look for changes; record_from: pulls before the record of a single reward's
    z-scores counts, where noise is learnt.
    """

    prior: float
    noisy: bool
    min_rewards: int
    edge: Floats
    target: float
    step: float
    learnt: bool = False
    logistic: bool = False
    keep: float = 1.0
    watch: bool = False
    record_from: int = 10


def blank(models: int, arms: int, dim: int, *, ridge_: float, window: int) -> State:
    """The state before anything was learnt."""
    theta, moment, sums = np.zeros((3, models, dim))
    inverse = np.tile(np.eye(dim)[np.tril_indices(dim)] / ridge_, (models, 1))
    ordered, arrived = np.zeros((2, arms, window))
    error, shift = np.zeros((2, arms))
    rows, pulls, changes = (np.zeros(n, np.int64) for n in (models, arms, 2))
    evidence = (ordered, arrived, pulls, error, shift, np.zeros((arms, arm_noise.COLUMNS)))
    common = (np.zeros(arm_noise.SLOPE + 2), np.zeros(1), changes)
    return State(theta, moment, sums, inverse, np.zeros_like(inverse), rows, *evidence, *common)


@njit(cache=True, inline="always")
def width(state: State, rules: Rules, arm: int, sd: float) -> float:
    """The sd of an arm's forecast, given the model's sd of its mean.

    With noise it is s_a · √(1 + sd²), s_a² being the mean squared error so far, with one error of size 1 to start from.
    """
    if not rules.noisy:
        return sd
    return math.sqrt((1.0 + state.error[arm]) / (1.0 + state.pulls[arm]) * (1.0 + sd * sd))


@njit(cache=True)
def score_arms(
    state: State, rules: Rules, x: Floats, level: Floats, mean: Floats, narrow: Floats, sd: Floats, score: Floats
) -> bool:
    """Write each arm's mean, the model's sd of it, the sd of the forecast, and its quantile; False if one is no number.

    x: (1, d), or (k, d) with a row per arm; level: (k,) quantiles as z-scores; mean, narrow, sd, score: (k,),
    overwritten. With a logistic link mean and sds are those of xᵀθ.
    """
    fine = True
    arms, dim = len(score), x.shape[1]
    # Taken out of the state once: every time costs as much as ten multiplications.
    theta, inverse, noise, offset = state.theta, state.inverse, state.noise, state.rewards[arm_noise.OFFSET]
    square = np.empty(inverse.shape[1])
    own = len(theta) == arms
    total = common = prior = 0.0
    unit, two = arm_noise.scale(state.largest[0]), arm_noise.twofold(state.rewards)
    if rules.learnt:
        total = noise[:, arm_noise.COUNT].sum()
        for a in range(arms):  # G, the noise that arms have in common
            if a < len(x):
                prior = arm_noise.start(x[a], rules.prior, unit)
            common += arm_noise.log_noise(noise[a, arm_noise.COUNT], noise[a, arm_noise.SQUARES], prior) / arms
        common = math.exp(common)
    for a in range(arms):
        m = a if own else 0
        if a < len(x):
            ridge.pack_square(x[a], square)
            prior = arm_noise.start(x[a], rules.prior, unit)
        middle, wide = ridge.forecast(x[min(a, len(x) - 1)], square, theta[m], inverse[m])
        mean[a], narrow[a] = middle + offset, wide
        if not rules.learnt:
            sd[a] = width(state, rules, a, wide)
            continue
        count, squares = noise[a, arm_noise.COUNT], noise[a, arm_noise.SQUARES]
        lack = arm_noise.shortage(count, total, arms, dim)
        if rules.logistic:
            sd[a] = arm_noise.stretch(lack) * wide
        else:
            sd[a] = arm_noise.width(count, squares, prior, common, unit, lack, wide, two)
            if count == 0.0 and own:
                sd[a] = max(sd[a], abs(offset))
    pulls, shift, ordered, least, edge = state.pulls, state.shift, state.ordered, rules.min_rewards, rules.edge
    for a in range(arms):
        score[a] = mean[a] + sd[a] * stretch_of(ordered[a], pulls[a], least, edge, level[a] + shift[a])
        fine = fine and np.isfinite(score[a])
    return fine


@njit(cache=True, inline="always")
def binary(state: State) -> bool:
    """Whether every reward so far was 0 or 1, and there was one."""
    return state.changes[1] == 0 and state.rows.sum() > 0


@njit(cache=True)
def say(state: State, rules: Rules, x: Floats, mean: Floats, narrow: Floats, sure: Floats, single: Floats) -> None:
    """Write what is known of each arm where noise is learnt: the sd of its mean, and that of a single reward.

    x, mean, narrow: as in `score_arms`; sure, single: (k,), overwritten. With a logistic link sure is that of xᵀθ. As
    long as all rewards were 0 or 1, and with that link, single is the probability of a 1.
    """
    # Taken out of the state once, as in `score_arms`.
    theta, noise, rewards, logistic = state.theta, state.noise, state.rewards, rules.logistic
    arms, dim = len(mean), x.shape[1]
    total = noise[:, arm_noise.COUNT].sum()
    unit, slope = arm_noise.scale(state.largest[0]), rewards[arm_noise.SLOPE]
    probable = logistic or binary(state)
    middle = arm_noise.usual(rewards) if probable else 0.0
    lost = prior = 0.0
    for a in range(arms):
        count, squares = noise[a, arm_noise.COUNT], noise[a, arm_noise.SQUARES]
        if a < len(x):
            prior = arm_noise.start(x[a], rules.prior, unit)
        if a < len(theta):
            lost = rules.prior * ridge.square(theta[a])
        # One model for all arms: an arm's part of its penalty.
        part = lost if len(theta) == arms else lost * count / max(total, 1.0)
        tau, held = arm_noise.honest(count, squares, prior, part, dim, arm_noise.OF_MEAN), narrow[a] ** 2 * prior / unit
        lack = arm_noise.shortage(count, total, arms, dim)
        sure[a] = arm_noise.sure(1.0 if logistic else tau, lack, narrow[a], 0.0 if logistic else held)
        if probable:
            off = _beyond(logistic, count, mean[a], narrow[a], sure[a], middle)
            single[a] = ridge.chance(middle + noise[a, arm_noise.ODDS] + (1.0 + slope) * off)
        else:
            tau = arm_noise.honest(count, squares, prior, part, dim, arm_noise.OF_OUTCOME)
            single[a] = tau * math.sqrt(1.0 + narrow[a] * narrow[a])


@njit(cache=True, inline="always")
def _beyond(logistic: bool, count: float, mean: float, narrow: float, sure: float, middle: float) -> float:
    """How far the log-odds of a 1 from an arm are from `middle`, before they are corrected; arguments as of `say`."""
    if logistic:
        return arm_noise.beyond(ridge.chance(mean / math.sqrt(1.0 + math.pi * narrow * narrow / 8.0)), count, middle)
    return arm_noise.beyond(arm_noise.share(mean, sure), count, middle)


@njit(cache=True, inline="always")
def stretch_of(ordered: Floats, pulls: int, least: int, edge: Floats, level: float) -> float:
    """S⁻¹ of an arm at a level, its shift included: the level itself until the arm has `least` rewards.

    ordered: (window,), of the arm, and `pulls` its number of rewards; edge: from `ridge.edges`.
    """
    if pulls < least:
        return level
    return ridge.stretch(level, ordered, min(pulls, len(ordered)), edge)


@njit(cache=True)
def quantiles(state: State, rules: Rules, mean: Floats, sd: Floats, level: Floats) -> Floats:
    """Each arm's honest quantiles (k, n) at levels (n,), as z-scores, given the mean and sd (k,) of its forecast."""
    found = np.empty((len(mean), len(level)))
    pulls, shift, ordered, least, edge = state.pulls, state.shift, state.ordered, rules.min_rewards, rules.edge
    for a in range(len(mean)):
        for j in range(len(level)):
            found[a, j] = mean[a] + sd[a] * stretch_of(ordered[a], pulls[a], least, edge, level[j] + shift[a])
    return found


@njit(cache=True, inline="always")
def pit_of(ordered: Floats, pulls: int, least: int, edge: Floats, z: float) -> tuple[float, float]:
    """The probability of outcomes lower than z, and no higher, by an arm's record where it has `least` rewards.

    They differ on atoms. Arguments as of `stretch_of`.
    """
    if pulls < least:
        p = phi(z)
        return p, p
    return ridge.pit(z, ordered, min(pulls, len(ordered)), edge)


@njit(cache=True)
def best_arm(score: Floats, draw: float) -> int:
    """The arm of the highest score; `draw` in [0, 1) picks one of several equals."""
    best = score[0]
    equals = 1
    for a in range(1, len(score)):
        if score[a] > best:
            best = score[a]
            equals = 1
        elif score[a] == best:
            equals += 1
    skip = int(draw * equals)
    for a in range(len(score)):
        if score[a] == best:
            if skip == 0:
                return a
            skip -= 1
    return -1


@njit(cache=True, inline="always")
def judge(
    state: State, rules: Rules, x: Floats, arm: Ints, reward: Floats, z: Floats, error: Floats, moved: Floats
) -> int:
    """Judge rows by the forecasts as they stand; the first row too large to learn, or -1.

    x: (n, d) contexts, or features of the arm; arm: (n,); reward: (n,). Overwritten, (n,) each: z, the rewards'
    z-scores; error, their distances from the mean; moved, how far they move the levels of their arm.
    """
    square = np.empty(state.inverse.shape[1])
    # Levels move from row to row: a thousand late rewards must not all push the same way.
    shift = state.shift.copy()
    for i in range(len(arm)):
        a = arm[i]
        m = min(a, len(state.theta) - 1)
        ridge.pack_square(x[i], square)
        mean, narrow = ridge.forecast(x[i], square, state.theta[m], state.inverse[m])
        mean += state.rewards[arm_noise.OFFSET]
        z[i], error[i], moved[i], fine = judge_one(state, rules, a, reward[i], mean, narrow, shift[a])
        if not fine:
            return i
        shift[a] += moved[i]
    return -1


@njit(cache=True, inline="always")
def judge_one(
    state: State, rules: Rules, a: int, reward: float, mean: float, narrow: float, shift: float
) -> tuple[float, float, float, bool]:
    """A reward of arm a beside its forecast: z, error and moved as in `judge`, and whether it can be learnt.

    mean, narrow: as in `score_arms`; shift: of the arm's levels.
    """
    if rules.logistic:
        mean = ridge.chance(mean)
    error = reward - mean
    # Where noise is learnt, `absorb` finds z: by then the rows before may have changed it.
    z = error if rules.learnt else error / width(state, rules, a, narrow)
    fine = narrow <= LARGEST_SD and abs(reward) <= LARGEST_REWARD and np.isfinite(z)
    if rules.logistic:
        fine = fine and 0.0 <= reward <= 1.0
    moved = 0.0
    if rules.step > 0 and fine:
        # Covered more often than promised: aim lower from now on (Gibbs and Candès, 2021).
        low, high = pit_of(state.ordered[a], state.pulls[a], rules.min_rewards, rules.edge, z)
        aim = phi(rules.target + shift)
        moved = rules.step * (phi(rules.target) - ridge.covered(low, high, aim))
    return z, error, moved, fine


@njit(cache=True, inline="always")
def absorb(
    state: State, rules: Rules, x: Floats, arm: Ints, reward: Floats, z: Floats, error: Floats, moved: Floats
) -> None:
    """Learn rows that `judge` has passed; arguments as there. Where noise is learnt, each row by the rows before it."""
    for i in range(len(arm)):
        a = arm[i]
        m = min(a, len(state.theta) - 1)
        theta, inverse = state.theta[m], state.inverse[m]
        gain = ridge.times(inverse, x[i])
        if rules.learnt:
            z[i], gain = _learn_noise(state, rules, a, x[i], reward[i], gain)
        ridge.remember(z[i], state.ordered[a], state.arrived[a], state.pulls[a])
        row, target = x[i], reward[i] - state.rewards[arm_noise.OFFSET]
        if rules.logistic:
            row, target = ridge.working(x[i], reward[i], theta)
            gain = ridge.times(inverse, row)
        ridge.add_row(row, target, gain, theta, inverse, state.gram[m], state.moment[m])
        state.sums[m] += x[i]
        state.pulls[a] += 1
        state.error[a] += error[i] * error[i]
        state.shift[a] += moved[i]
        state.rows[m] += 1
        arm_noise.see(state.rewards, reward[i])
        if rules.learnt and not rules.logistic:
            _centre(state)
        state.largest[0] = arm_noise.reach(state.rewards)
        state.changes[1] += reward[i] != 0.0 and reward[i] != 1.0
        if rules.keep < 1.0 and state.rows[m] % FADE_EVERY == 0:
            fade(state, rules.keep**FADE_EVERY, slice(m, m + 1))
        if state.rows[m] % (FADE_EVERY if rules.keep < 1.0 else ridge.REFACTOR_EVERY) == 0:
            ridge.refactor(state.theta[m], state.inverse[m], state.gram[m], state.moment[m], rules.prior)


@njit(cache=True)
def _centre(state: State) -> None:
    """Move c to where the rewards are, if they are far from it."""
    aim = arm_noise.target(state.rewards)
    move = aim - state.rewards[arm_noise.OFFSET]
    if move == 0.0:
        return
    state.noise[:, arm_noise.SQUARES] *= arm_noise.closer(state.rewards, aim)
    state.rewards[arm_noise.OFFSET] = aim
    for m in range(len(state.theta)):
        state.moment[m] -= move * state.sums[m]
        state.theta[m] -= move * ridge.times(state.inverse[m], state.sums[m])


@njit(cache=True)
def fade(state: State, keep: float, models: slice) -> None:
    """Let what these models know, and what is known of all rewards, count `keep` times as much."""
    state.gram[models] *= keep
    state.moment[models] *= keep
    state.sums[models] *= keep
    state.rewards[arm_noise.TOTAL] *= keep
    state.rewards[arm_noise.SPREAD] *= keep
    arm_noise.forget(state.noise if len(state.theta) < len(state.noise) else state.noise[models], keep)


@njit(cache=True)
def forget(state: State, rules: Rules, keep: float) -> None:
    """Let everything known count `keep` times as much."""
    fade(state, keep, slice(0, len(state.theta)))
    for m in range(len(state.theta)):
        ridge.refactor(state.theta[m], state.inverse[m], state.gram[m], state.moment[m], rules.prior)


@njit(cache=True, inline="always")
def _start(state: State, rules: Rules, a: int, x: Floats) -> tuple[float, float]:
    """What `arm_noise.honest` wants of arm a at x (d,) beside its record: prior and penalty."""
    lost = rules.prior * ridge.square(state.theta[min(a, len(state.theta) - 1)])
    if len(state.theta) < len(state.noise):  # one model for all arms: an arm's part of its penalty
        lost *= state.noise[a, arm_noise.COUNT] / max(state.noise[:, arm_noise.COUNT].sum(), 1.0)
    return arm_noise.start(x, rules.prior, arm_noise.scale(state.largest[0])), lost


@njit(cache=True, inline="always")
def _standard(state: State, rules: Rules, a: int, x: Floats, error: float, variance: float, mean: float) -> float:
    """How far off a reward was, in its forecast's sds; `variance` is that of the model's mean."""
    if rules.logistic:
        return error / math.sqrt(max(mean * (1.0 - mean), ridge.SMALLEST_SD))
    count, squares = state.noise[a, arm_noise.COUNT], state.noise[a, arm_noise.SQUARES]
    prior, lost = _start(state, rules, a, x)
    tau = arm_noise.honest(count, squares, prior, lost, len(x), arm_noise.OF_OUTCOME)
    return error / (max(tau, arm_noise.SMALLEST) * math.sqrt(1.0 + variance))


@njit(cache=True)
def _learn_noise(state: State, rules: Rules, a: int, x: Floats, reward: float, gain: Floats) -> tuple[float, Floats]:
    """Learn an arm's noise from a reward before the regression learns it; forget, if the world has changed.

    gain: (d,) P x. Returns the reward's z-score, for the arm's record, and P x, which forgetting changes.
    """
    m = min(a, len(state.theta) - 1)
    guess, mean, variance = _guess(state, rules, m, x, gain)
    total = state.noise[:, arm_noise.COUNT].sum()
    z = _standard(state, rules, a, x, reward - guess, variance, guess)
    if rules.logistic or (state.changes[1] == 0 and (reward == 0.0 or reward == 1.0)):
        _learn_odds(state, rules, a, x, reward, mean, math.sqrt(variance), total)
    if rules.watch and arm_noise.changed(state.noise[a], z, total, len(x)):
        state.changes[0] += 1
        forget(state, rules, arm_noise.KEEP)
        gain = ridge.times(state.inverse[m], x)
        guess, _, variance = _guess(state, rules, m, x, gain)
    spread = max(guess * (1.0 - guess), ridge.SMALLEST_SD) if rules.logistic else 1.0
    arm_noise.note(state.noise[a], (reward - guess) ** 2 / spread, variance * spread)
    return z, gain


@njit(cache=True, inline="always")
def _learn_odds(
    state: State, rules: Rules, a: int, x: Floats, reward: float, mean: float, narrow: float, total: float
) -> None:
    """Learn from a reward of arm a at x (d,) how far off its probability was; mean, narrow: as in `score_arms`."""
    noise, rewards, middle = state.noise, state.rewards, arm_noise.usual(state.rewards)
    count, squares = noise[a, arm_noise.COUNT], noise[a, arm_noise.SQUARES]
    prior, lost = _start(state, rules, a, x)
    tau = arm_noise.honest(count, squares, prior, lost, len(x), arm_noise.OF_MEAN)
    lack = arm_noise.shortage(count, total, len(noise), len(x))
    held = narrow**2 * prior / arm_noise.scale(state.largest[0])
    off = _beyond(rules.logistic, count, mean, narrow, arm_noise.sure(tau, lack, narrow, held), middle)
    chance = ridge.chance(middle + noise[a, arm_noise.ODDS] + (1.0 + rewards[arm_noise.SLOPE]) * off)
    arm_noise.correct(noise[a, arm_noise.ODDS :], reward - chance, chance, 1.0)
    arm_noise.correct(rewards[arm_noise.SLOPE :], reward - chance, chance, off)


@njit(cache=True, inline="always")
def _guess(state: State, rules: Rules, m: int, x: Floats, gain: Floats) -> tuple[float, float, float]:
    """What model m expects at x (d,), the same before the link, and the variance of its mean; gain: (d,) P x."""
    mean, variance = ridge.foresee(x, state.theta[m], gain)
    mean += state.rewards[arm_noise.OFFSET]
    return (ridge.chance(mean) if rules.logistic else mean), mean, max(variance, 0.0)


@njit(cache=True, inline="always")
def judge_and_absorb(
    state: State, rules: Rules, x: Floats, arm: Ints, reward: Floats, z: Floats, error: Floats, moved: Floats
) -> int:
    """Judge and absorb in one call; nothing is learnt if a row is too large, and that row is returned, else -1."""
    wrong = judge(state, rules, x, arm, reward, z, error, moved)
    if wrong < 0:
        absorb(state, rules, x, arm, reward, z, error, moved)
    return wrong


@njit(cache=True)
def play(
    state: State, rules: Rules, x: Floats, reward: Floats, level: Floats, draws: Floats, forced: Ints, asked: Floats
) -> tuple[Ints, Floats, Floats, Floats, Floats]:
    """One policy through one stream of contexts: the state is updated in place.

    x: (t, d); reward: (t, k), of which only the chosen arm's entry is learnt; level: (t, k) the quantile each
    arm is judged by, as a z-score; draws: (t, 2) in [0, 1) for ties and for atoms; forced: (t,) an arm to take
    whatever its score, or -1; asked: (q,) levels to report.

    Returns chosen (t,); mean (t, k) of the model; quantile (t, k, q), the honest ones at the asked levels; pit
    (t, k) of every arm's reward, learnt or not, before any shift; shift (t, k) of the levels, as z-scores. Where noise
    is learnt, quantiles are those of the mean and PITs those of single rewards.
    """
    rounds, arms = reward.shape
    chosen = np.empty(rounds, np.int64)
    mean, shift, pit = np.empty((3, rounds, arms))
    quantile = np.empty((rounds, arms, len(asked)))
    score, narrow, sd, single = np.empty((4, arms))
    z, error, moved = np.empty((3, 1))
    learnt, logistic, least, edge = rules.learnt, rules.logistic, rules.min_rewards, rules.edge
    pulls, levels, ordered = state.pulls, state.shift, state.ordered
    for t in range(rounds):
        score_arms(state, rules, x[t : t + 1], level[t], mean[t], narrow, sd, score)
        arm = chosen[t] = forced[t] if forced[t] >= 0 else best_arm(score, draws[t, 0])
        expected = mean[t, arm]
        if learnt:
            say(state, rules, x[t : t + 1], mean[t], narrow, sd, single)
        probable = learnt and (logistic or binary(state))
        for a in range(arms):
            record, seen, middle, wide = ordered[a], pulls[a], mean[t, a], sd[a]
            if probable:
                low, high = (1.0 - single[a], 1.0) if reward[t, a] > 0.5 else (0.0, 1.0 - single[a])
            elif learnt:
                low, high = pit_of(record, seen, rules.record_from, edge, (reward[t, a] - middle) / single[a])
            else:
                low, high = pit_of(record, seen, least, edge, (reward[t, a] - middle) / wide)
            pit[t, a], shift[t, a] = low + draws[t, 1] * (high - low), levels[a]
            for q in range(len(asked)):
                found = middle + wide * stretch_of(record, seen, least, edge, asked[q] + levels[a])
                quantile[t, a, q] = ridge.chance(found) if logistic else found
            if logistic:
                mean[t, a] = single[a]
        paid = reward[t, arm : arm + 1]
        z[0], error[0], moved[0], fine = judge_one(state, rules, arm, paid[0], expected, narrow[arm], levels[arm])
        if fine:
            absorb(state, rules, x[t : t + 1], chosen[t : t + 1], paid, z, error, moved)
    return chosen, mean, quantile, pit, shift


# How likely each of several random numbers is to be the highest: the propensities of Thompson sampling.

NODES: Floats = np.linspace(-8.5, 8.5, 171)
"""The quantiles by which a number is known, as z-scores: even in z, so that small chances too are right to 2 %."""

# Where a straight line's powers up to the third have their mean over [0, 1].
_GAUSS = 0.5 - 0.5 / 3**0.5


def chances(quantile: Floats, node: Floats) -> Floats:
    """P(number a is the highest): (k,), summing to 1, of independent numbers with quantiles (k, n) at `node` (n,).

    It is the sum, over cells between all numbers' quantiles, of P(a in the cell) · P(all others lower). Between its
    quantiles a number's z-score is taken as straight (which a normal's is), and within a cell all probabilities. Equal
    quantiles are an atom; equals are told apart by lot.
    """
    # Below the highest of all lowest quantiles nobody wins; nor do numbers whose highest is lower.
    floor = quantile[:, 0].max()
    grid = np.sort(quantile[quantile >= floor])
    if len(quantile) > MANY:
        # Of many numbers the highest is hardly ever low: where all are lower with probability 1e-12, nobody wins.
        floor = grid[_lowest(quantile, node, grid)]
        grid = grid[grid >= floor]
        if len(grid) > CELLS:
            grid = np.unique(grid)[:: -(-len(np.unique(grid)) // CELLS)]
    able = np.flatnonzero(quantile[:, -1] >= floor)
    found = np.zeros(len(quantile))
    found[able] = _sweep(np.ascontiguousarray(quantile[able]), node, grid)
    return found / found.sum()


MANY, CELLS = 32, 2048
"""From how many numbers on cells are made coarser, and how many of them there are then."""


@njit(cache=True)
def _lowest(quantile: Floats, node: Floats, grid: Floats) -> int:
    """The first place in the grid where all numbers are lower with probability 1e-12 or more."""
    low, high = 0, len(grid) - 1
    at = np.empty(len(quantile), np.int64)
    while low < high:
        middle = (low + high) // 2
        at[:] = -1
        log = 0.0
        for a in range(len(quantile)):
            below = _below(grid[middle], False, quantile[a], node, at, a)
            log += math.log(max(below, 1e-300))
        if log >= LEAST:
            high = middle
        else:
            low = middle + 1
    return low


LEAST = math.log(1e-12)


@njit(cache=True)
def _sweep(quantile: Floats, node: Floats, grid: Floats) -> Floats:
    k = len(quantile)
    at = np.full(k, -1)
    low, high = np.zeros(k), np.empty(k)
    found = np.zeros(k)
    for i in range(len(grid) + 1):
        # Of an atom's copies the first stands for what lies below it, the next for the atom.
        first = i < len(grid) - 1 and grid[i] == grid[i + 1] and (i == 0 or grid[i] > grid[i - 1])
        for a in range(k):
            high[a] = 1.0 if i == len(grid) else _below(grid[i], first, quantile[a], node, at, a)
        for point in (_GAUSS, 1.0 - _GAUSS):
            _add_cell(low, high, point, found)
        low[:] = high
    return found


@njit(cache=True)
def _below(y: float, strictly: bool, quantile: Floats, node: Floats, at: NDArray[np.int64], a: int) -> float:
    """P(number a < y) or P(≤ y). at: (k,) the last quantile found below or at an earlier y; moved along."""
    n = len(quantile)
    j = at[a]
    while j + 1 < n and (quantile[j + 1] < y or (quantile[j + 1] == y and not strictly)):
        j += 1
    at[a] = j
    if j < 0:
        return 0.0
    if j == n - 1:
        return 1.0
    gap = quantile[j + 1] - quantile[j]
    return phi(node[j] + (node[j + 1] - node[j]) * min((y - quantile[j]) / gap, 1.0))


@njit(cache=True)
def _add_cell(low: Floats, high: Floats, point: float, found: Floats) -> None:
    """Add half of P(a between low and high) · P(all others lower), a share `point` of the way through the cell."""
    k = len(low)
    # All others are those before a and those after a: a division by a's own probability could be one by 0.
    before = 1.0
    part = np.empty(k)
    for a in range(k):
        part[a] = before
        before *= low[a] + point * (high[a] - low[a])
    after = 1.0
    for a in range(k - 1, -1, -1):
        found[a] += 0.5 * (high[a] - low[a]) * part[a] * after
        after *= low[a] + point * (high[a] - low[a])
