"""The choice of a map, beside a plain version of itself: every fold and candidate fitted alone and scored exactly."""

import pytest
import torch

import calibrl as cal
from calibrl.maps.fit import FOLDS, ROUNDING
from calibrl.maps.gaussian import gaussian_law, rough_law

D = torch.float64
FITS = {
    "smooth": cal.fit_smooth,
    "affine": cal.fit_affine,
    "platt": cal.fit_platt,
    "beta": cal.fit_beta,
    "isotonic": cal.fit_isotonic,
}


def crps(mapping, z):
    return gaussian_law(mapping, z.device).crps(z, mapping.forward_z(z))


def plainly_chosen(z, weight):
    """The name and the map that cross-validation chooses for z-scores (n,)."""
    if len(z) < FOLDS:
        return "identity", cal.maps.IDENTITY
    order = torch.randperm(len(z), generator=torch.Generator().manual_seed(0))
    shuffled, heavy = z[order], weight[order]
    fold = torch.arange(len(z)) % FOLDS
    scores = {name: torch.empty_like(z) for name in FITS}
    for name, fit in FITS.items():
        for k in range(FOLDS):
            mapping = fit(z=shuffled[fold != k], weight=heavy[fold != k])
            scores[name][fold == k] = crps(mapping, shuffled[fold == k])
    share = heavy / heavy.sum()
    name = min(scores, key=lambda one: float((share * scores[one]).sum()))
    gain = crps(cal.maps.IDENTITY, shuffled) - scores[name]
    mean = (share * gain).sum()
    error = (share.square() * (gain - mean).square()).sum().sqrt()
    if float(mean) <= float(error) + ROUNDING:
        return "identity", cal.maps.IDENTITY
    return name, FITS[name](z=z, weight=weight)


def z_scores(n, generator):
    """Miscalibration of several kinds: (n, 7)."""
    z = torch.randn(n, 7, generator=generator, dtype=D)
    wild = torch.rand(n, generator=generator, dtype=D) < 0.05
    z[:, 1] = 1.5 * z[:, 1] + 0.3
    z[:, 2] *= 0.5
    z[:, 3] = -torch.log(torch.rand(n, generator=generator, dtype=D)) - 0.6
    z[:, 4] *= torch.where(wild, 30.0, 1.0)
    z[:, 5] = (2 * z[:, 5]).round()
    z[:, 6] *= 20
    return z


@pytest.mark.parametrize(("n", "weighted"), [(4, False), (31, True), (300, False)])
def test_chooses_and_fits_what_a_plain_search_does(n, weighted, generator):
    scores = z_scores(n, generator)
    weight = 0.1 + torch.rand(n, generator=generator, dtype=D) if weighted else None
    q = torch.linspace(0.001, 0.999, 41, dtype=D)
    for z in scores.T:
        ours = cal.fit_auto(z=z, weight=weight)
        name, mapping = plainly_chosen(z, torch.ones(n, dtype=D) if weight is None else weight)
        assert ours.note == f"chosen by cross-validation: {name}"
        torch.testing.assert_close(ours(q), mapping(q), rtol=0, atol=1e-10)


def test_columns_choose_for_themselves(generator):
    scores = z_scores(120, generator)
    scores[::7, 1] = torch.nan
    alone = [cal.fit_auto(z=z).note.removeprefix("chosen by cross-validation: ") for z in scores.T]
    assert len(set(alone)) > 1
    assert cal.fit_auto(z=scores).note == f"chosen by cross-validation: {', '.join(alone)}"


def test_a_rough_law_tells_maps_apart_as_the_exact_one_does(generator):
    z = z_scores(400, generator)[:, :4]
    for fit in FITS.values():
        mapping = fit(z=z)
        s = mapping.forward_z(z)
        rough, exact = rough_law(mapping), gaussian_law(mapping, z.device)
        torch.testing.assert_close(rough.crps(z, s).mean(0), exact.crps(z, s).mean(0), rtol=0, atol=2e-5)
        torch.testing.assert_close(rough.variance, exact.variance, rtol=1e-3, atol=0)


def test_threads_are_given_back():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        cal.fit_auto(z=torch.zeros(3, dtype=D))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
