"""Class maps against scikit-learn and their own laws."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import logit, logsumexp
from sklearn.isotonic import IsotonicRegression
from torch import distributions as td

import calibrl as cal
from calibrl.maps.classes import (
    CLASS_MAPS,
    Temperature,
    _platt,
    _temperature,
    check_classes,
    class_map_from_dict,
    fit_auto_classes,
    fit_bias_corrected,
)

D = torch.float64
FITS = CLASS_MAPS
CANDIDATES = [name for name in CLASS_MAPS if name != "auto"]
every_fit = pytest.mark.parametrize("fit", FITS.values(), ids=FITS)


def bold(n, classes, generator, temperature=0.4):
    """Probabilities that should have been softmax(logits), sharpened by 1/temperature, and outcomes."""
    logits = torch.randn(n, classes, generator=generator, dtype=D)
    label = torch.multinomial(torch.softmax(logits, -1), 1, generator=generator)[:, 0]
    return torch.softmax(logits / temperature, -1), label


@every_fit
@pytest.mark.parametrize("classes", [2, 5])
def test_sums_to_one_improves_and_saves(fit, classes, generator):
    probs, label = bold(3000, classes, generator)
    mapping = fit(probs[:2000], label[:2000])
    honest = mapping(probs)
    torch.testing.assert_close(honest.sum(-1), torch.ones(3000, dtype=D))
    assert bool((honest >= 0).all())
    assert cal.ece(honest[2000:], label[2000:]) < cal.ece(probs[2000:], label[2000:]) / 2
    again = class_map_from_dict(json.loads(json.dumps(mapping.to_dict())))
    assert again == mapping
    assert torch.equal(again(probs), honest)


@every_fit
def test_events_are_two_classes(fit, generator):
    p, y = bold(500, 2, generator)
    as_event, as_classes = fit(p[:, 1], y), fit(p, y)
    torch.testing.assert_close(as_event(p[:, 1], event=True), as_classes(p)[:, 1])
    recalibrated = cal.recalibrate(td.Bernoulli(p[:, 1]), as_event)
    torch.testing.assert_close(recalibrated.probs, as_event(p[:, 1], event=True))


@every_fit
@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=2, max_size=40))
def test_any_evidence_gives_probabilities(fit, evidence):
    p = torch.tensor([pair[0] for pair in evidence], dtype=D)
    mapping = fit(p, torch.tensor([float(pair[1]) for pair in evidence], dtype=D))
    moved = mapping(torch.linspace(0, 1, 51, dtype=D), event=True)
    assert bool(((moved >= 0) & (moved <= 1)).all())
    assert bool((moved.diff() >= -1e-9).all())


def plainly_chosen(probs, label):
    """The map that five-fold cross-validation chooses, each fold's maps fitted from scratch."""
    probs, label = check_classes(probs, label)
    order = torch.randperm(len(probs), generator=torch.Generator().manual_seed(0))
    probs, label = probs[order], label[order]
    fold = torch.arange(len(probs)) % 5

    def surprise(p, y):
        return -p[torch.arange(len(y)), y].clamp(min=1e-12).log()

    scores = {name: torch.empty(len(probs), dtype=D) for name in CANDIDATES}
    for name, fit in ((name, CLASS_MAPS[name]) for name in CANDIDATES):
        for k in range(5):
            held = fold == k
            mapping = fit(probs[~held], label[~held])
            scores[name][held] = surprise(mapping(probs[held]), label[held])
    name = min(scores, key=lambda one: float(scores[one].mean()))
    gain = surprise(probs, label) - scores[name]
    return name, gain.mean() > gain.std() / len(gain) ** 0.5, CLASS_MAPS[name](probs, label)


@pytest.mark.parametrize(("n", "classes"), [(12, 2), (150, 3), (600, 12)])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("digits", [2, 12])
def test_auto_chooses_and_fits_what_a_plain_search_does(n, classes, temperature, digits, generator):
    probs, label = bold(n, classes, generator, temperature)
    if classes == 3:  # what only a curve per class can mend
        probs = torch.stack([probs[:, 0] ** 3, probs[:, 1], probs[:, 2] + 0.2], -1)
    probs = probs.round(decimals=digits) + 1e-9  # equal probabilities too
    probs = probs / probs.sum(-1, keepdim=True)
    ours = fit_auto_classes(probs, label)
    name, better, mapping = plainly_chosen(probs, label)
    assert ours.note == f"chosen by cross-validation: {name if better else 'identity'}"
    searched = (
        1e-6 if name in ("temperature", "bias-corrected") else 1e-10
    )  # by a search that takes rows in another order
    torch.testing.assert_close(ours(probs), mapping(probs) if better else probs, rtol=0, atol=searched)


