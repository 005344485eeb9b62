"""`calibrl bandit evaluate`: a policy judged from a file of logged decisions."""

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from calibrl.bandits import CalLinUCB, Durable, LinUCB
from calibrl.cli import app
from calibrl.errors import CalibrlError


@pytest.fixture
def log(tmp_path):
    """Writes a log of two arms, of which the one on whose side x lies pays; returns its path."""

    def write(rounds=200, **change):
        generator = np.random.default_rng(0)
        x = generator.standard_normal(rounds)
        arm = generator.integers(2, size=rounds)
        columns = {"x": x, "arm": arm, "reward": np.where(arm == 0, x, -x), "propensity": np.full(rounds, 0.5)}
        path = tmp_path / "log.csv"
        pl.DataFrame(columns | change).write_csv(path)
        return path

    return write


def evaluate(*words):
    """What the command prints, on one line; raises what it would end with."""
    found = CliRunner().invoke(app, ["bandit", "evaluate", *map(str, words)], env={"COLUMNS": "200"})
    if found.exception is not None:
        raise found.exception
    return " ".join(found.output.split())


def test_both_estimates_are_printed(log):
    found = evaluate(log())
    assert "what the log earned" in found
    assert "doubly robust: after 100 rows" in found
    assert "!" not in found


def test_a_column_of_propensities_is_left_alone_when_all_arms_were_as_likely(log, tmp_path):
    LinUCB(2, 1).save(tmp_path / "one.json")
    assert "doubly robust" in evaluate(log(), "--uniform", "--load", tmp_path / "one.json")


def test_a_service_s_folder_can_be_judged_while_it_runs(log, tmp_path):
    with Durable(tmp_path / "kept", lambda: CalLinUCB(2, 1)) as bandit:
        bandit.update([[1.0], [1.0]], [0, 1], [1.0, -1.0])
        for path in (tmp_path / "kept", tmp_path / "kept" / "policy.json"):
            assert "doubly robust: the policy as it stands" in evaluate(log(), "--load", path)


def test_one_estimate_is_printed_when_the_other_cannot_be(log):
    propensity = np.full(200, 0.5)
    propensity[7] = 1e-12
    found = evaluate(log(propensity=propensity))
    assert "replay: the policy as it learns ! not known" in found
    assert "! replay: replay keeps 1 of 200 rows, because log row 8 has propensity 1e-12" in found
    assert "doubly robust: after 100 rows" in found


def test_doubts_are_printed_below_the_table(log):
    propensity = np.full(200, 0.5)
    propensity[150] = 1e-6
    assert "! doubly robust: log row 151, of propensity 1e-06, has 100% of the weight" in evaluate(
        log(propensity=propensity, arm=np.where(np.arange(200) == 150, 1, np.arange(200) % 2), x=np.full(200, -1.0)),
        "--policy=epsilon-greedy",
    )


def test_what_the_log_does_not_support_is_refused(log, tmp_path):
    CalLinUCB(5, 1).save(tmp_path / "five.json")
    with pytest.raises(CalibrlError, match="the log never took it"):
        evaluate(log(), "--load", tmp_path / "five.json")
    with pytest.raises(CalibrlError, match="could be taken, is 1 for 2 arms"):
        evaluate(log(propensity=np.ones(200)))


@pytest.mark.parametrize(
    ("rounds", "words", "expected"),
    [
        (40, ["--train=0.999"], r"--train 0.999 of 40 rows leaves 40 to learn from and 0 .* between 0.025 and 0.88"),
        (40, ["--train=0.01"], r"--train 0.01 of 40 rows leaves 0 to learn from"),
        (40, ["--train=1"], r"--train 1.0 is not between 0 and 1"),
        (8, [], r"--train 0.5 of 8 rows leaves 4 to learn from and 4 to judge by; use a share between 0.12 and 0.38"),
        (4, [], r"log.csv has 4 rows; judging a policy needs more than 5: log more decisions"),
        (40, ["--policy=best"], "policy 'best' is unknown"),
    ],
)
def test_what_cannot_be_judged_is_said_in_the_words_of_the_command(log, rounds, words, expected):
    with pytest.raises(CalibrlError, match=expected):
        evaluate(log(rounds), *words)


def test_an_empty_log_is_no_forecast(log):
    path = log()
    path.write_text("x,arm,reward,propensity\n")
    with pytest.raises(CalibrlError, match="no rows below the header x, arm, reward, propensity; expected"):
        evaluate(path)
    path.write_text("")
    with pytest.raises(CalibrlError, match="expected a header line and rows below it"):
        evaluate(path)
