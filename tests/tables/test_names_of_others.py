"""Files as pandas, LightGBM, statsmodels, R, Excel and others write them, checked as they are; numbers are numpy's."""

from __future__ import annotations

import csv
import gzip
import io
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pytest
from scipy import stats

from calibrl.__main__ import main
from calibrl.tables import write_table

N = 120
RNG = np.random.default_rng(7)
MU = RNG.normal(20, 5, N).round(3)
SIGMA = RNG.uniform(1, 3, N).round(3)
Y = (MU + 1.3 * SIGMA * RNG.normal(size=N)).round(3)
LEVELS = np.array([0.1, 0.5, 0.9])
QUANTILES = (MU[:, None] + SIGMA[:, None] * stats.norm.ppf(LEVELS)).round(3)
NINETY = (MU[:, None] + SIGMA[:, None] * stats.norm.ppf([0.05, 0.95])).round(3)
BOTH = np.stack([NINETY[:, 0], QUANTILES[:, 0], QUANTILES[:, 2], NINETY[:, 1]], 1)
SAMPLES = (MU[:, None] + SIGMA[:, None] * RNG.normal(size=(N, 12))).round(3)
PROBS = RNG.dirichlet((2, 2, 2), N).round(6)
PROBS[:, 2] = (1 - PROBS[:, :2].sum(1)).round(6)
LABEL = (PROBS.cumsum(1) < RNG.random((N, 1))).sum(1)
ANIMALS = np.array(["cat", "dog", "owl"])[LABEL]
RISK = PROBS[:, 0]
EVENT = (RNG.random(N) < RISK).astype(int)
DAYS = np.datetime64("2024-12-20") + np.arange(N)


# What the numbers must be, from numpy and scipy alone.


def gaussian(mean: np.ndarray = MU, std: np.ndarray = SIGMA, y: np.ndarray = Y) -> dict[str, Any]:
    z = (y - mean) / std
    score = std * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / np.sqrt(np.pi))
    inside = {f"{level:g}": (np.abs(z) <= stats.norm.ppf(0.5 + level / 2)).mean() for level in (0.5, 0.8, 0.9, 0.95)}
    return {"n": len(y), "coverage": inside, "crps": score.mean(), "nll": -stats.norm.logpdf(y, mean, std).mean()}


def quantile(values: np.ndarray = QUANTILES, levels: Sequence[float] = tuple(LEVELS)) -> dict[str, Any]:
    values = np.sort(values, 1)
    miss = Y[:, None] - values
    return {
        "n": N,
        "levels": list(levels),
        "observed": (miss <= 0).mean(0).tolist(),
        "pinball": np.where(miss > 0, np.multiply(levels, miss), np.subtract(levels, 1) * miss).mean(),
    }


def sampled(values: np.ndarray = SAMPLES) -> dict[str, Any]:
    """The law between samples is ours; its CRPS is between the fair estimate and that of the samples' own steps."""
    off = np.abs(values - Y[:, None]).mean()
    apart, size = np.abs(values[:, :, None] - values[:, None]).mean(), values.shape[1]
    return {"n": N, "crps": (off - apart / 2 * size / (size - 1), off - apart / 2)}


def classes(probs: np.ndarray = PROBS, label: np.ndarray = LABEL) -> dict[str, Any]:
    return {
        "n": N,
        "classes": probs.shape[1],
        "accuracy": (probs.argmax(1) == label).mean(),
        "nll": -np.log(probs[np.arange(N), label]).mean(),
    }


BINARY = classes(np.stack([1 - RISK, RISK], 1), EVENT)


# How they are written.

Columns = Mapping[str, Any]


def text(
    columns: Columns, *, sep: str = ",", decimal: str = ".", encoding: str = "utf-8", quote: int = csv.QUOTE_MINIMAL
) -> bytes:
    """Delimited text, numbers with as many digits as they have."""
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter=sep, quoting=quote, lineterminator="\r\n")
    writer.writerow(columns)
    for row in zip(*columns.values(), strict=True):
        plain = (value.item() if isinstance(value, np.generic) else value for value in row)
        writer.writerow([f"{cell}".replace(".", decimal) if isinstance(cell, float) else cell for cell in plain])
    return out.getvalue().encode(encoding)


def pandas(columns: Columns, **options: Any) -> bytes:
    """With an index in front, as `to_csv` writes it."""
    return text({"": np.arange(N), **columns}, **options)


def r_csv(columns: Columns) -> bytes:
    """As `write.csv` does: row names, text in quotes."""
    return text({"": [str(k + 1) for k in range(N)], **columns}, quote=csv.QUOTE_NONNUMERIC)


