import gzip
import hashlib
import importlib
import io
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from calibrl import CalibrlError
from calibrl.bandits import LinUCB, problems
from calibrl.bandits.problems import PROBLEMS, SIMULATED, Features, Source, encode, find, problem

EMBEDDED = ["linear", "beta", "digits", "wine", "breast-cancer"]
needs_data = pytest.mark.skipif(not os.environ.get("CALIBRL_DATA"), reason="needs CALIBRL_DATA")


@pytest.mark.parametrize("name", ["linear", "beta"])
def test_synthetic_problems_are_linear_with_an_optimum_near_one(name):
    optimum = []
    for seed in range(20):
        stream = problem(name).stream(1200, np.random.default_rng(seed))
        optimum.append(stream.expected.max(1).mean())
        theta, *_ = np.linalg.lstsq(stream.x, stream.expected, rcond=None)
        np.testing.assert_allclose(stream.x @ theta, stream.expected, atol=1e-9)
        noise = stream.reward - stream.expected
        assert abs(noise.mean()) < 0.01
        assert noise.std() == pytest.approx(0.1, rel=0.05)
    assert np.mean(optimum) == pytest.approx(1.03, abs=0.06)


def test_betas_noise_is_skewed_and_linears_is_not():
    skew = {}
    for name in ("linear", "beta"):
        stream = problem(name).stream(5000, np.random.default_rng(0))
        noise = (stream.reward - stream.expected) / 0.1
        skew[name] = (noise**3).mean()
    assert abs(skew["linear"]) < 0.1
    assert skew["beta"] > 0.8


@pytest.mark.parametrize("name", EMBEDDED)
def test_the_same_seed_gives_the_same_stream_and_the_best_arm_pays_best(name):
    a, b = (problem(name).stream(100, np.random.default_rng(3)) for _ in range(2))
    np.testing.assert_array_equal(a.x, b.x)
    np.testing.assert_array_equal(a.reward, b.reward)
    assert a.reward.shape == (100, problem(name).arms)
    assert (a.expected.max(1) == a.expected[np.arange(100), a.best]).all()


def test_each_row_is_shown_once():
    stream = problem("wine").stream(10_000, np.random.default_rng(0))
    assert len(stream.x) == 178
    np.testing.assert_array_equal(stream.reward.sum(0), [59, 71, 48])


def test_unknown_problems_are_named():
    with pytest.raises(CalibrlError, match="'chess' is unknown; known: linear"):
        problem("chess")


@needs_data
@pytest.mark.parametrize(
    ("name", "arms", "dim"), [("mushroom", 2, 118), ("covertype", 7, 55), ("adult", 14, 96), ("census", 9, 361)]
)
def test_ucis_sets_are_as_documented(name, arms, dim):
    task = problem(name)
    stream = task.stream(1200, np.random.default_rng(0))
    assert task.arms == arms
    assert stream.x.shape[1] == dim
    assert np.isfinite(stream.x).all()
    if name == "mushroom":
        assert set(np.unique(stream.reward[:, 0])) == {-35.0, 5.0}
        assert stream.expected.max(1).mean() == pytest.approx(5 * 4208 / 8124, abs=0.2)
    else:
        np.testing.assert_array_equal(stream.reward.sum(1), 1)
    assert ("1000 rows" in task.note) == (name == "census" and len(stream.x) == 1000)


# Fetching.


