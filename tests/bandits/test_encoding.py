import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from calibrl.bandits import LinUCB
from calibrl.bandits.problems import Features, encode


def table(seed, n=40):
    generator = np.random.default_rng(seed)
    numeric = generator.standard_normal((n, 2)) * [1, 1000] + [0, 1e6]
    codes = np.stack([generator.integers(3, size=n), generator.integers(5, size=n)], 1).astype(np.int16)
    return Features(numeric, codes, (3, 5))


@given(seed=st.integers(0, 1000), cut=st.integers(1, 40))
def test_no_row_knows_of_rows_to_come(seed, cut):
    features = table(seed)
    np.testing.assert_array_equal(encode(features)[:cut], encode(features[np.arange(cut)]))


@given(seed=st.integers(0, 1000))
def test_the_last_row_is_scikit_learns_encoding_of_all_rows(seed):
    features = table(seed)
    hot = OneHotEncoder(sparse_output=False).fit_transform(features.codes)
    scaled = StandardScaler().fit_transform(np.concatenate([features.numeric, hot], 1))
    mine = encode(features)[-1]
    assert mine[0] == 1
    np.testing.assert_allclose(mine[1:3], scaled[-1, :2], rtol=1e-6)
    # Categories sit in the order they appeared: the same numbers, in other columns.
    used = sum(len(np.unique(column)) for column in features.codes.T)
    np.testing.assert_allclose(np.sort(mine[3:][mine[3:] != 0]), np.sort(scaled[-1, 2 : 2 + used]), rtol=1e-6)


def test_columns_reserved_for_unseen_categories_change_no_forecast():
    features = table(3)
    wide = Features(features.numeric, features.codes, (9, 20))
    narrow_policy, wide_policy = LinUCB(2, features.dim), LinUCB(2, wide.dim)
    for x, more in zip(encode(features), encode(wide), strict=True):
        a, b = narrow_policy.forecast(x), wide_policy.forecast(more)
        np.testing.assert_allclose(a.mean, b.mean, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(a.stddev, b.stddev, rtol=1e-9)
        narrow_policy.update(x, 0, x[1])
        wide_policy.update(more, 0, x[1])


def test_a_column_that_never_varies_is_zero():
    features = Features(np.full((5, 1), 7.3), np.zeros((5, 0), np.int16), ())
    np.testing.assert_array_equal(encode(features)[:, 1], 0)
    assert encode(features[np.arange(0)]).shape == (0, 2)


def test_large_offsets_do_not_cancel():
    generator = np.random.default_rng(0)
    small = generator.standard_normal((50, 1))
    near = encode(Features(small, np.zeros((50, 0), np.int16), ()))
    far = encode(Features(small + 1e9, np.zeros((50, 0), np.int16), ()))
    assert far[-1, 1] == pytest.approx(near[-1, 1], abs=1e-5)
