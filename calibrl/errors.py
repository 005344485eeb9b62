"""Errors that name the value, what was expected, and the cure."""

from __future__ import annotations


class CalibrlError(ValueError):
    """Bad input. The message is one line: the value, what was expected, what to do."""


class MissingExtra(ImportError):
    """A command needs a package that the base installation leaves out."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed; run: pip install 'calibrl[{extra}]'")


class ReusedRows(UserWarning):
    """A check used rows that the model or its map was fitted on: the result will look too good."""


def first_line(problem: BaseException) -> str:
    """What somebody else's error says, as part of a line of ours; its kind if it says nothing."""
    return (str(problem).strip() or type(problem).__name__).splitlines()[0].rstrip(".")
