"""The page in a real browser: it draws, every control works, nothing is logged and nothing leaves the page."""

import json
import shutil
import statistics
import struct
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from calibrl.report.page import write_report
from calibrl.runs.experiment import describe
from calibrl.runs.rows import Row, append
from tests.report.conftest import HOSTILE, core_rows

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="needs a browser: apt-get install chromium chromium-driver"
)


@pytest.fixture(scope="module")
def browser():
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    # A container has no user namespaces and little shared memory.
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--force-prefers-reduced-motion",
        "--window-size=1400,1000",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        driver.quit()


@pytest.fixture(scope="module")
def address(results, tmp_path_factory):
    return write_report(results, tmp_path_factory.mktemp("page") / "report.html").as_uri()


@pytest.fixture
def page(browser, address):
    """The page freshly opened; afterwards nothing may have been logged or asked for."""
    browser.get("about:blank")
    browser.get_log("performance")
    browser.get_log("browser")
    browser.get(address)
    yield browser
    assert browser.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    assert asked
    assert [url for url in asked if not url.startswith((address, "data:", "about:"))] == []


def find(driver, selector):
    return driver.find_elements("css selector", selector)


def one(driver, element_id):
    return driver.find_element("id", element_id)


def choose(driver, element_id, text):
    for option in one(driver, element_id).find_elements("tag name", "option"):
        if option.text == text:
            option.click()
            return
    raise AssertionError(f"{element_id} has no option {text}")


def write(element, text):
    element.clear()
    element.send_keys(text)


def drawn(driver, study, selector=".dot"):
    return len(driver.find_element("id", study).find_elements("css selector", f".panels {selector}"))


def headings(driver, study):
    return [node.text for node in one(driver, study).find_elements("tag name", "h4")]


def aloud(driver):
    return driver.find_element("css selector", "body > .unseen").get_attribute("textContent")


def test_every_study_is_drawn(page):
    assert [node.get_attribute("id") for node in find(page, ".explore")] == [
        "core.1",
        "bandits.1",
        "my-b-experiment-b.1",
    ]
    assert headings(page, "core.1") == ["calibration loss, lower is better", "Are the forecasts honest?"]
    assert headings(page, "bandits.1") == ["reward, higher is better", "reward by round"]
    # Two problems: dots, and reliability beside a PIT histogram.
    assert len(find(page, "[id='core.1'] svg[role=img]")) == 6
    assert all(float(node.get_attribute("height")) > 50 for node in find(page, ".panels svg"))
    assert drawn(page, "bandits.1", "path.paper") == 2


def test_what_rows_say_is_text(page):
    assert any(node.text == HOSTILE for node in find(page, "[id='core.1.problem'] option"))
    assert page.title == "calibrl report"


def test_every_arm_can_be_left_out_and_brought_back(page):
    for study in find(page, ".explore"):
        name = study.get_attribute("id")
        everything = drawn(page, name)
        for box in study.find_elements("css selector", ".arms input"):
            arm = int(box.get_attribute("id").rsplit("arm", 1)[1])
            assert drawn(page, name, f".arm-{arm} .dot") > 0
            box.click()
            assert drawn(page, name, f".arm-{arm} .dot") == 0
            box.click()
            assert drawn(page, name) == everything
    for arm in range(3):
        one(page, f"core.1.arm{arm}").click()
    assert "No arm is selected" in one(page, "core.1").text


def test_every_metric_can_be_chosen(page):
    for text, heading in (("CRPS", "CRPS, lower is better"), ("calibration loss", "calibration loss, lower is better")):
        choose(page, "core.1.metric", text)
        assert headings(page, "core.1")[0] == heading
        assert one(page, "core.1.note").text == f"{text}: 3 of 3 arms, 6 of 6 seeds."
    choose(page, "bandits.1.metric", "84 % quantile covers")
    assert headings(page, "bandits.1") == ["84 % quantile covers"]


def test_a_problem_can_be_looked_at_alone(page):
    choose(page, "core.1.problem", "diabetes, network")
    assert {node.text for node in find(page, "[id='core.1'] figcaption")} == {"diabetes, network"}
    choose(page, "core.1.problem", "all 2 problems")
    assert len(find(page, "[id='core.1'] figcaption")) == 4


