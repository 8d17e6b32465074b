"""Pretrained features on a person's photographs: the figures of `docs/results/photographs-*.json`.

    python -m benchmarks.photographs splits PHOTOS.zip --out docs/results
    python -m benchmarks.photographs ridge PHOTOS.zip --out docs/results
    python -m benchmarks.photographs frozen PHOTOS.zip --out docs/results
    python -m benchmarks.photographs uncentred PHOTOS.zip --out docs/results
    python -m benchmarks.photographs imagenet PHOTOS.zip --count 20 --out docs/results
    python -m benchmarks.photographs networks PHOTOS.zip --out docs/results
    python -m benchmarks.photographs path PHOTOS.zip --out docs/results

`splits`: 41 categories as base (8 pictures to learn from, 4 held out), 40 as novel (5 + 7), over random
splits: mean, average, attention, ridge, and logistic regression retrained on everything. `ridge`: the same
splits with ridge and logistic regression alone, which takes minutes instead of an hour; both learn from 8
pictures of each base category, or also from the 2 that ridge is calibrated on, as `recollect train` has it.
`frozen`: every category as base, 10 pictures to learn from and 2 held out, over random draws: ridge as
`recollect train` has it beside logistic regression. `uncentred`: the same with features that their mean was
not subtracted from. `imagenet`: the ready model, before and after it is taught what ImageNet does not have;
`imagenet-lite0` must lie beside the folder of PHOTOS.zip. `networks`: accuracy against milliseconds a
picture. `path`: the seconds of a person's first steps, and of one command from the zip to a model. Timings
want a machine where nothing else runs.

The recipe of `recollect train`, the C of the logistic regression and the τ of `recollect new` were chosen on
the same photographs, with splits of other seeds. Splits and draws share photographs, so that their intervals
say how much chance is in the choice, not how other photographs would do.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from scipy.stats import t as student
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.model_selection import StratifiedKFold

from benchmarks.lookalikes import tightness
from recollect.data.folder import read_library
from recollect.data.splits import Split
from recollect.evaluation.metrics import summary
from recollect.evaluation.reliability import calibration_error
from recollect.features import FeatureSet, augmented_views, cached_features
from recollect.model.classifier import unit
from recollect.model.extractors import published_input
from recollect.model.model import Model
from recollect.model.spec import Calibration, ModelSpec
from recollect.modelfile import load_model, read_header
from recollect.pretrained import PUBLISHED
from recollect.recognition.scoring import clearance, joint_scores, softmax
from recollect.system import machine
from recollect.system.disk import write_text
from recollect.training.calibration import calibrate
from recollect.training.config import make_config, read_preset
from recollect.training.frozen import FrozenViews
from recollect.training.ridge import solve_on_all_pictures, solve_on_training_pictures
from recollect.training.runfolder import RunFolder
from recollect.training.selection import Judgement
from recollect.training.stage1 import augmentation
from recollect.training.starting import starting_model
from recollect.training.train import learn_stage_one, learn_stage_two, new_model, resolve

LITE0 = "efficientnet-lite0"
BASE, LEARNED, HELD, SUPPORT = 41, 8, 2, 5  # HELD pictures choose the model; the rest are reported on
# Categories of the photographs that are ImageNet's too, under whatever name: their places in its usual order.
IN_IMAGENET = {
    "Banana": 954, "Brown-Cap-Mushroom": 947, "Cabbage": 936, "Cucumber": 943, "Granny-Smith": 948,
    "Green-Bell-Pepper": 945, "Lemon": 951, "Orange": 950, "Orange-Bell-Pepper": 945, "Pineapple": 953,
    "Pomegranate": 957, "Red-Bell-Pepper": 945, "Yellow-Bell-Pepper": 945, "Zucchini": 939,
}  # fmt: skip


def photographs(path, extractor=LITE0):
    """Return every photograph, decoded for an extractor, and its model without categories."""
    prepare = published_input(extractor)
    library = read_library(path, prepare.size, skip_bad=False)
    images = library.select(np.arange(len(library.names)), library.categories)
    spec = ModelSpec(extractor=extractor, generator="mean", preprocessing=prepare, categories=())
    return images, starting_model(spec).eval()


def splits(path, count, *, centred=True, seed=0):
    """Compare generators over random splits; the extractor runs once for all of them."""
    images, model = photographs(path)
    plain = cached_features(model, images).features
    learned = {"data": str(path), "extractor": LITE0, "generator": "attention"}  # an own way is that of ridge
    config = make_config(read_preset("pretrained"), learned)
    whole = Split(images, images, images, None, None, flips=True)
    views = augmented_views(model, images, augmentation(whole, config.stage1), config.stage2.views, seed)
    rows = []
    for number in range(count):
        rows.append(one_split(images, plain, views, centred, config.model_copy(update={"seed": number})))
        print(
            number,
            [(row["generator"], row["bias"], row["shots"], row["both"]) for row in rows[-1]],
            flush=True,
        )
    return {"summary": [compared(rows, place) for place in range(len(rows[0]))], "splits": rows}


def compared(rows, place):
    """Return one system's figures over all splits, and by how much they are above those of plain means."""
    system = {name: rows[0][place][name] for name in ("generator", "bias", "shots")}
    plain = next(
        other
        for other, row in enumerate(rows[0])
        if (row["generator"], row["bias"], row["shots"]) == ("mean", system["bias"], system["shots"])
    )
    for figure in ("novel", "base", "both", "novel_5", "both_5"):
        values = [row[place][figure] for row in rows]
        system[figure] = interval(values)
        system[f"{figure}_minus_mean"] = interval(
            [value - row[plain][figure] for value, row in zip(values, rows, strict=True)]
        )
    return system


