"""The documentation site asks nothing of the network, and what pages link to comes along."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("material", reason="comes with the docs extra")
ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_nothing_is_loaded_from_elsewhere(site):
    loaded = re.compile(
        r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"(?:https?:)?//|<link\b[^>]*\bhref=\"(?:https?:)?//"
    )
    for page in site.rglob("*.html"):
        assert not loaded.search(page.read_text(encoding="utf-8")), page


def test_links_lead_somewhere(site):
    for page in site.rglob("*.html"):
        if page.name == "404.html":  # its links are from the root of a server
            continue
        for target in re.findall(r'<a [^>]*href="([^"#?]+)', page.read_text(encoding="utf-8")):
            if not re.match(r"[a-z]+:", target):
                assert (page.parent / target).exists(), f"{page.relative_to(site)} links to {target}"


def test_rows_and_examples_come_along(site):
    assert (site / "source" / "results" / "bandits" / "table1.jsonl").exists()
    code = (site / "source" / "examples" / "bandit_service.py.html").read_text(encoding="utf-8")
    assert "Durable" in code


def test_every_public_name_is_documented(site):
    import calibrl

    pages = "".join(page.read_text(encoding="utf-8") for page in (site / "api").glob("*.html"))
    missing = [name for name in calibrl.__all__ if not re.search(rf'id="calibrl[\w.]*\.{re.escape(name)}"', pages)]
    assert [name for name in missing if name != "__version__"] == [], "name their modules on a page of docs/api"


def test_what_a_calibrated_forecast_can_do_is_documented(site):
    page = (site / "api" / "distributions.html").read_text(encoding="utf-8")
    for name in ("cdf", "icdf", "sample", "log_prob", "mean", "variance", "interval"):
        assert f'id="calibrl.distributions.recalibrated.Recalibrated.{name}"' in page


def test_calling_is_documented(site):
    page = (site / "api" / "algorithm.html").read_text(encoding="utf-8")
    for name in ("Forecaster", "Calibrated", "CrossFitted"):
        assert f'id="calibrl.algorithm.{name}.__call__"' in page


def commands(app, *words):
    """What to type for each command of a Typer application."""
    for one in app.registered_commands:
        yield "-".join((*words, one.name or one.callback.__name__))
    for group in app.registered_groups:
        yield from commands(group.typer_instance, *words, group.name)


def test_every_command_is_listed_with_its_options(site):
    from calibrl.cli import app
    from calibrl.runs.experiment import EXPERIMENTS

    text = (site / "commands.html").read_text(encoding="utf-8")
    known = [*commands(app, "calibrl"), *(f"calibrl-run-{name}" for name in EXPERIMENTS)]
    missing = [name for name in known if f'<h2 id="{name}">' not in text]
    assert missing == []
    for option in ("FILE", "--backtest", "--resume", "--no-video", "--policy"):
        assert f"<code>{option}</code>" in text


def test_numbers_are_not_torn_from_their_errors(site):
    text = (site / "inventory.html").read_text(encoding="utf-8")
    assert "54,457\u00a0±\u00a0513" in text
    assert "11.7 [9.3,\u00a013.7]" in text
    code = (site / "shell.html").read_text(encoding="utf-8")
    assert "90 % interval holds" in code, "what a command prints is left as it is"


def test_every_page_has_the_style_and_the_words(site):
    pages = [page for page in site.glob("*.html") if page.name != "404.html"]
    assert (site / "style.css").exists()
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert 'href="style.css' in text
        assert 'href="words.html"' in text, "the contents lead to the words"


def test_pages_are_called_what_the_contents_call_them(site):
    for name, title in (("forecasters", "Wrap any model"), ("run", "Run the experiments")):
        text = (site / f"{name}.html").read_text(encoding="utf-8")
        assert re.search(rf"<h1[^>]*>{title}", text)


def test_search_works_from_a_disk(site):
    """Typed into the box of a page opened as a file, a word finds the pages that hold it."""
    pytest.importorskip("selenium")
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        pytest.skip("no browser")
    from selenium import webdriver
    from selenium.webdriver.support.ui import WebDriverWait

    options = webdriver.ChromeOptions()
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--no-first-run",
    ):
        options.add_argument(flag)
    options.binary_location = shutil.which("chromium")
    with webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver"))) as browser:
        browser.get((site / "api" / "maps.html").as_uri())
        box = browser.find_element("css selector", "input.md-search__input")
        browser.execute_script("arguments[0].focus(); arguments[0].value = 'kaplan'", box)
        browser.execute_script("arguments[0].dispatchEvent(new KeyboardEvent('keyup', {bubbles: true}))", box)
        found = WebDriverWait(browser, 20).until(
            lambda page: page.find_elements("css selector", ".md-search-result__item a")
        )
        found = [link.get_attribute("href") for link in found]
        assert any("algorithm.html" in link for link in found)
        assert "/api/" not in found[0]  # what explains comes before what lists