@pytest.mark.parametrize("temperature", [0.05, 0.4, 1.0, 5.0])
@pytest.mark.parametrize("n", [2, 40, 3000])
def test_a_temperature_is_where_the_loss_is_flat(n, temperature, generator):
    probs, label = bold(n, 4, generator, temperature)
    for near in (None, Temperature(t=torch.tensor(3.0, dtype=D))):
        found = _temperature(probs, label, torch.ones(n, dtype=D), near).t
        assert float(found) == pytest.approx(float(cal.fit_temperature(probs, label).t), rel=1e-6)
        log_t = found.log().requires_grad_()
        scaled = probs.clamp(min=1e-12).log() / log_t.exp()
        loss = torch.nn.functional.cross_entropy(scaled, label, reduction="sum") + 0.5 * log_t**2
        assert float(torch.autograd.grad(loss, log_t)[0]) == pytest.approx(0, abs=1e-7 * n)


def test_platt_is_at_the_minimum_also_where_a_slope_is_held(generator):
    probs, label = bold(60, 6, generator)
    opposite = probs[:, :3].argmin(-1)
    label = torch.where(torch.arange(60) % 2 == 0, opposite, label)  # three classes come where they are least likely
    found = cal.maps.classes.fit_platt_classes(probs, label)
    level = np.linspace(0.05, 0.95, 19)
    size = np.append(np.ones(60), np.full(19, 10 / 19))
    for j in range(6):
        t = logit(np.append(probs[:, j], level))
        target = np.append(label == j, level)

        def loss(theta, t=t, target=target):
            u = theta[0] * t + theta[1]
            return (size * (np.logaddexp(0, u) - target * u)).sum()

        peer = minimize(loss, [1.0, 0.0], bounds=[(1e-3, None), (None, None)], method="L-BFGS-B", tol=1e-14)
        ours = [float(found.a[j]), float(found.b[j])]
        np.testing.assert_allclose(ours, peer.x, atol=1e-4)
        assert loss(ours) <= peer.fun + 1e-12
    assert bool((found.a == 1e-3).any())
    assert bool((found.a > 0.1).any())
    near = cal.maps.classes.fit_platt_classes(probs[:40], label[:40])
    torch.testing.assert_close(
        _platt(probs, label, torch.ones(60, dtype=D), near)(probs), found(probs), rtol=0, atol=1e-10
    )


def test_temperature_recovers_its_own(generator):
    probs, label = bold(20_000, 4, generator, temperature=0.4)
    assert float(cal.fit_temperature(probs, label).t) == pytest.approx(1 / 0.4, rel=0.05)


def test_isotonic_is_scikit_learns_shrunk(generator):
    p, y = bold(400, 2, generator)
    mapping = cal.maps.classes.fit_isotonic_classes(p, y)
    peer = IsotonicRegression(out_of_bounds="clip").fit(p[:, 1], (y == 1).double())
    trust = 400 / 410
    np.testing.assert_allclose(
        mapping(p)[:, 1], trust * peer.predict(p[:, 1]) + (1 - trust) * p[:, 1].numpy(), atol=1e-6
    )


def test_auto_leaves_honest_probabilities_alone(generator):
    kept = []
    for _ in range(15):
        p = torch.rand(100, generator=generator, dtype=torch.float64)
        kept.append("identity" in fit_auto_classes(p, torch.bernoulli(p, generator=generator)).note)
    assert sum(kept) >= 13


@pytest.mark.parametrize(
    ("probs", "outcome", "words"),
    [
        ([[0.5, 0.6], [0.5, 0.5]], [0, 1], "sum to 1.1"),
        ([0.5, 1.5], [0, 1], "1.5"),
        ([0.5, 0.5], [0, 2], "not one of the classes"),
        ([0.5, 0.5], [0, 0.5], "not one of the classes"),
        ([0.5], [1], "too few"),
        ([0.5, 0.5, 0.2], [0, 1], "do not fit"),
        ([float("nan"), 0.5], [0, 1], "nan"),
    ],
)
def test_bad_classes_are_refused(probs, outcome, words):
    for fit in FITS.values():
        with pytest.raises(cal.CalibrlError, match=words):
            fit(np.array(probs), np.array(outcome))


