"""`calibrl check`, `fit` and `apply`, as a user meets them."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pytest
from scipy import stats

from calibrl.__main__ import main

KINDS = ("normal", "quantiles", "samples", "counts", "classes")
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)


class Answer(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.out)


Shell = Callable[..., Answer]


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    """Run `calibrl` in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> Answer:
        monkeypatch.setattr(sys, "argv", ["calibrl", *words])
        with pytest.raises(SystemExit) as end:
            main()
        shown = capsys.readouterr()
        return Answer(int(end.value.code or 0), shown.out, shown.err)

    return run


def overconfident(kind: str, n: int, seed: int) -> pl.DataFrame:
    """Forecasts whose outcomes spread twice as wide as they say, with ids, groups and outcomes."""
    rng = np.random.default_rng(seed)
    ids = {"id": [f"{i:05d}" for i in range(n)], "store": rng.choice(["north", "south"], n)}
    mean, std = rng.normal(20, 5, n), rng.uniform(1, 2, n)
    truth = mean + 2 * std * rng.normal(size=n)
    if kind == "normal":
        return pl.DataFrame({**ids, "mean": mean, "std": std, "y": truth})
    if kind == "quantiles":
        columns = {f"q{level}": mean + std * stats.norm.ppf(level) for level in LEVELS}
        return pl.DataFrame({**ids, **columns, "y": truth})
    if kind == "samples":
        return pl.DataFrame({**ids, **{f"s{i}": mean + std * rng.normal(size=n) for i in range(40)}, "y": truth})
    if kind == "counts":
        rate = rng.gamma(4, 1, n)
        drawn = rng.poisson(rate, (40, n))
        return pl.DataFrame(
            {**ids, **{f"s{i}": drawn[i] for i in range(40)}, "y": rng.negative_binomial(2, 2 / (2 + rate))}
        )
    logits = rng.normal(size=(n, 3))
    fair, bold = (np.exp(k * logits) / np.exp(k * logits).sum(1, keepdims=True) for k in (1.0, 2.5))
    label = (fair.cumsum(1) < rng.random((n, 1))).sum(1)
    return pl.DataFrame({**ids, **{f"p{k}": bold[:, k] for k in range(3)}, "y": label})


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


# The whole way.


