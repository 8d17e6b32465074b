"""What helps, or not, in a longer training of stage 1: `docs/results/longer.json`.

    python -m benchmarks.longer cifar-fs:images.zip NAME… --out docs/results

NAME is one of `TRIALS`. c64f by the preset `cifar-fs-c64f`, but with 10 000 steps, so 1.28 million images;
plain means on validation categories, features mirrored. Results are added to those in the file.
"""

import argparse
import json
import time
from pathlib import Path

import torch
from torch.nn import functional as F

from recollect.data.catalogue import load_data
from recollect.data.tasks import TaskShape
from recollect.evaluation.evaluate import model_figures
from recollect.evaluation.metrics import summary
from recollect.features import extract
from recollect.system import machine
from recollect.system.disk import write_text
from recollect.training.config import make_config, read_preset
from recollect.training.loop import step_seed
from recollect.training.losses import distilled
from recollect.training.optimizer import Descent
from recollect.training.stage1 import BaseClassification
from recollect.training.train import new_model, resolve

TASKS, STEPS, LOGGED = 2000, 10_000, 500
FIGURES = ("novel", "base", "both", "ausuc")
TRIALS = {
    "preset": {},
    "sharpness-aware": {"radius": 1.0},  # adaptive (Kwon et al., 2021)
    "together": {"peers": ("c32f", "c64f")},  # each distils the mean of the others (Zhang et al., 2018)
    "rate-0.12": {"muon": 0.12},
    "slow-base": {"peak": 0.033, "muon": 0.75},  # convolutions move as fast, W_base a third as fast
    "dropout": {"dropout": 0.2},  # of features
    "smoothing": {"smoothing": 0.1},  # of labels
}


class Learner(BaseClassification):
    """A model that learns, with an optimiser of its own."""

    def __init__(self, split, config):
        super().__init__(new_model(config, split), split, config)
        recipe = config.stage1
        self.descent = Descent(
            self.learned(), momentum=recipe.momentum, weight_decay=recipe.weight_decay, muon=recipe.muon
        )

    def scores(self, pixels, step, dropout):
        return self.model.classifier(F.dropout(self.features(pixels, step), dropout))


def ascend(weights, radius):
    """Move weights to where the loss is about the highest, relative to their sizes; return the way."""
    length = sum((weight * weight.grad).square().sum() for weight in weights).sqrt()
    moves = [weight.square() * weight.grad * (radius / length) for weight in weights]
    for weight, move in zip(weights, moves, strict=True):
        weight.add_(move)
    return moves


def train(split, config, peers=(), radius=0.0, dropout=0.0, smoothing=0.0):
    """Return the learners, the first of which is the trial's, and its accuracy on the last pictures."""
    learners = [
        Learner(split, config.model_copy(update={"extractor": extractor, "seed": config.seed + 100 * place}))
        for place, extractor in enumerate((config.extractor, *peers))
    ]
    first, right = learners[0], []

    def losses(pixels, targets, step):
        found = [learner.scores(pixels, step, dropout) for learner in learners]
        share = (found[0].argmax(1) == targets).float().mean().item()
        each = [F.cross_entropy(some, targets, label_smoothing=smoothing) for some in found]
        if not peers:
            return each[0], share
        wanted = [sum(other.detach() for other in found if other is not some) / len(peers) for some in found]
        return sum(map(distilled, each, found, wanted)), share

    for step in range(STEPS):
        torch.manual_seed(step_seed(config.seed, 1, step))
        rows = first.batches[step]
        pixels = first.augmentation(torch.from_numpy(first.images.take(rows)), torch.default_generator)
        targets = torch.from_numpy(first.images.labels[rows])
        for learner in learners:
            learner.model.train()
            learner.descent.zero_grad()
            for group in learner.descent.param_groups:
                group["lr"] = config.stage1.schedule.rate((step + 0.5) / STEPS)
        loss, share = losses(pixels, targets, step)
        loss.backward()
        right.append(share)
        if radius:
            weights = [weight for weight in first.model.parameters() if weight.ndim > 1]
            with torch.no_grad():
                moves = ascend(weights, radius)
            first.descent.zero_grad()
            losses(pixels, targets, step)[0].backward()
            with torch.no_grad():
                for weight, move in zip(weights, moves, strict=True):
                    weight.sub_(move)
        for learner in learners:
            learner.descent.step()
    return learners, 100 * sum(right[-LOGGED:]) / LOGGED


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("names", nargs="+", choices=TRIALS, metavar="NAME")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    machine.prepare(1)
    preset, split = read_preset("cifar-fs-c64f"), load_data(options.data)
    novel, base = split.evaluated("val")
    path = options.out / "longer.json"
    for name in options.names:
        changes = dict(TRIALS[name])
        own = {"stage1.steps": STEPS} | ({"stage1.muon": changes.pop("muon")} if "muon" in changes else {})
        own |= {"stage1.schedule.peak": changes.pop("peak")} if "peak" in changes else {}
        settings = {key: str(value) for key, value in own.items()}
        config = resolve(make_config(preset, {"data": options.data, "threads": 1}, settings), split)
        began = time.monotonic()
        learners, learned = train(split, config, **changes)
        seconds, rows = round(time.monotonic() - began), []
        for learner in learners:
            model = learner.model.eval()
            features = extract(model, novel), extract(model, base)
            for shots in (1, 5):
                found = model_figures(model, *features, TaskShape(5, shots), TASKS, seed=1)
                figures = {figure: summary(found[figure]) for figure in FIGURES}
                rows.append({"extractor": model.spec.extractor, "shots": shots, **figures})
        kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        kept[name] = {"steps": STEPS, "tasks": TASKS, "learned": learned, "seconds": seconds, "results": rows}
        write_text(path, json.dumps(kept, indent=1) + "\n")
        print(json.dumps({name: kept[name]}), flush=True)


if __name__ == "__main__":
    main()
