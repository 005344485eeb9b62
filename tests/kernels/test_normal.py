import numpy as np
import pytest
import torch
from scipy import stats

from calibrl.kernels import normal


def test_the_cdf_is_exact_in_both_tails():
    z = torch.linspace(-37, 37, 4001, dtype=torch.float64)
    np.testing.assert_allclose(normal.cdf(z), stats.norm.cdf(z.numpy()), rtol=1e-12)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_the_cdf_keeps_its_dtype_and_its_ends(kind):
    ends = torch.tensor([-torch.inf, 0.0, torch.inf, torch.nan], dtype=kind)
    assert normal.cdf(ends).dtype is kind
    torch.testing.assert_close(normal.cdf(ends), torch.tensor([0.0, 0.5, 1.0, torch.nan], dtype=kind), equal_nan=True)


def test_probabilities_as_evidence_reach_equally_far_on_both_sides():
    p = torch.tensor([0.0, 1e-300, 1e-20, 0.5, 1 - 1e-16, 1.0], dtype=torch.float64)
    z = normal.evidence_quantile(p)
    assert float(z.max()) == -float(z.min()) == pytest.approx(8.2095)
    assert float(z[3]) == 0


def test_many_numbers_in_parts_are_those_of_few():
    z = 5 * torch.randn(3, normal.CHUNK, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    z[0, 0] = torch.nan
    for given in (z, z.T, z.float(), z[:, ::2]):
        wanted = torch.stack([normal.cdf(row) for row in given.reshape(-1, 8)]).view(given.shape)
        torch.testing.assert_close(normal.cdf(given), wanted, rtol=0, atol=0, equal_nan=True)
    z.requires_grad_()
    (slope,) = torch.autograd.grad(normal.cdf(z).nansum(), z)
    torch.testing.assert_close(slope[1], torch.exp(normal.log_density(z[1].detach())))


@pytest.mark.parametrize(("kind", "rtol"), [(torch.float32, 2e-5), (torch.float64, 1e-13)])
def test_logits_of_any_size_have_a_quantile(kind, rtol):
    """Where log Φ(z) of the answer is the logit; a map with a slope of 1e21 gave NaN."""
    t = -torch.logspace(1.5, 36, 400, dtype=kind)
    z = normal.z_of_logit(t)
    np.testing.assert_allclose(stats.norm.logcdf(z.double().numpy()), t.double().numpy(), rtol=rtol)
    assert bool((z.diff() <= 0).all())
    torch.testing.assert_close(normal.z_of_logit(-t), -z, rtol=0, atol=0)
