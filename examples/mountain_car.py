"""MountainCarContinuous-v0, which pays 100 at a goal that random actions do not reach: the reward, written down.

cd examples
calibrl run control --env MountainCarContinuous-v0 --reward mountain_car:paid --set planner.propagation=TSinf \
    --set planner.particles=3 --set planner.method=icem --set planner.noise_exponent=3 --set planner.exploration=0.1
"""

from torch import Tensor


def paid(observation: Tensor, action: Tensor, following: Tensor) -> Tensor:
    """100 for standing on the hill, less what pushing costs; numbers of any leading dimensions."""
    there = (following[..., 0] >= 0.45) & (following[..., 1] >= 0) & (observation[..., 0] < 0.45)
    return 100.0 * there.to(following.dtype) - 0.1 * action.square().sum(-1)
