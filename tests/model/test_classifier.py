from math import sqrt

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recollect.model.classifier import Classifier, cosine_scores, dot_scores, unit

KINDS = ["cosine", "dot"]
sizes = st.integers(1, 5)


def reference_scores(kind, z, w, scale):
    """s_k = τ · z̄ᵀ w̄_k or τ · zᵀ w_k of one feature and one vector, number by number."""
    product = sum(a * b for a, b in zip(z, w, strict=True))
    if kind == "cosine":
        product /= sqrt(sum(a * a for a in z)) * sqrt(sum(b * b for b in w))
    return scale * product


@given(
    kind=st.sampled_from(KINDS),
    tasks=sizes,
    queries=sizes,
    categories=sizes,
    width=sizes,
    scale=st.floats(0.1, 30),
    seed=st.integers(0, 2**31),
)
def test_scores_are_those_of_the_formula(kind, tasks, queries, categories, width, scale, seed):
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(tasks, queries, width, generator=generator, dtype=torch.float64)
    w = torch.randn(tasks, categories, width, generator=generator, dtype=torch.float64)
    scores = {"cosine": cosine_scores, "dot": dot_scores}[kind](z, w, torch.tensor(scale).double())
    assert scores.shape == (tasks, queries, categories)
    expected = [
        [
            [reference_scores(kind, q, v, float(torch.tensor(scale))) for v in w[t].tolist()]
            for q in z[t].tolist()
        ]
        for t in range(tasks)
    ]
    torch.testing.assert_close(scores, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("kind", KINDS)
def test_classifier_scores_with_its_own_vectors_and_scale(kind):
    torch.manual_seed(0)
    classifier = Classifier(4, 6, kind)
    with torch.no_grad():
        classifier.scale.fill_(3.5)
    z = torch.randn(5, 6)
    expected = [[reference_scores(kind, q, w, 3.5) for w in classifier.weight.tolist()] for q in z.tolist()]
    torch.testing.assert_close(classifier(z), torch.tensor(expected))
    torch.testing.assert_close(classifier.scores(z, classifier.weight), torch.tensor(expected))


@given(seed=st.integers(0, 2**31), stretch=st.floats(1e-3, 1e3))
def test_cosine_scores_ignore_lengths(seed, stretch):
    generator = torch.Generator().manual_seed(seed)
    z, w = torch.randn(3, 8, generator=generator), torch.randn(4, 8, generator=generator)
    scale = torch.tensor(10.0)
    scores = cosine_scores(z, w, scale)
    torch.testing.assert_close(cosine_scores(z * stretch, w, scale), scores, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(cosine_scores(z, w * stretch, scale), scores, atol=1e-4, rtol=1e-4)
    assert scores.abs().max() <= 10 + 1e-4


def test_dot_scores_grow_with_lengths():
    z, w = torch.randn(3, 8), torch.randn(4, 8)
    scale = torch.tensor(1.0)
    torch.testing.assert_close(dot_scores(2 * z, 3 * w, scale), 6 * dot_scores(z, w, scale))


def test_a_feature_of_nothing_but_zeros_scores_zero_with_finite_gradients():
    z = torch.zeros(1, 4, requires_grad=True)
    scores = cosine_scores(z, torch.randn(3, 4), torch.tensor(10.0))
    assert torch.equal(scores, torch.zeros(1, 3))
    scores.sum().backward()
    assert z.grad.isfinite().all()


def test_unit_vectors_have_length_one():
    torch.testing.assert_close(unit(torch.randn(5, 7)).norm(dim=-1), torch.ones(5))


@pytest.mark.parametrize(("kind", "scale"), [("cosine", 10.0), ("dot", 1.0)])
def test_scale_starts_where_the_specification_says(kind, scale):
    classifier = Classifier(3, 4, kind)
    assert classifier.scale.item() == scale
    assert classifier.scale.requires_grad


@pytest.mark.parametrize("width", [50, 800])
def test_base_vectors_start_normal_with_variance_two_over_width(width):
    torch.manual_seed(0)
    weight = Classifier(40_000 // width, width, "cosine").weight.detach()
    assert weight.var().item() == pytest.approx(2 / width, rel=0.05)
    assert weight.mean().abs().item() < 4 * sqrt(2 / width / weight.numel())
    excess = ((weight / weight.std()) ** 4).mean().item()
    assert excess == pytest.approx(3, abs=0.2)  # a normal distribution, not a uniform one
