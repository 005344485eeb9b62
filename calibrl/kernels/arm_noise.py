"""How noisy each arm's rewards are, how far above its mean an arm is looked at, and whether the world has changed.

LinUCB's bonus is as wide as if every reward had noise of sd 1. Here the noise is learnt, arm by arm, from errors of the
mean before it learnt them. With s² = xᵀP_a x (the posterior variance of a model with unit noise) and e the error of a
reward, e² / (1 + s²) is on average the arm's noise σ_a². So with sums B_a = Σ e² / (1 + s²) and n_a rewards

    v_a = (½ p + B_a) / (½ + n_a),               p = m² / (1 + xᵀx / ridge),
    σ_a² = (½ p + B_a + 3 G) / (3½ + n_a),       G = geometric mean of v_a over the arms,

where m is how far from c (see below) a reward was at most: before anything is known the forecast is as wide as that,
whatever the unit of the rewards. G is the partial pooling: three rows' worth of what the arms have in common (with one
row's, 26 classes earned 2.6 % less than LinUCB in 20 000 rounds, with three 1.5 %); and where σ_a² > G, σ_a² is brought
a quarter of the way to G, in logarithms: what there is to find out about a noisy arm is rarely worth what it costs. A
mean over logarithms, because noises differ by orders of magnitude where some arms hardly ever pay.

The bonus is `width` = z σ_a s / (1 + (s²/20)²)^¼ + b with z² = max(1, L - 3) and L = 2 ln(t / (k (n_a + 0.8 d))): an
arm that has had far less than its share of the t rewards of all k arms looks wider and wider until it is tried again.
The root keeps contexts far from all others (a rare category, standardised) from being explored for their own sake.
b = m s² / (1 + s²) (max(0.75 K (1 - 15 σ_a²/m²), 0.6 ρ min(K, 3) (1 - 4 σ_a²/m²), 0) + 3 max(L - 12, 0)) with
K = max(L - 1, 0) is Bernstein's. Its first part is for arms whose few rewards hardly varied; its second for rewards of
two values, such as clicks, where an arm better than it looks is noisier than it looks, too; its third for arms that had
less than 1/400 of their share, whatever their rewards were like. ρ = (2 w - 1)₊, w being the variance of all arms'
rewards over the most that their mean and extremes allow: 1 for two values, and less than ½ for most others.

Rewards may lie far from 0: the regression learns r - c, so that it shrinks towards c and not towards 0. c is the mean
μ of all arms' rewards times min(1, (μ²/4v - 1)₊), v their variance with one row's worth of μ² added: 0 unless rewards
vary less than their size, then μ. It moves only by √v/4 or more (`target`), and with it B_a, as far as rewards are
nearer to the new c. An arm without any rewards has a bonus of |c| at least: that others hardly vary says nothing of it.

What is *said* about the mean has the variance of `sure`, τ_a² s² (1 + 0.4 max(L, 0)) / (1 + s²/4) + 0.1 (s² p/m)².
τ_a² is an estimate of the noise without pooling, from what the regression leaves over: B_a is that and ridge |θ_a|²,
so with q = 0.8 / √d

    τ_a² = (q p + (B_a - ridge |θ_a|²)₊) / (q + n_a² / (n_a + d)).

The fraction undoes two things: an arm is left alone when its mean looks low, so means of arms left alone are too low;
and noisy arms' coefficients are smaller than their noise, as which the ridge takes them. The last term is how far the
ridge still holds the mean at c: s² p/m² is the part of the prior variance that is left. A single reward has the sd
τ_a √(1 + s²), with q = 0.05 / √d: an arm's record of such z-scores, by which it is calibrated, has to be of one kind.

The probability of a 1, where all rewards are 0 or 1, is not the mean m: where little is known it is below 0 or above 1,
and of the arm that looks best it is too high. First comes the mean of N(m, sure²) brought back to [0, 1] (`share`), at
least 1/(n_a + 50) away from either end. Then its log-odds l are corrected: with those of all rewards together, l̄, the
forecast has the log-odds l̄ + o_a + (1 + o)(l - l̄). o_a is the arm's own, o common to all arms (partial pooling again:
they are 0 to begin with), and both are learnt from every reward r by a Newton step of logistic regression each,

    o_a += (r - p) / (4 + i_a),    i_a = min(i_a + p (1 - p), 40),    and o with (l - l̄) (r - p) and its square.

What was learnt long ago is thus forgotten. Without all this, 90 % intervals held 82 to 86 % where contexts have many
columns and rewards are not linear in them. Decisions do not look at it.

Changes: standardised errors, clipped at 3 and less their own mean, are summed (CUSUM, Page 1954) upwards with an
allowance of 0.35 and downwards with 0.2. A sum above 15 + 3 ln(1 + t), or 13 + 2.7 ln(1 + t) downwards, is a change:
everything known counts a twentieth from then on. Upwards is stricter, because a model that still learns errs that way.

Constants were chosen on seeds from 900 on (docs/bandits.md), those of b's third part so that it acts on hardly any
arm that still gets rewards. The test has the same by plain linear algebra.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from calibrl.kernels.ridge import square

Floats = NDArray[np.float64]

COUNT, SQUARES, ERRORS, UP, DOWN, ODDS = range(6)
"""The columns of an arm's record of noise: n_a, B_a, Σ of clipped errors, two CUSUMs, o_a and, behind it, i_a."""
TOTAL, MEAN, SPREAD, OFFSET, LOW, HIGH, SLOPE = range(7)
"""The record of all arms' rewards: how many, their mean, sum of squares about it, c, the extremes, o and its i."""
SMALLEST = 1e-100
"""Rewards that are smaller count as this large: squares of theirs are no numbers."""
COLUMNS = 7

