"""Result files of the low-shot benchmark: right answers of every draw, for one row and number of shots."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from recollect.evaluation.lowshot import FIGURES, TOP, named
from recollect.reproduce.results import Floats, Measured, Place, interval, read_json, result_file
from recollect.reproduce.rows import name_of

Count = Annotated[int, Field(ge=0, lt=2**31)]


class Result(BaseModel):
    """What a result file holds."""

    model_config = ConfigDict(allow_inf_nan=False, strict=True, extra="forbid")

    system: str
    shots: Count
    seed: Count
    asked: dict[str, Annotated[int, Field(ge=1)]]  # queries, by figure
    prior: dict[str, Annotated[float, Field(gt=0, lt=1)]]  # μ, by k
    right: dict[str, list[Count]]  # by figure and k, of each draw
    training_seconds: float
    evaluation_seconds: float

    @model_validator(mode="after")
    def _complete(self) -> "Result":
        wanted = {named(figure, k) for figure in FIGURES for k in TOP}
        if {*self.right} != wanted or {*self.asked} != {*FIGURES} or {*self.prior} != {str(k) for k in TOP}:
            raise ValueError("figures are missing")
        if len({len(counts) for counts in self.right.values()}) != 1:
            raise ValueError("figures are of different numbers of draws")
        return self


class StageOneResult(BaseModel):
    """What the training of a stage 1 took."""

    model_config = ConfigDict(allow_inf_nan=False, strict=True, extra="forbid")

    images_seen: Count
    training_seconds: float


class LowShotResults:
    """The result files that there are: figures by draw, means and paired differences."""

    def __init__(self, folder: Path, keys: tuple[str, ...], shots: tuple[int, ...], seeds: int) -> None:
        self.seeds = seeds
        self.wanted = len(keys) * len(shots) * seeds
        self.files: dict[tuple[str, int, int], dict[str, Any]] = {}
        for key in keys:
            for count in shots:
                for seed in range(seeds):
                    path = result_file(folder, name_of(key, count, seed))
                    if path.exists():
                        self.files[key, count, seed] = read_json(path, Result)

    def of(self, key: str, shots: int | None = None) -> list[dict[str, Any]]:
        """Return the files of a row, or of one number of shots of it."""
        return [file for (own, count, _), file in self.files.items() if own == key and shots in {None, count}]

    def shares(self, place: Place) -> Floats | None:
        """Return a figure in percent for every seed and draw; `None` where not all are there."""
        figure = place.figure.split()[0]
        found = [
            100 * np.array(file["right"][place.figure]) / file["asked"][figure]
            for file in self.of(place.row, place.shots)
        ]
        return np.stack(found) if len(found) == self.seeds else None

    def measured(self, place: Place) -> Measured | None:
        """Return the mean of a figure, with its interval over draws (and seeds)."""
        return self.combined({place: 1})

    def combined(self, weights: Mapping[Place, int]) -> Measured | None:
        """Return a weighted sum of figures, paired by seed and draw: with 1 and −1 their difference."""
        parts = [(weight, self.shares(place)) for place, weight in weights.items()]
        terms = [weight * shares for weight, shares in parts if shares is not None]
        return interval(np.sum(terms, axis=0)) if len(terms) == len(parts) else None
