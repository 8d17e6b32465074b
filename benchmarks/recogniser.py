"""What teaching, predicting, scoring and opening a store cost, each against the least that it could."""

import gc
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from recollect import Recognizer
from recollect.model.spec import ModelSpec, Preprocessing
from recollect.modelfile import Header
from recollect.store import Content, Example, Owner, Taught, open_store

WIDTH, BASE = 512, 64
FINGERPRINT = "a model of random vectors"


class GivenFeatures:
    """A backend whose features are given, so that scoring is measured alone."""

    def __init__(self, rows):
        categories = tuple(f"base {number}" for number in range(BASE))
        spec = ModelSpec(extractor="given", preprocessing=Preprocessing(size=1), categories=categories)
        self.header = Header(spec=spec)
        self.fingerprint, self.scale = FINGERPRINT, 10.0
        self.base_vectors = vectors(BASE, 1)
        self._features = vectors(rows, 2)

    def embed(self, pixels):
        return self._features[: len(pixels)]


def vectors(rows, seed):
    return np.random.default_rng(seed).standard_normal((rows, WIDTH), dtype=np.float32)


def fastest(*runs, times=10, rounds=7, clock=time.perf_counter):
    """Return the seconds of each call: the best of some rounds, since others only ever make it slower.

    The calls take turns, so that what slows the machine down for a while slows all of them.
    """
    found = [[] for _ in runs]
    for number in range(rounds + 1):
        for run, seconds in zip(runs, found, strict=True):
            began = clock()
            for _ in range(times if number else 1):  # the first round warms up
                run()
            if number:
                seconds.append((clock() - began) / times)
    return [min(seconds) for seconds in found]


def show(what, ours, least, against, aim):
    print(
        f"{what}: {ours * 1e3:.3f} ms, {against}: {least * 1e3:.3f} ms, ratio {ours / least:.2f} "
        f"(aim: at most {aim}), {(ours - least) * 1e6:.0f} µs more",
        flush=True,
    )


def resident():
    """Return the resident memory of this process in bytes."""
    if sys.platform != "linux":
        return None
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def torch_backend(extractor, size):
    import torch

    from recollect.backends.torch import TorchBackend
    from recollect.model.model import Model

    torch.manual_seed(0)
    categories = tuple(f"base {number}" for number in range(BASE))
    spec = ModelSpec(extractor=extractor, preprocessing=Preprocessing(size=size), categories=categories)
    return TorchBackend(Model(spec))


def beside_the_extractor():
    """Teaching 5 pictures and predicting 1, against the extractor's pass over the same pixels."""
    backend = torch_backend("resnet10", 224)
    recognizer = Recognizer(backend)
    pixels = np.random.default_rng(0).integers(0, 256, (5, 224, 224, 3), dtype=np.uint8)
    numbers = iter(range(10_000))
    teach, five, predict, one = fastest(
        lambda: recognizer.teach(f"category {next(numbers)}", pixels),
        lambda: backend.embed(pixels),
        lambda: recognizer.predict(pixels[0]),
        lambda: backend.embed(pixels[:1]),
        times=3,
    )
    show("teach, resnet10 at 224×224, 5 pictures", teach, five, "a pass on 5", 1.2)
    show("predict, resnet10 at 224×224, 1 picture", predict, one, "a pass on 1", 1.2)


