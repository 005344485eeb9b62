"""Errors that name the value, what was expected, and the cure."""

from __future__ import annotations

from collections.abc import Sequence


class CalibrlError(ValueError):
    """Bad input. The message is one line: the value, what was expected, what to do."""


class MissingExtra(ImportError):
    """A command needs a package that the base installation leaves out."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed; run: pip install 'calibrl[{extra}]'")


class ReusedRows(UserWarning):
    """A check used rows that the model or its map was fitted on: the result will look too good."""


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
