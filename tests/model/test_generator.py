from math import exp, sqrt

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recollect.model.classifier import unit
from recollect.model.generator import (
    AttentionGenerator,
    AverageGenerator,
    MeanGenerator,
    Memory,
    attention_weights,
    build_generator,
)

AWARE = "attention, shot-aware"
KINDS = ["mean", "average", "attention", AWARE]
TASKS, WAYS, SHOTS, WIDTH, BASE = 3, 2, 4, 5, 6


def cosine(a, b):
    product = sum(x * y for x, y in zip(a, b, strict=True))
    return product / sqrt(sum(x * x for x in a)) / sqrt(sum(y * y for y in b))


def reference_vector(generator, examples, vectors, hidden):
    """w' of one category, number by number: the mean over examples of φ_avg ⊙ z' + φ_att ⊙ Σ_b a_b w_b.

    Where it is shot-aware, the second part counts N'^−ρ times.
    """
    total = [0.0] * WIDTH
    counts = 1.0
    if getattr(generator, "fading", None) is not None:
        counts = len(examples) ** -generator.fading.item()
    for z in examples:
        term = list(z)
        if not isinstance(generator, MeanGenerator):
            phi_avg = generator.phi_avg.tolist()
            term = [phi_avg[j] * z[j] for j in range(WIDTH)]
        if isinstance(generator, AttentionGenerator):
            weight, bias = generator.phi_q.weight.tolist(), generator.phi_q.bias.tolist()
            query = [sum(weight[i][j] * z[j] for j in range(WIDTH)) + bias[i] for i in range(WIDTH)]
            keys, gamma = generator.keys.tolist(), generator.sharpness.item()
            shown = [b for b in range(len(vectors)) if not hidden[b]]
            powers = {b: exp(gamma * cosine(query, keys[b])) for b in shown}
            phi_att = generator.phi_att.tolist()
            for b in shown:
                share = powers[b] / sum(powers.values())
                for j in range(WIDTH):
                    term[j] += counts * phi_att[j] * share * vectors[b][j]
        for j in range(WIDTH):
            total[j] += term[j] / len(examples)
    return total


def trained(kind, seed=0):
    """Return a generator whose parameters have all left their starting values."""
    torch.manual_seed(seed)
    name = kind.partition(",")[0]
    generator = build_generator(name, BASE, WIDTH, shot_aware=kind == AWARE).double()
    with torch.no_grad():
        for parameter in generator.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return generator


def drawn_hidden():
    hidden = torch.zeros(TASKS, BASE, dtype=torch.bool)
    hidden[0, [0, 3]] = True
    hidden[1, [5, 1]] = True
    hidden[2, [2, 4, 0, 1, 3]] = True  # one base category is left
    return hidden


@pytest.mark.parametrize("counts", [None, (1, 4, 2)], ids=["full", "mixed-shots"])
@pytest.mark.parametrize("hides", [False, True], ids=["all-shown", "some-hidden"])
@pytest.mark.parametrize("normalised", [True, False], ids=["cosine", "dot"])
@pytest.mark.parametrize("kind", KINDS)
def test_vectors_are_those_of_the_formula(kind, normalised, hides, counts):
    generator = trained(kind)
    z = 2 * torch.randn(TASKS, WAYS, SHOTS, WIDTH, dtype=torch.float64)
    w = 2 * torch.randn(BASE, WIDTH, dtype=torch.float64)
    if normalised:
        z, w = unit(z), unit(w)
    hidden = drawn_hidden() if hides else None
    present = None
    if counts is not None:
        present = (torch.arange(SHOTS) < torch.tensor(counts)[:, None]).double().unsqueeze(1)
    vectors = generator.compose(generator.terms(z, Memory(w, hidden)), present)

    shown = torch.zeros(TASKS, BASE, dtype=torch.bool) if hidden is None else hidden
    expected = [
        [
            reference_vector(
                generator, z[t, c].tolist()[: counts[t] if counts else SHOTS], w.tolist(), shown[t].tolist()
            )
            for c in range(WAYS)
        ]
        for t in range(TASKS)
    ]
    torch.testing.assert_close(vectors, torch.tensor(expected, dtype=torch.float64))


@given(seed=st.integers(0, 2**31), data=st.data())
def test_attention_is_a_distribution_over_the_base_categories_shown(seed, data):
    hidden = torch.tensor(
        data.draw(st.lists(st.lists(st.booleans(), min_size=BASE, max_size=BASE), min_size=2, max_size=2))
    )
    hidden[:, data.draw(st.integers(0, BASE - 1))] = False
    generator = torch.Generator().manual_seed(seed)
    queries = torch.randn(2, WAYS, SHOTS, WIDTH, generator=generator)
    keys = torch.randn(BASE, WIDTH, generator=generator)
    weights = attention_weights(queries, keys, torch.tensor(10.0), hidden)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, WAYS, SHOTS))
    for task in range(2):
        assert (weights[task][..., hidden[task]] == 0).all()
        assert (weights[task][..., ~hidden[task]] > 0).all()


