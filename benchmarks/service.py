"""What the service costs beside the extractor: requests a second, waiting times, and where the rest goes.

    python -m benchmarks.service --out FILE.json

The load comes from a process of its own on the same machine. Nothing else should be running.
"""

import argparse
import http.client
import io
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter

from benchmarks.recogniser import fastest, torch_backend

CLIENTS = (1, 8, 64)
SECONDS = 10.0
BATCH = 32
PICTURES = 16
TAUGHT = 20
AIM_64, AIM_SPREAD = 0.7, 4


def jpegs(side):
    """Return JPEGs with shapes and noise, 4:3, whose short side is `side`."""
    rng, found = np.random.default_rng(0), []
    for _ in range(PICTURES):
        pixels = rng.integers(0, 256, (side // 8, side // 6, 3), dtype=np.uint8)
        image = Image.fromarray(pixels).resize((side * 4 // 3, side)).filter(ImageFilter.GaussianBlur(2))
        content = io.BytesIO()
        image.save(content, "JPEG", quality=90)
        found.append(content.getvalue())
    return found


class Server:
    """`recollect serve` in a process of its own."""

    def __init__(self, *words):
        self._log = tempfile.NamedTemporaryFile()  # noqa: SIM115
        line = [sys.executable, "-m", "recollect.cli", "serve", *map(str, words), "--port", "0"]
        self._process = subprocess.Popen(line, stderr=self._log)
        while not (found := re.search(r":(\d+)\"}", Path(self._log.name).read_text(encoding="utf-8"))):
            if self._process.poll() is not None:
                raise SystemExit(Path(self._log.name).read_text(encoding="utf-8"))
            time.sleep(0.05)
        self.port = int(found[1])
        while not self._is_ready():
            time.sleep(0.1)

    def _is_ready(self):
        try:
            return self.call("GET", "/readyz")[0] == 200
        except OSError:
            return False

    def call(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path, body)
        answer = connection.getresponse()
        found = answer.status, answer.read()
        connection.close()
        return found

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.terminate()
        self._process.wait()


def load(port, clients, seconds, side):
    """Ask as many clients would, each on a connection of its own; print milliseconds and statuses as JSON."""
    requests = [
        b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        for body in jpegs(side)
    ]
    times, wrong = [], []
    ends = time.perf_counter() + seconds

    def ask(number):
        with socket.create_connection(("127.0.0.1", port)) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while (began := time.perf_counter()) < ends:
                sock.sendall(requests[number % PICTURES])
                number += 1
                answer = sock.recv(65536)
                head, _, body = answer.partition(b"\r\n\r\n")
                length = int(re.search(rb"content-length: (\d+)", head)[1])
                while len(body) < length:
                    body += sock.recv(65536)
                times.append((time.perf_counter() - began) * 1000)
                if not head.startswith(b"HTTP/1.1 200 "):
                    wrong.append(head[:12].decode())

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(clients)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - began
    print(json.dumps({"ms": times, "wrong": wrong, "seconds": took, "cpu": time.process_time()}))


def loading(server, clients, side, seconds=SECONDS):
    """Start the load in a process of its own."""
    words = f"from benchmarks.service import load; load({server.port}, {clients}, {seconds}, {side})"
    return subprocess.Popen([sys.executable, "-c", words], stdout=subprocess.PIPE, text=True)


def figures(process):
    found = json.loads(process.communicate()[0])
    times = np.array(found["ms"])
    return {
        "requests_per_second": round(len(times) / found["seconds"], 1),
        "median_ms": round(float(np.median(times)), 2),
        "p99_ms": round(float(np.quantile(times, 0.99)), 2),
        "requests": len(times),
        "failed": len(found["wrong"]),
        "client_us": round(found["cpu"] / len(times) * 1e6, 1),
    }


def apart(call, *words):
    """Return what a function of this module prints, called in a process of its own."""
    line = f"from benchmarks.service import {call}; {call}{words!r}"
    done = subprocess.run([sys.executable, "-c", line], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def extractor(model, threads):
    """Print the pictures a second of the extractor alone, with all threads, for as long as a load lasts."""
    from recollect import Recognizer
    from recollect.modelfile import read_header
    from recollect.system import machine

    machine.prepare(threads)
    backend = Recognizer.load(model, device="cpu")._backend
    size = read_header(model).spec.preprocessing.size
    pixels = np.random.default_rng(0).integers(0, 256, (BATCH, size, size, 3), dtype=np.uint8)
    backend.embed(pixels)
    began, count = time.perf_counter(), 0
    while (took := time.perf_counter() - began) < SECONDS:
        backend.embed(pixels)
        count += BATCH
    print(count / took)


def parts(model):
    """Print what each part of an answer takes on one core, for one picture, in microseconds."""
    from recollect import Recognizer
    from recollect.images import read_pixels
    from recollect.modelfile import read_header
    from recollect.system import machine

    machine.prepare(1)
    recognizer, prepare = Recognizer.load(model, device="cpu"), read_header(model).spec.preprocessing
    bodies = jpegs(256 if prepare.size > 64 else 48)
    pixels = np.stack([read_pixels(body, prepare.size, prepare.short_side) for body in bodies])
    features = recognizer.features(pixels)
    one, decode, answers = fastest(
        lambda: recognizer.features(pixels[:1]),
        lambda: [read_pixels(body, prepare.size, prepare.short_side) for body in bodies],
        lambda: recognizer.predict_features(features),
        times=3,
        rounds=5,
    )
    found = {
        "pass_of_one": one * 1e6,
        "decoding": decode / PICTURES * 1e6,
        "scores_and_answers": answers / PICTURES * 1e6,
    }
    print(json.dumps({name: round(value, 1) for name, value in found.items()}))


def ready_model(threads):
    """`imagenet` against its bare extractor, with pictures of 341 × 256 pixels."""
    report = {"clients": {}}
    before = apart("extractor", "imagenet", threads)
    with Server("imagenet", "--store", "memory:", "--threads", threads, "--device", "cpu") as server:
        figures(loading(server, 8, 256, 3.0))  # warms up
        for clients in CLIENTS:
            report["clients"][str(clients)] = figures(loading(server, clients, 256))
        running = loading(server, 64, 256)
        statuses = [
            server.call("POST", f"/v1/categories?name=new-{number}", body)[0]
            for number, body in zip(range(TAUGHT), jpegs(256) * 2, strict=False)
        ]
        taught = figures(running)
        known = json.loads(server.call("GET", "/v1/categories")[1])["taught"]
    best = (before + apart("extractor", "imagenet", threads)) / 2
    for found in report["clients"].values():
        found["ratio"] = round(found["requests_per_second"] / best, 2)
    full = report["clients"]["64"]
    parts_of_one = apart("parts", "imagenet")
    spent = {"extractor": round(threads * 1e6 / best, 1)}  # with all cores busy, which slows each of them
    spent |= {name: parts_of_one[name] for name in ("decoding", "scores_and_answers")}
    spent["client"] = full["client_us"]
    total = threads * 1e6 / full["requests_per_second"]
    spent |= {"everything_else": round(total - sum(spent.values()), 1), "all": round(total, 1)}
    report |= {
        "extractor_per_second": round(best, 1),
        "core_microseconds_at_64_clients": spent,
        "teaching_under_load": {
            **taught,
            "taught": statuses.count(200),
            "known_afterwards": known,
            "asked_to_teach": TAUGHT,
        },
    }
    return report


def small_model(folder, threads):
    """The cost of a request beside the pass of a small extractor, c64f at 32 × 32."""
    from recollect.modelfile import save_model

    path = folder / "small" / "model.safetensors"
    save_model(path, torch_backend("c64f", 32)._model)
    pass_of_one = apart("parts", str(path))["pass_of_one"]
    with Server(path, "--store", "memory:", "--threads", threads) as server:
        figures(loading(server, 1, 48, 2.0))
        alone = figures(loading(server, 1, 48))
        many = figures(loading(server, 64, 48))
    return {
        "pass_of_one_us": pass_of_one,
        "request_us": round(alone["median_ms"] * 1000),
        "beside_the_extractor_us": round(alone["median_ms"] * 1000 - pass_of_one),
        "requests_per_second_64": many["requests_per_second"],
    }


def main(out=None):
    """Print every figure, and write them to a file."""
    threads = os.cpu_count()
    with tempfile.TemporaryDirectory() as name:
        small = small_model(Path(name), threads)
    ready = ready_model(threads)
    report = {"cores": threads, "seconds": SECONDS, "imagenet": ready, "small": small}
    print("the service; load from another process on this machine")
    print(
        f"c64f at 32×32, 1 client: a request takes {small['request_us']} µs, "
        f"{small['beside_the_extractor_us']} µs beside the pass; {small['requests_per_second_64']:.0f} "
        "requests a second with 64 clients"
    )
    for clients, found in ready["clients"].items():
        aim = f" (aim: at least {AIM_64})" if clients == "64" else ""
        spread = found["p99_ms"] / found["median_ms"]
        more = f", {spread:.1f} × the median (aim: below {AIM_SPREAD})" if clients == "8" else ""
        print(
            f"imagenet, {clients} clients: {found['requests_per_second']:.1f} requests a second, ratio "
            f"{found['ratio']:.2f} to the bare extractor's {ready['extractor_per_second']:.1f}{aim}; median "
            f"{found['median_ms']:.1f} ms, 99th percentile {found['p99_ms']:.1f} ms{more}"
        )
    print(f"core time of a request at 64 clients, µs: {ready['core_microseconds_at_64_clients']}")
    taught = ready["teaching_under_load"]
    print(
        f"teaching under the load of 64 clients: {taught['taught']} of {taught['asked_to_teach']} categories "
        f"confirmed, {taught['known_afterwards']} known afterwards, {taught['failed']} of "
        f"{taught['requests']} requests failed",
        flush=True,
    )
    if out is not None:
        Path(out).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out")
    main(parser.parse_args().out)
