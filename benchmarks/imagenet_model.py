"""Make `imagenet`, the model that comes with the package, from features of 10 pictures of each category.

    python -m benchmarks.imagenet_model $RECOLLECT_DATA/imagenet-lite0 --out src/recollect/models

W_base is the rows of the network's own last layer, less their mean; the mean feature is subtracted from
every feature. Of each category's pictures some give τ and the second moments of the generator, some
calibrate, with the first as examples, and the others are for the report in the model's header. The bias of
taught categories is the one at which a given share of their lookalikes' pictures is lost
(`benchmarks.lookalikes`), for one taught category and for 20 near each other. It falls with the tightness
of the examples: photographs from one place, which resemble each other more, need less of it; how much less is
chosen on lessons that are taken to one place by hand. Pictures of
taught categories are told from unknown ones by another offset, so that as many of them as of base pictures
are called unknown. Whether the network itself was trained on these pictures is not known, so the report has
the accuracy of its own last layer too. The extractor's weights stay out of the file: they come from the
extra.
"""

import argparse
import json
from dataclasses import replace
from math import log
from pathlib import Path

import numpy as np
import torch

from benchmarks.lookalikes import ASKED_TO_FIT, GROUP, SHOTS, SUPPORT, Lookalikes, bias_for, halves, tightness
from benchmarks.lookalikes import report as lookalikes_report
from recollect.evaluation.evaluate import left_out_scores
from recollect.features import FeatureSet
from recollect.model.classifier import unit
from recollect.model.extractors import published_input
from recollect.model.model import Model
from recollect.model.spec import ModelSpec, bias_at
from recollect.modelfile import Header, weights_of, write_model
from recollect.pretrained import last_layer, licence_of
from recollect.system import machine
from recollect.training.calibration import TAUGHT, Lesson, calibrate, fit_unknown, unknown_figures
from recollect.training.frozen import best_scale

EXTRACTOR = "efficientnet-lite0"
FIT, CHOSEN, REPORTED = slice(0, 4), slice(4, 7), slice(7, 10)  # of each category's 10 pictures
MANY = (*TAUGHT, 50, 100)  # taught categories: beside 1000 base ones there may be more than usual
MOST = 100
# The share of near categories' pictures that one taught category may cost, and a group of near ones.
LOSS = {1: 0.025, GROUP: 0.05, MOST: 0.05}
TRIED = {1: 500, GROUP: 100, MOST: 20}  # categories that the bias is fitted on, each with its group
TRIED_IN_PLACES = {GROUP: 40, MOST: 10}  # categories that its slope is chosen on
SLOPES = np.arange(-16.0, 1.0)
ENOUGH = 0.005
PLACES = (0.0, 0.6, 1.2)  # how much of a place is in a picture


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


def fit_slopes(alike, fitted, typical):
    """Return how the bias best changes with the tightness of examples, by number of taught categories.

    Some lessons and their queries are taken to another place, the same for all of them: what makes a picture
    differ from its category's mean is added to each. Over all places together a given share of near
    categories' pictures is lost. The flattest slope is taken that has within `ENOUGH` as many of the taught
    ones' pictures right as the best one: without a place, it costs more than it gives.
    """
    rng, means = np.random.default_rng(0), unit(alike.z[:, : ASKED_TO_FIT.stop].mean(1))

    def a_place(taught, far):
        elsewhere = [one for one in fitted if one not in taught]
        one, picture = rng.choice(elsewhere), rng.integers(ASKED_TO_FIT.stop)
        return far * (alike.z[one, picture] - means[one]) if far else None

    found = {}
    for size, count in TRIED_IN_PLACES.items():
        own = np.zeros(len(SLOPES))
        for shots in [shots for shots in SHOTS if shots > 1]:
            groups = [alike.group(one, size) for one in fitted[:count]]
            tasks = [
                alike.task(group, shots, ASKED_TO_FIT, a_place(group, far))
                for far in PLACES
                for group in groups
            ]
            for number, slope in enumerate(SLOPES):
                shifts = [slope * excess(task.tightness, typical) for task in tasks]
                bias = bias_for(tasks, LOSS[size], shifts)
                right = [
                    task.among & (task.gaps < bias + shift) for task, shift in zip(tasks, shifts, strict=True)
                ]
                own[number] += torch.cat(right).float().mean().item()
        own /= len(SHOTS) - 1
        found[size] = float(SLOPES[own >= own.max() - ENOUGH].max())
        print(
            "slope",
            size,
            found[size],
            dict(zip(SLOPES.tolist(), own.round(4).tolist(), strict=True)),
            flush=True,
        )
    return found