@pytest.mark.parametrize(("kind", "suffix"), [*zip(KINDS, ["csv", "parquet"] * 3, strict=False), ("normal", "parquet")])
def test_fit_on_old_rows_makes_new_ones_honest(shell: Shell, tmp_path: Path, kind: str, suffix: str) -> None:
    for name, seed in (("old", 1), ("new", 2)):
        frame = overconfident(kind, 500, seed)
        if suffix == "csv":
            with (tmp_path / f"{name}.csv").open("w", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(frame.columns)
                writer.writerows(frame.rows())
        else:
            frame.write_parquet(tmp_path / f"{name}.parquet")
    old, new, honest = f"old.{suffix}", f"new.{suffix}", f"honest.{suffix}"

    fitted = shell("fit", old, "--out", "map.json", "--json")
    assert fitted.code == 0, fitted.err
    before, after, chance = (fitted.json["pooled"][key] for key in ("before", "after", "noise_floor"))
    assert after - chance < (before - chance) / 2

    applied = shell("apply", "map.json", new, "--out", honest)
    assert applied.code == 0, applied.err
    assert files(tmp_path) == {old, new, "map.json", honest}
    read = pl.read_csv if suffix == "csv" else pl.read_parquet
    given, frame = read(tmp_path / new), read(tmp_path / honest)
    assert frame.select("id", "store", "y").equals(given.select("id", "store", "y"))

    checked = shell("check", new, "--map", "map.json", "--json")
    assert checked.code == 0, checked.err
    assert checked.err == ""
    then, now = (checked.json[key]["summary"] for key in ("as_forecast", "after_map"))
    y = frame["y"].to_numpy()
    if kind == "classes":
        assert {"p0", "p1", "p2"} <= set(frame.columns)
        probs = frame.select("p0", "p1", "p2").to_numpy()
        np.testing.assert_allclose(probs.sum(1), 1)
        right = (probs.argmax(1) == y).mean()
        assert probs.max(1).mean() == pytest.approx(right, abs=4 * np.sqrt(2 * right * (1 - right) / len(y)))
        assert now["ece"] < then["ece"] / 2
        return
    if kind != "counts":
        # Of n new rows a share l falls below the quantile at l; the map itself has as much sampling error.
        for level in LEVELS:
            share = (y <= frame[f"q{level:g}"].to_numpy()).mean()
            assert share == pytest.approx(level, abs=4 * np.sqrt(2 * level * (1 - level) / len(y))), level
    assert now["calibration_loss"] < 8 * now["noise_floor"] < then["calibration_loss"]
    spread = (y - frame["mean"].to_numpy()) / frame["std"].to_numpy()
    assert spread.std() == pytest.approx(1, abs=0.15)
    again = shell("check", honest, "--json")
    assert again.json["kind"] == "quantiles"
    if kind != "counts":
        assert again.json["as_forecast"]["summary"]["calibration_loss"] < 8 * now["noise_floor"]


def test_ids_survive_as_they_were_written(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,y,mean,std\n007,1,0,1\n08.50,2,0,1\n,-1,0,1\n")
    assert shell("fit", "a.csv", "--out", "m.json").code == 0
    assert shell("apply", "m.json", "a.csv", "--out", "b.csv").code == 0
    assert [line.split(",")[:2] for line in (tmp_path / "b.csv").read_text().splitlines()[1:]] == [
        ["007", "1"],
        ["08.50", "2"],
        ["", "-1"],
    ]


def test_the_levels_asked_for_are_written(shell: Shell, tmp_path: Path) -> None:
    overconfident("normal", 200, 0).write_csv(tmp_path / "a.csv")
    shell("fit", "a.csv", "--out", "m.json", "--method", "affine")
    found = shell("apply", "m.json", "a.csv", "--out", "b.parquet", "--levels", "0.9,0.1", "--json")
    assert found.json["written"] == ["q0.1", "q0.9", "mean", "std"]
    frame = pl.read_parquet(tmp_path / "b.parquet")
    assert frame.columns == ["id", "store", "y", "q0.1", "q0.9", "mean", "std"]
    # An affine map of a Gaussian is a Gaussian.
    gap = (frame["q0.9"] - frame["q0.1"]).to_numpy()
    np.testing.assert_allclose(gap, 2 * stats.norm.ppf(0.9) * frame["std"].to_numpy(), rtol=1e-6)


def test_levels_keep_all_their_digits(shell: Shell, tmp_path: Path) -> None:
    overconfident("normal", 200, 0).write_csv(tmp_path / "a.csv")
    shell("fit", "a.csv", "--out", "m.json", "--method", "affine")
    levels = ["0.1234567", "0.1234568", "0.5", "0.9999999"]
    shell("apply", "m.json", "a.csv", "--out", "b.csv", "--levels", ",".join(levels))
    honest = pl.read_csv(tmp_path / "b.csv")
    assert honest.columns[3:-2] == [f"q{level}" for level in levels]
    assert (honest["q0.1234567"] < honest["q0.1234568"]).all()
    # What was written is read again, and a map fitted for it knows levels that close apart.
    assert shell("fit", "b.csv", "--out", "q.json", "--method", "affine").code == 0
    assert shell("apply", "q.json", "b.csv", "--out", "c.csv").code == 0
    assert pl.read_csv(tmp_path / "c.csv").columns == honest.columns
    other = honest.rename({"q0.1234567": "q0.1234566"})
    other.write_csv(tmp_path / "other.csv")
    assert "fitted for quantiles" in shell("apply", "q.json", "other.csv", "--out", "d.csv").err


def test_quantiles_of_counts_are_whole_after_rounding_up(shell: Shell, tmp_path: Path) -> None:
    overconfident("counts", 2000, 1).write_parquet(tmp_path / "old.parquet")
    overconfident("counts", 2000, 2).write_parquet(tmp_path / "new.parquet")
    shell("fit", "old.parquet", "--out", "m.json")
    shell("apply", "m.json", "new.parquet", "--out", "b.parquet")
    honest = pl.read_parquet(tmp_path / "b.parquet")
    y = honest["y"].to_numpy()
    for level in LEVELS:
        # The smallest count that no less than a share `level` stays at or below.
        count = np.ceil(honest[f"q{level}"].to_numpy())
        chance = 4 * np.sqrt(2 * level * (1 - level) / len(y))
        assert (y < count).mean() - chance <= level <= (y <= count).mean() + chance


def test_a_file_of_forecasts_alone_is_calibrated(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "old.csv").write_text("y,mean,std\n1,0,1\n2,1,1\n0,0,2\n3,1,1\n")
    (tmp_path / "new.csv").write_text("mean,std\n0,1\n1,1\n")
    shell("fit", "old.csv", "--out", "m.json", "--method", "affine")
    answer = shell("apply", "m.json", "new.csv", "--out", "b.csv", "--levels", "0.5")
    assert answer.code == 0, answer.err
    honest = pl.read_csv(tmp_path / "b.csv")
    assert honest.columns == ["q0.5", "mean", "std"]
    # Forecasts one apart with the same spread stay one apart under an affine map.
    assert honest["q0.5"].diff().to_list() == [None, pytest.approx(1)]


@pytest.mark.parametrize(
    ("kind", "gone"), [("normal", ["q0.1", "s0", "s1"]), ("quantiles", ["s0", "s1"]), ("samples", ["q0.1"])]
)
def test_only_calibrated_forecasts_are_written(shell: Shell, tmp_path: Path, kind: str, gone: list[str]) -> None:
    rows = "".join(f"{i},{i % 7},9,1,8,10,{8 - i % 2},{10 + i % 3}\n" for i in range(30))
    (tmp_path / "a.csv").write_text("id,y,mean,std,q0.1,q0.9,s0,s1\n" + rows)
    shell("fit", "a.csv", "--out", "m.json", "--kind", kind, "--method", "affine")
    apply = ("apply", "m.json", "a.csv", "--out", "b.csv", "--kind", kind, "--levels", "0.5,0.9")
    answer = shell(*apply, "--json").json
    assert answer["left_out"] == gone
    honest = pl.read_csv(tmp_path / "b.csv")
    assert honest.columns == ["id", "y", "q0.5", "q0.9", "mean", "std"]
    assert (honest["q0.9"] != 10).all()
    assert f"Left out, not calibrated: {', '.join(gone)}" in shell(*apply).out


def test_a_lone_mean_makes_way_for_the_calibrated_one(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("y,mean,s0,s1\n1,0,0,1\n2,0,0,2\n0,0,1,2\n3,0,1,3\n")
    shell("fit", "a.csv", "--out", "m.json", "--method", "affine")
    assert shell("apply", "m.json", "a.csv", "--out", "b.csv", "--levels", "0.5").code == 0
    assert pl.read_csv(tmp_path / "b.csv").columns == ["y", "q0.5", "mean", "std"]


@pytest.mark.parametrize("method", ["auto", "smooth", "isotonic", "platt", "beta", "affine", "sigmoid"])
def test_every_method_fits_and_applies(shell: Shell, tmp_path: Path, method: str) -> None:
    overconfident("normal", 300, 0).write_csv(tmp_path / "a.csv")
    assert shell("fit", "a.csv", "--out", "m.json", "--method", method, "--json").json["method"] == method
    assert shell("apply", "m.json", "a.csv", "--out", "b.csv").code == 0
    values = (
        pl.read_csv(tmp_path / "b.csv").select("q0.05", "q0.25", "q0.5", "q0.75", "q0.95", "mean", "std").to_numpy()
    )
    assert np.isfinite(values).all()
    assert (np.diff(values[:, :5], axis=1) >= 0).all()


# Words and numbers.


def test_check_says_what_is_wrong(shell: Shell, tmp_path: Path) -> None:
    frame = overconfident("normal", 400, 0)
    frame.write_csv(tmp_path / "a.csv")
    answer = shell("check", "a.csv")
    assert answer.code == 0
    assert "Over-confident" in answer.out
    z = ((frame["y"] - frame["mean"]) / frame["std"]).to_numpy()
    inside = (np.abs(z) <= stats.norm.ppf(0.95)).mean()
    assert f"The 90 % interval holds {inside:.1%}" in answer.out
    assert "by chance" in answer.out
    assert max(map(len, answer.out.splitlines())) <= 80
    summary = shell("check", "a.csv", "--json").json["as_forecast"]["summary"]
    observed = [(stats.norm.cdf(z) <= level).mean() for level in np.arange(1, 20) / 20]
    assert summary["calibration_loss"] == pytest.approx(np.sum((observed - np.arange(1, 20) / 20) ** 2))
    assert summary["noise_floor"] == pytest.approx(np.sum(np.arange(1, 20) / 20 * (1 - np.arange(1, 20) / 20)) / 400)
    assert summary["verdict"][0].startswith("Over-confident")


@pytest.mark.parametrize("kind", KINDS)
def test_json_is_all_that_is_printed(shell: Shell, tmp_path: Path, kind: str) -> None:
    overconfident(kind, 120, 0).write_csv(tmp_path / "a.csv")
    for words in (
        ("fit", "a.csv", "--out", "m.json", "--group", "store", "--method", "isotonic"),
        ("check", "a.csv", "--map", "m.json", "--group", "store"),
        ("apply", "m.json", "a.csv", "--out", "b.csv"),
    ):
        answer = shell(*words, "--json")
        assert answer.code == 0, answer.err
        assert answer.json["rows"] == 120
        assert "NaN" not in answer.out
        plain = shell(*words)
        assert max(map(len, plain.out.splitlines())) <= 80, plain.out


def test_unseen_outcomes_are_skipped_and_counted(shell: Shell, tmp_path: Path) -> None:
    frame = overconfident("normal", 100, 0)
    seen = frame.filter(pl.arange(0, 100) % 4 != 0)
    frame.with_columns(y=pl.when(pl.arange(0, 100) % 4 == 0).then(None).otherwise("y")).write_csv(tmp_path / "a.csv")
    seen.write_csv(tmp_path / "seen.csv")
    answer = shell("check", "a.csv", "--json").json
    assert (answer["rows"], answer["outcomes"], answer["unseen"]) == (100, 75, 25)
    assert answer["as_forecast"] == shell("check", "seen.csv", "--json").json["as_forecast"]
    assert "25 without outcome skipped" in shell("check", "a.csv").out


def test_counts_are_judged_alike_in_every_run(shell: Shell, tmp_path: Path) -> None:
    overconfident("counts", 200, 0).write_csv(tmp_path / "a.csv")
    assert shell("check", "a.csv").out == shell("check", "a.csv").out


def test_what_cannot_be_measured_is_a_dash_and_null(shell: Shell, tmp_path: Path) -> None:
    # Two outcomes cannot be cross-validated, and repeated samples have no finite density.
    (tmp_path / "a.csv").write_text("y,s0,s1,s2\n0,0,0,0\n1,0,1,1\n")
    fitted = shell("fit", "a.csv", "--out", "m.json", "--json")
    assert fitted.json["pooled"]["after"] is None
    assert "–" in shell("fit", "a.csv", "--out", "m.json").out
    assert shell("check", "a.csv", "--json").json["as_forecast"]["summary"]["nll"] is None
    assert "inf" not in shell("check", "a.csv").out


# Maps and the rows they were fitted on.


def test_reused_rows_are_noticed(shell: Shell, tmp_path: Path) -> None:
    frame = overconfident("normal", 400, 0)
    frame[:200].write_csv(tmp_path / "old.csv")
    frame[100:300].write_parquet(tmp_path / "half.parquet")
    frame[200:].write_csv(tmp_path / "new.csv")
    shell("fit", "old.csv", "--out", "m.json")
    for name, share in (("old.csv", 1.0), ("half.parquet", 0.5), ("new.csv", 0.0)):
        answer = shell("check", name, "--map", "m.json", "--json")
        assert answer.json["after_map"]["reused_rows"] == pytest.approx(share)
        assert ("ReusedRows" in answer.err) == (share > 0)
        assert answer.err.count("\n") == (share > 0)
    assert "about 50% of these rows were used to fit m.json" in shell("check", "half.parquet", "--map", "m.json").err


def test_each_group_gets_the_map_it_needs(shell: Shell, tmp_path: Path) -> None:
    frames = []
    for seed in (1, 2):
        rng = np.random.default_rng(seed)
        n = 1200
        store = rng.choice(["calm", "wild"], n)
        mean = rng.normal(size=n)
        y = mean + np.where(store == "wild", 3.0, 1 / 3) * rng.normal(size=n)
        frames.append(pl.DataFrame({"store": store, "mean": mean, "std": np.ones(n), "y": y}))
    frames[0].write_csv(tmp_path / "old.csv")
    frames[1].write_csv(tmp_path / "new.csv")
    fitted = shell("fit", "old.csv", "--out", "m.json", "--group", "store", "--method", "smooth", "--json").json
    assert set(fitted["groups"]) == {"calm", "wild"}
    assert sum(fit["outcomes"] for fit in fitted["groups"].values()) == 1200
    checked = shell("check", "new.csv", "--map", "m.json", "--group", "store", "--json").json
    for name in ("calm", "wild"):
        assert checked["as_forecast"]["groups"][name]["calibration_loss"] > 0.2
        assert checked["after_map"]["groups"][name]["coverage"]["0.9"] == pytest.approx(0.9, abs=0.05)
    shell("apply", "m.json", "new.csv", "--out", "h.csv")
    honest = pl.read_csv(tmp_path / "h.csv")
    for name, spread in (("calm", 1 / 3), ("wild", 3.0)):
        assert honest.filter(store=name)["std"].mean() == pytest.approx(spread, rel=0.1)
    text = shell("check", "new.csv", "--map", "m.json", "--group", "store").out
    assert "calm" in text
    assert "wild" in text


def test_honesty_is_shown_by_how_many_steps_ahead(shell: Shell, tmp_path: Path) -> None:
    """Errors that last add up: independent ones, as the forecaster has it, would be √h wide h steps ahead."""
    rng = np.random.default_rng(0)
    ahead = np.tile([1, 2, 10], 500)
    std, true = np.sqrt(ahead), ahead**0.9
    frame = pl.DataFrame({"lead": ahead, "mean": np.zeros(1500), "std": std, "y": true * rng.normal(size=1500)})
    frame.write_csv(tmp_path / "f.csv")
    found = shell("check", "f.csv", "--horizon", "lead", "--json").json["as_forecast"]["groups"]
    assert list(found) == ["1", "2", "10"]
    for lead, group in found.items():
        inside = stats.norm.cdf(1.645 * int(lead) ** (0.5 - 0.9)) * 2 - 1
        assert group["coverage"]["0.9"] == pytest.approx(inside, abs=0.05)
    named = frame.with_columns(store=pl.lit("north"))
    named.write_csv(tmp_path / "n.csv")
    assert "'north' is not a number of steps" in shell("check", "n.csv", "--horizon", "store").err
    assert "give one of them" in shell("check", "n.csv", "--horizon", "lead", "--group", "store").err


def test_new_groups_are_refused_or_pooled(shell: Shell, tmp_path: Path) -> None:
    frame = overconfident("normal", 200, 0)
    frame.write_csv(tmp_path / "old.csv")
    frame.with_columns(store=pl.lit("east")).write_csv(tmp_path / "new.csv")
    shell("fit", "old.csv", "--out", "m.json", "--group", "store", "--method", "affine")
    refused = shell("apply", "m.json", "new.csv", "--out", "h.csv")
    assert refused.code == 2
    assert "store 'east' has no map (known: north, south)" in refused.err
    assert not (tmp_path / "h.csv").exists()
    pooled = shell("apply", "m.json", "new.csv", "--out", "h.csv", "--new-groups", "pooled")
    assert "Pooled map for new groups: east" in pooled.out
    assert shell("check", "new.csv", "--map", "m.json").code == 2
    assert shell("check", "new.csv", "--map", "m.json", "--new-groups", "pooled").code == 0


def test_groups_are_told_apart_and_watched(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = overconfident("normal", 60, 0).with_columns(store=pl.format("{}-{}", pl.lit("x" * 50), pl.col("store")))
    rows.write_csv(tmp_path / "a.csv")
    fit = ("fit", "a.csv", "--out", "m.json", "--group", "store", "--method", "affine")
    piped = shell(*fit)
    assert piped.err == ""
    assert len({line.split()[1] for line in piped.out.splitlines() if line.startswith("store ")}) == 2
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    assert "Groups" in shell(*fit).err
    assert "Groups" in shell("check", "a.csv", "--group", "store").err


def test_a_group_with_too_few_outcomes_has_no_map(shell: Shell, tmp_path: Path) -> None:
    frame = overconfident("normal", 50, 0).with_columns(store=pl.Series(["lone", *["north"] * 49]))
    frame.write_csv(tmp_path / "a.csv")
    fit = ("fit", "a.csv", "--out", "m.json", "--group", "store", "--method", "affine")
    fitted = shell(*fit, "--json").json
    assert fitted["groups"]["lone"] == {"map": None, "outcomes": 1, "before": None, "after": None, "noise_floor": None}
    assert "too few" in shell(*fit).out
    assert shell("check", "a.csv", "--group", "store", "--json").json["as_forecast"]["groups"]["lone"] is None
    assert "too few outcomes" in shell("check", "a.csv", "--group", "store").out
    refused = shell("apply", "m.json", "a.csv", "--out", "h.csv").err
    assert "store 'lone' has no map (too few outcomes in a.csv); fit it with 2 outcomes or more" in refused
    assert shell("apply", "m.json", "a.csv", "--out", "h.csv", "--new-groups", "pooled").code == 0


# Pictures.


@pytest.mark.parametrize(("kind", "suffix", "magic"), [("normal", "png", b"\x89PNG"), ("classes", "svg", b"<?xml")])
def test_a_plot_is_drawn(shell: Shell, tmp_path: Path, kind: str, suffix: str, magic: bytes) -> None:
    overconfident(kind, 100, 0).write_csv(tmp_path / "a.csv")
    shell("fit", "a.csv", "--out", "m.json", "--method", "platt")
    answer = shell("check", "a.csv", "--map", "m.json", "--plot", f"out/a.{suffix}")
    assert answer.code == 0, answer.err
    assert (tmp_path / "out" / f"a.{suffix}").read_bytes().startswith(magic)
    assert files(tmp_path / "out") == {f"a.{suffix}"}


class Seen(HTMLParser):
    """The words of a page, its tables row by row, and its other tags; every tag must be closed, nothing is loaded."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.words, self.rows, self.tags, self.open, self.policy, self.style = "", [], [], [], "", ""
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said = dict(attrs)
        assert tag not in {"script", "iframe"}
        assert "style" not in said
        assert all((said.get(name) or "data:").startswith("data:") for name in ("src", "srcset", "href"))
        assert not any(name.startswith("on") for name in said)
        if said.get("http-equiv") == "Content-Security-Policy":
            self.policy = said["content"] or ""
        self.tags.append(tag)
        self.open += [] if tag in {"meta", "br", "img", "link", "source"} else [tag]
        self.rows += [[]] if tag == "tr" else []

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" in self.open:
            self.style += data
        else:
            self.words += data
        if self.open and self.open[-1] in {"td", "th"}:
            self.rows[-1].append(data)


@pytest.mark.parametrize("kind", ["normal", "quantiles", "classes"])
def test_a_page_says_what_the_terminal_says(shell: Shell, tmp_path: Path, kind: str) -> None:
    hostile = pl.Series("store", ["<b>$5_$</b>", "two & three"] * 50)
    overconfident(kind, 100, 0).with_columns(hostile).write_csv(tmp_path / "a.csv")
    shell("fit", "a.csv", "--out", "m.json", "--method", "platt")
    check = ("check", "a.csv", "--map", "m.json", "--group", "store", "--html", "a.html")
    told, numbers = shell(*check, "--json").json, shell(*check).out
    seen = Seen((tmp_path / "a.html").read_text(encoding="utf-8").replace("<!doctype html>", ""))
    assert seen.tags.count("picture") >= 4
    assert "b" not in seen.tags
    for part in ("as_forecast", "after_map"):
        assert all(sentence in seen.words for sentence in told[part]["summary"]["verdict"])
    assert "100% of these rows were used to fit m.json" in seen.words
    assert len(seen.rows) > 8
    lines = ["".join(line.split()) for line in numbers.splitlines()]
    assert all("".join("".join(row).split()) in lines for row in seen.rows)
    mark = base64.b64encode(hashlib.sha256(seen.style.encode()).digest()).decode()
    assert seen.policy == f"default-src 'none'; img-src data:; style-src 'sha256-{mark}'"


def test_a_page_shows_drift_and_what_calibrating_would_gain(shell: Shell, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    day = pl.date_range(pl.date(2023, 1, 1), pl.date(2023, 12, 31), eager=True)[:240]
    y = rng.normal(size=240) * np.repeat([1.0, 3.0], 120)
    frame = pl.DataFrame({"date": day, "mean": np.zeros(240), "std": np.full(240, 0.8), "y": y})
    frame.sample(fraction=1.0, shuffle=True, seed=0).write_csv(tmp_path / "a.csv")
    assert shell("check", "a.csv", "--html", "a.html").code == 0
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    seen = Seen(page.replace("<!doctype html>", ""))
    assert "Each dot is about 20 outcomes, named by the first of them in date." in seen.words
    pictures = [
        base64.b64decode(part).decode() for part in re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', page)
    ]
    assert any("2023-01-01" in picture and "2023-12" not in picture for picture in pictures)
    rows = {row[0]: row[1:] for row in seen.rows if row}
    held = [float(cell.strip("%")) / 100 for cell in rows["outcomes within the 90 % interval"]]
    assert held[0] == pytest.approx((np.abs(y[40:]) <= 1.645 * 0.8).mean(), abs=0.01)  # the first part only teaches
    assert abs(held[1] - 0.9) < abs(held[0] - 0.9)
    assert "would lower the CRPS by" in seen.words
    (tmp_path / "few.csv").write_text("y,mean,std\n1,0,1\n2,0,1\n0,0,1\n")
    assert shell("check", "few.csv", "--html", "few.html").code == 0
    assert "too few outcomes to say" in (tmp_path / "few.html").read_text(encoding="utf-8")


# Bad input.

GOOD = "y,mean,std,store\n1,0,1,a\n2,1,1,a\n0,0,2,b\n3,1,1,b\n"
BAD = {
    "missing file": (("check", "none.csv"), None, "none.csv: does not exist"),
    "empty file": (("check", "bad.csv"), "", "the file is empty"),
    "header only": (("check", "bad.csv"), "y,mean,std\n", "no rows below the header"),
    "no forecast": (("check", "bad.csv"), "y,x\n1,2\n", "expected mean,std; q0.05"),
    "two kinds": (("check", "bad.csv"), "y,s0,s1,p0,p1\n1,2,3,.5,.5\n", "at once; keep one, or choose with --kind"),
    "not a number": (("fit", "bad.csv", "--out", "m2.json"), "y,mean,std\n1,x,1\n", "row 1, column mean: 'x' is not a"),
    "NaN": (("fit", "bad.csv", "--out", "m2.json"), "y,mean,std\n1,nan,1\n", "row 1, column mean: nan is not a finite"),
    "std": (("fit", "bad.csv", "--out", "m2.json"), "y,mean,std\n1,0,0\n", "row 1, column std: 0 is not a standard"),
    "level": (("check", "bad.csv"), "y,q0,q100\n1,2,3\n", "column q0: level 0 is not between 0 and 1"),
    "no interval": (("check", "bad.csv"), "y,lo,hi\n1,2,3\n", "say its probability with --level 0.9"),
    "interval level": (("check", "bad.csv", "--level", "90"), "y,lo,hi\n1,2,3\n", "--level 90 is not between 0 and 1"),
    "no such column": (("check", "good.csv", "--y", "z"), None, "--columns y=z: no such column among"),
    "no mapping": (("check", "good.csv", "--columns", "mean"), None, "write OURS=THEIRS, like mean=mu"),
    "sheet": (("check", "good.csv", "--sheet", "May"), None, "has no sheets, but --sheet May was given"),
    "one outcome": (("fit", "bad.csv", "--out", "m2.json"), "y,mean,std\n1,0,1\n,0,1\n", "outcomes in 1 of 2 rows"),
    "sum": (("check", "bad.csv"), "y,p0,p1\n1,.5,.4\n", "row 1, column p0 … p1: the probabilities sum to 0.9, not 1"),
    "class": (("check", "bad.csv"), "y,p0,p1\n2,.5,.5\n", "row 1, column y: 2 is not a class"),
    "no y to check": (("check", "bad.csv"), "mean,std\n0,1\n", "no column y among mean, std; add the outcomes"),
    "no y to fit": (("fit", "bad.csv", "--out", "m2.json"), "mean,std\n0,1\n", "no column y among mean, std"),
    "other kind": (
        ("apply", "m.json", "bad.csv", "--out", "h.csv"),
        "s0,s1\n1,2\n",
        "the map was fitted for normal",
    ),
    "other columns": (
        ("apply", "q.json", "bad.csv", "--out", "h.csv"),
        "q0.2,q0.8\n1,2\n",
        "quantiles (q0.2, q0.8)",
    ),
    "check other kind": (("check", "bad.csv", "--map", "m.json"), "y,p0,p1\n1,.5,.5\n0,.5,.5\n", "fitted for normal"),
    "not a map": (("apply", "good.csv", "good.csv", "--out", "h.csv"), None, "good.csv: is not JSON, or was cut short"),
    "missing map": (("apply", "none.json", "good.csv", "--out", "h.csv"), None, "none.json: cannot be read"),
    "method": (
        ("fit", "good.csv", "--out", "m2.json", "--method", "magic"),
        None,
        "method 'magic' is unknown",
    ),
    "folder": (("apply", "m.json", "good.csv", "--out", "good.csv/h.csv"), None, "good.csv/h.csv: cannot be written"),
    "map folder": (("fit", "good.csv", "--out", "good.csv/m.json"), None, "good.csv/m.json: cannot be written"),
    "plot folder": (("check", "good.csv", "--plot", "good.csv/p.png"), None, "good.csv/p.png: cannot be written"),
    "map suffix": (("fit", "good.csv", "--out", "m2.txt"), None, "m2.txt: suffix '.txt' cannot be written; use .json"),
    "out suffix": (("apply", "m.json", "good.csv", "--out", "h.xls"), None, "suffix '.xls' cannot be written"),
    "plot suffix": (("check", "good.csv", "--plot", "p.bmp"), None, "use .png or .svg or .pdf"),
    "group column": (("fit", "good.csv", "--out", "m2.json", "--group", "shop"), None, "the file offers store"),
    "no group column": (
        ("apply", "g.json", "bad.csv", "--out", "h.csv"),
        "mean,std\n0,1\n",
        "bad.csv: no column 'store', but g.json was fitted by it; add the column",
    ),
    "unknown group": (
        ("apply", "g.json", "bad.csv", "--out", "h.csv"),
        "mean,std,store\n0,1,z\n",
        "'z' has no map",
    ),
    "levels": (
        ("apply", "m.json", "good.csv", "--out", "h.csv", "--levels", "5,95"),
        None,
        "must lie strictly",
    ),
    "level words": (
        ("apply", "m.json", "good.csv", "--out", "h.csv", "--levels", "low"),
        None,
        "not a list of numb",
    ),
    "no levels": (("apply", "m.json", "good.csv", "--out", "h.csv", "--levels", ""), None, "--levels '' is not a list"),
    "a folder": (("check", "."), None, ".: is a folder; give the path of"),
    "empty cell": (
        ("check", "bad.csv"),
        "y,mean,std\n1,0,\n",
        "row 1, column std: the cell is empty; expected a finite",
    ),
    "overwriting": (("apply", "m.json", "good.csv", "--out", "good.csv"), None, "would overwrite what is read"),
    "new groups": (
        ("apply", "m.json", "good.csv", "--out", "h.csv", "--new-groups", "x"),
        None,
        "refuse or pooled",
    ),
    "kind": (("check", "good.csv", "--kind", "gauss"), None, "kind 'gauss' is unknown; known: normal, quantiles"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("as_json", [False, True])
def test_bad_input_is_one_line_and_leaves_nothing(shell: Shell, tmp_path: Path, case: str, as_json: bool) -> None:
    words, text, expected = BAD[case]
    (tmp_path / "good.csv").write_text(GOOD)
    (tmp_path / "quantiles.csv").write_text("y,q0.1,q0.9\n1,0,2\n2,0,2\n")
    assert shell("fit", "good.csv", "--out", "m.json", "--method", "affine").code == 0
    assert shell("fit", "good.csv", "--out", "g.json", "--method", "affine", "--group", "store").code == 0
    assert shell("fit", "quantiles.csv", "--out", "q.json", "--method", "affine").code == 0
    if text is not None:
        (tmp_path / "bad.csv").write_text(text)
    before = files(tmp_path)
    answer = shell(*words, *(["--json"] if as_json else []))
    assert answer.code == 2
    assert answer.out == ""
    assert answer.err.startswith("calibrl: ")
    assert answer.err.count("\n") == 1
    assert expected in answer.err
    assert files(tmp_path) == before
    assert (tmp_path / "good.csv").read_text() == GOOD


def test_the_installed_command_ends_with_code_2_and_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text("y,mean,std\n1,0,-1\n")
    done = subprocess.run(
        [sys.executable, "-m", "calibrl", "check", "bad.csv"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "calibrl: bad.csv, row 1, column std: -1 is not a standard deviation; "
        "expected more than 0: repair it or drop the row\n"
    )


def test_many_rows_leave_a_small_map(shell: Shell, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    n = 300_000
    mean = rng.normal(size=n)
    pl.DataFrame({"mean": mean, "std": np.ones(n), "y": mean + 2 * rng.normal(size=n)}).write_parquet(
        tmp_path / "a.parquet"
    )
    fitted = shell("fit", "a.parquet", "--out", "m.json", "--json").json
    assert fitted["pooled"]["after"] < 1e-3 < fitted["pooled"]["before"]
    assert (tmp_path / "m.json").stat().st_size < 200_000
    shell("apply", "m.json", "a.parquet", "--out", "b.parquet")
    assert pl.read_parquet(tmp_path / "b.parquet")["std"].mean() == pytest.approx(2, rel=0.01)


def test_a_map_that_changes_nothing_earns_nothing_on_samples(shell: Shell):
    """Three samples are scored as points or as a curve: before and after a map by the same of the two."""
    rng = np.random.default_rng(0)
    mean = rng.normal(size=400)
    drawn = {f"s{i}": mean + rng.normal(size=400) for i in range(3)}
    pl.DataFrame({**drawn, "y": mean + rng.normal(size=400)}).write_csv("f.csv")
    assert shell("fit", "f.csv", "--out", "map.json", "--method", "smooth").code == 0
    found = shell("check", "f.csv", "--map", "map.json", "--json").json
    before, after = (found[name]["summary"]["crps"] for name in ("as_forecast", "after_map"))
    # Points would score about 0.05 worse than the curve through them, whatever the map does.
    assert before - after < 0.02


def test_guaranteed_intervals_hold_and_say_what_they_promise(shell: Shell) -> None:
    overconfident("normal", 1500, 0).write_csv("past.csv")
    overconfident("normal", 4000, 1).write_csv("new.csv")
    assert shell("fit", "past.csv", "--group", "store", "--out", "map.json").code == 0
    answer = shell("apply", "map.json", "new.csv", "--guarantee", "0.9", "--out", "new_calibrated.csv")
    assert "In each group: it holds at least 90 % of outcomes on average" in re.sub(r"\s+", " ", answer.out)
    written = pl.read_csv("new_calibrated.csv")
    inside = written.with_columns(hit=pl.col("y").is_between("low", "high")).group_by("store").agg(pl.col("hit").mean())
    assert inside["hit"].min() > 0.86
    sure = shell(
        "apply", "map.json", "new.csv", "--guarantee", "0.9", "--confidence", "0.95", "--out", "b.csv", "--json"
    )
    assert "with 95 % confidence" in sure.json["guarantee"]
    assert (pl.read_csv("b.csv")["low"] < written["low"]).all()


@pytest.mark.parametrize(
    ("kind", "fitted", "asked", "words"),
    [
        ("normal", ("--block", "7"), ("--guarantee", "0.9"), "resemble their neighbours"),
        ("classes", (), ("--guarantee", "0.9"), "have no intervals"),
        ("normal", (), ("--confidence", "0.9"), "of what"),
        ("normal", ("--forget", "0.99"), ("--guarantee", "0.9", "--confidence", "0.9"), "no tolerance bound"),
    ],
)
def test_nothing_is_guaranteed_without_a_theorem(shell: Shell, kind: str, fitted, asked, words: str) -> None:
    overconfident(kind, 80, 0).write_csv("past.csv")
    assert shell("fit", "past.csv", "--out", "map.json", *fitted).code == 0
    answer = shell("apply", "map.json", "past.csv", "--out", "b.csv", *asked)
    assert answer.code == 2
    assert words in answer.err
    assert not Path("b.csv").exists()


@pytest.mark.parametrize("written", ["%Y-%m-%d", "%d.%m.%Y", "%Y-%m-%dT%H:%M"])
def test_rows_with_dates_are_judged_on_later_ones(shell: Shell, written: str) -> None:
    """The spread doubles half-way: shuffled folds call a map of all rows good, later rows do not."""
    rng = np.random.default_rng(0)
    n = 400
    day = (
        pl.date_range(pl.date(2021, 1, 1), pl.date(2022, 12, 31), eager=True)[:n].cast(pl.Datetime).dt.strftime(written)
    )
    y = rng.normal(size=n) * np.where(np.arange(n) < n // 2, 1.0, 4.0)
    frame = pl.DataFrame({"date": day, "mean": np.zeros(n), "std": np.ones(n), "y": y})
    frame.sample(fraction=1.0, shuffle=True, seed=0).write_csv("dated.csv")
    frame.drop("date").write_csv("plain.csv")
    dated, plain = (shell("fit", f"{name}.csv", "--out", "map.json", "--json").json for name in ("dated", "plain"))
    assert (dated["in_time"], plain["in_time"]) == ("date", None)
    assert dated["pooled"]["after"] > 2 * plain["pooled"]["after"]
    recent = shell("fit", "dated.csv", "--recent", "200", "--out", "recent.json", "--json").json
    assert recent["pooled"]["outcomes"] == 200
    assert recent["pooled"]["after"] < dated["pooled"]["after"] / 2
    shell("fit", "dated.csv", "--forget", "0.97", "--out", "recent.json")
    shell("apply", "recent.json", "plain.csv", "--out", "c.csv", "--guarantee", "0.9")
    assert pl.read_csv("c.csv")["std"][0] > 3  # what came last; of all rows together 2.9
    assert shell("fit", "dated.csv", "--recent", "1", "--out", "recent.json").code == 2
    assert shell("fit", "dated.csv", "--forget", "2", "--out", "recent.json").code == 2


def test_dates_that_may_be_two_days_are_asked_for_and_the_format_settles_them(shell: Shell) -> None:
    day = [f"0{1 + k % 6}/0{1 + k // 6}/2022" for k in range(36)]  # day-first in order, month-first not
    y = np.random.default_rng(0).normal(size=36) * np.linspace(0.5, 3, 36)
    pl.DataFrame({"date": day, "mean": np.zeros(36), "std": np.ones(36), "y": y}).write_csv("f.csv")
    refused = shell("fit", "f.csv", "--out", "map.json")
    assert refused.code == 2
    assert "may be 2022-01-02 or 2022-02-01; say which with --date-format day-first" in refused.err
    told = {
        form: shell("fit", "f.csv", "--recent", "6", "--out", f"{form[0]}.json", "--json", "--date-format", form).json
        for form in ("day-first", "month-first", "%d/%m/%Y")
    }
    assert {each["in_time"] for each in told.values()} == {"date"}
    assert told["day-first"]["pooled"] == told["%d/%m/%Y"]["pooled"] != told["month-first"]["pooled"]
    wrong = shell("fit", "f.csv", "--out", "map.json", "--date-format", "%d.%m.%Y")
    assert wrong.code == 2
    assert "'01/01/2022' is not a date; write it like %d.%m.%Y" in wrong.err
    assert shell("check", "f.csv", "--html", "f.html").code == 2
    assert shell("check", "f.csv", "--html", "f.html", "--date-format", "day-first").code == 0
    assert shell("apply", "d.json", "f.csv", "--out", "out.csv", "--date-format", "day-first").code == 0
    assert shell("apply", "d.json", "f.csv", "--out", "out.csv", "--date-format", "%d.%m.%Y").code == 2


def test_the_name_of_a_file_is_one_line(shell: Shell, tmp_path: Path) -> None:
    overconfident("normal", 40, 0).write_csv(tmp_path / "a\nCalibrated.csv")
    first, blank, *_ = shell("check", "a\nCalibrated.csv").out.splitlines()
    assert first == "a Calibrated.csv: 40 forecasts by mean,std"
    assert not blank
