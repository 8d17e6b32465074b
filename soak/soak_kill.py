"""Kill a training at random moments, many times: it always resumes, and always ends with the same weights."""

import os
import random
import subprocess
import sys
import time

import torch

from recollect.modelfile import load_model
from recollect.training.runfolder import RunFolder

KILLS = int(os.environ.get("SOAK_KILLS", "20"))
SETTINGS = (
    "stage1.steps=150",
    "stage2.steps=300",
    "stage2.views=2",
    "checkpoint_seconds=0.5",
    "select_tasks=50",
)


def command(out, *more):
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    return [sys.executable, "-m", "recollect.cli", "train", "glyphs", "--out", str(out), *settings, *more]


def test_killed_at_random_moments_a_training_ends_with_the_same_weights(tmp_path):
    subprocess.run(command(tmp_path / "whole"), check=True)
    out = tmp_path / "killed"
    kills, begun = 0, False
    draw = random.Random(0)
    while True:
        process = subprocess.Popen(command(out, *(["--resume"] if begun else [])))
        try:
            process.wait(timeout=draw.uniform(3, 7) if kills < KILLS else None)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            kills += 1
            begun = (out / "config.json").exists()
            time.sleep(0.1)
            continue
        assert process.returncode == 0
        break
    whole, killed = load_model(tmp_path / "whole").state_dict(), load_model(out).state_dict()
    assert whole.keys() == killed.keys()
    assert all(torch.equal(whole[name], killed[name]) for name in whole)
    assert not list(out.glob("*.part"))
    steps = [(line["stage"], line["step"], "both" in line) for line in RunFolder(out).metrics()]
    assert len(steps) == len(set(steps))
    sys.stdout.write(f"\n{kills} kills, same weights\n")
