"""Random numbers that parameters start from."""

import torch
from torch import Tensor


def normal(rows: int, columns: int, std: float) -> Tensor:
    """Draw (rows, columns) from N(0, std²), or give the shape alone on torch's device for shapes, `meta`.

    To draw there, torch would first load its compiler, which takes longer than all the rest of loading.
    """
    if only_shapes():
        return torch.empty(rows, columns)
    return torch.randn(rows, columns) * std


def only_shapes() -> bool:
    """Say whether tensors are made on the device that holds shapes and no numbers."""
    return torch.get_default_device().type == "meta"