def test_differences_leave_out_the_baseline(page):
    choose(page, "bandits.1.view", "difference to linucb")
    assert headings(page, "bandits.1") == [
        "reward, paired difference to linucb, higher is better",
        "reward, paired difference to linucb, by round",
    ]
    assert drawn(page, "bandits.1", ".arm-0 .dot") == 0
    assert drawn(page, "bandits.1", ".zero") == 2
    label = find(page, "[id='bandits.1'] svg[role=img]")[0].get_attribute("aria-label")
    assert "callinucb +100.0 ± 0.0" in label


def test_seeds_can_be_chosen(page):
    rows = [row for row in core_rows() if row.problem == "diabetes, network" and row.arm == "calibrated"]
    expected = statistics.fmean(row.metrics["calibration_loss"] for row in rows if row.seed in {0, 1, 2, 5})
    box = one(page, "core.1.seeds")
    write(box, "0-2, 5")
    assert one(page, "core.1.note").text.endswith("4 of 6 seeds.")
    label = find(page, "[id='core.1'] svg[role=img]")[0].get_attribute("aria-label")
    assert f"calibrated {expected:.4f} ±" in label
    write(box, "seven")
    assert box.get_attribute("aria-invalid") == "true"
    assert "ranges such as 0-5" in one(page, "core.1.note").text
    write(box, "77")
    assert box.get_attribute("aria-invalid") == "true"
    write(box, "all")
    assert box.get_attribute("aria-invalid") == "false"
    assert one(page, "core.1.note").text.endswith("6 of 6 seeds.")


def test_each_seed_can_be_shown(page):
    one(page, "core.1.each").click()
    assert drawn(page, "core.1", ".seed") == 2 * 3 * 6
    one(page, "bandits.1.each").click()
    assert drawn(page, "bandits.1", ".seed") == 2 * 5
    assert drawn(page, "bandits.1", ".thread") == 2 * 5


def test_too_few_seeds_for_an_interval_are_shown_one_by_one(page):
    """Three seeds of the experiment nobody has heard of: dots, no whiskers."""
    assert drawn(page, "my-b-experiment-b.1", ".whisker") == 0
    assert drawn(page, "my-b-experiment-b.1", ".seed") == 2 * 3


def test_groups_of_charts_have_the_whole_width(page):
    """They stand one below the other; classes of other pages must not move them."""
    for study in find(page, ".explore"):
        groups = study.find_elements("css selector", ".group")
        assert all(group.size["width"] > 0.95 * study.size["width"] for group in groups)


def test_no_curve_hides_another(browser, tmp_path):
    rows = [replace(row, arm=arm) for row in core_rows() if row.arm == "calibrated" for arm in ("one", "two", "three")]
    append(tmp_path / "rows.jsonl", rows)
    browser.get(write_report(tmp_path, tmp_path / "report.html").as_uri())
    curves = find(browser, "svg[aria-label^=Reliability] .curve")[:3]
    assert {curve.get_attribute("stroke-dasharray") for curve in curves} == {"9 18"}
    assert {curve.get_attribute("stroke-dashoffset") for curve in curves} == {"0", "-9", "-18"}


def test_many_arms_are_told_apart(browser, tmp_path):
    """Beyond the twelve colours no colour has the same mark again; fillings of many arms would mix."""
    arms = [f"arm {k}" for k in range(15)]
    rows = [replace(row, arm=arm) for row in core_rows() if row.arm == "calibrated" for arm in arms]
    append(tmp_path / "rows.jsonl", rows)
    browser.get(write_report(tmp_path, tmp_path / "report.html").as_uri())
    swatches = find(browser, ".explore")[0].find_elements("css selector", ".swatch")
    looks = [(one.get_attribute("class"), mark(one).get_attribute("d")) for one in swatches]
    assert len(looks) == len(set(looks)) == 15
    pits = [svg for svg in find(browser, ".panels svg") if "PIT, %" in svg.text]
    assert pits
    assert not any(svg.find_elements("css selector", ".band") for svg in pits)


def mark(swatch):
    return swatch.find_element("css selector", ".dot")


