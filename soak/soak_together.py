"""Training under torchrun on the glyphs: as one process does it, and on after the loss of a worker."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from safetensors.numpy import load_file

LONG = int(os.environ.get("SOAK_KILLS", "50")) >= 50
STEPS = 600 if LONG else 60
WORDS = (
    *("train", "glyphs", "--extractor", "c32f", "--generator", "mean", "--device", "cpu", "--threads", "1"),
    *("--set", f"stage1.steps={STEPS}", "--set", "stage1.batch=128", "--set", "stage1.evaluations=2"),
    *("--set", "checkpoint_seconds=0", "--set", "select_tasks=200"),
)
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "3")


def started(out, *, together, log):
    before = TORCHRUN if together else ()
    command = [sys.executable, *before, "-m", "recollect.cli", *WORDS, "--out", str(out), "--json"]
    with log.open("wb") as file:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(command, stdout=file, stderr=file, env=environment)


def metrics(out):
    path = out / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def children(process):
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(words[1]) == process.pid:
            found.append(int(status.parent.name))
    return found


def wait(process, log):
    assert process.wait(600) == 0, log.read_text()[-3000:]


def test_two_processes_learn_as_one_does_and_go_on_after_a_kill(tmp_path):
    log = tmp_path / "log"
    runs = {}
    for name, together in (("one", False), ("two", True)):
        runs[name] = tmp_path / name
        wait(started(runs[name], together=together, log=log), log)
    runs["killed"] = tmp_path / "killed"
    process = started(runs["killed"], together=True, log=log)
    checkpoint = runs["killed"] / "stage1.checkpoint.safetensors"
    while not checkpoint.exists():
        assert process.poll() is None, log.read_text()[-3000:]
        time.sleep(0.02)
    time.sleep(1)
    victim = max(children(process))
    os.kill(victim, signal.SIGKILL)
    wait(process, log)
    assert "closing signal" in log.read_text()  # torchrun ended the other one, to start both again
    losses = {
        name: [line["loss"] for line in metrics(out) if "loss" in line and line["stage"] == 1]
        for name, out in runs.items()
    }
    figures = {name: [line for line in metrics(out) if "novel" in line][-1] for name, out in runs.items()}
    print(f"\nloss of stage 1, every 50 steps: {losses}")
    print(f"validation: { {name: (one['novel'], one['base']) for name, one in figures.items()} }")
    assert losses["killed"] == losses["two"]
    # Of the first loss: rounding drifts apart, and towards the end losses are small.
    worst = max(abs(a - b) for a, b in zip(losses["one"], losses["two"], strict=True)) / losses["one"][0]
    print(f"the two loss curves differ by at most {100 * worst:.2f} % of the first loss")
    assert worst < 0.1
    assert abs(figures["one"]["novel"] - figures["two"]["novel"]) < 4
    assert abs(figures["one"]["base"] - figures["two"]["base"]) < 6
    weights = {name: load_file(out / "model.safetensors") for name, out in runs.items()}
    for name, value in weights["two"].items():
        assert (value == weights["killed"][name]).all(), name
