"""MkDocs hook: the page of commands lists what the program itself says of every command and option."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from typer.main import get_command

from calibrl.cli import app

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Append a section for each command."""
    if page.file.src_uri != "commands.md":
        return markdown
    return "\n\n".join(
        [markdown, *(_section(name, command) for name, command in _commands("calibrl", get_command(app)))]
    )


def _commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Every command that does something, with the words to type; groups of commands are only walked through."""
    if not hasattr(command, "commands"):
        yield name, command
        return
    for word in command.list_commands(None):
        yield from _commands(f"{name} {word}", command.get_command(None, word))


def _section(name: str, command: Any) -> str:
    rows = "\n".join(f"| {_names(param)} | {_meaning(param)} |" for param in command.params)
    told = re.sub(r"(?m)^Example: (.+)$", r"Example: `\1`", command.help)
    return f"## {name}\n\n{told}\n\n| argument or option | meaning |\n|---|---|\n{rows}"


def _names(param: Any) -> str:
    shown = [param.name.upper()] if param.param_type_name == "argument" else [*param.opts, *param.secondary_opts]
    return ", ".join(f"`{name}`" for name in shown)


def _meaning(param: Any) -> str:
    words = (param.help or "").replace("|", "\\|")
    if param.required:
        return f"{words} Required."
    return words if param.default in (None, False, True, "") else f"{words} Default: `{param.default}`."
