"""The generator `ridge` against a plain solution of its equation."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from recollect.model.classifier import unit
from recollect.model.generator import RIDGE, STEP, Memory, RidgeGenerator

WIDTH = 6
NO_MEMORY = Memory(torch.empty(0, WIDTH))


def drawn(*shape, seed=0):
    return unit(torch.randn(*shape, WIDTH, generator=torch.Generator().manual_seed(seed)).double())


def plain_solution(base, examples):
    """W' of the formula, category by category: base (n, d), examples a list of (shots, d) → (ways, d)."""
    all_of_them = np.concatenate(examples)
    labels = np.repeat(np.eye(len(examples)), [len(some) for some in examples], axis=0)
    matrix = base.T @ base + all_of_them.T @ all_of_them + RIDGE * np.eye(WIDTH)
    return np.linalg.solve(matrix, all_of_them.T @ labels).T


def generator_of(base):
    generator = RidgeGenerator(WIDTH).double()
    generator.see(base)
    return generator


@settings(max_examples=40)
@given(
    base=st.integers(0, 30),
    counts=st.lists(st.lists(st.integers(1, 4), min_size=3, max_size=3), min_size=1, max_size=4),
    seed=st.integers(0, 2**31),
)
def test_vectors_solve_the_regression_with_base_pictures_as_negatives(base, counts, seed):
    known, support = drawn(base, seed=seed), drawn(len(counts), 3, 4, seed=seed + 1)
    generator = generator_of(known)
    terms = generator.terms(support, NO_MEMORY)
    present = (torch.arange(4) < torch.tensor(counts)[:, :, None]).double()
    vectors = generator.compose(terms, present)
    for task, shots in enumerate(counts):
        examples = [terms[task, way, :many].numpy() for way, many in enumerate(shots)]
        np.testing.assert_allclose(
            vectors[task], plain_solution(known.numpy(), examples), rtol=1e-9, atol=1e-12
        )
    full = generator.compose(terms)
    np.testing.assert_allclose(
        full[0], plain_solution(known.numpy(), list(terms[0].numpy())), rtol=1e-9, atol=1e-12
    )


def test_terms_are_the_features_in_steps_that_sums_keep_exact():
    z = torch.cat([drawn(50), torch.eye(WIDTH).double(), -torch.eye(WIDTH).double()])
    terms = RidgeGenerator(WIDTH).terms(z, NO_MEMORY)
    assert torch.equal(terms / STEP, (terms / STEP).round())
    assert (terms - z).abs().max() <= STEP
    assert terms.abs().max() < 1
    assert torch.equal(terms.float().double(), terms)


def test_what_base_pictures_say_adds_up_and_new_ones_are_noticed():
    first, more, z = drawn(9), drawn(5, seed=1), drawn(2, 3, seed=2)
    generator = generator_of(first)
    before = generator.compose(z)
    np.testing.assert_allclose(before, plain_solution(first.numpy(), list(z.numpy())), rtol=1e-9, atol=1e-12)
    generator.see(more)
    after = generator.compose(z)
    both = torch.cat([first, more]).numpy()
    np.testing.assert_allclose(after, plain_solution(both, list(z.numpy())), rtol=1e-9, atol=1e-12)
    other = RidgeGenerator(WIDTH).double()
    other.compose(z)
    other.load_state_dict(generator.state_dict())
    assert torch.equal(other.compose(z), after)


def test_only_a_cosine_classifier_has_features_for_it(make_spec):
    with pytest.raises(ValidationError, match="'ridge' needs the cosine classifier"):
        make_spec(generator="ridge", classifier="dot")


@pytest.mark.parametrize("many", [3, 20], ids=["fewer than d", "more than d"])
def test_pictures_that_are_left_out_might_never_have_been_there(many):
    kept, hidden, right = drawn(30), drawn(many, seed=1), drawn(4, seed=2)
    generator, smaller = generator_of(torch.cat([kept, hidden])), generator_of(kept)
    inverse = generator.inverse()
    found = generator.leave_out(right @ inverse, hidden, hidden @ inverse)
    torch.testing.assert_close(found, right @ smaller.inverse())
