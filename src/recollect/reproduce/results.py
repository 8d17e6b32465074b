"""Result files: what a training was, its evaluation's report, and every task's right answers."""

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, model_validator
from scipy.special import stdtrit

from recollect.errors import DataError
from recollect.evaluation.metrics import Answers, answer_figures, biased
from recollect.reproduce.rows import Table, Training
from recollect.system.disk import read_kept, write_text
from recollect.training.config import Positive

FIGURES = ("novel", "base", "both")
CALIBRATED = "both_calibrated"  # Both with the bias that `predict` adds to novel scores
_MOST_BYTES = 1 << 26  # of packed numbers: a few kilobytes can claim gigabytes
Floats = npt.NDArray[np.float64]


class Measured(NamedTuple):
    """A mean in percent with its 95 % interval."""

    mean: float
    ci95: float


class Place(NamedTuple):
    """One cell of a table."""

    row: str
    shots: int
    figure: str


def packed(counts: Sequence[int] | npt.NDArray[np.int64]) -> str:
    """Return small numbers as a short word.

    >>> unpacked(packed([3, 0, 150])).tolist()
    [3, 0, 150]
    """
    return base64.b64encode(zlib.compress(np.asarray(counts, "<u2").tobytes(), 9)).decode()


def unpacked(word: str) -> npt.NDArray[np.int64]:
    """Return the numbers that were packed."""
    try:
        content = zlib.decompressobj().decompress(base64.b64decode(word), _MOST_BYTES)
        return np.frombuffer(content, "<u2").astype(np.int64)
    except zlib.error as error:
        raise ValueError("these are no packed numbers") from error


def right_answers(given: Answers, *, joint: bool, bias: float | None = None) -> dict[str, str]:
    """Return how many queries of every task were answered rightly, packed: all that the figures need.

    `bias` is what a calibration adds to novel scores, where Both is to be told with it, too.
    """
    novel, base = given.novel_right.shape[1], given.base_right.shape[1]
    asked = {"novel": novel, "base": base, "both": novel + base, CALIBRATED: novel + base}
    figures = answer_figures(given)
    names = FIGURES if joint else ("novel",)
    if bias is not None:
        figures[CALIBRATED] = answer_figures(biased(given, bias))["both"]
        names = (*names, CALIBRATED)
    return {name: packed(np.rint(figures[name].numpy() * asked[name]).astype(np.int64)) for name in names}


def result_file(folder: Path, name: str) -> Path:
    """Return where the result of a run lies."""
    return folder / "results" / f"{name}.json"


def plan_file(folder: Path) -> Path:
    """Return where a reproduction's plan lies."""
    return folder / "plan.json"


def write_json(path: Path, words: Mapping[str, Any]) -> None:
    """Write a small JSON file, whole or not at all."""
    write_text(path, json.dumps(words, indent=1, ensure_ascii=False) + "\n")


_ALTERED = "is damaged or of another version of recollect: delete it, and it is made again"


def read_json(path: Path, kind: type[BaseModel], otherwise: str = _ALTERED) -> dict[str, Any]:
    """Read a file that `write_json` wrote and that must be of a kind; `otherwise` says what it is if not."""
    try:
        words: dict[str, Any] = json.loads(read_kept(path))
        kind.model_validate(words)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} {otherwise}") from error
    return words


class _Words(BaseModel):
    model_config = ConfigDict(allow_inf_nan=False, strict=True)


class _Report(_Words):
    ways: Positive
    queries: Positive
    tasks: Positive


class Result(_Words):
    """What the page reads of a result file; there is more in it."""

    kind: str
    commands: list[str]
    images_seen: int
    episodes_seen: int | None
    training_seconds: float
    evaluation_seconds: float
    report: _Report
    mirrored: bool = False  # features are means over pictures and their mirror images
    shifted: int = 0  # and over five places, so many pixels apart
    stage1: str | None = None  # tells one stage 1 from another; earlier versions did not write it
    right: dict[str, dict[str, str]]  # by number of shots and by figure, packed

    @model_validator(mode="after")
    def _every_task(self) -> "Result":
        for words in self.right.values():
            for word in words.values():
                if len(unpacked(word)) != self.report.tasks:
                    raise ValueError("there are other numbers of right answers than of tasks")
        return self


