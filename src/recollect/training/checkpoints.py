"""A stage in progress, on disk: weights, momentum, the best model so far; safetensors, nothing executes."""

from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor

from recollect.errors import ConfigError
from recollect.model.model import Model
from recollect.system.disk import replacing_file, require_regular

State = dict[str, Tensor]
_GROUPS = ("weights", "momentum", "best", "pending")
_MOMENTUM = "momentum_buffer"


class _About(BaseModel):
    """What a checkpoint's header says."""

    model_config = ConfigDict(extra="forbid", strict=True, ser_json_inf_nan="constants")

    format: Literal[1] = 1
    step: Annotated[int, Field(ge=1, le=2**31)]
    best_value: Annotated[float, Field(ge=-inf, le=100)]  # −∞: no model was judged yet; no NaN
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass
class Checkpoint:
    """Where a stage stands after `step` steps."""

    step: int = 0
    weights: State = field(default_factory=dict)
    momentum: State = field(default_factory=dict)
    best: State = field(default_factory=dict)  # weights of the model selected so far
    best_value: float = -inf
    seconds: float = 0.0  # spent on the stage so far
    pending: State = field(default_factory=dict)  # losses and accuracies that are not in the metrics yet


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint, whole or not at all."""
    tensors = {
        f"{group}/{name}": tensor.detach().cpu().contiguous()
        for group in _GROUPS
        for name, tensor in getattr(checkpoint, group).items()
    }
    about = _About(step=checkpoint.step, best_value=checkpoint.best_value, seconds=checkpoint.seconds)
    content = save(tensors, metadata={"checkpoint": about.model_dump_json()})
    with replacing_file(path) as part:
        part.write_bytes(content)


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint; refuse one that is damaged, or that no training could have written."""
    try:
        require_regular(path)
        with safe_open(path, framework="np") as file:
            header = (file.metadata() or {}).get("checkpoint", "{}")
        tensors = load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise _damaged(path) from error
    try:
        about = _About.model_validate_json(header)
    except ValidationError as error:
        raise ConfigError(
            f"the checkpoint {path} was written by another version of recollect or altered: "
            "start a new run with --out"
        ) from error
    groups: dict[str, State] = {group: {} for group in _GROUPS}
    for name, tensor in tensors.items():
        group, _, own = name.partition("/")
        groups.get(group, {})[own] = tensor
    pending = {name: values.shape for name, values in groups["pending"].items()}
    if (
        not all(tensor.isfinite().all() for tensor in tensors.values())
        or bool(groups["best"]) != (about.best_value > -inf)
        or (pending and (set(pending) != {"losses", "shares"} or len(set(pending.values())) > 1))
        or any(len(shape) != 1 for shape in pending.values())
    ):
        raise _damaged(path)
    return Checkpoint(step=about.step, best_value=about.best_value, seconds=about.seconds, **groups)


def _damaged(path: Path) -> ConfigError:
    return ConfigError(f"the checkpoint {path} is damaged: delete it to train the stage again")


def momentum_of(model: Model, optimizer: torch.optim.Optimizer) -> State:
    """Return what the optimiser remembers by parameter name: SGD's momentum, or Adam's three as NAME:PART."""
    return {
        name if part == _MOMENTUM else f"{name}:{part}": values
        for name, parameter in model.named_parameters()
        for part, values in optimizer.state.get(parameter, {}).items()
        if values is not None
    }


def restore_momentum(model: Model, optimizer: torch.optim.Optimizer, momentum: State) -> None:
    """Put back what the optimiser remembered; a `ValueError` where it is not of this model."""
    parameters = dict(model.named_parameters())
    for key, values in momentum.items():
        name, _, part = key.partition(":")
        shape = () if part == "step" else parameters[name].shape if name in parameters else None
        if name not in parameters or values.shape != shape:
            raise ValueError(f"no parameter {name} has this momentum")
        parameter = parameters[name]
        place = values.clone() if part == "step" else torch.empty_like(parameter).copy_(values)
        optimizer.state[parameter][part or _MOMENTUM] = place
