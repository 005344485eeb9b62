"""Map files: what they remember, and that they come back as they were."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Categorical, Distribution, Normal

import calibrl as cal
from calibrl import CalibrlError
from calibrl.data import Groups
from calibrl.distributions.families import Grouped
from calibrl.evidence import fit_to
from calibrl.tables.mapfile import KEPT, FittedMap, MapFile, Sketch, cross_validate, fit_named, methods_for, take


def rows(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(n, 2, generator=generator, dtype=torch.float64) + 0.5
    return values, values[:, 0] + 2 * values[:, 1] * torch.randn(n, generator=generator, dtype=torch.float64)


# The memory of rows.


@pytest.mark.parametrize(("fitted", "shared", "fresh"), [(500, 500, 0), (500, 0, 500), (300, 100, 300), (2, 1, 1)])
def test_few_rows_are_remembered_exactly(fitted: int, shared: int, fresh: int) -> None:
    values, y = rows(fitted + fresh)
    sketch = Sketch.of(values[:fitted], y[:fitted])
    checked = slice(fitted - shared, fitted + fresh)
    assert sketch.share(values[checked], y[checked]) == pytest.approx(shared / (shared + fresh))


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_many_rows_are_remembered_by_a_fair_sample(share: float) -> None:
    fitted = 40 * KEPT
    values, y = rows(2 * fitted, seed=3)
    sketch = Sketch.of(values[:fitted], y[:fitted])
    assert len(sketch.smallest) == KEPT
    start = round((1 - share) * fitted)
    found = sketch.share(values[start : start + fitted], y[start : start + fitted])
    # About KEPT checked rows have fingerprints as small as those kept: a binomial sample of the share.
    assert found == pytest.approx(share, abs=4 * np.sqrt(share * (1 - share) / KEPT) + 1e-12)


def test_the_order_and_the_number_format_of_rows_do_not_matter() -> None:
    values, y = rows(300)
    sketch = Sketch.of(values, y)
    order = torch.randperm(300, generator=torch.Generator().manual_seed(1))
    assert Sketch.of(values[order], y[order]) == sketch
    assert sketch.share(values.float().double(), y.float().double()) == 1.0
    assert Sketch.of(torch.zeros(1, 1), torch.zeros(1)) == Sketch.of(-torch.zeros(1, 1), -torch.zeros(1))


def test_rows_too_coarse_to_tell_apart_prove_nothing() -> None:
    values = torch.tensor([[0.5, 0.5], [0.1, 0.9]]).repeat(50, 1).double()
    y = torch.tensor([0.0, 1.0]).repeat(50).double()
    assert Sketch.of(values, y).share(values, y) == 0.0


@pytest.mark.parametrize(("digits", "same"), [(3, 0.0), (3, 1.0), (2, 0.0), (6, 0.05)])
def test_rounded_rows_that_chance_repeats_are_told_from_rows_used_again(digits: int, same: float) -> None:
    generator = torch.Generator().manual_seed(0)
    probs = torch.softmax(3 * torch.randn(1200, 3, generator=generator, dtype=torch.float64), -1)
    values, y = (probs * 10**digits).round() / 10**digits, torch.multinomial(probs, 1, generator=generator)[:, 0]
    sketch, again = Sketch.of(values[:800], y[:800]), round(400 * same)
    found = sketch.share(torch.cat([values[:again], values[800 + again :]]), torch.cat([y[:again], y[800 + again :]]))
    assert found == pytest.approx(same, abs=0.05 * (same > 0))


def test_fingerprints_stay_what_saved_maps_hold() -> None:
    # A change of the hash would silently switch the warning off for every map saved before it.
    assert Sketch.of(torch.tensor([[1.0, 2.0]]), torch.tensor([3.0])).smallest == (3006648814765285,)


# Groups as one forecast.


def test_grouped_forecasts_answer_row_by_row() -> None:
    values, y = rows(60)
    number = torch.arange(60)
    parts = []
    for members in (number[number % 3 == 0], number[number % 3 != 0]):
        base = Normal(values[members, 0], values[members, 1])
        parts.append((members, cal.Recalibrated(base, cal.fit_smooth(cal.pit(base, y[members])))))
    whole = Grouped(parts)
    u = torch.rand(4, 60, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    for members, part in parts:
        torch.testing.assert_close(whole.cdf(y)[members], part.cdf(y[members]))
        torch.testing.assert_close(whole.icdf(u)[:, members], part.icdf(u[:, members]))
        torch.testing.assert_close(whole.log_prob(y)[members], part.log_prob(y[members]))
        torch.testing.assert_close(whole.mean[members], part.mean)
        torch.testing.assert_close(whole.stddev[members], part.stddev)
    generator = torch.Generator().manual_seed(0)
    expected = sum(cal.crps(part, y[members]) * len(members) for members, part in parts) / 60
    assert cal.summary(whole, y, generator=generator).crps == pytest.approx(expected, rel=1e-12)


def test_a_row_of_two_groups_or_none_is_refused() -> None:
    one = Normal(torch.zeros(1), torch.ones(1))
    for members, words in (([0, 0], "forecast 0 belongs to 2 groups"), ([0, 2], "forecast 1 belongs to 0 groups")):
        with pytest.raises(CalibrlError, match=f"{words}; expected exactly 1"):
            Grouped([(torch.tensor([row]), one) for row in members])


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.data())
def test_rows_are_split_among_their_groups(of: list[int], data: st.DataObject) -> None:
    groups = Groups(tuple("abcdefghij"), torch.tensor(of))
    asked = data.draw(st.lists(st.integers(0, len(of) - 1), unique=True, min_size=1))
    parts = groups.split(torch.tensor(asked))
    assert {name: places.tolist() for name, places in parts.items()} == {
        name: [place for place, row in enumerate(asked) if of[row] == k]
        for k, name in enumerate(groups.names)
        if any(of[row] == k for row in asked)
    }


def test_many_groups_cost_no_more_than_their_rows() -> None:
    # A mask a group would take 20 000 × 40 000 bytes to tell them apart, and eight times that to put them together.
    n, count = 40_000, 20_000
    groups = Groups(tuple(map(str, range(count))), torch.arange(n) % count)
    parts = groups.split(torch.arange(n))
    assert {places.untyped_storage().nbytes() for places in parts.values()} == {8 * n}  # one memory for all
    assert sum(places.numel() for places in parts.values()) == n
    part = Normal(torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64))
    whole = Grouped([(places, part) for places in parts.values()])
    assert torch.equal(whole.mean, torch.zeros(n, dtype=torch.float64))


# Cross-validation.


@given(st.integers(0, 40))
def test_every_row_is_judged_once_by_a_map_that_never_saw_it(n: int) -> None:
    z = torch.arange(n, dtype=torch.float64)
    seen: list[set[float]] = []

    def spy(pit: object = None, *, weight: object = None, z: Tensor) -> cal.Map:
        seen.append(set(z.tolist()))
        return cal.maps.IDENTITY

    folds = cross_validate(z, spy)
    judged = [set(before.tolist()) for before, _ in folds]
    assert all(
        not (held & fitted) and held | fitted == set(z.tolist()) for held, fitted in zip(judged, seen, strict=True)
    )
    assert all(len(held) >= 2 for held in judged)
    assert sum(len(held) for held in judged) == (n if n >= 4 else 0)


def test_cross_validation_does_not_flatter() -> None:
    # A map that can only repeat its training rows' luck must not look better than the perfect forecast it is given.
    generator = torch.Generator().manual_seed(0)
    gain = []
    for _ in range(40):
        z = torch.randn(60, generator=generator, dtype=torch.float64)
        for before, after in cross_validate(z, cal.fit_isotonic):
            gain.append(loss(before) - loss(after))
    assert np.mean(gain) < 2 * np.std(gain) / np.sqrt(len(gain))


def loss(z: object) -> float:
    assert isinstance(z, Tensor)
    return cal.calibration_loss(torch.special.ndtr(z))


def test_an_unknown_method_lists_the_known_ones() -> None:
    with pytest.raises(CalibrlError, match="method 'magic' is unknown for normal; known: auto, smooth, affine, platt"):
        fit_named("magic", "normal")
    with pytest.raises(
        CalibrlError, match="method 'smooth' is unknown for classes; known: auto, temperature, bias-corrected, platt"
    ):
        fit_named("smooth", "classes")


# Files.


def fitted_file(kind: str = "normal", method: str = "smooth") -> MapFile:
    values, y = rows(80)
    odd = torch.arange(80) % 2 == 1
    if kind == "classes":
        p = values / values.sum(1, keepdim=True)
        evidence = (p, torch.arange(80, dtype=torch.float64) % 2)
    else:
        evidence = cal.pit_z(Normal(values[:, 0], values[:, 1]), y)  # type: ignore[assignment]
    fit = fit_named(method, kind)
    pooled = fit_to([evidence], fit)
    groups = {name: fit_to([take(evidence, side)], fit) for name, side in {"odd": odd, "ünbekannt": ~odd}.items()}
    return MapFile(
        kind=kind,
        columns=("p0", "p1") if kind == "classes" else ("mean", "std"),
        method=method,
        pooled=FittedMap(pooled, 80),
        sketch=Sketch.of(values, y),
        source="rows.csv",
        package=cal.__version__,
        group="side",
        groups={name: FittedMap(mapping, 40) for name, mapping in groups.items()},
    )


@pytest.mark.parametrize(
    ("kind", "method"), [(kind, method) for kind in ("normal", "classes") for method in methods_for(kind)]
)
def test_a_map_file_comes_back_as_saved(tmp_path: Path, kind: str, method: str) -> None:
    saved = fitted_file(kind, method)
    saved.save(tmp_path / "new" / "map.json")
    assert MapFile.load(tmp_path / "new" / "map.json") == saved
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["map.json"]


def test_a_map_file_says_what_it_is(tmp_path: Path) -> None:
    fitted_file().save(tmp_path / "map.json")
    head = json.loads((tmp_path / "map.json").read_text(encoding="utf-8"))
    assert (head["format"], head["version"], head["package"]) == ("calibrl-map", 1, cal.__version__)
    assert head["forecast"] == {"kind": "normal", "columns": ["mean", "std"]}
    assert (head["method"], head["group"], head["pooled"]["rows"]) == ("smooth", "side", 80)
    assert head["date"].startswith("20")
    assert max(head["fitted_rows"]["smallest"]) < 2**53


def edit(text: str, **changes: object) -> str:
    return json.dumps(json.loads(text) | changes)


DAMAGE = {
    "cut short": (lambda text: text[: len(text) // 2], "is not JSON, or was cut short"),
    "binary": (lambda text: "\x00\x01", "is not JSON"),
    "a list": (lambda text: "[1, 2]", "is JSON but not a calibrl-map file"),
    "another program's": (lambda text: '{"format": "other"}', "not a calibrl-map file; give a map that `calibrl fit`"),
    "a later version": (lambda text: edit(text, version=2), "is version 2 of the format, expected 1; fit it again"),
    "edited": (lambda text: edit(text, method="platt"), "was damaged or edited after it was fitted"),
    "a digit changed": (lambda text: text.replace("0.1", "0.2", 1), "was damaged or edited"),
    "a part missing": (lambda text: json.dumps({"format": "calibrl-map", "version": 1}), "damaged"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_or_foreign_file_is_refused(tmp_path: Path, case: str) -> None:
    spoil, words = DAMAGE[case]
    path = tmp_path / "map.json"
    fitted_file().save(path)
    path.write_text(spoil(path.read_text(encoding="utf-8")), encoding="utf-8")
    with pytest.raises(CalibrlError, match=words) as caught:
        MapFile.load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_map_and_an_unwritable_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CalibrlError, match="cannot be read"):
        MapFile.load(tmp_path / "none.json")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CalibrlError, match="cannot be written"):
        fitted_file().save(tmp_path / "file" / "map.json")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_other_forecasts_are_refused() -> None:
    saved = fitted_file()
    saved.expect("normal", ("mean", "std"), source="new.csv")
    with pytest.raises(
        CalibrlError, match=r"new.csv: holds quantiles \(q0.1, q0.9\) but the map was fitted for normal"
    ):
        saved.expect("quantiles", ("q0.1", "q0.9"), source="new.csv")


def test_each_group_gets_its_own_map() -> None:
    saved = fitted_file()
    values, _ = rows(6, seed=5)
    some = torch.tensor([0, 1, 3, 4, 5])
    groups = Groups(("new", "odd"), torch.tensor([1, 1, 1, 0, 0, 0]))

    def forecast(members: Tensor) -> Distribution:
        return Normal(values[members, 0], values[members, 1])

    with pytest.raises(CalibrlError, match=r"side 'new' has no map \(known: odd, ünbekannt\); fit it too, or give"):
        saved.apply(forecast, some, groups)
    small = replace(saved, too_few=("new",))
    with pytest.raises(CalibrlError, match=r"side 'new' has no map \(too few outcomes in .*\); fit it with 2 outcomes"):
        small.apply(forecast, some, groups)
    with pytest.raises(CalibrlError, match=r"side 'new' has no map \(no group has one\); fit it too"):
        replace(saved, groups={}).apply(forecast, some, groups)
    wide = replace(saved, groups=dict.fromkeys(["two\nlines", *(f"{k}" * 100 for k in range(9))], saved.pooled))
    with pytest.raises(CalibrlError, match=r"\(known: two lines, 0{40}…, .*, … \(10 in all\)\); fit it too"):
        wide.apply(forecast, some, groups)
    honest = saved.apply(forecast, some, groups, pool_new=True)
    maps = [saved.groups["odd"].mapping] * 2 + [saved.pooled.mapping] * 3
    level = torch.tensor(0.9, dtype=torch.float64)
    for k, (row, mapping) in enumerate(zip(some, maps, strict=True)):
        one = cal.Recalibrated(Normal(*values[row]), mapping)
        assert honest.icdf(level.expand(5))[k].item() == pytest.approx(one.icdf(level).item())


def test_class_probabilities_of_groups_are_put_back_in_order() -> None:
    saved = fitted_file("classes", "temperature")
    p = torch.rand(4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    p = p / p.sum(1, keepdim=True)
    groups, every = Groups(("odd", "ünbekannt"), torch.tensor([0, 1, 0, 1])), torch.arange(4)
    honest = saved.apply(lambda members: Categorical(probs=p[members]), every, groups)
    assert isinstance(honest, Categorical)
    for name, members in groups.split(every).items():
        mapping = saved.groups[name].mapping
        assert isinstance(mapping, cal.maps.classes.ClassMap)
        torch.testing.assert_close(honest.probs[members], mapping(p[members]))
