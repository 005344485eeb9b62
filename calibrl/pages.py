"""HTML pages complete in one file: their frame, the style they share, and a policy that lets nothing else in."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from pathlib import Path

from calibrl.text import for_html


def document(title: str, body: str, *, styles: str = "", script: str = "", kind: str = "") -> str:
    """A page that is complete in one file, makes no network requests, and runs nothing but its own script.

    Parameters
    ----------
    title : str
        As the browser shows it.
    body : str
        HTML, in which whatever somebody else wrote has gone through `for_html`.
    styles, script : str
        Beside the style that pages share.
    kind : str
        The class of the body, for styles.

    Returns
    -------
    str
        HTML.
    """
    sheet = style() + styles
    own = f"<script>{script}</script>\n" if script else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        '<meta http-equiv="Content-Security-Policy" '
        f'content="{policy(styles=[sheet], scripts=[script] if script else [])}">\n'
        f'<title>{for_html(title)}</title>\n<link rel="icon" href="data:,">\n<style>{sheet}</style>\n</head>\n'
        f'<body class="{kind}">\n{body}\n{own}</body>\n</html>\n'
    )


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
