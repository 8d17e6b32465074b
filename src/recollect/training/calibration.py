"""Calibration: temperature, bias and threshold of a finished model, from validation features.

The tasks resemble a user's: a few categories taught from 1 to 5 pictures each, with as many base queries as
novel ones. A bias that depends on the number of examples is fitted with 10 and 20 of them too. Where no
categories are reserved, base categories act as novel ones on held-out pictures.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import exp, log
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from recollect.data.tasks import Tasks, TaskSampler, TaskShape, task_sampler
from recollect.evaluation.evaluate import ScoringFunction, model_scores
from recollect.evaluation.metrics import Scores, answers, harmonic, joint_curve, task_figures
from recollect.evaluation.reliability import auroc, calibration_error
from recollect.features import FeatureSet
from recollect.model.generator import RidgeGenerator
from recollect.model.model import Head
from recollect.model.spec import MOST_SHOTS, Calibration, TaughtOffset, Unknown

FALSE_ALARMS = 0.05  # of known pictures may be called unknown
WAYS = 5  # of the tasks for temperature and bias, as in evaluations
TAUGHT = (1, 2, WAYS, 10, 20)  # numbers of taught categories for which bias and threshold are made, usually
FEW_SHOTS, MANY_SHOTS = tuple(range(1, MOST_SHOTS + 1)), (10, 20)
COLDEST, HOTTEST = 0.05, 20.0

_QUERIES = 75  # of taught categories in a task, about
_TASKS = 250  # of each number of ways
_SOLVED_TASKS = 100  # the same where each has base vectors of its own to solve
_GATHERED = 1 << 23  # values of features in memory at a time
_SCORES = 1 << 23  # scores of one number of ways in memory

Doubles = npt.NDArray[np.float64]
Biases = tuple[dict[int, float], float]  # by number of taught categories, and their rise with ln(shots)


class Scored(NamedTuple):
    """Tasks of one shape: the scores of their queries, and the right answers."""

    scores: Scores
    novel_targets: Tensor
    base_targets: Tensor

    def biased(self, bias: float) -> "Scored":
        """Return the same with a bias added to every novel score."""
        return self._replace(scores=self.scores.biased(bias))


class Queries(NamedTuple):
    """Joint scores (n, categories) of queries, −∞ for hidden ones, and the right columns (n,)."""

    scores: Tensor
    targets: Tensor


class Lesson(NamedTuple):
    """Best scores (n,) of pictures once so many categories were taught from so many examples each.

    Without a bias: of pictures of base categories, of taught ones, and of strange ones, which belong to no
    category; each the best base and the best taught score.
    """

    taught: int
    shots: int
    base: tuple[Doubles, Doubles]
    novel: tuple[Doubles, Doubles]
    strange: tuple[Doubles, Doubles]
    own: Doubles  # the score of the picture's own category, for pictures of taught ones
    excess: float = 0.0  # of the tightness of the examples over what is typical

    def terms(self) -> list[float]:
        """Return what number, rise and slope of a `TaughtOffset` are multiplied with."""
        return [log(self.taught), log(self.shots), self.excess]


def calibrate(
    model: Head,
    novel: FeatureSet | None,
    base: FeatureSet,
    seed: int = 0,
    taught: Sequence[int] = TAUGHT,
    score: ScoringFunction | None = None,
    biases: Biases | None = None,
    *,
    by_shots: bool = False,
) -> Calibration:
    """Fit a calibration on features of validation categories (`None` where none are reserved) and base ones.

    The bias comes first, and the temperature is that of biased scores. `score` replaces the model's
    own scoring of tasks; `biases` are used instead of fitting them. `by_shots` fits biases that depend on the
    number of shots, up to 20; those of `ridge` always depend on it, up to 5.
    """
    sampler, score = task_sampler(base, novel, base.support), score or model_scores(model, novel, base)
    pictures = len(base.labels) + (0 if novel is None else len(novel.labels))
    solved = isinstance(model.generator, RidgeGenerator)
    most = _SOLVED_TASKS if solved else _TASKS
    count = min(most, max(20, _SCORES // (2 * _QUERIES * (len(base.categories) + WAYS))))
    chunk = max(1, _GATHERED // (2 * _QUERIES * base.features.shape[1]))
    drawn = {
        ways: score_tasks(sampler, score, ways, FEW_SHOTS, count, chunk, seed)
        for ways in sorted({sampler.fit(TaskShape(ways)).ways for ways in taught})
    }
    if biases is not None:
        balanced = Calibration(bias=biases[0], bias_rise=biases[1])
    elif by_shots:
        many = {ways: score_tasks(sampler, score, ways, MANY_SHOTS, count, chunk, seed) for ways in drawn}
        balanced = fit_biases_by_shots({ways: few | many[ways] for ways, few in drawn.items()})
    elif solved:
        balanced = fit_biases_by_shots(drawn)
    else:
        balanced = Calibration(bias=fit_biases(drawn))
    ways = min(WAYS, max(drawn))
    judged = list(drawn[ways].values())
    adjusted = [some.biased(float(balanced.biases([shots] * ways)[0])) for shots, some in drawn[ways].items()]
    lessons = lessons_of(drawn)
    temperature = fit_temperature(joint_queries(adjusted), pictures)
    unknown = fit_unknown(lessons, pictures)
    report = {
        "ece_before": joint_error(joint_queries(judged)),
        "ece_after": joint_error(joint_queries(adjusted), temperature),
        **_accuracies(judged, "before"),
        **_accuracies(adjusted, "after"),
        **(unknown_figures(lessons, unknown) if unknown else {}),
    }
    return balanced.model_copy(
        update={
            "temperature": temperature,
            "unknown": unknown,
            "report": {name: round(100 * value, 2) for name, value in report.items()},
        }
    )


def score_tasks(
    sampler: TaskSampler,
    score: ScoringFunction,
    ways: int,
    numbers: Sequence[int],
    count: int,
    chunk: int,
    seed: int,
) -> dict[int, Scored]:
    """Draw `count` tasks and score them: as many with each number of shots that the pictures allow.

    More than `MOST_SHOTS` must leave at least a third of the queries.
    """
    queries = max(1, _QUERIES // ways)
    shapes = {shots: sampler.fit(TaskShape(ways, shots, queries)) for shots in numbers}
    # A bias that was fitted on a few queries would count as much as the others.
    numbers = [
        shots
        for shots, shape in shapes.items()
        if shape.shots == shots and (shots <= MOST_SHOTS or 3 * shape.queries >= queries)
    ]
    if not numbers:
        return {}
    shape = shapes[max(numbers)]
    tasks = sampler.draw(shape, count, [seed, ways])
    scored = {}
    for place, shots in enumerate(numbers):
        mine = tasks[place :: len(numbers)]
        mine = replace(mine, support=mine.support[:, :, :shots])
        parts = [vars(score(mine[start : start + chunk])) for start in range(0, len(mine), chunk)]
        found = Scores(**{name: torch.cat([part[name] for part in parts]) for name in parts[0]})
        scored[shots] = Scored(found, mine.novel_targets, mine.base_targets)
    return scored


def with_bias(score: ScoringFunction, calibration: Calibration) -> ScoringFunction:
    """Return a scoring function with the calibration's bias added to novel scores."""

    def biased(tasks: Tasks) -> Scores:
        _, ways, shots = tasks.support.shape
        return score(tasks).biased(float(calibration.biases([shots] * ways)[0]))

    return biased


