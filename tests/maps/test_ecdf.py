import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from calibrl import CalibrlError
from calibrl.kernels import ridge as ridge_evidence
from calibrl.maps import map_from_dict
from calibrl.maps.ecdf import Ecdf, fit_ecdf

scores = st.lists(st.floats(-30, 30).map(lambda v: round(v, 2)), min_size=10, max_size=40)


@given(z=scores, level=st.floats(-1.2, 1.2))
@settings(max_examples=60, deadline=None)
def test_quantiles_are_numpys_with_ranks_over_n_plus_one(z, level):
    mapping = fit_ecdf()(z=np.array(z))
    expected = np.quantile(z, norm.cdf(level), method="weibull")
    inverse = float(mapping.inverse_z(torch.tensor(level, dtype=torch.float64)))
    edge = norm.ppf(len(z) / (len(z) + 1))
    if abs(level) <= edge:
        assert inverse == pytest.approx(expected, abs=1e-9)
    else:  # beyond the ranks the forecast's own tail goes on
        assert inverse == pytest.approx((max(z) + level - edge) if level > 0 else (min(z) + level + edge), abs=1e-9)


@given(z=scores, level=st.floats(-5, 5))
@settings(max_examples=60, deadline=None)
def test_the_kernel_is_the_same_map(z, level):
    mapping = fit_ecdf()(z=np.array(z))
    ordered = np.sort(np.array(z))
    edge = ridge_evidence.edges(len(z))
    stretched = ridge_evidence.stretch(level, ordered, len(z), edge)
    assert stretched == pytest.approx(float(mapping.inverse_z(torch.tensor(level, dtype=torch.float64))), abs=1e-9)
    low, high = ridge_evidence.pit(level, ordered, len(z), edge)
    assert high == pytest.approx(norm.cdf(float(mapping.forward_z(torch.tensor(level, dtype=torch.float64)))), abs=1e-9)
    assert low <= high


@given(z=st.lists(st.floats(-5, 5), min_size=10, max_size=30, unique=True), level=st.floats(-4, 4))
@settings(max_examples=60, deadline=None)
def test_without_ties_the_map_and_its_inverse_undo_each_other(z, level):
    mapping = fit_ecdf()(z=np.sort(np.array(z)) + np.arange(len(z)) * 0.01)
    there = mapping.inverse_z(torch.tensor(level, dtype=torch.float64))
    assert float(mapping.forward_z(there)) == pytest.approx(level, abs=1e-6)


def test_slope_is_the_derivative_of_the_map():
    generator = np.random.default_rng(0)
    mapping = fit_ecdf()(z=generator.standard_normal((30, 2)) * [1, 3])
    at = torch.from_numpy(generator.standard_normal((50, 2)) * [0.5, 1.5])
    step = 1e-7
    numeric = (mapping.forward_z(at + step) - mapping.forward_z(at - step)) / (2 * step)
    np.testing.assert_allclose(mapping.log_slope_z(at), torch.log(numeric), atol=1e-4)


def test_columns_below_the_least_number_stay_as_they_are():
    z = np.full((30, 2), np.nan)
    z[:, 0] = np.random.default_rng(0).standard_normal(30) + 5
    z[:9, 1] = 7.0
    mapping = fit_ecdf()(z=z)
    moved = mapping.inverse_z(torch.tensor([[0.0, 0.0]]))
    assert moved[0, 0] == pytest.approx(np.median(z[:, 0]))
    assert moved[0, 1] == 0.0


def test_an_arm_that_always_pays_the_same_is_an_atom():
    mapping = fit_ecdf()(z=np.zeros(50))
    assert float(mapping.inverse_z(torch.tensor(1.0))) == 0.0


def test_only_the_window_counts():
    z = np.concatenate([np.full(100, -9.0), np.random.default_rng(0).standard_normal(20)])
    recent = fit_ecdf(window=20)(z=z)
    assert recent == fit_ecdf()(z=z[-20:])


def test_pits_and_zscores_say_the_same():
    z = np.random.default_rng(0).standard_normal(40)
    a, b = fit_ecdf()(z=z), fit_ecdf()(norm.cdf(z))
    np.testing.assert_allclose(a.z, b.z, atol=1e-9)


def test_it_saves_as_plain_numbers():
    mapping = fit_ecdf()(z=np.random.default_rng(0).standard_normal((40, 3)))
    assert map_from_dict(mapping.to_dict()) == mapping
    assert isinstance(mapping, Ecdf)


def test_weights_and_windows_that_make_no_sense_are_refused():
    with pytest.raises(CalibrlError, match="weights"):
        fit_ecdf()(z=np.zeros(20), weight=np.ones(20))
    with pytest.raises(CalibrlError, match="window 5"):
        fit_ecdf(min_rows=10, window=5)