def test_attention_leans_on_the_nearest_key_ever_more_as_it_sharpens():
    keys = torch.eye(3)
    query = torch.tensor([0.9, 0.3, 0.1])
    shares = [attention_weights(query, keys, torch.tensor(s), None)[0].item() for s in (0.0, 10.0, 100.0)]
    assert shares[0] == pytest.approx(1 / 3)
    assert shares[0] < shares[1] < shares[2]
    assert shares[2] == pytest.approx(1)


@given(seed=st.integers(0, 2**31), kind=st.sampled_from(KINDS), data=st.data())
def test_examples_add_up_in_any_order_one_by_one_or_at_once(seed, kind, data):
    generator = trained(kind, seed)
    order = data.draw(st.permutations(range(SHOTS)))
    z, memory = torch.randn(SHOTS, WIDTH).double(), Memory(torch.randn(BASE, WIDTH).double())
    at_once = generator.compose(generator.terms(z, memory))
    one_by_one = sum(generator.terms(z[i], memory) for i in order) / SHOTS
    if kind == AWARE:
        average, attended = one_by_one.chunk(2)
        one_by_one = average + SHOTS ** -generator.fading.detach() * attended
    torch.testing.assert_close(at_once, one_by_one)


def test_a_shot_aware_generator_starts_as_the_paper_s_and_stays_that_for_one_example():
    torch.manual_seed(0)
    aware = build_generator("attention", BASE, WIDTH, shot_aware=True)
    torch.manual_seed(0)
    plain = build_generator("attention", BASE, WIDTH)
    z, memory = torch.randn(WAYS, SHOTS, WIDTH), Memory(torch.randn(BASE, WIDTH))
    torch.testing.assert_close(aware.compose(aware.terms(z, memory)), plain.compose(plain.terms(z, memory)))
    with torch.no_grad():
        aware.fading.fill_(0.5)
    one = z[:, :1]
    torch.testing.assert_close(
        aware.compose(aware.terms(one, memory)), plain.compose(plain.terms(one, memory))
    )
    several = aware.compose(aware.terms(z, memory)) - plain.compose(plain.terms(z, memory))
    assert several.abs().max() > 1e-2


def test_attention_is_taken_per_example_not_of_the_mean():
    generator = trained("attention")
    z, memory = unit(torch.randn(SHOTS, WIDTH)).double(), Memory(torch.randn(BASE, WIDTH).double())
    of_mean = generator.terms(z.mean(0), memory)
    assert (generator.compose(generator.terms(z, memory)) - of_mean).abs().max() > 1e-3


def test_absent_examples_count_for_nothing():
    terms = torch.randn(2, WAYS, SHOTS, WIDTH)
    present = torch.tensor([[1.0, 0, 1, 0], [0, 1, 1, 1]]).unsqueeze(1)
    compose = MeanGenerator().compose
    vectors = compose(terms, present)
    torch.testing.assert_close(vectors[0], terms[0][:, [0, 2]].mean(1))
    torch.testing.assert_close(vectors[1], terms[1][:, [1, 2, 3]].mean(1))
    torch.testing.assert_close(compose(terms, torch.ones(2, 1, SHOTS)), compose(terms))


def test_generators_start_where_the_specification_says():
    torch.manual_seed(0)
    width = 200
    generator = build_generator("attention", 150, width)
    assert torch.equal(generator.phi_avg, torch.ones(width))
    assert torch.equal(generator.phi_att, torch.ones(width))
    assert generator.sharpness.item() == 10
    assert build_generator("attention", 2, 3, sharpness=30).sharpness.item() == 30
    assert torch.equal(generator.phi_q.bias, torch.zeros(width))
    noise = generator.phi_q.weight.detach() - torch.eye(width)
    assert noise.std().item() == pytest.approx(0.001, rel=0.03)
    assert noise.mean().abs().item() < 4 * 0.001 / width
    keys = generator.keys.detach()
    assert keys.shape == (150, width)
    assert keys.var().item() == pytest.approx(2 / width, rel=0.05)
    assert torch.equal(build_generator("average", 150, width).phi_avg, torch.ones(width))


def test_what_each_generator_learns():
    def names(kind):
        return {name for name, _ in build_generator(kind, BASE, WIDTH).named_parameters()}

    assert names("mean") == set()
    assert names("average") == {"phi_avg"}
    assert names("attention") == {"phi_avg", "phi_att", "phi_q.weight", "phi_q.bias", "keys", "sharpness"}
    assert isinstance(build_generator("average", BASE, WIDTH), AverageGenerator)


def test_gradients_are_finite_behind_the_mask():
    generator = trained("attention")
    w = torch.randn(BASE, WIDTH, dtype=torch.float64, requires_grad=True)
    z = torch.randn(TASKS, WAYS, SHOTS, WIDTH, dtype=torch.float64)
    generator.terms(z, Memory(w, drawn_hidden())).square().sum().backward()
    for parameter in (w, *generator.parameters()):
        assert parameter.grad.isfinite().all()
    assert generator.sharpness.grad != 0
