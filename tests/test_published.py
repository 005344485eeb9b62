"""Tables in the README and on the pages say what the published rows say."""

import itertools
import math
import re
from collections import defaultdict
from pathlib import Path
from statistics import fmean, geometric_mean, stdev

import numpy as np
import pytest
from scipy.optimize import linprog

from calibrl.control.scoring import claim
from calibrl.runs.rows import read

ROOT = Path(__file__).parent.parent
PUBLIC = ("rossmann", "online-retail")


def rows_of(*files):
    """Values by metric, then by problem, arm and step, then by seed."""
    found = defaultdict(lambda: defaultdict(dict))
    for file in files:
        for row in read(ROOT / "results" / file):
            for name, value in row.metrics.items():
                found[name][row.problem, row.arm, row.step][row.seed] = value
    return found


def only_step(metric):
    """Values by problem and arm, of rows that were measured once."""
    return {(problem, arm): values for (problem, arm, _), values in metric.items()}


def error(values):
    return stdev(values) / math.sqrt(len(values))


def pm(values, form):
    values = list(values)
    return f"{fmean(values):{form}} ± {error(values):{form.lstrip('+')}}"


def paired(ours, theirs):
    return [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]


def percent(values, digits=1):
    return f"{100 * fmean(values.values()):.{digits}f} %"


def page(name):
    """A page on one line, with ASCII minus signs and no spaces around cells."""
    text = " ".join((ROOT / name).read_text(encoding="utf-8").replace("−", "-").replace("**", "").split())
    return text.replace(" | ", "|").replace("| ", "|").replace(" |", "|")


def says(text, *cells):
    wanted = "|" + "|".join(cells) + "|"
    assert wanted in text, f"no row of a table has the cells {wanted}"


def test_calibrating_real_forecasts():
    text, found = page("docs/results.md"), {name: only_step(one) for name, one in rows_of("core/demo.jsonl").items()}
    for model in ("network", "dropout network", "boosted quantiles"):
        problem, bare, fitted = f"diabetes, {model}", "uncalibrated", "cross-fitted"
        for arm in (bare, fitted):
            cells = [
                percent(found["coverage_90"][problem, arm]),
                pm(found["calibration_loss"][problem, arm].values(), ".3f"),
                pm(found["crps"][problem, arm].values(), ".1f"),
            ]
            change = paired(found["crps"][problem, fitted], found["crps"][problem, bare])
            says(text, *cells, pm(change, "+.2f") if arm == fitted else "")


PAPERS = [f"bandits/{name}.jsonl" for name in ("table1", "mushroom", "calibrated")]


def test_the_readme_says_what_the_pages_say():
    readme = page("README.md")
    core = {name: only_step(one) for name, one in rows_of("core/demo.jsonl").items()}["coverage_90"]
    for words, model in (
        ("90 % intervals of a dropout network hold", "dropout network"),
        ("… of boosted quantiles", "boosted quantiles"),
    ):
        says(readme, words, *(percent(core[f"diabetes, {model}", arm]) for arm in ("uncalibrated", "cross-fitted")))
    bandits = page("docs/bandits.md")
    mushroom, clicks = (re.search(rf"\|{name}\|(.*?)\|\|", bandits)[1].split("|") for name in ("Mushroom", "bernoulli"))
    recipe = "the paper's recipe: {} %"
    says(readme, "bandit, Mushroom: reward over LinUCB's", "0", f"{mushroom[3]} %", recipe.format(mushroom[2]))
    says(readme, "bandit, two click rates, 20 000 rounds", "0", f"{clicks[4]} %", recipe.format(clicks[3]))
    costs = [shop()["reward"]["bakery, 3 days", arm].values() for arm in ("uncalibrated", "calibrated", "weekday")]
    bare, ours, weekday = (pm([-cost for cost in arm], ",.0f").replace(",", " ") for arm in costs)
    says(
        readme,
        "cost of a bakery's waste and stock-outs",
        bare,
        ours,
        f"a same-weekday mean with a better planner: {weekday}",
    )
    results = page("docs/results.md")
    copied = re.findall(r"\|(?:Mushroom|Adult|bernoulli|quiet|classes|swap)\|.*?(?=\|\|)", results)
    assert len(copied) == 6
    assert all(row in bandits for row in copied)
    glance = {
        "its recipe, as released": "Cartpole 1.16 -18.2 ± 5.1, Pusher 0.95 -0.6 ± 2.1, Reacher 0.98 -30 ± 4, "
        "HalfCheetah 1.09 -581 ± 237",
        "whole trajectories calibrated": "Cartpole 0.90 +14.1 ± 3.5, Pusher 1.12 +9.4 ± 3.1, Reacher 0.51 +68 ± 11, "
        "HalfCheetah 1.14 -296 ± 358",
    }
    for words, numbers in glance.items():
        (line,) = (one for one in readme.split("||") if one.startswith(f"{words}|"))
        for task, ratio, gain in (one.split(" ", 2) for one in numbers.split(", ")):
            assert f"{ratio} ×" in line
            assert gain in line
            assert re.search(rf"\|{task}, [^|]*\|{re.escape(gain)}\|{ratio} \[", results), (task, ratio)
    assert "|Pusher|-178|0.43 [" in page("docs/replication.md")
    assert "|0.43 × half of the way, 1.12 × all of it, +9.4 ± 3.1|" in readme


@pytest.mark.parametrize("problem", ["linear", "beta", "mushroom", "covertype", "adult", "census"])
def test_bandits(problem):
    found = {name: only_step(one) for name, one in rows_of(*PAPERS).items()}
    reward = {arm: values for (of, arm), values in found["reward"].items() if of == problem}
    for trials in (10, 200):
        old, new = (
            {seed: reward[arm][seed] for seed in sorted(reward[arm])[:trials]} for arm in ("linucb", "callinucb")
        )
        gain = paired(new, old)
        share = f"{100 * fmean(gain) / fmean(old.values()):+.1f} %"
        means = f"{fmean(old.values()):.1f}", f"{fmean(new.values()):.1f}"
        says(page("docs/bandits.md"), str(len(old)), *means, pm(gain, "+.1f"), share)
    says(page("docs/results.md"), *means, f"{pm(gain, '+.1f')} ({share})")
    for arm, values in reward.items():
        assert f"|{pm(values.values(), '.1f')}|" in page("docs/bandits.md"), arm
    for arm in ("linucb", "callinucb", "conformal-linucb"):
        assert f"|{percent(found['coverage'][problem, arm])}|" in page("docs/bandits.md"), arm


