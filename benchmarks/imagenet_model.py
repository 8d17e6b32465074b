"""Make `imagenet`, the model that comes with the package, from features of 10 pictures of each category.

    python -m benchmarks.imagenet_model $RECOLLECT_DATA/imagenet-lite0 --out src/recollect/models

W_base is the rows of the network's own last layer, less their mean; the mean feature is subtracted from
every feature. Of each category's pictures some give τ and the second moments of the generator, some
calibrate, with the first as examples, and the others are for the report in the model's header. The bias of
taught categories is the one at which a given share of their lookalikes' pictures is lost
(`benchmarks.lookalikes`), for one taught category and for 20 near each other. Whether the network itself
was trained on these pictures is not known, so the report has the accuracy of its own last layer too.
The extractor's weights stay out of the file: they come from the extra.
"""

import argparse
import json
from dataclasses import replace
from math import log
from pathlib import Path

import numpy as np
import torch

from benchmarks.lookalikes import ASKED_TO_FIT, GROUP, SHOTS, Lookalikes, bias_for, halves
from benchmarks.lookalikes import report as lookalikes_report
from recollect.evaluation.evaluate import left_out_scores
from recollect.features import FeatureSet
from recollect.model.classifier import unit
from recollect.model.extractors import published_input
from recollect.model.model import Model
from recollect.model.spec import ModelSpec
from recollect.modelfile import Header, weights_of, write_model
from recollect.pretrained import last_layer, licence_of
from recollect.system import machine
from recollect.training.calibration import TAUGHT, calibrate
from recollect.training.frozen import best_scale

EXTRACTOR = "efficientnet-lite0"
FIT, CHOSEN, REPORTED = slice(0, 4), slice(4, 7), slice(7, 10)  # of each category's 10 pictures
MANY = (*TAUGHT, 50, 100)  # taught categories: beside 1000 base ones there may be more than usual
# The share of near categories' pictures that one taught category may cost, and a group of near ones.
LOSS = {1: 0.015, GROUP: 0.035}
TRIED = {1: 500, GROUP: 100}  # categories that the bias is fitted on, each with its group


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


def untrained(features, names):
    """Return the model with τ fitted, and the second moments of its pictures."""
    spec = ModelSpec(
        extractor=EXTRACTOR,
        generator="ridge",
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
        model.generator.see(unit(fit.features))
        model.generator.moments.copy_(model.generator.moments.half())
    return model


def lookalike_biases(model, features):
    """Return the bias for one taught category and for a group, at one shot, and its rise with ln(shots)."""
    alike, (fitted, _) = Lookalikes(model, features), halves(len(features))
    rows, found = [], []
    for size, loss in LOSS.items():
        for shots in SHOTS:
            tasks = [alike.task(alike.group(one, size), shots, ASKED_TO_FIT) for one in fitted[: TRIED[size]]]
            rows.append([1.0, log(size), log(shots)])
            found.append(bias_for(tasks, loss))
            print("bias", size, shots, found[-1], flush=True)
    start, slope, rise = np.linalg.lstsq(np.array(rows), np.array(found), rcond=None)[0].tolist()
    return {size: start + slope * log(size) for size in LOSS}, rise


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
    options = parser.parse_args()
    machine.prepare()
    features, names = read_features(options.folder)
    model = untrained(features, names)
    fit, chosen, reported = (part_of(features, names, part, model.centre) for part in (FIT, CHOSEN, REPORTED))
    score = left_out_scores(model, model.generator, chosen, fit, solved_base=False)
    biases = lookalike_biases(model, features)
    calibration = calibrate(
        model, None, replace(chosen, support=fit), taught=MANY, score=score, biases=biases
    )
    report = {
        "base_top1": percent(model.classifier(reported.features), reported.labels),
        "last_layer_top1": percent(network_scores(features[:, REPORTED]), reported.labels),
        "lookalikes": lookalikes_report(model, calibration, features),
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
