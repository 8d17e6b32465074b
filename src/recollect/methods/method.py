"""The interface of a method, and task scores for methods that only look at a task's features."""

import threading
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from recollect.data.splits import Split
from recollect.data.tasks import Tasks
from recollect.evaluation.evaluate import Scorer, ScoringFunction
from recollect.evaluation.metrics import Scores
from recollect.features import FeatureSet, category_means, extract
from recollect.model.model import Model
from recollect.training.budget import Speed, measure
from recollect.training.config import Config
from recollect.training.runfolder import RunFolder
from recollect.training.train import learn_both_stages, train

# Support (tasks, ways, shots, d) and queries (tasks, q, d) → scores of base (tasks, q, k) and novel
# categories (tasks, q, ways); `None` in place of base scores where a method has none.
FeatureScores = Callable[[Tensor, Tensor], tuple[Tensor | None, Tensor]]


class Method(Scorer):
    """Learns from base pictures, then scores tasks over novel and, where `joint`, over base categories too.

    A trained method is a run folder; its model file names the method, which defines what the parts of the
    `Model` mean. By default, a method does what the paper does.
    """

    title = "Dynamic few-shot learning without forgetting"  # as papers call it

    def settled(self, config: Config) -> Config:
        """Return a configuration with the method's own settings."""
        return config

    def departures(self, config: Config) -> str:  # noqa: ARG002
        """Return how the settings depart from the method's published recipe, for a page's readers."""
        return ""

    def check(self, config: Config, split: Split) -> None:
        """Refuse, before anything is written, what the method cannot learn from."""

    def train(self, config: Config, out: Path, *, resume: bool = False) -> int:
        """Train in the run folder `out`, or resume the run there; return how many pictures were held out."""
        config = self.settled(config)
        return train(config, out, resume=resume, learn=self.learn, check=self.check, speed_of=self.speed)

    def speed(self, config: Config, model: Model, split: Split) -> Speed:
        """Return how long the method's training takes on this machine."""
        return measure(config, model, split)

    def learn(self, config: Config, split: Split, folder: RunFolder, stop: threading.Event) -> None:
        """Train a new or begun run until it is finished or asked to stop."""
        learn_both_stages(config, split, folder, stop)


def task_scores(
    score: FeatureScores,
    novel: FeatureSet | None,
    base: FeatureSet,
    device: torch.device,
    *,
    joint: bool,
) -> ScoringFunction:
    """Return a scoring function that gathers what is seen of the pictures of tasks, and scores it.

    A method without base scores is asked about novel queries only: some look at all queries of a task
    together. It gets one base category that never wins, and base queries score 0.
    """
    base_features = base.features.to(device)
    novel_features = base_features if novel is None else novel.features.to(device)
    examples = novel_features if base.support is None else base.support.features.to(device)

    @torch.inference_mode()
    def scores(tasks: Tasks) -> Scores:
        asked = novel_features[tasks.novel_queries]
        if joint:
            asked = torch.cat([asked, base_features[tasks.base_queries]], dim=1)
        base_scores, novel_scores = score(examples[tasks.support], asked)
        if base_scores is None:
            novel_scores = F.pad(novel_scores, (0, 0, 0, tasks.base_queries.shape[1]))
            base_scores = novel_scores.new_full((*novel_scores.shape[:2], 1), -torch.inf)
        elif novel is None:
            hidden = tasks.hidden(base_scores.shape[2]).to(device)
            base_scores = base_scores.masked_fill(hidden.unsqueeze(1), -torch.inf)
        return Scores.of_all(base_scores.cpu(), novel_scores.cpu(), tasks.novel_queries.shape[1])

    return scores


@torch.no_grad()
def learn_means(model: Model, split: Split) -> None:
    """Set the classifier's rows to the mean features of base categories, as the classifier sees them."""
    features = extract(model, split.base_train)
    seen = model.classifier.view(features.features.to(model.mean.device)).cpu()
    model.classifier.weight.copy_(category_means(seen, features.labels, len(split.categories)))


def squared_distances(queries: Tensor, means: Tensor) -> Tensor:
    """Return ‖q − m‖²: queries (…, q, d) and means (…, m, d) → (…, q, m)."""
    squares = queries.square().sum(-1, keepdim=True) + means.square().sum(-1).unsqueeze(-2)
    return squares - 2 * queries @ means.mT