def joint_queries(scored: Sequence[Scored]) -> Queries:
    """Return all queries as rows of joint scores."""
    scores, targets = [], []
    for some, novel_targets, base_targets in scored:
        scores += [
            torch.cat([some.novel_base, some.novel_novel], 2),
            torch.cat([some.base_base, some.base_novel], 2),
        ]
        targets += [novel_targets + some.novel_base.shape[2], base_targets]
    return Queries(
        torch.cat([some.flatten(0, 1) for some in scores]), torch.cat([some.flatten() for some in targets])
    )


def fit_biases(drawn: Mapping[int, Mapping[int, Scored]]) -> dict[int, float]:
    """Return the bias for `WAYS` taught categories and for the most.

    The best of many wrong scores rises with their number: what is right for five taught categories would let
    twenty swallow the base ones. The best biases lie near a line over the logarithm of the number. For fewer
    than `WAYS` the bias is that of `WAYS`: it would rise steeply, as if half of all pictures were of one
    taught category, and base categories would pay for it.
    """
    numbers = sorted(number for number in drawn if number >= min(WAYS, max(drawn)))
    found = [fit_bias(list(drawn[number].values())) for number in numbers]
    if len(numbers) == 1:
        return {numbers[0]: found[0]}
    slope, start = np.polyfit(np.log(numbers), found, 1)
    return {number: float(start + slope * log(number)) for number in (numbers[0], numbers[-1])}


