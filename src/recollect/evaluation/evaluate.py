"""Evaluation of a model over few-shot tasks, from features computed once."""

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from recollect.data.catalogue import load_data
from recollect.data.imageset import CACHE_GB, ImageSet
from recollect.data.splits import Part, Split
from recollect.data.tasks import Tasks, TaskShape, task_sampler
from recollect.errors import DataError, ModelError, listed
from recollect.evaluation.metrics import Answers, Scores, answer_figures, answers, biased, summary
from recollect.features import FeatureSet, cached_features, extract
from recollect.model.classifier import Classifier
from recollect.model.generator import RidgeGenerator, solve_examples
from recollect.model.model import Head, Learner, Model
from recollect.model.spec import Calibration, LearnerSpec
from recollect.modelfile import PAPER, is_ready, load_model, read_header
from recollect.system.machine import find_device

log = logging.getLogger(__name__)
ScoringFunction = Callable[[Tasks], Scores]
SHOTS = (1, 5)  # where a call does not say
_ROWS = 1 << 14  # examples whose terms are computed at a time: attention makes a row of k values for each
_CHUNK_VALUES = 1 << 24  # query features or base scores gathered at a time: 64 MB


class Scorer:
    """How pictures and a trained model become scores of tasks: here, with the paper's model."""

    name = PAPER  # in the headers of its model files
    joint = True  # whether base categories are scored too; where not, all figures but Novel are `None`

    def learner(self, spec: LearnerSpec, width: int) -> nn.Module:  # noqa: ARG002
        """Return what the method adds to a model for features of this width, untrained."""
        raise ModelError(f"the method {self.name} adds nothing to a model: the file was altered")

    def require(self, model: Model, shape: TaskShape) -> None:
        """Refuse tasks that the trained method cannot answer."""

    def see(self, model: Model, images: ImageSet, *, keep: bool = True) -> FeatureSet:
        """Return what the method sees of every picture on its own, whatever the task: here, its feature.

        `keep` on disk what a trained model sees.
        """
        return (cached_features if keep else extract)(model, images)

    def scores(
        self,
        model: Model,
        novel: FeatureSet | None,
        base: FeatureSet,
        split: Split,  # noqa: ARG002
    ) -> ScoringFunction:
        """Return the scoring function over what is seen of novel and of base pictures.

        Without novel ones, base categories act as novel ones and are hidden among base ones.
        """
        return model_scores(model, novel, base)


def figures(score: ScoringFunction, tasks: Tasks, *, chunk: int = 100) -> dict[str, Tensor]:
    """Return every figure for each task, for any function that scores tasks."""
    return answer_figures(answers_of(score, tasks, chunk=chunk))


def answers_of(score: ScoringFunction, tasks: Tasks, *, chunk: int = 100) -> Answers:
    """Return how every query of the tasks is answered, for any function that scores tasks."""
    parts = []
    for start in range(0, len(tasks), chunk):
        some = tasks[start : start + chunk]
        parts.append(vars(answers(score(some), some.novel_targets, some.base_targets)))
    return Answers(**{name: torch.cat([part[name] for part in parts]) for name in parts[0]})


def model_scores(model: Head, novel: FeatureSet | None, base: FeatureSet) -> ScoringFunction:
    """Return the scoring function of a model over features of novel and of base pictures.

    Without novel ones, base categories act as novel ones, hidden from classifier, memory and keys.
    """
    return _fake_novel_scores(model, base) if novel is None else _novel_scores(model, novel, base)


def _novel_scores(model: Head, novel: FeatureSet, base: FeatureSet) -> ScoringFunction:
    """Score with what does not depend on the task computed once: base scores, and every example's term."""
    classifier: Classifier = model.classifier
    device = classifier.weight.device
    with torch.inference_mode():
        novel_features, base_features = novel.features.to(device), base.features.to(device)
        novel_base, base_base = classifier(novel_features), classifier(base_features)
        terms = torch.cat([model.terms(some) for some in torch.split(novel_features, _ROWS)])
        novel_view, base_view = classifier.view(novel_features), classifier.view(base_features)

    @torch.inference_mode()
    def score(tasks: Tasks) -> Scores:
        made = model.generator.compose(terms[tasks.support])
        vectors = classifier.scale * classifier.view(made)  # (tasks, ways, d)
        return Scores(
            novel_base=novel_base[tasks.novel_queries].cpu(),
            novel_novel=(novel_view[tasks.novel_queries] @ vectors.mT).cpu(),
            base_base=base_base[tasks.base_queries].cpu(),
            base_novel=(base_view[tasks.base_queries] @ vectors.mT).cpu(),
        )

    return score


