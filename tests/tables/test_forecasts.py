"""Reading and writing tables of forecasts."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Categorical, Normal

from calibrl import CalibrlError, Empirical, Quantiles
from calibrl.tables import parse_forecasts, quantile_column, read_forecasts, read_table, write_table

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def to_file(text: str | bytes, name: str = "table.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return to_file


# Tables.


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.parquet", "A.CSV"])
def test_a_table_comes_back_as_written(tmp_path: Path, name: str) -> None:
    frame = pl.DataFrame({"id": ["a", "b,c"], "x": [1.0 / 3.0, None], "n": [1, 2]})
    write_table(frame, tmp_path / name)
    assert read_table(tmp_path / name).equals(frame)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_text_of_other_programs_is_read(tmp_path: Path, separator: str, quoting: int, encoding: str) -> None:
    path = tmp_path / "a.csv"
    with path.open("w", newline="", encoding=encoding) as file:
        writer = csv.writer(file, delimiter=separator, quoting=quoting)
        writer.writerows([["id", "mean", "std", "y"], ["007", 1.5, 2, ""], ["x,y;z", -1, 1e-3, 4]])
    table = read_forecasts(path)
    assert table.frame["id"].to_list() == ["007", "x,y;z"]
    assert table.values.tolist() == [[1.5, 2.0], [-1.0, 0.001]]
    assert table.y is not None
    assert table.y.isnan().tolist() == [True, False]


def test_decimals_may_have_a_comma_throughout_a_column(write: Write) -> None:
    table = read_forecasts(write("y;q0.1;q0.9\n1,25;-0,5;2\n;0,125;1e3\n"))
    assert table.values.tolist() == [[-0.5, 2.0], [0.125, 1000.0]]
    assert table.y is not None
    assert table.y[0] == 1.25


def test_types_are_inferred_from_all_rows(write: Write) -> None:
    path = write("x\n" + "1\n" * 2000 + "2.5\n")
    assert read_table(path)["x"].dtype == pl.Float64
    assert read_table(path, as_text=True)["x"].dtype == pl.String


@pytest.mark.parametrize(
    ("content", "name", "words"),
    [
        (b"", "a.csv", "the file is empty"),
        (b"\n", "a.csv", "cannot be read as CSV"),
        (b"y,mean,std\n", "a.csv", "no rows below the header y, mean, std"),
        (b"y,mean\n1,2,3\n", "a.csv", "as many cells in every row"),
        (b"\xff\xfe\x00y,mean\n", "a.csv", "no rows below the header"),
        (b"\x89PNG\x00\x01,\n1,2\n", "a.csv", "is not text"),
        (b"y,mean\n1,2\n", "a.csv.gz", "cannot be read as CSV"),
        (b"y,mean\n1,2\n", "a.feather", "cannot be read as Feather"),
        (b"y,mean\n1,2\n", "a.parquet", "cannot be read as Parquet"),
        (b"y,mean\n1,2\n", "a.xlsx", "save the sheet as CSV"),
        (b"y,mean\n1,2\n", "a.json", "rename"),
        (b"y,mean,mean,std\n1,2,3,4\n", "a.csv", "2 columns are named mean; give each a name of its own"),
        (b"y;mean; mean ;std\n1;2;3;4\n", "a.csv", "2 columns are named mean"),
        (b'\n"y"\t"a\nb"\t"a\nb"\n1\t2\t3\n', "a.tsv", "2 columns are named a b"),
        (b"y,mean,std\r" + b"1,0,1\r" * 999, "a.csv", "lines end in a carriage return alone"),
        (b"y,mean,std\r" + b"1,0,1\r" * 999 + b"\n", "a.csv", "lines end in a carriage return alone"),
    ],
)
def test_a_file_that_is_no_table_is_refused(write: Write, content: bytes, name: str, words: str) -> None:
    path = write(content, name)
    with pytest.raises(CalibrlError, match=words) as caught:
        read_table(path)
    assert str(path) in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < len(str(path)) + 300


def test_columns_without_a_name_are_no_twins(write: Write) -> None:
    # Spreadsheets leave separators behind at the end of each line.
    table = read_forecasts(write("y,mean,std,, ,\n1,0,1,,,\n2,0,1,,,\n"))
    assert len(table) == 2
    assert table.names[:3] == ("y", "mean", "std")


def test_twins_in_parquet_are_refused(tmp_path: Path) -> None:
    pl.DataFrame({"mean": [1.0], " mean": [2.0], "std": [1.0]}).write_parquet(tmp_path / "a.parquet")
    with pytest.raises(CalibrlError, match="2 columns are named mean"):
        read_table(tmp_path / "a.parquet")


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CalibrlError, match="does not exist"):
        read_table(tmp_path / "none.csv")
    for name in ("folder.csv", "folder"):
        (tmp_path / name).mkdir()
        with pytest.raises(CalibrlError, match="is a folder"):
            read_table(tmp_path / name)


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CalibrlError, match="cannot be written"):
        write_table(pl.DataFrame({"x": [1]}), tmp_path / "file" / "a.csv")
    with pytest.raises(CalibrlError, match="suffix"):
        write_table(pl.DataFrame({"x": [1]}), tmp_path / "a.json")
    with pytest.raises(CalibrlError, match=r"a.csv: cannot be written \(.*\); write .parquet, or leave out tags"):
        write_table(pl.DataFrame({"x": [1], "tags": [["a", "b"]]}), tmp_path / "a.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


# Forecasts.


def test_each_kind_is_spelt_by_its_columns() -> None:
    every = torch.arange(1)

    gaussian = parse_forecasts(pl.DataFrame({"mean": [1.0], "std": [2.0], "y": [3.0]}), source="t")
    assert gaussian.kind == "normal"
    assert isinstance(gaussian.distribution(every), Normal)
    assert gaussian.distribution(every).cdf(torch.tensor([3.0])).item() == pytest.approx(0.8413447, abs=1e-6)

    # In whatever order the columns stand.
    quantiles = parse_forecasts(pl.DataFrame({"q0.9": [3.0], "q.5": [2.0], "q1e-1": [1.0]}), source="t")
    assert quantiles.kind == "quantiles"
    assert quantiles.levels == [0.1, 0.5, 0.9]
    assert isinstance(quantiles.distribution(every), Quantiles)
    assert quantiles.distribution(every).icdf(torch.tensor([0.9])).item() == pytest.approx(3.0)

    samples = parse_forecasts(pl.DataFrame({f"s{i}": [float(i)] for i in (10, 9, 1)}), source="t")
    assert samples.columns == ("s1", "s9", "s10")
    assert isinstance(samples.distribution(every), Empirical)
    assert samples.distribution(every).median.item() == pytest.approx(9)

    classes = parse_forecasts(pl.DataFrame({"p0": [0.3], "p1": [0.7], "y": [1]}), source="t")
    assert isinstance(classes.distribution(every), Categorical)
    assert classes.y is not None


def test_moments_beside_quantiles_are_the_same_forecast() -> None:
    frame = pl.DataFrame({"id": [1], "q0.1": [0.0], "q0.9": [1.0], "mean": [0.5], "std": [0.4]})
    table = parse_forecasts(frame, source="t")
    assert table.kind == "quantiles"
    assert table.frame.columns == ["id"]
    assert parse_forecasts(frame, source="t", kind="normal").kind == "normal"


def test_missing_outcomes_are_unseen_however_they_are_written(write: Write) -> None:
    table = read_forecasts(write("y,mean,std\n,0,1\nNA,0,1\nnan,0,1\n 2 ,0,1\nNone,0,1\n3,0,1\n"))
    seen, y = table.seen()
    assert seen.tolist() == [3, 5]
    assert y[seen].tolist() == [2.0, 3.0]


def test_blank_lines_are_no_forecasts_and_do_not_shift_the_count(write: Write) -> None:
    assert len(read_forecasts(write("y,mean,std\n1,0,1\n\n2,0,1\n\n"))) == 2
    with pytest.raises(CalibrlError, match="row 3, column std"):
        read_forecasts(write("y,mean,std\n1,0,1\n\n2,0,-1\n"))


def test_groups_are_the_text_of_a_column(write: Write) -> None:
    table = read_forecasts(write("y,mean,std,store\n1,0,1,b\n2,0,1,a\n3,0,1,b\n"))
    groups = table.groups("store")
    assert groups.names == ("a", "b")
    assert groups.of.tolist() == [1, 0, 1]
    for column in ("shop", "y", "mean"):
        with pytest.raises(CalibrlError, match="the file offers store"):
            table.groups(column)
    with pytest.raises(CalibrlError, match="row 2, column store: no group"):
        read_forecasts(write("y,mean,std,store\n1,0,1,b\n2,0,1,\n")).groups("store")


REFUSED = {
    "no forecast": ("y,x\n1,2\n", "no forecast among the columns y, x; expected mean,std; q0.05"),
    "half a forecast": ("y,mean\n1,2\n", "no forecast among the columns y, mean"),
    "two kinds": ("y,p0,p1,mean,std\n1,.5,.5,0,1\n", "holds normal .* and classes .* at once; keep one"),
    "not a number": ("y,mean,std\n1,0,1\n2,abc,1\n", "row 2, column mean: 'abc' is not a number"),
    "two decimal marks": ("y;mean;std\n1;0;1,5\n1;0;1.5\n", "row 1, column std: '1,5' is not a number; write dec"),
    "thousands": ('y,mean,std\n1,"1,200",1\n', "row 1, column mean: '1,200' is not a number; drop the thousands"),
    "name of a class": (
        "y,p0,p1\ncat,.5,.5\n",
        "row 1, column y: 'cat' is not a number; expected the number of the class, 0 to 1, or an empty cell",
    ),
    "y not a number": ("y,mean,std\nhigh,0,1\n", "row 1, column y: 'high' is not a number"),
    "NaN forecast": ("y,mean,std\n1,0,1\n2,NaN,1\n", "row 2, column mean: NaN is not a finite number"),
    "missing forecast": ("y,mean,std\n1,0,1\n2,0,NA\n", "row 2, column std: NA is not a finite number"),
    "empty forecast": ("y,mean,std\n1,0,1\n2,0, \n", "row 2, column std: the cell is empty; expected a finite number"),
    "long text": (f"y,mean,std\n1,{'x' * 999},1\n", "row 1, column mean: 'x{40}…' is not a number"),
    "infinite forecast": ("y,mean,std\n1,inf,1\n", "row 1, column mean: inf is not a finite number"),
    "infinite outcome": ("y,mean,std\n-inf,0,1\n", "row 1, column y: -inf is not finite"),
    "std 0": ("y,mean,std\n1,0,1\n1,0,0\n", "row 2, column std: 0 is not a standard deviation; expected more than 0"),
    "std negative": ("y,mean,std\n1,0,-2.5\n", "column std: -2.5 is not a standard deviation"),
    "level zero": ("y,q0,q0.5\n1,0,1\n", "column q0: level 0 is not between 0 and 1"),
    "percent or not": (
        "y,q0.5,q50\n1,0,1\n",
        "q0.5, q50 may be fractions or percent; say which with --columns q0.5=q50",
    ),
    "two sets": ("y,a_q0.1,a_q0.9,b_q0.1,b_q0.9\n1,0,1,0,1\n", "a_q0.1, b_q0.1 begin 2 sets of quantiles; keep one"),
    "one level": ("y,q0.5\n1,0\n", "expected two or more different levels"),
    "same level twice": ("y,q0.5,q0.50\n1,0,0\n", "expected two or more different levels"),
    "one sample": ("y,s0\n1,0\n", "s0 is the only sample"),
    "one class": ("y,p0\n0,1\n", "p0 is the only class: expected p0, p1, … without a gap"),
    "classes or percentiles": (
        "y,p10,p50\n10,.4,.6\n",
        "p10, p50 may be classes or percentiles; say which with --kind",
    ),
    "classes that do not sum": ("y,p1,p2\n1,.4,.5\n", "p1, p2 may be classes or percentiles; say which with --kind cl"),
    "other class": ("y,p_cat,p_dog\ncow,.4,.6\n", "row 1, column y: 'cow' is none of the classes cat, dog"),
    "whose probability": ("y,prob\ncat,.4\ndog,.5\n", "prob may be the probability of cat or of dog; .* p_cat=prob"),
    "interval": ("y,lower,upper\n1,0,2\n", "lower and upper are an interval: say its probability with --level 0.9"),
    "two intervals": (
        "y,a_lower,a_upper,b_lower,b_upper\n1,0,2,0,2\n",
        "say which interval, with --columns lower=a_lower,upper=a_upper and --level",
    ),
    "two outcomes": (
        "actual,target,mu,sigma\n1,1,0,1\n",
        "actual, target may each be the column y; .* --columns y=act",
    ),
    "two means": ("y,mu,pred,sigma\n1,1,0,1\n", "mu, pred may each be the column mean; .* --columns mean=mu"),
    "std of the mean": (
        "y,mean,mean_se\n1,0,1\n",
        r"no forecast among .*; mean is a mean: say what its standard deviation is with --columns std=NAME",
    ),
    "class gap": ("y,p0,p2\n0,.5,.5\n", "expected p0, p1, … without a gap"),
    "probability": ("y,p0,p1\n0,1.5,-.5\n", "row 1, column p0: 1.5 is not a probability"),
    "sum": ("y,p0,p1\n0,.5,.5\n0,.5,.6\n", "row 2, column p0 … p1: the probabilities sum to 1.1, not 1"),
    "sum of rounded": ("y,p0,p1\n0,.5,.52\n", "row 1, column p0 … p1: the probabilities sum to 1.02, not 1"),
    "sum of exact": ("y,p0,p1,p2\n0,.33,.33,.33\n0,.333333,.333333,.33\n", "row 1.* sum to 0.99, not 1"),
    "rounded away": ("y," + ",".join(f"p{k}" for k in range(300)) + "\n0" + ",0" * 300 + "\n", "sum to 0, not 1"),
    "no such class": (
        "y,p0,p1\n0,.5,.5\n2,.5,.5\n",
        "row 2, column y: 2 is not a class; expected a whole number from 0",
    ),
    "a digit that is no number": ("y,p0,p1\n0,.5,.5\n¹,.5,.5\n", "row 2, column y: '¹' is not a number"),
    "a number of many digits": (f"y,p0,p1\n0,.5,.5\n{'9' * 5000},.5,.5\n", "row 2, column y: inf is not a class"),
    "half a class": ("y,p0,p1\n0.5,.5,.5\n", "row 1, column y: 0.5 is not a class"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_numbers_are_named_with_their_place(write: Write, case: str) -> None:
    text, words = REFUSED[case]
    path = write(text)
    with pytest.raises(CalibrlError, match=words) as caught:
        read_forecasts(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("digits", [2, 3])
@pytest.mark.parametrize("count", [2, 3, 10])
@pytest.mark.parametrize("dtype", [pl.Float64, pl.Float32])
def test_rounded_probabilities_are_shared_out_anew(digits: int, count: int, dtype: type[pl.DataType]) -> None:
    exact = np.random.default_rng(0).dirichlet(np.ones(count), 500)
    rounded = exact.round(digits)
    assert count == 2 or np.abs(rounded.sum(1) - 1).max() > 10**-digits / 2
    frame = pl.DataFrame(rounded, schema={f"p{k}": dtype for k in range(count)})
    read = parse_forecasts(frame, source="t").values.numpy()
    np.testing.assert_allclose(read.sum(1), 1, rtol=1e-12)
    np.testing.assert_allclose(read, rounded / rounded.sum(1, keepdims=True), rtol=1e-6)


@pytest.mark.parametrize("level", [0.05, 1e-5, 0.1234567, 1 / 3, 0.30000000000000004, 1 - 2**-53])
def test_a_level_is_read_from_its_column_as_it_was_written(level: float) -> None:
    frame = pl.DataFrame({quantile_column(level): [1.0], "q0.5": [1.0]})
    table = parse_forecasts(frame, source="t")
    assert level in table.levels
    assert set(table.signature) == set(frame.columns)


def test_groups_that_text_cannot_name_are_refused() -> None:
    frame = pl.DataFrame({"mean": [1.0], "std": [1.0], "tags": [["a", "b"]], "raw": [b"\xff"]})
    table = parse_forecasts(frame, source="t")
    for column, dtype in (("tags", "List"), ("raw", "Binary")):
        with pytest.raises(CalibrlError, match=f"column {column}: holds {dtype}.*, which names no groups"):
            table.groups(column)


def test_columns_of_other_types_are_refused() -> None:
    with pytest.raises(CalibrlError, match=r"column mean: holds List.*not numbers"):
        parse_forecasts(pl.DataFrame({"mean": [[1.0]], "std": [1.0]}), source="t")


def test_an_unknown_or_absent_kind_is_refused() -> None:
    frame = pl.DataFrame({"mean": [1.0], "std": [1.0]})
    with pytest.raises(CalibrlError, match="kind 'gauss' is unknown; known: normal, quantiles, samples, classes"):
        parse_forecasts(frame, source="t", kind="gauss")
    with pytest.raises(CalibrlError, match="expected s0 s1"):
        parse_forecasts(frame, source="t", kind="samples")


def test_outcomes_are_asked_for_only_when_needed() -> None:
    bare = parse_forecasts(pl.DataFrame({"mean": [1.0], "std": [1.0]}), source="t")
    with pytest.raises(CalibrlError, match="no column y among mean, std"):
        bare.seen()
    one = parse_forecasts(pl.DataFrame({"mean": [1.0, 1.0], "std": [1.0, 1.0], "y": [1.0, None]}), source="t")
    with pytest.raises(CalibrlError, match="column y: outcomes in 1 of 2 rows; expected at least 2"):
        one.seen()


@given(st.lists(st.tuples(st.floats(-1e300, 1e300), st.floats(1e-300, 1e300)), min_size=1, max_size=5))
def test_numbers_survive_text_exactly(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[float, float]]
) -> None:
    path = tmp_path_factory.mktemp("text") / "a.csv"
    write_table(pl.DataFrame(rows, schema=["mean", "std"], orient="row"), path)
    assert np.array_equal(read_forecasts(path).values.numpy(), np.array(rows))
