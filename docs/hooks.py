"""MkDocs hooks: what pages link to outside docs/ (examples, rows, source) comes along into the site.

Links in pages are those of the repository, so that they work wherever the files are read. Here each one that leaves
docs/ is pointed to a copy under source/: text as a page, program text as a page of code, anything else as it is.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
LINK = re.compile(r"(\]\()(?![a-z]+:|#|/)([^)#\s]+)((?:#[^)\s]*)?\))")
CODE = {".py": "python", ".toml": "toml", ".yml": "yaml", ".sh": "sh", ".cff": "yaml"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add everything that is linked to, and what that links to in turn."""
    waiting = list(DOCS.rglob("*.md"))
    done: set[Path] = set()
    while waiting:
        for target in _outside(waiting.pop()):
            for file in (target, *_rows_beside(target)):
                if file in done:
                    continue
                done.add(file)
                files.append(_file(file, config))
                if file.suffix == ".md":
                    waiting.append(file)
    return files


SHIM = "https://unpkg.com/iframe-worker/shim"
"""A script that search from a disk needs, and that the plugin would have fetched from elsewhere: ours is search.js."""


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:  # noqa: ARG001
    """Nothing is fetched."""
    return output.replace(SHIM, f"{'../' * page.url.count('/')}search.js")


def on_post_template(output: str, template_name: str, config: MkDocsConfig) -> str:  # noqa: ARG001
    """Nothing is fetched, by the page that says that there is none either."""
    return output.replace(SHIM, "/search.js")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Point links that leave docs/ to the copies; guides are found before the API and copies that say the same."""
    uri = page.file.src_uri
    if uri.startswith(("api/", "source/")):
        page.meta.setdefault("search", {"boost": 0.001})
    origin = ROOT / uri.removeprefix("source/") if uri.startswith("source/") else DOCS / uri
    here = Path(uri).parent

    def replaced(link: re.Match[str]) -> str:
        target = _resolve(origin, link[2])
        if target is None:
            return link[0]
        return f"{link[1]}{Path(os.path.relpath(_uri(target), here)).as_posix()}{link[3]}"

    listed = "".join(f"- [{rows.name}]({rows.name})\n" for rows in _rows_beside(origin))
    return LINK.sub(replaced, markdown) + (f"\n\n## Files\n\n{listed}" if listed else "")


def _outside(page: Path) -> list[Path]:
    found = [_resolve(page, link[2]) for link in LINK.finditer(page.read_text(encoding="utf-8"))]
    return [target for target in found if target is not None and DOCS not in target.parents]


def _rows_beside(page: Path) -> list[Path]:
    """The rows that a folder's README is about."""
    return sorted(page.parent.glob("*.jsonl")) if page.name == "README.md" else []


def _resolve(page: Path, link: str) -> Path | None:
    """The file of the repository that a link means; a folder means its README."""
    target = (page.parent / link).resolve()
    if target.is_dir():
        target /= "README.md"
    return target if target.is_file() and ROOT in target.parents else None


def _uri(target: Path) -> str:
    if DOCS in target.parents:
        return target.relative_to(DOCS).as_posix()
    uri = f"source/{target.relative_to(ROOT).as_posix()}"
    return f"{uri}.md" if target.suffix in CODE else uri


def _file(target: Path, config: MkDocsConfig) -> File:
    uri = _uri(target)
    if target.suffix not in CODE:
        return File.generated(config, uri, abs_src_path=str(target))
    name = target.relative_to(ROOT).as_posix()
    text = target.read_text(encoding="utf-8")
    fence = "`" * 6
    return File.generated(config, uri, content=f"# {name}\n\n{fence}{CODE[target.suffix]}\n{text}\n{fence}\n")
