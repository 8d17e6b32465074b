"""Learning rates over a run, as functions of the share of it that is done."""

from math import cos, pi
from typing import Annotated, Literal

from pydantic import Field

from recollect.model.spec import Value


class OneCycle(Value):
    """Rise linearly to `peak` during `warm_up` of the run, then fall along a cosine to nothing.

    >>> schedule = OneCycle(kind="one-cycle", peak=0.4, warm_up=0.2)
    >>> [round(schedule.rate(share), 3) for share in (0.0, 0.1, 0.2, 0.6, 1.0)]
    [0.0, 0.2, 0.4, 0.2, 0.0]
    """

    kind: Literal["one-cycle"]
    peak: Annotated[float, Field(gt=0)]
    warm_up: Annotated[float, Field(ge=0, lt=1)] = 0.15

    def rate(self, share: float) -> float:
        """Return the learning rate when `share` of the run is done."""
        if share < self.warm_up:
            return self.peak * share / self.warm_up
        return self.peak * (1 + cos(pi * (share - self.warm_up) / (1 - self.warm_up))) / 2


class Steps(Value):
    """Constant rates, each until an epoch: ((20, 0.1), (40, 0.006), …); the last epoch is the run's end.

    >>> Steps(kind="steps", rates=((20, 0.1), (40, 0.006))).rate(0.49)
    0.1
    """

    kind: Literal["steps"]
    rates: Annotated[tuple[tuple[float, float], ...], Field(min_length=1)]

    def rate(self, share: float) -> float:
        """Return the learning rate when `share` of the run is done."""
        epoch = share * self.rates[-1][0]
        return next((rate for until, rate in self.rates if epoch < until), self.rates[-1][1])
