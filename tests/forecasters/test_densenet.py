import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Normal

from calibrl import Calibrated, CalibrlError, Data, HeldOut, last_split, pit
from calibrl.forecasters.densenet import BayesianDenseNet, DenseNet, DropoutTraining, Passes
from tests import contracts

QUICK = DropoutTraining(steps=60, batch_size=64, lr=5e-3, min_steps=1, evaluate_every=20, validation_slices=3)
SMALL = {"layers": 2, "width": 16, "passes": 30, "training": QUICK}


def seed(value: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(value)


def by_hand(net: DenseNet, x: Tensor, keep: Tensor) -> Tensor:
    """One pass with its dropout masks multiplied in, unit by unit."""
    seen = x
    for linear, bend, mask in zip(net.hidden, net.bend, keep, strict=True):
        seen = torch.cat([seen, bend(linear(seen)) * mask / (1 - net.dropout)], -1)
    return net.readout(seen)


@pytest.mark.parametrize("rows", [1, 7, 1500])
def test_a_pass_computes_what_its_mask_leaves(rows):
    net = DenseNet(6, 3, layers=4, width=20, dropout=0.4, seed=1).eval()
    x, keep = torch.randn(rows, 6, generator=seed()), net.masks(5, seed(2))
    answers = net.ask(x, keep)
    assert answers.shape == (5, rows, 3)
    for answer, mask in zip(answers, keep, strict=True):
        torch.testing.assert_close(answer, by_hand(net, x, mask), rtol=1e-4, atol=1e-5)


def test_the_paper_s_network_is_the_default():
    net = DenseNet(69, 5)
    assert [layer.out_features for layer in net.hidden] == [128] * 5
    assert [layer.in_features for layer in net.hidden] == [69 + 128 * i for i in range(5)]
    assert net.readout.in_features == 69 + 5 * 128
    share = net.masks(200, seed()).float().mean()
    assert float(share) == pytest.approx(0.5, abs=0.01)


def test_a_layer_never_loses_all_its_units():
    assert bool(DenseNet(2, 1, width=2, dropout=0.95).masks(300, seed()).any(-1).all())


def test_passes_are_a_gaussian_that_remembers_them():
    drawn = 3 + 2 * torch.randn(500, 4, 2, generator=seed(), dtype=torch.float64)
    forecast = Passes(drawn)
    torch.testing.assert_close(forecast.mean, drawn.mean(0))
    torch.testing.assert_close(forecast.variance, drawn.var(0))
    assert forecast[:2].batch_shape == (2, 2)
    assert isinstance(forecast.expand((3, 4, 2)), Normal)
    noisy = Passes(drawn, torch.full((4, 2), 5.0, dtype=torch.float64))
    torch.testing.assert_close(noisy.variance, drawn.var(0) + 25)
    torch.testing.assert_close(noisy.times(torch.tensor(3.0)).stddev, 3 * noisy.stddev)
    # A joint draw is a whole pass, and with noise it has the forecast's spread.
    np.testing.assert_allclose(forecast.joint(500, seed()), drawn)
    wide = noisy.joint(40_000, seed())
    np.testing.assert_allclose(wide.std(0), noisy.stddev, rtol=0.05)


def test_slices_are_apart_from_what_is_learnt():
    plan = DropoutTraining(validation_slices=3, validation_fraction=0.3, gap=2)
    learn, held = plan.split(100)
    assert [len(part) for part in held] == [10, 10, 10]
    assert int(held[-1][-1]) == 99
    near = {int(i) + k for part in held for i in part for k in range(-2, 3)}
    assert not near & set(learn.tolist())
    with pytest.raises(CalibrlError, match="leave none to learn from"):
        DropoutTraining(validation_slices=2, validation_fraction=0.9, gap=50).split(20)


def rows(n: int, generator: torch.Generator) -> Data:
    """y = 1 + x₁ + noise that grows with x₂, in two columns."""
    x = torch.rand(n, 3, generator=generator)
    sd = 0.05 + 0.4 * x[:, 1:2]
    return Data(x, 1 + x[:, :1] + sd * torch.randn(n, 2, generator=generator))


def test_it_learns_the_mean_and_where_the_noise_is():
    model = BayesianDenseNet(
        noise=True, layers=2, width=32, dropout=0.1, passes=40,
        training=DropoutTraining(steps=500, batch_size=128, lr=5e-3, min_steps=300, evaluate_every=50),
    )  # fmt: skip
    model.update(rows(3000, seed(1)))
    x = torch.tensor([[0.2, 0.05, 0.5], [0.8, 0.95, 0.5]])
    forecast = model(x)
    np.testing.assert_allclose(forecast.mean[:, 0], [1.2, 1.8], atol=0.12)
    assert float(forecast.stddev[0].max()) < 0.2
    assert 0.3 < float(forecast.stddev[1].min()) < 0.6


def test_dropout_alone_is_too_sure_and_calibration_mends_it():
    def make() -> BayesianDenseNet:
        return BayesianDenseNet(layers=2, width=32, dropout=0.1, passes=40, training=QUICK)

    bare, honest = make(), Calibrated(make(), evidence=HeldOut(last_split(0.3)))
    fresh = rows(2000, seed(9))
    inside = []
    for model in (bare, honest):
        model.update(rows(2000, seed(1)))
        p = pit(model(fresh.x), fresh.y)
        inside.append(float(((p > 0.1) & (p < 0.9)).double().mean()))
    assert inside[0] < 0.6
    assert inside[1] == pytest.approx(0.8, abs=0.06)


@pytest.mark.parametrize("noise", [False, True])
@pytest.mark.parametrize(
    "check",
    [
        contracts.check_answers,
        contracts.check_repeatable,
        contracts.check_leaves_chance_alone,
        contracts.check_two_batches,
        contracts.check_unseen,
    ],
    ids=lambda check: check.__name__,
)
def test_it_is_a_forecaster(check, noise):
    start, fresh = contracts.toy_rows(120, seed=1, columns=2), contracts.toy_rows(30, seed=2, columns=2)
    check(lambda: BayesianDenseNet(noise=noise, **SMALL), start, fresh)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: BayesianDenseNet(passes=1), "cannot show a spread"),
        (lambda: DropoutTraining(lr=0), "not positive"),
        (lambda: DropoutTraining(validation_fraction=1.5), "validation_fraction 1.5 is not between 0 and 1"),
        (lambda: DenseNet(3, 1, dropout=1.0), "dropout in"),
        (lambda: BayesianDenseNet(**SMALL)(torch.zeros(1, 2)), "has learnt no rows"),
        (lambda: BayesianDenseNet(**SMALL).update(Data(torch.full((9, 2), torch.nan), torch.ones(9, 1))), "fill gaps"),
    ],
)
def test_bad_input_is_refused_in_words(make, words):
    with pytest.raises(CalibrlError, match=words):
        make()


@pytest.mark.skipif(torch.cuda.is_available(), reason="here a GPU is there")
def test_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(CalibrlError, match="'cuda' is not there"):
        BayesianDenseNet(device="cuda")
