"""Public holidays of a country, by name: which days they are, and when the same one was a year before.

The dates come from the package `holidays` (the extra `shop`).
"""

from __future__ import annotations

from datetime import date
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from calibrl.errors import CalibrlError, MissingExtra
from calibrl.inventory.problems import Days, Flags

YEAR = 364
"""A year of whole weeks."""

BEFORE, AFTER = 3, 1
"""Days around a holiday on which people shop as they do around it, not as on other days of the season."""


def check_country(country: str) -> str:
    """The country, checked: a code such as DE, or with a part of the country DE-BW.

    Parameters
    ----------
    country : str
        ISO 3166 code of a country, or of a part of it; empty for none.

    Returns
    -------
    str
        The same in capitals.
    """
    if country:
        _names(country.upper(), 2024)
    return country.upper()


def holidays_on(country: str, dates: Days) -> Flags:
    """Whether each day is a public holiday: (t,)."""
    known = _by_day(country, dates)
    return np.array([day in known for day in dates.tolist()], dtype=bool)


def year_before(country: str, dates: Days) -> NDArray[np.int64]:
    """(t,): how many days before each day its like of the last year was.

    That is 52 weeks, except around a public holiday: there it is the same day before or after the holiday of that name.
    """
    back = np.full(len(dates), YEAR)
    if not country:
        return back
    whole = np.arange(dates[0] - 2 * YEAR, dates[-1] + YEAR)
    by_name: dict[str, list[np.datetime64]] = {}
    for day, name in sorted(_by_day(country, whole).items()):
        by_name.setdefault(name, []).append(np.datetime64(day, "D"))
    # The holiday itself decides, then the days just before one, then those after it.
    for offset in [AFTER - k for k in range(AFTER)] + [-k for k in range(BEFORE, -1, -1)]:
        for days in by_name.values():
            for now in days:
                at = int((now + offset - dates[0]).astype(np.int64))
                apart = [int((now - then).astype(np.int64)) for then in days]
                likely = [gap for gap in apart if 330 <= gap <= 400]
                if 0 <= at < len(back) and likely:
                    back[at] = min(likely, key=lambda gap: abs(gap - 365))
    return back


def _by_day(country: str, dates: Days) -> dict[date, str]:
    years = {int(str(day)[:4]) for day in (dates[0], dates[-1])}
    found: dict[date, str] = {}
    for year in range(min(years), max(years) + 1) if country else ():
        found |= _names(country, year)
    return found


@lru_cache(maxsize=256)
def _names(country: str, year: int) -> dict[date, str]:
    """The holidays of a year."""
    try:
        import holidays
    except ImportError:
        raise MissingExtra("holidays", "shop") from None
    code, _, part = country.partition("-")
    try:
        return dict(holidays.country_holidays(code, subdiv=part or None, years=year).items())
    except NotImplementedError:
        known = holidays.list_supported_countries()
        where = (
            f"{part!r} is no part of {code}; known: " + ", ".join(known[code])
            if code in known
            else (f"{country!r} is no country")
        )
        raise CalibrlError(f"--country: {where}; write a code like DE, US or DE-BW") from None