def test_a_map_for_other_classes_is_refused(generator):
    mapping = cal.maps.classes.fit_platt_classes(*bold(50, 3, generator))
    with pytest.raises(cal.CalibrlError, match="3 classes"):
        mapping(torch.full((2, 4), 0.25))


def shifted(n, generator, rates=(0.05, 0.1, 0.15, 0.3, 0.4)):
    """Probabilities of a model that learnt five classes as equally common, and outcomes at other rates."""
    logits = 1.5 * torch.randn(n, len(rates), generator=generator, dtype=D)
    now = torch.softmax(logits + torch.tensor(rates, dtype=D).log(), -1)
    return torch.softmax(logits, -1), torch.multinomial(now, 1, generator=generator)[:, 0], now


def test_biases_mend_a_change_of_base_rates(generator):
    """The excess cross-entropy of 1000 rows: 2 to 3 thousandths, a fraction of what other maps leave."""
    excess = dict.fromkeys(CLASS_MAPS, 0.0)
    for _ in range(4):
        probs, label, _ = shifted(1000, generator)
        new, _, right = shifted(4000, generator)
        for name, fit in CLASS_MAPS.items():
            excess[name] += float((right * (right.log() - fit(probs, label)(new).log())).sum(-1).mean()) / 4
    assert excess["bias-corrected"] < 0.004
    assert excess["auto"] < 0.004
    assert all(excess[name] > 2 * excess["bias-corrected"] for name in ("temperature", "platt", "isotonic"))


def test_bias_corrected_is_where_scipy_finds_the_minimum(generator):
    probs, label, _ = shifted(300, generator)
    weight = torch.rand(300, generator=generator, dtype=D)
    found = fit_bias_corrected(probs, label, weight=weight)
    size = (weight * weight.sum() / weight.square().sum()).numpy()
    log_p = probs.log().numpy()

    def loss(theta):
        score = theta[0] * log_p + theta[1:]
        own = np.take_along_axis(score, label.numpy()[:, None], 1)[:, 0]
        return (size * (logsumexp(score, 1) - own)).sum() + 0.5 * np.log(theta[0]) ** 2 + (theta[1:] ** 2).sum()

    peer = minimize(loss, np.append(1.0, np.zeros(5)), method="BFGS", tol=1e-9)
    np.testing.assert_allclose([float(found.a), *found.b], [peer.x[0], *(peer.x[1:] - peer.x[1:].mean())], atol=1e-4)


@every_fit
def test_a_weight_of_two_is_two_rows(fit, generator):
    """But for the shrinkage, which goes by how many rows of one weight would say as much."""
    probs, label = bold(1500, 3, generator)
    twice = torch.arange(1500) < 700
    weighted = fit(probs, label, weight=1.0 + twice.double())
    repeated = fit(torch.cat([probs, probs[twice]]), torch.cat([label, label[twice]]))
    torch.testing.assert_close(weighted(probs), repeated(probs), rtol=0, atol=0.01)
    alike = fit(probs, label, weight=torch.full((1500,), 3.0))
    torch.testing.assert_close(alike(probs), fit(probs, label)(probs), rtol=0, atol=1e-6)
    only = fit(probs, label, weight=twice.double())
    torch.testing.assert_close(only(probs), fit(probs[twice], label[twice])(probs), rtol=0, atol=1e-6)
    for wrong in (torch.ones(3), -torch.ones(1500)):
        with pytest.raises(cal.CalibrlError, match="weight"):
            fit(probs, label, weight=wrong)


def test_probabilities_of_events_are_not_taken_for_one_row_of_classes():
    """A temperature fits any number of classes: of 1000 events it would make one row that sums to one."""
    p = torch.rand(50, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    outcome = torch.bernoulli(p, generator=torch.Generator().manual_seed(2))
    for fit in (cal.fit_temperature, cal.maps.classes.fit_auto_classes):
        mapping = fit(p, outcome)
        with pytest.raises(cal.CalibrlError, match=r"row 0 sum to .*event=True|2 classes but the forecast has 50"):
            mapping(p)
        assert mapping(p, event=True).shape == p.shape
    with pytest.raises(cal.CalibrlError, match=r"row 1 sum to 0\.9, not 1"):
        mapping(torch.tensor([[0.5, 0.5], [0.4, 0.5]]))
