"""Simulated bandit problems, whose truth is known: Table 1's two, and long and noisy ones that a service meets.

Of the noisy ones the paper has none. They are the reason for `CalibratedUCB`: clicks are rare, noise differs between
arms, the world changes, and nobody knows the unit of rewards beforehand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

DIM, NOISE = 10, 0.1


@dataclass(frozen=True)
class Stream:
    """One trial's contexts and rewards: x (t, d), reward (t, k), expected (t, k) without the noise.

    A policy sees the reward of the arm it takes; the others are there to pair trials and to measure.
    """

    x: Floats
    reward: Floats
    expected: Floats

    @property
    def best(self) -> Ints:
        """The arm of the highest expected reward in each round: (t,)."""
        return self.expected.argmax(-1)


@dataclass(frozen=True)
class Problem:
    """A named problem: `stream(rounds, generator)` gives a trial, of fewer rounds where data run out."""

    name: str
    arms: int
    stream: Callable[[int, np.random.Generator], Stream]
    note: str = ""


def linear() -> Problem:
    """Rewards xᵀθ_a + N(0, 0.1²) of 4 arms: x is 10 standard normal numbers, θ_a a random unit vector.

    xᵀθ_a is standard normal, so the best of 4 arms pays 1.03 a round on average.
    """
    return Problem("linear", 4, lambda rounds, generator: _synthetic(rounds, generator, generator.standard_normal))


def beta() -> Problem:
    """As `linear`, but the noise is skewed: Beta(½, 2), shifted and scaled to mean 0 and sd 0.1.

    The mean is linear still; the Gaussian forecast's shape is what is wrong.
    """

    def noise(generator: np.random.Generator) -> Callable[[tuple[int, int]], Floats]:
        return lambda shape: (generator.beta(0.5, 2.0, shape) - 0.2) / np.sqrt(0.5 * 2.0 / (2.5**2 * 3.5))

    return Problem("beta", 4, lambda rounds, generator: _synthetic(rounds, generator, noise(generator)))


def _synthetic(rounds: int, generator: np.random.Generator, noise: Callable[[tuple[int, int]], Floats]) -> Stream:
    theta = directions(4, DIM, generator)
    x = generator.standard_normal((rounds, DIM))
    expected = x @ theta.T
    return Stream(x, expected + NOISE * noise(expected.shape), expected)


def directions(arms: int, dim: int, generator: np.random.Generator) -> Floats:
    """Random unit vectors (arms, dim)."""
    theta = generator.standard_normal((arms, dim))
    found: Floats = theta / np.linalg.norm(theta, axis=1, keepdims=True)
    return found


def clicks(name: str, rates: tuple[float, ...], *, swapped: bool = False) -> Problem:
    """Arms without context that pay 1 with these probabilities, else 0; swapped: in reverse order from halfway on."""

    def stream(rounds: int, generator: np.random.Generator) -> Stream:
        expected = np.tile(rates, (rounds, 1))
        if swapped:
            expected[rounds // 2 :] = expected[rounds // 2 :, ::-1]
        return Stream(np.ones((rounds, 1)), (generator.random(expected.shape) < expected).astype(float), expected)

    return Problem(name, len(rates), stream)


def logistic(name: str, log_odds: float) -> Problem:
    """4 arms that pay 1 with probability logistic(log_odds + 1.5 xᵀθ_a), else 0; x has a constant and 10 numbers."""

    def stream(rounds: int, generator: np.random.Generator) -> Stream:
        theta = 1.5 * directions(4, DIM, generator)
        x = generator.standard_normal((rounds, DIM))
        expected = expit(log_odds + x @ theta.T)
        reward = (generator.random(expected.shape) < expected).astype(float)
        return Stream(np.concatenate([np.ones((rounds, 1)), x], 1), reward, expected)

    return Problem(name, 4, stream)


def gaussian(
    name: str, noise: tuple[float, ...], *, unit: float = 1.0, turn: float = 0.0, swap: bool = False
) -> Problem:
    """As `linear`, with noise of these sds, one per arm, and rewards times `unit`.

    turn: every θ_a turns by this angle on the way to another direction, steadily; swap: arms trade places halfway.
    """

    def stream(rounds: int, generator: np.random.Generator) -> Stream:
        arms = len(noise)
        theta, other = directions(arms, DIM, generator), directions(arms, DIM, generator)
        x = generator.standard_normal((rounds, DIM))
        angle = np.linspace(0, turn, rounds)[:, None]
        expected = np.cos(angle) * (x @ theta.T) + np.sin(angle) * (x @ other.T)
        if swap:
            expected[rounds // 2 :] = np.roll(expected[rounds // 2 :], 1, axis=1)
        reward = expected + np.array(noise) * generator.standard_normal(expected.shape)
        return Stream(x, unit * reward, unit * expected)

    return Problem(name, len(noise), stream)


def quiet() -> Problem:
    """The best of 4 arms without context pays 0.5 ± 0.05, the others 0.4 ± 1."""
    mean, noise = np.array([0.5, 0.4, 0.4, 0.4]), np.array([0.05, 1.0, 1.0, 1.0])

    def stream(rounds: int, generator: np.random.Generator) -> Stream:
        expected = np.tile(mean, (rounds, 1))
        return Stream(np.ones((rounds, 1)), expected + noise * generator.standard_normal(expected.shape), expected)

    return Problem("quiet", 4, stream)


def classes(name: str, arms: int, dim: int) -> Problem:
    """Equally frequent classes, each a Gaussian cloud of sd 0.5 around a point at distance 2: the right arm pays 1."""

    def stream(rounds: int, generator: np.random.Generator) -> Stream:
        centre = 2.0 * directions(arms, dim, generator)
        label = generator.integers(arms, size=rounds)
        x = (centre[label] + 0.5 * generator.standard_normal((rounds, dim))) * dim**0.5 / 2.0
        reward = np.eye(arms)[label]
        return Stream(np.concatenate([np.ones((rounds, 1)), x], 1), reward, reward)

    return Problem(name, arms, stream)


_SMALL = (NOISE,) * 4
SIMULATED: dict[str, tuple[str, Callable[[], Problem]]] = {
    "linear": ("4 arms, rewards linear in 10 numbers, Gaussian noise", linear),
    "beta": ("like linear, with skewed noise", beta),
    "bernoulli": (
        "2 arms without context that pay 1 in 5 and 10 % of cases",
        partial(clicks, "bernoulli", (0.05, 0.10)),
    ),
    "clicks": (
        "4 arms without context that pay 1 in 2, 3, 5 and 8 % of cases",
        partial(clicks, "clicks", (0.02, 0.03, 0.05, 0.08)),
    ),
    "logistic": ("4 arms that pay 1 with a probability logistic in 10 numbers", partial(logistic, "logistic", 0.0)),
    "rare": ("like logistic, with few 1s", partial(logistic, "rare", -3.0)),
    "heteroscedastic": (
        "like linear, with noise of sd 0.1, 0.3, 1 and 2",
        partial(gaussian, "heteroscedastic", (0.1, 0.3, 1.0, 2.0)),
    ),
    "quiet": ("4 arms without context, of which the best pays nearly the same every time", quiet),
    "classes": ("26 classes of clouds in 16 dimensions: 26 arms", partial(classes, "classes", 26, 16)),
    "gaussian": ("like linear, with noise of sd 1", partial(gaussian, "gaussian", (1.0,) * 4)),
    "drift": ("like linear, while every arm turns by 90°", partial(gaussian, "drift", _SMALL, turn=np.pi / 2)),
    "swap": ("like linear, and halfway arms trade places", partial(gaussian, "swap", _SMALL, swap=True)),
    "swapped-clicks": (
        "2 arms that pay 1 in 10 and 30 % of cases, and halfway trade places",
        partial(clicks, "swapped-clicks", (0.1, 0.3), swapped=True),
    ),
    "small": ("like linear, rewards times 0.01", partial(gaussian, "small", _SMALL, unit=0.01)),
    "large": ("like linear, rewards times 100", partial(gaussian, "large", _SMALL, unit=100.0)),
}
"""Every simulated problem by name: what it is in a line, and a function that makes it."""