def test_noisy_bandits():
    """Gains over LinUCB at 1200 and 20 000 rounds, coverage, regret, and how often off-policy intervals hold."""
    text, found = (
        page("docs/bandits.md"),
        rows_of(*PAPERS, "bandits/noisy.jsonl", "bandits/long.jsonl", "bandits/regret.jsonl"),
    )
    for (problem, arm, step), values in found["reward"].items():
        if arm in ("callinucb", "calibrated-ucb", "greedy") and step <= 20_000:
            base = found["reward"][problem, "linucb", step]
            if problem in ("linear", "beta", "mushroom", "census") and step != 1200:
                continue
            shares = [100 * one / abs(fmean(base[seed] for seed in base)) for one in paired(values, base)]
            assert f"|{pm(shares, '+.1f')}|" in text, (problem, arm, step)
    for problem in (
        "linear",
        "bernoulli",
        "clicks",
        "heteroscedastic",
        "gaussian",
        "quiet",
        "logistic",
        "rare",
        "drift",
        "swap",
    ):
        metrics = ("mean_coverage", "mean_coverage_all", "outcome_interval")
        says(
            text,
            problem,
            *(percent(found[m][problem, "calibrated-ucb", step]) for step in (1200, 20_000) for m in metrics),
        )
    for label in ("covertype", "adult", "census (1000 rounds)", "mushroom", "digits", "classes"):
        ours = label.split()[0], "calibrated-ucb"
        held = [percent(values) for key, values in sorted(found["outcome_interval"].items()) if key[:2] == ours]
        says(text, label, "", "", held[0], "", "", *held[1:])
    for name in ("Adult", "Covertype"):  # the share of the paper's gain, of 200 trials
        more = only_step(rows_of(*PAPERS, "bandits/gain.jsonl")["reward"])
        ours, papers = (
            paired(more[name.lower(), arm], more[name.lower(), "linucb"]) for arm in ("calibrated-ucb", "callinucb")
        )
        share = fmean(ours) / fmean(papers)
        off = error([one - share * other for one, other in zip(ours, papers, strict=True)]) / fmean(papers)
        assert f"{100 * share:.1f} ± {100 * off:.1f} % on {name}" in text
    for arm, label in (("linucb", "LinUCB"), ("callinucb", "CalLinUCB"), ("calibrated-ucb", "CalibratedUCB")):
        at = (2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000)
        lost = [fmean(found[f"regret_{t}"]["bernoulli", arm, 200_000].values()) for t in at]
        says(text, label, *(f"{value:.1f}" for value in lost))
    coverage = rows_of("bandits/offpolicy.jsonl")["coverage"]
    for (problem, arm, step), values in coverage.items():
        if arm in ("doubly robust", "switch"):
            assert f"|{problem}, {step}|" in text
            assert f"|{percent(values)}|" in text


def test_visitors_of_the_example_service():
    found = rows_of("bandits/visitors.jsonl")
    for step, visitors in ((200, "200"), (4000, "4000"), (20_000, "20 000")):
        ours, theirs = (
            {
                seed: (best - found["regret"]["visitors", arm, step][seed]) / step
                for seed, best in found["optimal"]["visitors", arm, step].items()
            }
            for arm in ("calibrated-ucb", "linucb")
        )
        means = [f"{fmean(one.values()):.4f}" for one in (theirs, ours)]
        change = [100 * one / fmean(theirs.values()) for one in paired(ours, theirs)]
        says(page("docs/bandits.md"), visitors, str(len(ours)), *means, pm(change, "+.2f"))


def shop():
    return {name: only_step(one) for name, one in rows_of("inventory/table2.jsonl", "inventory/favorita.jsonl").items()}


def shares(found, key, form="{} / {}"):
    return form.format(*(f"{100 * fmean(found[name][key].values()):.1f}" for name in ("waste_share", "stockout_share")))


def test_inventory():
    text, readme, found = page("docs/inventory.md"), page("docs/results.md").replace(" ", ""), shop()
    for key, reward in found["reward"].items():
        if any(reward.values()):  # the oracle has none
            assert f"|{pm(reward.values(), ',.0f')} ({shares(found, key)})|" in text, key
    for data in ("bakery", "favorita"):
        for arm in ("calibrated", "uncalibrated", "heuristic"):
            key = f"{data}, 3 days", arm
            units = [f"{fmean(found[name][key].values()):,.0f}" for name in ("shipped", "wasted", "stockouts")]
            says(text, *units, *shares(found, key, "{} %|{} %").split("|"), pm(found["reward"][key].values(), ",.0f"))
            assert f"|{pm(found['reward'][key].values(), '.0f')}|".replace(" ", "") in readme, key
            assert f"|{shares(found, key, '{}/{}%')}|" in readme, key


def test_how_well_forecasts_of_demand_cover():
    text, found = page("docs/inventory.md"), shop()
    arms = (
        ("uncalibrated", 2),
        ("calibrated", 3),
        ("calibrated, default map", 3),
        ("noise", 2),
        ("noise, calibrated", 3),
        ("plus, calibrated", 3),
        ("weekday", 3),
        ("best, uncalibrated", 2),
        ("best", 3),
    )
    for arm, digits in arms:
        mean = {name: fmean(one["bakery, 3 days", arm].values()) for name, one in found.items() if name != "tuned_to"}
        says(
            text,
            " / ".join(f"{100 * mean[f'below_{level}_day_1']:.0f}" for level in (10, 50, 90)),
            " ".join(f"{mean[f'calibration_loss_day_{day}']:.{digits}f}" for day in range(1, 6)),
            f"{100 * mean['coverage_80']:.0f} %",
            f"{mean['crps']:.1f}",
            f"{mean['series_error_median']:.2f}, {mean['series_error_p90']:.2f}",
        )


