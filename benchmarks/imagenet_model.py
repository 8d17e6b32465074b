"""Make `imagenet`, the model that comes with the package, from features of 10 pictures of each category.

    python -m benchmarks.imagenet_model $RECOLLECT_DATA/imagenet-lite0 --out src/recollect/models

W_base is the rows of the network's own last layer, less their mean; the mean feature is subtracted from every
feature. Of each category's pictures some teach τ and the generators, some choose among these and, with the
first as examples, calibrate, and the others are for the report in the model's header. Whether the network
itself was trained on these pictures is not known, so the report has the accuracy of its own last layer too.
The extractor's weights stay out of the file: they come from the extra.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from recollect.data.tasks import TaskShape
from recollect.evaluation.evaluate import model_figures
from recollect.features import FeatureSet
from recollect.model.classifier import unit
from recollect.model.extractors import published_input
from recollect.model.generator import AttentionGenerator
from recollect.model.model import Model
from recollect.model.spec import ModelSpec
from recollect.modelfile import Header, weights_of, write_model
from recollect.pretrained import last_layer, licence_of
from recollect.system import machine
from recollect.training.calibration import TAUGHT, calibrate
from recollect.training.frozen import best_scale
from recollect.training.head import learn_generator

EXTRACTOR = "efficientnet-lite0"
FIT, CHOSEN, REPORTED = slice(0, 4), slice(4, 7), slice(7, 10)  # of each category's 10 pictures
MANY = (*TAUGHT, 50, 100)  # taught categories: beside 1000 base ones there may be more than usual
SHOTS = (1, 2)
TASKS = 200


def read_features(folder):
    """Return features (1000, 10, d) and the names of the categories."""
    with np.load(folder / "features.npz") as file:
        features, labels = file["features"].astype(np.float32), file["labels"].astype(np.int64)
    lines = (folder / "categories.tsv").read_text(encoding="utf-8").splitlines()
    names = tuple(line.split("\t")[1] for line in lines)
    order = np.argsort(labels, kind="stable")
    return torch.from_numpy(features[order]).view(len(names), 10, -1), names


def part_of(features, names, part, centre):
    """Return some pictures of each category as centred features."""
    some = features[:, part]
    labels = torch.arange(len(names)).repeat_interleave(some.shape[1])
    return FeatureSet((some - centre).flatten(0, 1), labels, names)


def untrained(features, names, kind):
    """Return the model with τ fitted and a generator that has not learned yet."""
    torch.manual_seed(0)
    spec = ModelSpec(
        extractor=EXTRACTOR,
        generator=kind,
        preprocessing=published_input(EXTRACTOR),
        categories=names,
        centred=True,
    )
    model = Model(spec).eval()
    centre = features[:, FIT].mean((0, 1))
    rows = torch.from_numpy(last_layer(EXTRACTOR)[0])
    with torch.no_grad():
        model.centre.copy_(centre)
        model.classifier.weight.copy_(unit(rows - rows.mean(0)).half())  # as the file keeps them
        fit = part_of(features, names, FIT, centre)
        cosines = unit(fit.features) @ unit(model.classifier.weight).T
        model.classifier.scale.copy_(best_scale(cosines, fit.labels))
        if isinstance(model.generator, AttentionGenerator):
            model.generator.keys.copy_(model.classifier.weight)
    return model


def figures(model, base):
    """Return mean figures of tasks in which base categories play novel, by shots."""
    found = {}
    for shots in SHOTS:
        given = model_figures(model, None, base, TaskShape(5, shots, 1), TASKS, seed=0)
        found[str(shots)] = {
            name: round(100 * given[name].mean().item(), 2)
            for name in ("novel", "base", "both", "harmonic", "ausuc")
        }
    return found


def percent(scores, labels):
    return round(100 * (scores.argmax(1) == labels).float().mean().item(), 2)


def network_scores(features):
    """Return what the network's own last layer says of features (1000, n, d)."""
    rows, biases = map(torch.from_numpy, last_layer(EXTRACTOR))
    return features.flatten(0, 1) @ rows.T + biases


def half(name, values):
    """Store matrices and vectors in half precision; numbers as they are."""
    return values.astype(np.float16) if values.ndim and name != "centre" else values


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--peak", type=float, default=1.0)
    options = parser.parse_args()
    machine.prepare()
    features, names = read_features(options.folder)
    tried, models = {}, {}
    for kind in ("mean", "average", "attention"):
        model = models[kind] = untrained(features, names, kind)
        if kind != "mean":
            fit = part_of(features, names, FIT, model.centre)
            learn_generator(
                model,
                fit.features,
                fit.labels.numpy(),
                steps=options.steps,
                peak=options.peak,
                seed=0,
                bar=kind,
            )
        tried[kind] = figures(model, part_of(features, names, CHOSEN, model.centre))
        print(kind, json.dumps(tried[kind]), flush=True)
    best = max(tried, key=lambda kind: sum(tried[kind][shots]["ausuc"] for shots in tried[kind]))
    model = models[best]
    fit, chosen = (part_of(features, names, part, model.centre) for part in (FIT, CHOSEN))
    calibration = calibrate(model, None, replace(chosen, support=fit), taught=MANY)
    reported = part_of(features, names, REPORTED, model.centre)
    report = {
        "generator": best,
        "validation": tried,
        "base_top1": percent(model.classifier(reported.features), reported.labels),
        "last_layer_top1": percent(network_scores(features[:, REPORTED]), reported.labels),
        "held_out": figures(model, reported),
    }
    print(json.dumps(report, indent=1), calibration)
    header = Header(
        spec=model.spec,
        calibration=calibration,
        provenance={
            "made_with": "python -m benchmarks.imagenet_model",
            "weights_licence": licence_of(EXTRACTOR),
            "report": report,
        },
    )
    weights = {name: half(name, values) for name, values in weights_of(model).items()}
    kept = {name: values for name, values in weights.items() if not name.startswith("extractor.")}
    write_model(options.out / "imagenet.safetensors", header, kept)


if __name__ == "__main__":
    main()
