"""The optimisers: SGD as the authors have it, or Muon for the convolutions and SGD for the rest; Adam.

Muon (Jordan et al., 2024) replaces the momentum of a weight matrix by the nearest orthogonal matrix, so that
every direction of it moves equally far. A batch norm undoes the length of the convolution before it; the
length is therefore fixed, and the learning rate is the share of a convolution that a step changes.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # Jordan's: singular values end between about 0.7 and 1.2
_ITERATIONS = 5


class Descent(torch.optim.SGD):
    """Nesterov SGD; with `muon`, convolutions take orthogonal steps of `muon` times the learning rate."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], *, momentum: float, weight_decay: float, muon: float = 0.0
    ) -> None:
        super().__init__(parameters, lr=0.0, momentum=momentum, nesterov=True, weight_decay=weight_decay)
        self.muon = muon

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Take one step along the gradients."""
        if self.muon:
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.ndim == 4 and parameter.grad is not None:
                        self._orthogonal_step(parameter, self.muon * group["lr"], group["momentum"])
                        parameter.grad = None  # SGD passes over it
        super().step()

    def _orthogonal_step(self, parameter: nn.Parameter, rate: float, momentum: float) -> None:
        gradient, state = parameter.grad, self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        buffer = state["momentum_buffer"].mul_(momentum).add_(gradient)
        # Filters of unit length on average, as many as there are.
        parameter.mul_(len(parameter) ** 0.5 / parameter.norm().clamp_min(1e-12))
        parameter.sub_(orthogonal((gradient + momentum * buffer).flatten(1)).view_as(parameter), alpha=rate)


class ClippedAdam(torch.optim.Adam):
    """Adam on gradients that are clipped first: each to ±`value`, or all together to the norm `norm`."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], *, value: float | None = None, norm: float | None = None
    ) -> None:
        super().__init__(parameters, lr=0.0)
        self.value, self.norm = value, norm

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Take one step along the clipped gradients."""
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        if self.value is not None:
            nn.utils.clip_grad_value_(parameters, self.value)
        if self.norm is not None:
            nn.utils.clip_grad_norm_(parameters, self.norm)
        super().step()


def orthogonal(matrix: Tensor) -> Tensor:
    """Return roughly U Vᵀ of a matrix U S Vᵀ, by a Newton-Schulz iteration."""
    a, b, c = _COEFFICIENTS
    tall = len(matrix) > matrix.shape[1]
    x: Tensor = (matrix.T if tall else matrix) / matrix.norm().clamp_min(1e-12)
    for _ in range(_ITERATIONS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x