def r_table(columns: Columns, sep: str = " ") -> bytes:
    """As `write.table` does: a name in front of each row and none above."""
    head, *rows = text(columns, sep=sep).decode().splitlines()
    return "\n".join([head, *(f'"{k}"{sep}{row}' for k, row in enumerate(rows, 1))]).encode()


def named(names: Sequence[str], values: np.ndarray) -> dict[str, np.ndarray]:
    return dict(zip(names, values.T, strict=True))


def numbered(prefix: str) -> dict[str, np.ndarray]:
    return named([f"{prefix}{k}" for k in range(12)], SAMPLES)


def grouped(values: np.ndarray, apart: str = "\u00a0", point: str = ",", money: str = "") -> list[str]:
    """A thousand times as much, with something between thousands and before decimals, as sheets show it."""
    return [money + f"{1000 * x:,.2f}".replace(",", "_").replace(".", point).replace("_", apart) for x in values]


EIGHTY = QUANTILES[:, [0, 2]]
OF_EIGHTY = quantile(EIGHTY, (0.1, 0.9))
KIND = "--kind quantiles"
BIG = gaussian(1000 * MU, 1000 * SIGMA, 1000 * Y)
FOUR = np.column_stack([0.9 * PROBS, np.full(N, 0.1)])
OBSERVATION = named(["obs_ci_lower", "obs_ci_upper"], NINETY)
CHURN = np.where(EVENT, "churn", "stay")


class Case(NamedTuple):
    name: str
    content: bytes | pl.DataFrame
    expected: dict[str, Any]
    options: str = ""
    said: str = ""
    warned: str = ""


