"""`calibrl list` and `calibrl show`: everything that has a name."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import calibrl
from calibrl.bandits.policy import POLICIES
from calibrl.cli import app
from calibrl.errors import CalibrlError
from calibrl.planning.search import SEARCHES
from calibrl.runs.commands import described, find, kinds, listed, preset_names
from calibrl.runs.experiment import EXPERIMENTS
from calibrl.runs.settings import source_of


def shell(*words):
    return CliRunner().invoke(app, list(words))


def test_every_kind_is_listed_with_a_line_each():
    found = shell("list")
    assert found.exit_code == 0, found.output
    for kind, lines in listed().items():
        assert f"{kind}: {kinds()[kind][0]}" in found.output.splitlines()
        for name, words in lines.items():
            assert words, f"nothing is said about {kind} {name}"
            assert any(line.split("  ")[1:2] == [name] for line in found.output.splitlines()), name
    assert set(listed("policies")["policies"]) == set(POLICIES)
    assert set(listed("searches")["searches"]) == set(SEARCHES)
    assert set(listed("experiments")["experiments"]) == set(EXPERIMENTS)
    assert set(json.loads(shell("list", "--json").output)) == set(kinds())
    assert list(json.loads(shell("list", "maps", "--json").output)) == ["maps"]


def test_an_extra_that_is_missing_does_not_hide_the_rest(monkeypatch):
    monkeypatch.setitem(sys.modules, "calibrl.safety.problems", None)
    found = listed()
    assert "calibrl.safety.problems" in found["worlds"][""]
    assert "linucb" in found["policies"]


@pytest.mark.parametrize("name", preset_names())
def test_every_field_of_every_preset_is_explained(name):
    _, preset = find(name)
    unexplained = [leaf.path for leaf in described(preset) if not (leaf.about.help and source_of(leaf, preset.name))]
    assert not unexplained, "say what they are for, by help= of `setting`"


def test_a_preset_is_shown_by_its_whole_or_its_short_name():
    found = shell("show", "bandits/paper")
    assert found.exit_code == 0, found.output
    for words in ("rounds", "1200", "paper, by its optimum", "calibrl run bandits --preset paper"):
        assert words in found.output
    assert find("cartpole-demo")[0] == "control"
    fields = json.loads(shell("show", "safety/full", "--json").output)["fields"]
    assert fields["search.population_size"]["value"] == 64
    assert fields["seeds"]["source"] == "ours"


def test_unknown_names_list_the_known_ones():
    for words, expected in (
        (("show", "huge"), "preset 'huge' is unknown; known: core/small"),
        (("show", "tiny"), "could be any of"),
        (("list", "dogs"), "known: experiments, presets"),
    ):
        found = shell(*words)
        assert isinstance(found.exception, CalibrlError)
        assert expected in str(found.exception)


def test_help_waits_for_nothing_heavy():
    code = (
        "import sys; from typer.testing import CliRunner; from calibrl.cli import app; "
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0; "
        "assert CliRunner().invoke(app, ['run', '--help']).exit_code == 0; "
        "from calibrl.runs.experiment import EXPERIMENTS; "
        "assert all(CliRunner().invoke(app, ['run', name, '--help']).exit_code == 0 for name in EXPERIMENTS); "
        "heavy = {'torch', 'numpy', 'scipy', 'sklearn', 'matplotlib', 'polars', 'numba', 'ray', 'gymnasium'}; "
        "print(*(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not done.stdout.split(), f"--help loads {done.stdout}"


def test_import_calibrl_waits_for_nothing_heavy():
    code = "import sys, calibrl; print(*({'torch', 'numpy', 'polars', 'rich', 'typer'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not done.stdout.split(), f"import calibrl loads {done.stdout}"


def test_the_version_is_told():
    found = shell("--version")
    assert found.exit_code == 0
    assert found.output == f"calibrl {calibrl.__version__}\n"


def test_a_preset_in_a_pipe_has_a_line_for_each_field():
    found = shell("show", "mdp/tiny").output
    assert len([line for line in found.splitlines() if line.strip()]) == 3 + len(described(find("mdp/tiny")[1]))