SAVED = {
    "the paper's recipe": "calibrated instead of uncalibrated",
    "… map relearnt every week": "calibrated, weekly instead of uncalibrated",
    "… wide search, before the [correction](#a-correction)": "calibrated instead of uncalibrated",
    "closed-loop planner (*levels*)": "calibrated, levels instead of uncalibrated, levels",
    "learnt noise, paper's planner": "noise, calibrated instead of noise",
    "learnt noise, closed loop": "noise, calibrated, levels instead of noise, levels",
    "more features, paper's planner": "plus, calibrated instead of plus",
    "best recipe": "best instead of best, uncalibrated",
    "a control: tuned heuristic instead of the uncalibrated planner": "tuned heuristic instead of uncalibrated",
}
"""Rows of the tables of savings, and the arms they compare."""


@pytest.mark.parametrize("label", SAVED)
def test_savings(label):
    """With intervals where series were kept, otherwise from the mean rewards."""
    text, arms, wide = page("docs/inventory.md"), SAVED[label], ", wide search" if "wide" in label else ""
    found = {(row.problem, row.arm): row.metrics for row in read(ROOT / "results" / "inventory" / "savings.jsonl")}
    files = (f"inventory/{name}.jsonl" for name in ("table2", "favorita", "wide-search"))
    reward = only_step(rows_of(*files)["reward"])

    def percents(*values):
        return [f"{round(100 * value, 1) + 0.0:.1f}" for value in values]

    def cell(problem):
        if (problem, arms) in found:
            share, low, high = percents(*(found[problem, arms][name] for name in ("saving", "low", "high")))
            return f"{share} [{low}, {high}]"
        ours, theirs = (fmean(reward[problem, arm].values()) for arm in arms.split(" instead of "))
        return percents(1 - ours / theirs)[0]

    data = ("bakery", "favorita")
    says(text, label, *(cell(f"{name}, {days} days{wide}") for name in data for days in (3, 2, 5)))
    if ("bakery, later, 3 days", arms) in found and not wide:
        says(text, label, *(cell(f"{name}, later, 3 days") for name in data))


@pytest.mark.parametrize(("name", "form"), [("Cartpole", "+.1f"), ("Pusher", "+.1f"), ("HalfCheetah", "+.0f")])
def test_returns_at_full_size(name, form):
    """Seeds, trials so far, and the difference of the returns of calibrated and uncalibrated agents, trial by trial."""
    found = defaultdict(dict)
    for row in read(ROOT / "results" / "control" / f"{name.lower()}.jsonl"):
        if row.arm != "sac" and row.metrics["trial"]:
            found[row.arm, row.seed][row.metrics["trial"]] = row.metrics["return"]
    seeds = sorted({seed for _, seed in found})
    trials = {len(returns) for returns in found.values()}
    assert len(trials) == 1, "agents have run for different times"
    gains = [fmean(paired(found["calibrated", seed], found["uncalibrated", seed])) for seed in seeds]
    cells = f"|{name}|{len(seeds)}, {trials.pop()}|"
    for table in ("docs/results.md", "docs/full-size.md"):
        rows = [part for part in page(table).split("||") if cells in f"|{part}"]
        assert rows, f"no row of a table in {table} begins with {cells}"
        assert any(f"|{pm(gains, form)}|" in f"{row}|" for row in rows), (table, pm(gains, form))


@pytest.mark.parametrize("name", ["cartpole", "pusher", "halfcheetah"])
def test_steps_to_a_return(name):
    found = claim(read(ROOT / "results" / "control" / f"{name}.jsonl"))
    text = re.sub(r"(?<=\d) (?=\d{3}\b)", "", page("docs/full-size.md"))
    for samples in found.samples:
        both, saved = samples.both, samples.saved.tolist()
        steps = [f"{arm[both].mean():.0f}" for arm in (samples.arm, samples.other)]
        gain = pm(saved, ".0f") if len(saved) > 1 else f"{saved[0]:.0f}, one seed"
        says(text, *steps, gain, f"{samples.ratio_of_sums:.2f}")


def test_a_recipe_of_our_own():
    """Beside published settings on the same seeds, and what it was to be judged by; also in the README."""
    text, readme, results = page("docs/control-results.md"), page("README.md"), page("docs/results.md")
    ours, published, earlier = (
        {task: returns_of(f"{folder}/{task}{end}.jsonl") for task in ("halfcheetah", "cartpole", "pusher")}
        for folder, end in (("control", "-best"), ("replication", ""), ("control", ""))
    )
    for task, name, trials, form in (
        ("halfcheetah", "HalfCheetah", 24, ".0f"),
        ("cartpole", "Cartpole", 5, ".1f"),
        ("pusher", "Pusher", 20, ".1f"),
    ):
        arms = [arm for arm in ("uncalibrated", "calibrated-trajectory") if arm in {arm for arm, _ in ours[task]}]
        for arm in arms:
            mine, theirs = (
                {seed: fmean(one[1 : trials + 1]) for (who, seed), one in found[task].items() if who == arm}
                for found in (ours, published)
            )
            both = [(mine[seed], theirs[seed]) for seed in mine]
            gain = pm([one - other for one, other in both], "+" + form)
            cells = [pm(each, form) for each in zip(*both, strict=True)]
            says(text, name, f"`{arm}`", f"{len(both)} × {trials}", *cells, gain)
        if len(arms) == 2:
            seeds = sorted({seed for _, seed in ours[task]})
            gains = [fmean(paired_lists(*(ours[task][arm, seed][1:] for arm in reversed(arms)))) for seed in seeds]
            assert f"{pm(gains, '.1f')}{' a trial more' if task == 'cartpole' else ' on Pusher'}" in text
    reached = {
        (whose, arm): sum(max(one[:5]) >= 175 for (who, _), one in found["cartpole"].items() if who == arm)
        for whose, found in (("ours", ours), ("published", published))
        for arm in ("calibrated-trajectory", "uncalibrated")
    }
    assert list(reached.values()) == [10, 9, 2, 0], "the page says: all ten and nine, two and none"
    assert max(max(one) for one in ours["pusher"].values()) < -63.5, "the page says: the best trial is -64"
    late = [fmean(one[84:94]) for one in ours["halfcheetah"].values()]
    before = [fmean(one[84:94]) for (arm, _), one in earlier["halfcheetah"].items() if arm != "sac"]
    for where in (text, readme, results):
        assert f"{pm(late, '.0f')}" in where
        assert f"{min(before):.0f} to {max(before):.0f}" in where
    (whole,) = (one for one in ours["halfcheetah"].values() if len(one) == 101)
    assert f"earned {fmean(whole[91:]):.0f} a trial in the last ten" in text
    bests = [max(one) for one in ours["halfcheetah"].values()]
    assert f"Best trials are {min(bests):.0f} to {max(bests):.0f}" in text
    low, count = crashes(ours["halfcheetah"].values())
    old, of = crashes(one for (arm, _), one in earlier["halfcheetah"].items() if arm != "sac")
    assert f"{low} of {count} trials (3 %)" in text
    assert f"published {old} of {of} (12 %)" in text
    assert (round(100 * low / count), round(100 * old / of)) == (3, 12)


