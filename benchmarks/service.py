"""How many requests the example service answers, and whether it loses any when it is killed.

python benchmarks/service.py --out results/reliability/service.jsonl

`examples/bandit_service.py` runs as a process of its own, with idle connections open. Clients ask it one request after
another over connections of their own: first for choices alone, then for a choice and its reward in turns. Requests per
second of wall time depend on what else the machine does, and on the clients, which share it; those per second of the
service's own CPU time hardly do. Then it is killed again and again while clients ask. After each start they send what
was not answered once more; in the end every reward must have been learnt once, and be in the log.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from calibrl.bandits import Policy
from calibrl.runs.rows import Row, append, origin

SERVICE = Path(__file__).parents[1] / "examples" / "bandit_service.py"
LONGEST_WAIT = 30.0
"""Seconds after which an answer is missed."""


@contextlib.contextmanager
def service(folder: Path, idle: int) -> Iterator[tuple[int, psutil.Popen]]:
    """The service's port and process, with so many connections open that send nothing; it is killed in the end."""
    with psutil.Popen([sys.executable, str(SERVICE), str(folder)], stdout=subprocess.PIPE, text=True) as process:
        try:
            port = int(process.stdout.readline().rpartition(":")[2])
            with contextlib.ExitStack() as stack:
                for _ in range(idle):
                    stack.enter_context(socket.create_connection(("127.0.0.1", port), LONGEST_WAIT))
                yield port, process
        finally:
            process.kill()


class Connection:
    """A client's connection: sends a request, reads its answer."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), LONGEST_WAIT)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file, self._port = self._socket.makefile("rb"), port

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._socket.close()

    def ask(self, path: str, content: dict[str, Any]) -> dict[str, Any]:
        """What is answered; a ConnectionError if the service is gone."""
        body = json.dumps(content).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\nContent-Length: {len(body)}\r\n\r\n"
        self._socket.sendall(head.encode() + body)
        status, length = self._file.readline(), 0
        while (line := self._file.readline()) not in (b"\r\n", b""):
            if line.lower().startswith(b"content-length"):
                length = int(line.partition(b":")[2])
        found = self._file.read(length)
        if not line or len(found) < length:
            raise ConnectionError
        assert b" 200 " in status, (status, found)
        answer: dict[str, Any] = json.loads(found)
        return answer


def speed(port: int, process: psutil.Popen, *, clients: int, seconds: float, rewards: bool) -> dict[str, float]:
    """Requests per second of wall time, and of the service's CPU time."""
    stop = time.monotonic() + seconds

    def client(seed: int) -> int:
        luck, done = random.Random(seed), 0
        with Connection(port) as connection:
            while time.monotonic() < stop:
                decision = connection.ask("/choose", {"x": [luck.gauss(0, 1) for _ in range(3)]})
                if rewards:
                    connection.ask("/reward", {"id": decision["id"], "reward": luck.random()})
                done += 1 + rewards
        return done

    before, began = process.cpu_times(), time.monotonic()
    with ThreadPoolExecutor(clients) as pool:
        requests = sum(pool.map(client, range(clients)))
    wall, after = time.monotonic() - began, process.cpu_times()
    cpu = after.user + after.system - before.user - before.system
    return {
        "requests": requests,
        "per_second": requests / wall,
        "per_cpu_second": requests / cpu,
        "cpu_share": cpu / wall,
    }


@dataclass
class Client:
    """Somebody who asks until the service is gone, and then says again what was not answered."""

    luck: random.Random
    answered: list[str] = field(default_factory=list)
    unanswered: dict[str, Any] | None = None

    def work(self, port: int) -> None:
        """Ask until the connection breaks."""
        with contextlib.suppress(ConnectionError), Connection(port) as connection:
            while True:
                if self.unanswered is None:
                    decision = connection.ask("/choose", {"x": [self.luck.gauss(0, 1) for _ in range(3)]})
                    self.unanswered = {"id": decision["id"], "reward": self.luck.random()}
                connection.ask("/reward", self.unanswered)
                self.answered.append(self.unanswered["id"])
                self.unanswered = None


def kills(folder: Path, *, count: int, clients: int, idle: int, seed: int) -> dict[str, float]:
    """How many rewards were answered over so many kills, and how many of them were lost or counted twice."""
    luck = random.Random(seed)
    people = [Client(random.Random(f"{seed} {k}")) for k in range(clients)]
    cut = 0
    for _ in range(count):
        with ThreadPoolExecutor(clients) as pool, service(folder, idle) as (port, process):
            working = [pool.submit(person.work, port) for person in people]
            time.sleep(luck.uniform(0.1, 0.5))
            process.kill()
            for each in working:
                each.result(timeout=LONGEST_WAIT)
        cut += sum(person.unanswered is not None for person in people)
    # What the last kill cut short is said again, too.
    with service(folder, 0) as (port, _):
        for person in filter(lambda person: person.unanswered is not None, people):
            with Connection(port) as connection:
                connection.ask("/reward", person.unanswered or {})
            person.answered.append((person.unanswered or {})["id"])
    with (folder / "decisions.csv").open(newline="") as file:
        logged = {row["id"] for row in csv.DictReader(file)}
    answered = [id for person in people for id in person.answered]
    learnt = sum(Policy.load(folder).pulls.values())
    return {
        "kills": count,
        "cut": cut,
        "answered": len(answered),
        "lost": max(len(answered) - learnt, 0) + len(set(answered) - logged),
        "twice": max(learnt - len(answered), 0),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--idle", type=int, default=64, help="connections that send nothing")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3, help="of the measurements of speed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="where to write rows")
    options = parser.parse_args()
    about = {"clients": options.clients, "idle": options.idle}
    rows: list[Row] = []

    def add(problem: str, seed: int, found: dict[str, float]) -> None:
        print(problem, *(f"{name} {value:.6g}" for name, value in found.items()), sep=", ", flush=True)
        rows.append(Row("service", problem, "example", seed, found, settings=about, origin={} if rows else origin()))

    for seed in range(options.seed, options.seed + options.repeats):
        with tempfile.TemporaryDirectory() as folder, service(Path(folder), options.idle) as (port, process):
            for problem, rewards in (("choosing", False), ("choosing and rewarding", True)):
                found = speed(port, process, clients=options.clients, seconds=options.seconds, rewards=rewards)
                add(problem, seed, found)
    with tempfile.TemporaryDirectory() as folder:
        count, clients, idle = options.kills, options.clients, options.idle
        last = kills(Path(folder), count=count, clients=clients, idle=idle, seed=options.seed)
    add("kills under load", options.seed, last)
    if options.out:
        options.out.unlink(missing_ok=True)
        append(options.out, rows)
    sys.exit(1 if last["lost"] or last["twice"] else 0)


if __name__ == "__main__":
    main()