def _fake_novel_scores(model: Head, base: FeatureSet) -> ScoringFunction:
    if isinstance(model.generator, RidgeGenerator) and base.support is not None:
        return left_out_scores(model, model.generator, base, base.support)
    # Without the training pictures, those of hidden categories stay among the negatives of `ridge`.
    device = model.classifier.weight.device
    features = base.features.to(device)
    examples = features if base.support is None else base.support.features.to(device)

    @torch.inference_mode()
    def score(tasks: Tasks) -> Scores:
        queries = torch.cat([tasks.novel_queries, tasks.base_queries], dim=1)
        base_scores, novel_scores = model.joint_scores(
            examples[tasks.support], features[queries], hidden=tasks.hidden(len(base.categories)).to(device)
        )
        return Scores.of_all(base_scores.cpu(), novel_scores.cpu(), tasks.novel_queries.shape[1])

    return score


def left_out_scores(
    model: Head,
    generator: RidgeGenerator,
    base: FeatureSet,
    support: FeatureSet,
    *,
    solved_base: bool = True,
) -> ScoringFunction:
    """Score with hidden categories left out of the regression that made the base vectors, and of G.

    Solved with them, the base vectors would score lower for them than for pictures of a novel category.
    `support` holds all pictures that the regression saw. Base vectors that do not come from the regression
    (`solved_base=False`) stay as they are.
    """
    classifier: Classifier = model.classifier
    device = classifier.weight.device
    count = len(base.categories)
    with torch.inference_mode():
        queries, z = (classifier.view(some.features.to(device)) for some in (base, support))
        labels = support.labels.to(device)
        seen = z @ generator.inverse()
        vectors = seen.new_zeros(count, seen.shape[1]).index_add_(0, labels, seen)

    @torch.inference_mode()
    def score(tasks: Tasks) -> Scores:
        found = []
        for task in range(len(tasks)):
            ways, rows = tasks.ways[task].to(device), tasks.support[task].to(device)
            hidden, own = torch.isin(labels, ways), rows.flatten()
            asked_for = torch.cat([vectors, seen[own]]) if solved_base else seen[own]
            solved = generator.leave_out(asked_for, z[hidden], seen[hidden])
            novel = solve_examples(z[own], solved[-len(own) :], *rows.shape)
            base_vectors = solved[: -len(own)] if solved_base else classifier.weight
            weights = classifier.view(torch.cat([base_vectors, novel]))
            asked = torch.cat([tasks.novel_queries[task], tasks.base_queries[task]]).to(device)
            found.append(classifier.scale * queries[asked] @ weights.T)
            found[-1][:, ways] = -torch.inf
        joint = torch.stack(found).cpu()
        return Scores.of_all(joint[..., :count], joint[..., count:], tasks.novel_queries.shape[1])

    return score


def model_figures(
    model: Model,
    novel: FeatureSet | None,
    base: FeatureSet,
    shape: TaskShape,
    tasks: int,
    seed: int,
    score: ScoringFunction | None = None,
) -> dict[str, Tensor]:
    """Draw tasks and return every figure for each of them, (tasks,)."""
    return answer_figures(model_answers(model, novel, base, shape, tasks, seed, score))


