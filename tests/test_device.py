"""Everything a forecast can do, on a GPU, with the same answers as on the CPU."""

import pytest
import torch
from torch import distributions as td

import calibrl as cal
from calibrl.distributions import from_zscore

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

D = torch.float64
z = torch.randn(400, 3, generator=torch.Generator().manual_seed(0), dtype=D)
MAPS = {
    name: getattr(cal.maps, f"fit_{name}")(z=1.4 * z + 0.3)
    for name in ("smooth", "isotonic", "affine", "platt", "beta", "sigmoid", "auto")
}


def on(device, kind, dtype=D):
    loc = torch.linspace(-1, 1, 12, dtype=dtype, device=device).reshape(4, 3)
    if kind == "Normal":
        return td.Normal(loc, loc.abs() + 0.5)
    if kind == "Poisson":
        return td.Poisson(loc.abs() * 5 + 1)
    if kind == "Empirical":
        return cal.Empirical(loc + torch.linspace(-2, 2, 30, dtype=dtype, device=device)[:, None, None])
    if kind == "Quantiles":
        return cal.Quantiles(torch.stack([loc - 1, loc, loc + 2]), [0.1, 0.5, 0.9])
    if kind == "Mixture":
        return cal.Mixture([td.Normal(loc, 0.5), td.Normal(loc + 2, 1.0)])
    return cal.Rounded(td.Normal(loc + 4, 1.0))


@pytest.mark.parametrize("kind", ["Normal", "Poisson", "Empirical", "Quantiles", "Mixture", "Rounded"])
@pytest.mark.parametrize("name", MAPS)
def test_same_answers(kind, name):
    here, there = (cal.Recalibrated(on(device, kind), MAPS[name]) for device in ("cpu", "cuda"))
    y = torch.tensor([[1.0, 2.0, 0.0], [3.0, 1.0, 2.0], [0.0, 0.0, 5.0], [2.0, 2.0, 2.0]], dtype=D)
    score = torch.linspace(-2, 2, 12, dtype=D).reshape(4, 3)
    for ask in (
        lambda f, y, q: f.cdf(y),
        lambda f, y, q: f.log_prob(y),
        lambda f, y, q: from_zscore(f, q),
        lambda f, y, q: f.mean,
        lambda f, y, q: f.variance,
        lambda f, y, q: f.interval(0.9, guarantee="conformal")[0],
    ):
        answer = ask(there, y.cuda(), score.cuda())
        assert answer.is_cuda
        torch.testing.assert_close(answer.cpu(), ask(here, y, score), rtol=1e-6, atol=1e-8)
    drawn = cal.draw(there, torch.Generator("cuda").manual_seed(0), (1000,))
    assert drawn.is_cuda
    assert bool(drawn.isfinite().all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_summaries_and_gradients(dtype):
    forecast = on("cuda", "Normal", dtype)
    honest = cal.Recalibrated(forecast, MAPS["smooth"])
    found = cal.summary(honest, honest.sample())
    assert found.n == 12
    assert honest.sample((5,)).dtype == dtype
    loc = torch.zeros(3, device="cuda", dtype=dtype, requires_grad=True)
    cal.Recalibrated(td.Normal(loc, torch.ones_like(loc)), MAPS["smooth"]).rsample((10,)).sum().backward()
    torch.testing.assert_close(loc.grad, torch.full_like(loc, 10))


def test_evidence_may_live_anywhere():
    there = cal.fit_smooth(z=z.cuda())
    assert there == cal.fit_smooth(z=z)
    model = cal.fit_temperature(torch.softmax(z, -1).cuda(), torch.zeros(400).cuda())
    assert model(torch.softmax(z, -1).cuda()).is_cuda
