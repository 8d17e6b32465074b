"""Centring on the paper's own extractors, with and without their last ReLU: `docs/results/centring.json`.

    python -m benchmarks.centring cifar-fs:images.zip RUNS/relu-mean RUNS/cosine-mean --out docs/results

W_base and τ are learned anew on the frozen features, as they are and less their mean, and plain means are
taught. RUNS are those of `recollect reproduce table1`.
"""

import argparse
import json
from pathlib import Path

import torch

from recollect.data.tasks import TaskShape
from recollect.evaluation.evaluate import load_trained, model_figures
from recollect.evaluation.metrics import summary
from recollect.features import FeatureSet, cached_features
from recollect.system import machine
from recollect.system.disk import write_text
from recollect.training.head import train_head

STEPS, PEAK, TASKS = 300, 0.1, 600
FIGURES = ("novel", "base", "both")


def measure(path, data):
    """Return the figures of one model's features, as they are and centred, and their paired differences."""
    model, split, _ = load_trained(path, data)
    novel_images, base_images = split.evaluated("test")
    sets = [cached_features(model, images) for images in (split.base_train, novel_images, base_images)]
    centre = sets[0].features.mean(0)
    heads = {}
    for name, subtracted in (("as_they_are", torch.zeros_like(centre)), ("centred", centre)):
        train, novel, base = (FeatureSet(s.features - subtracted, s.labels, s.categories) for s in sets)
        head = train_head(train.features, train.labels.numpy(), "mean", steps=STEPS, peak=PEAK, seed=0)
        heads[name] = head.classifier.state_dict(), novel, base
    rows = []
    for shots in (1, 5):
        found = {}
        for name, (classifier, novel, base) in heads.items():
            model.classifier.load_state_dict(classifier)
            found[name] = model_figures(model, novel, base, TaskShape(5, shots, 15), TASKS, seed=0)
        row = {name: {figure: summary(found[name][figure]) for figure in FIGURES} for name in found}
        row["difference"] = {
            figure: summary(found["centred"][figure] - found["as_they_are"][figure]) for figure in FIGURES
        }
        rows.append({"model": path.name, "last_relu": model.spec.last_relu, "shots": shots, **row})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    machine.prepare()
    rows = [row for path in options.models for row in measure(path, options.data)]
    result = {"tasks": TASKS, "results": rows}
    write_text(options.out / "centring.json", json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