def beside_the_ready_model():
    """Teaching and predicting 1 picture with `imagenet` (1000 base categories, d = 1280), against the pass.

    Alone and beside a process that keeps one core busy: thread pools that fight show there.
    """
    recognizer, taught = (Recognizer.load("imagenet", device="cpu") for _ in range(2))
    backend = recognizer._backend
    pixels = np.random.default_rng(0).integers(0, 256, (224, 224, 3), dtype=np.uint8)
    numbers = iter(range(10_000))
    taught.teach("noise", pixels)

    def teach_and_predict():
        """The vectors of all taught categories are solved when they are next asked for."""
        recognizer.teach(f"category {next(numbers)}", pixels)
        recognizer.predict(pixels)

    for aim, where in ((1.1, "idle"), (1.2, "beside one busy process")):
        busy = None if where == "idle" else subprocess.Popen([sys.executable, "-c", "while True: pass"])
        try:
            both, teach, predict, bare = fastest(
                teach_and_predict,
                lambda: recognizer.teach(f"category {next(numbers)}", pixels),
                lambda: taught.predict(pixels),
                lambda: backend.embed(pixels[None]),
                times=5,
                rounds=15,
            )
        finally:
            if busy is not None:
                busy.kill()
                busy.wait()
        show(f"teach, imagenet, 1 picture, {where}", teach, bare, "a pass", aim)
        show(f"predict, imagenet, 1 picture, {where}", predict, bare, "a pass", aim)
        show(f"teach and the next predict, imagenet, {where}", both, 2 * bare, "two passes", aim)


def solving():
    """Teaching 5 pictures to `imagenet` beside many taught categories, all of which `ridge` solves anew.

    Features are given, so that the extractor's pass is not part of it.
    """
    from recollect.backends.torch import TorchBackend

    backend = TorchBackend.load("imagenet", device="cpu")
    pixels = np.random.default_rng(0).integers(0, 256, (5, 224, 224, 3), dtype=np.uint8)
    (bare,) = fastest(lambda: backend.embed(pixels[:1]), times=5)
    rng, width = np.random.default_rng(0), backend.base_vectors.shape[1]
    backend.embed = lambda some: rng.standard_normal((len(some), width), dtype=np.float32)
    for categories in (10, 100, 1000, 10_000):
        terms = backend.generate(rng.standard_normal((categories * 5, width), dtype=np.float32))
        recognizer = Recognizer(backend)
        recognizer._start(content(terms, 5), None)
        recognizer.predict(pixels[0])
        names = iter(range(10_000))
        (both, predict), (processor, alone) = (
            fastest(
                lambda: (recognizer.teach(f"new {next(names)}", pixels), recognizer.predict(pixels[0])),  # noqa: B023
                lambda: recognizer.predict(pixels[0]),  # noqa: B023
                times=1,
                clock=clock,
            )
            for clock in (time.perf_counter, time.process_time)
        )
        print(
            f"teach, imagenet, 5 pictures, {categories} categories of 5 examples taught before: "
            f"{(both - predict) * 1e3:.1f} ms (aim at 1000: at most 50), "
            f"{(processor - alone) * 1e3:.1f} ms of processor time; "
            f"predict {predict * 1e3:.1f} ms; a pass of the extractor {bare * 1e3:.1f} ms",
            flush=True,
        )


def beside_a_small_extractor(folder):
    """The microseconds that teaching and predicting take beside the pass of a small extractor."""
    backend = torch_backend("c64f", 32)
    pixels = np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)
    memory, sqlite = Recognizer(backend), Recognizer(backend, folder / "small.sqlite")
    numbers = iter(range(10_000))
    five, one, teach, teach_sqlite, predict, predict_sqlite = (
        seconds * 1e6
        for seconds in fastest(
            lambda: backend.embed(pixels),
            lambda: backend.embed(pixels[:1]),
            lambda: memory.teach(f"category {next(numbers)}", pixels),
            lambda: sqlite.teach(f"category {next(numbers)}", pixels),
            lambda: memory.predict(pixels[0]),
            lambda: sqlite.predict(pixels[0]),
            times=20,
        )
    )
    print(
        f"c64f at 32×32, memory store: teach(5) takes {teach - five:.0f} µs beside a pass of {five:.0f} µs, "
        f"predict(1) {predict - one:.0f} µs beside a pass of {one:.0f} µs\n"
        f"with a SQLite store, teach(5) takes {teach_sqlite - teach:.0f} µs more (the commit), "
        f"predict(1) {predict_sqlite - predict:.0f} µs",
        flush=True,
    )