def test_what_the_recipe_was_chosen_on():
    text, found = page("docs/control-results.md"), defaultdict(lambda: defaultdict(list))
    for row in read(ROOT / "results" / "control" / "recipe.jsonl"):
        if 1 <= row.metrics["trial"] <= 17 or (row.problem != "halfcheetah" and row.metrics["trial"]):
            more = "reward" in row.overrides or "ensemble.min_steps" in row.overrides
            key = row.problem, more, row.overrides.get("planner.method", "cem")
            found[key][row.arm, row.seed].append(row.metrics["return"])
    for task, words in (
        ("halfcheetah", ("HalfCheetah, 17 trials", "HalfCheetah, judged upright")),
        ("cartpole", ("Cartpole, 5 trials", "Cartpole, at least 2000 training steps")),
        ("pusher", ("Pusher, 25 trials", "Pusher, at least 2000 training steps")),
    ):
        for more, label in enumerate(words):
            cells = [f"{fmean(map(fmean, found[task, bool(more), how].values())):.0f}" for how in ("cem", "icem")]
            if task == "halfcheetah":  # the particles stand beside the numbers
                particles = ((20, 10), (10, 20))[more]
                cells = [
                    f"{cell} ({p}{' particles' if cell is cells[0] and not more else ''})"
                    for cell, p in zip(cells, particles, strict=True)
                ]
            says(text, label, *cells)
    late = {
        more: [fmean(one[-2:]) for how in ("cem", "icem") for one in found["halfcheetah", more, how].values()]
        for more in (False, True)
    }
    assert f"earned {fmean(late[False]):.0f} on average, those with it {fmean(late[True]):.0f}" in text
    assert min(late[True]) > max(late[False])
    first = [
        next((n for n, earned in enumerate(one, 1) if earned >= 175), None)
        for more in (True, False)
        for how in ("cem", "icem")
        for one in found["cartpole", more, how].values()
    ]
    assert first[:8] == [2] * 8, "the page says: all within 600 steps"
    assert sum(one is not None for one in first[8:]) == 2
    upright = {
        arm: fmean(
            fmean(v) for how in ("cem", "icem") for (who, _), v in found["halfcheetah", True, how].items() if who == arm
        )
        for arm in ("uncalibrated", "calibrated-trajectory")
    }
    assert "({:.0f} against {:.0f}, four agents each)".format(*upright.values()) in text


def returns_of(name):
    """What agents earned, {(arm, seed): returns from trial 0 on}."""
    found = defaultdict(dict)
    for row in read(ROOT / "results" / name):
        found[row.arm, row.seed][row.step] = row.metrics["return"]
    return {agent: [one[step] for step in sorted(one)] for agent, one in found.items()}


def paired_lists(first, second):
    return [one - other for one, other in zip(first, second, strict=True)]


def crashes(agents):
    """How many trials from 11 on earned less than half of the best so far, and of how many."""
    pairs = [(one[n], max(one[: n + 1])) for one in agents for n in range(11, len(one))]
    return sum(earned < best / 2 for earned, best in pairs), len(pairs)


def test_same_networks_with_and_without_a_map():
    text, found = page("docs/control-results.md"), defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for row in read(ROOT / "results" / "control" / "swap.jsonl"):
        found[row.preset, int(row.metrics["trial"])][row.arm.split(": ")[1]][row.seed].append(row.metrics["return"])
    for (preset, trial), forecasts in found.items():
        means = {name: {seed: fmean(both) for seed, both in seeds.items()} for name, seeds in forecasts.items()}
        bare = means.pop("without R")
        gains = [pm(paired(values, bare), "+.1f") for values in means.values()]
        says(text, f"`{preset}`, after {trial}", f"{fmean(bare.values()):.1f}", *gains)


def test_what_the_default_agent_costs():
    text, found = page("docs/control-results.md"), defaultdict(dict)
    for row in read(ROOT / "results" / "control" / "action-time.jsonl"):
        found[row.problem][row.arm.split(" over ")[1]] = row.metrics
    for name, others in found.items():
        ratios = (f"{others[arm]['ratio']:.2f} ×" for arm in ("calibrated", "uncalibrated"))
        says(text, f"`{name}`", f"{1e3 * others['calibrated']['default_s']:.1f} ms", *ratios)


@pytest.mark.parametrize(
    ("name", "times"), [("minutes", 3), ("halfcheetah-minutes", 2), ("halfcheetah-six-minutes", 3)]
)
def test_what_agents_and_sac_earn_by_the_minute(name, times):
    text, found = page("docs/control-results.md"), defaultdict(lambda: defaultdict(list))
    for row in read(ROOT / "results" / "control" / f"{name}.jsonl"):
        found[row.metrics["at"]][row.arm].append((row.metrics["return"], row.step))
    assert len(found) == times
    for at, arms in found.items():
        pairs = [zip(*arms[arm], strict=True) for arm in ("calibrated-trajectory", "sac")]
        says(text, f"{at:.0f} s", *(cell for e, n in pairs for cell in (pm(e, ".1f"), f"{fmean(n):.0f}")))


