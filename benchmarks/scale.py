"""How everything grows from a thousand to a million taught categories, in PostgreSQL and in an SQLite file.

    python -m benchmarks.scale [--most 1000000] [--out docs/results]

writes scale.json, scale.png and scale.md. It needs 6 GB of memory and 20 GB of disk.

Vectors have d = 512. Clustered ones are like those of photographs: a thousand categories around each of many
centres, fewer strong directions than weak ones, and a mean that is not zero. Random ones have no structure at
all. A picture is a category's vector with noise; the cosine of the two is 0.78.
"""

import argparse
import json
import multiprocessing
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from benchmarks.recogniser import BASE, FINGERPRINT, WIDTH, GivenFeatures
from databases import Database
from recollect import Recognizer
from recollect.recognition import many
from recollect.recognition.scoring import softmax
from recollect.recognition.vectors import VectorTable, unit
from recollect.store import Example, Owner, Taught, fold, open_store
from recollect.store.sql import _row, checksum

SIZES = [10**3, 10**4, 10**5, 10**6]
CROSSING = [5_000, 10_000, 20_000, 30_000, 40_000, 50_000, 70_000, 100_000]
BLOCK = 10_000
QUERIES, TEACHES, TOP = 60, 60, 5
OWNER = Owner(FINGERPRINT, WIDTH)


class Backend(GivenFeatures):
    def __init__(self):
        super().__init__(1)

    def generate(self, features):
        return unit(features)

    def compose(self, mean, examples):  # noqa: ARG002
        return mean


