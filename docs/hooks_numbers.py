"""MkDocs hook: a number stays on the line of its sign, unit, error and interval."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

CODE = re.compile(r"(<pre.*?</pre>|<code.*?</code>)", re.DOTALL)
WITHIN = re.compile(r"(?<=\d) (?=[%×±])|(?<=±) (?=\d)|(?<=\d) (?=\d{3}\b)|(?<=[\d.],) (?=[−\d.]+\])")


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Make the spaces within numbers unbreakable, except in code."""
    parts = CODE.split(html)
    return "".join(part if CODE.match(part) else WITHIN.sub("\N{NO-BREAK SPACE}", part) for part in parts)
