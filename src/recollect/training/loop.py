"""The loop that both stages share: steps, selection, checkpoints, resuming, and an orderly end on Ctrl-C.

Every step draws its random numbers from a seed made of (seed, stage, step). A resumed run therefore needs no
saved random state. It ends with the same weights, bit for bit, and the same metrics, except for times, as a
run that was never stopped.
"""

import copy
import hashlib
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
from recollect.system import workers
from recollect.system.progress import bar
from recollect.training.checkpoints import (
    Checkpoint,
    State,
    load_checkpoint,
    momentum_of,
    restore_momentum,
    save_checkpoint,
)
from recollect.training.config import Config, StageOne, StageTwo
from recollect.training.optimizer import Descent
from recollect.training.runfolder import RunFolder

LOG_EVERY = 50


class Stage(ABC):
    """One stage of training: what a step computes, and how a model is judged."""

    number: int
    title: str
    select: str  # the validation figure by which a model is kept
    judged: bool = False  # whether a model had been selected when the stage was stopped
    slower: str = ""  # the setting that lowers the learning rate; default: the stage's schedule

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

    def optimizer(self) -> torch.optim.Optimizer:
        """Return what moves the learned parameters, at a rate that is set before every step."""
        recipe = self.recipe
        muon = recipe.muon if isinstance(recipe, StageOne) else 0.0
        return Descent(self.learned(), momentum=recipe.momentum, weight_decay=recipe.weight_decay, muon=muon)

    @abstractmethod
    def loss(self, step: int) -> tuple[Tensor, Tensor]:
        """Return the loss of a step and the share of right answers in it."""

    @abstractmethod
    def judge(self) -> dict[str, float]:
        """Return validation figures in percent, `select` among them."""

    def close(self) -> None:  # noqa: B027
        """End the processes that decode ahead, where there are any."""


def run_stage(stage: Stage, folder: RunFolder, stop: threading.Event | None = None) -> float:
    """Run a stage from its start or its checkpoint to its end; leave the selected weights in the model.

    Returns the seconds that the stage took, those before an interruption included.
    """
    model, recipe = stage.model, stage.recipe
    optimizer = stage.optimizer()
    path = folder.checkpoint(stage.number)
    state = _restore(path, stage, optimizer) if path.exists() else Checkpoint()
    folder.forget_after(stage.number, state.step)
    began = time.monotonic() - state.seconds
    saved = time.monotonic()
    judged_every = max(1, stage.steps // recipe.evaluations)
    journal = _Journal(stage, folder, state.pending)
    with bar(stage.title, stage.steps, state.step) as advance:
        for step in range(state.step, stage.steps):
            rate = recipe.schedule.rate((step + 0.5) / stage.steps)
            loss, share = _take_step(stage, optimizer, step, rate)
            state.step = step + 1
            state.seconds = time.monotonic() - began
            finished = state.step == stage.steps
            journal.noted.append((loss, share))
            if state.step % LOG_EVERY == 0 or finished:
                journal.write(state, rate)
            advance(1, journal.word)
            if state.step % judged_every == 0 or finished:
                _require_finite(stage, state.step, loss)
                _select(stage, state, folder)
            asked = workers.any_of(stop is not None and stop.is_set(), loss.device)
            if asked or time.monotonic() - saved >= stage.checkpoint_seconds:
                _require_finite(stage, state.step, loss)
                state.weights, state.momentum = model.state_dict(), momentum_of(model, optimizer)
                state.pending = journal.pending
                save_checkpoint(path, state)
                saved = time.monotonic()
            if asked and not finished:
                model.load_state_dict(state.best or state.weights)
                stage.judged = bool(state.best)
                raise Stopped(f"stopped at step {state.step} of {stage.steps} of stage {stage.number}")
    model.load_state_dict(state.best)
    return time.monotonic() - began


class _Journal:
    """Losses and accuracies of the steps since the last line of metrics."""

    def __init__(self, stage: Stage, folder: RunFolder, pending: State) -> None:
        self.stage, self.folder = stage, folder
        self.noted = list(zip(pending.get("losses", ()), pending.get("shares", ()), strict=True))
        self.word = ""  # for the progress bar

    @property
    def pending(self) -> State:
        """Return what is not in the metrics yet, so that a resumed run can log the same means."""
        kept = zip(("losses", "shares"), zip(*self.noted, strict=True), strict=False)
        return {name: torch.stack(values) for name, values in kept}

    def write(self, state: Checkpoint, rate: float) -> None:
        """Log the means since the last time."""
        means = torch.stack([*self.pending.values()]).mean(dim=1)
        _require_finite(self.stage, state.step, means)
        loss, share = means.tolist()
        self.folder.log(
            stage=self.stage.number,
            step=state.step,
            loss=round(loss, 4),
            accuracy=round(100 * share, 2),
            rate=round(rate, 6),
            seconds=round(state.seconds, 1),
        )
        self.noted.clear()
        self.word = f"loss {loss:.3f}"


def _require_finite(stage: Stage, step: int, loss: Tensor) -> None:
    """Refuse to go on, and to save anything, where the loss or a weight is no finite number."""
    weights = stage.model.state_dict().values()
    if not (loss.isfinite().all() and all(weight.isfinite().all() for weight in weights)):
        raise Diverged(
            f"stage {stage.number} diverged by step {step}: lower the learning rate, for example with "
            f"--set {stage.slower or f'stage{stage.number}.schedule.peak=0.02'}"
        )


def _restore(path: Path, stage: Stage, optimizer: torch.optim.Optimizer) -> Checkpoint:
    """Put a checkpoint's weights and momentum in place; refuse one that this stage did not write."""
    state, model = load_checkpoint(path), stage.model
    try:
        if state.best:
            model.load_state_dict(state.best)
        model.load_state_dict(state.weights)
        restore_momentum(model, optimizer, state.momentum)
    except (RuntimeError, ValueError) as error:
        raise ConfigError(
            f"the checkpoint {path} belongs to another model: delete it to train the stage again"
        ) from error
    if state.step > stage.steps or (state.step == stage.steps and not state.best):
        raise ConfigError(
            f"the checkpoint {path} belongs to a longer training: delete it to train the stage again"
        )
    device = next(model.parameters()).device
    state.pending = {name: values.to(device) for name, values in state.pending.items()}
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
    loss, share = workers.mean_of(loss, share)
    return loss.detach(), share.detach()


def _select(stage: Stage, state: Checkpoint, folder: RunFolder) -> None:
    """Evaluate the model and keep it if it is the best so far."""
    figures = stage.judge()
    selected = figures[stage.select] >= state.best_value
    if selected:
        state.best_value = figures[stage.select]
        state.best = copy.deepcopy(stage.model.state_dict())
    folder.log(stage=stage.number, step=state.step, **figures, selected=selected, by=stage.select)


def step_seed(*words: int) -> int:
    """Return the seed for the random numbers of one step, unrelated to that of any other step."""
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
