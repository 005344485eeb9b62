"""Bandit problems: streams of contexts with the reward every arm would have paid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrl.bandits.encoding import Features, encode

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

DIM, NOISE = 10, 0.1


@dataclass(frozen=True)
class Stream:
    """One trial's contexts and rewards: x (t, d), reward (t, k), expected (t, k) without the luck of the draw.

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
    theta = generator.standard_normal((4, DIM))
    theta /= np.linalg.norm(theta, axis=1, keepdims=True)
    x = generator.standard_normal((rounds, DIM))
    expected = x @ theta.T
    return Stream(x, expected + NOISE * noise(expected.shape), expected)


def classification(name: str, features: Features, label: Ints, *, note: str = "") -> Problem:
    """Classes as arms: the right one pays 1, the others nothing. Rows come in random order, each once.

    Every column is standardised, as in the benchmark of Riquelme et al. (2018).
    """
    arms = int(label.max()) + 1

    def stream(rounds: int, generator: np.random.Generator) -> Stream:
        rows = generator.permutation(len(label))[:rounds]
        reward = np.eye(arms)[label[rows]]
        return Stream(encode(features[rows]), reward, reward)

    return Problem(name, arms, stream, note)


def mushroom(features: Features, poisonous: Ints) -> Problem:
    """Eat (arm 0) or leave (arm 1): a safe one pays 5, a poisonous one 5 or -35 by the toss of a coin, leaving 0.

    Contexts are plain one-hot indicators, as in the benchmark of Riquelme et al. (2018).
    """

    def stream(rounds: int, generator: np.random.Generator) -> Stream:
        rows = generator.permutation(len(poisonous))[:rounds]
        bad = poisonous[rows] == 1
        unlucky = generator.random(len(rows)) < 0.5
        eat = np.where(bad & unlucky, -35.0, 5.0)
        expected = np.where(bad, -15.0, 5.0)
        nothing = np.zeros(len(rows))
        x = encode(features[rows], standardised=False)
        return Stream(x, np.stack([eat, nothing], 1), np.stack([expected, nothing], 1))

    return Problem("mushroom", 2, stream)
