"""Gradients of recalibrated forecasts to the parameters of their base, against finite differences."""

import pytest
import torch
from torch import distributions as td

import calibrl as cal
from calibrl.maps import Affine, Spline

D = torch.float64


def t(*values):
    return torch.tensor(values, dtype=D)


WIDER = Affine(shift=t(0.3)[0], scale=t(1.5)[0])
EPSILON = t(0.5, -1.2, 2.0)[:, None].expand(-1, 2)

FAMILIES = {
    "Laplace": (td.Laplace, [t(0.0, 1.0), t(1.0, 2.0)]),
    "Exponential": (td.Exponential, [t(1.0, 2.0)]),
    "Gumbel": (td.Gumbel, [t(0.0, 1.0), t(1.0, 2.0)]),
    "Weibull": (td.Weibull, [t(1.0, 2.0), t(1.5, 2.0)]),
    "Gamma": (td.Gamma, [t(1.5, 2.0), t(1.0, 2.0)]),
    "squashed": (
        lambda m, s: td.TransformedDistribution(td.Normal(m, s), td.TanhTransform()),
        [t(0.0, 1.0), t(1.0, 0.5)],
    ),
    "torch's mixture": (
        lambda m, s: td.MixtureSameFamily(td.Categorical(t(0.3, 0.7)), td.Normal(m, s)),
        [torch.stack([t(0.0, 1.0), t(1.0, 4.0)]), torch.stack([t(1.0, 2.0), t(0.5, 1.0)])],
    ),
    "Mixture": (lambda m, s: cal.Mixture([td.Normal(m, s), td.Normal(m + 2, 2 * s)]), [t(0.0, 1.0), t(1.0, 2.0)]),
    "Recalibrated": (lambda m, s: cal.Recalibrated(td.Laplace(m, s), WIDER), [t(0.0, 1.0), t(1.0, 2.0)]),
}

ASKED = {
    "draws": lambda honest, y: honest.push(EPSILON),
    "density": lambda honest, y: honest.log_prob(y),
    "probability": lambda honest, y: honest.cdf(y),
    "mean": lambda honest, y: honest.mean,
    "variance": lambda honest, y: honest.variance,
}


SEARCHED = {"Gamma", "torch's mixture"}
"""Quantiles found by bisection: moments take a second, and are made of draws."""


@pytest.mark.parametrize(
    ("family", "asked"),
    [(family, asked) for family in FAMILIES for asked in ASKED if family not in SEARCHED or asked[0] not in "mv"],
)
def test_gradients_are_those_of_finite_differences(family, asked):
    make, parameters = FAMILIES[family]
    y = cal.Recalibrated(make(*parameters), WIDER).push(EPSILON)

    def total(*given):
        return ASKED[asked](cal.Recalibrated(make(*given), WIDER), y).sum()

    free = [value.clone().requires_grad_() for value in parameters]
    found = torch.autograd.grad(total(*free), free)
    for i, gradient in enumerate(found):
        for j in range(gradient.numel()):
            step = torch.zeros_like(gradient)
            step.view(-1)[j] = 1e-5
            ahead, behind = (
                total(*(p + side * step if k == i else p for k, p in enumerate(parameters))) for side in (1, -1)
            )
            # torch's own gradient of a gamma draw to its concentration is an approximation.
            assert float(gradient.view(-1)[j]) == pytest.approx(float(ahead - behind) / 2e-5, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("y", [-300.0, -50.0, 50.0, 300.0])
def test_an_outcome_far_out_leaves_a_gradient(y):
    mean = t(0.0).requires_grad_()
    honest = cal.Recalibrated(cal.Mixture([td.Normal(mean, 1.0), td.Normal(mean + 2, 2.0)]), WIDER)
    (gradient,) = torch.autograd.grad(honest.log_prob(t(y)).sum(), mean)
    assert bool(gradient.isfinite())
    assert float(gradient) * y > 0


def test_what_was_worked_out_in_inference_mode_serves_gradients():
    mapping = cal.fit_affine(z=torch.randn(50, dtype=D))
    with torch.inference_mode():
        honest = cal.Recalibrated(td.Normal(torch.zeros(1), torch.ones(1)), mapping)
        assert (honest.sample() + honest.mean + honest.variance).shape == (1,)
    scale = torch.ones(1).requires_grad_()
    honest = cal.Recalibrated(td.Normal(scale, scale), mapping)
    (gradient,) = torch.autograd.grad((honest.rsample() + honest.variance).sum(), scale)
    assert bool(gradient.isfinite())


def test_at_its_last_knots_a_slope_counts_once():
    samples, levels = t(-1.0, 0.5, 1.0), t(0.1, 0.5, 0.9)
    forecast = cal.Quantiles(samples, levels)
    for function, ends in (
        (Spline().forward_z, t(-1.0, 1.0)),
        (Spline().inverse_z, t(-1.0, 1.0)),
        (forecast.zscore, t(-1.0, 1.0)),
        (forecast.from_zscore, torch.special.ndtri(levels[[0, 2]])),
    ):
        at = ends.clone().requires_grad_()
        (found,) = torch.autograd.grad(function(at).sum(), at)
        beside = [(function(ends + side) - function(ends)) / side for side in (1e-6, -1e-6)]
        least, most = torch.stack(beside).aminmax(dim=0)
        assert bool(((found > least - 1e-6) & (found < most + 1e-6)).all())
