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
from calibrl.tables.reader import NO, plain

FORECAST = r"(?:pred(?:ict(?:ed|ions?|ive|s)?)?|forecast(?:s|ed)?|fcst|yhat)"
FILLER = rf"(?:y|values?|point|posterior|{FORECAST})*"
ROLES = {
    "y": r"(?:y|ground)*(?:actuals?|true|truth|targets?|outcomes?|observ(?:ed|ations?)|obs|reali[sz]ed)"
    r"(?:y|values?|labels?)*|ytest|ist(?:werte?)?|tatsächlich|beobachtet|réel|observé|observado|osservat[oi]|real(?:e|es)?",
    "mean": rf"{FILLER}(?:mean|mu|loc|expected|expectation|estimate|fit|{FORECAST}){FILLER}"
    r"|mittelwert|erwartungswert|prognose|vorhersage|moyenne|prévision|m[eé]dia|pronóstico|previsione|previsto|previsão",
    "std": rf"{FILLER}(?:std(?:dev|ev)?|sd|sigma|scale|standarddeviation){FILLER}"
    r"|standardabweichung|écarttype|desviaciónestándar|deviazionestandard|desviopadrão",
    "variance": rf"{FILLER}(?:var(?:iance)?|sigma\^?2){FILLER}",
    "p": rf"{FILLER}(?:p|phat|prob|proba|probability){FILLER}1?|wahrscheinlichkeit|probabilité|probabilidad",
}
"""What our columns are called elsewhere, as patterns of names that `plain` has stripped."""

LOW = {"lower", "lo", "lwr", "lb", "low", "lowerbound", "lcl", "lcb", "lici", "untergrenze", "untere"}
LOW |= {"inférieure", "inferior", "inferiore"}
HIGH = {"upper", "hi", "upr", "ub", "high", "upperbound", "ucl", "ucb", "uici", "obergrenze", "obere"}
HIGH |= {"supérieure", "superior", "superiore"}
ENDS = LOW | HIGH | {"median", "med", "mid", "middle"}
LEAST_SHARE = 20
"""No interval is stated that holds fewer percent: lower_1 and upper_1 are the first of several."""

