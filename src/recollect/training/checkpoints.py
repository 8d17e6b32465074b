"""A stage in progress, on disk: weights, momentum, the best model so far; safetensors, nothing executes."""

import json
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor

from recollect.errors import ConfigError
from recollect.model.model import Model
from recollect.system.disk import replacing_file

FORMAT = 1
State = dict[str, Tensor]
_ABOUT = {"format", "step", "best_value", "seconds"}


@dataclass
class Checkpoint:
    """Where a stage stands after `step` steps."""

    step: int = 0
    weights: State = field(default_factory=dict)
    momentum: State = field(default_factory=dict)
    best: State = field(default_factory=dict)  # weights of the model selected so far
    best_value: float = -inf
    seconds: float = 0.0  # spent on the stage so far


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint, whole or not at all."""
    tensors = {
        f"{group}/{name}": tensor.detach().cpu().contiguous()
        for group, state in (
            ("weights", checkpoint.weights),
            ("momentum", checkpoint.momentum),
            ("best", checkpoint.best),
        )
        for name, tensor in state.items()
    }
    about = {
        "format": FORMAT,
        "step": checkpoint.step,
        "best_value": checkpoint.best_value,
        "seconds": checkpoint.seconds,
    }
    content = save(tensors, metadata={"checkpoint": json.dumps(about)})
    with replacing_file(path) as part:
        part.write_bytes(content)


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint."""
    try:
        with safe_open(path, framework="np") as file:
            about = json.loads((file.metadata() or {}).get("checkpoint", "{}"))
        tensors = load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise ConfigError(f"the checkpoint {path} is damaged: delete it to train the stage again") from error
    if not isinstance(about, dict) or about.keys() != _ABOUT or about["format"] != FORMAT:
        raise ConfigError(
            f"the checkpoint {path} is of another version of recollect: start a new run with --out"
        )

    def group(prefix: str) -> State:
        return {name.removeprefix(prefix): tensors[name] for name in tensors if name.startswith(prefix)}

    return Checkpoint(
        step=about["step"],
        weights=group("weights/"),
        momentum=group("momentum/"),
        best=group("best/"),
        best_value=about["best_value"],
        seconds=about["seconds"],
    )


def momentum_of(model: Model, optimizer: torch.optim.Optimizer) -> State:
    """Return the optimiser's momentum by parameter name."""
    return {
        name: optimizer.state[parameter]["momentum_buffer"]
        for name, parameter in model.named_parameters()
        if optimizer.state.get(parameter, {}).get("momentum_buffer") is not None
    }


def restore_momentum(model: Model, optimizer: torch.optim.Optimizer, momentum: State) -> None:
    """Put saved momentum back."""
    for name, parameter in model.named_parameters():
        if name in momentum:
            optimizer.state[parameter]["momentum_buffer"] = torch.empty_like(parameter).copy_(momentum[name])
