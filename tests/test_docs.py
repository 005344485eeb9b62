"""Every example in the README, in docs/ and in examples/ runs, from top to bottom, outside the repository.

A ```text block that follows an example without a line between them is what the example prints.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tomllib
import traceback
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
SECONDS = 240


class Block(NamedTuple):
    """A fenced block: the words after the fence, the number of its first line, its text."""

    info: str
    line: int
    text: str


NOTHING = Block("", 0, "")


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a Markdown text, indented ones (in lists) too."""
    found, inside, start, info, indent, fence = [], False, 0, "", "", ""
    lines = page.splitlines()
    for number, line in enumerate(lines, start=1):
        opening = re.match(r"^(\s*)(```+)\s*(.*?)\s*$", line)
        if opening and not inside:
            indent, fence, info = opening.groups()
            inside, start = True, number + 1
        elif opening and opening[2].startswith(fence) and not opening[3]:
            text = "\n".join(row.removeprefix(indent) for row in lines[start - 1 : number - 1])
            found.append(Block(info, start, text + "\n"))
            inside = False
    assert not inside, f"line {start - 1}: a fence is opened and never closed"
    return found


def is_set_up(block: Block) -> bool:
    """Whether a shell block installs or builds the project: that is the caller's job, not a test's."""
    first = block.text.lstrip()
    return "make " in block.text or first.startswith(("git clone", "pip install"))


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.fixture
def workshop(tmp_path, monkeypatch):
    """A folder with a copy of the examples, where the page's commands and files live."""
    if (ROOT / "examples").exists():
        shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    # One thread: a page's small jobs run beside the other tests.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    if "matplotlib" in sys.modules:
        import matplotlib as mpl

        mpl.use("Agg", force=True)
    with torch.random.fork_rng():
        yield tmp_path
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


def printed_by(block: Block, following: Block) -> bool:
    """Whether the second block is the output of the first: its fence opens on the line after the other's closes."""
    return following.info == "text" and following.line == block.line + block.text.count("\n") + 2


NUMBER = re.compile(r"\d+(?:\.\d+)?")


def same_output(promised: str, printed: str) -> bool:
    """Whether two outputs have the same words, and numbers within 2 %: other machines round differently."""
    numbers = zip(NUMBER.findall(promised), NUMBER.findall(printed), strict=False)
    return NUMBER.sub("#", promised).split() == NUMBER.sub("#", printed).split() and all(
        math.isclose(float(a), float(b), rel_tol=0.02) for a, b in numbers
    )


def run_python(block: Block, page: str, namespace: dict[str, Any]) -> str:
    # Blank lines before the text make line numbers in the traceback those of the page.
    code = compile("\n" * (block.line - 1) + block.text, page, "exec")
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(code, namespace)
    except Exception as problem:
        frames = [frame.lineno for frame in traceback.extract_tb(problem.__traceback__) if frame.filename == page]
        line = frames[-1] if frames else block.line
        pytest.fail(f"{page}, line {line}: {type(problem).__name__}: {problem}\n\n{traceback.format_exc()}", False)
    return printed.getvalue()


def run_shell(block: Block, page: str, folder: Path) -> str:
    done = subprocess.run(
        ["bash", "-e", "-u", "-o", "pipefail", "-c", block.text],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    if done.returncode:
        pytest.fail(
            f"{page}, line {block.line}: exit code {done.returncode}\n{block.text}\n{done.stdout}\n{done.stderr}", False
        )
    return done.stdout


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_page_runs(path, workshop):
    namespace: dict[str, Any] = {"__name__": "__main__"}
    found = blocks(path.read_text(encoding="utf-8"))
    for block, following in itertools.zip_longest(found, found[1:], fillvalue=NOTHING):
        if block.info == "python":
            printed = run_python(block, name(path), namespace)
        elif block.info == "sh" and not is_set_up(block):
            printed = run_shell(block, name(path), workshop)
        else:
            continue
        if printed_by(block, following) and not same_output(following.text, printed):
            pytest.fail(f"{name(path)}, line {following.line}: the page says otherwise than\n{printed}", False)


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_no_example_hides_from_the_tests(path):
    for block in blocks(path.read_text(encoding="utf-8")):
        language = re.split(r"[\s{,]", block.info)[0].lower()
        hidden = language in {"python", "py", "python3", "sh", "bash", "shell", "zsh"} and block.info not in {
            "python",
            "sh",
        }
        assert not hidden, f"{name(path)}, line {block.line}: write ```python or ```sh, not ```{block.info}"


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_links_lead_somewhere(path):
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        if not re.match(r"^[a-z]+:", target):
            assert (path.parent / target).exists(), f"{name(path)} links to {target}, which is not there"


@pytest.mark.parametrize("path", EXAMPLES, ids=name)
def test_example_runs(path, workshop):
    done = subprocess.run(
        [sys.executable, f"examples/{path.name}"],
        cwd=workshop,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{name(path)}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name)
def test_notebook_runs(path, workshop):
    found = json.loads(path.read_text(encoding="utf-8"))
    assert found["nbformat"] == 4
    cells = [cell for cell in found["cells"] if cell["cell_type"] == "code"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells), "kept without what it prints"
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(cells, start=1):
        run_python(Block("python", 1, "".join(cell["source"])), f"{name(path)}, cell {number}", namespace)


def test_design_notes_have_the_layers_that_the_linter_checks():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    layers = " → ".join(settings["contracts"][0]["layers"]).replace("calibrl.", "")
    assert layers in " ".join((ROOT / "docs" / "design.md").read_text(encoding="utf-8").split())


def test_the_package_runs_as_a_module(workshop):
    run_shell(Block("sh", 1, "python -m calibrl --help\ncalibrl --help\n"), "here", workshop)


def test_blocks_are_found_with_their_lines():
    page = "a\n```python\nx = 1\n```\n- list\n  ```sh\n  echo hi\n  ```\n````\n```\n````\n"
    assert blocks(page) == [Block("python", 3, "x = 1\n"), Block("sh", 7, "echo hi\n"), Block("", 10, "```\n")]


def test_the_output_of_a_block_is_what_follows_it_directly():
    sh, output, other = blocks("```sh\necho 1\n```\n```text\n1\n```\n\n```text\n2\n```\n")
    assert printed_by(sh, output)
    assert not printed_by(output, other)
    assert same_output("loss  0.0166, of 1,394", "loss 0.0167, of 1,394")
    assert not same_output("loss 0.0166", "loss 0.0158")
    assert not same_output("Calibrated", "Over-confident")


def test_a_failing_block_names_file_and_line(workshop):
    with pytest.raises(pytest.fail.Exception, match=r"page\.md, line 6: ZeroDivisionError"):
        run_python(Block("python", 5, "x = 0\n1 / x\n"), "page.md", {})
    with pytest.raises(pytest.fail.Exception, match=r"page\.md, line 5: exit code 3"):
        run_shell(Block("sh", 5, "exit 3\n"), "page.md", workshop)