CASES = {
    "pandas": Case("a.csv", pandas({"y_true": Y, "y_pred": MU, "y_std": SIGMA}), gaussian(), said="outcomes in y_true"),
    "pandas, compressed": Case("a.csv.gz", gzip.compress(pandas({"actual": Y, "mu": MU, "sigma": SIGMA})), gaussian()),
    "pandas, feather": Case("a.feather", pl.DataFrame({"Actual": Y, "Mean": MU, "Std": SIGMA}), gaussian()),
    "pandas, parquet": Case(
        "a.parquet", pl.DataFrame({"target": Y, "loc": MU, "scale": SIGMA, "__index_level_0__": range(N)}), gaussian()
    ),
    "a variance": Case("a.csv", text({"y": Y, "mean": MU, "variance": SIGMA**2}), gaussian(), said="variance"),
    "excel": Case("a.xlsx", pl.DataFrame({"Date": DAYS, "Observed": Y, "Forecast": MU, "Sigma": SIGMA}), gaussian()),
    "excel, german": Case(
        "a.csv",
        text({"größe": Y, "mean": MU, "std": SIGMA}, sep=";", decimal=",", encoding="cp1252"),
        gaussian(),
        "--y größe",
        "separated by semicolons; Latin-1",
    ),
    "excel, unicode text": Case(
        "a.txt", text({"actual": Y, "mean": MU, "std": SIGMA}, sep="\t", encoding="utf-16"), gaussian(), said="UTF-16"
    ),
    "excel, sep line": Case("a.csv", b"sep=|\r\n" + text({"y": Y, "mu": MU, "sd": SIGMA}, sep="|"), gaussian()),
    "gpytorch": Case("a.csv", text({"target": Y, "mean": MU, "stddev": SIGMA, "lower": MU, "upper": MU}), gaussian()),
    "scikit-learn": Case("a.csv", text({"y_test": Y, "y_pred": MU, "y_pred_std": SIGMA}), gaussian()),
    "statsmodels": Case(
        "a.csv",
        pandas({"mean": MU, "mean_se": SIGMA, "mean_ci_lower": MU, "mean_ci_upper": MU, "y": Y}),
        gaussian(),
        "--columns std=mean_se",
        "std=mean_se",
    ),
    "statsmodels, interval": Case(
        "a.csv",
        pandas(
            {
                "mean": MU,
                "mean_ci_lower": MU,
                "mean_ci_upper": MU,
                **named(["obs_ci_lower", "obs_ci_upper"], NINETY),
                "y": Y,
            }
        ),
        quantile(NINETY, (0.05, 0.95)),
        "--level 0.9",
        "q0.05=obs_ci_lower,q0.95=obs_ci_upper",
    ),
    "bigquery": Case(
        "a.csv",
        text(
            {
                "prediction": MU,
                **named(["prediction_interval_lower_bound", "prediction_interval_upper_bound"], NINETY),
                "actual_value": Y,
            }
        ),
        quantile(NINETY, (0.05, 0.95)),
        "--level 0.9",
    ),
    "values": Case("a.csv", pandas({"actual_value": Y, "predicted_value": MU, "predicted_std": SIGMA}), gaussian()),
    "quantiles of a prediction": Case(
        "a.csv", text({"target": Y, **named(["pred_0.1", "pred_0.5", "pred_0.9"], QUANTILES)}), quantile()
    ),
    "amazon": Case(
        "a.csv",
        text({"date": DAYS, **named(["p10", "p50", "p90"], QUANTILES), "target_value": Y}),
        quantile(),
        said="outcomes in target_value",
    ),
    "predict_proba, bare": Case("a.csv", pandas({"y_true": LABEL, **named(["0", "1", "2"], PROBS)}), classes()),
    "of an event": Case(
        "a.csv",
        text({"is_fraud": EVENT > 0, "fraud_probability": RISK}),
        BINARY,
        "--y is_fraud",
        "fraud_probability, the probability of 1",
    ),
    "names of nobody": Case("a.csv", text({"a": Y, "b": MU, "c": SIGMA}), gaussian(), "--y a --columns mean=b,std=c"),
    "lightgbm": Case("a.csv", text({"y": Y, **named(["q_0.1", "q_0.5", "q_0.9"], QUANTILES)}), quantile()),
    "lightgbm, bare": Case("a.csv", pandas({"actual": Y, **named(["0.1", "0.5", "0.9"], QUANTILES)}), quantile()),
    "lightgbm, crossed": Case(
        "a.csv",
        text({"y": Y, **named(["quantile_0.9", "quantile_0.5", "quantile_0.1"], QUANTILES)}),
        quantile(),
        warned="quantiles cross in 120 of 120 rows (100.0%; the first is row 1) and were sorted",
    ),
    "percent": Case("a.csv", text({"y": Y, **named(["q10", "q50", "q90"], QUANTILES)}), quantile(), said="q0.1=q10"),
    "percentiles": Case("a.csv", text({"obs": Y, **named(["P10", "P50", "P90"], QUANTILES)}), quantile()),
    "percent signs": Case("a.csv", text({"y": Y, **named(["10%", "50%", "90%"], QUANTILES)}), quantile()),
    "darts": Case("a.csv", text({"y": Y, **named([f"sales_q0.{k}0" for k in (1, 5, 9)], QUANTILES)}), quantile()),
    "prophet": Case(
        "a.csv",
        text({"ds": DAYS, "y": Y, "yhat": MU, **named(["yhat_lower", "yhat_upper"], QUANTILES[:, [0, 2]])}),
        quantile(QUANTILES[:, [0, 2]], (0.1, 0.9)),
        "--level 0.8",
    ),
    "nixtla": Case(
        "a.parquet",
        pl.DataFrame(
            {
                "unique_id": ["a"] * N,
                "ds": DAYS,
                "y": Y,
                "ARIMA": MU,
                **named(["ARIMA-lo-90", "ARIMA-lo-80", "ARIMA-hi-80", "ARIMA-hi-90"], BOTH),
            }
        ),
        quantile(BOTH, (0.05, 0.1, 0.9, 0.95)),
    ),
    "R, predict": Case(
        "a.csv",
        r_csv({"fit": MU, **named(["lwr", "upr"], NINETY), "actual": Y}),
        quantile(NINETY, (0.05, 0.95)),
        "--level 0.9",
    ),
    "R, forecast": Case(
        "a.txt",
        r_table({"Point.Forecast": MU, **named(["Lo.90", "Lo.80", "Hi.80", "Hi.90"], BOTH), "actual": Y}),
        quantile(BOTH, (0.05, 0.1, 0.9, 0.95)),
        said="separated by spaces",
    ),
    "R, quantile": Case("a.tsv", r_table({"y": Y, **named(["X10.", "X50.", "X90."], QUANTILES)}, "\t"), quantile()),
    "ensemble": Case("a.csv", text({"y": Y, **numbered("member_")}), sampled()),
    "posterior": Case("a.csv", text({"y": Y, **named([f"sample[{k}]" for k in range(1, 13)], SAMPLES)}), sampled()),
    "R, simulate": Case(
        "a.csv",
        r_csv({"y": Y, **named([f"V{k}" for k in range(1, 13)], SAMPLES)}),
        sampled(),
        f"--columns samples={','.join(f'V{k}' for k in range(1, 13))}",
    ),
    "bare samples": Case(
        "a.csv", text({"y": Y, **named([str(k) for k in range(12)], SAMPLES)}), sampled(), "--kind samples"
    ),
    "named classes": Case(
        "a.csv", text({"label": ANIMALS, **named(["prob_cat", "prob_dog", "prob_owl"], PROBS)}), classes()
    ),
    "R, caret": Case("a.csv", r_csv({"obs": ANIMALS, **named(["cat", "dog", "owl"], PROBS)}), classes()),
    "numbered from one": Case("a.csv", text({"y": LABEL + 1, **named(["p1", "p2", "p3"], PROBS)}), classes()),
    "predict_proba": Case(
        "a.csv", pandas({"y_true": LABEL, **named(["proba_0", "proba_1", "proba_2"], PROBS)}), classes()
    ),
    "one probability": Case("a.csv", text({"y_true": EVENT, "y_prob": RISK}), BINARY, said="the probability of 1"),
    "yes and no": Case("a.csv", text({"outcome": np.where(EVENT, "Yes", "No"), "p": RISK}), BINARY),
    "true and false": Case("a.parquet", pl.DataFrame({"target": EVENT > 0, "proba": RISK}), BINARY),
    "of a label": Case("a.csv", text({"y": CHURN, "p_churn": RISK}), BINARY, said="of churn"),
    "prophet, cross-validation": Case(
        "a.csv",
        pandas({"ds": DAYS, "yhat": MU, **named(["yhat_lower", "yhat_upper"], NINETY), "y": Y, "cutoff": DAYS}),
        quantile(NINETY, (0.05, 0.95)),
        "--level 0.9",
    ),
    "neuralforecast": Case(
        "a.csv",
        text({"ds": DAYS, **named(["NHITS-lo-80.0", "NHITS-median", "NHITS-hi-80.0"], QUANTILES), "y": Y}),
        quantile(),
    ),
    "autogluon": Case("a.csv", text({"target": Y, "mean": MU, **named(["0.1", "0.5", "0.9"], QUANTILES)}), quantile()),
    "darts, samples": Case("a.csv", text({"sales": Y, **numbered("sales_s")}), sampled(), "--y sales"),
    "skforecast, bootstrap": Case("a.csv", pandas({"y": Y, **numbered("pred_boot_")}), sampled()),
    "weather": Case("a.csv", text({"obs": Y, **numbered("mem")}), sampled()),
    "samples by any name": Case("a.csv", text({"obs": Y, **numbered("m")}), sampled(), "--kind samples"),
    "quantiles by any name": Case(
        "a.csv", text({"y": Y, **named(["alpha_0.1", "alpha_0.5", "alpha_0.9"], QUANTILES)}), quantile(), KIND
    ),
    "orbit": Case(
        "a.csv", text({"y": Y, "prediction": MU, **named(["prediction_10", "prediction_90"], EIGHTY)}), OF_EIGHTY, KIND
    ),
    "percentiles of predictions": Case(
        "a.csv", text({"y": Y, **named(["pred_p10", "pred_p50", "pred_p90"], QUANTILES)}), quantile()
    ),
    "R, quantreg": Case("a.csv", r_csv({"y": Y, **named(["tau= 0.1", "tau= 0.5", "tau= 0.9"], QUANTILES)}), quantile()),
    "mapie": Case(
        "a.csv",
        text({"y_test": Y, "y_pred": MU, **named(["y_pis_low", "y_pis_high"], NINETY)}),
        quantile(NINETY, (0.05, 0.95)),
        "--level 0.9",
    ),
    "sas, L80 and U80": Case("a.csv", text({"ACTUAL": Y, "PREDICT": MU, **named(["L80", "U80"], EIGHTY)}), OF_EIGHTY),
    "sas, STD beside them": Case(
        "a.csv", text({"ACTUAL": Y, "FORECAST": MU, "STD": SIGMA, **named(["L80", "U80"], EIGHTY)}), gaussian()
    ),
    "sas, lcl and ucl": Case(
        "a.csv", text({"y": Y, "pred": MU, **named(["lcl", "ucl"], EIGHTY)}), OF_EIGHTY, "--level 0.8"
    ),
    "R, fable": Case("a.csv", r_csv({".mean": MU, **named(["80%_lower", "80%_upper"], EIGHTY), "y": Y}), OF_EIGHTY),
    "R, write.csv2": Case(
        "a.csv",
        text({"Point Forecast": MU, **named(["Lo 80", "Hi 80"], EIGHTY), "actual": Y}, sep=";", decimal=","),
        OF_EIGHTY,
    ),
    "R, brms": Case(
        "a.csv", r_csv({"y": Y, "Estimate": MU, "Est.Error": SIGMA, **named(["Q10", "Q90"], EIGHTY)}), OF_EIGHTY
    ),
    "arviz": Case(  # the ends of a highest-density interval are no quantiles
        "a.csv", pandas({"mean": MU, "sd": SIGMA, "hdi_3%": MU - 1, "hdi_97%": MU + 1, "y": Y}), gaussian()
    ),
    "a mean and its variance": Case("a.csv", text({"y": Y, "y_pred_mean": MU, "y_pred_var": SIGMA**2}), gaussian()),
    "a prediction's std": Case("a.csv", text({"y": Y, "mean_pred": MU, "prediction_std": SIGMA}), gaussian()),
    "R, tidymodels": Case(
        "a.csv",
        r_csv({**named([".pred_cat", ".pred_dog", ".pred_owl"], PROBS), ".pred_class": ANIMALS, "truth": ANIMALS}),
        classes(),
    ),
    "a class that nobody saw": Case(
        "a.csv", text({"y": LABEL, **named([f"class_{k}" for k in (0, 1, 2, 9)], FOUR)}), classes(FOUR)
    ),
    "classes by number": Case(
        "a.csv", text({"y": np.array([3, 7, 9])[LABEL], **named(["3", "7", "9"], PROBS)}), classes()
    ),
    "classes of a boolean": Case(
        "a.csv", text({"y_true": EVENT > 0, "False": 1 - RISK, "True": RISK}), BINARY, "--y y_true"
    ),
    "pred_proba": Case(
        "a.csv", text({"y": ANIMALS, **named([f"pred_proba_{a}" for a in ("cat", "dog", "owl")], PROBS)}), classes()
    ),
    "P(y=cat)": Case(
        "a.csv", text({"y": ANIMALS, **named([f"P(y={animal})" for animal in ("cat", "dog", "owl")], PROBS)}), classes()
    ),
    "other names of classes": Case(
        "a.csv",
        text({"y": ANIMALS, **named(["prob_c", "prob_d", "prob_o"], PROBS)}),
        classes(),
        "--columns p_cat=prob_c,p_dog=prob_d,p_owl=prob_o",
    ),
    "excel, percent": Case(
        "a.csv", text({"y": EVENT, "p": [f"{100 * p:.4f} %".replace(".", ",") for p in RISK]}, sep=";"), BINARY
    ),
    "excel, french": Case(
        "a.csv",
        text({"Réel": grouped(Y), "Prévision": grouped(MU), "Écart-type": grouped(SIGMA)}, sep=";", encoding="cp1252"),
        BIG,
        "--y Réel --columns mean=Prévision,std=Écart-type",
    ),
    "excel, swiss francs": Case(
        "a.csv", text({"y": grouped(Y, "'", "."), "mean": grouped(MU, "'", "."), "std": grouped(SIGMA, "'", ".")}), BIG
    ),
    "excel, dollars": Case(
        "a.csv",
        text({"y": grouped(Y, ",", ".", "$"), "mean": grouped(MU, ",", ".", "$"), "sd": grouped(SIGMA, ",", ".", "$")}),
        BIG,
    ),
    "excel, a title": Case(
        "a.csv",
        b"Forecasts of 2024;;\r\n;;\r\n" + text({"y": Y, "mean": MU, "std": SIGMA}, sep=";"),
        gaussian(),
        said="without 2 lines above the header",
    ),
    "remarks": Case("a.csv", b"# made by us\n# v2\n" + text({"y": Y, "mean": MU, "std": SIGMA}), gaussian()),
    "numpy": Case("a.txt", b"# " + text({"y": Y, "mean": MU, "std": SIGMA}, sep=" "), gaussian()),
    "in line": Case(
        "a.txt",
        "\n".join(f"{a:>9}{b:>9}{c:>9}" for a, b, c in [("y", "mu", "sd"), *zip(Y, MU, SIGMA, strict=True)]).encode(),
        gaussian(),
    ),
    "stata, missing": Case("a.tab", text({"y": [*Y, "."], "mean": [*MU, 1], "sd": [*SIGMA, 1]}, sep="\t"), gaussian()),
    "julia, missing": Case("a.csv", text({"y": [*Y, "missing"], "mean": [*MU, 1], "sd": [*SIGMA, 1]}), gaussian()),
    "excel, missing": Case("a.dat", text({"y": [*Y, "#N/A"], "mean": [*MU, 1], "sd": [*SIGMA, 1]}), gaussian()),
    "prophet, with its parts": Case(
        "a.csv",
        text({"y": Y, **named(["yhat_lower", "yhat_upper"], EIGHTY), **named(["trend_lower", "trend_upper"], NINETY)}),
        OF_EIGHTY,
        "--level 0.8",
    ),
    "SPSS": Case("a.csv", text({"y": Y, "PRE_1": MU, **named(["LICI_1", "UICI_1"], EIGHTY)}), OF_EIGHTY, "--level 0.8"),
    "excel, in German": Case(
        "a.csv",
        text({"Istwert": Y, "Prognose": MU, "Standardabweichung": SIGMA}, sep=";", decimal=",", encoding="latin-1"),
        gaussian(),
    ),
    "bounds, in German": Case(
        "a.xlsx",
        pl.DataFrame({"Tatsächlich": Y, **named(["Untergrenze 80 %", "Obergrenze 80 %"], EIGHTY)}),
        OF_EIGHTY,
    ),
    "excel, in French": Case(
        "a.csv",
        text({"réel": Y, "moyenne": MU, "écart-type": SIGMA}, sep=";", decimal=",", encoding="utf-16"),
        gaussian(),
    ),
    "bounds in percent": Case("a.csv", text({"y": Y, **named(["Lower 80%", "Upper 80%"], EIGHTY)}), OF_EIGHTY),
    "bounds by level": Case(
        "a.csv", text({"y": Y, **named(["low_q10", "mid_q50", "high_q90"], QUANTILES)}), quantile()
    ),
    "gpytorch, posterior": Case(
        "a.csv", text({"target": Y, "posterior_mean": MU, "posterior_var": SIGMA**2}), gaussian()
    ),
    "an election": Case(
        "a.csv",
        text({"winner": np.char.capitalize(ANIMALS), **named(["p_cat", "p_dog", "p_owl"], PROBS)}),
        classes(),
        "--y winner",
    ),
    "SAS": Case("a.csv", text({"BAD": EVENT, "P_BAD1": RISK, "P_BAD0": 1 - RISK}), BINARY, "--y BAD"),
    "R, mlr3": Case(
        "a.csv",
        text({"truth": ANIMALS, "response": ANIMALS, **named(["prob.cat", "prob.dog", "prob.owl"], PROBS)}),
        classes(),
    ),
    "of a label, said": Case("a.csv", text({"y": CHURN, "score": RISK}), BINARY, "--columns p_churn=score"),
    "excel, an Italian sheet": Case(
        "a.csv", text({"Osservato": Y, "Media": MU, "Deviazione standard": SIGMA}, sep=";", decimal=","), gaussian()
    ),
    "excel, a Portuguese sheet": Case(
        "a.csv", text({"Real": Y, "Média": MU, "Desvio padrão": SIGMA}, sep=";", decimal=","), gaussian()
    ),
    "excel, a Spanish sheet": Case(
        "a.csv",
        text({"Real": Y, "Límite inferior": EIGHTY[:, 0], "Límite superior": EIGHTY[:, 1]}),
        OF_EIGHTY,
        "--level 0.8",
    ),
    "excel, a German forecast sheet": Case(
        "a.csv",
        text({"Werte": Y, "Untere Grenze(Werte)": EIGHTY[:, 0], "Obere Grenze(Werte)": EIGHTY[:, 1]}, sep=";"),
        OF_EIGHTY,
        "--y Werte --level 0.8",
    ),
    "ordinal percentiles": Case(
        "a.csv",
        text({"y": Y, **named(["10th percentile", "50th percentile", "90th percentile"], QUANTILES)}),
        quantile(),
    ),
    "neuralforecast, one loss each": Case(
        "a.csv", text({"y": Y, **named(["TFT-ql0.1", "TFT-ql0.5", "TFT-ql0.9"], QUANTILES)}), quantile()
    ),
    "timegpt": Case(
        "a.csv",
        text({"y": Y, "TimeGPT": MU, **named(["TimeGPT-q-10", "TimeGPT-q-50", "TimeGPT-q-90"], QUANTILES)}),
        quantile(),
    ),
    "statsforecast, two levels": Case(
        "a.csv",
        text({"y": Y, "ETS": MU, **named(["ETS-lo-90", "ETS-lo-80", "ETS-hi-80", "ETS-hi-90"], BOTH)}),
        quantile(BOTH, [0.05, 0.1, 0.9, 0.95]),
    ),
    "sktime": Case(
        "a.csv", text({"y": Y, **named(["('Sales', 0.8, 'lower')", "('Sales', 0.8, 'upper')"], EIGHTY)}), OF_EIGHTY
    ),
    "pytorch-forecasting": Case(
        "a.csv", text({"y": Y, **named(["prediction_q10", "prediction_q50", "prediction_q90"], QUANTILES)}), quantile()
    ),
    "greykite": Case(
        "a.csv",
        text(
            {
                "actual": Y,
                "forecast": MU,
                "forecast_lower": EIGHTY[:, 0],
                "forecast_upper": EIGHTY[:, 1],
                "err_std": 1 + SIGMA,
            }
        ),
        OF_EIGHTY,
        "--level 0.8",
    ),
    "mlflow": Case(
        "a.csv",
        text(
            {
                "target": ANIMALS,
                "prediction": ANIMALS,
                **named([f"prediction_proba_{a}" for a in ("cat", "dog", "owl")], PROBS),
            }
        ),
        classes(),
    ),
    "h2o": Case("a.csv", text({"actual": EVENT, "predict": EVENT, "p0": 1 - RISK, "p1": RISK}), BINARY),
    "rapidminer": Case(
        "a.csv",
        text({"label": ANIMALS, **named(["confidence(cat)", "confidence(dog)", "confidence(owl)"], PROBS)}),
        classes(),
    ),
    "knime": Case(
        "a.csv",
        text({"class": ANIMALS, **named(["P (class=cat)", "P (class=dog)", "P (class=owl)"], PROBS)}),
        classes(),
    ),
    "keras": Case("a.csv", text({"label": LABEL, **named(["softmax_0", "softmax_1", "softmax_2"], PROBS)}), classes()),
    "catboost": Case("a.tsv", text({"Label": EVENT, "SampleId": np.arange(N), "Probability": RISK}, sep="\t"), BINARY),
    "pycaret": Case(
        "a.csv", text({"target": EVENT, "prediction_score_0": 1 - RISK, "prediction_score_1": RISK}), BINARY
    ),
    "spark": Case("a.csv", text({"label": EVENT, "probability_0": 1 - RISK, "probability_1": RISK}), BINARY),
    "bounds of an interval in percent": Case(
        "a.csv", text({"y": Y, "ci80_lo": EIGHTY[:, 0], "ci80_hi": EIGHTY[:, 1]}), OF_EIGHTY
    ),
}

