"""MAML (Finn et al., 2017): weights from which a few steps of gradient descent solve a new task."""

import torch
from torch import Tensor, nn

from recollect.data.splits import Split
from recollect.errors import counted
from recollect.methods.adapting import Adaptation, AdaptingLearner, AdaptingMethod, Loop
from recollect.methods.episodic import EpisodesOfPictures, learner_of
from recollect.model.model import Model
from recollect.model.spec import LearnerSpec
from recollect.training.config import Config
from recollect.training.optimizer import ClippedAdam

_WEIGHTS = 14  # tensors of the network: a convolution and a batch norm in each block, and the head
_CLIP = 10.0
_RATE = 0.01  # of adaptation, as published


class Start(AdaptingLearner):
    """Where the head starts, and the rates α of every weight of the network, which may be learned."""

    rates: Tensor
    second_order = True  # of the next step

    def __init__(self, spec: LearnerSpec, width: int) -> None:
        super().__init__(spec, width)
        rates = torch.full((_WEIGHTS,), spec.rate or 0.0)
        if spec.learn_rates:
            self.rates = nn.Parameter(rates)
        else:
            self.register_buffer("rates", rates, persistent=False)


class MAML(AdaptingMethod):
    """All weights θ start at the same place in every task, and take steps θ ← θ − α ∇L(support) from there.

    The loss of the queries after the last step is differentiated through all steps. Batch norm takes the
    statistics of the current batch, of the queries too, as in the published code: the queries of a task are
    answered together.
    """

    name = "maml"
    title = "MAML"
    rate = 1e-3
    second_order = True
    head_alone = False

    def usual_steps(self, shots: int) -> tuple[int, int]:  # noqa: ARG002
        """Return 5 in training and 10 on a new task."""
        return 5, 10

    def made_for(self, config: Config, ways: int) -> LearnerSpec:
        """Return the size of the head, and how it descends."""
        own = {"rate": config.meta.inner_rate, "learn_rates": config.meta.learn_rates}
        return super().made_for(config, ways).model_copy(update=own)

    def departures(self, config: Config) -> str:
        """Return how the settings depart from those of Finn et al."""
        meta = self.settled(config).meta
        inner = counted(meta.inner_steps or 0, "inner step")
        rate, constant = meta.rate or self.rate, meta.schedule == "constant"
        different = {
            f"{inner} in training and {meta.test_steps} on new tasks (5 and 10)": (
                (meta.inner_steps, meta.test_steps) != self.usual_steps(1)
            ),
            f"inner learning rate {meta.inner_rate:g} (0.01)": meta.inner_rate != _RATE,
            "inner learning rate learned for every weight tensor (fixed)": meta.learn_rates,
            f"first order for the first {100 * meta.first_order:.0f} % of training (never)": (
                self.second_order and meta.first_order > 0
            ),
            "zero-initialised head (random)": meta.zero_head,
            f"Adam's learning rate annealed from {rate:g} to 0 (constant 0.001)": not constant,
            f"Adam's learning rate {rate:g} (0.001)": constant and rate != MAML.rate,
            f"{config.episodic.queries} queries of each category (15)": config.episodic.queries != 15,
            "random shifts (none)": config.stage1.pad != 0,
            "random flips (none)": config.stage1.flip,
        }
        found = [text for text, differs in different.items() if differs]
        return f"{self.title} (published values in brackets): {'; '.join(found)}." if found else ""

    def learner(self, spec: LearnerSpec, width: int) -> nn.Module:
        """Return the start of the head, and the rates."""
        return Start(spec, width)

    def prepare(self, model: Model, config: Config, share: float) -> None:
        """Decide on the order of the derivative: a run may begin with the first, which takes less time."""
        learner_of(model, Start).second_order = self.second_order and share >= config.meta.first_order

    def adam(self, parameters: list[nn.Parameter]) -> ClippedAdam:
        """Return Adam with gradients clipped to ±10."""
        return ClippedAdam(parameters, value=_CLIP)

    def through(self, model: Model) -> bool:
        """Return whether the steps of adaptation are differentiated."""
        return model.training and self.second_order and learner_of(model, Start).second_order

    def adaptation(self, model: Model, support: Tensor, queries: Tensor) -> Adaptation:
        """Adapt to all tasks at once where second derivatives are taken: in a loop it takes twice as long."""
        return (Adaptation if self.through(model) else Loop)(model, support, queries)

    def stage(self, config: Config, split: Split) -> EpisodesOfPictures:
        """Return the training on episodes, from its start."""
        stage = super().stage(config, split)
        if config.meta.zero_head:
            for weight in learner_of(stage.model, Start).head.parameters():
                nn.init.zeros_(weight)
        return stage

    def adapted_scores(self, model: Model, adaptation: Adaptation, steps: int) -> Tensor:
        """Descend on the loss of each task's support, then score its queries: (tasks, q, ways)."""
        weights = adaptation.start()
        through = self.through(model)
        moving = [name for name in weights if name.startswith("head." if self.head_alone else "")]
        rates = dict(zip(weights, learner_of(model, Start).rates, strict=True))
        for _ in range(steps):
            losses, _ = adaptation.support_losses(weights)
            # No task's loss depends on another's weights: the gradient of their sum is each one's own.
            slopes = torch.autograd.grad(
                losses.sum(), [weights[name] for name in moving], create_graph=through
            )
            weights = weights | {
                name: weights[name] - rates[name] * slope for name, slope in zip(moving, slopes, strict=True)
            }
        with torch.set_grad_enabled(model.training):
            scores, _ = adaptation.scores(weights, adaptation.queries)
        return scores


class FirstOrderMAML(MAML):
    """MAML that takes the derivative of the queries' loss after adaptation for that before it."""

    name = "fomaml"
    title = "First-order MAML"
    second_order = False


class ANIL(MAML):
    """MAML whose head alone adapts (Raghu et al., 2020); the extractor is learned through its steps."""

    name = "anil"
    title = "ANIL"
    head_alone = True


class StartedMAML(MAML):
    """MAML whose extractor starts as that of the paper's stage 1: an ordinary classifier of base categories.

    Like the paper's own, it has no last ReLU.
    """

    name = "maml-started"
    title = "MAML from a trained classifier"
    after_classification = True
    classifier = "cosine"
    last_relu = False