@pytest.fixture
def served(tmp_path, monkeypatch):
    """A file behind a URL, an empty cache, and no data folder."""
    monkeypatch.delenv("CALIBRL_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    text = b"1,2\n3,4\n" * 1000
    (tmp_path / "plain.csv").write_bytes(text)
    (tmp_path / "packed.csv.gz").write_bytes(gzip.compress(text))
    return tmp_path, text


@pytest.mark.parametrize("file", ["plain.csv", "packed.csv.gz"])
def test_a_file_is_fetched_once_checked_and_kept(served, file):
    folder, text = served
    source = Source("set.csv", (folder / file).as_uri(), hashlib.sha256(text).hexdigest())
    path = find(source)
    assert gzip.decompress(path.read_bytes()) == text
    (folder / file).unlink()
    assert find(source) == path


def test_a_changed_file_is_refused_and_not_kept(served):
    folder, _ = served
    source = Source("set.csv", (folder / "plain.csv").as_uri(), "0" * 64)
    with pytest.raises(CalibrlError, match="SHA-256"):
        find(source)
    assert not list(Path(os.environ["XDG_CACHE_HOME"]).rglob("*.gz"))


def test_offline_is_said_in_one_line_with_a_cure(served):
    folder, _ = served
    source = Source("set.csv", (folder / "missing.csv").as_uri(), "0" * 64)
    with pytest.raises(CalibrlError, match=r"cannot be reached.*set CALIBRL_DATA to a folder with uci/set\.csv"):
        find(source)


def test_the_data_folder_comes_first(served, monkeypatch):
    folder, text = served
    (folder / "uci").mkdir()
    (folder / "uci" / "set.csv").write_bytes(text)
    monkeypatch.setenv("CALIBRL_DATA", str(folder))
    assert find(Source("set.csv", "http://nowhere.invalid/", "")) == folder / "uci" / "set.csv"


def test_every_problem_has_a_name_and_a_source():
    assert {*EMBEDDED, *SIMULATED, "mushroom", "covertype", "adult", "census"} == set(PROBLEMS)
    for source in (problems.COVERTYPE, problems.MUSHROOM, problems.ADULT, problems.CENSUS):
        assert source.url.startswith("https://")
        assert len(source.sha256) == 64


# Rows of a table as contexts.


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


@pytest.mark.parametrize("name", SIMULATED)
def test_simulated_rewards_are_their_expectations_with_noise(name):
    stream = problem(name).stream(3000, np.random.default_rng(0))
    again = problem(name).stream(3000, np.random.default_rng(0))
    np.testing.assert_array_equal(stream.reward, again.reward)
    off = stream.reward - stream.expected
    error = off.std(0) / 3000**0.5 + 1e-12
    assert (np.abs(off.mean(0)) < 4.5 * error).all()
    assert np.isfinite(stream.x).all()


def test_visitors_are_those_of_the_example_service(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    service = importlib.import_module("bandit_service")
    seen = []

    def ask(_url, content):
        if "x" in content:
            seen.append([content["x"], len(seen) % 2])
            return {"id": "", "arm": service.ARMS[seen[-1][1]]}
        seen[-1].append(content["reward"])
        return {"learnt": True}

    monkeypatch.setattr(service, "ask", ask)
    monkeypatch.setattr(service.urllib.request, "urlopen", lambda *_, **__: io.StringIO('{"pulls": {}}'))
    service.visit("", 4000)
    x, arm, reward = (np.array(part) for part in zip(*seen, strict=True))
    stream = problem("visitors").stream(4000, np.random.default_rng(0))
    assert (x.shape, len(service.ARMS)) == (stream.x.shape, stream.reward.shape[1])
    for rows in (x, stream.x):
        assert (rows[:, 2] == 1).all()
        assert abs(rows[:, :2].mean()) < 0.05
        assert rows[:, :2].std() == pytest.approx(1, abs=0.05)
    np.testing.assert_array_equal(reward[arm == 0], x[arm == 0, 0] > 0)
    np.testing.assert_array_equal(stream.expected[:, 0], stream.x[:, 0] > 0)
    assert reward[arm == 1].mean() == pytest.approx(stream.expected[0, 1], abs=0.05)


def test_arms_trade_places_halfway():
    clicks = problem("swapped-clicks").stream(10, np.random.default_rng(0))
    assert clicks.best.tolist() == [1] * 5 + [0] * 5
    small, large = (problem(name).stream(50, np.random.default_rng(0)) for name in ("small", "large"))
    np.testing.assert_allclose(1e4 * small.reward, large.reward)


def test_any_table_is_a_problem(tmp_path):
    path = tmp_path / "pets.csv"
    path.write_text("size,colour,kind\n1,red,cat\n9,blue,dog\n2,red,cat\n8,grey,dog\n", encoding="utf-8")
    made = problem(f"file:{path}:kind")
    stream = made.stream(10, np.random.default_rng(0))
    assert (made.arms, stream.x.shape, stream.reward.sum()) == (2, (4, 1 + 1 + 3), 4)
    with pytest.raises(CalibrlError, match="has no column 'sort'; it has size, colour, kind: name one with --label"):
        problem(f"file:{path}:sort")
    path.write_text("size,kind\n1,cat\n2,cat\n", encoding="utf-8")
    with pytest.raises(CalibrlError, match="has 1 classes; a bandit needs 2 to 1000"):
        problem(f"file:{path}:kind")
