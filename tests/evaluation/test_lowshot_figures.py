"""The low-shot benchmark: counted answers are those of sorting, draw by draw."""

import numpy as np
import pytest
import torch

from recollect.errors import Diverged
from recollect.evaluation import lowshot
from recollect.evaluation.lowshot import (
    FIGURES,
    PRIORS,
    TOP,
    HalfFeatures,
    LinearTaught,
    TeachByTerms,
    choose_prior,
    count_right,
    draw_examples,
    named,
)
from recollect.features import FeatureSet

BASE, NOVEL, D, DRAWS = 9, 8, 6, 7
PRIOR = {5: 0.7, 1: 0.35}


def features_of(labels, categories, seed):
    draw = torch.Generator().manual_seed(seed)
    means = torch.randn(categories, D, generator=draw)
    labels = torch.as_tensor(labels)
    noise = torch.randn(len(labels), D, generator=draw)
    return FeatureSet((means[labels] + noise).half(), labels, tuple(map(str, range(categories))))


@pytest.fixture
def half():
    """A half with few categories, of which novel ones have a different number of queries."""
    novel = features_of([0, 1, 1, 2, 3, 4, 5, 6, 7, 7, 7], NOVEL, 0)
    examples = features_of(np.arange(NOVEL).repeat(12), NOVEL, 0)
    return HalfFeatures(
        torch.tensor([0, 2, 3, 5, 6, 7]), features_of([0, 1, 2, 3, 4, 4, 5], 6, 1), examples, novel
    )


BASE_VECTORS = torch.randn(BASE, D, generator=torch.Generator().manual_seed(5))


def means(support, columns):
    """Plain means, in which base vectors may differ from draw to draw."""
    return LinearTaught(BASE_VECTORS[columns][None], support.mean(2))


def own_base(support, columns):
    shift = support.mean((1, 2, 3)).view(-1, 1, 1)
    return LinearTaught(BASE_VECTORS[columns] + shift, support.mean(2), None, support.mean((2, 3)))


TERMS = torch.randn(D, D, generator=torch.Generator().manual_seed(6))
by_terms = TeachByTerms(lambda support: support @ TERMS, means)


def slowly(teach, half, examples, shots, prior):
    """One draw and one query at a time, by sorting."""
    found = {named(figure, k): [] for figure in FIGURES for k in TOP}
    for draw in examples:
        support = half.examples.features[draw[:, :shots]].float()[None]
        taught = teach(support, half.columns)
        right = dict.fromkeys(found, 0)
        for kind, is_novel in ((half.novel, True), (half.base, False)):
            for query, label in zip(kind.features.float(), kind.labels.tolist(), strict=True):
                base, novel = (scores[0, 0].double() for scores in taught.scores(query[None]))
                target = label + len(base) if is_novel else label
                joint = torch.cat([base, novel]).argsort(descending=True).tolist()
                for k in TOP:
                    mu = prior[k]
                    weighed = torch.cat([(1 - mu) * base.softmax(0), mu * novel.softmax(0)])
                    by_prior = weighed.argsort(descending=True).tolist()
                    right[named("all", k)] += target in joint[:k]
                    right[named("prior", k)] += target in by_prior[:k]
                    if is_novel:
                        right[named("novel", k)] += label in novel.argsort(descending=True)[:k].tolist()
        for name, count in right.items():
            found[name].append(count)
    return found


@pytest.mark.parametrize("teach", [means, own_base, by_terms])
@pytest.mark.parametrize("shots", [1, 3])
def test_counting_over_all_draws_finds_what_sorting_one_by_one_finds(half, teach, shots, monkeypatch):
    examples = draw_examples(half.examples.labels.numpy(), DRAWS, 3, seed=0)
    expected = slowly(teach, half, examples, shots, PRIOR)
    for scores, support, vectors in ((1 << 21, 1 << 25, 1 << 20), (50, 1, 1), (1, 300, 1), (50, 1 << 25, 99)):
        monkeypatch.setattr(lowshot, "_SCORES", scores)
        monkeypatch.setattr(lowshot, "SUPPORT_VALUES", support)
        monkeypatch.setattr(lowshot, "_VECTOR_VALUES", vectors)
        monkeypatch.setattr(lowshot, "_ROWS", 5)
        found = count_right(teach, half, examples, shots, PRIOR)
        assert {name: counts.tolist() for name, counts in found.items()} == expected
    assert len({str(counts) for counts in expected.values()}) >= 5, "figures differ"


@pytest.mark.parametrize("teach", [means, own_base])
def test_the_prior_is_the_best_of_all(half, teach):
    examples = draw_examples(half.examples.labels.numpy(), DRAWS, 2, seed=0)
    chosen = choose_prior(teach, half, examples, 2)
    for k in TOP:
        totals = [
            int(count_right(teach, half, examples, 2, dict.fromkeys(TOP, prior))[named("prior", k)].sum())
            for prior in PRIORS
        ]
        assert chosen[k] == PRIORS[totals.index(max(totals))]
        assert max(totals) > totals[0] or max(totals) > totals[-1], "the prior matters"


def test_ties_and_scores_that_are_not_numbers_never_count_as_right(half):
    examples = draw_examples(half.examples.labels.numpy(), 2, 1, seed=0)

    def same(support, columns):
        return LinearTaught(torch.zeros(1, len(columns), D), torch.zeros(len(support), NOVEL, D))

    found = count_right(same, half, examples, 1, PRIOR)
    assert all(not counts.any() for counts in found.values())

    def broken(support, columns):
        return LinearTaught(torch.zeros(1, len(columns), D), torch.full((len(support), NOVEL, D), torch.nan))

    with pytest.raises(Diverged, match="scores are not finite"):
        count_right(broken, half, examples, 1, PRIOR)


def test_draws_have_no_example_twice_and_are_the_same_however_many_there_are(half):
    labels = half.examples.labels.numpy()
    drawn = draw_examples(labels, 5, 4, seed=3)
    assert drawn.shape == (5, NOVEL, 4)
    assert torch.equal(half.examples.labels[drawn], torch.arange(NOVEL).view(1, -1, 1).expand(5, -1, 4))
    assert all(len(set(own.tolist())) == 4 for own in drawn.flatten(0, 1))
    assert torch.equal(draw_examples(labels, 2, 4, seed=3), drawn[:2])
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(draw_examples(labels, 1, 4, seed=4), drawn[:1])