def made(kind, block):
    """Return the features of a block of categories."""
    rng = np.random.default_rng([7, block])
    values = rng.standard_normal((BLOCK, WIDTH), dtype=np.float32)
    if kind == "clustered":
        centres = np.random.default_rng([8, block]).standard_normal((BLOCK // 1000, WIDTH), dtype=np.float32)
        values = 0.7 * values + np.repeat(centres, 1000, axis=0)
        values = values * np.arange(1, WIDTH + 1, dtype=np.float32) ** np.float32(-0.3) + np.float32(0.05)
    return unit(values)


def pictures(vectors, seed=3):
    noise = np.random.default_rng(seed).standard_normal(vectors.shape, dtype=np.float32)
    return unit(vectors + np.float32(0.8 / WIDTH**0.5) * noise)


def fill(url, first, last):
    """Put categories straight into the tables, as a thousand servers over months would."""
    began = time.perf_counter()
    with closing(open_store(url, OWNER)) as store:
        for block in range(first // BLOCK, -(-last // BLOCK)):
            values = made("clustered", block)
            ids = [
                number + 1 for number in range(block * BLOCK, (block + 1) * BLOCK) if first <= number < last
            ]
            rows = [(id_, f"category {id_}", fold(f"category {id_}"), 1, 1) for id_ in ids]
            ours = (values[id_ - 1 - block * BLOCK] for id_ in ids)
            kept = [Example(one, one, None, id_, 1.8e9) for id_, one in zip(ids, ours, strict=True)]
            with store._transaction():
                store._insert("categories", [(*row, checksum(*row)) for row in rows])
                store._insert("examples", [_row(one, one.id) for one in kept])
    return time.perf_counter() - began


def resident():
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def timed(run, each):
    """Return the median and the worst milliseconds of a call for each of some things."""
    seconds = []
    for one in each:
        began = time.perf_counter()
        run(one)
        seconds.append(time.perf_counter() - began)
    return {
        "median": round(1e3 * statistics.median(seconds), 2),
        "p95": round(1e3 * float(np.quantile(seconds, 0.95)), 2),
    }


def synced(folder):
    """Return the milliseconds that the disk takes to write 8 kB for good."""
    with tempfile.TemporaryFile(dir=folder) as file:

        def write(_):
            file.write(bytes(8192))
            file.flush()
            os.fdatasync(file.fileno())

        return timed(write, range(100))


def crossing(answers):
    """Compare `predict` with and without an index, for ever more categories."""
    recognizer = Recognizer(Backend())
    recognizer._known.most_exact = 10**9
    rows, last = [], 0
    for size in CROSSING:
        for first in range(last, size, BLOCK // 2):
            start = first % BLOCK
            values = made("clustered", first // BLOCK)[start : start + BLOCK // 2]
            ids = range(first + 1, first + 1 + len(values))
            taught = [Taught(id_, f"category {id_}", 1, 1) for id_ in ids]
            recognizer._known._learn(taught, [(id_, one[None]) for id_, one in zip(ids, values, strict=True)])
        places = np.random.default_rng(1).choice(size, QUERIES, replace=False)
        features, row = pictures(recognizer._known.vectors.rows(places)), {"categories": size}
        index = many.ManyVectors(
            recognizer._known.vectors, recognizer._known.examples_of, recognizer._known._lifts
        )
        for name, searched in (("exact_ms", None), ("index_ms", index)):
            recognizer._known.many = searched
            recognizer.predict_features(features[:1])
            row[name] = timed(lambda one: recognizer.predict_features(one[None], TOP), features)["median"]
        recognizer._known.many, last = None, size
        rows.append(row)
    answers.put(rows)


def crossed(rows):
    """Return where the two lines through what was measured cross."""
    gaps = [row["exact_ms"] - row["index_ms"] for row in rows]
    sizes = [row["categories"] for row in rows]
    for place, gap in enumerate(gaps):
        if gap > 0:
            if not place:
                return sizes[0]
            share = -gaps[place - 1] / (gap - gaps[place - 1])
            return round(int(sizes[place - 1] + share * (sizes[place] - sizes[place - 1])), -3)
    return sizes[-1]


def recall(table, searched, features):
    """Return the share of the exact best five that the index finds."""
    found = 0
    exact = table.products(features)
    for place, (near, _) in enumerate(searched.near(features)):
        best = np.argsort(-exact[place], kind="stable")[:TOP] + 1
        found += len(np.intersect1d(best, near.ids[np.argsort(-near.scores)[:TOP]]))
    return round(found / (TOP * len(features)), 4)


def measure_random(size, answers):
    table = VectorTable(WIDTH)
    for block in range(-(-size // BLOCK)):
        values = made("random", block)[: size - block * BLOCK]
        table.put_all(np.arange(len(values)) + block * BLOCK + 1, values)
    searched = many.ManyVectors(table, lambda ids: np.ones(len([*ids]), np.int64), lambda counts: 0 * counts)
    rows = np.random.default_rng(1).choice(size, QUERIES, replace=False)
    answers.put({"recall_random": recall(table, searched, pictures(table.rows(rows)))})


def measure(url, size, answers):
    """Open the store in this new process, and measure everything."""
    backend, before = Backend(), resident()
    began = time.perf_counter()
    recognizer = Recognizer(backend, url)
    row = {"categories": size, "start_seconds": round(time.perf_counter() - began, 2)}
    row |= {
        "search": recognizer.search,
        "memory_bytes": resident() - before,
        "vector_bytes": 4 * WIDTH * size,
    }
    row["peak_bytes"] = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    table = recognizer._known.vectors
    rows = np.random.default_rng(1).choice(size, QUERIES, replace=False)
    features = pictures(table.rows(rows))
    recognizer.predict_features(features[:1])
    row["top5_ms"] = timed(lambda one: recognizer.predict_features(one[None], TOP), features)
    if recognizer._known.many is not None:
        shortlists = recognizer._predictor._shortlists(features, "all")
        near = np.array(
            [one.shares(backend.header.calibration.biases, 1.0)[BASE:].max() for one in shortlists]
        )
        exact = recognizer._predictor.scores(features)
        shares = softmax(np.concatenate([exact.base, exact.novel], axis=1).astype(np.float64))
        best = shares[:, BASE:].max(axis=1)
        row["probability_error"] = {
            "mean": round(float(np.abs(near / best - 1).mean()), 5),
            "worst": round(float(np.abs(near / best - 1).max()), 5),
        }
        row["recall"] = recall(table, recognizer._known.many, features)
    row["exact_ms"] = timed(
        lambda one: table.products(one[None]).argmax(), features[:: 1 if size < 10**6 else 6]
    )
    answers.put(row | changes(recognizer, features))


def measure_sqlite(path, size, answers):
    """Open the file in this new process, and measure what differs from PostgreSQL."""
    backend = Backend()
    began = time.perf_counter()
    recognizer = Recognizer(backend, path)
    row = {"start_seconds": round(time.perf_counter() - began, 2)}
    rows = np.random.default_rng(1).choice(size, TEACHES, replace=False)
    answers.put(row | changes(recognizer, pictures(recognizer._known.vectors.rows(rows))))


def changes(recognizer, features):
    """Return what teaching and forgetting take; the recogniser is closed."""
    new, before = pictures(features, 11), time.process_time()
    names = [f"new {number}" for number in range(TEACHES)]
    row = {"teach_ms": timed(lambda k: recognizer.teach_features([names[k]], new[k : k + 1]), range(TEACHES))}
    row["teach_core_ms"] = round(1e3 * (time.process_time() - before) / TEACHES, 2)
    found = [recognizer.predict_features(new[k : k + 1], 1)[0][0].category for k in range(TEACHES)]
    row |= {"taught_are_found": found == names, "forget_ms": timed(recognizer.forget, names)}
    recognizer.close()
    return row


def apart(function, *words):
    """Run a function in a new process; return what it answers."""
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    process = context.Process(target=function, args=(*words, answers))
    process.start()
    found = answers.get()
    process.join()
    return found


def ridge(sizes):
    """Return the milliseconds that one teach takes where all vectors are solved together."""
    import torch

    from recollect.recognition.ridge import SolvedVectors

    def solve(moments, sums):
        matrix = torch.from_numpy((moments + np.eye(WIDTH)).astype(np.float32))
        return (
            torch.cholesky_solve(torch.from_numpy(sums).T, torch.linalg.cholesky(matrix))
            .T.contiguous()
            .numpy()
        )

    found = {}
    for size in sizes:
        solved = SolvedVectors(WIDTH, solve)
        values = np.concatenate([made("clustered", block) for block in range(-(-size // BLOCK))])
        for id_ in range(size):
            solved.put(id_, values[id_ : id_ + 1])
        solved.solve()
        seconds = []
        for turn in range(3):
            solved.put(size + turn, pictures(values[turn : turn + 1]))
            began = time.perf_counter()
            solved.solve()
            seconds.append(time.perf_counter() - began)
        found[str(size)] = round(1e3 * min(seconds), 1)
    return found


def draw(report, path):
    """Draw how each figure grows."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    rows = report["rows"]
    sizes = [row["categories"] for row in rows]
    figure, axes = plt.subplots(2, 2, figsize=(10, 7.2), layout="constrained")
    panels = (
        (
            "top 5 of a picture, ms",
            {
                "predict": [row["top5_ms"]["median"] for row in rows],
                "a product with each": [row["exact_ms"]["median"] for row in rows],
            },
            25,
        ),
        (
            "teach one category, ms",
            {
                "PostgreSQL": [row["teach_ms"]["median"] for row in rows],
                "SQLite": [row["sqlite"]["teach_ms"]["median"] for row in rows],
            },
            5,
        ),
        (
            "memory, MB",
            {
                "server": [row["memory_bytes"] / 1e6 for row in rows],
                "the vectors alone": [row["vector_bytes"] / 1e6 for row in rows],
            },
            None,
        ),
        (
            "start from the store, s",
            {
                "PostgreSQL": [row["start_seconds"] for row in rows],
                "SQLite": [row["sqlite"]["start_seconds"] for row in rows],
            },
            60,
        ),
    )
    for axis, (title, lines, aim) in zip(axes.flat, panels, strict=True):
        for name, values in lines.items():
            axis.loglog(sizes, values, "o-", label=name)
        if aim is not None:
            axis.axhline(aim, color="grey", linestyle=":", label=f"aim: {aim}")
        axis.set(title=title, xlabel="taught categories")
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter("")
        axis.grid(visible=True, which="major", alpha=0.3)
        axis.legend()
    figure.savefig(path, dpi=80)


def page(report):
    """Return the figures as a page."""
    cells = [
        (
            spaced(row["categories"]),
            row["search"],
            f"{row['top5_ms']['median']} / {row['top5_ms']['p95']}",
            f"{row['exact_ms']['median']}",
            f"{row.get('recall', 1)} / {row['recall_random']}",
            f"{100 * row['probability_error']['mean']:.2f} %" if "probability_error" in row else "–",
            f"{row['memory_bytes'] / 1e6:.0f} ({row['memory_bytes'] / row['vector_bytes']:.1f} ×)",
        )
        for row in report["rows"]
    ]
    head = (
        "taught",
        "search",
        "top 5, ms: median / 95 %",
        "a product with each, ms",
        "recall@5: clustered / random",
        "error of probabilities",
        "memory, MB (of the vectors)",
    )
    kept = [
        (
            spaced(row["categories"]),
            *(
                value
                for one in (row, row["sqlite"])
                for value in (
                    f"{one['start_seconds']}",
                    f"{one['teach_ms']['median']} / {one['teach_ms']['p95']}",
                    f"{one['teach_core_ms']}",
                    f"{one['forget_ms']['median']}",
                )
            ),
        )
        for row in report["rows"]
    ]
    kept_head = [
        f"{store}: {what}"
        for store in ("PostgreSQL", "SQLite")
        for what in ("start, s", "teach, ms: median / 95 %", "of it in this process, core-ms", "forget, ms")
    ]
    crossing_rows = [
        (spaced(row["categories"]), f"{row['exact_ms']}", f"{row['index_ms']}") for row in report["crossing"]
    ]
    solved = ", ".join(f"{ms} ms at {spaced(int(size))}" for size, ms in report["ridge_teach_ms"].items())
    return (
        "# Figures of scale\n\n"
        "    python -m benchmarks.scale\n\n"
        f"wrote this page, scale.json and the picture in {report['seconds'] / 60:.0f} minutes: d = "
        f"{report['width']}, {report['cores']} cores, stores on the same machine, whose load was "
        f"{report['load']} when it began (below 1 on an idle one). The extractor's time is not in it. "
        "[Scale](../scale.md) says what the figures mean.\n\n"
        f"{table(head, cells)}\n\n"
        "A start reads what the operating system still has in memory. A taught category is on disk before "
        f"the call returns: this disk takes {report['sync_ms']['median']} ms (median; 95 %: "
        f"{report['sync_ms']['p95']} ms) to write 8 kB for good. PostgreSQL waits for one such write, SQLite "
        "for several.\n\n"
        f"{table(('taught', *kept_head), kept)}\n\n"
        "![How each figure grows with the number of taught categories](scale.png)\n\n"
        "`predict` with one picture, ms, by a product with each category and through the index:\n\n"
        f"{table(('taught', 'a product with each', 'index'), crossing_rows)}\n\n"
        f"The two cross at about {spaced(report['crossed'])} categories; `predict` changes over at "
        f"{spaced(report['exact_up_to'])}.\n\n"
        f"With the generator `ridge`, solving all vectors after a change takes {solved}.\n"
    )


def spaced(number):
    """Return a number with spaces between its thousands."""
    return f"{number:,}".replace(",", " ")


def table(head, rows):
    """Return a table in Markdown."""
    lines = [" | ".join(row) for row in (head, ["---"] * len(head), *rows)]
    return "\n".join(f"| {line} |" for line in lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=SIZES[-1])
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    given = parser.parse_args()
    sizes = [size for size in SIZES if size <= given.most]
    began = time.perf_counter()
    load = round(os.getloadavg()[0], 1)
    report = {
        "width": WIDTH,
        "cores": os.cpu_count(),
        "load": load,
        "exact_up_to": many.MOST_EXACT,
        "rows": [],
    }
    report["crossing"] = apart(crossing)
    report["crossed"] = crossed(report["crossing"])
    print(f"{json.dumps(report['crossing'])}; they cross at {report['crossed']}", flush=True)
    database, last = Database("-c", "max_wal_size=8GB", "-c", "shared_buffers=512MB"), 0
    folder = Path(tempfile.mkdtemp(prefix="scale-", dir=database.folder.parent))
    file, report["sync_ms"] = str(folder / "taught.sqlite"), synced(folder)
    try:
        for size in sizes:
            seconds = fill(database.url(), last, size) + fill(file, last, size)
            database.ask("CHECKPOINT")
            row = apart(measure, database.url(), size) | {"sqlite": apart(measure_sqlite, file, size)}
            row |= apart(measure_random, size)
            report["rows"].append(row)
            print(f"{json.dumps(row)}; filled in {seconds:.0f} s", flush=True)
            last = size
    finally:
        database.remove()
        shutil.rmtree(folder)
    report["ridge_teach_ms"] = ridge([size for size in sizes if size <= 10**5])
    report["seconds"] = round(time.perf_counter() - began)
    (given.out / "scale.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    (given.out / "scale.md").write_text(page(report), encoding="utf-8")
    draw(report, given.out / "scale.png")
    print(f"wrote {given.out}/scale.json, scale.md and scale.png in {report['seconds']} s")


if __name__ == "__main__":
    main()