def test_a_goal_that_pays_once():
    text, found = page("docs/control-results.md"), defaultdict(lambda: defaultdict(dict))
    for row in read(ROOT / "results" / "control" / "mountain-car.jsonl"):
        exploration = row.overrides.get("planner.exploration", 0)
        which = row.arm, "known" if "reward" in row.overrides else "learnt", f"{exploration:g}"
        found[which][row.seed][int(row.metrics["trial"])] = row.metrics["return"]
    assert len(found) == 4
    for (arm, reward, exploration), seeds in found.items():
        first = [next((str(t) for t, value in sorted(seeds[s].items()) if value >= 90), "never") for s in range(5)]
        solved = sum(one != "never" for one in first)
        trials = max(seeds[0])
        label = arm if trials == 10 else f"{arm}, {trials} trials"
        says(text, label, reward, exploration, f"{solved} of 5", ", ".join(first))


MAPS = "temperature", "Platt", "isotonic", "add-one prior"


def test_safety():
    text, found = page("docs/why-calibrated.md"), only_step(rows_of("safety/rows.jsonl")["violations"])
    for problem in sorted({problem for problem, _ in found}):
        cells = []
        for arm in ("over-confident", "calibrated", "calibrated on plans", "conformal", "truth"):
            values = [100 * value for value in found[problem, arm].values()]
            cells.append(f"{fmean(values):.0f} % ± {error(values):.{1 if arm == 'truth' else 0}f}")
        says(text, problem, *cells)


@pytest.mark.parametrize(
    ("label", "task"),
    [("FrozenLake", "frozen-lake"), ("mazes", "maze"), ("CliffWalking", "cliff-walking"), ("Taxi", "taxi")],
)
def test_planning_with_a_learnt_table(label, task):
    text = page("docs/why-calibrated.md")
    found = {name: only_step(metric) for name, metric in rows_of("mdp/rows.jsonl").items()}
    shown = re.findall(rf"\|{label}, (\d+) rows\|", text)
    assert len(shown) >= 4, "two amounts of data in each table"
    for rows in set(shown):
        delivered, off = (
            {arm: found[metric][f"{task}, table, {rows} rows", arm] for arm in ("raw", *MAPS)}
            for metric in ("delivered", "promise_error")
        )
        gains = [pm(paired(delivered[arm], delivered["raw"]), "+.3f") for arm in MAPS]
        says(text, f"{label}, {rows} rows", f"{fmean(delivered['raw'].values()):.3f}", *gains)
        says(text, f"{label}, {rows} rows", *(f"{fmean(values.values()):.3f}" for values in off.values()))


def test_which_map():
    text, rows = page("docs/choose-a-map.md"), read(ROOT / "results" / "core" / "quality.jsonl")
    found = {(row.problem, row.arm, row.step): row.metrics for row in rows}
    kinds, steps = sorted({row.problem for row in rows}), (10, 30, 100, 300, 1000)
    wrong = [kind for kind in kinds if kind != "calibrated"]
    for name in sorted({row.arm for row in rows}):
        says(text, name, *(excess([found[kind, name, step] for kind in wrong]) for step in steps))
    few = {"no map": "none", "isotonic regression, as usual": "isotonic, as peers fit it"}
    for label, name in (few | {"`fit_smooth`, the default": "smooth"}).items():
        means = (excess([found[kind, name, step] for kind in wrong]).split(" ±")[0] for step in steps)
        says(page("docs/compare.md"), label, *means)
    for name in ("smooth", "auto", "affine", "isotonic", "shrunk kernel", "mixture"):
        harm = (100 * fmean(found[kind, name, step]["harm"] for kind in kinds) for step in steps)
        says(text, f"harm, {name}", *(f"{share:.1f} %" for share in harm))
    for name in ("none", "smooth", "affine", "shrunk kernel", "mixture"):
        loss = (fmean(found[kind, name, step]["kl"] for kind in kinds) for step in steps)
        says(text, f"log-likelihood, {name}", *(f"{one:.3f}" for one in loss))
    for kind in kinds:
        by_step = [{arm: found[kind, arm, step]["excess_crps_x1000"] for _, arm, _ in found} for step in steps[:4]]
        best = [min(one[peer] for peer in ("shrunk kernel", "ECDF", "affine", "mixture")) for one in by_step]
        says(text, kind, *(f"{one['smooth'] / least:.2f}" for one, least in zip(by_step, best, strict=True)))


def test_which_map_on_the_second_list():
    """Every line of its table, and harm of the default in at most 6 % of fits."""
    text, rows = page("docs/choose-a-map.md"), read(ROOT / "results" / "core" / "fresh.jsonl")
    found = {(row.problem, row.arm, row.step): row.metrics for row in rows}
    kinds, steps = sorted({row.problem for row in rows}), (10, 30, 100, 300, 1000)
    for name in ("none", "smooth", "affine", "shrunk kernel", "mixture"):
        says(text, f"excess CRPS, {name}", *(excess([found[kind, name, step] for kind in kinds]) for step in steps))
        loss = (fmean(found[kind, name, step]["kl"] for kind in kinds) for step in steps)
        says(text, f"log-likelihood, {name}", *(f"{one:.3f}" for one in loss))
        if name != "none":
            harm = [100 * fmean(found[kind, name, step]["harm"] for kind in kinds) for step in steps]
            says(text, f"harm, {name}", *(f"{share:.1f} %" for share in harm))
            assert name != "smooth" or max(harm) <= 6

    def ratio(kind, step):
        peers = ("shrunk kernel", "ECDF", "affine", "mixture")
        score = {arm: found[kind, arm, step]["excess_crps_x1000"] for arm in ("smooth", *peers)}
        return score["smooth"] / min(score[peer] for peer in peers)

    ratios = [[ratio(kind, step) for kind in kinds] for step in steps]
    says(text, "worst ratio to the best of four peers", *(f"{max(one):.2f}" for one in ratios))
    says(text, f"truths of {len(kinds)} above 1.3", *(str(sum(value > 1.3 for value in one)) for one in ratios))


