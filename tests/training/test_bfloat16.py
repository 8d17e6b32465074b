"""Convolutions in bfloat16: while the residual networks learn, on processors that have it, and never else."""

import pytest
import torch

from recollect.data.augment import Augmentation
from recollect.features import augmented_views, extract
from recollect.model.extractors import blocks
from recollect.system import machine
from recollect.training.config import make_config
from recollect.training.loop import _take_step
from recollect.training.stage1 import BaseClassification
from recollect.training.teacher import Teacher
from recollect.training.train import new_model, resolve

SETTINGS = {"stage1.steps": "10", "stage1.batch": "14", "select_tasks": "6"}


@pytest.fixture(params=["avx512_bf16", "amx_bf16"])
def able(request, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {request.param: True}, raising=False)


@pytest.fixture
def unable(monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": False}, raising=False)


@pytest.fixture
def stage_of(make_split):
    def make(extractor):
        options = {"data": "synthetic", "extractor": extractor, "device": "cpu", "threads": 1}
        split = make_split(size=32)
        config = resolve(make_config({}, options, SETTINGS), split)
        return BaseClassification(new_model(config, split), split, config)

    return make


def kinds_of(model, compute):
    """Return what convolutions of the model's extractor give while `compute` runs."""
    seen = set()
    hooks = [
        module.register_forward_hook(lambda _module, _inputs, output: seen.add(output.dtype))
        for module in model.extractor.modules()
        if isinstance(module, torch.nn.Conv2d)
    ]
    compute()
    for hook in hooks:
        hook.remove()
    return seen


@pytest.mark.parametrize("extractor", ["resnet", "resnet10"])
def test_residual_networks_learn_in_bfloat16_and_are_judged_in_float32(able, stage_of, extractor):
    stage = stage_of(extractor)

    def learn():
        loss, _ = stage.loss(0)
        assert loss.dtype == torch.float32
        loss.backward()

    assert kinds_of(stage.model, learn) == {torch.bfloat16}
    assert all(one.grad.dtype == torch.float32 for one in stage.learned() if one.grad is not None)
    assert kinds_of(stage.model, lambda: extract(stage.model, stage.images)) == {torch.float32}

    def view():
        augmented_views(stage.model, stage.images, Augmentation(2, flip=True), 1, seed=0)

    assert kinds_of(stage.model, view) == {torch.bfloat16}
    teacher = Teacher(stage.model)
    pixels = torch.from_numpy(stage.images.take(stage.batches[0]))
    assert kinds_of(stage.model, lambda: teacher.scores(pixels)) == {torch.bfloat16}


def test_no_other_processor_does_that(unable, stage_of):
    stage = stage_of("resnet")
    assert kinds_of(stage.model, lambda: stage.loss(0)) == {torch.float32}


def test_no_other_network_does_that(able, stage_of, monkeypatch):
    monkeypatch.setattr(blocks, "available", lambda: False)
    stage = stage_of("c32f")
    assert kinds_of(stage.model, lambda: stage.loss(0)) == {torch.float32}


def test_a_gpu_that_has_it_uses_it_for_all(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    used = machine.mixed_precision(torch.device("cuda"))
    assert (used.device, used.fast_dtype) == ("cuda", torch.bfloat16)


@pytest.mark.parametrize("extractor", ["resnet", "resnet10"])
def test_bfloat16_learns_what_float32_learns(stage_of, monkeypatch, extractor):
    losses, slopes = {}, {}
    for has in (False, True):
        monkeypatch.setattr(
            torch.cpu, "get_capabilities", lambda has=has: {"avx512_bf16": has}, raising=False
        )
        torch.manual_seed(0)
        stage = stage_of(extractor)
        optimizer = stage.optimizer()
        losses[has] = []
        for step in range(10):
            loss, _ = _take_step(stage, optimizer, step, 0.02)
            losses[has].append(loss.item())
            if step == 0:
                slopes[has] = torch.cat([one.grad.flatten() for one in stage.learned()])
    assert losses[True] != losses[False]
    assert losses[True][0] == pytest.approx(losses[False][0], rel=0.02)
    assert torch.nn.functional.cosine_similarity(slopes[True], slopes[False], dim=0) > 0.9
    first, last = (sum(losses[True][place : place + 3]) for place in (0, 7))
    assert last < 0.9 * first, "and it learns"