def one_split(images, plain, views, centred, config):
    """Train on one random split by the recipe of `recollect train`, on features computed before."""
    train, val, test, support, queries = random_split(images, config.seed)
    split = Split(train, val, test, None, None, flips=True)
    raw = views[:, torch.from_numpy(train.rows)].float()
    centre = raw.mean((0, 1)) if centred else torch.zeros(raw.shape[2])

    def extracted(asked):
        features = plain[torch.from_numpy(asked.rows)] - centre
        return FeatureSet(features, torch.from_numpy(asked.labels), asked.categories)

    config = resolve(config, split)
    judgement = Judgement(split, config.select_shots, config)
    base_held = replace(extracted(judgement.base_images), support=extracted(judgement.support))
    extractor = new_model(config, split).extractor
    frozen = FrozenViews(extractor, (raw - centre).half(), centre, (None, base_held))
    models, calibrations = {}, {}
    with tempfile.TemporaryDirectory() as name:
        for kind in ("mean", "average", "attention"):
            folder = RunFolder(Path(name) / kind)
            taken = None if kind == "mean" else f"{name}/mean"
            own = config.model_copy(update={"generator": kind, "stage1_from": taken})
            folder.restart(own)
            models[kind] = learn_stage_one(own, split, folder, None, frozen)
            learn_stage_two(models[kind], own, split, folder, None, frozen.views, frozen.held_out)
            calibrations[kind] = read_header(folder.model).calibration
    if centred:
        models["ridge"], calibrations["ridge"] = ridge_model(models["mean"], plain, train, val)
    seen = plain - centre
    found = []
    for shots in (1, 5):
        for kind, model in models.items():
            scored = scores_of(model, plain - model.centre, support[:, :shots], queries, test.rows)
            for biased in (False, True):
                named = {"generator": kind, "bias": biased, "shots": shots}
                found.append(
                    named | figures_of(scored, test.labels, calibrations[kind] if biased else None, shots)
                )
        scored = regression(seen, train, support[:, :shots], queries, test.rows)
        named = {"generator": "logistic regression", "bias": False, "shots": shots}
        found.append(named | figures_of(scored, test.labels))
    return found