def test_a_curve_that_lies_on_another_for_a_part_shows_there(browser, tmp_path):
    """Alike for four steps of six and far apart afterwards: dashed in turns, and marked wherever they are alone."""
    values = {"one": (0, 1, 2, 3, 9, 10), "two": (0, 1.001, 2, 3, 5, 5), "far": (9, 9, 9, 9, 1, 1)}
    rows = [Row("e", "p", arm, 0, {"return": y}, step=t) for arm, ys in values.items() for t, y in enumerate(ys)]
    append(tmp_path / "rows.jsonl", rows)
    browser.get(write_report(tmp_path, tmp_path / "report.html").as_uri())
    panel = next(svg for svg in find(browser, "svg") if len(svg.find_elements("css selector", ".curve")) == 3)
    groups = panel.find_elements("css selector", ".arm")
    dashes = [group.find_element("css selector", ".curve").get_attribute("stroke-dasharray") for group in groups]
    assert sorted(map(str, dashes)) == ["9 9", "9 9", "None"]
    assert sorted(len(group.find_elements("css selector", ".dot")) for group in groups) == [4, 4, 6]


def test_hovering_tells_the_values(page):
    from selenium.webdriver import ActionChains

    for node in find(page, ".panels svg"):
        page.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", node)
        # A scroll hides the card: let it end first.
        page.execute_async_script("const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(done))")
        ActionChains(page, duration=0).move_to_element(node).perform()
        card = find(page, ".card")[0]
        assert card.is_displayed()
        assert card.text.strip()
    ActionChains(page, duration=0).move_to_element(find(page, "footer")[0]).perform()
    assert not find(page, ".card")[0].is_displayed()


def test_the_keyboard_reads_values_aloud(page):
    from selenium.webdriver.common.keys import Keys

    curve = find(page, "[id='bandits.1'] svg[role=img]")[1]
    curve.send_keys(Keys.ARROW_RIGHT)
    assert aloud(page) == "round: 200, linucb 104.0 ± 1.4, callinucb 124.8 ± 1.7"
    curve.send_keys(Keys.END)
    assert aloud(page).startswith("round: 1200, ")
    curve.send_keys(Keys.ARROW_LEFT)
    assert aloud(page).startswith("round: 600, ")
    curve.send_keys(Keys.ESCAPE)
    assert not find(page, ".card")[0].is_displayed()


def test_the_address_keeps_the_choices(page):
    one(page, "core.1.arm1").click()
    choose(page, "core.1.metric", "CRPS")
    write(one(page, "core.1.seeds"), "1-3")
    find(page, "nav a[href='#bandits']")[0].click()
    choose(page, "bandits.1.view", "difference to linucb")
    kept = page.current_url
    assert "at=bandits" in kept
    page.get("about:blank")
    page.get(kept)
    assert not one(page, "core.1.arm1").is_selected()
    assert one(page, "core.1.note").text == "CRPS: 2 of 3 arms, 3 of 6 seeds."
    assert headings(page, "bandits.1")[0].startswith("reward, paired difference")
    assert page.execute_script("return document.getElementById('bandits').getBoundingClientRect().top") < 400
    find(page, "[id='core.1'] .reset")[0].click()
    assert one(page, "core.1.note").text == "calibration loss: 3 of 3 arms, 6 of 6 seeds."
    assert "core.1" not in page.current_url


def test_an_address_with_choices_works_in_an_open_page(page, address):
    from selenium.webdriver.support.ui import WebDriverWait

    page.get(f"{address}#core.1.metric=1&core.1.off=0")
    WebDriverWait(page, 60).until(lambda _: one(page, "core.1.note").text == "CRPS: 2 of 3 arms, 6 of 6 seeds.")


@pytest.mark.parametrize(
    "hash_text", ["nowhere", "core.1.metric=99&core.1.problem=-7&core.1.view=x&core.1.off=a.b", "%%=%"]
)
def test_a_strange_address_does_no_harm(page, address, hash_text):
    page.get("about:blank")
    page.get(f"{address}#{hash_text}")
    assert one(page, "core.1.note").text == "calibration loss: 3 of 3 arms, 6 of 6 seeds."


