"""Planning and training at full size on one GPU, each beside the plain eager version in the same run.

python benchmarks/planning.py --device cuda [--tasks halfcheetah] [--propagations TS1,TSinf] [--quick] [--out …]
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from calibrl.control.arms import arm_named
from calibrl.control.policy import Fleet, Member
from calibrl.control.problems import Task, task
from calibrl.control.settings import PRESETS, SHARED_OUT, ControlSettings
from calibrl.control.trials import view_of
from calibrl.data import Data
from calibrl.forecasters.nets import Nets, Shape
from calibrl.maps import fit_smooth
from calibrl.planning.graph import CapturedPlanner, PlanInputs, Planner, for_device
from calibrl.planning.rollout import stacked_tables
from calibrl.runs import rows as results

FLEETS = {"halfcheetah": 4, "cartpole": 20, "pusher": 20}
"""Agents of the published runs, both arms counted."""

Record = Callable[..., None]


def run(record: Record, tasks: Sequence[str], propagations: Sequence[str], *, quick: bool) -> None:
    """One action of each task, a fleet of each, a late trial of HalfCheetah; quick: only what is fused, no trial."""
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for name, way in itertools.product(tasks, propagations):
        one_action(name, way, record, quick=quick)
    for name, way in itertools.product(tasks, propagations):
        actions_of_a_fleet(name, way, FLEETS[name], record)
    if "DS" in propagations and not quick:
        late_trial(record)


def full_size(name: str, way: str) -> ControlSettings:
    """The published preset, but for the propagation."""
    return replace(PRESETS[name], planner=replace(PRESETS[name].planner, propagation=way))


def title(name: str, way: str) -> str:
    """What rows call a task and a propagation."""
    return name if way == "DS" else f"{name} {way}"


def one_action(name: str, way: str, record: Record, *, quick: bool) -> None:
    """Milliseconds of one planned action: fused, fused and calibrated; unless quick, eager and captured, too."""
    preset, what, name = full_size(name, way), task(name), title(name, way)
    flop = work(preset, what)
    bare, honest = (prepared(preset, what, agents=1, calibrated=flag) for flag in (False, True))
    versions: dict[str, Planner | CapturedPlanner] = {}
    if not quick:
        versions = {"eager PyTorch": bare(fused=False), "reference in a CUDA graph": for_device(bare(fused=False))}
    versions |= {"fused": for_device(bare()), "fused, calibrated": for_device(honest())}
    # All versions in turn, several times: what the machine does to one it does to all.
    found: dict[str, list[float]] = {label: [] for label in versions}
    for _ in range(4):
        for label, plan in versions.items():
            found[label] += milliseconds(plan, repeats=2 if label == "eager PyTorch" else 10)
    eager = found.get("eager PyTorch")
    for label, times in found.items():
        ms = statistics.median(times)
        metrics = {"ms": ms, "tflops": flop / ms / 1e9}
        if eager is not None:
            metrics["speedup"] = statistics.median(eager) / ms
        print(f"{name:17} {label:26} " + "  ".join(f"{key} {value:.2f}" for key, value in metrics.items()), flush=True)
        record(f"plan {name}", label, metrics)
    ratio = statistics.median(found["fused, calibrated"]) / statistics.median(found["fused"])
    print(f"{name:17} calibrated / uncalibrated {ratio:.3f}; aim ≤ 1.05")


def actions_of_a_fleet(name: str, way: str, agents: int, record: Record) -> None:
    """Many agents' actions at once: time for each, and memory."""
    torch.cuda.reset_peak_memory_stats()
    preset, what, name = full_size(name, way), task(name), title(name, way)
    plan = for_device(prepared(preset, what, agents=agents, calibrated=True)())
    ms = statistics.median(milliseconds(plan, repeats=4)) / agents
    gigabytes = torch.cuda.max_memory_allocated() / 2**30
    tflops = work(preset, what) / ms / 1e9
    print(f"{name} × {agents}: {ms:.2f} ms an agent's action, {tflops:.0f} TFLOP/s, "
          f"{gigabytes:.1f} GiB", flush=True)  # fmt: skip
    record(f"fleet {name}", f"{agents} agents", {"ms": ms, "tflops": tflops, "gigabytes": gigabytes})


