import numpy as np
import pytest
import torch
from scipy import stats
from torch import distributions as td

import calibrl as cal


def test_a_count_that_cannot_be_lies_beyond_all_that_can(generator):
    ten = td.Binomial(10, torch.full((4,), 0.5, dtype=torch.float64))
    mapping = cal.fit_smooth(torch.rand(50, generator=generator, dtype=torch.float64))
    for forecast in (ten, cal.Recalibrated(ten, mapping)):
        z = cal.pit_z(forecast, [-1.0, 0.0, 10.0, 11.0], generator=generator)
        assert (np.diff(z) > 1).all()
        assert cal.pit(forecast, [-3.0, -1.0, 11.0, 99.0], generator=generator) == pytest.approx([0, 0, 1, 1])


@pytest.mark.parametrize("count", [12, 55])  # in either tail, where each is mixed by itself
def test_a_pit_is_drawn_evenly_within_its_mass(generator, count):
    n, law = 4000, stats.poisson(30)
    forecast = td.Poisson(torch.full((n,), 30.0, dtype=torch.float64))
    p = cal.pit(forecast, torch.full((n,), float(count)), generator=generator).numpy()
    share = (p - law.cdf(count - 1)) / law.pmf(count)
    assert stats.kstest(share, "uniform").pvalue > 0.001


@pytest.mark.parametrize("scale", [-1.0, 0.0, float("inf")])
@pytest.mark.parametrize("judge", [cal.pit, cal.crps, cal.diagnostics.nll, cal.summary])
def test_a_spread_that_is_none_is_named(scale, judge):
    """A network's scale below 0 would mirror its PITs, and an endless one would call every outcome the median."""
    scales, y = torch.tensor([1.0, scale, 2.0], dtype=torch.float64), torch.tensor([0.3, -0.2, 0.1])
    forecast = td.Normal(torch.zeros(3, dtype=torch.float64), scales, validate_args=False)
    for one in (forecast, cal.Recalibrated(forecast, cal.fit_affine(z=torch.randn(20)))):
        with pytest.raises(cal.CalibrlError, match=rf"outcome -0\.2 has standard deviation {scale:g}; repair"):
            judge(one, y)
        judge(one, y.where(scales == scales.abs().clamp(0.5, 3), torch.nan))  # of what nobody saw, nothing is asked
    with pytest.raises(cal.CalibrlError, match=rf"std {scale:g} of \(mean, std\) is not above 0"):
        cal.calibrate((np.zeros(3), scales.numpy()), y.numpy())