def lookalike_biases(alike, fitted, typical, slopes):
    """Return the bias by number of taught categories, at one shot, and its rise with ln(shots)."""
    rows, found = [], []
    for size, loss in LOSS.items():
        for shots in SHOTS:
            tasks = [alike.task(alike.group(one, size), shots, ASKED_TO_FIT) for one in fitted[: TRIED[size]]]
            shifts = [bias_at(slopes, size) * excess(task.tightness, typical) for task in tasks]
            rows.append([*(float(size == other) for other in LOSS), log(shots)])
            found.append(bias_for(tasks, loss, shifts))
            print("bias", size, shots, found[-1], flush=True)
    *starts, rise = np.linalg.lstsq(np.array(rows), np.array(found), rcond=None)[0].tolist()
    return dict(zip(LOSS, starts, strict=True)), rise


def excess(tight, typical):
    return 0.0 if tight is None else tight - typical


@torch.inference_mode()
def lessons(alike, fitted, typical):
    """Return lessons of random categories, each with pictures of as many others while both are hidden."""
    rng, scale = np.random.default_rng(0), alike.model.classifier.scale
    everything = alike.base_scores(ASKED_TO_FIT).amax(2)
    found = []
    for shots in SHOTS:
        for size, count in ((1, 100), (5, 40), (GROUP, 20)):
            for _ in range(count):
                both = torch.from_numpy(rng.permutation(fitted)[: 2 * size])
                support = alike.examples(both[:size], shots)
                novel = scale * alike.z[:, ASKED_TO_FIT] @ alike.vectors(both[:size], support).T
                base = alike.base_scores(ASKED_TO_FIT)[both].index_fill(2, both, -torch.inf).amax(2)
                best = novel.amax(2)
                known = torch.ones(len(novel), dtype=torch.bool).index_fill(0, both, 0)
                own = novel[both[:size], :, torch.arange(size)]
                parts = (
                    (everything[known], best[known]),
                    (base[:size], best[both[:size]]),
                    (base[size:], best[both[size:]]),
                )
                found.append(
                    Lesson(
                        size,
                        shots,
                        *(tuple(map(flat, part)) for part in parts),
                        flat(own),
                        excess(tightness(support), typical),
                    )
                )
    return found


def flat(scores):
    return scores.flatten().double().numpy()


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
    alike, (fitted, _) = Lookalikes(model, features), halves(len(features))
    typical = tightness(alike.z[fitted, SUPPORT])
    slopes = fit_slopes(alike, fitted, typical)
    biases = lookalike_biases(alike, fitted, typical, slopes)
    calibration = calibrate(
        model, None, replace(chosen, support=fit), taught=MANY, score=score, biases=biases
    )
    taught = lessons(alike, fitted, typical)
    unknown = fit_unknown(taught, features[:, ASKED_TO_FIT].flatten(0, 1).shape[0])
    figures = {name: round(100 * share, 2) for name, share in unknown_figures(taught, unknown).items()}
    told = {name: value for name, value in calibration.report.items() if "alarms" not in name}
    calibration = calibration.model_copy(
        update={"bias_slope": slopes, "tightness": typical, "unknown": unknown, "report": told | figures}
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
