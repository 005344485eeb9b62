"""Logistic regression of many small problems at once."""

from __future__ import annotations

import torch
from torch import Tensor

SLACK = 1e-12
"""Two losses this close, relatively, are equal: near its minimum a loss is flat to the last digit, its slope is not."""


def logistic_fit(features: Tensor, target: Tensor, size: Tensor, *, start: Tensor, positive: int) -> Tensor:
    """Weighted cross-entropy of sigmoid(θ · features) against soft targets, by damped Newton steps: θ (…, k).

    features (…, k, m), target (…, m) in [0, 1], size (…, m) weights, start (k,) or (…, k); the first `positive`
    entries of θ stay above 1e-3 so that the map increases. The problem is convex: the minimum is the only one, and
    a start near it only saves steps. Far from it the sigmoid is flat and a Newton step means nothing: steps that do
    not help are damped until they do.
    """
    # All that the targets have to say: Σ size · target · features.
    pull = (features * (size * target)[..., None, :]).sum(-1)

    def predict(theta: Tensor) -> tuple[Tensor, Tensor]:
        """The probabilities (…, m), and the loss (…)."""
        t = (theta[..., None] * features).sum(-2)
        p = torch.sigmoid(t)
        softplus = t.clamp(min=0) - torch.maximum(p, 1 - p).log()
        return p, (size * softplus).sum(-1) - (theta * pull).sum(-1)

    k = features.shape[-2]
    lowest = torch.tensor([1e-3] * positive + [-torch.inf] * (k - positive), dtype=torch.float64)
    itself = torch.eye(k, dtype=torch.bool)
    theta = start.expand(features.shape[:-1])
    p, best = predict(theta)
    # Damping is measured against the curvature that each parameter could have at most: p (1 - p) is 1/4 there.
    most = (size[..., None, :] * features.square()).sum(-1) / 4 + 1e-9
    least = torch.full_like(best, 1e-12)
    damping, done = least, torch.zeros_like(best, dtype=torch.bool)
    for _ in range(200):
        pushed = features * (size * p)[..., None, :]
        gradient = pushed.sum(-1) - pull
        hessian = (pushed * (1 - p)[..., None, :]) @ features.mT + torch.diag_embed(damping[..., None] * most)
        # An entry that is held at its bound takes no part in the others' step.
        free = (theta > lowest) | (gradient < 0)
        hessian = torch.where((free[..., None] & free[..., None, :]) | itself, hessian, 0.0)
        candidate = torch.maximum(theta - torch.linalg.solve(hessian, gradient), lowest)
        moved = (candidate - theta).abs().amax(-1)
        reached, loss = predict(candidate)
        better = (loss <= best + SLACK * best.abs()) & ~done
        theta, p = (torch.where(better[..., None], new, old) for new, old in ((candidate, theta), (reached, p)))
        best = torch.where(better, loss, best)
        damping = torch.where(better, torch.maximum(damping / 100, least), (damping * 10).clamp(min=1e-4))
        # A Newton step squares what is missing.
        done |= (better & (moved < 1e-8)) | (damping > 1e6)
        if bool(done.all()):
            break
    return theta
