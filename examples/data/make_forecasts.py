"""How the forecast files beside this script were made: by scikit-learn and the csv module, without calibrl.

Every row is forecast by a model that was not trained on it; the rows are split into `past` and `new`.

    python examples/data/make_forecasts.py
"""

import csv
from pathlib import Path

import numpy as np
from sklearn.datasets import load_diabetes, load_digits
from sklearn.model_selection import KFold, train_test_split
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

HERE = Path(__file__).parent


def write(name: str, header: list[str], rows: list[list[object]]) -> None:
    with (HERE / name).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)


def diabetes() -> None:
    """Disease progression of 442 patients: mean and deviation over an ensemble of networks, each patient held out."""
    x, y = load_diabetes(return_X_y=True)
    raw = load_diabetes(scaled=False)
    sex = np.where(raw.data[:, raw.feature_names.index("sex")] == 1, "1", "2")
    members = np.empty((10, len(y)))
    for train, test in KFold(10, shuffle=True, random_state=0).split(x):
        for k in range(len(members)):
            network = MLPRegressor(hidden_layer_sizes=(32,), max_iter=400, tol=1e-3, alpha=1, random_state=k)
            centre, spread = y[train].mean(), y[train].std()
            fitted = make_pipeline(StandardScaler(), network).fit(x[train], (y[train] - centre) / spread)
            members[k, test] = centre + spread * fitted.predict(x[test])
    order = np.random.default_rng(0).permutation(len(y))
    header = ["patient", "sex", "mean", "std", "y"]
    mean, std = members.mean(0), members.std(0, ddof=1)
    for name, part in (("past", order[:221]), ("new", order[221:])):
        rows = [[f"{i:04d}", sex[i], f"{mean[i]:.2f}", f"{std[i]:.2f}", f"{y[i]:.0f}"] for i in sorted(part)]
        write(f"diabetes_{name}.csv", header, rows)


def digits() -> None:
    """Handwritten digits by naive Bayes, which counts every pixel as independent evidence and is far too sure."""
    x, y = load_digits(return_X_y=True)
    train_x, x, train_y, y = train_test_split(x, y, test_size=898, random_state=0)
    probs = GaussianNB(var_smoothing=1e-2).fit(train_x, train_y).predict_proba(x)
    header = ["y", *(f"p{k}" for k in range(10))]
    rows = [[label, *(f"{p:.5f}" for p in row)] for label, row in zip(y, probs, strict=True)]
    write("digits_past.csv", header, rows[:449])
    write("digits_new.csv", header, rows[449:])


if __name__ == "__main__":
    diabetes()
    digits()