def fit_biases_by_shots(drawn: Mapping[int, Mapping[int, Scored]]) -> Calibration:
    """Return the biases of `fit_biases` for one shot, and by how much they rise with ln(shots).

    With more than `MOST_SHOTS`, how much depends on the number of taught categories too.

    Vectors of few examples score lower than base vectors do, unless W_base learned to give way to them. What
    is made best is the mean of novel and base accuracy: at one shot the harmonic mean would cost more than it
    gives.
    """
    numbers = sorted(number for number in drawn if number >= min(WAYS, max(drawn)))
    most = min(max(drawn[number]) for number in numbers)
    rows, found = [], []
    for number in numbers:
        # The same numbers of shots for all: fewer taught categories may leave too few queries for as many.
        few = {shots: one for shots, one in drawn[number].items() if shots <= max(most, MOST_SHOTS)}
        for shots, scored in few.items():
            both = log(number) * log(shots) if most > MOST_SHOTS else 0.0
            rows.append([1.0, log(number), log(shots), both])
            found.append(fit_bias([scored], lambda novel, base: (novel + base) / 2))
    start, slope, rise, steeper = np.linalg.lstsq(np.array(rows), np.array(found), rcond=None)[0].tolist()
    ends = numbers[0], numbers[-1]
    return Calibration(
        bias={number: start + slope * log(number) for number in ends},
        bias_rise={number: rise + steeper * log(number) for number in ends} if most > MOST_SHOTS else rise,
        most_shots=max(most, MOST_SHOTS),
    )


def fit_bias(scored: Sequence[Scored], figure: Callable[[Tensor, Tensor], Tensor] = harmonic) -> float:
    """Return the bias with the highest harmonic mean of novel and base accuracy, averaged over tasks.

    The harmonic mean and not Both, since it never gives up one side for the other; or another `figure` of the
    two accuracies. Of equally good biases, the nearest to 0.
    """
    parts = [_steps(some, figure) for some in scored]
    gaps, order = torch.cat([part[0] for part in parts]).sort(stable=True)
    values = torch.cat([part[1] for part in parts])[order].cumsum(0)
    # Between two neighbouring gaps nothing changes; beyond them all, one side has nothing right.
    middles = (gaps[1:] + gaps[:-1]) / 2
    apart = (gaps[:-1] < middles) & (middles < gaps[1:])
    at_zero = values[(gaps < 0).sum() - 1 :][:1] if (gaps < 0).any() else torch.zeros(1, dtype=torch.double)
    biases = torch.cat([torch.zeros(1, dtype=torch.double), middles[apart]])
    values = torch.cat([at_zero, values[:-1][apart]])
    best = biases[values >= values.max() - 1e-9 * len(gaps)]
    return float(best[best.abs().argmin()])


