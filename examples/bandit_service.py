"""A bandit in a web service that survives `kill -9`: every reward it has acknowledged is on disk, and counted once.

python examples/bandit_service.py FOLDER --port 8080

POST /choose {"x": [0.2, 1.0, -0.4]}                      → {"id": "5f0c…", "arm": "news", "probability": 0.95}
POST /choose {"x": [0.2, 1.0, -0.4], "among": ["music"]}  → {"id": "77ab…", "arm": "music", "probability": 1.0}
POST /reward {"id": "5f0c…", "reward": 1}                 → {"learnt": true}; false if it was learnt before
POST /arms   {"add": "sport"}                             → {"arms": ["news", "music", "sport"]}
GET  /                                                    → {"pulls": {"news": 1, "music": 0}}

A request that was not answered can be sent again: a reward counts once, whatever happens. A bad request is answered
with 400 and {"error": …}; 503 means that the disk is full, or that too many clients are connected: nothing was learnt.

FOLDER/decisions.csv has a row for every reward; `calibrl bandit evaluate FOLDER/decisions.csv` says what other policies
would have earned. The service listens on this machine alone. Pages of other sites cannot use it through somebody's
browser; with a token in the environment variable BANDIT_TOKEN, only who sends "Authorization: Bearer TOKEN" can. For
other machines, put a web server that speaks TLS in front of it.

Without FOLDER the example starts a service, sends it some visitors, and stops.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import errno
import functools
import hmac
import io
import json
import os
import random
import socket
import sys
import tempfile
import threading
import time
import traceback
import urllib.request
import uuid
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from calibrl import CalibrlError
from calibrl.bandits import CalibratedUCB, Durable, NotKept
from calibrl.text import for_sheet

ARMS, DIM = ("news", "music"), 3
LONGEST = 64 * 1024
"""Bytes of the longest request."""
PATIENCE = 30.0
"""Seconds a client may take over a request, or keep a connection without one."""
MOST = 512
"""Connections at once. Each has a thread, which costs little while it waits."""


class Log:
    """Decisions whose reward has come, as a CSV file that `calibrl bandit evaluate` reads.

    A row is written before its reward is learnt: what was learnt is in the log, whenever the process is killed. A
    reward that is sent again may be in it twice, under one id, which counts once.
    """

    def __init__(self, path: Path, dim: int) -> None:
        self.path = path
        self._head = ["id", *(f"x{i}" for i in range(dim)), "arm", "reward", "propensity", "among"]
        self._open()

    def _open(self) -> None:
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        written = self.path.read_bytes()
        # What a kill cut short was never acknowledged.
        os.ftruncate(self._file, written.rfind(b"\n") + 1)
        if not written:
            self._write(self._head)

    def add(self, id: str, x: list[float], arm: Any, reward: float, probability: float) -> None:
        """Write a row."""
        _, _, among = id.partition(":")
        self._write([id, *x, arm, reward, probability, among])

    def _write(self, cells: list[Any]) -> None:
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow(cells)
        whole, end = line.getvalue().encode(), os.fstat(self._file).st_size
        try:
            # A disk that is nearly full takes a part, and says so in a number.
            if os.write(self._file, whole) < len(whole):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as problem:
            os.ftruncate(self._file, end)
            raise NotKept(f"{self.path}: cannot be written ({problem.strerror}); make room on the disk") from None


def routes(bandit: Durable, log: Log) -> dict[str, Callable[[Any], dict[str, Any]]]:
    """The service's POST handlers, by path."""
    one_reward = threading.Lock()

    def choose(asked: Any) -> dict[str, Any]:
        # Sold out, or not allowed for this visitor: a request may name the arms that are on offer.
        among = asked.pop("among", None) if isinstance(asked, dict) else None
        (x,) = wanted(asked, "x")
        if not isinstance(x, list) or not isinstance(among, list | None):
            raise CalibrlError("x and among have to be lists: of numbers, and of arms' names")
        # The log has to say which arms were on offer; the id takes that along.
        id = uuid.uuid4().hex + ("" if among is None else f":{json.dumps(among)}")
        decision = bandit.decide(x, among=among, id=id)
        return {"id": decision.id, "arm": decision.arm, "probability": decision.probability}

    def reward(told: Any) -> dict[str, Any]:
        id, value = wanted(told, "id", "reward")
        with one_reward:
            made = bandit.policy.decisions.find(id)
            if made is None:
                return {"learnt": False}
            # Refused here if it cannot be learnt, before it is logged.
            rows = bandit.policy.take(made.x, made.arm, value).rows
            bandit.policy.ridge.judge(rows)
            log.add(id, made.x, made.arm, float(rows.reward[0]), made.probability)
            return {"learnt": bandit.reward(id, value)}

    def arms(change: Any) -> dict[str, Any]:
        if isinstance(change, dict) and "remove" in change:
            bandit.remove_arm(*wanted(change, "remove"))
        else:
            (name,) = wanted(change, "add")
            # The log is a table that somebody may open as a sheet.
            if isinstance(name, str) and (not name.isprintable() or for_sheet(name) != name):
                raise CalibrlError(f"arm {name!r} is no plain text, or begins like a formula; use another name")
            bandit.add_arm(name)
        return {"arms": list(bandit.arms)}

    return {"/choose": choose, "/reward": reward, "/arms": arms}


