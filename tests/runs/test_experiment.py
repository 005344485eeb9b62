"""Settings as fields, options and words."""

from dataclasses import dataclass, field, replace

import pytest
from typer.testing import CliRunner

from calibrl.cli import app
from calibrl.errors import CalibrlError
from calibrl.runs.experiment import EXPERIMENTS, Custom, Experiment, Job, experiment
from calibrl.runs.rows import Row, read
from calibrl.runs.settings import changed, identity, leaves, parse_changes, setting, source_of


@dataclass(frozen=True)
class Search:
    """How to look."""

    width: int = setting(8, help="plans tried", source="paper", least=1)
    method: str = setting("cem", help="which search", flag="--method")


@dataclass(frozen=True)
class DigSettings:
    """Where to dig."""

    name: str
    places: tuple[str, ...] = setting(("garden",), help="where to dig", flag="--place", decides_rows=False)
    arms: tuple[str, ...] = setting(("spade", "hand"), help="what to dig with")
    depth: float = setting(1.5, help="how deep", source={"paper": "paper"})
    rounds: int | None = setting(None, help="how often", least=1)
    careful: bool = setting(False, help="whether to look")
    seeds: int = setting(1, help="how many seeds", least=1, decides_rows=False)
    task: str = setting("dig", help="what is done", fixed=True)
    search: Search = field(default_factory=Search)


def rows_of(place, seed, settings):
    for arm in settings.arms:
        yield Row("dig", place, arm, seed, {"found": settings.depth * (settings.rounds or 1)})


def jobs(settings):
    return [
        Job(f"{place}, {s}", rows_of, (place, s, settings)) for place in settings.places for s in range(settings.seeds)
    ]


SMALL = DigSettings("small")
DIG = Experiment(
    name="dig",
    title="Digging",
    question="What is found?",
    baseline="hand",
    presets={"small": SMALL, "paper": DigSettings("paper", depth=3.0)},
    default="small",
    small=SMALL,
    full=SMALL,
    jobs=jobs,
    custom=Custom("--island", "Any island.", lambda name: DigSettings(name, places=(name,))),
)


@pytest.fixture
def shell(monkeypatch):
    monkeypatch.setitem(EXPERIMENTS, "dig", f"{__name__}:DIG")
    return lambda *words: CliRunner().invoke(app, ["run", "dig", *map(str, words)], terminal_width=200)


def test_options_are_made_of_the_fields(shell, tmp_path):
    words = (
        "--place",
        "bay",
        "--place",
        "hill",
        "--arms",
        "spade,claw",
        "--rounds",
        2,
        "--careful",
        "--method",
        "icem",
    )
    found = shell(*words, "--set", "search.width=3", "--seeds", 2, "--out", tmp_path)
    assert found.exit_code == 0, found.output
    rows = read(tmp_path)
    assert {(row.problem, row.arm, row.seed) for row in rows} == {
        (place, arm, seed) for place in ("bay", "hill") for arm in ("spade", "claw") for seed in range(2)
    }
    assert rows[0].preset == "small"
    assert rows[0].overrides == {
        "arms": ["spade", "claw"],
        "rounds": 2,
        "careful": True,
        "search.width": 3,
        "search.method": "icem",
    }
    assert rows[0].metrics == {"found": 3.0}
    again = shell("--rows", tmp_path, "--set", "depth=1")
    assert "spade" in again.output


def test_help_says_what_the_fields_are_for(shell):
    text = " ".join(shell("--help").output.replace("│", " ").split())
    for words in ("Digging.", "What is found?", "--place", "Where to dig; repeat for several.", "--method", "--island"):
        assert words in text
    for words in ("--task", "--width", "--name"):
        assert words not in text


def test_what_has_no_preset_gets_settings_of_its_own(shell, tmp_path):
    assert shell("--island", "Hiva", "--rounds", 3, "--out", tmp_path).exit_code == 0
    row = read(tmp_path)[0]
    assert (row.preset, row.problem, row.overrides) == ("Hiva", "Hiva", {"rounds": 3})
    assert "--preset small and --island Hiva" in str(shell("--island", "Hiva", "--preset", "small").exception)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--preset", "huge"), "preset 'huge' is unknown; known: small, paper"),
        (("--set", "task=fly"), "no such field; write one of places, arms, depth"),
        (("--set", "depth"), "no such field"),
        (("--set", "depth=deep"), "--set depth='deep' is not a number; the preset has 1.5"),
        (("--set", "careful=perhaps"), "is not yes or no; write true or false"),
        (("--set", "search.width=0"), "is too small; use 1 or more"),
        (("--resume", "--force"), "give one of them"),
    ],
)
def test_what_cannot_be_set_is_named(shell, tmp_path, words, expected):
    found = shell(*words, "--out", tmp_path)
    assert isinstance(found.exception, CalibrlError)
    assert expected in str(found.exception)


def test_settings_know_what_decides_rows():
    other = changed(SMALL, parse_changes(SMALL, ["arms=claw", "seeds=7", "search.width=4", "rounds=2"]))
    assert (other.arms, other.seeds, other.search.width, other.rounds) == (("claw",), 7, 4, 2)
    assert DIG.overrides(other) == {"arms": ["claw"], "rounds": 2, "search.width": 4}
    assert DIG.overrides(replace(SMALL, places=("bay",), seeds=3)) == {}
    assert identity(SMALL) == {
        "arms": ["spade", "hand"],
        "depth": 1.5,
        "careful": False,
        "task": "dig",
        "search": {"width": 8, "method": "cem"},
    }


def test_sources_are_by_preset():
    found = {leaf.path: leaf for leaf in leaves(SMALL)}
    assert source_of(found["search.width"], "small") == "paper"
    assert source_of(found["depth"], "paper") == "paper"
    assert source_of(found["depth"], "small") == "ours"


def test_an_unknown_experiment_is_named():
    with pytest.raises(CalibrlError, match="experiment 'chess' is unknown; known: core"):
        experiment("chess")
