"""Blocks of the paper's ConvNets in C against torch's layers: training steps and extraction.

    python -m benchmarks.blocks [--out docs/results]

Nothing else should be running.
"""

import argparse
import json
import platform
from functools import partial
from pathlib import Path

import torch

from benchmarks.learning import seconds
from recollect.model.extractors import blocks, build_extractor
from recollect.system import machine

BATCH = 128


def compare(extractor, size, threads):
    """Return pictures a second, of a training step and of an extraction, in C and with torch's layers."""
    torch.set_num_threads(threads)
    network, _ = build_extractor(extractor, size=size)
    x = torch.randn(BATCH, size, size, 3).permute(0, 3, 1, 2)

    def learn(compute):
        network.zero_grad()
        compute(x).square().sum().backward()

    def speed(compute):
        return round(BATCH / min(seconds(compute) for _ in range(4)))

    network.train()
    learned = [speed(partial(learn, compute)) for compute in (network, network.blocks)]
    network.eval()
    with torch.inference_mode():
        extracted = [speed(partial(compute, x)) for compute in (network.for_extraction(), network.blocks)]
    row = {"extractor": extractor, "size": size, "threads": threads, "learn": learned, "extract": extracted}
    for verb, (ours, other) in (("learns from", learned), ("extracts", extracted)):
        print(
            f"{extractor} at {size}×{size}, {threads} threads, {verb} {ours} pictures a second, with torch's "
            f"layers {other}, ratio {ours / other:.2f}",
            flush=True,
        )
    return row


def main(out=None):
    most = machine.prepare()
    if not blocks.available():
        print("the blocks cannot be compiled here")
        return
    rows = [
        compare(extractor, size, threads)
        for threads in sorted({1, most})
        for extractor in ("c32f", "c64f", "c128f")
        for size in (84, 48, 32)
    ]
    torch.set_num_threads(most)
    if out is not None:
        found = {"machine": f"{platform.machine()}, {machine.cores()} cores", "batch": BATCH, "rows": rows}
        (out / "blocks.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, help="folder for blocks.json")
    main(parser.parse_args().out)
