"""Meta-LSTM (Ravi & Larochelle, 2017): an LSTM, the same for every weight, learns the rule of descent."""

from math import exp

import torch
from torch import Tensor, nn

from recollect.methods.adapting import Adaptation, AdaptingLearner, AdaptingMethod, Weights
from recollect.methods.episodic import learner_of
from recollect.methods.task_network import Statistics
from recollect.model.model import Model
from recollect.model.spec import LearnerSpec
from recollect.training.optimizer import ClippedAdam

_P = 10.0  # of the pre-processing
_HIDDEN = 20
_CLIP = 0.25  # of the norm of all gradients together
_MOMENTUM = 0.95  # share of the latest batch in the running statistics


class MetaLearner(AdaptingLearner):
    """The start of the head, and the two layers of the meta-learner.

    Both layers see every weight of the network on its own, a coordinate, and keep a state for each.
    """

    def __init__(self, spec: LearnerSpec, width: int) -> None:
        super().__init__(spec, width)
        self.lstm = nn.LSTMCell(4, _HIDDEN)
        # Of the hidden state, the gradient, the weight itself and the gate's own last value.
        self.forget, self.input = nn.Linear(_HIDDEN + 3, 1), nn.Linear(_HIDDEN + 3, 1)
        for parameter in (*self.lstm.parameters(), self.forget.weight, self.input.weight):
            nn.init.uniform_(parameter, -0.01, 0.01)
        nn.init.uniform_(self.forget.bias, 4, 6)  # keep the weight,
        nn.init.uniform_(self.input.bias, -5, -4)  # and take small steps

    def forward(self, slopes: Tensor, losses: Tensor, state: "State") -> "State":
        """Take a step of every coordinate: gradients (tasks, coordinates) and losses (tasks,) are data."""
        hidden, cell, forget, take, weights = state
        seen = torch.cat([preprocessed(slopes), preprocessed(losses[:, None].expand_as(slopes))], -1)
        hidden, cell = self.lstm(seen.flatten(0, 1), (hidden, cell))
        known = torch.cat([hidden.view(*slopes.shape, -1), slopes[..., None], weights[..., None]], -1)
        forget = self.forget(torch.cat([known, forget[..., None]], -1)).squeeze(-1)
        take = self.input(torch.cat([known, take[..., None]], -1)).squeeze(-1)
        weights = forget.sigmoid() * weights - take.sigmoid() * slopes
        return hidden, cell, forget, take, weights


# Of the LSTM: hidden and cell (tasks · coordinates, 20); of the second layer: both gates before the sigmoid
# and the weights themselves, each (tasks, coordinates).
State = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def preprocessed(values: Tensor) -> Tensor:
    """Return (log |x| / p, sign x), or (−1, eᵖ x) where |x| < e⁻ᵖ: (…,) → (…, 2).

    >>> preprocessed(torch.tensor([1.0, 0.0])).tolist()
    [[0.0, 1.0], [-1.0, 0.0]]
    """
    large = values.abs() >= exp(-_P)
    size = torch.where(large, values.abs().clamp(min=exp(-_P)).log() / _P, -1.0)
    return torch.stack([size, torch.where(large, values.sign(), exp(_P) * values)], -1)


class MetaLSTM(AdaptingMethod):
    """The cell state of an LSTM is the weights of the network: c ← σ(f) · c − σ(i) · ∇L(support).

    What is learned is the start c₀, which is the network's own weights, and how the gates f and i follow from
    gradient, loss and weight. No derivative is taken of the gradients themselves. In training, batch norm
    takes the statistics of the current batch; a new task's queries are normalised by the running statistics
    of its own support, so that they are answered one by one.
    """

    name = "meta-lstm"
    title = "Meta-LSTM"
    rate = 1e-3

    def usual_steps(self, shots: int) -> tuple[int, int]:
        """Return 12 for one shot and 8 for more."""
        return (12, 12) if shots == 1 else (8, 8)

    def learner(self, spec: LearnerSpec, width: int) -> nn.Module:
        """Return the start of the head, and the meta-learner."""
        return MetaLearner(spec, width)

    def adam(self, parameters: list[nn.Parameter]) -> ClippedAdam:
        """Return Adam with the norm of all gradients clipped to 0.25."""
        return ClippedAdam(parameters, norm=_CLIP)

    def adapted_scores(self, model: Model, adaptation: Adaptation, steps: int) -> Tensor:
        """Unroll the meta-learner over each task's support, then score its queries: (tasks, q, ways)."""
        learner = learner_of(model, MetaLearner)
        start = adaptation.start()
        weights = _flat(start)
        shape = (weights.numel(), _HIDDEN)
        zeros = torch.zeros_like(weights)
        state: State = (weights.new_zeros(shape), weights.new_zeros(shape), zeros, zeros, weights)
        running: Statistics = []
        for _ in range(steps):
            current = _unflat(state[-1].detach().requires_grad_(), start)
            losses, statistics = adaptation.support_losses(current)
            slopes = torch.autograd.grad(losses.sum(), list(current.values()))
            with torch.set_grad_enabled(model.training):
                state = learner(_flat(dict(zip(current, slopes, strict=True))), losses.detach(), state)
            running = _mixed(running, statistics)
        own = None if model.training else running
        with torch.set_grad_enabled(model.training):
            scores, _ = adaptation.scores(_unflat(state[-1], start), adaptation.queries, own)
        return scores


def _flat(weights: Weights) -> Tensor:
    """Return all weights of every task in a row: (tasks, coordinates)."""
    return torch.cat([weight.flatten(1) for weight in weights.values()], 1)


def _unflat(values: Tensor, like: Weights) -> Weights:
    sizes = [weight[0].numel() for weight in like.values()]
    parts = zip(like.items(), torch.split(values, sizes, 1), strict=True)
    return {name: part.reshape(weight.shape) for (name, weight), part in parts}


def _mixed(running: Statistics, latest: Statistics) -> Statistics:
    """Return running statistics that start with a task's first batch."""
    new = [(mean.detach(), variance.detach()) for mean, variance in latest]
    if not running:
        return new
    return [
        (torch.lerp(mean, one, _MOMENTUM), torch.lerp(variance, other, _MOMENTUM))
        for (mean, variance), (one, other) in zip(running, new, strict=True)
    ]