def random_split(images, seed):
    """Return training, validation and test pictures of base categories, support and queries of the others."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(images.categories))
    drawn = {label: rng.permutation(np.flatnonzero(images.labels == label)) for label in order}
    base, novel = order[:BASE], order[BASE:]

    def chosen(part):
        kept = np.concatenate([drawn[label][part] for label in base])
        places = {label: place for place, label in enumerate(base)}
        return type(images)(
            images.pixels,
            kept,
            np.array([places[label] for label in images.labels[kept]]),
            tuple(images.categories[label] for label in base),
            f"{images.key}-{seed}",
        )

    parts = slice(LEARNED), slice(LEARNED, LEARNED + HELD), slice(LEARNED + HELD, None)
    support = np.stack([drawn[label][:SUPPORT] for label in novel])
    return *map(chosen, parts), support, np.stack([drawn[label][SUPPORT:] for label in novel])


def ridge_splits(path, count):
    """Compare ridge and logistic regression over the splits of `splits`, learning from the same pictures."""
    images, like = photographs(path)
    plain = cached_features(like, images).features
    rows = []
    for seed in range(count):
        train, val, test, support, queries = random_split(images, seed)
        rows.append([])
        for more in (False, True):
            model, calibration = ridge_model(like, plain, train, val, final=more)
            seen = plain - model.centre
            learned = joined(train, val) if more else train
            for shots in (1, 5):
                some = support[:, :shots], queries, test.rows
                scored = scores_of(model, seen, *some)
                systems = {
                    ("ridge", False): figures_of(scored, test.labels),
                    ("ridge", True): figures_of(scored, test.labels, calibration, shots),
                    ("logistic regression", False): figures_of(regression(seen, learned, *some), test.labels),
                }
                rows[-1] += [
                    {"generator": name, "bias": bias, "learned": LEARNED + more * HELD, "shots": shots}
                    | found
                    for (name, bias), found in systems.items()
                ]
        print(
            seed, [(row["generator"], row["bias"], row["shots"], row["both"]) for row in rows[-1]], flush=True
        )
    names = ("generator", "bias", "learned", "shots")
    figures = ("novel", "base", "both", "novel_5", "both_5")
    summary_ = [
        {name: first[name] for name in names}
        | {figure: interval([row[place][figure] for row in rows]) for figure in figures}
        for place, first in enumerate(rows[0])
    ]
    return {"summary": summary_, "splits": rows}


def joined(one, other):
    """Return the pictures of two sets."""
    rows, labels = (
        np.concatenate([getattr(some, name) for some in (one, other)]) for name in ("rows", "labels")
    )
    return type(one)(one.pixels, rows, labels, one.categories, one.key)


@torch.no_grad()
def scores_of(model, features, support, queries, held):
    """Return base scores and novel scores, each of (novel queries, base queries)."""
    vectors = model.generator.compose(model.terms(features[torch.from_numpy(support)]))
    asked = [features[torch.from_numpy(rows.reshape(-1))] for rows in (queries, held)]
    return [model.classifier(z) for z in asked], [model.classifier.scores(z, vectors) for z in asked]


def regression(features, train, support, queries, held):
    """Retrain a linear classifier on the pictures of all categories, also where 5 are asked about."""
    seen = unit(features).numpy()
    rows = np.concatenate([train.rows, support.reshape(-1)])
    labels = np.concatenate([train.labels, np.repeat(np.arange(len(support)), support.shape[1]) + BASE])
    fitted = LogisticRegression(C=100, max_iter=300, class_weight="balanced").fit(seen[rows], labels)
    asked = [torch.from_numpy(fitted.decision_function(seen[r.reshape(-1)])) for r in (queries, held)]
    return [one[:, :BASE] for one in asked], [one[:, BASE:] for one in asked]


def figures_of(scored, base_labels, calibration=None, shots=1):
    """Return accuracies in percent: over all 40 novel categories at once, and 5 of them at a time."""
    (novel_base, base_base), (novel_novel, base_novel) = scored
    calibration = calibration or Calibration()
    many, five = (calibration.biases([shots] * ways)[0] for ways in (novel_novel.shape[1], 5))
    each = len(novel_novel) // novel_novel.shape[1]
    targets = torch.arange(novel_novel.shape[1]).repeat_interleave(each)
    base_targets = torch.from_numpy(base_labels)
    joint = torch.cat([novel_base, novel_novel + many], 1), torch.cat([base_base, base_novel + many], 1)
    right = joint[0].argmax(1) == targets + BASE, joint[1].argmax(1) == base_targets
    found = {
        "novel": percent(novel_novel.argmax(1) == targets),
        "base": percent(base_base.argmax(1) == base_targets),
        "both": (percent(right[0]) + percent(right[1])) / 2,  # base and novel queries weigh the same
    }
    rng = np.random.default_rng(0)  # the same fives for whatever is compared
    fives, both_fives = [], []
    for _ in range(40):
        ways = torch.from_numpy(rng.permutation(novel_novel.shape[1])[:5])
        asked = torch.isin(targets, ways)
        place = (targets[asked].unsqueeze(1) == ways).int().argmax(1)
        fives.append(percent(novel_novel[asked][:, ways].argmax(1) == place))
        with_base = torch.cat([novel_base[asked], novel_novel[asked][:, ways] + five], 1)
        base_too = torch.cat([base_base, base_novel[:, ways] + five], 1)
        drawn = torch.from_numpy(rng.permutation(len(base_too))[: len(with_base)])
        right = torch.cat(
            [with_base.argmax(1) == place + BASE, base_too[drawn].argmax(1) == base_targets[drawn]]
        )
        both_fives.append(percent(right))
    return found | {"novel_5": float(np.mean(fives)), "both_5": float(np.mean(both_fives))}


def ridge_model(like, features, train, val, *, final=True):
    """Return what `recollect train` makes of features, or before its final fit; and the calibration."""
    spec = like.spec.model_copy(update={"categories": train.categories, "centred": True})
    model = Model(spec, like.extractor).eval()
    learned, held = (
        FeatureSet(features[torch.from_numpy(some.rows)], torch.from_numpy(some.labels), some.categories)
        for some in (train, val)
    )
    learned, held_out = solve_on_training_pictures(model, learned, (None, held))
    calibration = calibrate(model, *held_out)
    if final:
        solve_on_all_pictures(model, learned, held_out[1])
    return model, calibration


def frozen(path, count):
    """Compare accuracies on held-out pictures over random draws; the extractor runs once for all of them."""
    images, model = photographs(path)
    features = cached_features(model, images).features
    rows = []
    for seed in range(count):
        rng = np.random.default_rng(seed)
        drawn = np.stack([rng.permutation(np.flatnonzero(images.labels == label)) for label in range(81)])
        train, val, test = (
            type(images)(
                images.pixels,
                drawn[:, part].reshape(-1),
                np.repeat(np.arange(81), drawn[:, part].shape[1]),
                images.categories,
                f"{images.key}-{seed}",
            )
            for part in (slice(LEARNED), slice(LEARNED, LEARNED + HELD), slice(LEARNED + HELD, None))
        )
        rows.append(one_draw_of_base(model, features, train, val, test))
        print(seed, rows[-1], flush=True)
    found = {name: interval([row[name] for row in rows]) for name in rows[0]}
    over = {
        f"ridge minus {name}": interval([row["ridge"] - row[name] for row in rows])
        for name in rows[0]
        if name != "ridge"
    }
    return {"learned": LEARNED + HELD, "tested": len(test) // 81, "summary": found | over, "draws": rows}


def one_draw_of_base(like, features, train, val, test):
    """Learn from training and validation pictures; return accuracies on the others in percent."""
    model, _ = ridge_model(like, features, train, val)
    seen = unit(features - model.centre).numpy()
    labels = np.concatenate([train.labels, val.labels])
    rows = np.concatenate([train.rows, val.rows])
    folds = StratifiedKFold(3, shuffle=True, random_state=0)
    regressions = {
        "logistic regression": (LogisticRegression(max_iter=1000), features.numpy()),
        "logistic regression, unit length": (LogisticRegression(max_iter=1000), seen),
        "logistic regression, unit length, C by cross-validation": (
            LogisticRegressionCV(
                Cs=[1, 10, 100, 1000],
                cv=folds,
                max_iter=1000,
                l1_ratios=(0,),
                scoring="accuracy",
                use_legacy_attributes=False,
            ),
            seen,
        ),
    }
    targets = torch.from_numpy(test.labels)
    with torch.inference_mode():
        asked = features[torch.from_numpy(test.rows)] - model.centre
        found = {"ridge": percent(model.classifier(asked).argmax(1) == targets)}
    for name, (fitted, inputs) in regressions.items():
        fitted.fit(inputs[rows], labels)
        found[name] = percent(torch.from_numpy(fitted.predict(inputs[test.rows])) == targets)
    return found


def interval(values):
    """Return the mean of some percentages and its 95 % interval by Student's t, for there are few."""
    spread = np.std(values, ddof=1) / len(values) ** 0.5
    return {
        "mean": round(float(np.mean(values)), 2),
        "ci95": round(float(student.ppf(0.975, len(values) - 1) * spread), 2),
    }


