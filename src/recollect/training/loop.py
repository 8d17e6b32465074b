"""The loop that both stages share: steps, selection, checkpoints, resuming, and an orderly end on Ctrl-C.

Every step draws its random numbers from a seed made of (seed, stage, step). A resumed run therefore needs no
saved random state and ends with the same weights, bit for bit, as one that was never stopped.
"""

import copy
import hashlib
import math
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import torch
from torch import Tensor, nn

from recollect.errors import RecollectError
from recollect.model.model import Model
from recollect.progress import bar
from recollect.training.checkpoints import (
    Checkpoint,
    load_checkpoint,
    momentum_of,
    restore_momentum,
    save_checkpoint,
)
from recollect.training.config import Config, StageOne, StageTwo
from recollect.training.runfolder import RunFolder

LOG_EVERY = 50


class Stopped(RecollectError):  # noqa: N818
    """The run was asked to stop; what it had learned is kept."""


class Stage(ABC):
    """One stage of training: what a step computes, and how a model is judged."""

    number: int
    title: str
    select: str  # the validation figure by which a model is kept

    def __init__(self, model: Model, recipe: StageOne | StageTwo, config: Config) -> None:
        if recipe.steps is None:
            raise ValueError("the number of steps is not resolved yet")
        self.model = model
        self.recipe = recipe
        self.steps: int = recipe.steps
        self.seed = config.seed
        self.checkpoint_seconds = config.checkpoint_seconds

    @abstractmethod
    def learned(self) -> list[nn.Parameter]:
        """Return the parameters that this stage learns."""

    @abstractmethod
    def loss(self, step: int) -> tuple[Tensor, Tensor]:
        """Return the loss of a step and the share of right answers in it."""

    @abstractmethod
    def judge(self) -> dict[str, float]:
        """Return validation figures in percent, `select` among them."""


def run_stage(stage: Stage, folder: RunFolder, stop: threading.Event | None = None) -> None:
    """Run a stage from its start or its checkpoint to its end; leave the selected weights in the model."""
    model, recipe = stage.model, stage.recipe
    optimizer = torch.optim.SGD(
        stage.learned(), lr=0.0, momentum=recipe.momentum, nesterov=True, weight_decay=recipe.weight_decay
    )
    state = Checkpoint(0, {}, {}, {}, -math.inf)
    path = folder.checkpoint(stage.number)
    if path.exists():
        state = load_checkpoint(path)
        model.load_state_dict(state.weights)
        restore_momentum(model, optimizer, state.momentum)
    folder.forget_after(stage.number, state.step)

    judged_every = max(1, stage.steps // recipe.evaluations)
    losses, shares = [], []
    began = saved = time.monotonic()
    with bar(stage.title, stage.steps, state.step) as advance:
        for step in range(state.step, stage.steps):
            rate = recipe.schedule.rate((step + 0.5) / stage.steps)
            loss, share = _take_step(stage, optimizer, step, rate)
            losses.append(loss)
            shares.append(share)
            state.step = step + 1
            finished = state.step == stage.steps
            if state.step % LOG_EVERY == 0 or finished:
                mean_loss = _mean(losses)
                if not math.isfinite(mean_loss):
                    raise RecollectError(
                        f"stage {stage.number} diverged at step {state.step}: lower the learning rate, "
                        f"such as --set stage{stage.number}.schedule.peak=0.02"
                    )
                folder.log(
                    stage=stage.number,
                    step=state.step,
                    loss=round(mean_loss, 4),
                    accuracy=round(100 * _mean(shares), 2),
                    rate=round(rate, 6),
                    seconds=round(time.monotonic() - began, 1),
                )
                advance(state.step % LOG_EVERY or LOG_EVERY, f"loss {mean_loss:.3f}")
                losses, shares = [], []
            if state.step % judged_every == 0 or finished:
                _select(stage, state, folder)
            asked = stop is not None and stop.is_set()
            if asked or time.monotonic() - saved >= stage.checkpoint_seconds:
                state.weights = model.state_dict()
                state.momentum = momentum_of(model, optimizer)
                save_checkpoint(path, state)
                saved = time.monotonic()
            if asked and not finished:
                if state.best:
                    model.load_state_dict(state.best)
                raise Stopped(f"stopped at step {state.step} of {stage.steps} of stage {stage.number}")
    model.load_state_dict(state.best)


def _take_step(
    stage: Stage, optimizer: torch.optim.Optimizer, step: int, rate: float
) -> tuple[Tensor, Tensor]:
    for group in optimizer.param_groups:
        group["lr"] = rate
    torch.manual_seed(step_seed(stage.seed, stage.number, step))
    optimizer.zero_grad()
    loss, share = stage.loss(step)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss.detach(), share.detach()


def _select(stage: Stage, state: Checkpoint, folder: RunFolder) -> None:
    """Judge the model as it is now and keep it if none was better."""
    figures = stage.judge()
    selected = figures[stage.select] >= state.best_value
    if selected:
        state.best_value = figures[stage.select]
        state.best = copy.deepcopy(stage.model.state_dict())
    folder.log(stage=stage.number, step=state.step, **figures, selected=selected)


def step_seed(*words: int) -> int:
    """Return a seed for the random numbers of one step, unrelated to that of any other."""
    return int.from_bytes(hashlib.sha256(repr(words).encode()).digest()[:7], "big")


@contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C (or SIGTERM) into a request to stop; a second Ctrl-C interrupts at once."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def ask(_number: int, _frame: FrameType | None) -> None:
        stop.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _mean(values: list[Tensor]) -> float:
    return torch.stack(values).double().mean().item()
