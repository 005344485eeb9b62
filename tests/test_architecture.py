"""The house as `docs/design.md` describes it: small, imports one way, nothing twice."""

import ast
import importlib.util
import re
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import grimp
import networkx
import pytest

import calibrl

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "calibrl").rglob("*.py"))
MOST_FILES, MOST_LINES, LONGEST_REPEAT, MOST_NAMES = 152, 28_950, 10, 45


def docstring_lines(source):
    """The numbers of the lines that a file's docstrings and texts about values take."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            found.update(range(node.lineno, node.end_lineno + 1))
    return found


def written(source):
    """{number: text} of a file's lines without blanks, comments, docstrings and texts about values."""
    silent = docstring_lines(source)
    lines = {number: line.strip() for number, line in enumerate(source.splitlines(), start=1) if number not in silent}
    return {number: line for number, line in lines.items() if line and not line.startswith("#")}


def test_the_house_is_small():
    """Lines of code count. Docstrings do not: everything exported has a long one."""
    sources = [file.read_text(encoding="utf-8") for file in FILES]
    code, total = sum(len(written(source)) for source in sources), sum(len(source.splitlines()) for source in sources)
    print(f"{len(sources)} files, {code} lines of code, {total} lines in all")
    assert len(sources) <= MOST_FILES
    assert code <= MOST_LINES


def test_no_module_imports_itself_by_a_detour():
    """Imports inside functions count: a cycle is a cycle whenever it is closed."""
    graph = grimp.build_graph("calibrl", exclude_type_checking_imports=True)
    edges = [(one, other) for one in graph.modules for other in graph.find_modules_directly_imported_by(one)]
    cycles = [sorted(part) for part in networkx.strongly_connected_components(networkx.DiGraph(edges)) if len(part) > 1]
    assert cycles == []


def code_lines(file):
    """(number, text) of each line that does something: no blanks, comments, imports or docstrings."""
    source = file.read_text(encoding="utf-8")
    imports = (node for node in ast.walk(ast.parse(source)) if isinstance(node, (ast.Import, ast.ImportFrom)))
    silent = {number for node in imports for number in range(node.lineno, node.end_lineno + 1)}
    return [(number, line) for number, line in written(source).items() if number not in silent]


def test_no_passage_stands_twice():
    seen = defaultdict(list)
    for file in FILES:
        lines = code_lines(file)
        for start in range(len(lines) - LONGEST_REPEAT):
            window = lines[start : start + LONGEST_REPEAT + 1]
            seen["\n".join(text for _, text in window)].append(f"{file.relative_to(ROOT)}:{window[0][0]}")
    assert [places for places in seen.values() if len(places) > 1] == []


def test_the_top_level_is_short():
    assert len([name for name in calibrl.__all__ if not name.startswith("__")]) <= MOST_NAMES


def test_rooms_are_furnished_alike():
    """Who knows one application finds the same things in the others."""
    first = {"problems", "policy", "loop", "experiment", "figures"}
    for room in ("bandits", "inventory", "control"):
        assert first <= {file.stem for file in (ROOT / "calibrl" / room).glob("*.py")}, room
    for room in ("mdp", "safety"):
        assert {"problems", "experiment", "figures"} <= {file.stem for file in (ROOT / "calibrl" / room).glob("*.py")}


def test_the_tree_of_the_design_page_names_every_file():
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    tree = re.search(r"```text\ncalibrl/\n(.*?)```", page, re.DOTALL)[1]
    named, folder = set(), ""
    for line in tree.splitlines():
        head = re.match(r"  ([\w/]+/) ", line)
        folder = head[1] if head else folder
        words = re.sub(r"\(.*?\)", "", line[len(head[0]) :] if head else line).split()
        named |= {f"{folder}{word}.py" for word in words}
    files = {file.relative_to(ROOT / "calibrl").as_posix() for file in FILES if file.name != "__init__.py"}
    assert named == files


def test_every_kernel_has_its_test():
    kernels = {file.stem for file in FILES if file.parent.name == "kernels"} - {"__init__"}
    tested = {file.stem.removeprefix("test_") for file in (ROOT / "tests" / "kernels").glob("test_*.py")}
    # Triton's layers are tested with the networks that they serve, beside the other kernels that do.
    assert kernels - tested == {"layered"}


ACROSS = {"contract", "contracts", "distributions", "gradients", "service", "tails"}
"""Tests of a whole folder at once."""


def test_tests_are_named_after_what_they_test():
    """`maps/fit.py` is tested by `maps/test_fit.py`, and by `maps/test_fit_….py` where that is long."""
    for folder in (ROOT / "tests").iterdir():
        modules = {file.stem for file in (ROOT / "calibrl" / folder.name).glob("*.py")} | ACROSS
        names = (
            [file.stem.removeprefix("test_") for file in folder.glob("test_*.py")] if len(modules) > len(ACROSS) else []
        )
        assert [name for name in names if not any(f"{name}_".startswith(f"{one}_") for one in modules)] == []


def test_lines_of_the_layers_go_down():
    """No layer is named twice in the contract that import-linter checks."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert "ignore_imports" not in text
    layers = re.search(r"layers = \[(.*?)\]", text, re.DOTALL)
    names = re.findall(r"calibrl\.[\w.]+", layers[1]) if layers else []
    assert names
    assert all(one != other for one, other in pairwise(sorted(names)))


@pytest.mark.parametrize("file", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda file: file.stem)
def test_benchmarks_import_what_there_is(file):
    """They are run by hand, and nobody would notice."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("calibrl", "tests"):
            module = importlib.import_module(node.module)
            for name in node.names:
                submodule = (
                    importlib.util.find_spec(f"{node.module}.{name.name}") if hasattr(module, "__path__") else None
                )
                assert hasattr(module, name.name) or submodule, f"{node.module} has no {name.name}"
