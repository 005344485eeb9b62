"""Examples in docstrings run, and what packages export says what it takes and what it gives back."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent

DOCUMENTED = (
    "calibrl",
    "calibrl.bandits",
    "calibrl.control",
    "calibrl.diagnostics",
    "calibrl.distributions",
    "calibrl.forecasters",
    "calibrl.inventory",
    "calibrl.inventory.environment",
    "calibrl.maps",
    "calibrl.mdp",
    "calibrl.planning.chance",
    "calibrl.planning.graph",
    "calibrl.planning.rollout",
    "calibrl.planning.search",
    "calibrl.planning.value_iteration",
    "calibrl.plots",
    "calibrl.shop",
    "calibrl.tables",
)
"""Packages and modules whose every export has its parameters described."""


def with_examples() -> list[str]:
    files = (ROOT / "calibrl").rglob("*.py")
    return [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files if ">>> " in file.read_text()]


@pytest.mark.parametrize("name", with_examples())
def test_examples_run(name):
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted
    assert not found.failed


def taught() -> list[Any]:
    """What the documentation and the examples import from the product."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*.py")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    lines = re.findall(r"^ *from (calibrl[\w.]*) import (\([^)]*\)|[\w, ]+)", text, re.MULTILINE)
    names = {(home, name) for home, listed in lines for name in re.findall(r"\w+", listed)}
    values = [getattr(importlib.import_module(home), name) for home, name in sorted(names) if home != "calibrl"]
    return [value for value in values if inspect.isroutine(value) or inspect.isclass(value)]


def exports() -> list[Any]:
    found = taught()
    for name in DOCUMENTED:
        module = importlib.import_module(name)
        listed = getattr(module, "__all__", [each for each in vars(module) if not each.startswith("_")])
        values = (getattr(module, each) for each in listed)
        own = [value for value in values if getattr(value, "__module__", "").startswith(name)]
        found += [value for value in own if inspect.isroutine(value) or inspect.isclass(value)]
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("value", exports(), ids=lambda value: f"{value.__module__}.{value.__qualname__}")
def test_exports_describe_what_they_take_and_give_back(value):
    text = inspect.getdoc(value) or ""
    if inspect.isclass(value):
        # Made for the reader, who makes none; a protocol, an error and the identity take nothing.
        plain = issubclass(value, (tuple, BaseException)) or value.__name__.endswith(("Summary", "Identity"))
        assert plain or getattr(value, "_is_protocol", False) or "Parameters\n---" in text
        return
    signature = inspect.signature(value, eval_str=False)
    assert not signature.parameters or "Parameters\n---" in text
    assert signature.return_annotation in (None, "None") or "Returns\n---" in text or "Yields\n---" in text
    missing = [name for name in signature.parameters if name not in text]
    assert not missing, missing