def model_answers(
    model: Model,
    novel: FeatureSet | None,
    base: FeatureSet,
    shape: TaskShape,
    tasks: int,
    seed: int,
    score: ScoringFunction | None = None,
) -> Answers:
    """Draw tasks and return how every query of them is answered, by the paper's scores or any others."""
    drawn = task_sampler(base, novel, base.support).draw(shape, tasks, seed)
    each = max(model.width, len(base.categories))  # a query's feature, and its base scores
    per_task = each * (shape.ways * shape.queries + shape.base_count)
    chunk = max(1, _CHUNK_VALUES // per_task)
    return answers_of(score or model_scores(model, novel, base), drawn, chunk=chunk)


def evaluate(
    model: Model,
    split: Split,
    *,
    part: Part = "test",
    shots: Sequence[int] = SHOTS,
    ways: int = 5,
    queries: int | None = None,
    tasks: int = 600,
    seed: int = 0,
    keep: dict[int, Answers] | None = None,
    by: Scorer | None = None,
    calibration: Calibration | None = None,
) -> list[dict[str, Any]]:
    """Return the report's `results`: one entry for each number of shots, every figure with its interval.

    Figures that the method `by` (default: the paper's) cannot give are `None`. `queries` defaults to what is
    usual for the data. `keep` receives how every query was answered, by number of shots. `both_calibrated` is
    Both with the bias that `predict` adds to novel scores; all other figures are of the scores themselves.
    """
    calibration = calibration or Calibration()
    by = by or Scorer()
    queries = queries or split.queries
    novel_images, base_images = split.evaluated(part)
    for count in shots:  # before the extractor runs for minutes
        by.require(model, TaskShape(ways, count, queries))
        _require_tasks(split, part, TaskShape(ways, count, queries))
    novel = None if novel_images is None else by.see(model, novel_images)
    base = by.see(model, base_images)
    score = by.scores(model, novel, base, split)
    results: list[dict[str, Any]] = []
    for count in shots:
        given = model_answers(model, novel, base, TaskShape(ways, count, queries), tasks, seed, score)
        if keep is not None:
            keep[count] = given
        found = answer_figures(given)
        bias = float(calibration.biases([count] * ways)[0])
        found["both_calibrated"] = answer_figures(biased(given, bias))["both"]
        reported = {
            name: summary(values) if by.joint or name == "novel" else None for name, values in found.items()
        }
        results.append({"shots": count, **reported})
    return results


def _require_tasks(split: Split, part: Part, shape: TaskShape) -> None:
    """Refuse tasks that the pictures do not allow; where only held-out ones count, say how many those are."""
    novel, base = split.evaluated(part)
    try:
        task_sampler(base, novel).check(shape)
    except DataError as error:
        if novel is not None:
            raise
        held, *others = (
            np.bincount(images.labels, minlength=len(split.categories))
            for images in (base, split.base_train, split.base_val, split.base_test)
        )
        small = int((held < shape.shots + shape.queries).argmax())
        given = sum(int(sizes[small]) for sizes in others)
        raise DataError(
            f"{error}. Only pictures held out from training count: of the {given} of "
            f"'{split.categories[small]}' these are {held[small]}. "
            "Train with --split to reserve whole categories, or try new pictures with `recollect check`"
        ) from error


def load_trained(
    model: str | Path,
    data: str,
    cache_gb: float | None = None,
    extractor: str | None = None,
    device: str = "auto",
    learner: Learner | None = None,
) -> tuple[Model, Split, list[str]]:
    """Load a model file and the data it was trained on, split as then; what to be warned of comes third."""
    header = read_header(model)
    spec, trained_on = header.spec, header.trained_on
    if (
        (is_ready(model) and "config" not in header.provenance)
        or "refit" in header.provenance
        or not spec.categories
    ):
        raise DataError(
            f"{model} was not trained on a data set with held-out pictures: measure it on pictures of your "
            f"own with `recollect check {model} FOLDER`"
        )
    found = find_device(device)
    loaded = load_model(model, extractor, learner).to(found)  # fail before pictures are decoded
    split = load_data(
        data,
        size=spec.preprocessing.size,
        split=trained_on.split,
        skip_bad=trained_on.skip_bad,
        cache_gb=CACHE_GB if cache_gb is None else cache_gb,
    )
    if split.categories != spec.categories:
        ours, theirs = {*spec.categories}, {*split.categories}
        different = [f"'{name}' only in the data" for name in sorted(theirs - ours)]
        different += [f"'{name}' only in the model" for name in sorted(ours - theirs)]
        raise DataError(
            f"{data} has other categories than {model} was trained on ({listed(different, 4)}): name the "
            f"data it was trained on, or measure it on these pictures with `recollect check {model} FOLDER`"
        )
    warnings = []
    if trained_on.key not in {None, split.base_train.key}:
        warnings.append(
            "these are not exactly the pictures that the model was trained on, so it may have learned from "
            "some that are held out now. Measure it on new pictures with `recollect check`"
        )
    return loaded, split, warnings


def evaluation_report(
    model: str | Path,
    data: str,
    *,
    part: Part = "test",
    shots: Sequence[int] | None = None,
    ways: int = 5,
    queries: int | None = None,
    tasks: int = 600,
    seed: int = 0,
    cache_gb: float | None = None,
    extractor: str | None = None,
    device: str = "auto",
    keep: dict[int, Answers] | None = None,
    by: Scorer | None = None,
) -> dict[str, Any]:
    """Evaluate a model file on the data it was trained on: the report of `recollect evaluate`.

    Where `shots` and `queries` are not given, they are the usual ones, or as many as the pictures allow.
    """
    began = time.perf_counter()
    by = by or Scorer()
    header = read_header(model)
    if header.method != by.name:
        raise ModelError(f"{model} is a model of the method {header.method}, not {by.name}")
    loaded, split, warnings = load_trained(model, data, cache_gb, extractor, device, by.learner)
    novel, base = split.evaluated(part)
    if novel is None:
        warnings.append(
            f"the model was trained on all categories of {data}: some of them act as novel ones, on held-out "
            "pictures (to reserve categories, train with --split)"
        )
    sampler = task_sampler(base, novel)
    if shots is None:
        shots = [count for count in SHOTS if sampler.most_queries(ways, count) >= 1] or SHOTS[:1]
        if len(shots) < len(SHOTS):
            warnings.append("some categories have too few pictures for 5 shots: only 1 shot is measured")
    if queries is None:
        queries = max(1, min(split.queries, sampler.most_queries(ways, max(shots))))
        if queries < split.queries:
            warnings.append(
                f"some categories have few pictures, so queries={queries} and not {split.queries}"
            )
    asked = {"ways": ways, "queries": queries, "tasks": tasks, "seed": seed}
    results = evaluate(
        loaded, split, part=part, shots=shots, keep=keep, by=by, calibration=header.calibration, **asked
    )
    for warning in warnings:
        log.warning("%s", warning)
    return {
        "model": str(model),
        "data": data,
        "categories": part,
        **asked,
        "seconds": round(time.perf_counter() - began, 1),
        **({"warnings": warnings} if warnings else {}),
        "results": results,
    }