def test_where_the_default_maps_evidence_ends():
    text = page("docs/choose-a-map.md")
    found = {(row.problem, row.step): row.metrics for row in read(ROOT / "results" / "core" / "edges.jsonl")}
    moved = [found.pop(("calibrated", n))["moved"] for n in (2, 3, 5)]
    assert max(moved) <= 0.01
    assert ", ".join(f"{100 * share:.1f} %" for share in moved) in text
    for kind in {kind for kind, _ in found}:
        missed = [found[kind, n][level] for level in ("missed_99", "missed_99.9") for n in (1000, 10_000, 100_000)]
        assert max(missed[1], missed[2], missed[4], missed[5]) <= 1.3
        says(text, kind, *(f"{one:.2f}" for one in missed))


def excess(metrics):
    """The mean and its standard error, as the tables print them: no error where there is none."""
    mean = fmean(one["excess_crps_x1000"] for one in metrics)
    spread = math.hypot(*(one["standard_error"] for one in metrics)) / len(metrics)
    return ("0" if mean < 1e-9 else f"{mean:.2g}") + (f" ± {spread:.2g}" if spread > 1e-9 else "")


def test_speed_beside_other_libraries():
    found = {(row.problem, row.arm): row.metrics for row in read(ROOT / "results" / "core" / "speed.jsonl")}

    def ours_and_factor(problem, peer):
        metrics = found[problem, f"calibrl against {peer}"]
        return f"{1e3 * metrics['ours_seconds']:.3g} ms", metrics["factor"]

    readme, compare = page("docs/results.md"), page("docs/compare.md")
    groups, (_, whole) = (
        ours_and_factor("all metrics of 100,000 forecasts", f"uncertainty-toolbox {what}")
        for what in ("all but its worst groups", "get_all_metrics")
    )
    smooth = ours_and_factor("fit_smooth on 1,000,000 PITs", "scikit-learn IsotonicRegression")
    columns = ours_and_factor("PITs and fit_smooth, 20 columns × 100,000", "netcal IsotonicRegression")
    drawn = ours_and_factor("10,000 × 18 recalibrated draws, float32, 20 a turn", "torch Normal.sample, unchecked")
    without = "uncertainty-toolbox, without its search for the worst groups"
    says(
        readme, "metrics of 10⁵ forecasts", groups[0], f"{without} ({whole:.3g} × with it)", f"{groups[1]:.3g} × faster"
    )
    says(readme, "fit the default map on 10⁶ PITs", smooth[0], "scikit-learn isotonic", f"{smooth[1]:.3g} × faster")
    label = "PITs and the default map, 20 columns × 10⁵"
    says(readme, label, columns[0], "netcal isotonic", f"{columns[1]:.3g} × faster")
    label = "draw 10 000 × 18 recalibrated samples"
    says(readme, label, drawn[0], "torch `Normal.sample`, unchecked", f"takes {1 / drawn[1]:.3g} × as long")
    for peer, factor in (
        (without, groups[1]),
        ("uncertainty-toolbox with that search, which `calibrl` does not do", whole),
        ("scikit-learn, `IsotonicRegression`", smooth[1]),
        ("netcal, `IsotonicRegression`", columns[1]),
    ):
        says(compare, peer, f"{factor:.3g} ×")


def test_the_pages_on_control_say_what_their_rows_say():
    """`python benchmarks/replication.py --write` brings its tables up to date."""
    from benchmarks.replication import PAGES, TABLES, written

    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    assert all(sum(f"<!-- {name} -->" in text for text in texts) == 1 for name in TABLES)
    assert texts == [written(text) for text in texts]
    # In the wind, also in the README; and one of its numbers, worked out here.
    outside = defaultdict(lambda: defaultdict(list))
    for row in read(ROOT / "results" / "control" / "wind-frontier.jsonl"):
        if row.metrics["trial"] > 1:
            outside[row.arm, row.overrides["planner.safety"]][row.seed].append(100 * row.metrics["unsafe"])
    share = {run: pm([fmean(one) for one in seeds.values()], ".1f") + " %" for run, seeds in outside.items()}
    says(page("README.md"), share["uncalibrated", 0.8], share["calibrated-trajectory", 0.5])
    found = defaultdict(dict)
    for row in read(ROOT / "results" / "replication" / "cartpole.jsonl"):
        if row.metrics["trial"]:
            found[row.arm, row.seed][row.step] = row.metrics["return"]
    seeds = sorted({seed for _, seed in found})
    gains = [fmean(paired(found["calibrated", seed], found["uncalibrated", seed])) for seed in seeds]
    assert f"|10 × 10|{pm(gains, '+.1f')}|150|" in page("docs/replication.md")


def test_arms_are_compared_where_they_earn_the_same():
    """The least that mixtures of settings are outside at that return, by linear programming."""
    from benchmarks.replication import _at_equal_return

    found = np.random.default_rng(0).uniform(size=(2, 4, 2, 30))
    level, least = _at_equal_return(found)
    np.testing.assert_array_equal(level, np.minimum(*found[:, :, 0].max(1)))
    for arm, n in itertools.product(range(2), range(30)):
        earned, outside = found[arm, :, :, n].T
        best = linprog(outside, A_ub=[-earned], b_ub=[-level[n]], A_eq=[np.ones(4)], b_eq=[1])
        assert least[arm, n] == pytest.approx(best.fun)


