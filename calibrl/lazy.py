"""Packages whose names are loaded when first used, so that a command does not wait for what it does not need."""

from __future__ import annotations

import ast
import contextlib
import importlib
import os
import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

SETTINGS = {"matplotlib": "matplotlibrc", "numba": ".numba_config.yaml"}
"""Packages that obey a file of the current folder: a stranger's may name a cache, and code that is run from there."""


@contextlib.contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Other values in the environment, of processes that are started too, for as long as the block lasts."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def ignore_settings() -> None:
    """Load the packages that would obey a file of the current folder from elsewhere, where there is such a file."""
    for package, file in SETTINGS.items():
        if os.path.lexists(file):
            with contextlib.chdir(Path(__file__).parent):
                importlib.import_module(package)
    if "numba" in sys.modules:  # reads it again whenever it compiles
        sys.modules["numba"].core.config._config_fname = ""


def exports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """The `__getattr__`, `__dir__` and `__all__` of a package that lists its names once, under `if TYPE_CHECKING:`.

    Parameters
    ----------
    package : str
        `__name__` of the package. In its `__init__.py`, `if TYPE_CHECKING:` holds lines of the form
        `from calibrl.module import Name as Name`, or `from calibrl import module as module` for modules of the package
        itself: type checkers and editors read them, and so does this function.

    Returns
    -------
    __getattr__ : callable
        Imports the module of a name on its first use (PEP 562).
    __dir__ : callable
        All names, loaded or not.
    __all__ : list of str
        The public names, modules aside.
    """
    source = pkgutil.get_data(package, "__init__.py") or b""
    listed = [part for part in ast.parse(source).body if isinstance(part, ast.If)]
    homes = {
        name.asname or name.name: (line.module or "", name.name)
        for block in listed
        for line in block.body
        if isinstance(line, ast.ImportFrom)
        for name in line.names
    }

    def getattr_(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, original = homes[name]
        if module == package:
            return importlib.import_module(f"{package}.{name}")
        value = getattr(importlib.import_module(module), original)
        setattr(sys.modules[package], name, value)
        return value

    def dir_() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return getattr_, dir_, sorted(name for name, (module, _) in homes.items() if module != package)