REFUSED = {
    "quartiles": (text({"y": Y, **named(["Q1", "median", "Q3"], QUANTILES)}), "--columns q0.25=Q1"),
    "quantiles that are numbered": (
        text({"y": Y, **named(["quantile_1", "quantile_2", "quantile_3"], QUANTILES)}),
        "may be numbered, quartiles or percent; say which with --columns",
    ),
    "a probability called a prediction": (
        text({"y_true": EVENT, "y_pred": RISK}),
        "is a probability with --columns p=NAME",
    ),
    "levels without a point": (
        text({"y": Y, **named(["q025", "q975"], NINETY)}),
        "level 9.75 is not between 0 and 1; say which it is with --columns q0.975=q975",
    ),
    "how sure of the label": (text({"label": EVENT, "predicted_label_probs": RISK}), "--columns p"),
    "a mean alone": (
        text({"y": Y, "y_pred": MU, "uncertainty": SIGMA}),
        "y_pred is a mean: say what its standard deviation is with --columns std=NAME",
    ),
    "a score": (text({"y_true": EVENT, "y_score": RISK}), "--columns p=NAME"),
    "numbers of nobody": (text({"y": LABEL, **named(["0", "1", "2"], 2 * PROBS)}), "--kind samples"),
    "numbers": (text({"y": Y, **named(["alpha_0.1", "alpha_0.9"], EIGHTY)}), "--kind quantiles"),
    "labels of others": (text({"y": ANIMALS, **named(["prob_c", "prob_d", "prob_o"], PROBS)}), "--columns p_"),
    "a level in each row": (text({"y": Y, "quantile": RISK, "value": MU}), "like q0.05 and q0.5"),
    "a tau in each row": (text({"y": Y, "tau": RISK, "pred": MU}), "like q0.05 and q0.5"),
    "a level in each row of a hub": (
        text({"target": ["1 wk ahead"] * N, "quantile": RISK, "value": MU, "truth": Y}),
        "like q0.05 and q0.5",
    ),
    "two models": (
        text({"y": Y, **named(["ARIMA-lo-80", "ARIMA-hi-80"], EIGHTY), **named(["ETS-lo-90", "ETS-hi-90"], NINETY)}),
        "--columns q0.1=ARIMA-lo-80,q0.9=ARIMA-hi-80",
    ),
    "bounds that are numbered": (text({"y": Y, **named(["lower_1", "upper_1"], NINETY)}), "--level 0.9"),
    "percent beside none": (text({"y": Y, "mean": [f"{x}%" for x in MU], "std": SIGMA}), "write both alike"),
    "percent as numbers": (text({"y": EVENT, "p": 100 * RISK}), "divide percentages by 100"),
    "outcomes nowhere": (
        text({"Species": ANIMALS, **named([".pred_cat", ".pred_dog", ".pred_owl"], PROBS)}),
        "--y NAME",
    ),
    "no level": (text({"y": Y, **named(["lower", "upper"], NINETY)}), "--level 0.9"),
    "names of nobody": (text({"y": Y, "b": MU, "c": SIGMA}), "--columns mean=NAME,std=NAME"),
    "nobody's outcome": (text({"a": Y, "mean": MU, "std": SIGMA}), "--y NAME"),
    "two outcomes": (text({"actual": Y, "target": Y, "mean": MU, "std": SIGMA}), "--columns y=actual"),
    "whose probability": (text({"y": np.where(EVENT, "a", "b"), "prob": RISK}), "--columns p_a=prob"),
    "percentiles or classes": (text({"y": LABEL, **named(["p10", "p20", "p30"], PROBS)}), "--kind classes"),
    "two kinds": (
        text({"y": Y, "mean": MU, "std": SIGMA, **numbered("s")}),
        "--kind normal",
    ),
    "two intervals": (
        text({"y": Y, **named(["a_lower", "a_upper", "b_lower", "b_upper"], BOTH)}),
        "--columns lower=a_low",
    ),
}


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["calibrl", *words])
        with pytest.raises(SystemExit) as end:
            main()
        shown = capsys.readouterr()
        return int(end.value.code or 0), shown.out, shown.err

    return run