def test_trust_page_is_the_rows():
    """Every simulated share on the page is that of a row, and every row is on the page."""
    text, rows = (ROOT / "docs" / "trust.md").read_text("utf-8"), read(ROOT / "results" / "core" / "trust.jsonl")
    bounds = [row.metrics["behind"] for row in rows if row.arm.startswith("any test")]
    assert f"| behind, at least | {' | '.join(f'{least:.3f}' for least in bounds)} |" in text
    rows = [row for row in rows if not row.arm.startswith("any test")]
    for row in rows:
        if "behind" in row.metrics:
            names = ("spiegelhalter", "likelihood_ratio")
            two, metrics = [f"{row.metrics[name]:.3f}" for name in names], row.metrics
            line = " | ".join([*two, f"{metrics['behind']:+.3f} ± {metrics['behind_error']:.3f}"])
            assert f"| {row.problem} | {row.step} | {metrics['share']:.3f}" in text
            assert f"| {line} |" in text
    told = re.findall(r"^\| (.+?) \| (.+?) \| (\d+) \| (\d\.\d{3}) ± (\d\.\d{3}) \|", text, re.M)
    found = {
        (row.arm, row.problem, str(row.step), f"{row.metrics['share']:.3f}", f"{row.metrics['standard_error']:.3f}")
        for row in rows
    }
    assert set(told) == found
    shares = {(row.arm, row.problem, row.step): (row.metrics["share"], row.metrics["standard_error"]) for row in rows}
    for (arm, problem, step), (share, error) in shares.items():
        if arm in ("split conformal", "weighted conformal", "CV+", "adaptive", "reliability band"):
            assert share > 0.9 - 3 * error - 0.005, (arm, problem, step)
        # The page says why: with long memory the size is not held, and not quite with few rows that are alike.
        if arm.endswith("size"):
            most = 0.35 if problem.startswith("long memory") else 0.15 if step <= 200 and "class" not in arm else 0.1
            assert share < most, (arm, problem, step)


def test_quality_beside_crepes_and_mapie():
    """Every arm's line on the page is that of its rows, and there are no others."""
    table = (ROOT / "docs" / "compare.md").read_text("utf-8").split("**Quality.**")[1].split("**")[0]
    told = [line.replace("**", "") for line in table.splitlines() if re.match(r"\| (mean|quantiles)", line)]
    found = {
        (row.problem, row.arm, row.settings["rows"]): row.metrics
        for row in read(ROOT / "results" / "core" / "peers.jsonl")
    }
    lines = []
    for of, quantiles in (("mean and spread", False), ("quantiles", True)):
        pairs = sorted({problem for problem, _, _ in found if problem.startswith("boosted") == quantiles})
        for arm in dict.fromkeys(arm for problem, arm, _ in found if problem in pairs):
            cells = []
            for metric in ("crps", "interval_score"):
                over_raw = [
                    [found[pair, arm, rows][metric] / found[pair, "raw", rows][metric] for pair in pairs]
                    for rows in ("30", "100", "all")
                    if metric in found[pairs[0], arm, rows]
                ]
                cells.append(" / ".join(f"{geometric_mean(ratios):.3f}" for ratios in over_raw))
            gaps = [fmean(found[pair, arm, rows]["coverage_gap"] for pair in pairs) for rows in ("30", "100", "all")]
            cells.append(" / ".join(f"{100 * gap:.1f}" for gap in gaps))
            lines.append(f"| {of}, {len(pairs)} pairs | {arm} | {' | '.join(cells)} |".replace("|  |", "| |"))
    assert told == lines


def test_what_rescaled_inputs_do_to_the_released_recipe():
    text = page("docs/replication.md")
    crps = defaultdict(list)
    for name in ("cartpole", "reacher"):
        for row in read(ROOT / "results" / "replication" / f"{name}.jsonl"):
            if row.arm.startswith("released") and row.metrics["trial"] >= 3:
                for ending in ("", "_bare"):
                    crps[name, row.arm + ending].append(row.metrics[f"crps{ending}"])

    def pair(arm):
        return tuple(f"{fmean(crps[name, arm]):.3f}" for name in ("cartpole", "reacher"))

    bare, control, mapped = pair("released_bare"), pair("released-control"), pair("released")
    assert "CRPS of {} on Cartpole and {} on Reacher".format(*bare) in text
    assert "those of the control {} and {} (".format(*control) in text
    assert "with it {} and {}.".format(*mapped) in text


def test_when_calibrating_orders_pays():
    text, saved = page("docs/inventory.md"), read(ROOT / "results" / "inventory" / "public-savings.jsonl")
    found = {(row.problem, row.arm): row.metrics for row in saved}
    held = {(row.problem, row.arm): row.metrics for row in read(ROOT / "results" / "inventory" / "public.jsonl")}
    for arm, bare in {(row.settings["arm"], row.settings["baseline"]) for row in saved}:
        cells = [", ".join(f"{100 * held[f'{data}, 3 days', bare]['coverage_80']:.0f} %" for data in PUBLIC)]
        for problem in (f"{data}, {days} days" for data in PUBLIC for days in (3, 2, 5)):
            share = [100 * found[problem, f"{arm} instead of {bare}"][name] for name in ("saving", "low", "high")]
            cells.append("{:.1f} [{:.1f}, {:.1f}]".format(*share))
        says(text, *cells)


def test_what_a_shops_orders_take():
    text, (row, *on_ray, replay) = page("docs/order.md"), read(ROOT / "results" / "shop" / "speed.jsonl")
    took = f"{row.metrics['cpu_seconds']:.0f} seconds of processor time and {row.metrics['gb']:.2f} GB of memory"
    assert row.problem == "1000 item-stores"
    assert took in text
    assert [(ray.problem, ray.arm) for ray in on_ray] == [(f"{size} item-stores", "ray") for size in (10_000, 100_000)]
    took = "{cpu_seconds:.0f} seconds of processor time, {gb:.1f} GB in the command and {gb_together:.1f} GB with its"
    for ray in on_ray:
        assert took.format(**ray.metrics) in text
    assert "90 days for 100 took {cpu_seconds:.0f} seconds and {gb:.2f} GB".format(**replay.metrics) in text
    assert replay.problem == "100 item-stores"


