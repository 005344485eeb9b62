"""What must hold of every map, whoever fitted it."""

import copy
import dataclasses
import json
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import calibrl as cal
from calibrl.kernels import normal
from calibrl.maps import map_from_dict
from calibrl.maps.base import WeightedRanks
from calibrl.tables.mapfile import MapFile

FITS = {
    name: getattr(cal.maps, f"fit_{name}")
    for name in ("smooth", "isotonic", "affine", "platt", "beta", "sigmoid", "auto")
}


def fit_chain(pits, **options):
    """What an affine map leaves wrong, put right by a smooth one."""
    first = cal.fit_affine(pits, **options)
    return cal.maps.Chain(before=first, after=cal.fit_smooth(first(pits), **options))


FITS["chain"] = fit_chain
PROPER = {name: fit for name, fit in FITS.items() if name != "sigmoid"}
D = torch.float64

# Evidence here goes to the very ends on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:.*PITs are 0 or 1 to the last digit")

every_fit = pytest.mark.parametrize("fit", FITS.values(), ids=FITS)
every_proper_fit = pytest.mark.parametrize("fit", PROPER.values(), ids=PROPER)
shapes = pytest.mark.parametrize("columns", [(), (1,), (3,)], ids=str)


def evidence(columns=(), n=200, seed=0):
    """PITs of a forecast that is over-confident and biased, more so in later columns."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(n, *columns, generator=generator, dtype=D)
    factor = 1.5 + torch.arange(columns[0], dtype=D) if columns else 1.5
    return torch.special.ndtr(factor * z + 0.3)


def wide(p, columns):
    return p[:, None].expand(-1, *columns) if columns else p


@every_fit
@shapes
def test_increases_and_inverts(fit, columns):
    mapping = fit(evidence(columns))
    assert mapping.columns == columns
    p = wide(torch.linspace(0, 1, 2001, dtype=D), columns)
    r = mapping(p)
    assert bool((r.diff(dim=0) >= 0).all())
    inside = (p > 1e-4) & (p < 1 - 1e-4)
    torch.testing.assert_close(mapping.inverse(r)[inside], p[inside], rtol=0, atol=1e-9)


@every_proper_fit
@shapes
def test_is_proper_at_the_ends(fit, columns):
    mapping = fit(evidence(columns))
    ends = wide(torch.tensor([0.0, 1.0], dtype=D), columns)
    assert torch.equal(mapping(ends), ends)
    assert torch.equal(mapping.inverse(ends), ends)
    tiny = wide(torch.tensor([1e-12, 1 - 1e-12], dtype=D), columns)
    assert bool(((mapping(tiny) > 0) & (mapping(tiny) < 1)).all())


@every_fit
@shapes
def test_slope_is_the_derivative(fit, columns):
    mapping = fit(evidence(columns))
    z = wide(torch.linspace(-2, 2, 97, dtype=D), columns)
    step = 1e-6
    numeric = (mapping.forward_z(z + step) - mapping.forward_z(z - step)) / (2 * step)
    torch.testing.assert_close(mapping.log_slope_z(z).exp(), numeric, rtol=1e-4, atol=1e-6)


@every_proper_fit
def test_tails_go_on_and_are_never_stuck(fit):
    mapping = fit(evidence())
    z = torch.linspace(-60, 60, 241, dtype=D)
    moved = mapping.inverse_z(z)
    assert bool(moved.isfinite().all())
    assert bool((moved.diff() > 0).all())


@pytest.mark.parametrize("n", [5, 12])
@pytest.mark.parametrize("name", sorted({*PROPER} - {"chain"}))
def test_a_column_that_is_certain_and_wrong_leaves_the_map_finite(name, n):
    """Outcomes a million deviations away, all alike: beside them, another column."""
    z = torch.stack(
        [torch.full((n,), 1e6, dtype=D), torch.randn(n, generator=torch.Generator().manual_seed(0), dtype=D)], 1
    )
    at = torch.linspace(-8, 8, 65, dtype=D)[:, None].expand(-1, 2)
    moved = FITS[name](z=z).inverse_z(at)
    assert bool(moved.isfinite().all())
    assert bool((moved.diff(dim=0) >= 0).all())


@every_fit
@shapes
def test_is_a_frozen_value_that_saves_as_plain_json(fit, columns):
    mapping = fit(evidence(columns))
    text = json.dumps(mapping.to_dict(), allow_nan=False)
    again = map_from_dict(json.loads(text))
    assert again == mapping
    assert hash(again) == hash(mapping)
    assert mapping != fit(evidence(columns, seed=1))
    p = wide(torch.rand(50, dtype=D), columns)
    assert torch.equal(again(p), mapping(p))
    with pytest.raises(dataclasses.FrozenInstanceError):
        mapping.note = "changed"
    assert mapping.to("cpu") == mapping


@every_fit
@shapes
def test_is_pickled_without_what_was_worked_out_about_it(fit, columns):
    mapping = fit(evidence(columns))
    fresh = pickle.dumps(mapping)
    forecast = cal.Recalibrated(torch.distributions.Normal(torch.zeros(2, *columns), 1.0), mapping)
    assert bool((forecast.variance + forecast.sample()).isfinite().all())
    assert hash(mapping) == hash(pickle.loads(fresh))
    assert len(pickle.dumps(mapping)) == len(fresh)
    assert not copy.deepcopy(mapping).cache


@every_fit
@shapes
def test_moves_to_another_dtype(fit, columns):
    mapping = fit(evidence(columns))
    single = mapping.to(dtype=torch.float32)
    p = wide(torch.linspace(0.02, 0.98, 49, dtype=D), columns)
    torch.testing.assert_close(single(p), mapping(p), rtol=0, atol=1e-4)
    base = torch.distributions.Normal(torch.zeros(4, *columns), torch.ones(4, *columns))
    assert cal.Recalibrated(base, single).sample().dtype == torch.float32
    torch.testing.assert_close(
        cal.Recalibrated(base, single).mean, cal.Recalibrated(base, mapping).mean, rtol=1e-3, atol=1e-3
    )


@every_fit
def test_unseen_stays_unseen_and_does_not_count(fit):
    p = evidence()
    gaps = torch.full((60,), torch.nan, dtype=D)
    with_gaps = torch.cat([gaps, p])[torch.randperm(260, generator=torch.Generator().manual_seed(3))]
    q = torch.linspace(0.01, 0.99, 50, dtype=D)
    if fit is not cal.fit_auto:  # its folds depend on the order of rows
        torch.testing.assert_close(fit(with_gaps)(q), fit(p)(q))
    assert bool(fit(p)(torch.tensor([0.5, torch.nan], dtype=D))[1].isnan())


@every_fit
def test_column_by_column_is_the_same_as_together(fit):
    p = evidence((3,))
    together = fit(p)
    q = torch.linspace(0.001, 0.999, 99, dtype=D)
    apart = torch.stack([fit(p[:, j])(q) for j in range(3)], -1)
    tolerance = 1e-4 if fit is cal.fit_auto else 1e-9  # auto holds mixed choices as splines
    torch.testing.assert_close(together(wide(q, (3,))), apart, rtol=0, atol=tolerance)


@every_fit
def test_gives_back_what_it_was_given(fit):
    p = evidence()
    mapping = fit(p.numpy())
    assert isinstance(mapping(p.numpy()), np.ndarray)
    assert mapping(p.float()).dtype == torch.float32
    np.testing.assert_allclose(mapping(p.numpy()), mapping(p).numpy())


@every_fit
def test_weights_count_rows(fit):
    p = evidence(n=600)
    doubled = fit(torch.cat([p, p[:300]]))
    weighted = fit(p, weight=torch.cat([torch.full((300,), 2.0), torch.ones(300)]))
    q = torch.linspace(0.05, 0.95, 19, dtype=D)
    # Not the same evidence (two draws say more than one heavy draw), but the same direction.
    assert float((doubled(q) - weighted(q)).abs().max()) < 0.03
    assert weighted.ranks is None or isinstance(weighted.ranks, WeightedRanks)  # of two maps in a row nothing is
    torch.testing.assert_close(fit(p[:40], weight=torch.full((40,), 3.0))(q), fit(p[:40])(q), rtol=0, atol=1e-6)


@every_proper_fit
@given(
    values=st.lists(st.floats(0, 1) | st.sampled_from([0.0, 0.5, 1.0]), min_size=0, max_size=60),
)
def test_any_evidence_gives_a_proper_map(fit, values):
    mapping = fit(torch.tensor(values, dtype=D))
    p = torch.linspace(0, 1, 101, dtype=D)
    r = mapping(p)
    assert bool(r.isfinite().all())
    assert bool((r.diff() >= 0).all())
    assert bool(mapping.inverse(p)[1:-1].isfinite().all())
    assert bool(mapping.log_slope_z(normal.finite_quantile(p)).isfinite().all())


@every_fit
@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (torch.tensor([0.2, 1.5]), "1.5 is outside"),
        (torch.zeros(2, 2, 2), "shape"),
        (torch.zeros(4, 0), "no column"),
        ("text", "not an array"),
    ],
)
def test_bad_evidence_is_refused(fit, bad, words):
    with pytest.raises(cal.CalibrlError, match=words):
        fit(bad)


@every_fit
def test_other_columns_are_refused(fit):
    with pytest.raises(cal.CalibrlError, match="3 columns"):
        fit(evidence((3,)))(torch.rand(5, 2))
    with pytest.raises(cal.CalibrlError, match="outside"):
        fit(evidence())(torch.tensor([1.2]))


def test_unknown_or_damaged_files_are_refused():
    with pytest.raises(cal.CalibrlError, match="unknown kind"):
        map_from_dict({"kind": "magic"})
    saved = cal.fit_platt(evidence()).to_dict()
    del saved["a"]
    with pytest.raises(cal.CalibrlError, match="fit it again"):
        map_from_dict(saved)


@every_fit
@shapes
def test_a_file_keeps_it(fit, columns, tmp_path):
    mapping = fit(evidence(columns))
    mapping.save(tmp_path / "map.json")
    assert cal.maps.load(tmp_path / "map.json") == mapping


def test_files_that_hold_no_map_are_refused(tmp_path):
    file = tmp_path / "map.json"
    cal.fit_affine(evidence()).save(file)
    with pytest.raises(cal.CalibrlError, match=r"calibrl\.maps\.load"):
        MapFile.load(file)
    file.write_text(file.read_text().replace("affine", "Affine"))
    with pytest.raises(cal.CalibrlError, match="damaged or edited"):
        cal.maps.load(file)
    with pytest.raises(cal.CalibrlError, match="cannot be read"):
        cal.maps.load(tmp_path / "none.json")
