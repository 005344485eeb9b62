"""Tables and softmax transitions against counting by hand and scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from calibrl.algorithm import Calibrated, CrossFitted, Forecaster
from calibrl.data import Data, random_split
from calibrl.errors import CalibrlError
from calibrl.evidence import HeldOut
from calibrl.forecasters.linear import SoftmaxTransitions, TabularTransitions
from calibrl.maps.classes import fit_platt_classes

ROWS = Data.of([[0, 0], [0, 0], [0, 0], [1, 1]], [2, 2, 0, 1])


def test_counts_by_hand():
    table = TabularTransitions(2, 2, 3, prior=0)
    table.update(ROWS)
    x = torch.tensor([[0.0, 0.0], [1.0, 1.0], [1.0, 0.0]])
    expected = torch.tensor([[1 / 3, 0, 2 / 3], [0, 1, 0], [1 / 3, 1 / 3, 1 / 3]], dtype=torch.float64)
    torch.testing.assert_close(table(x).probs, expected)


def test_numpy_rows_are_welcome():
    for model in (TabularTransitions(3, 2, 4), SoftmaxTransitions(np.eye(3), 2, 4)):
        assert model(np.array([[0, 1]])).probs.tolist() == [[0.25] * 4]


def test_prior_is_that_many_rows_spread_evenly():
    table = TabularTransitions(2, 2, 3, prior=3)
    table.update(ROWS)
    expected = torch.tensor([[2 / 6, 1 / 6, 3 / 6]], dtype=torch.float64)
    torch.testing.assert_close(table(torch.tensor([[0.0, 0.0]])).probs, expected)


def test_updates_add_up_and_unseen_outcomes_count_for_nothing():
    once, twice = TabularTransitions(2, 2, 3), TabularTransitions(2, 2, 3)
    once.update(ROWS)
    for part in (ROWS[:1], ROWS[1:], Data.of([[0, 0]], [float("nan")])):
        twice.update(part)
    torch.testing.assert_close(once.counts, twice.counts)


def test_state_classes_share_their_counts():
    table = TabularTransitions(2, 2, 3, prior=0, classes=[0, 0])
    table.update(Data.of([[0, 0], [1, 0]], [0, 1]))
    torch.testing.assert_close(table(torch.tensor([[1.0, 0.0]])).probs[0, :2], torch.tensor([0.5, 0.5]).double())


def test_softmax_is_scikit_learns_ridge():
    generator = np.random.default_rng(0)
    features = generator.normal(size=(30, 2))
    state = generator.integers(0, 30, size=400)
    score = features[state] @ np.array([[1.0, -1.0, 0.0], [0.5, 0.0, -1.0]]) + generator.gumbel(size=(400, 3))
    outcome = score.argmax(1)
    model = SoftmaxTransitions(features, 1, 3, ridge=1.0, max_iter=400)
    model.update(Data.of(np.stack([state, np.zeros(400)], 1), outcome))
    # The same loss: a constant feature, penalised like the rest.
    peer = LogisticRegression(C=1.0, fit_intercept=False, tol=1e-10, max_iter=10_000)
    wide = np.concatenate([features, np.ones((30, 1))], 1)
    peer.fit(wide[state], outcome)
    x = torch.tensor([[float(s), 0.0] for s in range(30)])
    np.testing.assert_allclose(model(x).probs.numpy(), peer.predict_proba(wide), atol=1e-4)


@pytest.mark.parametrize(
    "make", [lambda: TabularTransitions(4, 2, 3), lambda: SoftmaxTransitions(torch.eye(4), 2, 3)], ids=["table", "soft"]
)
def test_both_are_forecasters_that_can_be_calibrated(make):
    assert isinstance(make(), Forecaster)
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 2, (300, 2), generator=generator).double()
    y = torch.randint(0, 3, (300,), generator=generator).double()
    held = Calibrated(make(), evidence=HeldOut(random_split(0.3, generator)), fit_map=fit_platt_classes)
    crossed = CrossFitted(make, fit_map=fit_platt_classes, generator=generator)
    for model in (held, crossed):
        model.update(Data(x, y))
        probs = model(x).probs
        assert probs.shape == (300, 3)
        torch.testing.assert_close(probs.sum(-1), torch.ones(300, dtype=torch.float64))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: TabularTransitions(0, 1, 2), "make no table"),
        (lambda: TabularTransitions(2, 1, 2, prior=-1), "prior -1 is not 0 or more"),
        (lambda: TabularTransitions(2, 1, 2, prior=float("inf")), "prior inf is not 0 or more and finite"),
        (lambda: TabularTransitions(2, 1, 2).update(Data.of([[0, 0]], [[1, 0]])), r"shape \(1, 2\); expected one"),
        (lambda: TabularTransitions(2, 1, 2, classes=[0, 2]), "state class 1 is empty"),
        (lambda: TabularTransitions(2, 1, 2, classes=[0]), "give one for each of 2 states"),
        (lambda: TabularTransitions(2, 1, 2, classes=[0, -1]), "not whole numbers from 0"),
        (lambda: TabularTransitions(2, 1, 2)(torch.zeros(3)), "expected a state and an action"),
        (lambda: TabularTransitions(2, 1, 2)(torch.tensor([[2.0, 0.0]])), "state 2 and action 0 are not in the table"),
        (lambda: TabularTransitions(2, 1, 2).update(Data.of([[0, 0]], [5])), "outcome 5 is not one of"),
        (lambda: SoftmaxTransitions(torch.ones(3), 1, 2), "are not finite numbers"),
        (lambda: SoftmaxTransitions(torch.eye(3), 1, 2, ridge=0), "ridge 0 is not above 0"),
        (lambda: SoftmaxTransitions(torch.eye(3), 0, 2), "3 states, 0 actions and 2 outcomes make no table"),
        (lambda: SoftmaxTransitions(torch.eye(3), 1, 1), "3 states, 1 actions and 1 outcomes make no table"),
        (lambda: SoftmaxTransitions(torch.zeros(0, 2), 1, 2), "0 states, 1 actions"),
    ],
)
def test_bad_input_is_refused(make, words):
    with pytest.raises(CalibrlError, match=words):
        make()
