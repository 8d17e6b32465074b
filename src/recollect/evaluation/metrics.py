"""The figures of an evaluation, per task, from scores over base and novel categories; means and intervals."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

METRICS = (
    "novel", "base", "both", "novel_in_joint", "base_in_joint", "harmonic", "delta", "ausuc",
)  # fmt: skip


@dataclass(frozen=True)
class Scores:
    """Scores of the novel and the base queries of some tasks, each over base and over novel categories."""

    novel_base: Tensor  # (tasks, novel queries, k)
    novel_novel: Tensor  # (tasks, novel queries, ways)
    base_base: Tensor  # (tasks, base queries, k)
    base_novel: Tensor  # (tasks, base queries, ways)

    @classmethod
    def of_all(cls, base: Tensor, novel: Tensor, count: int) -> "Scores":
        """Split the scores of all queries, the first `count` of which are novel: (tasks, q, k or ways)."""
        return cls(base[:, :count], novel[:, :count], base[:, count:], novel[:, count:])

    def biased(self, bias: float) -> "Scores":
        """Return the same with a bias added to every novel score."""
        return replace(self, novel_novel=self.novel_novel + bias, base_novel=self.base_novel + bias)


@dataclass(frozen=True)
class Answers:
    """How the queries of some tasks were answered.

    `right`: whether the best category of the query's own kind, novel or base, is its own. `gap`: what must be
    added to novel scores before a novel category wins.
    """

    novel_gap: Tensor  # (tasks, novel queries)
    novel_right: Tensor
    base_gap: Tensor  # (tasks, base queries)
    base_right: Tensor


def answers(scores: Scores, novel_targets: Tensor, base_targets: Tensor) -> Answers:
    """Return how queries with these scores and targets were answered."""
    base_best, _ = scores.novel_base.max(-1)
    novel_best, novel_choice = scores.novel_novel.max(-1)
    novel_gap, novel_right = base_best - novel_best, novel_choice == novel_targets
    base_best, base_choice = scores.base_base.max(-1)
    novel_best, _ = scores.base_novel.max(-1)
    return Answers(novel_gap, novel_right, base_best - novel_best, base_choice == base_targets)


def biased(given: Answers, bias: float) -> Answers:
    """Return the answers with a bias added to every novel score."""
    return replace(given, novel_gap=given.novel_gap - bias, base_gap=given.base_gap - bias)


def task_figures(scores: Scores, novel_targets: Tensor, base_targets: Tensor) -> dict[str, Tensor]:
    """Return every figure of `METRICS` for each task, (tasks,), as fractions of 1."""
    return answer_figures(answers(scores, novel_targets, base_targets))


def answer_figures(given: Answers) -> dict[str, Tensor]:
    """Return every figure of `METRICS` for each task, (tasks,), as fractions of 1."""
    novel = _share(given.novel_right)
    base = _share(given.base_right)
    # On a tie the base category comes first.
    novel_in_joint = _share(given.novel_right & (given.novel_gap < 0))
    base_in_joint = _share(given.base_right & (given.base_gap >= 0))
    novel_count, base_count = given.novel_right.shape[1], given.base_right.shape[1]
    both = (novel_in_joint * novel_count + base_in_joint * base_count) / (novel_count + base_count)
    return {
        "novel": novel,
        "base": base,
        "both": both,
        "novel_in_joint": novel_in_joint,
        "base_in_joint": base_in_joint,
        "harmonic": harmonic(novel_in_joint, base_in_joint),
        "delta": ((base_in_joint - base) + (novel_in_joint - novel)) / 2,
        "ausuc": ausuc(given),
    }


def harmonic(novel: Tensor, base: Tensor) -> Tensor:
    """2nb / (n + b), 0 where both are 0."""
    return torch.where(novel + base > 0, 2 * novel * base / (novel + base).clamp(min=1e-12), 0.0)


def ausuc(given: Answers) -> Tensor:
    """Return the area under each task's `joint_curve`, (tasks,)."""
    novel, base = joint_curve(given)
    return torch.trapezoid(base, novel, dim=1)


def joint_curve(given: Answers) -> tuple[Tensor, Tensor]:
    """Return n(β) and b(β), novel- and base-in-joint accuracy as β is added to every novel score.

    β runs from −∞ to ∞, the curves from (0, base) to (novel, 0). Exact: a query changes sides at β = its gap,
    which makes a point (tasks, queries + 1) for each of them; those that change together share one.
    """
    right, share = given.novel_right, _share(given.base_right).unsqueeze(1)
    gaps, order = torch.cat([given.novel_gap, given.base_gap], 1).sort(dim=1)
    gained = torch.cat([right.double() / right.shape[1], torch.zeros_like(given.base_right)], 1)
    lost = torch.cat([torch.zeros_like(right), given.base_right.double() / given.base_right.shape[1]], 1)
    novel = gained.gather(1, order).cumsum(1)
    base = share - lost.gather(1, order).cumsum(1)
    # Queries that change sides together are one step: the points between are not on the curve.
    last = torch.searchsorted(gaps, gaps, right=True) - 1
    novel, base = novel.gather(1, last), base.gather(1, last)
    return torch.cat([torch.zeros_like(share), novel], 1), torch.cat([share, base], 1)


def mean_curve(given: Answers) -> tuple[Tensor, Tensor]:
    """Return the mean over tasks of n(β) and of b(β) at equal β, (points,).

    Every task has as many queries, so this is the curve of one task with the queries of all of them.
    """
    pooled = [part.reshape(1, -1) for part in vars(given).values()]
    novel, base = joint_curve(Answers(*pooled))
    return novel[0], base[0]


def summary(values: Tensor) -> dict[str, float]:
    """Return the mean over tasks and the 95 % interval 1.96 σ/√tasks, in percent.

    >>> summary(torch.tensor([0.4, 0.6]))
    {'mean': 50.0, 'ci95': 13.86}
    """
    values = values.double() * 100
    ci95 = 1.96 * values.std(correction=0) / len(values) ** 0.5
    return {"mean": round(values.mean().item(), 2), "ci95": round(ci95.item(), 2)}


def _share(right: Tensor) -> Tensor:
    return right.double().mean(dim=1)
