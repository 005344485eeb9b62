"""What columns of forecasts are called, here and elsewhere: from the names of a table to the kinds of forecast in it.

    mean, std                         a Gaussian; also mu, sigma; y_pred, y_std; a variance
    q0.05 q0.5 …                      quantiles; also 0.05, 5%, q5, p5, quantile_0.05; lo-90, hi-90
    lower, upper                      a central interval, whose probability `level` says
    s0 s1 …                           samples; also sample_0, draw_1, member_2
    p0 p1 …, p_cat p_dog …            probabilities of classes; also prob_cat, cat; p alone, of yes

Names alone settle nothing that could be two things: who reads a table is asked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from calibrl.errors import CalibrlError, cut, some
from calibrl.tables.reader import NO, find_columns, plain

ALIASES = {
    "y": (
        *("actual", "actuals", "y_true", "y_test", "y_actual", "target", "outcome", "observed", "observation", "obs"),
        *("truth", "ground_truth", "true", "true_value", "true_label", "response", "realized", "y_obs"),
        *("actual_value", "observed_value", "target_value"),
    ),
    "mean": (
        *("mu", "loc", "y_pred", "pred", "prediction", "predicted", "predicted_mean", "mean_prediction", "pred_mean"),
        *("forecast", "forecast_mean", "yhat", "y_hat", "y_mean", "fit", "point_forecast", "expected"),
        *("predictions", "predicted_value", "forecast_value"),
    ),
    "std": (
        *("sigma", "sd", "scale", "stddev", "std_dev", "stdev", "standard_deviation", "y_std", "y_sd", "y_pred_std"),
        *("pred_std", "std_pred", "std_prediction", "predicted_std", "forecast_std", "forecast_sd", "yhat_std"),
    ),
    "variance": ("var", "sigma2", "sigma_2", "sigma^2", "y_var", "pred_var", "predicted_variance", "forecast_var"),
    "median": ("med",),
    "p": (
        *("prob", "proba", "probability", "p_hat", "y_prob", "y_proba", "pred_prob", "pred_proba", "predicted_prob"),
        *("predicted_probability", "prob_1", "proba_1", "p1", "p_1", "prob1", "proba1"),
    ),
}
"""Other names of our columns."""

LOW, HIGH = {"lower", "lo", "lwr", "lb", "low", "lowerbound"}, {"upper", "hi", "upr", "ub", "high", "upperbound"}
NUMBER = r"(?P<number>\d*\.?\d+(?:e-?\d+)?)"
QUANTILES = (
    # A point before a number with one of its own separates; any other is a decimal point.
    r"(?P<prefix>|.*?[\s_.\-])(?:q|quantile|quant|pct|percentile|perc|pctl)(?:[\s_\-:=(\[]|\.(?=\d+\.\d))*"
    rf"{NUMBER}\s*(?P<percent>%?)[)\]]?",
    r"(?P<prefix>)(?:(?:y_)?pred|prediction|predicted|forecast|y_?hat)?[\s_]?(?P<number>\d*\.\d+)(?P<percent>)",
    rf"(?P<prefix>|.*?[\s_])(?<![\d.]){NUMBER}\s*(?P<percent>%)",
    r"(?P<prefix>)x(?P<number>0?\.\d+)(?P<percent>)",  # R writes X before a number, and a point for %
    r"(?P<prefix>)x(?P<number>\d+(?:\.\d+)?)(?P<percent>\.)",
)
SAMPLES = r"(?P<prefix>|.*?[\s_.\-])(?:s|samples?|draws?|members?|ens|ensemble|paths?|sim|simulation|trajectory|rep)"
SAMPLES += r"[\s_.\-\[]*(?P<number>\d+)\]?"
CLASS_WORDS = r"(?:p|pr|prob|proba|probs|probability|probabilities)"
CLASSES = (
    rf"{CLASS_WORDS}[_.\s]+(?P<name>.+)",
    rf"{CLASS_WORDS}\((?P<name>.+)\)",
    rf"(?P<name>.+?)[_.\s]{CLASS_WORDS}",
)


@dataclass(frozen=True)
class Spelling:
    """The columns that spell a forecast.

    Parameters
    ----------
    kind : str
        normal, quantiles, samples or classes.
    columns : tuple of str
        What the file calls them, in order.
    levels : tuple of float
        Of quantiles.
    classes : tuple of str
        Names of the classes.
    squared : bool
        Whether a Gaussian's second column is a variance.
    single : bool
        Whether there is one probability, of the last of two classes.
    """

    kind: str
    columns: tuple[str, ...]
    levels: tuple[float, ...] = ()
    classes: tuple[str, ...] = ()
    squared: bool = False
    single: bool = False

    @property
    def signature(self) -> tuple[str, ...]:
        """The columns under the names we would give them: q10 is q0.1, mu is mean."""
        if self.kind == "quantiles":
            return tuple(map(quantile_column, self.levels))
        if self.kind == "classes":
            return tuple(f"p{name}" if name.isdigit() else f"p_{name}" for name in self.classes)
        return ("mean", "std") if self.kind == "normal" else tuple(f"s{k}" for k in range(len(self.columns)))


def quantile_column(level: float) -> str:
    """The name of the column of a quantile, with all digits: different levels never share one.

    Parameters
    ----------
    level : float
        In (0, 1).

    Returns
    -------
    str
        Such as q0.05.
    """
    return f"q{float(level)!r}"


@dataclass(frozen=True)
class Names:
    """The names of a table's columns, ours where the user says which they are.

    Parameters
    ----------
    source : str
        The file, as errors call it.
    theirs : dict of str to str
        From the name by which a column is understood to what the file calls it.
    """

    source: str
    theirs: Mapping[str, str]

    @classmethod
    def of(cls, found: Sequence[str], said: Mapping[str, str], source: str) -> Names:
        """The names `found` in a file, of which the user has `said` some."""
        for ours, theirs in said.items():
            if theirs not in found:
                raise CalibrlError(f"{source}: --columns {cut(ours)}={cut(theirs)}: no such column among {some(found)}")
        meant = {theirs: ours for ours, theirs in said.items()}
        # A column that bears the name another was given is not that one.
        return cls(source, {meant.get(name, name): name for name in found if name in meant or name not in said})

    def outcome(self) -> str | None:
        """The column of outcomes."""
        for aliases in (ALIASES, {"y": ("label", "class")}):  # the latter may be a feature where there is another
            found = find_columns(list(self.theirs), ["y"], aliases, {}, self.source)
            if found:
                return found["y"]
        return None

    def kinds(self, *, level: float | None, labels: Sequence[str], forced: str | None) -> dict[str, Spelling]:
        """Every kind of forecast that the names spell, p10 and its like aside (`numbered`).

        level: the probability of an interval, if said; labels: what outcomes are called, where they are no numbers;
        forced: the kind that the user wants.
        """
        y = self.outcome()
        names = [name for name in self.theirs if name != y]
        tried = (
            self._normal(names),
            self._quantiles(names, level, bare=forced == "quantiles"),
            self._samples(names, bare=forced == "samples"),
            self._classes(names, labels),
        )
        return {spelling.kind: spelling for spelling in tried if spelling is not None}

    def numbered(self, *, bare: bool = False) -> dict[int, str]:
        """Columns p0, p1, p10 …: classes, or percentiles; `bare`: columns 0, 1, 2 …"""
        form = r"(\d+)" if bare else r"[pP]_?(\d+)"
        pairs = ((re.fullmatch(form, name), theirs) for name, theirs in self.theirs.items())
        return dict(sorted((int(found[1]), theirs) for found, theirs in pairs if found))

    def single(self, labels: Sequence[str], *, yes_or_no: bool) -> Spelling | None:
        """One probability: of yes, of 1, or of the label in its name, which is yes where outcomes are yes or no."""
        y = self.outcome()
        names = [name for name in self.theirs if name != y]
        column = find_columns(names, ["p"], ALIASES, {}, self.source).get("p")
        if column is not None:
            return Spelling("classes", (self.theirs[column],), classes=("0", "1"), single=True)
        named = _class_names(names)
        if len(named) == 1 and len(labels) <= 2:
            (column, name), *_ = named.items()
            others = [label for label in labels if label != name]
            if name in labels and len(others) == 1:
                return Spelling("classes", (self.theirs[column],), classes=(others[0], name), single=True)
            if yes_or_no and plain(name) not in NO:
                return Spelling("classes", (self.theirs[column],), classes=("0", "1"), single=True)
        return None

    def interval(self) -> tuple[str, str] | None:
        """The columns of a central interval whose names do not say its probability; None if there are none, or two."""
        if {"lower", "upper"} <= self.theirs.keys():
            return self.theirs["lower"], self.theirs["upper"]
        pairs = self.intervals()
        return pairs[0] if len(pairs) == 1 else None

    def intervals(self) -> list[tuple[str, str]]:
        """All such pairs."""
        found: dict[tuple[str, ...], dict[bool, str]] = {}
        for name, theirs in self.theirs.items():
            words = re.findall(r"[a-z]+", name.lower())
            for ends, high in ((LOW, False), (HIGH, True)):
                if ends & set(words) and not re.search(r"\d", name):
                    rest = tuple(word for word in words if word not in ends)
                    found.setdefault(rest, {})[high] = theirs
        if ("obs", "ci") in found:
            found.pop(("mean", "ci"), None)  # statsmodels has both: of outcomes, and of the mean alone
        return [(pair[False], pair[True]) for pair in found.values() if len(pair) == 2]

    def _normal(self, names: list[str]) -> Spelling | None:
        found = find_columns(names, ["std", "variance"], ALIASES, {}, self.source)
        if not found:
            return None
        spread = found.get("std") or found["variance"]
        rest = [name for name in names if name != spread]
        mean = find_columns(rest, ["mean"], ALIASES, {}, self.source).get("mean")
        if mean is None:
            return None
        return Spelling("normal", (self.theirs[mean], self.theirs[spread]), squared="std" not in found)

    def _quantiles(self, names: list[str], level: float | None, *, bare: bool) -> Spelling | None:
        groups: dict[str, dict[str, tuple[float, bool]]] = {}
        patterns = (*QUANTILES, rf"(?P<prefix>)p?{NUMBER}(?P<percent>)") if bare else QUANTILES
        for name in names:
            match = next(filter(None, (re.fullmatch(form, name, re.IGNORECASE) for form in patterns)), None)
            if match:
                number = float(match["number"]), bool(match["percent"])
                groups.setdefault(match["prefix"].lower(), {})[name] = number
        if len(groups) > 1 and "" not in groups:
            firsts = [next(iter(group)) for group in groups.values()]
            raise CalibrlError(
                f"{self.source}: {some(firsts)} begin {len(groups)} sets of quantiles; keep one, or say which with "
                f"--columns q0.5={cut(firsts[0])},…"
            )
        group = groups.get("", next(iter(groups.values()), {}))
        levels = {self.theirs[name]: value for name, value in self._as_levels(group).items()}
        levels |= {theirs: value for theirs, value in self._ends(names).items() if value not in levels.values()}
        if level is not None and (pair := self.interval()):
            levels |= dict(zip(pair, _central(level), strict=True))
        if not levels:
            return None
        middle = find_columns(names, ["median"], ALIASES, {}, self.source).get("median")
        if middle is not None and 0.5 not in levels.values():
            levels[self.theirs[middle]] = 0.5
        columns = sorted(levels, key=levels.__getitem__)
        return Spelling("quantiles", tuple(columns), levels=tuple(levels[name] for name in columns))

    def _as_levels(self, numbers: Mapping[str, tuple[float, bool]]) -> dict[str, float]:
        """Numbers in names as levels: fractions, or all of them percent."""
        bare = [number for number, percent in numbers.values() if not percent]
        if any(0 < number < 1 for number in bare) and any(number > 1 for number in bare):
            odd = next(name for name, (number, _) in numbers.items() if number > 1)
            raise CalibrlError(
                f"{self.source}: quantile columns {some(list(numbers))} may be fractions or percent; say which with "
                f"--columns q0.5={cut(odd)},…"
            )
        by = 100 if bare and min(bare) >= 1 else 1
        return {
            name: round(number / 100, 12) if percent else round(number / by, 12) if by > 1 else number
            for name, (number, percent) in numbers.items()
        }

    def _ends(self, names: list[str]) -> dict[str, float]:
        """The levels of the ends of intervals whose names say their probability: lo-90, hi-90."""
        found: dict[tuple[tuple[str, ...], float], dict[bool, str]] = {}
        for name in names:
            words, numbers = re.findall(r"[a-z]+", name.lower()), re.findall(r"\d+(?:\.\d+)?", name)
            for ends, high in ((LOW, False), (HIGH, True)):
                if ends & set(words) and numbers and 0 < float(numbers[-1]) < 100:
                    share = float(numbers[-1]) / (1 if float(numbers[-1]) < 1 else 100)
                    rest = tuple(word for word in words if word not in ends)
                    found.setdefault((rest, share), {})[high] = name
        pairs = {share: pair for (_, share), pair in found.items() if len(pair) == 2}
        return {
            self.theirs[pair[high]]: _central(share)[high] for share, pair in pairs.items() for high in (False, True)
        }

    def _samples(self, names: list[str], *, bare: bool) -> Spelling | None:
        pattern = rf"(?:{SAMPLES})|(?P<bare>\d+)" if bare else SAMPLES
        numbers = {}
        for name in names:
            match = re.fullmatch(pattern, name, re.IGNORECASE)
            if match:
                numbers[self.theirs[name]] = int(match["number"] or match["bare"] if bare else match["number"])
        return Spelling("samples", tuple(sorted(numbers, key=numbers.__getitem__))) if numbers else None

    def _classes(self, names: list[str], labels: Sequence[str]) -> Spelling | None:
        named = {name: label for name, label in _class_names(names).items() if not re.fullmatch(r"[pP]_?\d+", name)}
        if len(named) < 2 and len(labels) > 1:
            # Some programs call a column by its class alone.
            named = {name: name for name in names if name in labels} if set(labels) <= set(names) else {}
        if len(named) < 2:
            return None
        order = list(named)
        if all(label.isdigit() for label in named.values()):
            order.sort(key=lambda name: int(named[name]))
        return Spelling(
            "classes", tuple(self.theirs[name] for name in order), classes=tuple(named[name] for name in order)
        )


def _class_names(names: Sequence[str]) -> dict[str, str]:
    """From columns like p_cat to the classes they name; of several ways to say so, the one that most columns use."""
    tried = [
        {name: match["name"] for name in names if (match := re.fullmatch(form, name, re.IGNORECASE))}
        for form in CLASSES
    ]
    return max(tried, key=len)


def _central(level: float) -> tuple[float, float]:
    """The levels of the ends of a central interval."""
    if not 0 < level < 1:
        raise CalibrlError(f"--level {level:g} is not between 0 and 1; a 90 % interval has --level 0.9")
    return round((1 - level) / 2, 12), round((1 + level) / 2, 12)


def spread_lists(said: Sequence[str] | str | None) -> list[str]:
    """Lists of samples and classes in what the user says, as single columns: samples=a,b is s0=a,s1=b."""
    parts: list[str] = []
    for text in [said] if isinstance(said, str) else said or ():
        kind = ""
        for part in text.split(","):
            key, mark, value = (word.strip() for word in part.partition("="))
            if mark:
                kind, name = (key, value) if key in ("samples", "classes") else ("", "")
            else:
                name = key
            if not kind:
                parts.append(part)
            else:
                count = sum(each.startswith("s") and plain(each.partition("=")[0])[1:].isdigit() for each in parts)
                parts.append(f"s{count}={name}" if kind == "samples" else f"p_{name}={name}")
    return parts