PRIOR, POOLED, OF_MEAN, OF_OUTCOME = 0.5, 3.0, 0.8, 0.05
SHARE, LATE, FAR, BERNSTEIN, CALM, SELECTED, WIDE, HELD = 0.8, 3.0, 20.0, 0.75, 15.0, 0.4, 0.25, 0.1
NEAR, STEP, UNIT, STARVED, ALONE, CLICKS, MOST = 4.0, 0.25, 1e-3, 3.0, 12.0, 0.6, 3.0
CLIP, AFTER, AFTER_DIM, KEEP = 3.0, 20, 2, 0.05
UP_ALLOWANCE, UP_ALARM, UP_LOG = 0.35, 15.0, 3.0
DOWN_ALLOWANCE, DOWN_ALARM, DOWN_LOG = 0.2, 13.0, 2.7
UNSEEN, DOUBT, ENOUGH, LEAST = 50.0, 4.0, 40.0, 1e-3


@njit(cache=True)
def scale(largest: float) -> float:
    """m, of how far from c a reward was at most: 1 until one was anywhere else."""
    return max(largest, SMALLEST) if largest > 0 else 1.0


@njit(cache=True)
def start(x: Floats, ridge: float, unit: float) -> float:
    """Noise, as a variance, that makes a forecast at x (d,) as wide as `unit`, m, before anything is known."""
    return unit * unit / (1.0 + square(x) / ridge)


@njit(cache=True)
def log_noise(count: float, squares: float, prior: float) -> float:
    """The logarithm of v_a, of an arm's n_a and B_a."""
    return math.log((PRIOR * prior + squares) / (PRIOR + count))


@njit(cache=True)
def shortage(count: float, total: float, arms: int, dim: int) -> float:
    """L: above 0 for an arm that has had less than its share, `count` of `total` rewards."""
    return 2.0 * math.log(max(total, 1.0) / (arms * (max(count, 1.0) + SHARE * dim)))


@njit(cache=True)
def stretch(lack: float) -> float:
    """z, by how much the bonus of an arm is wider than one sd; `lack` is L."""
    return math.sqrt(max(1.0, lack - LATE))


@njit(cache=True)
def twofold(rewards: Floats) -> float:
    """ρ, by the record of all arms' rewards (8,): 1 if they took two values, 0 if they lie between their extremes."""
    most = (rewards[HIGH] - rewards[MEAN]) * (rewards[MEAN] - rewards[LOW])
    if rewards[TOTAL] <= 0.0 or most <= 0.0:
        return 0.0
    return min(max(2.0 * rewards[SPREAD] / (rewards[TOTAL] * most) - 1.0, 0.0), 1.0)


@njit(cache=True)
def width(
    count: float, squares: float, prior: float, common: float, unit: float, lack: float, sd: float, two: float
) -> float:
    """The bonus of an arm: of its n_a and B_a; `common` is G, `unit` is m, `lack` is L, `sd` is s, `two` is ρ."""
    variance = (PRIOR * prior + squares + POOLED * common) / (PRIOR + POOLED + count)
    # A quarter of the way to G.
    pulled = variance if variance <= common else variance * math.sqrt(math.sqrt(common / variance))
    near = sd / math.sqrt(math.sqrt(1.0 + (sd * sd / FAR) ** 2))
    short, noisy = max(lack - 1.0, 0.0), variance / (unit * unit)
    calm, yes_or_no = BERNSTEIN * short * (1.0 - CALM * noisy), CLICKS * two * min(short, MOST) * (1.0 - 4.0 * noisy)
    seldom = max(calm, yes_or_no, 0.0) + STARVED * max(lack - ALONE, 0.0)
    return stretch(lack) * math.sqrt(pulled) * near + seldom * unit * sd * sd / (1.0 + sd * sd)


@njit(cache=True)
def honest(count: float, squares: float, prior: float, penalty: float, dim: int, rows: float) -> float:
    """τ_a, the sd of an arm's rewards around their mean; `penalty` is ridge |θ_a|², `rows` is q √d."""
    start_with = rows / math.sqrt(dim)
    left = max(squares - penalty, 0.0)
    return math.sqrt((start_with * prior + left) / (start_with + count * count / (count + dim)))


