"""Rows carry reliability curves that can be drawn again."""

import numpy as np
from scipy import stats

from calibrl.runs.rows import RELIABILITY_NAMES, RELIABILITY_PERCENT, reliability_metrics


def test_shares_are_the_empirical_distribution():
    pit = stats.beta(0.5, 0.7).rvs(500, random_state=0)
    found = reliability_metrics(pit)
    expected = stats.ecdf(pit).cdf.evaluate(np.array(RELIABILITY_PERCENT) / 100)
    np.testing.assert_allclose(list(found.values()), expected, atol=1e-6)
    assert RELIABILITY_NAMES[0] == "reliability_05"
    assert RELIABILITY_NAMES[-1] == "reliability_95"


def test_columns_are_averaged():
    pit = np.array([[0.1, 0.9], [0.2, 0.95]])
    assert reliability_metrics(pit)["reliability_50"] == 0.5