def wanted(body: Any, *keys: str) -> tuple[Any, ...]:
    """The values of exactly these keys of a request, or an error that names what it has instead."""
    if not isinstance(body, dict) or set(body) != set(keys):
        found = f"keys {', '.join(map(repr, body)) or 'none'}" if isinstance(body, dict) else f"{body!r:.80}"
        raise CalibrlError(f"the request has {found}; send a JSON object with {', '.join(map(repr, keys))}")
    return tuple(body[key] for key in keys)


class Refused(Exception):
    """A request that is answered with this status and these words, and nothing else is read of its connection."""


def handler(bandit: Durable, log: Log, token: str = "") -> type[BaseHTTPRequestHandler]:
    """A class that answers the requests of one connection, one after another."""
    answers = routes(bandit, log)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # connections stay open
        disable_nagle_algorithm = True
        wbufsize = -1  # head and body leave together

        def parse_request(self) -> bool:
            self.server.since[self.connection] = time.monotonic()
            return super().parse_request()

        def do_GET(self) -> None:
            # What it might hold is not read, and must not be taken for the next request.
            self.close_connection |= not {"Content-Length", "Transfer-Encoding"}.isdisjoint(self.headers)
            self.answer(lambda: {"pulls": {str(arm): n for arm, n in bandit.pulls.items()}})

        def do_POST(self) -> None:
            self.answer(self.post)

        def post(self) -> dict[str, Any]:
            body = self.body()
            if self.path not in answers:
                raise Refused(404, f"{self.path} is unknown; known: {', '.join(answers)}")
            try:
                found = json.loads(body)
            except (ValueError, RecursionError) as problem:
                raise CalibrlError(f"the request is not JSON ({problem}); send a JSON object") from None
            return answers[self.path](found)

        def answer(self, found: Callable[[], dict[str, Any]]) -> None:
            try:
                self.check_sender()
                self.reply(200, found())
            except Refused as problem:
                self.close_connection = True
                self.reply(*problem.args)
            except NotKept as problem:
                self.reply(503, str(problem))
            except CalibrlError as problem:
                self.reply(400, str(problem))
            except OSError:
                self.close_connection = True  # the client is gone, or was too slow
            except Exception:  # of a bug, which must cost one request and not the service
                traceback.print_exc()
                self.close_connection = True
                self.reply(500, "the service failed; its log says why")

        def check_sender(self) -> None:
            """Refuse what somebody's browser was made to send by a page of another site, and who lacks the token."""
            port = self.server.server_address[1]
            ours = {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}
            # A name of another site may lead here, too; then its pages are no strangers to a browser.
            hosts, origins = (self.headers.get_all(name) or [] for name in ("Host", "Origin"))
            if len(hosts) != 1 or hosts[0] not in ours:
                raise Refused(403, f"host {', '.join(hosts) or None!r} is not this service; ask 127.0.0.1:{port}")
            if {*origins} - {f"http://{name}" for name in ours}:
                raise Refused(403, f"pages of {', '.join(origins)!r} may not use this service")
            given = self.headers.get("Authorization", "").encode("latin-1", "replace")
            if token and not hmac.compare_digest(given, f"Bearer {token}".encode()):
                raise Refused(401, "send the service's token: Authorization: Bearer …")

        def body(self) -> bytes:
            """What the request holds: as many bytes as it says, and not too many."""
            length = self.headers.get_all("Content-Length") or []
            if (
                len(length) != 1
                or not (length[0].isascii() and length[0].isdigit())
                or "Transfer-Encoding" in self.headers
            ):
                raise Refused(411, "send one Content-Length, a whole number of bytes")
            if len(length[0]) > 9 or int(length[0]) > LONGEST:
                raise Refused(413, f"a request of {length[0]:.20} bytes is too long; send {LONGEST} at most")
            found = self.rfile.read(int(length[0]))
            if len(found) != int(length[0]):
                raise ConnectionError
            return found

        def reply(self, status: int, content: dict[str, Any] | str) -> None:
            body = json.dumps(content if isinstance(content, dict) else {"error": content}).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            if self.close_connection:
                self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body)
            self.server.since[self.connection] = time.monotonic()

        def log_message(self, *_: Any) -> None:
            """Do not log every request."""

    return Handler