def content(terms, examples):
    """Return a store's content: categories of some terms each, of which features are a copy."""
    categories = len(terms) // examples
    kept = [Example(terms[row], terms[row], None, row + 1, 0.0) for row in range(len(terms))]
    listed = [
        (Taught(id_ + 1, f"category {id_}", examples, 1), kept[id_ * examples : (id_ + 1) * examples])
        for id_ in range(categories)
    ]
    return Content(listed, categories, len(kept))


def scoring(categories):
    """Scores of all base and taught categories, against one product with a matrix of as many rows."""
    matrix = vectors(BASE + categories, 4)
    recognizer = Recognizer(GivenFeatures(64))
    recognizer._start(content(vectors(categories, 3), 1), None)
    for pictures in (1, 64):
        features = vectors(pictures, 2)
        times = max(1, 20_000_000 // (categories * pictures) // 10)
        ours, least = fastest(
            lambda: recognizer._predictor.scores(features),  # noqa: B023
            lambda: features @ matrix.T,  # noqa: B023
            times=times,
        )
        what = f"scores, {categories} taught categories, {pictures} pictures"
        show(what, ours, least, "one matrix product", 1.5 if pictures == 1 else 4)


def in_another_process(what, *arguments):
    """Call a function of this module in a process of its own; return the number that it prints."""
    code = f"from benchmarks import recogniser; print(recogniser.{what}(*{arguments!r}))"
    return float(subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE).stdout)


def fill_file(path, categories, examples):
    store = open_store(path, Owner(FINGERPRINT, WIDTH))
    store.fill(content(vectors(categories * examples, 3), examples))
    store.close()
    return 0


def growth(path):
    """Return how much resident memory a recogniser takes that opens a store and scores a picture."""
    backend = GivenFeatures(1)
    features = vectors(1, 2)
    empty = Recognizer(backend, f"{path}.empty")
    empty._predictor.scores(features)
    gc.collect()
    before = resident()
    recognizer = Recognizer(backend, path)
    recognizer._predictor.scores(features)
    gc.collect()
    return resident() - before


def opening(path):
    """Return the seconds until a recogniser has opened a store and scored a picture."""
    backend = GivenFeatures(1)
    began = time.perf_counter()
    recognizer = Recognizer(backend, path)
    recognizer._predictor.scores(vectors(1, 2))
    return time.perf_counter() - began


def large_stores(folder):
    """Opening 10⁴ categories of 5 examples, and the memory that 10⁵ categories take."""
    path = f"{folder}/five.sqlite"
    in_another_process("fill_file", path, 10_000, 5)
    empty, full = (
        min(in_another_process("opening", place) for _ in range(3))
        for place in (f"{folder}/empty.sqlite", path)
    )
    print(
        f"opening a SQLite store of 10000 categories with 5 examples each: {full:.2f} s, an empty one: "
        f"{empty:.2f} s, {full - empty:.2f} s more (aim: less than 2)",
        flush=True,
    )
    if resident() is not None:
        many = 100_000
        in_another_process("fill_file", f"{folder}/many.sqlite", many, 1)
        grown, matrix = in_another_process("growth", f"{folder}/many.sqlite"), many * WIDTH * 4
        print(
            f"resident memory for {many} taught categories from SQLite: {grown / 1e6:.0f} MB, their matrix: "
            f"{matrix / 1e6:.0f} MB, ratio {grown / matrix:.2f} (aim: at most 1.2)",
            flush=True,
        )


def main():
    """Print every figure."""
    print(f"the recogniser; scores at d = {WIDTH} with {BASE} base categories")
    beside_the_ready_model()
    solving()
    beside_the_extractor()
    with tempfile.TemporaryDirectory() as name:
        beside_a_small_extractor(Path(name))
        for categories in (100, 10_000, 100_000):
            scoring(categories)
        large_stores(Path(name))


if __name__ == "__main__":
    main()
