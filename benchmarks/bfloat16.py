"""Stage 1 of the residual networks in bfloat16 against float32: `docs/results/bfloat16.json`.

    python -m benchmarks.bfloat16 cifar-fs:images.zip --runs runs --out docs/results

The speed of training steps on random pictures, on one thread, and what a short training of resnet comes to:
plain means on validation categories, with every seed in both precisions, and the cosine of base features in
bfloat16 with the same in float32, as for the views of stage 2. It needs a processor with bfloat16
instructions; nothing else should be running while speeds are measured.
"""

import argparse
import json
from functools import partial
from pathlib import Path

import torch
from torch.nn import functional

from benchmarks.learning import seconds
from recollect.data.catalogue import load_data
from recollect.data.tasks import TaskShape
from recollect.evaluation.evaluate import model_figures
from recollect.evaluation.metrics import summary
from recollect.features import extract
from recollect.model.extractors import MishraResNet, build_extractor
from recollect.system import machine
from recollect.system.disk import write_text
from recollect.training.config import make_config
from recollect.training.runfolder import RunFolder
from recollect.training.train import learn_stage_one, resolve

BATCH, TASKS = 64, 2000
FIGURES = ("novel", "base", "both", "ausuc")
PRECISIONS = {"bfloat16": True, "float32": False}


def speed(extractor, size):
    """Return pictures a second of a training step, in each precision."""
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


def training(options, precision, seed):
    """Return the figures of a training of resnet at 1 and 5 shots."""
    MishraResNet.learns_in_bfloat16 = PRECISIONS[precision]
    recipe = {"steps": options.steps, "pad": 4, "evaluations": 1}
    asked = {"data": options.data, "extractor": "resnet", "seed": seed, "threads": 1, "stage1": recipe}
    split = load_data(options.data)
    config = resolve(make_config({}, asked), split)
    folder = RunFolder(options.runs / f"{precision}-{options.steps}-{seed}")
    model = learn_stage_one(config, split, folder).eval()
    learned = [line["accuracy"] for line in folder.metrics() if "accuracy" in line][-1]
    novel, base = split.evaluated("val")
    features = extract(model, novel), extract(model, base)
    with machine.mixed_precision(torch.device("cpu"), on_cpu=True):
        rough = extract(model, base).features
    alike = functional.cosine_similarity(rough, features[1].features)
    for shots in (1, 5):
        found = model_figures(model, *features, TaskShape(5, shots), TASKS, seed=1)
        row = {"precision": precision, "seed": seed, "shots": shots, "learned": learned}
        row["cosine"] = {"mean": round(alike.mean().item(), 5), "least": round(alike.min().item(), 5)}
        row |= {name: summary(found[name]) for name in FIGURES}
        print(json.dumps(row), flush=True)
        yield row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    machine.prepare(1)
    speeds = [
        speed(name, size)
        for name, sizes in (("resnet", (84, 48, 32)), ("resnet10", (224,)))
        for size in sizes
    ]
    trainings = [
        row
        for seed in range(options.seeds)
        for precision in PRECISIONS
        for row in training(options, precision, seed)
    ]
    report = {"batch": BATCH, "speeds": speeds, "steps": options.steps, "tasks": TASKS}
    write_text(options.out / "bfloat16.json", json.dumps({**report, "trainings": trainings}, indent=1) + "\n")


if __name__ == "__main__":
    main()
