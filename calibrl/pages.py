"""HTML pages that are complete in one file: the style they share, and a policy that lets nothing else in."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from pathlib import Path


def style() -> str:
    """The style sheet that every page shares, in light and dark."""
    return (Path(__file__).parent / "style.css").read_text(encoding="utf-8")


def policy(*, styles: Iterable[str] = (), scripts: Iterable[str] = ()) -> str:
    """A content-security policy that allows these style and script elements, pictures in the page, and nothing else.

    Parameters
    ----------
    styles, scripts : iterables of str
        What stands between their tags, every character of it.

    Returns
    -------
    str
        For a meta element; without styles or scripts, none is allowed.

    Examples
    --------
    >>> policy(styles=["p { color: red }"])
    "default-src 'none'; img-src data:; style-src 'sha256-ngewhhP73WDIbgwseeu52VAAJgKdGUsu1IUQQsAm8m4='"
    """
    parts = ["default-src 'none'", "img-src data:"]
    for kind, texts in (("style-src", styles), ("script-src", scripts)):
        marks = [f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in texts]
        parts += [" ".join([kind, *marks])] if marks else []
    return "; ".join(parts)