class Server(ThreadingHTTPServer):
    """A thread for each connection, so many at most, none of which can keep its place without using it."""

    request_queue_size = 128

    def __init__(self, *arguments: Any) -> None:
        self.since: dict[socket.socket, float] = {}
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begin with a connection."""
        if len(self.since) >= MOST:
            with contextlib.suppress(OSError):
                request.send(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            self.shutdown_request(request)
            return
        self.since[request] = time.monotonic()
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """End connections whose last answer is too long ago; called twice a second."""
        late = time.monotonic() - PATIENCE
        for request, since in list(self.since.items()):
            if since < late:
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:
        """End a connection."""
        self.since.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, *_: Any) -> None:
        """Say what failed, unless a client left in the middle."""
        if not isinstance(sys.exception(), OSError):
            traceback.print_exc()


def ask(url: str, content: dict[str, Any]) -> dict[str, Any]:
    """What the service answers."""
    # The first decision on a machine waits for the compiler, whose result is kept.
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(content).encode()), timeout=60) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def visit(url: str, visitors: int = 200) -> None:
    """Visitors who like news when x[0] > 0 and music now and then."""
    generator = random.Random(0)
    clicks = 0
    for _ in range(visitors):
        x = [generator.gauss(0, 1), generator.gauss(0, 1), 1.0]
        decision = ask(f"{url}/choose", {"x": x})
        liked = x[0] > 0 if decision["arm"] == "news" else generator.random() < 0.4
        clicks += ask(f"{url}/reward", {"id": decision["id"], "reward": float(liked)})["learnt"] and liked
    with urllib.request.urlopen(url, timeout=60) as answer:
        print(f"{clicks} of {visitors} visitors liked what they saw: {json.load(answer)['pulls']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", help="where to keep the policy")
    parser.add_argument("--port", type=int, default=0, help="0 picks a free one")
    parser.add_argument("--snapshot-every", type=int, default=1000)
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(options.folder or stack.enter_context(tempfile.TemporaryDirectory()))
        # A tenth of the decisions is random, so that other policies can be evaluated from a log of them.
        make = functools.partial(CalibratedUCB, ARMS, DIM, explore=0.1)
        bandit = stack.enter_context(Durable(folder, make, snapshot_every=options.snapshot_every))
        answering = handler(bandit, Log(folder / "decisions.csv", DIM), os.environ.get("BANDIT_TOKEN", ""))
        server = stack.enter_context(Server(("127.0.0.1", options.port), answering))
        url = f"http://127.0.0.1:{server.server_port}"
        print(url, flush=True)
        if options.folder:
            stack.enter_context(contextlib.suppress(KeyboardInterrupt))
            server.serve_forever()
        else:
            threading.Thread(target=server.serve_forever).start()
            stack.callback(server.shutdown)
            visit(url)


if __name__ == "__main__":
    main()
