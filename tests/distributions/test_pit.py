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
