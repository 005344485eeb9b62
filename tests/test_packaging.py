"""What is published: the sdist and the wheel are whole, and the wheel works where nothing else of ours is."""

import json
import re
import shutil
import site
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

import calibrl

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BUILD = "from setuptools import build_meta as b; import sys; getattr(b, sys.argv[1])(sys.argv[2])"

# Packages that only extras bring; a plain installation must do without them.
EXTRAS = [
    "gymnasium",
    "mujoco",
    "stable_baselines3",
    "ray",
    "mkdocs",
    "mkdocs_material",
    "mkdocstrings",
    "selenium",
    "duckdb",
    "tensorboard",
    "psutil",
    "lightgbm",
    "statsmodels",
    "triton",
    "pytest",
    "hypothesis",
    "mypy",
    "yaml",
]
WITHOUT = f"""
import sys

class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {EXTRAS!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Without())
"""


def run(*command, **options):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, timeout=200, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """The sdist, made from what git knows; the wheel, made from the sdist."""
    if not (ROOT / ".git").exists():
        pytest.skip("needs the repository: what is published is what git knows")
    folder = tmp_path_factory.mktemp("published")
    source = folder / "source"
    # Files that are new but not ignored count too: they are about to be known.
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, source / name)
    run(sys.executable, "-c", BUILD, "build_sdist", folder, cwd=source)
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    run(sys.executable, "-c", BUILD, "build_wheel", folder, cwd=unpacked)
    (wheel,) = folder.glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="module")
def plain(published, tmp_path_factory):
    """An environment with the wheel and what it depends on, and none of what extras bring."""
    folder = tmp_path_factory.mktemp("plain")
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    install = ("install", "--quiet", "--no-deps", "--no-index", "--no-compile", "--disable-pip-version-check")
    run(sys.executable, "-m", "pip", "--python", python, *install, published[1])
    home = Path(run(python, "-c", "import site; print(site.getsitepackages()[0])").strip())
    # A path alone: the editable installation of the repository hooks in by a .pth file, which is not read from there.
    (home / "dependencies.pth").write_text("\n".join(site.getsitepackages()))
    (home / "sitecustomize.py").write_text(WITHOUT)
    return folder / "bin"


def test_the_wheel_holds_what_the_package_needs(published):
    with zipfile.ZipFile(published[1]) as wheel:
        names = set(wheel.namelist())
        (about,) = (name for name in names if name.endswith("METADATA"))
        metadata = HeaderParser().parsestr(wheel.read(about).decode())
    tracked = run("git", "ls-files", "calibrl", cwd=ROOT).split("\n")
    missing = [name for name in tracked if name and name not in names and (ROOT / name).exists()]
    assert missing == []
    assert "calibrl/py.typed" in names
    assert not [name for name in names if name.startswith(("tests", "docs", "benchmarks"))]
    for notice in PROJECT["license-files"]:
        assert any(name.endswith(f".dist-info/licenses/{notice}") for name in names)
    assert set(metadata.get_all("Provides-Extra")) == set(PROJECT["optional-dependencies"])
    assert metadata["License-Expression"] == "MIT"
    assert metadata["Version"] == calibrl.__version__


def test_data_that_is_not_ours_comes_with_its_licence():
    data = [path for path in (ROOT / "calibrl").rglob("*") if path.suffix in {".npz", ".csv", ".parquet"}]
    for path in data:
        assert list(path.parent.glob("LICENSE*")), f"{path.name} has no licence beside it"
        notices = {(ROOT / name).resolve() for name in PROJECT["license-files"]}
        assert set(path.parent.glob("LICENSE*")) <= notices


def test_the_sdist_can_be_tested_and_built_again(published):
    with tarfile.open(published[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tracked = [name for name in run("git", "ls-files", cwd=ROOT).split("\n") if name and (ROOT / name).exists()]
    missing = [name for name in tracked if name not in names and name != ".gitignore"]
    assert missing == [], "MANIFEST.in does not name these"
    assert not [name for name in names if "__pycache__" in name]


def test_the_wheel_works_without_extras(plain, tmp_path):
    # Outside the repository, so that nothing but the wheel can be found.
    where = run(plain / "python", "-c", "import calibrl; print(calibrl.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(plain.parent)
    assert "calibrl" in run(plain / "calibrl", "--help", cwd=tmp_path)
    shutil.copytree(ROOT / "examples" / "data", tmp_path / "data")
    run(plain / "calibrl", "check", "data/diabetes_past.csv", cwd=tmp_path)
    row = {"experiment": "core", "problem": "p", "arm": "a", "seed": 0, "metrics": {"crps": 1.0}}
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "rows.jsonl").write_text(json.dumps(row))
    run(plain / "calibrl", "report", "rows", cwd=tmp_path)
    assert "begin();" in (tmp_path / "rows" / "report.html").read_text()


NAMES = """
import calibrl
for name in calibrl.__all__:
    try:
        getattr(calibrl, name)
    except calibrl.errors.MissingExtra as missing:
        assert "pip install" in str(missing)
        print(name)
"""


def test_every_name_is_there_or_says_which_extra_it_needs(plain, tmp_path):
    missing = run(plain / "python", "-c", NAMES, cwd=tmp_path).split()
    assert len(missing) < len(calibrl.__all__) / 4


def test_the_citation_is_valid():
    yaml = pytest.importorskip("yaml", reason="comes with the docs extra")
    found = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    # What the Citation File Format 1.2.0 asks for.
    assert found["cff-version"] == "1.2.0"
    assert isinstance(found["message"], str)
    assert found["type"] in {"software", "dataset"}
    assert found["version"] == calibrl.__version__
    assert found["license"] == PROJECT["license"]
    allowed = {"authors", "cff-version", "message", "title", "type", "version", "license", "references", "abstract"}
    allowed |= {"keywords", "date-released", "doi", "url", "repository-code", "identifiers", "preferred-citation"}
    assert set(found) <= allowed
    people = {"family-names", "given-names", "name", "orcid", "affiliation", "email", "website"}
    for work in (found, *found["references"]):
        assert work["title"]
        assert work["authors"]
        for author in work["authors"]:
            assert set(author) <= people
            assert "name" in author or "family-names" in author
    for work in found["references"]:
        assert re.fullmatch(r"[a-z-]+", work["type"])
        assert isinstance(work["year"], int)
