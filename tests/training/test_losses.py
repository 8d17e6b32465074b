"""SGM losses: squared gradient magnitudes, as gradients of the last layer have them; distillation."""

import pytest
import torch
from torch.nn import functional as F

from recollect.training.losses import BATCH_SGM_WEIGHT, RISE, SGM_WEIGHT, distilled, stage_one_loss
from recollect.training.stage1 import BaseClassification


@pytest.fixture
def batch():
    torch.manual_seed(0)
    z, weight = torch.randn(6, 5), torch.randn(4, 5, requires_grad=True)
    return z, weight, torch.tensor([0, 3, 1, 1, 2, 0])


def squared_gradient(z, weight, targets):
    """‖∂ loss / ∂W‖² of some examples, as autograd finds it."""
    loss = F.cross_entropy(z @ weight.T, targets)
    return torch.autograd.grad(loss, weight)[0].square().sum()


def test_sgm_adds_the_mean_squared_gradient_of_single_examples(batch):
    z, weight, targets = batch
    each = [squared_gradient(z[i : i + 1], weight, targets[i : i + 1]) for i in range(len(z))]
    expected = F.cross_entropy(z @ weight.T, targets) + 0.02 * torch.stack(each).mean()
    assert SGM_WEIGHT == 0.02
    assert stage_one_loss("sgm", z @ weight.T, targets, z).item() == pytest.approx(expected.item(), rel=1e-5)


def test_batch_sgm_adds_the_squared_gradient_of_the_batch(batch):
    z, weight, targets = batch
    expected = F.cross_entropy(z @ weight.T, targets) + 5 * squared_gradient(z, weight, targets)
    assert BATCH_SGM_WEIGHT == 5
    found = stage_one_loss("batch-sgm", z @ weight.T, targets, z)
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("kind", ["sgm", "batch-sgm"])
def test_the_penalty_rises_during_the_first_half(batch, kind):
    z, weight, targets = batch
    plain = F.cross_entropy(z @ weight.T, targets)
    added = [
        stage_one_loss(kind, z @ weight.T, targets, z, share) - plain for share in (0, RISE / 2, RISE, 1)
    ]
    torch.testing.assert_close(torch.stack(added), added[3] * torch.tensor([0, 0.5, 1, 1]))
    assert added[3] > 0.01


def test_the_penalty_reaches_the_features(batch):
    z, weight, targets = batch
    slopes = []
    for kind in ("cross-entropy", "sgm", "batch-sgm"):
        asked = z.clone().requires_grad_()
        slopes.append(torch.autograd.grad(stage_one_loss(kind, asked @ weight.T, targets, asked), asked)[0])
    assert not torch.allclose(slopes[0], slopes[1])
    assert not torch.allclose(slopes[0], slopes[2])


def test_stage_1_takes_the_loss_that_is_set(make_model, make_split):
    from recollect.training.config import make_config

    split, found = make_split(), {}
    for kind in ("cross-entropy", "sgm", "batch-sgm"):
        settings = {"stage1.loss": kind, "stage1.steps": "4", "device": "cpu", "select_tasks": "2"}
        config = make_config({}, {"data": "made"}, settings)
        stage = BaseClassification(make_model(seed=1, classifier="dot", generator="mean"), split, config)
        torch.manual_seed(0)
        found[kind] = stage.loss(3)[0].item()
    assert found["sgm"] > found["cross-entropy"]
    assert found["batch-sgm"] > found["cross-entropy"]
    assert found["sgm"] != found["batch-sgm"]


def test_distillation_is_half_the_loss_and_the_divergence_from_softened_scores_of_the_teacher():
    scores, wanted = torch.tensor([[2.0, 0.0, -2.0]]), torch.tensor([[0.0, 4.0, 0.0]])
    p, q = torch.tensor([1.0, torch.e**2, 1.0]), torch.tensor([torch.e, 1.0, 1 / torch.e])  # at T = 2
    p, q = p / p.sum(), q / q.sum()
    expected = (3.0 + 4 * (p * (p / q).log()).sum()) / 2
    torch.testing.assert_close(distilled(torch.tensor(3.0), scores, wanted), expected)
    torch.testing.assert_close(distilled(torch.tensor(3.0), wanted + 7, wanted), torch.tensor(1.5))