def percent(right):
    return round(100 * right.double().mean().item(), 3)


def imagenet(path, folder, count):
    """Teach the ready model what ImageNet does not have, from photographs that are drawn anew each time."""
    from benchmarks.imagenet_model import REPORTED, part_of, read_features

    model, header = load_model("imagenet"), read_header("imagenet")
    calibration = header.calibration
    images, _ = photographs(path)
    seen = cached_features(model, images).features
    features, names = read_features(folder)
    base = part_of(features, names, REPORTED, model.centre)
    new = [label for label, name in enumerate(images.categories) if name not in IN_IMAGENET]
    rows = torch.from_numpy(np.stack([np.flatnonzero(images.labels == label) for label in new]))
    with torch.inference_mode():
        known = model.classifier(base.features)
        top = model.classifier(seen[rows.flatten()]).max(1).values.numpy()
        found = {
            "base_top1": percent(known.argmax(1) == base.labels),
            "last_layer_top1": header.provenance["report"]["last_layer_top1"],
            "taught": len(new),
            "unknown_before_teaching": flagged(top, calibration.unknown),
            "known_called_unknown": flagged(known.max(1).values.numpy(), calibration.unknown),
        }
        for shots in (1, SUPPORT):
            draws = [
                one_draw(model, calibration, seen[shuffled(rows, seed)], shots, base, known)
                for seed in range(count)
            ]
            for kind in draws[0]:
                found[f"{kind}, {shots} shots"] = {
                    figure: interval([draw[kind][figure] for draw in draws]) for figure in draws[0][kind]
                }
        found["after teaching 20 kinds"] = after_teaching(
            model, calibration, seen, images, (known, base.features), count
        )
    return found


