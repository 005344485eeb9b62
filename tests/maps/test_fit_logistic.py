"""Logistic regression against scikit-learn, many problems at once against each alone."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from calibrl.maps.fit import logistic_fit

D = torch.float64
START = torch.tensor([1.0, 0.0], dtype=D)


def problem(n, seed, slope=1.3, shift=-0.4):
    """Features (2, n) and 0/1 targets (n,)."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n)
    y = rng.random(n) < 1 / (1 + np.exp(-(slope * x + shift)))
    return torch.from_numpy(np.stack([x, np.ones(n)])), torch.from_numpy(y).double()


def test_agrees_with_scikit_learn():
    features, target = problem(500, 8)
    peer = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(features[:1].T, target)
    ours = logistic_fit(features, target, torch.ones(500, dtype=D), start=START, positive=1)
    np.testing.assert_allclose(ours.numpy(), [peer.coef_[0, 0], peer.intercept_[0]], rtol=1e-5)


def test_many_at_once_are_solved_as_each_alone_from_wherever_they_start():
    parts = [problem(200, seed, slope=3 * seed + 0.5, shift=seed - 2) for seed in range(5)]
    features, target = (torch.stack(part) for part in zip(*parts, strict=True))
    size = torch.linspace(0.5, 2, 200, dtype=D).expand(5, -1)
    together = logistic_fit(features, target, size, start=START, positive=1)
    alone = [logistic_fit(*part, size[0], start=START, positive=1) for part in parts]
    far = torch.tensor([[9.0, -7.0], [0.01, 5.0], [40.0, 0.0], [1.0, -30.0], [2.0, 2.0]], dtype=D)
    torch.testing.assert_close(together, torch.stack(alone), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        together, logistic_fit(features, target, size, start=far, positive=1), rtol=1e-10, atol=1e-10
    )
    # At the minimum nothing pulls any more.
    p = torch.sigmoid((together[:, None] @ features)[:, 0])
    slope = (features * (size * (p - target))[:, None]).sum(-1)
    assert float(slope.abs().max()) < 1e-10


@pytest.mark.parametrize("positive", [0, 1])
def test_a_map_that_would_fall_is_held_flat(positive):
    features, target = problem(300, 3, slope=-2.0)
    found = logistic_fit(features, target, torch.ones(300, dtype=D), start=START, positive=positive)
    assert float(found[0]) == (pytest.approx(1e-3) if positive else pytest.approx(-2, abs=0.5))
    # What is free has settled.
    p = torch.sigmoid(found @ features)
    assert float((p - target).sum()) == pytest.approx(0, abs=1e-9)
