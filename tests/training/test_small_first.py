"""Stage 1 that begins with smaller pictures: the same classifier learns from both sizes."""

import pytest
import torch

from recollect.data.augment import shrink
from recollect.errors import ConfigError
from recollect.model.extractors import build_extractor
from recollect.training.budget import Speed, fit_to_minutes
from recollect.training.config import make_config
from recollect.training.stage1 import BaseClassification
from recollect.training.train import new_model, resolve

SMALL = {"stage1.steps": "10", "stage1.batch": "14", "stage1.small.size": "16", "stage1.small.until": "0.4"}


def configured(**settings):
    options = {"data": "synthetic", "extractor": "c32f", "device": "cpu", "threads": 1}
    return make_config({}, options, {**SMALL, "select_tasks": "6", **settings})


def test_shrinking_keeps_the_mean_colour_and_the_places():
    pixels = torch.randint(0, 256, (4, 32, 32, 3), dtype=torch.uint8)
    pixels[:, :16] //= 4
    small = shrink(pixels, 16)
    assert small.shape == (4, 16, 16, 3)
    assert small.dtype == torch.uint8
    torch.testing.assert_close(small.float().mean((1, 2)), pixels.float().mean((1, 2)), rtol=0, atol=1.5)
    assert small[:, :7].float().mean() < small[:, 9:].float().mean() / 3


@pytest.mark.parametrize(("small", "size"), [(48, 84), (64, 84), (24, 32), (32, 32)])
def test_a_stretched_map_has_the_width_and_the_order_of_a_large_one(small, size):
    extractor, width = build_extractor("c32f", size=size)
    side = small // 16
    maps = torch.arange(32.0).view(1, 32, 1, 1) * 100 + torch.arange(float(side))
    stretched = extractor.stretch(maps.expand(1, 32, side, side).flatten(1), size).view(32, size // 16, -1)
    assert stretched.numel() == width
    rows = stretched - torch.arange(32.0).view(32, 1, 1) * 100
    assert (rows.diff(dim=2) > -1e-3).all(), "columns keep their order"
    torch.testing.assert_close(rows.diff(dim=1), torch.zeros_like(rows.diff(dim=1)), rtol=0, atol=1e-3)
    assert rows.min().item() == pytest.approx(0, abs=1e-3)
    assert rows.max().item() == pytest.approx(side - 1, abs=1e-3)


def test_the_first_steps_see_small_pictures_and_the_others_large_ones(make_split):
    split, seen = make_split(size=32), []
    config = configured()
    stage = BaseClassification(new_model(config, split), split, config)
    stage.model.extractor.register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0].shape[-1]))
    for step in range(10):
        loss, _ = stage.loss(step)
        loss.backward()
        assert stage.model.classifier.weight.grad.abs().sum() > 0
    assert seen == [16] * 4 + [32] * 6


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"stage1.small.size": "32"}, "size=32 is not smaller than the pictures, 32×32"),
        ({"stage1.small.size": "15"}, "size=15 is too small for the extractor 'c32f'"),
        ({"stage1.small.until": "1.5"}, "until"),
    ],
)
def test_sizes_that_cannot_be_meant_are_refused_before_training(make_split, settings, words):
    with pytest.raises(ConfigError, match=words):
        resolve(configured(**settings), make_split(size=32))


def test_minutes_give_more_steps_when_the_first_of_them_are_cheap():
    assert configured().stage1.small_share(32) == pytest.approx(0.4 / 4 + 0.6)
    assert make_config({}, {"data": "glyphs"}).stage1.small_share(32) == 1


def test_minutes_are_not_spent_on_a_teacher_while_pictures_are_small():
    speed = Speed(stage1_step=1.0, stage2_step=0.0, picture=0.0, teacher=0.5)
    assert speed.stage1_mean(configured().stage1, 32) == pytest.approx(0.4 / 4 + 0.6 + 0.6 * 0.5)
    assert speed.stage1_mean(make_config({}, {"data": "glyphs"}).stage1, 32) == 1.5


def test_minutes_are_for_small_and_large_steps_and_the_teacher_of_the_large_ones(make_split):
    def speed(*_):
        return Speed(stage1_step=1.0, stage2_step=0.0, picture=0.0, teacher=1.0)

    split, config = (
        make_split(size=32),
        configured().model_copy(update={"minutes": 10.0, "generator": "mean"}),
    )
    found = fit_to_minutes(config, new_model(config, split), split, speed)
    assert found.stage1.steps == int(0.95 * 600 / (0.4 / 4 + 0.6 + 0.6 * 1.0))
    short = config.model_copy(update={"minutes": 0.01})
    with pytest.raises(ConfigError, match=r"takes 1\.30 s .* use a smaller extractor or no stage1\.teacher"):
        fit_to_minutes(short, new_model(config, split), split, speed)
