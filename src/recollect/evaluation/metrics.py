"""The figures of an evaluation, per task, from scores over base and novel categories; means and intervals."""

from dataclasses import dataclass

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


def task_figures(scores: Scores, novel_targets: Tensor, base_targets: Tensor) -> dict[str, Tensor]:
    """Return every figure of `METRICS` for each task, (tasks,), as fractions of 1."""
    base_best, _ = scores.novel_base.max(-1)
    novel_best, novel_choice = scores.novel_novel.max(-1)
    novel_right = novel_choice == novel_targets
    novel_gap = base_best - novel_best  # what must be added to novel scores before novel wins
    base_best, base_choice = scores.base_base.max(-1)
    novel_best, _ = scores.base_novel.max(-1)
    base_right = base_choice == base_targets
    base_gap = base_best - novel_best

    novel = _share(novel_right)
    base = _share(base_right)
    novel_in_joint = _share(novel_right & (novel_gap < 0))  # on a tie the base category comes first
    base_in_joint = _share(base_right & (base_gap >= 0))
    queries = novel_right.shape[1] + base_right.shape[1]
    both = (novel_in_joint * novel_right.shape[1] + base_in_joint * base_right.shape[1]) / queries
    return {
        "novel": novel,
        "base": base,
        "both": both,
        "novel_in_joint": novel_in_joint,
        "base_in_joint": base_in_joint,
        "harmonic": harmonic(novel_in_joint, base_in_joint),
        "delta": ((base_in_joint - base) + (novel_in_joint - novel)) / 2,
        "ausuc": ausuc(novel_gap, novel_right, base_gap, base_right),
    }


def harmonic(novel: Tensor, base: Tensor) -> Tensor:
    """2nb / (n + b), 0 where both are 0."""
    return torch.where(novel + base > 0, 2 * novel * base / (novel + base).clamp(min=1e-12), 0.0)


def ausuc(novel_gap: Tensor, novel_right: Tensor, base_gap: Tensor, base_right: Tensor) -> Tensor:
    """Area under base-in-joint against novel-in-joint accuracy as β is added to every novel score.

    Exact: a query changes sides at β = its gap. Novel queries (tasks, n), base queries (tasks, m) → (tasks,).
    """
    gaps, order = torch.cat([novel_gap, base_gap], 1).sort(dim=1)
    gained = torch.cat([novel_right / novel_right.shape[1], torch.zeros_like(base_gap)], 1).gather(1, order)
    lost = torch.cat([torch.zeros_like(novel_gap), base_right / base_right.shape[1]], 1).gather(1, order)
    x = gained.cumsum(1)
    y = _share(base_right).unsqueeze(1) - lost.cumsum(1)
    # Queries that change sides together are one step: the points between are not on the curve.
    last = torch.searchsorted(gaps, gaps, right=True) - 1
    x, y = x.gather(1, last), y.gather(1, last)
    x = torch.cat([torch.zeros_like(x[:, :1]), x], 1)
    y = torch.cat([_share(base_right).unsqueeze(1), y], 1)
    return torch.trapezoid(y, x, dim=1)


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