def shuffled(rows, seed):
    """Return rows (categories, pictures) with the pictures of each category in another order."""
    order = np.random.default_rng(seed).permuted(np.tile(np.arange(rows.shape[1]), (len(rows), 1)), axis=1)
    return rows.gather(1, torch.from_numpy(order))


def flagged(scores, unknown):
    return 100 * float((clearance(scores, 0, unknown) < 0).mean())


def after_teaching(model, calibration, seen, images, known, count, size=20):
    """Teach some kinds from 5 photographs each: which photographs of other kinds are called unknown?

    Also, how many photographs of kinds that ImageNet has are still right. `known` are ImageNet's pictures:
    base scores and features.
    """
    rows = torch.from_numpy(np.stack([np.flatnonzero(images.labels == label) for label in range(81)]))
    shared = torch.tensor([IN_IMAGENET.get(images.categories[label], -1) for label in images.labels])
    base, threshold = model.classifier(seen), calibration.unknown.threshold
    best, right = base.amax(1), base.argmax(1) == shared
    draws = []
    for seed in range(count):
        drawn, order = shuffled(rows, seed), np.random.default_rng(seed).permutation(81)
        taught = [label for label in order if images.categories[label] not in IN_IMAGENET][:size]
        support, queries = seen[drawn[taught, :SUPPORT]], drawn[taught, SUPPORT:]
        vectors = model.generator.compose(model.terms(support))
        words = [SUPPORT] * size, tightness(unit(support))
        offset, bias = float(calibration.unknown_offsets(*words)[0]), float(calibration.biases(*words)[0])
        novel, which = model.classifier.scores(seen, vectors).max(1)
        other = model.classifier.scores(known[1], vectors).amax(1)
        called, won = torch.maximum(best, novel + offset) < threshold, novel + bias > best
        untaught = torch.from_numpy(~np.isin(images.labels, taught)) & (shared < 0)
        answers = {
            "taught_right": won[queries] & (which[queries] == torch.arange(size)[:, None]) & ~called[queries],
            "taught_called_unknown": called[queries],
            "untaught_called_unknown_before": best[untaught] < threshold,
            "untaught_called_unknown": called[untaught],
            "in_imagenet_right_before": right[shared >= 0],
            "in_imagenet_right": (right & ~won)[shared >= 0],
            "base_called_unknown": torch.maximum(known[0].amax(1), other + offset) < threshold,
        }
        draws.append({name: 100 * some.float().mean().item() for name, some in answers.items()})
    return {name: interval([draw[name] for draw in draws]) for name in draws[0]}


