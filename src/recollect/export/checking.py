"""Whether an exported folder gives what torch gives."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from recollect.backends.exported import CLASSIFIER, EXTRACTOR, VECTORS
from recollect.errors import ModelError
from recollect.images import Picture, open_picture
from recollect.recognition.recognizer import Recognizer
from recollect.recognition.results import Floats, Scores
from recollect.system.sessions import Session

CLOSE = 1e-4  # for scores
_WHOLE = 16  # pictures that are also given as they are, for the graph to resize
_TOP = 5


def check(torch: Recognizer, folder: Path, pictures: Sequence[Picture], *, strict: bool) -> dict[str, Any]:
    """Return how features, scores and answers of both compare on some pictures; refuse scores that differ.

    `scores` is the largest difference, `top5` and `first` are shares of pictures with the same answers;
    `cosine` and `whole_cosine` are the least between features, of prepared pictures and of whole ones.
    """
    onnx = Recognizer.load(folder, backend="onnx")
    expected, found = torch.scores(pictures), onnx.scores(pictures)
    ours, theirs = torch.features(pictures), onnx.features(pictures)
    classified = _classified(folder, theirs, found)
    difference = float(np.max([_difference(expected, found), _difference(found, classified)]))  # or NaN
    report = {
        "pictures": len(pictures),
        "scores": difference,
        "top5": _agreement(expected, found, _TOP),
        "first": _agreement(expected, found, 1),
        "cosine": _least_cosine(ours, theirs),
        "whole_cosine": _least_cosine(ours[:_WHOLE], _whole(folder, pictures[:_WHOLE])),
    }
    if strict and not difference <= CLOSE:
        raise ModelError(
            f"scores of the exported files differ by {difference:.1g} from torch's, more than {CLOSE:g}: "
            "this model cannot be exported to ONNX"
        )
    return report


def _classified(folder: Path, features: Floats, like: Scores) -> Scores:
    """Return the scores that classifier.onnx gives for features and the vectors beside it."""
    session = Session((folder / CLASSIFIER).read_bytes(), str(folder / CLASSIFIER))
    vectors = np.load(folder / VECTORS, allow_pickle=False)
    if not len(vectors):
        return like
    (scores,) = session.run(["scores"], features=features, vectors=vectors)
    base = like.base.shape[1]
    return Scores(scores[:, :base], scores[:, base:], like.categories)


def _whole(folder: Path, pictures: Sequence[Picture]) -> Floats:
    """Return features of pictures that extractor.onnx resizes itself."""
    session = Session((folder / EXTRACTOR).read_bytes(), str(folder / EXTRACTOR))
    images = [np.asarray(open_picture(picture))[None] for picture in pictures]
    return np.concatenate([session.run(["features"], pixels=image)[0] for image in images])


def _difference(one: Scores, other: Scores) -> float:
    pairs = ((one.base, other.base), (one.novel, other.novel))
    return float(np.max([np.abs(a - b).max() for a, b in pairs if a.size] or [0.0]))


def _agreement(one: Scores, other: Scores, top: int) -> float:
    """Return the share of pictures whose best categories are the same, in the same order."""
    best = [np.argsort(-np.hstack([some.base, some.novel]), kind="stable")[:, :top] for some in (one, other)]
    return round(float((best[0] == best[1]).all(axis=1).mean()), 4)


def _least_cosine(one: Floats, other: Floats) -> float:
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return round(float((np.vecdot(one, other) / np.maximum(lengths, 1e-12)).min()), 6)
