"""MkDocs hook: a number stays on the line of its sign, unit, error and interval."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

CODE = re.compile(r"(<pre.*?</pre>|<code.*?</code>)", re.DOTALL)
WITHIN = re.compile(
    r"(?<=\d) (?=[%×±])|(?<=±) (?=\d)"  # 80 %, 1.3 ×, 2.1 ± 0.3
    r"|(?<=\d) (?=\d{3}\b)"  # 10 200
    r"|(?<=\d,) (?=[−\d.]+\])"  # [9.3, 13.7]
    r"|(?<=\d) (?=/ \d)|(?<=\d /) (?=\d)"  # 6.4 / 1.8
)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Make the spaces within numbers unbreakable, except in code."""
    parts = CODE.split(html)
    return "".join(part if CODE.match(part) else WITHIN.sub("\N{NO-BREAK SPACE}", part) for part in parts)
