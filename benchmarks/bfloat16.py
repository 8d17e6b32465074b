"""Training steps of the residual networks in bfloat16 against float32: `docs/results/bfloat16.json`.

    python -m benchmarks.bfloat16 --out docs/results

Random pictures, one thread, the best of three. It needs a processor with bfloat16 instructions.
"""

import argparse
import json
from functools import partial
from pathlib import Path

import torch

from benchmarks.learning import seconds
from recollect.model.extractors import build_extractor
from recollect.system import machine
from recollect.system.disk import write_text

BATCH = 64
SIZES = {"resnet": (84, 48, 32), "resnet10": (224,)}
PRECISIONS = {"bfloat16": True, "float32": False}


def speed(extractor, size):
    """Return pictures a second, forward and backward, in each precision."""
    network, _ = build_extractor(extractor, size=size)
    network.train()
    x = torch.randn(BATCH, size, size, 3).permute(0, 3, 1, 2)

    def learn(on_cpu):
        network.zero_grad()
        with machine.mixed_precision(torch.device("cpu"), on_cpu=on_cpu):
            features = network(x)
        features.float().square().sum().backward()

    row = {"extractor": extractor, "size": size}
    for name, on_cpu in PRECISIONS.items():
        row[name] = round(BATCH / min(seconds(partial(learn, on_cpu)) for _ in range(3)), 1)
    row["ratio"] = round(row["bfloat16"] / row["float32"], 2)
    print(json.dumps(row), flush=True)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    machine.prepare(1)
    rows = [speed(name, size) for name, sizes in SIZES.items() for size in sizes]
    write_text(options.out / "bfloat16.json", json.dumps({"batch": BATCH, "speeds": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
