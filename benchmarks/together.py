"""Whether two processes under torchrun learn as much as one: a short training on CIFAR-FS, in both ways.

    python -m benchmarks.together cifar-fs:PATH [--runs FOLDER] [--out docs/results]

writes together.json. Same seed, same batches, one thread for each process; accuracy is that on tasks of
validation categories. One process with another seed shows how far two trainings of one recipe lie apart.
Trainings that were measured before are not repeated.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

STEPS, TASKS = 3000, 2000
TRAIN = (
    *("--extractor", "c32f", "--device", "cpu", "--threads", "1"),
    *("--set", f"stage1.steps={STEPS}", "--set", "stage1.pad=4", "--set", "stage1.evaluations=3"),
    *("--set", "stage2.steps=2000", "--set", "stage2.views=2", "--set", "stage2.evaluations=2"),
)
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
WAYS = ((1, 0), (2, 0), (1, 1))  # processes and seed
EVALUATE = ("--categories", "val", "--shots", "1,5", "--tasks", str(TASKS), "--threads", "1")


def run(*words):
    """Run a command of recollect; return its processor time in seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def trained(data, out, processes, seed):
    """Train and evaluate; return what came of it."""
    measured = out / "measured.json"
    if measured.exists():
        return json.loads(measured.read_text(encoding="utf-8"))
    began, before = time.perf_counter(), TORCHRUN if processes > 1 else ()
    cores = run(*before, "-m", "recollect.cli", "train", data, *TRAIN, "--seed", str(seed), "--out", str(out))
    seconds = time.perf_counter() - began
    result = out / "val.json"
    run("-m", "recollect.cli", "evaluate", str(out), data, *EVALUATE, "--out", str(result))
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    found = {
        "processes": processes,
        "seed": seed,
        "seconds": round(seconds),
        "core_seconds": round(cores),
        "losses": [line["loss"] for line in lines if line.get("stage") == 1 and "loss" in line],
        "results": json.loads(result.read_text(encoding="utf-8"))["results"],
    }
    measured.write_text(json.dumps(found) + "\n", encoding="utf-8")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("--runs", type=Path, default=Path("runs/together"))
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    given = parser.parse_args()
    report = {
        "steps": STEPS,
        "tasks": TASKS,
        "train": " ".join(TRAIN),
        "trainings": [
            trained(given.data, given.runs / f"{count}-{seed}", count, seed) for count, seed in WAYS
        ],
    }
    (given.out / "together.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    for one in report["trainings"]:
        for row in one["results"]:
            figures = ", ".join(
                f"{name} {row[name]['mean']:.2f} ± {row[name]['ci95']:.2f}"
                for name in ("novel", "base", "both")
            )
            print(f"{one['processes']} processes, seed {one['seed']}, {row['shots']} shots: {figures}")


if __name__ == "__main__":
    main()