def agrees(found: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        for name, value in expected.items():
            agrees(found[name], value)
    elif isinstance(expected, tuple):
        assert expected[0] < found < expected[1]
    else:
        assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_a_natural_file_is_checked_as_it_is(shell: Callable[..., Any], tmp_path: Path, name: str) -> None:
    case = CASES[name]
    if isinstance(case.content, bytes):
        (tmp_path / case.name).write_bytes(case.content)
    else:
        write_table(case.content, tmp_path / case.name)
    code, out, err = shell("check", case.name, *case.options.split(), "--json")
    assert (code, err) == (0, f"calibrl: a.csv: {case.warned}\n" if case.warned else "")
    found = json.loads(out)
    agrees(found["as_forecast"]["summary"], case.expected)
    assert case.said in found["understood"]


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_that_may_mean_two_things_gets_the_option_that_settles_it(
    shell: Callable[..., Any], tmp_path: Path, name: str
) -> None:
    content, option = REFUSED[name]
    (tmp_path / "a.csv").write_bytes(content)
    code, out, err = shell("check", "a.csv")
    assert (code, out) == (2, "")
    assert option in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("name", ["excel", "R, forecast", "named classes", "one probability"])
def test_a_map_is_fitted_and_applied_under_the_names_of_the_file(
    shell: Callable[..., Any], tmp_path: Path, name: str
) -> None:
    case = CASES[name]
    if isinstance(case.content, bytes):
        (tmp_path / case.name).write_bytes(case.content)
    else:
        write_table(case.content, tmp_path / case.name)
    assert shell("fit", case.name, "--out", "m.json")[0] == 0
    for out in ("b.xlsx", "b.csv.gz", "b.feather"):
        assert shell("apply", "m.json", case.name, "--out", out)[0] == 0
        code, words, _ = shell("check", out, "--json")
        assert code == 0
        assert json.loads(words)["as_forecast"]["summary"]["n"] == N


def test_there_are_many_of_them() -> None:
    assert len(CASES) >= 80


@pytest.mark.parametrize("name", ["R, tidymodels", "R, caret", "classes by number", "samples by any name", "orbit"])
def test_new_rows_without_outcomes_are_understood_as_those_of_the_map_were(
    shell: Callable[..., Any], tmp_path: Path, name: str
) -> None:
    case = CASES[name]
    (tmp_path / "a.csv").write_bytes(case.content)  # type: ignore[arg-type]
    assert shell("fit", "a.csv", *case.options.split(), "--out", "m.json")[0] == 0
    table = pl.read_csv(tmp_path / "a.csv")
    table.drop(table.columns[-1] if name == "R, tidymodels" else "obs" if "obs" in table.columns else "y").write_csv(
        "b.csv"
    )
    for file in ("a.csv", "b.csv"):
        code, _, problem = shell("apply", "m.json", file, "--out", f"of_{file}")
        assert (code, problem) == (0, "")
    bare = pl.read_csv("of_b.csv")
    assert pl.read_csv("of_a.csv").select(bare.columns).equals(bare)


def test_a_sheet_may_have_titles_above_its_header(shell: Callable[..., Any], tmp_path: Path) -> None:
    xlsxwriter = pytest.importorskip("xlsxwriter")
    rows = [
        ["Forecasts"],
        [],
        ["of 2024"],
        ["Actual", "Mean", "SD"],
        *zip(Y.tolist(), MU.tolist(), SIGMA.tolist(), strict=True),
    ]
    with xlsxwriter.Workbook(str(tmp_path / "a.xlsx")) as book:
        sheet = book.add_worksheet()
        for number, row in enumerate(rows):
            sheet.write_row(number, 0, row)
    code, out, _ = shell("check", "a.xlsx", "--json")
    assert code == 0
    agrees(json.loads(out)["as_forecast"]["summary"], gaussian())
