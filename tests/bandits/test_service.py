"""The service example: killed, asked badly, kept waiting; it loses nothing and answers the others."""

import csv
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from calibrl.bandits import CalibratedUCB, NotKept, Policy
from calibrl.bandits.evaluation import read_log
from calibrl.cli import app

SERVICE = Path(__file__).parents[2] / "examples" / "bandit_service.py"
TOKEN = "a secret"
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="kill -9 is POSIX")


class Service:
    """The example as a process of its own. patience: the seconds it gives a client, if not its own."""

    def __init__(self, folder, *, token="", patience=None):
        change = f"import bandit_service as s; s.PATIENCE = {patience or 's.PATIENCE'}; s.main()"
        command = [sys.executable, "-c", change, str(folder), "--snapshot-every", "15"]
        environment = {"PYTHONPATH": f"{SERVICE.parent}:{SERVICE.parents[1]}", "BANDIT_TOKEN": token, "PATH": ""}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        self.url = self.process.stdout.readline().strip()
        self.port = int(self.url.rpartition(":")[2])

    def post(self, path, content, **headers):
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        with urllib.request.urlopen(urllib.request.Request(self.url + path, data, headers), timeout=30) as answer:
            return json.load(answer)

    def send(self, text):
        """What comes back for bytes as they are: the status, and the words of an error."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as connection:
            connection.sendall(text)
            answer = http.client.HTTPResponse(connection)
            answer.begin()
            return answer.status, json.loads(answer.read()).get("error", "")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill(signal.SIGKILL)

    def kill(self, how):
        self.process.send_signal(how)
        self.process.wait(timeout=30)
        self.process.stdout.close()


def visit(service, generator, rewards):
    """One visitor, whose reward is put into `rewards` by id as soon as it is acknowledged."""
    x = generator.standard_normal(3).tolist()
    decision = service.post("/choose", {"x": x})
    reward = float(x[0] > 0) if decision["arm"] == "news" else 0.3
    assert service.post("/reward", {"id": decision["id"], "reward": reward}) == {"learnt": True}
    rewards[decision["id"]] = (x, decision["arm"], reward)


def logged(folder):
    """The rows of the log by id, and how many there are."""
    with (folder / "decisions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {row["id"]: row for row in rows}, len(rows)


def test_nothing_that_was_acknowledged_is_lost_to_kill_9_nor_counted_twice(tmp_path):
    generator = np.random.default_rng(0)
    acknowledged, sent = {}, {}
    for life in range(2):
        service = Service(tmp_path)
        for id, reward in sent.items():  # who heard nothing asks again
            service.post("/reward", {"id": id, "reward": reward})
            assert service.post("/reward", {"id": id, "reward": reward}) == {"learnt": False}
        acknowledged |= sent
        sent = {}
        for _ in range(10):
            visit(service, generator, acknowledged)
        # Killed while rewards are under way: some are on the disk, some are not, nobody was told.
        waiting = [service.post("/choose", {"x": [1.0, 0.0, float(life)]})["id"] for _ in range(8)]
        with ThreadPoolExecutor(4) as pool:

            def reward(id, service=service):
                try:
                    service.post("/reward", {"id": id, "reward": 0.5})
                except (OSError, http.client.HTTPException):
                    return

            under_way = [pool.submit(reward, id) for id in waiting]
            under_way[0].result(timeout=30)
            service.kill(signal.SIGKILL)
        sent = dict.fromkeys(waiting, 0.5)
    with Service(tmp_path) as service:
        for id, reward in sent.items():
            service.post("/reward", {"id": id, "reward": reward})
        acknowledged |= sent
    assert len(acknowledged) == 2 * 18
    assert sum(Policy.load(tmp_path).pulls.values()) == len(acknowledged)
    rows, count = logged(tmp_path)
    assert rows.keys() == acknowledged.keys()
    assert count <= len(rows) + 2 * 8
    told = [row for row in acknowledged.values() if isinstance(row, tuple)]
    for id, (x, arm, reward) in [(id, row) for id, row in acknowledged.items() if isinstance(row, tuple)]:
        found = rows[id]
        assert [float(found[f"x{i}"]) for i in range(3)] == x
        assert (found["arm"], float(found["reward"])) == (arm, reward)
    assert len(told) == 20


def test_its_log_goes_straight_into_an_evaluation(tmp_path):
    generator, rewards = np.random.default_rng(1), {}
    with Service(tmp_path) as service:
        for _ in range(40):
            visit(service, generator, rewards)
        only = service.post("/choose", {"x": [1.0, 2.0, 3.0], "among": ["music"]})
        assert service.post("/reward", {"id": only["id"], "reward": 1})["learnt"]
    log = read_log(tmp_path / "decisions.csv")
    assert log.x.shape == (41, 3)
    assert log.among[-1] == ("music",)
    assert log.propensity[-1] == 1.0
    unbroken = CalibratedUCB(["news", "music"], 3)
    for x, arm, reward in zip(log.x, log.arm, log.reward, strict=True):
        unbroken.update(x, arm, reward)
    found = Policy.load(tmp_path)
    assert found.pulls == unbroken.pulls
    np.testing.assert_allclose(found.ridge.state.moment, unbroken.ridge.state.moment, rtol=1e-9)
    done = CliRunner().invoke(app, ["bandit", "evaluate", str(tmp_path / "decisions.csv"), "--policy", "linucb"])
    assert done.exit_code == 0, done.output


def test_bad_requests_are_answered_with_words(tmp_path):
    with Service(tmp_path) as service:
        assert service.post("/arms", {"add": "sport"})["arms"] == ["news", "music", "sport"]
        decision = service.post("/choose", {"x": [1, 2, 3], "among": ["music"]})
        assert (decision["arm"], decision["probability"]) == ("music", 1.0)
        id = decision["id"]
        for path, content, status, words in (
            ("/reward", {"id": "none", "reward": 1}, 400, "decision 'none' is unknown"),
            ("/reward", {"id": [], "reward": 1}, 400, "unknown"),
            ("/reward", {"id": id, "reward": "a"}, 400, "not made of numbers"),
            ("/reward", b'{"id": "%s", "reward": NaN}' % id.replace('"', '\\"').encode(), 400, "holds nan"),
            ("/reward", {"id": id, "reward": 1e300}, 400, "overflow"),
            ("/reward", {"id": id}, 400, "has keys 'id'; send .* with 'id', 'reward'"),
            ("/choose", {"x": [1, 2]}, 400, "expected"),
            ("/choose", {}, 400, "has keys none; send a JSON object with 'x'"),
            ("/choose", {"x": [1, 2, 3], "among": ["jazz"]}, 400, "jazz"),
            ("/choose", {"x": [1, 2, 3], "among": {"music": 1}}, 400, "x and among have to be lists"),
            ("/choose", {"x": {"a": 1}}, 400, "x and among have to be lists"),
            ("/arms", {"add": "=HYPERLINK(1)"}, 400, "no plain text, or begins like a formula"),
            ("/arms", {"add": "two\nlines"}, 400, "no plain text"),
            ("/arms", b'{"add": "\\ud800"}', 400, "no plain text"),
            ("/choose", 5, 400, "the request has 5; send a JSON object"),
            ("/choose", [1, 2], 400, r"the request has \[1, 2\]; send a JSON object"),
            ("/choose", None, 400, "the request has None"),
            ("/choose", b"not json", 400, "not JSON"),
            ("/choose", b"[" * 60_000, 400, "not JSON"),
            ("/choose", b"\xff" * 8, 400, "not JSON"),
            ("/choose", b"1" * 5000, 400, "not JSON"),
            ("/arms", {"add": "jazz", "remove": "news"}, 400, "with 'remove'"),
            ("/nothing", {"x": [1, 2, 3]}, 404, "/nothing is unknown; known: /choose, /reward, /arms"),
        ):
            with pytest.raises(urllib.error.HTTPError) as failure:
                service.post(path, content)
            assert failure.value.code == status, (path, content)
            assert re.search(words, json.load(failure.value)["error"]), (path, content)
            failure.value.close()
        with urllib.request.urlopen(service.url, timeout=30) as answer:
            assert json.load(answer)["pulls"] == {"news": 0, "music": 0, "sport": 0}
        assert logged(tmp_path) == ({}, 0)


def test_lengths_senders_and_the_token_are_checked(tmp_path):
    with Service(tmp_path, token=TOKEN) as service:
        host = f"Host: 127.0.0.1:{service.port}\r\n"
        body = b'{"x": [1, 2, 3]}'

        def post(*lines, host=host, bearer=TOKEN, body=body):
            head = "".join(f"{line}\r\n" for line in lines)
            token = f"Authorization: Bearer {bearer}\r\n" if bearer else ""
            return service.send(f"POST /choose HTTP/1.1\r\n{host}{token}{head}\r\n".encode() + body)

        fits = f"Content-Length: {len(body)}"
        assert post(fits) == (200, "")
        assert post(fits, f"Origin: http://localhost:{service.port}") == (200, "")
        for found, status, words in (
            (post(), 411, "Content-Length"),
            (post("Content-Length: -5"), 411, "Content-Length"),
            (post("Content-Length: 1e3"), 411, "Content-Length"),
            (post("Content-Length: ²"), 411, "Content-Length"),
            (post(fits, "Content-Length: 2"), 411, "one Content-Length"),
            (post(fits, "Transfer-Encoding: chunked"), 411, "Content-Length"),
            (post("Content-Length: 99999999"), 413, "too long; send 65536 at most"),
            (post(f"Content-Length: {'9' * 5000}"), 413, "too long"),
            (post(fits, bearer=""), 401, "token"),
            (post(fits, bearer="a guess"), 401, "token"),
            (post(fits, "Origin: http://evil.example"), 403, "evil.example"),
            (post(fits, "Origin: null"), 403, "null"),
            (post(fits, host=f"Host: evil.example:{service.port}\r\n"), 403, "not this service"),
            (post(fits, host=""), 403, "not this service"),
            (post(fits, host=host + "Host: evil.example\r\n"), 403, "not this service"),
            (
                post(fits, f"Origin: http://localhost:{service.port}", "Origin: http://evil.example"),
                403,
                "evil.example",
            ),
        ):
            assert found[0] == status, words
            assert words in found[1]


def test_what_a_question_holds_is_not_taken_for_the_next_one(tmp_path):
    """A web server in front would pass on one request where the service saw two."""
    with Service(tmp_path) as service, socket.create_connection(("127.0.0.1", service.port), timeout=30) as connection:
        host = f"Host: 127.0.0.1:{service.port}\r\n"
        hidden = f"POST /arms HTTP/1.1\r\n{host}Content-Length: 14\r\n\r\n" + '{"add":"jazz"}'
        connection.sendall(f"GET / HTTP/1.1\r\n{host}Content-Length: {len(hidden)}\r\n\r\n{hidden}".encode())
        said = b""
        while part := connection.recv(4096):
            said += part
        assert said.count(b"HTTP/1.1") == 1
        assert b"jazz" not in said


def test_a_log_on_a_full_disk_has_whole_rows_alone(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(SERVICE.parent)
    from bandit_service import Log

    log, write = Log(tmp_path / "log.csv", 1), os.write
    log.add("first", [1.0], "a", 1.0, 0.5)
    before = log.path.read_bytes()
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:5]))
    with pytest.raises(NotKept, match="No space left on device"):
        log.add("second", [1.0], "a", 1.0, 0.5)
    assert log.path.read_bytes() == before
    monkeypatch.undo()
    log.add("second", [1.0], "a", 1.0, 0.5)
    assert log.path.read_bytes() == before + b"second,1.0,a,1.0,0.5,\n"


def test_clients_that_say_nothing_keep_nobody_waiting_and_are_let_go(tmp_path):
    with Service(tmp_path, patience=1.5) as service:
        address = ("127.0.0.1", service.port)
        idle = [socket.create_connection(address, timeout=30) for _ in range(64)]
        idle[0].sendall(b"POST /choose HTTP/1.1\r\nContent-Le")
        idle[1].sendall(
            f"POST /choose HTTP/1.1\r\nHost: 127.0.0.1:{service.port}\r\nContent-Length: 9\r\n\r\n1".encode()
        )
        with closing(http.client.HTTPConnection(*address, timeout=30)) as busy:
            began = time.monotonic()
            for _ in range(50):
                busy.request("POST", "/choose", json.dumps({"x": [1.0, 0.0, 0.5]}))
                assert busy.getresponse().read()
            assert time.monotonic() - began < 20
        for connection in idle:
            assert connection.recv(100) == b"", "it was closed"
            connection.close()
        assert service.post("/choose", {"x": [1.0, 0.0, 0.5]})["arm"] in ("news", "music")


START = """
import sys, time
from calibrl.bandits import CalibratedUCB, Durable
with Durable({folder!r}, lambda: CalibratedUCB(["a", "b"], dim=4, scale=True)) as bandit:
    decision = bandit.decide([1.0, 0.0, 0.5, 2.0], id="1")
    bandit.reward("1", 1.0)
    bandit.update([1.0, 0.0, 0.5, 2.0], "b", 0.0)
heavy = "torch scipy.stats scipy.optimize polars pandas sklearn matplotlib typer rich pydantic".split()
print([name for name in heavy if name in sys.modules], time.process_time())
print(open("/proc/self/status").read() if sys.platform == "linux" else "")
"""


def test_a_service_starts_light(tmp_path):
    """What decides and learns takes 0.8 s of CPU and 170 MB to start; 2.0 s and 370 MB if PyTorch comes along."""
    for folder in ("first", "second"):  # the first may have kernels to compile
        program = START.format(folder=str(tmp_path / folder))
        found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    heavy, seconds = found.splitlines()[0].rsplit(maxsplit=1)
    assert heavy == "[]"
    assert float(seconds) < 1.5
    if peak := re.search(r"VmHWM:\s+(\d+) kB", found):
        assert int(peak[1]) < 250_000