def one_draw(model, calibration, features, shots, base, known):
    """Teach the first photographs of each category, ask about the others and about ImageNet's pictures."""
    support, queries = features[:, :shots], features[:, SUPPORT:].flatten(0, 1)
    bias = float(calibration.biases([shots] * len(support), tightness(unit(support)))[0])
    targets = np.repeat(np.arange(len(features)), features.shape[1] - SUPPORT) + known.shape[1]
    labels = np.concatenate([targets, base.labels.numpy()])
    base_scores = torch.cat([model.classifier(queries), known]).numpy()
    made = model.generator.compose(model.terms(support))
    vectors = {"mean": unit(support).mean(1), model.spec.generator: made}
    found = {}
    for kind, made in vectors.items():
        asked = torch.cat([queries, base.features])
        novel_scores = model.classifier.scores(asked, made).numpy()
        biases = {"": 0.0, " with the bias": bias} if kind == model.spec.generator else {"": 0.0}
        for told, added in biases.items():
            chances = softmax(joint_scores(base_scores, novel_scores, added), calibration.temperature)
            right = chances.argmax(1) == labels
            found[f"{kind}{told}"] = {
                "taught": 100 * float(right[: len(targets)].mean()),
                "base": 100 * float(right[len(targets) :].mean()),
                "calibration_error": 100 * calibration_error(chances.max(1), right),
            }
    return found


