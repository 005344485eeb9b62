"""Pendulum-v1 seen through noise, or pushed by it: an environment of one's own, made of one of Gymnasium's.

cd examples
calibrl run control --env noisy_pendulum:NoisySensors-v0
calibrl run control --env noisy_pendulum:NoisyMotor-v0
"""

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


class NoisySensors(gymnasium.ObservationWrapper[Floats, Floats, Floats]):
    """Adds normal noise to what is seen; `sd` is a share of each number's range."""

    def __init__(self, env: gymnasium.Env[Floats, Floats], sd: float = 0.05) -> None:
        super().__init__(env)
        space = env.observation_space
        assert isinstance(space, gymnasium.spaces.Box)
        self.sd = sd * (space.high - space.low)

    def observation(self, observation: Floats) -> Floats:
        return (observation + self.np_random.normal(0, self.sd)).astype(np.float32)


class NoisyMotor(gymnasium.ActionWrapper[Floats, Floats, Floats]):
    """Adds normal noise to what is done; `sd` is a share of each number's range."""

    def __init__(self, env: gymnasium.Env[Floats, Floats], sd: float = 0.25) -> None:
        super().__init__(env)
        space = env.action_space
        assert isinstance(space, gymnasium.spaces.Box)
        self.sd = sd * (space.high - space.low)

    def action(self, action: Floats) -> Floats:
        return (action + self.np_random.normal(0, self.sd)).astype(np.float32)


def noisy_sensors(**options: Any) -> gymnasium.Env[Floats, Floats]:
    """What Gymnasium makes of NoisySensors-v0."""
    return NoisySensors(gymnasium.make("Pendulum-v1", **options))


def noisy_motor(**options: Any) -> gymnasium.Env[Floats, Floats]:
    """What Gymnasium makes of NoisyMotor-v0."""
    return NoisyMotor(gymnasium.make("Pendulum-v1", **options))


gymnasium.register("NoisySensors-v0", noisy_sensors, max_episode_steps=200)
gymnasium.register("NoisyMotor-v0", noisy_motor, max_episode_steps=200)
