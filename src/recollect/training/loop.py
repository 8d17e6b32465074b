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
from pathlib import Path
from types import FrameType

import torch
from torch import Tensor, nn

from recollect.errors import ConfigError, Diverged, Stopped
from recollect.model.model import Model
from recollect.system.progress import bar
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


class Stage(ABC):
    """One stage of training: what a step computes, and how a model is judged."""

    number: int
    title: str
    select: str  # the validation figure by which a model is kept
    judged: bool = False  # whether a model had been selected when the stage was stopped

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


def run_stage(stage: Stage, folder: RunFolder, stop: threading.Event | None = None) -> float:
    """Run a stage from its start or its checkpoint to its end; leave the selected weights in the model.

    Returns the seconds that the stage took, those before an interruption included.
    """
    model, recipe = stage.model, stage.recipe
    optimizer = torch.optim.SGD(
        stage.learned(), lr=0.0, momentum=recipe.momentum, nesterov=True, weight_decay=recipe.weight_decay
    )
    path = folder.checkpoint(stage.number)
    state = _restore(path, model, optimizer) if path.exists() else Checkpoint()
    folder.forget_after(stage.number, state.step)
    began = time.monotonic() - state.seconds
    saved = time.monotonic()
    judged_every = max(1, stage.steps // recipe.evaluations)
    journal = _Journal(stage, folder)
    with bar(stage.title, stage.steps, state.step) as advance:
        for step in range(state.step, stage.steps):
            rate = recipe.schedule.rate((step + 0.5) / stage.steps)
            loss, share = _take_step(stage, optimizer, step, rate)
            state.step = step + 1
            state.seconds = time.monotonic() - began
            finished = state.step == stage.steps
            journal.note(loss, share)
            if state.step % LOG_EVERY == 0 or finished:
                journal.write(state, rate)
            advance(1, journal.word)
            if state.step % judged_every == 0 or finished:
                _select(stage, state, folder)
            asked = stop is not None and stop.is_set()
            if asked or time.monotonic() - saved >= stage.checkpoint_seconds:
                state.weights, state.momentum = model.state_dict(), momentum_of(model, optimizer)
                save_checkpoint(path, state)
                saved = time.monotonic()
            if asked and not finished:
                model.load_state_dict(state.best or state.weights)
                stage.judged = bool(state.best)
                raise Stopped(f"stopped at step {state.step} of {stage.steps} of stage {stage.number}")
    model.load_state_dict(state.best)
    return state.seconds


class _Journal:
    """Losses and accuracies of the last steps, on their way to the metrics."""

    def __init__(self, stage: Stage, folder: RunFolder) -> None:
        self.stage, self.folder = stage, folder
        self.losses: list[Tensor] = []
        self.shares: list[Tensor] = []
        self.word = ""  # for the progress bar

    def note(self, loss: Tensor, share: Tensor) -> None:
        self.losses.append(loss)
        self.shares.append(share)

    def write(self, state: Checkpoint, rate: float) -> None:
        """Log the means since the last time."""
        loss, share = (torch.stack(values).mean().item() for values in (self.losses, self.shares))
        number = self.stage.number
        if not math.isfinite(loss):
            raise Diverged(
                f"stage {number} diverged at step {state.step}: lower the learning rate, such as "
                f"--set stage{number}.schedule.peak=0.02"
            )
        self.folder.log(
            stage=number,
            step=state.step,
            loss=round(loss, 4),
            accuracy=round(100 * share, 2),
            rate=round(rate, 6),
            seconds=round(state.seconds, 1),
        )
        self.losses, self.shares = [], []
        self.word = f"loss {loss:.3f}"


def _restore(path: Path, model: Model, optimizer: torch.optim.Optimizer) -> Checkpoint:
    state = load_checkpoint(path)
    try:
        model.load_state_dict(state.weights)
        restore_momentum(model, optimizer, state.momentum)
    except RuntimeError as error:
        raise ConfigError(f"the checkpoint {path} is of another model: start a new run with --out") from error
    return state


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
    folder.log(stage=stage.number, step=state.step, **figures, selected=selected, by=stage.select)


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
