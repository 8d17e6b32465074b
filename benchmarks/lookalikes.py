"""Does a taught category swallow the categories that resemble it? Figures of `docs/results/lookalikes*.json`.

    python -m benchmarks.lookalikes imagenet $RECOLLECT_DATA/imagenet-lite0 --out docs/results/lookalikes.json

One of ImageNet's categories is hidden and taught again from a few of its pictures, alone or with the 19
nearest to it. Then pictures are asked for: of the taught categories, of the ten base categories nearest to
each of them, and of all others, before and after teaching, with the calibration in the model's header.
Categories and pictures are not those that the bias of the model was fitted on.
"""

import argparse
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from recollect.evaluation.metrics import summary
from recollect.model.classifier import unit
from recollect.model.generator import RidgeGenerator, solve_examples
from recollect.modelfile import load_model, read_header
from recollect.system import machine
from recollect.system.disk import write_text

SEEN = slice(0, 4)  # of each category's 10 pictures: those that the model was made from
SUPPORT, ASKED_TO_FIT, ASKED = slice(0, 5), slice(5, 7), slice(7, 10)
NEAREST, GROUP = 10, 20
SHOTS = (1, 2, 5)


class Task(NamedTuple):
    """Gaps are best base score − best novel score: a picture is called novel where the bias is larger."""

    among: torch.Tensor  # (n,) whether a taught category's picture is right among the taught ones
    gaps: torch.Tensor  # (n,) of these pictures
    near_right: torch.Tensor  # (m,) whether pictures of near base categories were right before
    near_gaps: torch.Tensor
    other_right: torch.Tensor  # the same of all other base categories
    other_gaps: torch.Tensor
    tightness: float | None  # the mean cosine between two examples of a taught category


class Lookalikes:
    """Features of ImageNet (1000, 10, d), less the model's centre, and which categories are near which."""

    def __init__(self, model, features):
        self.model = model
        self.z = unit(features - model.centre)
        self.weights = unit(model.classifier.weight.detach())
        near = self.weights @ self.weights.T
        self.nearest = near.fill_diagonal_(-2).argsort(dim=1, descending=True)
        self.scores = {}  # of the pictures that are asked for, over base categories
        if isinstance(model.generator, RidgeGenerator):
            self.seen = self.z @ model.generator.inverse()

    def group(self, category, size):
        """Return a category and those nearest to it, (size,)."""
        return torch.cat([torch.tensor([category]), self.nearest[category, : size - 1]])

    def examples(self, taught, shots, place=None):
        """Return the examples (ways, shots, d) that categories are taught from."""
        return moved(self.z[taught, SUPPORT][:, :shots], place)

    def vectors(self, taught, support):
        """Return the vectors (ways, d) of hidden categories that are taught again from `support`."""
        if isinstance(self.model.generator, RidgeGenerator):  # their pictures leave G
            examples = support.flatten(0, 1)
            hidden = (some[taught][:, SEEN].flatten(0, 1) for some in (self.z, self.seen))
            left = self.model.generator.leave_out(examples @ self.model.generator.inverse(), *hidden)
            return unit(solve_examples(examples, left, *support.shape[:2]))
        hidden = torch.zeros(1, len(self.z), dtype=torch.bool)
        hidden[0, taught] = True
        return unit(self.model.generator.compose(self.model.terms(support[None], hidden))[0])

    @torch.inference_mode()
    def task(self, taught, shots, asked, place=None):
        """Hide categories, teach them again, and ask for pictures of every category.

        With `place` (d,) all these pictures were taken in one place (`moved`).
        """
        support, scale = self.examples(taught, shots, place), self.model.classifier.scale
        vectors, queries = self.vectors(taught, support), moved(self.z[:, asked], place)
        base = self.base_scores(asked) if place is None else scale * queries @ self.weights.T
        base = base.index_fill(2, taught, -torch.inf)
        best, choice = base.max(dim=2)
        novel, own = (scale * queries @ vectors.T).max(dim=2)
        gaps, right = best - novel, choice == torch.arange(len(base))[:, None]
        near = torch.zeros(len(base), dtype=torch.bool)
        for row in self.nearest[taught]:
            near[row[~torch.isin(row, taught)][:NEAREST]] = True
        others = ~near
        others[taught] = False
        among = own[taught] == torch.arange(len(taught))[:, None]
        parts = among, gaps[taught], right[near], gaps[near], right[others], gaps[others]
        return Task(*(part.flatten() for part in parts), tightness(support))

    def base_scores(self, asked):
        """Return the scores of pictures over base categories, (1000, n, 1000), computed once."""
        if asked.start not in self.scores:
            self.scores[asked.start] = self.model.classifier.scale * self.z[:, asked] @ self.weights.T
        return self.scores[asked.start]


