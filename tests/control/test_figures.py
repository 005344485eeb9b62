"""The paper's claim about samples, on returns chosen so that the answer is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from typer.testing import CliRunner

from calibrl.cli import app
from calibrl.control.figures import endpoints_in_words, in_words, learning, summary
from calibrl.control.scoring import ENDPOINTS, claim, endpoint
from calibrl.runs.rows import Row, append

SLOW = (0.0, 20.0, 50.0, 80.0, 100.0)
QUICK = (0.0, 50.0, 80.0, 100.0, 100.0)


def rows(arm: str, seed: int, returns: tuple[float, ...], preset: str = "cartpole") -> list[Row]:
    best = np.maximum.accumulate(returns)
    return [
        Row(
            experiment="control",
            problem="cartpole",
            arm=arm,
            seed=seed,
            step=10 * (trial + 1),
            preset=preset,
            metrics={"trial": trial, "return": earned, "best": float(best[trial])},
        )
        for trial, earned in enumerate(returns)
    ]


def test_counts_the_samples_to_each_level() -> None:
    pairs = [row for seed in (0, 1) for row in (*rows("calibrated", seed, QUICK), *rows("uncalibrated", seed, SLOW))]
    found = claim(pairs, ways=(0.5, 1.0))
    assert found is not None
    assert (found.seeds, found.trials) == (2, 4)
    half, whole = found.samples
    assert half.level == 50
    assert half.arm.tolist() == [20, 20]
    assert half.other.tolist() == [30, 30]
    assert whole.saved.tolist() == [10, 10]
    assert whole.ratio_of_sums == 40 / 50
    assert found.gain.tolist() == [np.subtract(QUICK, SLOW)[1:].mean()] * 2


def test_the_endpoint_is_the_paired_ratio_of_steps_to_the_best_so_far() -> None:
    pairs = []
    for seed, (mine, theirs) in enumerate([(QUICK, SLOW), (QUICK, SLOW), (SLOW, SLOW), (SLOW, (0.0,) * 5)]):
        pairs += [*rows("released", seed, mine), *rows("released-control", seed, theirs)]
    found = endpoint(pairs, 80.0, "released", "released-control")
    assert found is not None
    # 80 at step 30 and 40, twice; at 40 and 40; at 40, and never until step 50.
    logs = np.log([30 / 40, 30 / 40, 1, 40 / 50])
    np.testing.assert_allclose(found.log_ratio, logs)
    assert (found.reached, len(found.arm)) == ((4, 3), 4)
    t = stats.t.interval(0.95, 3, loc=logs.mean(), scale=stats.sem(logs))
    np.testing.assert_allclose(found.ratio, [np.exp(logs.mean()), *np.exp(t)])
    # A seed of which neither got there says nothing; a drop after the level was reached does not undo it.
    assert endpoint(pairs, 1000.0, "released", "released-control").log_ratio.size == 0
    fell = [*rows("released", 0, (0.0, 90.0, 0.0)), *rows("released-control", 0, (0.0, 0.0, 90.0))]
    assert endpoint(fell, 80.0, "released", "released-control").log_ratio.tolist() == [np.log(20 / 30)]


def test_the_endpoint_is_said_of_published_sizes_only() -> None:
    high = tuple(ENDPOINTS["cartpole"] + one for one in (-9.0, 1.0))
    both = [*rows("released", 0, high), *rows("released-control", 0, high)]
    (line,) = endpoints_in_words(both)
    assert line.startswith(
        "Endpoint, steps to 150, released over released-control (1 and 1 of 1 seeds got there): 1.00"
    )
    assert endpoints_in_words(rows("released", 0, high, preset="cartpole-small")) == []


def test_only_trials_and_seeds_of_both_arms_count() -> None:
    both = [*rows("calibrated", 0, QUICK), *rows("uncalibrated", 0, SLOW[:3]), *rows("calibrated", 7, QUICK)]
    found = claim(both)
    assert found is not None
    assert (found.seeds, found.trials) == (1, 2)


def test_a_level_nobody_reached_is_not_counted() -> None:
    found = claim([*rows("calibrated", 0, (0.0, 1.0)), *rows("uncalibrated", 0, (0.0, 100.0))])
    assert found is not None
    assert not any(samples.both.any() for samples in found.samples)
    assert "(on 0 of 1 seeds calibrated, 1 uncalibrated): not by both arms of any seed" in in_words(found)


def test_an_arm_does_not_gain_by_seeds_on_which_it_never_got_there() -> None:
    seeds = [*rows("calibrated", 0, QUICK), *rows("uncalibrated", 0, SLOW)]
    seeds += [*rows("calibrated", 1, (0.0, 0.0, 0.0, 0.0, 0.0)), *rows("uncalibrated", 1, SLOW)]
    found = claim(seeds, ways=(0.5,))
    assert found is not None
    assert found.samples[0].reached == (1, 2)
    assert "a return of 50 (on 1 of 2 seeds calibrated, 2 uncalibrated): after 20" in in_words(found)
    assert "uncalibrated on the 1 of both; saved 10, 0.67 × the samples" in in_words(found)


def test_returns_of_any_size_are_told_apart() -> None:
    slow, quick = (tuple(value / 1e4 for value in returns) for returns in (SLOW, QUICK))
    pairs = [row for seed in (0, 1) for row in (*rows("calibrated", seed, quick), *rows("uncalibrated", seed, slow))]
    found = claim(pairs, ways=(0.5,))
    assert found is not None
    assert "+0.00200 ± 0.00000 a trial\na return of 0.0050 " in in_words(found)
    assert summary(pairs)[1][:4] == ("uncalibrated", "2", "50", "0.0100 ± 0.0000")


def test_where_nothing_was_earned_there_is_nothing_to_count() -> None:
    found = claim([*rows("calibrated", 0, (0.0, 0.0)), *rows("uncalibrated", 0, (0.0, 0.0))])
    assert found is not None
    assert in_words(found).endswith("uncalibrated never earned more than at random: there are no samples to count")


@pytest.mark.parametrize("only", ["calibrated", "uncalibrated"])
def test_one_arm_alone_claims_nothing(only: str) -> None:
    assert claim(rows(only, 0, QUICK)) is None


def test_rows_are_shown_and_drawn(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    append(file, [*rows("calibrated", 0, QUICK), *rows("uncalibrated", 0, SLOW), *rows("sac", 0, (*SLOW, 0.0))])
    shown = CliRunner().invoke(app, ["run", "control", "--rows", str(file), "--out", str(tmp_path / "figures")])
    assert shown.exit_code == 0, shown.output
    assert "1 paired seed, trials 1 to 4" in shown.output
    assert "nan" not in shown.output
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {"control-cartpole.png", "control-paper.png"}


def test_a_file_without_such_rows_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    append(file, [Row(experiment="other", problem="p", arm="a", seed=0, metrics={})])
    refused = CliRunner().invoke(app, ["run", "control", "--rows", str(file)])
    assert refused.exit_code != 0
    assert "holds no rows of control" in str(refused.exception)


def test_an_arm_s_name_is_text_in_a_legend() -> None:
    import matplotlib.pyplot as plt

    figure = learning(rows(r"$\frac$", 0, QUICK))
    figure.canvas.draw()
    legend = figure.axes[1].get_legend()
    assert legend is not None
    assert legend.get_texts()[0].get_text() == r"\$\frac\$ (1 seed)"
    plt.close(figure)