def test_light_and_dark(page):
    def paper():
        return page.execute_script("return getComputedStyle(document.body).backgroundColor")

    def prefer(scheme):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    prefer("light")
    light = paper()
    button = find(page, "button.theme")[0]
    assert button.accessible_name == "Use dark colours"
    button.click()
    dark = paper()
    assert dark != light
    page.refresh()
    assert paper() == dark
    find(page, "button.theme")[0].click()
    assert paper() == light
    page.execute_script("localStorage.clear()")
    prefer("dark")
    page.refresh()
    assert paper() == dark
    prefer("light")


def test_everything_has_a_name(page):
    for node in find(page, "main input, main select, button, nav a, .panels svg, .scroll"):
        assert node.accessible_name.strip(), node.get_attribute("outerHTML")[:200]
    for node in find(page, "table"):
        assert node.find_elements("tag name", "caption")
    assert [node.tag_name for node in find(page, "h1")] == ["h1"]


@pytest.mark.parametrize("width", [340, 700, 1024, 1800])
def test_it_fits_the_screen(page, width):
    sizes = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", sizes)
    try:
        page.refresh()
        assert page.execute_script("return document.documentElement.scrollWidth") <= width
        widest = max(node.rect["x"] + node.rect["width"] for node in find(page, ".panels svg"))
        assert widest <= width
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_it_reads_without_scripts(page):
    page.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        page.refresh()
        text = find(page, "main")[0].text
        assert "558.1 ± 3.5" in text
        assert "tables and figures show the same numbers" in text
    finally:
        page.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_it_prints(page):
    import base64

    assert base64.b64decode(page.print_page()).startswith(b"%PDF")
    # What was opened for the paper is closed again.
    assert not find(page, "details[open]")


def test_a_wide_table_is_whole_on_paper(browser, tmp_path):
    known = describe("inventory").metrics
    metrics = {name: 54_289.0 if metric.form == ",.0f" else 0.123 for name, metric in known.items()}
    rows = [
        Row(
            "inventory",
            "favorita, 3 days",
            arm,
            seed,
            {name: value * (1 + gain * seed) for name, value in metrics.items()},
        )
        for arm, gain in (("uncalibrated", 0), ("calibrated, default map", 0.3))
        for seed in range(3)
    ]
    append(tmp_path / "rows.jsonl", rows)
    browser.get(write_report(tmp_path, tmp_path / "report.html").as_uri())
    inside = "const table = document.querySelector('.scroll table'); return table.scrollWidth - innerWidth"
    sizes = {"width": 690, "height": 900, "deviceScaleFactor": 1, "mobile": False}  # what margins leave of A4
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", sizes)
    try:
        assert browser.execute_script(inside) > 0, "on a screen it scrolls"
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
        assert browser.execute_script(inside) <= 0
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_script_that_got_into_the_page_does_not_run(browser, address, tmp_path):
    text = Path(address.removeprefix("file://")).read_text()
    foreign = tmp_path / "foreign.html"
    foreign.write_text(text.replace("</main>", "<script>document.title = 'taken'</script></main>"))
    browser.get_log("browser")
    browser.get(foreign.as_uri())
    assert browser.title == "calibrl report"
    assert find(browser, ".panels svg"), "the page's own script runs"
    assert any("Content Security Policy" in entry["message"] for entry in browser.get_log("browser"))


def test_figures_are_as_large_as_they_were_drawn(browser, tmp_path):
    append(tmp_path / "rows.jsonl", core_rows(seeds=2))
    for name, width in (("intervals", 1500), ("digits", 300)):
        header = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", width, 200)
        (tmp_path / f"{name}.png").write_bytes(header)
    browser.get(write_report(tmp_path, tmp_path / "report.html").as_uri())
    room = find(browser, ".figures")[0].rect["width"]
    widths = sorted(node.rect["width"] for node in find(browser, ".figures figure"))
    assert widths == pytest.approx([300, room]), "one fits, the other takes what there is"


def test_a_hundred_thousand_rows_open_quickly(browser, many, tmp_path):
    address = write_report(many, tmp_path / "report.html").as_uri()
    browser.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
    browser.get(address)
    assert browser.find_element("css selector", ".panels svg")
    spent = {
        entry["name"]: entry["value"] for entry in browser.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    }
    browser.execute_cdp_cmd("Performance.disable", {})
    assert spent["TaskDuration"] < 2  # seconds of work: waiting for other programs does not count