def moved(z, place):
    """Return features of pictures as if taken in one place, which adds the same (d,) to each."""
    return z if place is None else unit(z + place)


def tightness(examples):
    """Return the mean cosine between two examples (ways, shots, d) of the same category, or `None`."""
    shots = examples.shape[1]
    if shots == 1:
        return None
    return ((examples.sum(1).square().sum(1) - shots) / (shots * (shots - 1))).mean().item()


def bias_for(tasks, loss, shifts):
    """Return the bias at which, with a shift for each task, a share `loss` of all near pictures is lost."""
    gaps = [
        torch.where(task.near_right, task.near_gaps - shift, torch.inf)
        for task, shift in zip(tasks, shifts, strict=True)
    ]
    return torch.cat(gaps).sort().values[int(loss * sum(map(len, gaps)))].item()


def figures(tasks, biases):
    """Return accuracies in percent with intervals over tasks, for a bias of each."""
    pairs = list(zip(tasks, biases, strict=True))
    found = {
        "own_among_taught": [task.among.float().mean() for task in tasks],
        "own": [(task.among & (task.gaps < bias)).float().mean() for task, bias in pairs],
        "near_before": [task.near_right.float().mean() for task in tasks],
        "near_after": [(task.near_right & (task.near_gaps >= bias)).float().mean() for task, bias in pairs],
        "others_before": [task.other_right.float().mean() for task in tasks],
        "others_after": [
            (task.other_right & (task.other_gaps >= bias)).float().mean() for task, bias in pairs
        ],
    }
    return {name: summary(torch.stack(values)) for name, values in found.items()}


def halves(count):
    """Return two halves of the categories: the bias is fitted on the first, the second is reported on."""
    order = np.random.default_rng(0).permutation(count)
    return order[: count // 2].tolist(), order[count // 2 :].tolist()


def report(model, calibration, features, singles=200, groups=40):
    """Return figures by number of taught categories and of shots."""
    alike, (_, reported) = Lookalikes(model, features), halves(len(features))
    rows = []
    for size, count in ((1, singles), (GROUP, groups)):
        for shots in SHOTS:
            tasks = [alike.task(alike.group(one, size), shots, ASKED) for one in reported[:count]]
            biases = [float(calibration.biases([shots] * size, task.tightness)[0]) for task in tasks]
            bias = float(np.mean(biases))
            rows.append({"taught": size, "shots": shots, "bias": bias, **figures(tasks, biases)})
            print(
                {
                    name: value["mean"] if isinstance(value, dict) else value
                    for name, value in rows[-1].items()
                }
            )
    return rows


def main():
    from benchmarks.imagenet_model import read_features

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    machine.prepare()
    features, _ = read_features(options.folder)
    model, header = load_model(options.model), read_header(options.model)
    words = {
        "command": f"python -m benchmarks.lookalikes {options.model} imagenet-lite0",
        "generator": header.spec.generator,
        "rows": report(model.eval(), header.calibration, features),
    }
    if options.out:
        write_text(options.out, json.dumps(words, indent=1) + "\n")


if __name__ == "__main__":
    main()
