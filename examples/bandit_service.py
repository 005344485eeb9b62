"""A bandit in a web service that survives `kill -9`: every reward it has acknowledged is on disk.

python examples/bandit_service.py FOLDER --port 8080

POST /choose {"x": [0.2, 1.0, -0.4]}                              → {"arm": "news", "probability": 0.95}
POST /choose {"x": [0.2, 1.0, -0.4], "among": ["music"]}          → {"arm": "music", "probability": 1.0}
POST /reward {"x": [0.2, 1.0, -0.4], "arm": "news", "reward": 1}  → {"learnt": 1}
POST /arms   {"add": "sport"}                                     → {"arms": ["news", "music", "sport"]}
GET  /                                                            → {"pulls": {"news": 1, "music": 0}}

A bad request is answered with 400 and {"error": …}. 503 means that the disk is full: nothing was learnt, and the same
request can be sent again. Without FOLDER the example starts a service, sends it some visitors, and stops.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import random
import tempfile
import threading
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from calibrl import CalibrlError
from calibrl.bandits import CalibratedUCB, Durable, NotKept

ARMS, DIM = ("news", "music"), 3


def routes(bandit: Durable) -> dict[str, Callable[[Any], dict[str, Any]]]:
    """The service's POST handlers, by path."""

    def choose(asked: Any) -> dict[str, Any]:
        # Sold out, or not allowed for this visitor: a request may name the arms that are on offer.
        among = asked.pop("among", None) if isinstance(asked, dict) else None
        (x,) = wanted(asked, "x")
        decision = bandit.decide(x, among=among)
        return {"arm": decision.arm, "probability": decision.probability}

    def reward(told: Any) -> dict[str, Any]:
        bandit.update(*wanted(told, "x", "arm", "reward"))
        return {"learnt": sum(bandit.policy.pulls.values())}

    def arms(change: Any) -> dict[str, Any]:
        if isinstance(change, dict) and "remove" in change:
            bandit.remove_arm(*wanted(change, "remove"))
        else:
            bandit.add_arm(*wanted(change, "add"))
        return {"arms": list(bandit.arms)}

    return {"/choose": choose, "/reward": reward, "/arms": arms}


def wanted(body: Any, *keys: str) -> tuple[Any, ...]:
    """The values of exactly these keys of a request, or an error that names what it has instead."""
    if not isinstance(body, dict) or set(body) != set(keys):
        found = f"keys {', '.join(map(repr, body)) or 'none'}" if isinstance(body, dict) else f"{body!r}"
        raise CalibrlError(f"the request has {found}; send a JSON object with {', '.join(map(repr, keys))}")
    return tuple(body[key] for key in keys)


def handler(bandit: Durable) -> type[BaseHTTPRequestHandler]:
    """One request at a time, so the policy needs no lock."""
    answers = routes(bandit)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.reply(200, {"pulls": {str(arm): n for arm, n in bandit.policy.pulls.items()}})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.path not in answers:
                self.reply(404, {"error": f"{self.path} is unknown; known: {', '.join(answers)}"})
                return
            try:
                self.reply(200, answers[self.path](json.loads(body)))
            except NotKept as problem:
                self.reply(503, {"error": str(problem)})
            except CalibrlError as problem:
                self.reply(400, {"error": str(problem)})
            except ValueError as problem:
                self.reply(400, {"error": f"the request is not JSON ({problem}); send a JSON object"})

        def reply(self, status: int, content: dict[str, Any]) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Do not log every request."""

    return Handler


def ask(url: str, content: dict[str, Any]) -> dict[str, Any]:
    """What the service answers."""
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(content).encode()), timeout=10) as answer:
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
        clicks += ask(f"{url}/reward", {"x": x, "arm": decision["arm"], "reward": float(liked)})["learnt"] and liked
    with urllib.request.urlopen(url, timeout=10) as answer:
        print(f"{clicks} of {visitors} visitors liked what they saw: {json.load(answer)['pulls']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", help="where to keep the policy")
    parser.add_argument("--port", type=int, default=0, help="0 picks a free one")
    parser.add_argument("--snapshot-every", type=int, default=1000)
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = options.folder or stack.enter_context(tempfile.TemporaryDirectory())
        # A tenth of the decisions is random, so that other policies can be evaluated from a log of them.
        make = functools.partial(CalibratedUCB, ARMS, DIM, explore=0.1)
        bandit = stack.enter_context(Durable(folder, make, snapshot_every=options.snapshot_every))
        server = stack.enter_context(HTTPServer(("127.0.0.1", options.port), handler(bandit)))
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
