"""Every plot draws on the Axes it is given and shows what it says."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from scipy import stats
from torch import distributions as td

import calibrl as cal
from calibrl import plots

D = torch.float64
PITS = torch.rand(300, generator=torch.Generator().manual_seed(0), dtype=D)
FORECAST = td.Normal(torch.zeros(80, dtype=D), torch.ones(80, dtype=D))
Y = torch.randn(80, generator=torch.Generator().manual_seed(1), dtype=D)
P = torch.rand(300, generator=torch.Generator().manual_seed(2), dtype=D)
EVENT = torch.bernoulli(P, generator=torch.Generator().manual_seed(3))

DRAWINGS = {
    "reliability": lambda ax: plots.reliability(PITS, ax, label="x"),
    "pit_bars": lambda ax: plots.pit_bars(PITS, ax),
    "interval_coverage": lambda ax: plots.interval_coverage(PITS, ax),
    "sharpness_bars": lambda ax: plots.sharpness_bars(FORECAST, ax),
    "map_curve": lambda ax: plots.map_curve(cal.fit_smooth(PITS[:, None].expand(-1, 2)), ax),
    "intervals": lambda ax: plots.intervals(FORECAST, Y, ax),
    "class_reliability_curve": lambda ax: plots.class_reliability_curve(P, EVENT, ax),
    "level_shares": lambda ax: plots.level_shares([0.1, 0.9], [0.2, 0.8], 50, ax, label="x"),
    "share_dots": lambda ax: plots.share_dots(["a", "$5_$"], [0.8, 1.0], [50, 5], 0.9, ax),
}


@pytest.fixture(autouse=True)
def _close():
    yield
    plt.close("all")


@pytest.mark.parametrize("draw", DRAWINGS.values(), ids=DRAWINGS)
def test_draws_where_it_is_told_and_alone(draw):
    _, ax = plt.subplots()
    assert draw(ax) is ax
    assert ax.has_data()
    assert ax.get_xlabel()
    assert draw(None) is not ax


def test_the_curve_drawn_is_the_curve_computed():
    ax = plots.reliability(PITS)
    drawn = ax.lines[-1].get_xydata()
    np.testing.assert_allclose(drawn[:, 1], cal.diagnostics.reliability_curve(PITS, plots.FINE_LEVELS).observed)


def test_shares_have_exact_intervals():
    ax = plots.share_dots(["a", "b"], [0.8, 1.0], [50, 5], 0.9)
    low, high = np.array(ax.collections[0].get_segments())[:, :, 0].T
    for share, n, ends in ((0.8, 50, (low[0], high[0])), (1.0, 5, (low[1], high[1]))):
        found = stats.binomtest(round(share * n), n).proportion_ci(0.9, "exact")
        assert ends == pytest.approx((found.low, found.high), abs=1e-4)


def test_overview_shows_before_and_after():
    figure = plots.overview({"before": PITS**3, "after": PITS}, title="t")
    assert len(figure.axes) == 3
    assert figure.axes[1].get_ylim() == figure.axes[2].get_ylim(), "bars can be compared"


def test_every_plot_is_tried():
    public = {
        name
        for name, value in vars(plots).items()
        if callable(value) and getattr(value, "__module__", "") == plots.__name__ and not name.startswith("_")
    }
    assert public == {*DRAWINGS, "overview", "tidy", "width_bars"}


def test_what_cannot_be_drawn_is_told():
    two = td.Normal(torch.zeros(10, 2), torch.ones(10, 2))
    for draw, words in (
        (lambda: plots.intervals(two, torch.zeros(10, 2)), r"shape \(10, 2\) and outcomes"),
        (lambda: plots.intervals(FORECAST, Y[:10]), r"outcomes of shape \(10,\) are not one column"),
        (lambda: plots.intervals(FORECAST, Y, level=90), "level 90 is not between 0 and 1"),
        (lambda: plots.overview({}), "0 sets of PITs"),
        (lambda: plots.overview(dict.fromkeys("abc", PITS)), "3 sets of PITs"),
    ):
        with pytest.raises(cal.CalibrlError, match=words):
            draw()
    assert not plt.get_fignums(), "no empty figure stays behind"


def test_a_map_of_several_columns_is_named_once():
    ax = plots.map_curve(cal.fit_smooth(PITS[:, None].expand(-1, 3)), label="R")
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["R"]


@pytest.mark.parametrize("scale", [1.0, 1e-300, 1e200])
def test_widths_that_are_equal_but_for_rounding_have_bars(scale):
    mean = torch.linspace(-3, 3, 80, dtype=D)
    widths = ((mean + 1.2) - (mean - 1.2)).numpy() * scale
    assert len(np.unique(widths)) > 1
    _, ax = plt.subplots()
    plots.width_bars(widths, ax, color="C0", label=None)
    assert sum(bar.get_height() for bar in ax.patches) == 80
    ax = plots.sharpness_bars(td.Normal(mean, torch.as_tensor(widths)))
    assert sum(bar.get_height() for bar in ax.patches) == 80