def test_how_intervals_follow_a_jump_of_demand():
    text = " ".join((ROOT / "docs" / "order.md").read_text("utf-8").split())
    found = {(row.problem, row.arm): row.metrics for row in read(ROOT / "results" / "shop" / "jump.jsonl")}
    up, down, none = (found[f"demand times {factor}", "pace 0.15"] for factor in ("1.6", "0.6", "1"))
    weeks = ("1", "2", "3-5")
    tomorrow = [[100 * of[f"{kind}lead_1_week_{week}"] for kind in ("", "se_") for week in weeks] for of in (up, down)]
    later = [[100 * of[f"lead_7_week_{week}"] for week in weeks] for of in (up, down)]
    assert (
        "{:.1f} ± {:.1f} % in the first week, {:.1f} ± {:.1f} % in the second and {:.1f} ± {:.1f} % in".format(
            *(tomorrow[0][k] for k in (0, 3, 1, 4, 2, 5))
        )
        in text
    )
    assert (
        "{:.1f} ± {:.1f}, {:.1f} ± {:.1f} and {:.1f} ± {:.1f} %".format(*(tomorrow[1][k] for k in (0, 3, 1, 4, 2, 5)))
        in text
    )
    for seventh in later:
        assert "those of the seventh day {:.1f}, {:.1f} and {:.1f} %".format(*seventh) in text
    assert (
        "without a jump {:.1f}, {:.1f} and {:.1f} %".format(*(100 * none[f"lead_1_week_{week}"] for week in weeks))
        in text
    )


def test_how_often_the_interval_of_a_saving_holds_in_simulated_shops():
    text = " ".join((ROOT / "docs" / "order.md").read_text("utf-8").split())
    rows = [row for row in read(ROOT / "results" / "shop" / "savings.jsonl") if row.problem == "all shops"]
    assert [row.arm for row in rows] == ["all policies", "the best rule of the weeks"]
    for row in rows:
        held = [
            f"{100 * row.metrics[f'held_{n}']:.1f} ± {100 * row.metrics[f'se_held_{n}']:.1f}" for n in (4, 6, 8, 13)
        ]
        assert "{}, {}, {} and {} %".format(*held) in text


def test_what_a_worst_weekday_may_be_by_chance():
    text = " ".join((ROOT / "docs" / "order.md").read_text("utf-8").split())
    row = read(ROOT / "results" / "shop" / "weekdays.jsonl")[0]
    assert f"have a worst one as bad in {100 * row.metrics['chance_weekday']:.0f} % of cases" in text
    for name in ("weekday_1", "weekday_4", "quintile_2"):
        assert row.metrics[name] + 2 * row.metrics[f"se_{name}"] > 0.87
        assert f"{100 * row.metrics[name]:.1f}" in text


def test_how_often_the_interval_of_a_saving_holds():
    text = page("docs/order.md")
    held = {(row.problem, row.arm): row.metrics["held"] for row in read(ROOT / "results" / "shop" / "weeks.jsonl")}
    for weeks in (4, 8, 13, 26):
        now = [held[f"{weeks} weeks, {alike} alike", "waves"] for alike in (0, 0.2, 0.4)]
        cells = [*now, held[f"{weeks} weeks, 0.4 alike", "Student's"]]
        says(text, str(weeks), *(f"{100 * share:.1f} %" for share in cells))


def test_where_a_shops_intervals_hold():
    text, found = page("docs/order.md"), {name: only_step(one) for name, one in rows_of("shop/coverage.jsonl").items()}
    later = {name: only_step(one) for name, one in rows_of("shop/now.jsonl").items()}
    before, now = "one map for all (before)", "calibrated"
    arms = [(found, *key) for key in found["crps"] if key[1] == before or (key[1] == now and key not in later["crps"])]
    shown = [key for key in later["crps"] if key[1] == now or key == ("rossmann-short", "without country")]
    for rows, problem, arm in [*arms, *((later, *key) for key in shown)]:
        (crps,), (held,) = (rows[name][problem, arm].values() for name in ("crps", "all"))
        cells = [f"{crps:.2f}", f"{100 * held:.1f} %"]
        for kind in ("quintile", "weekday"):
            of_kind = [
                one[problem, arm] for name, one in rows.items() if name.startswith(kind) and (problem, arm) in one
            ]
            parts = [100 * value for one in of_kind for value in one.values()]
            cells.append(f"{min(parts):.1f} to {max(parts):.1f}")
        holidays = rows["holidays"].get((problem, arm), {})
        says(text, *cells, *(f"{100 * value:.1f}" for value in holidays.values()))


def test_what_other_thresholds_of_the_default_map_would_cost():
    """The table on the page is that of the rows, and no threshold reaches the aim."""
    sizes, found = (10, 30, 100, 300), {}
    for row in read(ROOT / "results" / "core" / "frontier.jsonl"):
        found.setdefault(row.arm, {})[row.step] = row.metrics["worst_ratio"], row.metrics["harm"]
    text = (ROOT / "docs" / "choose-a-map.md").read_text("utf-8")
    for threshold, by_size in found.items():
        ratios, harms = zip(*(by_size[n] for n in sizes), strict=True)
        cells = [*(f"{ratio:.2f}" for ratio in ratios), *(f"{100 * harm:.1f} %" for harm in harms)]
        assert f"| {threshold} | {' | '.join(cells)} |" in text
        assert min(ratios) > 1.3


def test_what_no_map_can_beat():
    """The table on the page is that of the rows, and with 10, 30 and 100 rows the aim lies below it."""
    found = {row.step: row.metrics for row in read(ROOT / "results" / "core" / "bound.jsonl")}
    text, sizes = (ROOT / "docs" / "choose-a-map.md").read_text("utf-8"), (10, 30, 100, 300)
    for name in ("least_ratio_3", "least_ratio_6", "least_ratio_12", "ratio"):
        assert f" | {' | '.join(f'{found[n][name]:.2f}' for n in sizes)} |" in text
    harms = [100 * found[n]["harm"] for n in sizes]
    assert f" | {' | '.join(f'{harm:.1f} %' for harm in harms)} |" in text
    assert all((found[n]["least_ratio_6"] > 1.3) == (n < 300) for n in sizes)
    assert all(metrics["least_ratio_3"] < metrics["ratio"] for metrics in found.values())
