"""Peak memory of a training as large as mini-ImageNet, against the size of its pixel array."""

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np

CATEGORIES = {"train": 64, "val": 16, "test": 20}
PICTURES, SIZE = 600, 84


def write_release(folder: Path) -> int:
    """Write random pixels in the layout of mini-ImageNet's cached pickles; return their bytes."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    total = 0
    for part, count in CATEGORIES.items():
        pixels = rng.integers(0, 256, (count * PICTURES, SIZE, SIZE, 3), dtype=np.uint8)
        rows = {f"{part}{k:03}": list(range(k * PICTURES, (k + 1) * PICTURES)) for k in range(count)}
        with (folder / f"mini-imagenet-cache-{part}.pkl").open("wb") as file:
            pickle.dump({"image_data": pixels, "class_dict": rows}, file, protocol=4)
        total += pixels.nbytes
    return total


def peak_of(*command: str) -> int:
    """Run a command and return its peak resident memory in bytes."""
    code = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=2);"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    done = subprocess.run([sys.executable, "-c", code, *command], check=True, stdout=subprocess.PIPE)
    return int(done.stdout) << (0 if sys.platform == "darwin" else 10)  # macOS counts bytes, Linux KiB


def main(release: Path, runs: Path, pixels: int) -> None:
    """Train both stages for a few steps and compare the peak with the bytes of the pixel array."""
    short = ["--set", "stage1.steps=10", "--set", "stage1.evaluations=1"]
    short += ["--set", "stage2.steps=20", "--set", "stage2.evaluations=1", "--quiet"]
    for number, when in enumerate(("with the pickles read", "with the pictures cached")):
        peak = peak_of(
            sys.executable, "-m", "recollect.cli", "train", f"mini-imagenet:{release}",
            "--preset", "mini-imagenet-c64f", *short, "--out", str(runs / str(number)),
        )  # fmt: skip
        print(
            f"peak memory of a training as large as mini-ImageNet, {when}: {peak / 1e9:.2f} GB, "
            f"its pixel array: {pixels / 1e9:.2f} GB, difference {(peak - pixels) / 1e9:.2f} GB",
            flush=True,
        )
