from math import exp, sqrt

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recollect.model.generator import AttentionGenerator, MeanGenerator

CLASSIFIERS = ["cosine", "dot"]
GENERATORS = ["mean", "average", "attention"]
TASKS, WAYS, SHOTS, QUERIES, BASE = 2, 2, 3, 3, 7
HIDDEN = torch.zeros(TASKS, BASE, dtype=torch.bool)
HIDDEN[0, [1, 6]] = True
HIDDEN[1, [0, 3]] = True


def product(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def unit(v):
    length = sqrt(product(v, v))
    return [x / length for x in v]


def cosine(a, b):
    return product(unit(a), unit(b))


def reference_vector(model, examples, hidden):
    """w' = G(Z', W_base | φ) of one category, number by number, as section 1 of the specification has it."""
    seen = unit if model.spec.classifier == "cosine" else list
    generator, width = model.generator, model.width
    memory = [seen(w) for w in model.classifier.weight.tolist()]
    total = [0.0] * width
    for example in examples:
        z = seen(example)
        term = z
        if not isinstance(generator, MeanGenerator):
            term = [phi * x for phi, x in zip(generator.phi_avg.tolist(), z, strict=True)]
        if isinstance(generator, AttentionGenerator):
            query = [
                product(row, z) + bias
                for row, bias in zip(
                    generator.phi_q.weight.tolist(), generator.phi_q.bias.tolist(), strict=True
                )
            ]
            powers = {
                b: exp(generator.sharpness.item() * cosine(query, key))
                for b, key in enumerate(generator.keys.tolist())
                if b not in hidden
            }
            attended = [
                sum(power * memory[b][j] for b, power in powers.items()) / sum(powers.values())
                for j in range(width)
            ]
            term = [x + phi * y for x, phi, y in zip(term, generator.phi_att.tolist(), attended, strict=True)]
        total = [x + y / len(examples) for x, y in zip(total, term, strict=True)]
    return total


def reference_scores(model, support, query, hidden):
    """Scores of one query over base categories (None where hidden) and over one task's novel ones."""
    similarity = cosine if model.spec.classifier == "cosine" else product
    scale = model.classifier.scale.item()
    base = [
        None if b in hidden else scale * similarity(query, w)
        for b, w in enumerate(model.classifier.weight.tolist())
    ]
    novel = [scale * similarity(query, reference_vector(model, examples, hidden)) for examples in support]
    return base, novel


def features(*shape, seed=0):
    # Lengths differ from feature to feature: a missing or a needless normalisation shows.
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return z * torch.rand(*shape[:-1], 1, generator=generator, dtype=torch.float64).mul(3).add(0.5)


@pytest.mark.parametrize("hides", [False, True], ids=["all-shown", "some-hidden"])
@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("classifier", CLASSIFIERS)
def test_joint_scores_are_those_of_the_formulas(make_model, classifier, generator, hides):
    model = make_model(classifier=classifier, generator=generator).double()
    support = features(TASKS, WAYS, SHOTS, model.width, seed=1)
    queries = features(TASKS, QUERIES, model.width, seed=2)
    base, novel = model.joint_scores(support, queries, hidden=HIDDEN if hides else None)
    vectors = model.generator.compose(model.terms(support, HIDDEN if hides else None))
    assert base.shape == (TASKS, QUERIES, BASE)
    assert novel.shape == (TASKS, QUERIES, WAYS)
    for task in range(TASKS):
        hidden = set(HIDDEN[task].nonzero().flatten().tolist()) if hides else set()
        examples = support[task].tolist()
        for way in range(WAYS):
            expected = torch.tensor(reference_vector(model, examples[way], hidden), dtype=torch.float64)
            torch.testing.assert_close(vectors[task, way], expected)
        for query in range(QUERIES):
            of_base, of_novel = reference_scores(model, examples, queries[task, query].tolist(), hidden)
            masked = torch.tensor([-torch.inf if score is None else score for score in of_base])
            torch.testing.assert_close(base[task, query], masked.double(), rtol=1e-6, atol=1e-6)
            torch.testing.assert_close(
                novel[task, query], torch.tensor(of_novel).double(), rtol=1e-6, atol=1e-6
            )


def without_base_categories(model, make_model, hidden):
    """Return a model from which the hidden base categories, their vectors and keys are really removed."""
    kept = [b for b in range(BASE) if b not in hidden]
    smaller = make_model(
        classifier=model.spec.classifier,
        generator=model.spec.generator,
        categories=tuple(model.spec.categories[b] for b in kept),
    ).double()
    weights = model.state_dict()
    for name in ("classifier.weight", "generator.keys"):
        if name in weights:
            weights[name] = weights[name][kept]
    smaller.load_state_dict(weights)
    return smaller, kept


@settings(max_examples=25)
@given(
    classifier=st.sampled_from(CLASSIFIERS),
    generator=st.sampled_from(GENERATORS),
    hidden=st.sets(st.integers(0, BASE - 1), max_size=BASE - 1),
    shots=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_hiding_base_categories_equals_removing_them(make_model, classifier, generator, hidden, shots, seed):
    model = make_model(seed=seed, classifier=classifier, generator=generator).double()
    smaller, kept = without_base_categories(model, make_model, hidden)
    support = features(1, WAYS, shots, model.width, seed=seed)
    queries = features(1, QUERIES, model.width, seed=seed + 1)
    mask = torch.zeros(1, BASE, dtype=torch.bool)
    mask[0, list(hidden)] = True
    base, novel = model.joint_scores(support, queries, hidden=mask)
    smaller_base, smaller_novel = smaller.joint_scores(support, queries)
    torch.testing.assert_close(base[..., kept], smaller_base)
    torch.testing.assert_close(novel, smaller_novel)
    assert (base[..., list(hidden)] == -torch.inf).all()
    made, expected = (
        one.generator.compose(terms)
        for one, terms in ((model, model.terms(support, mask)), (smaller, smaller.terms(support)))
    )
    torch.testing.assert_close(made, expected)
    torch.testing.assert_close(
        torch.cat([base, novel], -1).logsumexp(-1), torch.cat([smaller_base, smaller_novel], -1).logsumexp(-1)
    )


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("classifier", CLASSIFIERS)
def test_gradients_behind_the_mask_equal_those_of_removed_categories(make_model, classifier, generator):
    model = make_model(classifier=classifier, generator=generator).double()
    hidden = {2, 5}
    smaller, kept = without_base_categories(model, make_model, hidden)
    support, queries = (
        features(1, WAYS, SHOTS, model.width, seed=1),
        features(1, QUERIES, model.width, seed=2),
    )
    mask = torch.zeros(1, BASE, dtype=torch.bool)
    mask[0, list(hidden)] = True
    for one, extra in ((model, {"hidden": mask}), (smaller, {})):
        base, novel = one.joint_scores(support, queries, **extra)
        torch.cat([base, novel], -1).softmax(-1)[..., -1].log().sum().backward()
    expected = {name: p.grad for name, p in smaller.named_parameters() if p.grad is not None}
    assert "classifier.weight" in expected
    for name, parameter in model.named_parameters():
        if parameter.grad is None:
            assert name not in expected
            continue
        gradient = parameter.grad
        if name in {"classifier.weight", "generator.keys"}:
            assert (gradient[list(hidden)] == 0).all()
            gradient = gradient[kept]
        torch.testing.assert_close(gradient, expected[name])


def test_each_task_hides_its_own_base_categories(tiny_model):
    support = features(TASKS, WAYS, SHOTS, tiny_model.width).float()
    queries = features(TASKS, QUERIES, tiny_model.width).float()
    together = tiny_model.joint_scores(support, queries, hidden=HIDDEN)
    for task in range(TASKS):
        some = slice(task, task + 1)
        alone = tiny_model.joint_scores(support[some], queries[some], hidden=HIDDEN[some])
        for whole, part in zip(together, alone, strict=True):
            torch.testing.assert_close(whole[some], part)


@pytest.mark.parametrize("generator", GENERATORS)
def test_base_scores_do_not_depend_on_what_is_taught(make_model, generator):
    model = make_model(generator=generator)
    queries = features(1, QUERIES, model.width).float()
    first, _ = model.joint_scores(features(1, 1, 1, model.width, seed=3).float(), queries)
    second, _ = model.joint_scores(features(1, 5, 2, model.width, seed=4).float(), queries)
    assert torch.equal(first, second)


@pytest.mark.parametrize("generator", GENERATORS)
def test_terms_of_single_features_compose_to_the_same_vectors(make_model, generator):
    model = make_model(generator=generator)
    z = features(6, model.width).float()
    vectors = model.generator.compose(model.terms(z.view(1, 2, 3, -1)))
    torch.testing.assert_close(vectors[0], model.terms(z).view(2, 3, -1).mean(1))


@pytest.mark.parametrize("name", ["c32f", "resnet", "resnet10"])
def test_embedding_equals_a_plain_computation_in_planar_order(make_model, name):
    model = make_model(extractor=name)
    pixels = torch.randint(0, 256, (3, 16, 16, 3), dtype=torch.uint8)
    planes = torch.empty(3, 3, 16, 16)
    for channel in range(3):
        mean, std = model.spec.preprocessing.mean[channel], model.spec.preprocessing.std[channel]
        planes[:, channel] = (pixels[..., channel].float() - mean) / std
    plain = make_model(extractor=name)
    plain.extractor.to(memory_format=torch.contiguous_format)
    with torch.no_grad():
        found = model.embed(pixels)
        expected = plain.extractor(planes.contiguous())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_mirrored_model_has_the_mean_feature_of_a_picture_and_its_mirror_image(make_model):
    mirrored, plain = make_model(mirrored=True), make_model()
    pixels = torch.randint(0, 256, (3, 16, 16, 3), dtype=torch.uint8)
    with torch.no_grad():
        found, turned = mirrored.embed(pixels), mirrored.embed(pixels.flip(2))
        expected = (plain.embed(pixels) + plain.embed(pixels.flip(2))) / 2
        assert not torch.allclose(found, plain.embed(pixels))
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(found, turned)
        for model in (mirrored, plain):
            model.train()
        assert torch.equal(mirrored.embed(pixels), plain.embed(pixels)), "it learns from single pictures"


@pytest.mark.parametrize("mirrored", [False, True])
def test_a_shifted_model_has_the_mean_feature_over_five_places(make_model, mirrored):
    shifted, plain = make_model(mirrored=mirrored, shifted=3), make_model(mirrored=mirrored)
    pixels = torch.randint(0, 256, (2, 16, 16, 3), dtype=torch.uint8)
    places = [pixels]
    for rows, columns in ((3, 0), (-3, 0), (0, 3), (0, -3)):
        place = torch.zeros_like(pixels)  # black comes in
        for row in range(16):
            for column in range(16):
                if row + rows in range(16) and column + columns in range(16):
                    place[:, row + rows, column + columns] = pixels[:, row, column]
        places.append(place)
    with torch.no_grad():
        found, expected = shifted.embed(pixels), torch.stack([plain.embed(place) for place in places]).mean(0)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        assert not torch.allclose(found, plain.embed(pixels))
        with shifted.unshifted():
            assert torch.equal(shifted.embed(pixels), plain.embed(pixels))
        assert torch.equal(shifted.embed(pixels), found)
        for model in (shifted, plain):
            model.train()
        assert torch.equal(shifted.embed(pixels), plain.embed(pixels)), "it learns from single pictures"


def test_embedding_runs_in_channels_last_without_a_copy(tiny_model):
    seen = []
    tiny_model.extractor.register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0]))
    tiny_model.embed(torch.zeros(2, 16, 16, 3, dtype=torch.uint8))
    assert seen[0].shape == (2, 3, 16, 16)
    assert seen[0].is_contiguous(memory_format=torch.channels_last)


def test_replacing_the_generator_leaves_the_rest(tiny_model):
    before = {name: value.clone() for name, value in tiny_model.state_dict().items()}
    tiny_model.replace_generator("average")
    assert tiny_model.spec.generator == "average"
    after = tiny_model.state_dict()
    assert {name for name in after if name.startswith("generator")} == {"generator.phi_avg"}
    assert all(torch.equal(before[name], after[name]) for name in after if not name.startswith("generator"))
    tiny_model.replace_generator("attention", sharpness=30)
    assert tiny_model.generator.sharpness.item() == 30
    assert tiny_model.generator.keys.shape == (BASE, tiny_model.width)