def late_trial(record: Record, rows: int = 50_000) -> None:
    """A HalfCheetah trial at 50 000 rows: 1000 actions in the environment, scoring left out, and the training."""
    from calibrl.control.trials import run_trial

    preset, what = PRESETS["halfcheetah"], task("halfcheetah")
    view = view_of(what)
    fleet = Fleet(view, [Member(arm_named("calibrated"), 0)], preset, low=what.low, high=what.high, device="cuda")
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, rows, view.inputs, generator=generator)
    y = 0.1 * torch.randn(1, rows, view.outputs, generator=generator)
    fleet.update(Data(x[:, :1000], y[:, :1000]))
    environments = [what.make()]
    run_trial(fleet, environments, steps=3, seeds=[0])
    fleet.update(Data(x[:, 1000 : rows - 1000], y[:, 1000 : rows - 1000]))
    torch.cuda.synchronize()
    began = time.perf_counter()
    run_trial(fleet, environments, steps=1000, seeds=[1])
    torch.cuda.synchronize()
    acted = time.perf_counter()
    fleet.update(Data(x[:, rows - 1000 :], y[:, rows - 1000 :]))
    torch.cuda.synchronize()
    acting, training = acted - began, time.perf_counter() - acted
    print(
        f"halfcheetah trial at {rows} rows: {acting:.1f} s acting + {training:.1f} s training; aim ≤ 20 s", flush=True
    )
    record("trial halfcheetah", "fused", {"acting_s": acting, "training_s": training})


def work(preset: ControlSettings, what: Task) -> float:
    """Floating-point operations that one action takes: a multiplication and an addition for each weight."""
    plan, widths = preset.planner, shape(preset, what).widths
    weights = sum(a * b for a, b in itertools.pairwise(widths))
    networks = 1 if plan.propagation in SHARED_OUT else preset.ensemble.members
    return 2.0 * weights * networks * plan.population_size * plan.particles * plan.horizon * plan.iterations


def shape(preset: ControlSettings, what: Task) -> Shape:
    return Shape(what.input_size, what.target_size, preset.ensemble.hidden, preset.ensemble.members)


def prepared(preset: ControlSettings, what: Task, *, agents: int, calibrated: bool) -> Callable[..., Planner]:
    """What makes a planner, for untrained networks and maps of a forecaster that is too sure of itself."""
    generator = torch.Generator().manual_seed(0)
    sizes = shape(preset, what)
    nets = Nets.fresh(sizes, [torch.Generator().manual_seed(seed) for seed in range(agents)]).to("cuda")
    # Small answers, as trained networks give: untrained ones would leave every real range within a few steps.
    nets.weights[-1].mul_(0.01)
    low, high = what.low.cuda(), what.high.cuda()
    maps = [fit_smooth(z=1.5 * torch.randn(500, sizes.outputs, generator=generator)) for _ in range(agents)]
    inputs = PlanInputs.empty(
        preset.planner.search,
        propagation=preset.planner.propagation,
        particles=preset.planner.particles,
        agents=agents,
        observation_size=what.observation_size,
        outputs=sizes.outputs,
        start=((low + high) / 2).expand(preset.planner.horizon, -1),
        tables=stacked_tables(maps, sizes.outputs, device="cuda") if calibrated else None,
    )
    inputs.observation.normal_(std=0.1)
    inputs.draw([torch.Generator("cuda").manual_seed(seed) for seed in range(agents)])
    return partial(Planner, nets, what.world, inputs, low=low, high=high)


@torch.no_grad()
def milliseconds(plan: Planner | CapturedPlanner, *, repeats: int) -> list[float]:
    """Of single calls, by the GPU's own clock."""
    plan()
    found = []
    for _ in range(repeats):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        answer = plan()
        last.record()
        torch.cuda.synchronize()
        found.append(first.elapsed_time(last))
    assert bool(answer.plan.isfinite().all())
    return found


def run_and_record(out: str | None, tasks: Sequence[str], propagations: Sequence[str], *, quick: bool) -> None:
    """What `run` does, with a row for each number in a .jsonl file if one is named."""
    settings = {"device": torch.cuda.get_device_name()}
    origin = results.origin()

    def record(job: str, version: str, metrics: dict[str, float]) -> None:
        if out:
            results.append(out, [results.Row("gpu speed", job, version, 0, metrics, settings=settings, origin=origin)])

    run(record, tasks, propagations, quick=quick)
