"""Errors that name the value, what was expected, and the cure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class CalibrlError(ValueError):
    """Bad input. The message is one line: the value, what was expected, what to do."""


class MissingExtra(ImportError):
    """A command needs a package that the base installation leaves out."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed; run: pip install 'calibrl[{extra}]'")


class ReusedRows(UserWarning):
    """A check used rows that the model or its map was fitted on: the result will look too good."""


# Checks of arguments. Each returns the value, so that it can stand where the value is used.


def check_count(name: str, value: int, why: str = "is too few", *, least: int = 1) -> int:
    """A whole number that is large enough, or an error.

    Parameters
    ----------
    name : str
        What the caller calls it.
    value : int
        What was given.
    why : str
        What is wrong with a smaller one.
    least : int
        The smallest that will do.

    Returns
    -------
    int
        `value`.

    Examples
    --------
    >>> check_count("folds", 1, "cannot hold anything out", least=2)
    Traceback (most recent call last):
    calibrl.errors.CalibrlError: folds 1 cannot hold anything out; use 2 or more
    """
    if isinstance(value, str) or not value >= least or value % 1:
        raise CalibrlError(f"{name} {value} {why}; use {least} or more")
    return value


INTERVALS = {
    "(0, 1)": "between 0 and 1",
    "[0, 1]": "from 0 to 1",
    "(0, inf)": "above 0 and finite",
    "[0, inf)": "0 or more and finite",
}
"""Words for some of the intervals of `check_within`."""


def check_within(name: str, value: float, interval: str, cure: str) -> float:
    """A number inside an interval, or an error.

    Parameters
    ----------
    name : str
        What the caller calls it.
    value : float
        What was given; NaN lies in no interval.
    interval : str
        As in mathematics: a round bracket leaves its end out, such as in "[0, 1)"; "inf" is no end.
    cure : str
        What to do instead.

    Returns
    -------
    float
        `value`.

    Examples
    --------
    >>> check_within("level", 90, "(0, 1)", "0.9 is the default")
    Traceback (most recent call last):
    calibrl.errors.CalibrlError: level 90 is not between 0 and 1; 0.9 is the default
    """
    low, high = map(float, interval[1:-1].split(","))
    ends = [end for end, bracket in ((low, interval[0]), (high, interval[-1])) if bracket in "[]"]
    if isinstance(value, str) or not (low < value < high or value in ends):
        raise CalibrlError(f"{name} {value} is not {INTERVALS.get(interval, f'in {interval}')}; {cure}")
    return value


def check_known(what: str, name: str, known: Iterable[str]) -> str:
    """A name that is one of those there are, or an error that lists them.

    Parameters
    ----------
    what : str
        What is named so.
    name : str
        What was given.
    known : iterable of str
        All names, such as a registry.

    Returns
    -------
    str
        `name`.

    Examples
    --------
    >>> check_known("map", "afine", ["affine", "platt"])
    Traceback (most recent call last):
    calibrl.errors.CalibrlError: map 'afine' is unknown; known: affine, platt
    """
    names = list(known)
    if name not in names:
        raise CalibrlError(f"{what} {name!r} is unknown; known: {', '.join(names)}")
    return name


# Parts of a line.


def first_line(problem: BaseException) -> str:
    """What somebody else's error says; its kind if it says nothing."""
    return (str(problem).strip() or type(problem).__name__).splitlines()[0].rstrip(".")


def some(names: Sequence[str]) -> str:
    """The first few names, and how many there are if there are more."""
    return ", ".join(map(cut, names[:8])) + (f", … ({len(names)} in all)" if len(names) > 8 else "")


def cut(text: str, most: int = 40) -> str:
    """The beginning of a text that may be long or break lines."""
    plain = "".join(letter if letter.isprintable() else " " for letter in text[: most + 1])
    return plain if len(plain) <= most else plain[:most] + "…"