NUMBER = r"(?P<number>\d*\.?\d+(?:e-?\d+)?)"
QUANTILES = (
    # A point before a number with one of its own separates; any other is a decimal point.
    r"(?P<prefix>|.*?[\s_.\-])(?:ql?|quantile|quant|pct|percentile|perc|pctl|tau)(?:[\s_\-:=(\[]|\.(?=\d+\.\d))*"
    rf"{NUMBER}\s*(?P<percent>%?)[)\]]?",
    r"(?P<prefix>)(?:(?:y_)?pred|prediction|predicted|forecast|y_?hat)?[\s_]?(?P<number>\d*\.\d+)(?P<percent>)",
    # The ends of a highest-density interval are no quantiles.
    rf"(?P<prefix>|(?!hdi).*?[\s_])(?<![\d.]){NUMBER}\s*(?P<percent>%)",
    rf"(?P<prefix>|.*?[\s_.\-]){NUMBER}(?P<percent>st|nd|rd|th)[\s_]*(?:percentile|perc|pctl?)",
    r"(?P<prefix>)x(?P<number>0?\.\d+)(?P<percent>)",  # R writes X before a number, and a point for %
    r"(?P<prefix>)x(?P<number>\d+(?:\.\d+)?)(?P<percent>\.)",
)
SAMPLES = r"(?:|.*[\s_.\-])(?:s|samples?|draws?|mem|members?|ens|ensemble|paths?|sim|simulation|trajectory|rep|boot|"
SAMPLES += r"scenario)[\s_.\-\[]*(?P<number>\d+)\]?"
CLASS_WORDS = r"(?:p|pr|prob|proba|probs|probability|probabilities)"
CLASSES = (
    rf"(?:(?:y|{FORECAST})[_.\s]+)*{CLASS_WORDS}[_.\s]+(?P<name>.+)",
    rf"{CLASS_WORDS}\((?:y *=+ *)?(?P<name>.+)\)",
    rf"(?P<name>.+?)[_.\s]{CLASS_WORDS}",
)
PERCENTILE = rf"(?:(?:y|{FORECAST})[_.\s]+)*p_?(?P<number>\d+)"
"""A column p10, of a percentile or a class."""


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
    ends : bool
        Whether quantiles are but the ends of intervals.
    """

    kind: str
    columns: tuple[str, ...]
    levels: tuple[float, ...] = ()
    classes: tuple[str, ...] = ()
    squared: bool = False
    single: bool = False
    ends: bool = False

    @property
    def signature(self) -> tuple[str, ...]:
        """The columns under the names we would give them: q10 is q0.1, mu is mean."""
        if self.kind == "quantiles":
            return tuple(map(quantile_column, self.levels))
        if self.kind == "classes":
            return tuple(f"p{name}" if name.isdecimal() else f"p_{name}" for name in self.classes)
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

    def role(self, name: str, among: Sequence[str] | None = None, pattern: str | None = None) -> str | None:
        """The column, of all or those `among` which to look, that is our column `name`, by that name or another."""
        names = list(self.theirs) if among is None else among
        own = [each for each in names if plain(each) == name]
        fits = own or [each for each in names if re.fullmatch(pattern or ROLES[name], plain(each))]
        if len(fits) > 1:
            theirs = [self.theirs[each] for each in fits]
            raise CalibrlError(
                f"{self.source}: {some(theirs)} may each be the column {name}; keep one, or say which with "
                f"--columns {name}={cut(theirs[0])}"
            )
        return fits[0] if fits else None

    def outcome(self) -> str | None:
        """The column of outcomes."""
        # Where there is another, a label or class may be a feature, and a response what was forecast.
        return self.role("y") or self.role("y", pattern="label|class|response")

    def rest(self) -> list[str]:
        """All columns but that of outcomes."""
        y = self.outcome()
        return [name for name in self.theirs if name != y]

    def kinds(self, *, level: float | None, forced: str | None) -> dict[str, Spelling]:
        """Every kind of forecast that the names spell, p10 and its like aside (`numbered`).

        level: the probability of an interval, if said; forced: the kind that the user wants.
        """
        names = self.rest()
        tried = (self._normal(names), self._quantiles(names, level), self._samples(names), self._classes(names))
        found = {spelling.kind: spelling for spelling in tried if spelling is not None}
        family = {} if forced in (None, "normal", *found) else self.family()
        if forced == "quantiles" and family:
            found[forced] = self._in_order(self._as_levels({name: (at, False) for name, at in family.items()}))
        elif forced is not None and family:
            numbers = () if forced == "samples" else tuple(f"{at:g}" for at in family.values())
            found[forced] = Spelling(forced, tuple(family), classes=numbers)
        return found

    def family(self) -> dict[str, float]:
        """Columns that differ in nothing but a number, in its order: of several such sets none."""
        sets: dict[str, dict[str, float]] = {}
        for name in self.rest():
            if match := re.fullmatch(r"(\D*)(\d*\.?\d+)(\D*)", name):
                sets.setdefault(f"{match[1]} {match[3]}", {})[self.theirs[name]] = float(match[2])
        several = [found for found in sets.values() if len(found) > 1]
        return dict(sorted(several[0].items(), key=lambda pair: pair[1])) if len(several) == 1 else {}

    def numbered(self) -> dict[int, str]:
        """Columns p0, p1, p10 …: classes, or percentiles."""
        pairs = ((re.fullmatch(PERCENTILE, name, re.IGNORECASE), self.theirs[name]) for name in self.rest())
        return dict(sorted((int(found["number"]), theirs) for found, theirs in pairs if found))

    def around(self, labels: Sequence[str]) -> list[Spelling]:
        """Every set of columns, one for each of the `labels`, that differ in nothing but the label: cat, .pred_cat.

        Sets with columns for more classes, which nobody may have seen, come after those without.
        """
        called = {name.lower(): name for name in self.rest()}
        few, more, other = [], [], r"\d+" if labels[0].isdecimal() else ".+"
        for name in called:
            for at in re.finditer(re.escape(labels[0].lower()), name):
                before, after = name[: at.start()], name[at.end() :]
                columns = {label: called.get(f"{before}{label.lower()}{after}", "") for label in labels}
                if all(columns.values()):
                    few.append(columns)
                    form = f"{re.escape(before)}({other}){re.escape(after)}"
                    others = {match[1]: called[each] for each in called if (match := re.fullmatch(form, each))}
                    known = {label.lower() for label in labels}
                    more.append(columns | {label: each for label, each in others.items() if label not in known})
        return [
            Spelling("classes", tuple(self.theirs[each] for each in columns.values()), classes=tuple(columns))
            for columns in few + [each for each in more if each not in few]
        ]

    def single(self, labels: Sequence[str], *, yes_or_no: bool) -> Spelling | None:
        """One probability: of yes, of 1, or of the label in its name, which is yes where outcomes are yes or no."""
        column, classes = self.role("p", self.rest()), ("0", "1")
        named = _class_names(self.rest())
        if column is None and len(named) == 1 and len(labels) <= 2:
            ((column, name),) = named.items()
            others = [label for label in labels if label != name]
            if name in labels and len(others) == 1:
                classes = others[0], name
            elif not yes_or_no or plain(name) in NO or re.fullmatch(rf"{FILLER}(?:label|class)", plain(name)):
                return None
        return None if column is None else Spelling("classes", (self.theirs[column],), classes=classes, single=True)

    def interval(self) -> tuple[str, str] | None:
        """The columns of a central interval whose names do not say its probability; None if there are none, or two."""
        own = [self.theirs[end] for end in ("lower", "upper") if end in self.theirs]
        pairs = [(own[0], own[1])] if len(own) == 2 else self.intervals()
        return pairs[0] if len(pairs) == 1 else None

    def intervals(self) -> list[tuple[str, str]]:
        """All such pairs; only that of the forecast (yhat_lower) where others are of its parts (trend_lower)."""
        found = {rest: pair for (rest, share), pair in self._ends(list(self.theirs)).items() if share is None}
        if ("obs", "ci") in found:
            found.pop(("mean", "ci"), None)  # statsmodels has both: of outcomes, and of the mean alone
        whole = [pair for rest, pair in found.items() if re.fullmatch(FILLER, "".join(rest))]
        return whole if len(whole) == 1 else list(found.values())

    def _ends(self, names: list[str]) -> dict[tuple[tuple[str, ...], float | None], tuple[str, str]]:
        """The two ends of intervals, by what else their names say: words, and a probability (lo-90, hi-90) or none.

        Not of highest-density intervals, whose ends are no quantiles.
        """
        found: dict[tuple[tuple[str, ...], float | None], dict[bool, str]] = {}
        for name in names:
            words, numbers = re.findall(r"[^\W\d_]+", name.lower()), re.findall(r"\d+(?:\.\d+)?", name)
            number = float(numbers[-1]) if numbers else 1.0
            share = number if number < 1 else number / 100 if number >= LEAST_SHARE else None
            for ends, high in ((LOW, False), (HIGH, True)):
                known = ends | {"u" if high else "l"} if share else ends
                if known & set(words) and "hdi" not in words and 0 < number < 100:
                    rest = tuple(word for word in words if word not in known)
                    rest += tuple(numbers) if share is None else ()
                    found.setdefault((rest, share), {})[high] = self.theirs[name]
        return {key: (pair[False], pair[True]) for key, pair in found.items() if len(pair) == 2}

    def _normal(self, names: list[str]) -> Spelling | None:
        std = self.role("std", names)
        spread = std or self.role("variance", names)
        mean = self.role("mean", [name for name in names if name != spread]) if spread else None
        if spread is None or mean is None:
            return None
        return Spelling("normal", (self.theirs[mean], self.theirs[spread]), squared=std is None)

    def _quantiles(self, names: list[str], level: float | None) -> Spelling | None:
        groups: dict[str, dict[str, tuple[float, bool]]] = {}
        pairs = {key: pair for key, pair in self._ends(names).items() if key[1] is not None}
        paired = {end for pair in pairs.values() for end in pair}
        for name in names:
            match = next(filter(None, (re.fullmatch(form, name, re.IGNORECASE) for form in QUANTILES)), None)
            if match and self.theirs[name] not in paired:  # "lower 90 %" is no quantile of 0.9
                number = float(match["number"]), bool(match["percent"])
                words = [word for word in re.split(r"[\s_.\-]+", match["prefix"].lower()) if word not in ENDS]
                groups.setdefault("_".join(words), {})[name] = number
        if len(groups) > 1 and "" not in groups:
            firsts = [next(iter(group)) for group in groups.values()]
            raise CalibrlError(
                f"{self.source}: {some(firsts)} begin {len(groups)} sets of quantiles; keep one, or say which with "
                f"--columns q0.5={cut(firsts[0])},…"
            )
        prefix = "" if "" in groups else next(iter(groups), "")
        levels = {self.theirs[name]: value for name, value in self._as_levels(groups.get(prefix, {})).items()}
        models = {rest: (share or 0.0, pair) for (rest, share), pair in pairs.items()}
        if len(models) > 1 and "" not in groups:
            first, ends = next(iter(models.values()))
            cure = ",".join(f"{quantile_column(at)}={cut(end)}" for at, end in zip(_central(first), ends, strict=True))
            raise CalibrlError(
                f"{self.source}: {some([pair[0] for _, pair in models.values()])} begin {len(models)} sets of "
                f"intervals; keep one, or say which with --columns {cure}"
            )
        pairs = pairs if len(models) == 1 else {}
        model = "".join(next(iter(models), ()))
        for (_, share), pair in pairs.items():
            both = dict(zip(pair, _central(share or 0.0), strict=True))
            levels |= {theirs: value for theirs, value in both.items() if value not in levels.values()}
        if level is not None and (said := self.interval()):
            levels |= dict(zip(said, _central(level), strict=True))
        if levels and 0.5 not in levels.values():
            middle = self.role("median", names, rf"(?:{re.escape(plain(prefix))}|{model}|{FILLER})med(?:ian)?{FILLER}")
            levels |= {self.theirs[middle]: 0.5} if middle else {}
        return self._in_order(levels, ends=not groups and level is None) if levels else None

    @staticmethod
    def _in_order(levels: Mapping[str, float], *, ends: bool = False) -> Spelling:
        columns = sorted(levels, key=levels.__getitem__)
        return Spelling("quantiles", tuple(columns), levels=tuple(levels[name] for name in columns), ends=ends)

    def _as_levels(self, numbers: Mapping[str, tuple[float, bool]]) -> dict[str, float]:
        """Numbers in names as levels: fractions, or all of them percent."""
        bare = sorted(number for number, percent in numbers.values() if not percent)
        mixed = any(0 < number < 1 for number in bare) and any(number > 1 for number in bare)
        # Q1 and Q3 are quartiles, and 1, 2, 3 … 19 a mere count.
        if mixed or (bare and 1 < bare[-1] < 99 and (bare[-1] < 10 or bare == list(range(1, len(bare) + 1)))):
            among = sorted(numbers, key=lambda name: numbers[name][0])
            what, cure = (
                ("fractions", f"q0.5={cut(among[-1])}") if mixed else ("numbered, quartiles", f"q0.25={cut(among[0])}")
            )
            raise CalibrlError(
                f"{self.source}: quantile columns {some(list(numbers))} may be {what} or percent; say which with "
                f"--columns {cure},…"
            )
        whole = bool(bare) and bare[0] >= 1
        return {name: round(at / 100, 12) if percent or whole else at for name, (at, percent) in numbers.items()}

    def _samples(self, names: list[str]) -> Spelling | None:
        matches = {self.theirs[name]: re.fullmatch(SAMPLES, name, re.IGNORECASE) for name in names}
        numbers = {theirs: int(match["number"]) for theirs, match in matches.items() if match}
        return Spelling("samples", tuple(sorted(numbers, key=numbers.__getitem__))) if numbers else None

    def _classes(self, names: list[str]) -> Spelling | None:
        named = [pair for pair in _class_names(names).items() if not re.fullmatch(PERCENTILE, pair[0], re.IGNORECASE)]
        if len(named) < 2:
            return None
        if all(label.isdecimal() for _, label in named):
            named.sort(key=lambda pair: int(pair[1]))
        return Spelling("classes", tuple(self.theirs[name] for name, _ in named), classes=tuple(k for _, k in named))


def _class_names(names: Sequence[str]) -> dict[str, str]:
    """From columns like p_cat to the classes they name; of several ways to say so, the one that most columns use."""
    tried = ({name: re.fullmatch(form, name, re.IGNORECASE) for name in names} for form in CLASSES)
    return max(({name: match["name"] for name, match in found.items() if match} for found in tried), key=len)


def _central(level: float) -> tuple[float, float]:
    """The levels of the ends of a central interval."""
    if not 0 < level < 1:
        raise CalibrlError(f"--level {level:g} is not between 0 and 1; a 90 % interval has --level 0.9")
    return round((1 - level) / 2, 12), round((1 + level) / 2, 12)
