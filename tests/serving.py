"""A service in this process, or in one of its own, for tests and for `make soak`."""

import contextlib
import http.client
import io
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import uvicorn
from PIL import Image

from pictures import pixels_of
from recollect.serve.engine import Engine
from recollect.serve.run import configured
from recollect.serve.settings import Limits, Settings

TOKEN = "a token for tests, long enough"


def picture(seed: int = 0, size: int = 24, kind: str = "PNG") -> bytes:
    """Return the bytes of a picture's file."""
    content = io.BytesIO()
    Image.fromarray(pixels_of(seed, size)).save(content, kind)
    return content.getvalue()


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    content: bytes

    @property
    def json(self):
        return json.loads(self.content)

    @property
    def detail(self) -> str:
        assert self.headers["content-type"] == "application/problem+json"
        assert self.json["status"] == self.status
        return self.json["detail"]


@dataclass
class Service:
    """A running service."""

    url: str
    engine: Engine | None = None
    process: subprocess.Popen | None = None
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        return parts.hostname, parts.port

    def call(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        """Make one request; `content_type=…` stands for the header Content-Type."""
        connection = http.client.HTTPConnection(*self.address, timeout=60)
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            connection.request(method, path, body, {**self.headers, **given})
            found = connection.getresponse()
            return Answer(found.status, {k.lower(): v for k, v in found.getheaders()}, found.read())
        finally:
            connection.close()

    def raw(self, content: bytes, timeout: float = 60) -> bytes:
        """Send bytes, and return all that comes until the connection is closed."""
        with socket.create_connection(self.address, timeout=timeout) as sock:
            sock.sendall(content)
            found = b""
            with contextlib.suppress(ConnectionResetError):
                while part := sock.recv(65536):
                    found += part
        return found


@contextlib.contextmanager
def serving(model: Path, *, limits: Limits | None = None, **settings: object) -> Iterator[Service]:
    """Serve a model from a thread of this process; what is taught is in memory unless `store` says else."""
    given = Settings(**{"model": model, "store": "memory:", "limits": limits or Limits(), **settings})
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    config = configured(given, log=None)
    config.load()
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.01)
    try:
        engine = config.loaded_app._app.state.engine
        yield Service(f"http://127.0.0.1:{sock.getsockname()[1]}", engine)
    finally:
        server.should_exit = True
        thread.join()


@contextlib.contextmanager
def started(*words: object, log: Path, **environment: str) -> Iterator[Service]:
    """Start `recollect serve` in a process of its own, and wait until it is ready."""
    command = [sys.executable, "-m", "recollect.cli", "serve", *map(str, words), "--port", "0"]
    with log.open("ab") as file:
        process = subprocess.Popen(command, stderr=file, env={**os.environ, **environment})
    try:
        while not (found := re.search(r"served at (\S+)\"", log.read_text(encoding="utf-8"))):
            assert process.poll() is None, log.read_text(encoding="utf-8")
            time.sleep(0.05)
        service = Service(found[1].replace("0.0.0.0", "127.0.0.1"), process=process)
        until = time.monotonic() + 120
        while True:
            assert process.poll() is None, log.read_text(encoding="utf-8")
            assert time.monotonic() < until, log.read_text(encoding="utf-8")
            with contextlib.suppress(OSError):
                if service.call("GET", "/readyz").status == 200:
                    break
            time.sleep(0.05)
        yield service
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait()


def form(*fields: tuple[str, str | bytes]) -> tuple[bytes, str]:
    """Return a form and its content type: text for `name`, bytes for `picture`."""
    lines = []
    for name, value in fields:
        file = f'; filename="{name}.png"' if isinstance(value, bytes) else ""
        head = f'--edge\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'
        lines.append(head.encode() + (value if isinstance(value, bytes) else value.encode()) + b"\r\n")
    return b"".join(lines) + b"--edge--\r\n", "multipart/form-data; boundary=edge"


def percentile(values, share: float) -> float:
    return float(np.quantile(np.array(values), share))