def networks(path, pictures=30):
    """Return 5-way and 81-way accuracy of plain means, as `recollect new` has them, and milliseconds."""
    found = {}
    for name in PUBLISHED:
        images, model = photographs(path, name)
        features = cached_features(model, images).features
        rng = np.random.default_rng(0)
        accuracy = {f"{ways}-way, {shots} shots": [] for ways in (5, 81) for shots in (1, 5)}
        for _ in range(100):
            rows = np.stack([rng.permutation(np.flatnonzero(images.labels == c)) for c in range(81)])
            rows = torch.from_numpy(rows)
            for ways in (5, 81):
                some = rows[torch.from_numpy(rng.permutation(81)[:ways])]
                for shots in (1, 5):
                    vectors = unit(unit(features[some[:, :shots]]).mean(1))
                    queries = unit(features[some[:, 5:]])
                    right = (queries @ vectors.T).argmax(2) == torch.arange(ways)[:, None]
                    accuracy[f"{ways}-way, {shots} shots"].append(right.float().mean().item())
        pixels = torch.from_numpy(images.take(np.arange(pictures)))
        found[name] = {
            "input": images.size,
            "milliseconds": milliseconds(model, pixels, model.extractor.for_inference()),
            "milliseconds_not_folded": milliseconds(model, pixels, model.extractor),
            **{task: summary(torch.tensor(values)) for task, values in accuracy.items()},
        }
        print(name, json.dumps(found[name]), flush=True)
    return found


@torch.inference_mode()
def milliseconds(model, pixels, extractor):
    """Return the time of a picture, one after the other."""
    model.embed(pixels[:2], extractor)
    began = time.perf_counter()
    for row in range(len(pixels)):
        model.embed(pixels[row : row + 1], extractor)
    return round(1000 * (time.perf_counter() - began) / len(pixels), 1)


def person(path):
    """Time the commands of a person's first steps, and one command from the zip to a model."""
    with tempfile.TemporaryDirectory() as name, zipfile.ZipFile(path) as archive:
        archive.extractall(Path(name) / "photos")
        folders = sorted(folder for folder in (Path(name) / "photos").rglob("*") if folder.is_dir())
        folders = [folder for folder in folders if any(folder.glob("*.jpg"))][:10]
        lessons = Path(name) / "lessons"
        for folder in folders:
            (lessons / folder.name).mkdir(parents=True)
            for picture in sorted(folder.glob("*.jpg"))[:SUPPORT]:
                (lessons / folder.name / picture.name).write_bytes(picture.read_bytes())
        asked = sorted(folders[0].glob("*.jpg"))[SUPPORT]
        steps = {
            "new": ("new", "--extractor", LITE0, f"{name}/mine"),
            "teach 10 categories from 5 photographs each": ("teach", f"{name}/mine", "--from", lessons),
            "predict one photograph": ("predict", f"{name}/mine", asked),
            "predict one photograph with imagenet": ("predict", "imagenet", asked),
            "train, from the zip to a model": ("train", path, "--extractor", LITE0, "--out", f"{name}/run"),
        }
        environment = {**os.environ, "RECOLLECT_CACHE": f"{name}/cache", "XDG_DATA_HOME": f"{name}/data"}
        seconds = {}
        for step, words in steps.items():
            began = time.perf_counter()
            subprocess.run(
                [sys.executable, "-m", "recollect.cli", *map(str, words)],
                check=True,
                env=environment,
                stdout=subprocess.DEVNULL,
            )
            seconds[step] = round(time.perf_counter() - began, 1)
            print(step, seconds[step], flush=True)
        return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "what", choices=("splits", "ridge", "frozen", "uncentred", "imagenet", "networks", "path")
    )
    parser.add_argument("photos", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=10, help="random splits, or draws")
    options = parser.parse_args()
    threads = machine.prepare()
    if options.what in {"splits", "uncentred"}:
        found = splits(options.photos, options.count, centred=options.what == "splits")
    elif options.what in {"ridge", "frozen"}:
        measure = ridge_splits if options.what == "ridge" else frozen
        found = measure(options.photos, options.count)
    elif options.what == "imagenet":
        found = imagenet(
            options.photos, options.photos.resolve().parents[1] / "imagenet-lite0", options.count
        )
    else:
        found = networks(options.photos) if options.what == "networks" else person(options.photos)
    command = f"python -m benchmarks.photographs {options.what} {options.photos.name} --count {options.count}"
    result = {"command": command, "threads": threads, **found}
    write_text(options.out / f"photographs-{options.what}.json", json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