class _Interval(_Words, extra="forbid"):
    mean: float
    ci95: float


class _Silhouettes(_Words):
    cosine: float
    dot: float = Field(alias="dot product")
    difference: _Interval


class Compactness(_Words):
    """What the page reads of what `figure-tsne` measured."""

    pictures: int
    silhouettes: dict[str, _Silhouettes]


class Results:
    """The result files of a table: per-task figures, means and paired differences."""

    def __init__(self, folder: Path, table: Table, seeds: int) -> None:
        self.files: dict[str, dict[str, Any]] = {}
        self.trainings: list[Training] = []
        for training in table.trainings(seeds):
            path = result_file(folder, training.name)
            if path.exists():
                self.files[training.name] = read_json(path, Result)
                self.trainings.append(training)
        if len({file["report"]["tasks"] for file in self.files.values()}) > 1:
            raise DataError(
                f"the results in {folder} are of different numbers of tasks: choose another --out"
            )
        self._require_the_same_stage_ones(folder)
        left = [one.seed for one in table.trainings(seeds) if one.name not in self.files]
        self.seeds = max(1, min([seeds, *left]))  # those that are finished, of which figures are means

    def _require_the_same_stage_ones(self, folder: Path) -> None:
        """Refuse results on another stage 1 than that of the row beside which they stand."""
        strange = []
        for training in self.trainings:
            own, first = (self.files.get(name or "", {}) for name in (training.name, training.stage1))
            known = {own.get("stage1"), first.get("stage1")} - {None}
            strange += [training] if len(known) > 1 else []
        if strange:
            names = ", ".join(one.name for one in strange)
            raise DataError(
                f"{folder}: {names} {'was' if len(strange) == 1 else 'were'} built on a different stage 1 "
                f"from {strange[0].stage1}: delete their files in results and their folders in runs to have "
                "them trained again"
            )

    def of_row(self, key: str) -> list[dict[str, Any]]:
        """Return the files of a row's trainings that are finished."""
        return [self.files[training.name] for training in self.trainings if training.row.key == key]

    def shares(self, place: Place) -> Floats | None:
        """Return a figure in percent for every seed and task, (seeds, tasks); `None` where not all are there.

        Each seed's model answers the same tasks.
        """
        found = []
        for training in self.trainings:
            mine = training.row.key == place.row and training.seed < self.seeds
            if mine and place.shots in training.evaluated:
                file = self.files[training.name]
                word = file["right"].get(str(place.shots), {}).get(place.figure)
                if word is None:
                    return None
                asked = file["report"]["ways"] * file["report"]["queries"]
                found.append(
                    100 * unpacked(word) / (asked if place.figure in {"novel", "base"} else 2 * asked)
                )
        return np.stack(found) if len(found) == self.seeds else None

    def measured(self, place: Place) -> Measured | None:
        """Return the mean of a figure, with its interval."""
        return self.combined({place: 1})

    def spread(self, place: Place) -> float | None:
        """Return the standard deviation of a figure over seeds, of which there must be several."""
        shares = self.shares(place)
        return None if shares is None else float(shares.mean(axis=1).std(ddof=1))

    def combined(self, weights: Mapping[Place, int]) -> Measured | None:
        """Return a weighted sum of figures, paired by seed and task: with 1 and −1 their difference."""
        parts = [(weight, self.shares(place)) for place, weight in weights.items()]
        terms = [weight * shares for weight, shares in parts if shares is not None]
        return interval(np.sum(terms, axis=0)) if len(terms) == len(parts) else None


def interval(values: Floats) -> Measured:
    """Return the mean of values (seeds, tasks) and its 95 % interval.

    With one seed it is of the tasks alone, 1.96 standard errors. With several it is of the seeds too, by
    Student's t, for they are few; together this errs on the wide side.

    >>> mean, ci95 = interval(np.array([[1.0, 3.0]]))
    >>> mean, round(ci95, 3)
    (2.0, 1.386)
    """
    seeds, tasks = values.shape
    square = 1.96**2 * values.mean(axis=0).var() / tasks
    if seeds > 1:
        square += stdtrit(seeds - 1, 0.975) ** 2 * values.mean(axis=1).var(ddof=1) / seeds
    return Measured(float(values.mean()), float(square**0.5))