@njit(cache=True)
def sure(tau: float, lack: float, sd: float, held: float) -> float:
    """The sd of what is known of an arm's mean; `held` is s² p/m."""
    noise = tau * tau * sd * sd * (1.0 + SELECTED * max(lack, 0.0)) / (1.0 + WIDE * sd * sd)
    return math.sqrt(noise + HELD * held * held)


@njit(cache=True)
def share(mean: float, sd: float) -> float:
    """The mean of N(mean, sd²) brought back to [0, 1], nearly: right where |mean| is 0 or many sds, and no erf."""
    wide = 2.0 / math.pi * sd * sd
    return 0.5 * (1.0 + math.sqrt(mean * mean + wide) - math.sqrt((1.0 - mean) * (1.0 - mean) + wide))


@njit(cache=True)
def usual(rewards: Floats) -> float:
    """l̄, the log-odds of a 1 by the record of all arms' rewards (8,)."""
    ones = min(max(rewards[TOTAL] * rewards[MEAN], 0.0), rewards[TOTAL])
    return math.log((ones + 1.0) / (rewards[TOTAL] - ones + 1.0))


@njit(cache=True)
def beyond(chance: float, count: float, middle: float) -> float:
    """How far the log-odds of a probability are from `middle`, l̄; `count` is n_a."""
    least = 1.0 / (count + UNSEEN)
    within = min(max(chance, least), 1.0 - least)
    return math.log(within / (1.0 - within)) - middle


@njit(cache=True)
def correct(odds: Floats, error: float, chance: float, by: float) -> None:
    """Learn o and i (2,) from the error of a probability, whose log-odds have `by` times o added."""
    odds[1] = min(max(odds[1], 0.0) + max(chance * (1.0 - chance), LEAST) * by * by, ENOUGH)
    odds[0] += by * error / (DOUBT + odds[1])


@njit(cache=True)
def note(noise: Floats, square: float, variance: float) -> None:
    """Learn from the squared error of a reward, of which the model's s² was `variance`."""
    noise[COUNT] += 1.0
    noise[SQUARES] += square / (1.0 + variance)


@njit(cache=True)
def changed(noise: Floats, z: float, total: float, dim: int) -> bool:
    """Add a standardised error to an arm's record before `note` does; whether there was a change."""
    clipped = min(max(z, -CLIP), CLIP)
    noise[ERRORS] += clipped
    if noise[COUNT] < AFTER + AFTER_DIM * dim:
        return False
    off = clipped - noise[ERRORS] / (noise[COUNT] + 1.0)
    noise[UP] = max(0.0, noise[UP] + off - UP_ALLOWANCE)
    noise[DOWN] = max(0.0, noise[DOWN] - off - DOWN_ALLOWANCE)
    rounds = math.log(1.0 + total)
    return noise[UP] > UP_ALARM + UP_LOG * rounds or noise[DOWN] > DOWN_ALARM + DOWN_LOG * rounds


@njit(cache=True)
def forget(noise: Floats, keep: float) -> None:
    """Let records (…, 7) count `keep` times as much; the sums of the change detector begin again."""
    noise[..., :UP] *= keep
    noise[..., UP:ODDS] = 0.0


@njit(cache=True)
def see(rewards: Floats, reward: float) -> None:
    """Add a reward to the record of all arms' rewards (8,)."""
    if rewards[TOTAL] == 0.0:
        rewards[LOW] = rewards[HIGH] = reward
    rewards[LOW], rewards[HIGH] = min(rewards[LOW], reward), max(rewards[HIGH], reward)
    rewards[TOTAL] += 1.0
    off = reward - rewards[MEAN]
    rewards[MEAN] += off / rewards[TOTAL]
    rewards[SPREAD] += off * (reward - rewards[MEAN])


@njit(cache=True)
def target(rewards: Floats) -> float:
    """Where c should be, by the record of all arms' rewards (8,): where it is, unless that is far off."""
    if rewards[TOTAL] <= 0.0:
        return rewards[OFFSET]
    square = rewards[MEAN] * rewards[MEAN]
    variance = (rewards[SPREAD] + square) / rewards[TOTAL]
    if variance <= 0.0:
        return rewards[OFFSET]
    aim = rewards[MEAN] * min(max(square / (NEAR * variance) - 1.0, 0.0), 1.0)
    return aim if abs(aim - rewards[OFFSET]) > STEP * math.sqrt(variance) else rewards[OFFSET]


@njit(cache=True)
def closer(rewards: Floats, aim: float) -> float:
    """How much smaller squared distances of rewards from c become when it moves to `aim`: at most 1."""
    from_here, from_there = rewards[MEAN] - rewards[OFFSET], rewards[MEAN] - aim
    old = rewards[SPREAD] + rewards[TOTAL] * from_here * from_here
    new = rewards[SPREAD] + rewards[TOTAL] * from_there * from_there
    return min(new / old, 1.0) if old > 0.0 else 1.0


@njit(cache=True)
def reach(rewards: Floats) -> float:
    """m, how far from c a reward may be: never less than a thousandth of c, or arms that pay the same have no scale."""
    c = rewards[OFFSET]
    return max(abs(rewards[HIGH] - c), abs(rewards[LOW] - c), UNIT * abs(c))