def _steps(scored: Scored, figure: Callable[[Tensor, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Return the biases at which an answer changes, and what each adds to the sum of the figure."""
    given = answers(*scored)
    gaps = torch.cat([given.novel_gap, given.base_gap], 1).double().sort(dim=1).values
    return gaps.flatten(), figure(*joint_curve(given)).diff(dim=1).flatten()


def fit_temperature(queries: Queries, pictures: int) -> float:
    """Return the temperature of the highest likelihood, between `COLDEST` and `HOTTEST`.

    Answers count as if one of `pictures` + 2 were given blindly: a few pictures that are all right do not
    make a model certain of everything. The likelihood is concave in 1/T, so its slope is 0 in one place.
    """
    from scipy.optimize import brentq

    scores, targets = queries
    blind = 1 / (pictures + 2)
    there = scores.isfinite()
    finite = scores.masked_fill(~there, 0)
    right = scores.gather(1, targets.unsqueeze(1)).squeeze(1)
    wanted = ((1 - blind) * right + blind * finite.sum(1) / there.sum(1)).double().mean()

    def slope(logarithm: float) -> float:
        found = ((scores / exp(logarithm)).softmax(1) * finite).sum(1).double().mean()
        return float(found - wanted)

    low, high = log(COLDEST), log(HOTTEST)
    if slope(low) <= 0:
        return COLDEST
    return HOTTEST if slope(high) >= 0 else exp(brentq(slope, low, high, xtol=1e-6))


def joint_error(queries: Queries, temperature: float = 1.0) -> float:
    """Return the expected calibration error of the answers among all categories."""
    confidence, choice = (queries.scores / temperature).softmax(1).max(1)
    return calibration_error(confidence.numpy(), (choice == queries.targets).numpy())


def lessons_of(drawn: Mapping[int, Mapping[int, Scored]]) -> list[Lesson]:
    """Return tasks by their numbers of ways and of shots as lessons.

    Strange are the queries of taught categories while their own, and it alone, is not taught.
    """
    lessons = []
    for ways, scored in drawn.items():
        for shots, (scores, targets, _) in scored.items():
            own = F.one_hot(targets, ways).bool()
            others = scores.novel_novel.masked_fill(own, -torch.inf).amax(2)
            asked = _flat(scores.novel_base.amax(2))
            lesson = Lesson(
                ways,
                shots,
                base=(_flat(scores.base_base.amax(2)), _flat(scores.base_novel.amax(2))),
                novel=(asked, _flat(scores.novel_novel.amax(2))),
                strange=(asked, _flat(others)),
                own=_flat(scores.novel_novel[own]),
            )
            lessons.append(lesson)
    return lessons


def fit_unknown(lessons: Sequence[Lesson], pictures: int) -> Unknown | None:
    """Return how unknown pictures are detected, with `FALSE_ALARMS` of the known ones called unknown.

    The threshold is that of base pictures before anything is taught, and stays: teaching never makes any
    of them unknown. `None` if there are too few pictures to measure the share of false alarms, or
    if best scores do not separate known from unknown ones.
    """
    from sklearn.linear_model import LogisticRegression

    if pictures * FALSE_ALARMS < 1:
        return None
    threshold = float(np.quantile(_untaught(lessons), FALSE_ALARMS, method="lower"))
    taught = fit_taught_offset(lessons, threshold)
    seen, unseen = (found - threshold for found in _known_and_strange(lessons, taught))
    # Known and unknown weigh the same, and together as much as there are pictures, however many the tasks.
    weights = np.repeat([pictures / 2 / len(seen), pictures / 2 / len(unseen)], [len(seen), len(unseen)])
    fit = LogisticRegression().fit(
        np.concatenate([seen, unseen])[:, None], np.repeat([0, 1], [len(seen), len(unseen)]), weights
    )
    steepness, offset = -float(fit.coef_[0, 0]), float(fit.intercept_[0])
    if steepness <= 0:
        return None
    lower = min(0.0, offset / steepness)  # no picture is called unknown that is more probably known
    return Unknown(
        threshold=threshold + lower,
        steepness=steepness,
        offset=max(0.0, offset - steepness * lower),
        false_alarms=float((seen < lower).mean()),
        taught=taught,
    )


def fit_taught_offset(lessons: Sequence[Lesson], threshold: float) -> TaughtOffset:
    """Return what is added to taught scores to compare them with the threshold of base scores.

    It takes away what the score of a picture's own category is expected to be, and then adds so much that
    `FALSE_ALARMS` of the pictures of taught categories stay below the threshold.
    """
    terms, own = np.array([lesson.terms() for lesson in lessons]), [lesson.own.mean() for lesson in lessons]
    centre, level = terms.mean(0), float(np.mean(own))
    slopes = np.linalg.lstsq(terms - centre, np.array(own) - level, rcond=None)[0]
    missing = [
        level + (lesson.terms() - centre) @ slopes - lesson.novel[1] for lesson in lessons
    ]  # until a picture is at the threshold
    needed = np.concatenate(
        [
            np.where(lesson.novel[0] < threshold, some, -np.inf)
            for lesson, some in zip(lessons, missing, strict=True)
        ]
    )
    added = max(np.quantile(needed, 1 - FALSE_ALARMS, method="higher"), min(some.min() for some in missing))
    number, rise, slope = (-slopes).tolist()
    return TaughtOffset(
        start=float(threshold + added - level + centre @ slopes),
        number=number,
        rise=rise,
        slope=slope,
        most=max(lesson.taught for lesson in lessons),
    )


def _accuracies(scored: Sequence[Scored], when: str) -> dict[str, float]:
    found = [task_figures(*some) for some in scored]
    return {
        f"{name}_{when}": torch.cat([one[name] for one in found]).mean().item()
        for name in ("both", "harmonic")
    }


def unknown_figures(lessons: Sequence[Lesson], unknown: Unknown) -> dict[str, float]:
    """Return shares of known pictures called unknown, by what is taught, and of unknown ones that are not."""
    seen, unseen = _known_and_strange(lessons, unknown.taught)
    parts = {0: [_untaught(lessons)]}
    for lesson in lessons:
        parts.setdefault(lesson.taught, []).append(_known_and_strange([lesson], unknown.taught)[0])
    return {
        "auroc": auroc(seen, unseen),
        "false_alarms": float((seen < unknown.threshold).mean()),
        "unknown_accepted": float((unseen >= unknown.threshold).mean()),
        **{
            f"false_alarms_{taught}_taught": float((np.concatenate(some) < unknown.threshold).mean())
            for taught, some in parts.items()
        },
    }


def _untaught(lessons: Sequence[Lesson]) -> Doubles:
    """Return the best scores of base pictures before anything is taught.

    From tasks with the fewest ways: base vectors that are solved without hidden categories score higher, the
    more of them there are.
    """
    fewest = min(lesson.taught for lesson in lessons)
    return np.concatenate([lesson.base[0] for lesson in lessons if lesson.taught == fewest])


def _known_and_strange(lessons: Sequence[Lesson], taught: TaughtOffset | None) -> tuple[Doubles, Doubles]:
    """Return the best scores of known and of strange pictures."""
    known, strange = [], []
    for lesson in lessons:
        offset = 0.0 if taught is None else taught.at(lesson.taught, log(lesson.shots), lesson.excess)
        of_base, of_novel, of_strange = (
            np.maximum(base, novel + offset) for base, novel in (lesson.base, lesson.novel, lesson.strange)
        )
        known += [of_base, of_novel]
        strange.append(of_strange)
    return np.concatenate(known), np.concatenate(strange)


def _flat(scores: Tensor) -> Doubles:
    values: Doubles = scores.flatten().double().numpy()
    return values
