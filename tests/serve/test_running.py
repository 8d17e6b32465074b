"""The service as a process: it starts, logs, counts, and ends without losing a request."""

import json
import re
import signal
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from recollect.modelfile import save_model
from serving import TOKEN, picture, serving, started

PICTURES = [picture(seed) for seed in range(4)]


@pytest.fixture
def folder(tmp_path, make_model):
    save_model(tmp_path / "run" / "model.safetensors", make_model())
    return tmp_path / "run"


def lines(log):
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def opened(tmp_path, monkeypatch):
    """Check that the page of a service was opened once, at an address where it can be reached."""
    pages, browser = tmp_path / "opened", tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$@" >> {pages}\n', encoding="utf-8")
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", str(browser))

    def check(service):
        assert pages.read_text(encoding="utf-8") == f"http://127.0.0.1:{service.address[1]}/\n"

    return check


def test_it_starts_opens_the_page_teaches_logs_and_ends_on_sigterm(folder, tmp_path, opened):
    log = tmp_path / "log"
    words = ("--token", TOKEN, "--threads", "1", "--host", "0.0.0.0", "--open")
    with started(folder, *words, log=log) as service:
        shown = Path(f"/proc/{service.process.pid}/cmdline").read_bytes()
        assert b"serve" in shown
        assert TOKEN.encode() not in shown
        service.headers = {"Authorization": f"Bearer {TOKEN}"}
        assert service.call("POST", "/v1/categories?name=okapi", PICTURES[0]).status == 200
        assert service.call("POST", "/v1/predict", PICTURES[1]).status == 200
        figures = service.call("GET", "/metrics").content.decode()
        service.process.terminate()
        assert service.process.wait(30) == 0
        opened(service)
    taught, predicted = (one for one in lines(log) if one.get("method") == "POST")
    assert (taught["path"], taught["status"], taught["pictures"]) == ("/v1/categories", 200, 1)
    assert (predicted["path"], predicted["bytes"]) == ("/v1/predict", len(PICTURES[1]))
    assert TOKEN not in log.read_text(encoding="utf-8")
    assert 'recollect_requests_total{method="POST",route="/v1/predict",status="200"} 1.0' in figures
    assert (folder / "taught.sqlite").exists()


def test_every_request_that_was_accepted_is_answered_after_sigterm(folder, tmp_path):
    with started(folder, "--threads", "1", log=tmp_path / "log") as service:
        stop, statuses, broken = threading.Event(), [], []

        def ask(number):
            while not stop.is_set():
                with socket.create_connection(service.address, timeout=30) as sock:
                    body = PICTURES[number % 4]
                    head = (
                        f"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
                    )
                    sock.sendall(head.encode() + body[:-1])
                    time.sleep(0.05)  # so that some are in the middle of it
                    sock.sendall(body[-1:])
                    found = sock.recv(65536)
                    (statuses if found.startswith(b"HTTP/1.1 200 ") else broken).append(found)

        def quietly(number):
            try:
                ask(number)
            except OSError:  # refused or reset: it was never accepted
                broken.append(None)

        with ThreadPoolExecutor(8) as pool:
            for number in range(8):
                pool.submit(quietly, number)
            time.sleep(1)
            service.process.send_signal(signal.SIGTERM)
            assert service.process.wait(30) == 0
            stop.set()
    answered = sum(one.get("status") == 200 and one["method"] == "POST" for one in lines(tmp_path / "log"))
    assert len(statuses) == answered > 8
    assert [one for one in broken if one] == []


@pytest.mark.slow
def test_workers_see_each_others_categories_at_once(folder, tmp_path, opened):
    words = ("--workers", "2", "--threads", "1", "--open")
    with started(folder, *words, log=tmp_path / "log") as service:
        for number in range(6):
            name = f"category-{number}"
            assert service.call("POST", f"/v1/categories?name={name}", PICTURES[number % 4]).status == 200
            for _ in range(6):  # each on a connection of its own, so that either worker may get it
                found = service.call("POST", "/v1/predict?among=novel&top=50", PICTURES[0]).json
                assert name in [one["category"] for one in found["predictions"][0]["answers"]]
        count = r'recollect_requests_total\{method="POST",route="/v1/predict",status="200"\} (\S+)'
        until = time.monotonic() + 10  # a request is counted after its answer has gone
        while (told := re.search(count, service.call("GET", "/metrics").content.decode())[1]) != "36.0":
            assert time.monotonic() < until, told
            time.sleep(0.05)
        children = (
            Path(f"/proc/{service.process.pid}/task/{service.process.pid}/children").read_text().split()
        )
        assert len(children) >= 2
        service.process.terminate()
        assert service.process.wait(30) == 0
        opened(service)


def test_it_does_not_start_where_it_cannot(refused, folder, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        assert f"cannot listen on 127.0.0.1, port {port}" in refused("serve", folder, "--port", port)
    assert "there is no model at" in refused("serve", tmp_path / "nothing")
    assert "set a token" in refused("serve", folder, "--host", "0.0.0.0")
    assert "cannot use cert.pem" in refused("serve", folder, "--tls-cert", "cert.pem", "--tls-key", "key.pem")


def test_https(model, tmp_path):
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    words = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    more = ["-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", cert]
    try:
        subprocess.run([*words, *more], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    import ssl
    import urllib.request

    with serving(model, tls_cert=cert, tls_key=key) as service:
        url = service.url.replace("http://127.0.0.1", "https://localhost")
        trusted = ssl.create_default_context(cafile=cert)
        with urllib.request.urlopen(f"{url}/healthz", context=trusted, timeout=30) as answer:
            assert json.load(answer) == {"status": "ok"}
