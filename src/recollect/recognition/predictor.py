"""From features to answers: scores over base and taught categories, probabilities, and "unknown"."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from recollect.backends import Backend
from recollect.errors import RecollectError
from recollect.recognition.knowledge import Columns, Knowledge
from recollect.recognition.many import MOST_TOP, Shortlist, Some
from recollect.recognition.results import Among, Category, Floats, Prediction, Rule
from recollect.recognition.scoring import clearance, joint_scores, sigmoid, softmax, unknown_probability
from recollect.recognition.vectors import VectorTable, dots, lengths
from recollect.store import fold

_KINDS = {"all": "categories", "base": "base categories", "novel": "taught categories"}


class Predictor:
    """Answers for features, from what is known at that moment."""

    def __init__(self, backend: Backend, knowledge: Knowledge) -> None:
        self._backend = backend
        self._spec = backend.header.spec
        self._known = knowledge

    def scores(self, features: Floats) -> "Found":
        """Return base and novel scores of features (n, d), and what their columns are, at one moment."""
        scale = np.float32(self._backend.scale)
        # Dividing scores by |z| takes fewer divisions than dividing features.
        factor = scale if self._spec.classifier == "dot" else scale / lengths(features)
        base = dots(features, self._known.base_vectors)
        base *= factor
        with self._known.lock:
            self._known.refresh()
            novel = self._known.vectors.products(features)
            columns = self._known.columns()
        novel *= factor
        return Found(base, novel, columns)

    def answers(
        self, features: Floats, top: int, among: Among, *, unknown: bool
    ) -> Iterator[list[Prediction]]:
        """Yield the best answers for each of some features (n, d)."""
        if among != "base" and top <= MOST_TOP:
            with self._known.lock:  # until the names are known, too
                some = self._shortlists(features, among)
                answers = [self._answer_from(one, top, unknown=unknown and among == "all") for one in some]
            if answers:
                yield from answers
                return
        calibration = self._backend.header.calibration
        found = self.scores(features)
        scores, categories = _joint(found, calibration.biases, among)
        if not categories:
            raise RecollectError(f"there are no {_KINDS[among]} to choose from: teach some first")
        strange = np.zeros(len(scores))  # the probability of no known category
        if unknown and among == "all":
            taught, rule = found.novel.shape[1], calibration.unknown
            apart = taught and rule is not None and rule.taught is not None
            judged = _joint(found, calibration.unknown_offsets, among)[0] if apart else scores
            strange = self._strangeness(judged.max(axis=1), len(categories), taught)
        for row, share in zip(softmax(scores, calibration.temperature), strange.tolist(), strict=True):
            yield _ranked([(categories[k], float(row[k])) for k in best_places(row, top)], share, top)

    def rule(self) -> Rule:
        """Return all that turns features into answers, at one moment: for programs that do without us."""
        calibration = self._backend.header.calibration
        with self._known.lock:
            self._known.refresh()
            vectors, columns = self._known.vectors.matrix(), self._known.columns()
        unknown, none = calibration.unknown, np.empty(0)
        return Rule(
            np.concatenate([self._known.base_vectors, vectors]),
            columns.categories,
            calibration.temperature,
            calibration.biases(columns.examples, columns.tightness) if len(vectors) else none,
            calibration.unknown_offsets(columns.examples, columns.tightness) if len(vectors) else none,
            None if unknown is None else -float(clearance(np.zeros(1), len(vectors), unknown)[0]),
            unknown,
        )

    def resemblance(self, found: "Found", own: int, top: int) -> list[tuple[str, float]]:
        """Return which categories but `own` have the highest mean probability in scores of some features."""
        calibration = self._backend.header.calibration
        scores, categories = _joint(found, calibration.biases, "all")
        judged, _ = _joint(found, calibration.unknown_offsets, "all")
        others = [k for k, category in enumerate(categories) if category.id != own]
        if not others:
            return []
        strange = self._strangeness(judged[:, others].max(axis=1), len(others), found.novel.shape[1])
        shares = softmax(scores[:, others], calibration.temperature) * (1 - strange[:, None])
        means = shares.mean(axis=0)
        return [(categories[others[k]].name, float(means[k])) for k in best_places(means, top)]

    def _shortlists(self, features: Floats, among: Among) -> list[Shortlist]:
        """Return what may answer for each of some features (n, d); nothing if each category is looked at."""
        factor = np.float32(self._backend.scale) / lengths(features)
        knowledge = self._known
        with knowledge.lock:
            knowledge.refresh()
            if knowledge.many is None or not isinstance(knowledge.vectors, VectorTable):
                return []
            base = dots(features, knowledge.base_vectors) * factor
            hidden = [
                knowledge.base_places[fold(name)]
                for name, one in knowledge.base_changes.items()
                if one.hidden
            ]
            places = np.delete(np.arange(len(self._spec.categories)), hidden)
            corrected = [*knowledge.corrected]
            rows = np.array([knowledge.vectors.row(id_) for id_ in corrected], np.int64)
            own, examples = (
                dots(features, knowledge.vectors.rows(rows)) * factor,
                knowledge.examples_of(corrected),
            )
            count = len(knowledge.taught)
            return [
                Shortlist(
                    places if among == "all" else places[:0],
                    base[place],
                    {
                        where: Some(rows[[k]], own[place, [k]], examples[[k]])
                        for k, where in enumerate(knowledge.corrected.values())
                    },
                    near.but(corrected, factor[place]),
                    others.but(corrected, factor[place]),
                    count - len(corrected),
                    count,
                )
                for place, (near, others) in enumerate(knowledge.many.near(features))
            ]

    def _answer_from(self, found: Shortlist, top: int, *, unknown: bool) -> list[Prediction]:
        """Return the best answers for a picture."""
        calibration = self._backend.header.calibration
        shares, share = found.shares(calibration.biases, calibration.temperature), 0.0
        if unknown:
            best = found.joint(calibration.unknown_offsets)[0].max(keepdims=True)
            share = float(self._strangeness(best, len(found.places) + found.novel, found.count)[0])
        known = len(found.places)
        nearest = [
            (
                self._known.base_category(int(found.places[k]), None)
                if k < known
                else self._known.category(self._known.taught[int(found.candidates.ids[k - known])]),
                float(shares[k]),
            )
            for k in best_places(shares, top)
        ]
        return _ranked(nearest, share, top)

    def _strangeness(self, best: Floats, count: int, taught: int) -> npt.NDArray[np.float64]:
        """Return the probability that pictures with these best scores (n,) are of no known category.

        A single category has nothing to compare with, and a softmax would give it everything. So it competes
        with anything else: by the calibration, or where there is none as if all else scored at cosine ½.
        """
        calibration = self._backend.header.calibration
        if calibration.unknown is not None:
            cleared = clearance(best, taught, calibration.unknown)
            strange = unknown_probability(cleared, calibration.unknown)
            return strange if count == 1 else np.where(cleared < 0, strange, 0.0)
        if count > 1:
            return np.zeros(len(best))
        other = self._backend.scale / 2 if self._spec.classifier == "cosine" else 0.0
        found: npt.NDArray[np.float64] = sigmoid((other - best.astype(np.float64)) / calibration.temperature)
        return found


class Found(NamedTuple):
    """Raw scores (n, k) and (n, taught) of some features at one moment, and what their columns are."""

    base: Floats
    novel: Floats
    columns: Columns


def _joint(
    found: Found, offsets: Callable[..., npt.NDArray[np.float64]], among: Among
) -> tuple[Floats, list[Category]]:
    """Return the scores (n, choices) of all that may be answered, offsets added to taught ones, and these."""
    base, novel, columns = found
    scores = joint_scores(base, novel, offsets(columns.examples, columns.tightness))
    for own, other in columns.corrected:  # the better of its own score and that of what it was taught
        scores[:, own] = np.maximum(scores[:, own], scores[:, base.shape[1] + other])
    asked, categories = columns.choice(among)
    return np.take(scores, asked, axis=1), categories


def _ranked(best: Sequence[tuple[Category, float]], strange: float, top: int) -> list[Prediction]:
    """Return the answers for a picture, which is of no known category with the probability `strange`."""
    nearest = [Prediction(one.name, share * (1 - strange), one.origin) for one, share in best]
    unsure = [Prediction("unknown", strange, "unknown")] if strange >= 0.5 else []
    return [*unsure, *nearest][:top]


def best_places(values: npt.NDArray[np.floating[Any]], top: int) -> list[int]:
    """Return where the `top` largest values are, the largest first; of equal ones the first."""
    if top < len(values):
        least = np.partition(values, -top)[-top]
        some = np.flatnonzero(values >= least)
    else:
        some = np.arange(len(values))
    return [int(k) for k in some[np.argsort(-values[some], kind="stable")][:top]]
