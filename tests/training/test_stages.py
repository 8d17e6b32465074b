"""How batches and episodes are drawn, and how learning rates run."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recollect.errors import ConfigError
from recollect.training.config import default_preset, differences, make_config, preset_names, read_preset
from recollect.training.loop import step_seed
from recollect.training.schedules import OneCycle, Steps
from recollect.training.stage1 import BalancedBatches


@given(st.lists(st.integers(1, 12), min_size=2, max_size=6), st.integers(1, 8), st.integers(0, 3))
def test_a_pass_shows_every_category_equally_often(sizes, batch, seed):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    batches = BalancedBatches(labels, batch, seed)
    drawn = batches._draw(0)
    counts = np.bincount(labels[drawn], minlength=len(sizes))
    assert (counts == -(-len(labels) // len(sizes))).all()


def test_of_equal_categories_a_pass_shows_every_picture_once():
    labels = np.repeat(np.arange(4), 10)
    batches = BalancedBatches(labels, 8, seed=0)
    rows = np.concatenate([batches[step] for step in range(5)])
    assert sorted(rows) == list(range(40))
    assert not np.array_equal(rows, np.concatenate([batches[step] for step in range(5, 10)]))


def test_a_batch_depends_on_its_step_alone():
    labels = np.repeat(np.arange(4), 10)
    one, other = BalancedBatches(labels, 8, seed=0), BalancedBatches(labels, 8, seed=0)
    forwards = [one[step] for step in range(12)]
    backwards = [other[step] for step in reversed(range(12))][::-1]
    assert all(np.array_equal(a, b) for a, b in zip(forwards, backwards, strict=True))


def test_the_authors_rates_change_at_their_epochs():
    schedule = Steps(kind="steps", rates=((20, 0.1), (40, 0.006), (50, 0.0012), (60, 0.00024)))
    epochs = [0, 19.9, 20.1, 39.9, 40.1, 50.1, 59.9, 60]
    assert [schedule.rate(epoch / 60) for epoch in epochs] == [
        0.1, 0.1, 0.006, 0.006, 0.0012, 0.00024, 0.00024, 0.00024,
    ]  # fmt: skip


@given(st.floats(0, 1))
def test_one_cycle_stays_between_nothing_and_its_peak(share):
    assert 0 <= OneCycle(kind="one-cycle", peak=0.3).rate(share) <= 0.3


def test_the_paper_preset_is_the_authors_recipe():
    config = make_config(read_preset("paper"), {"data": "glyphs"})
    assert config.stage1.steps * config.stage1.batch == 15_360_000
    assert (config.stage1.momentum, config.stage1.weight_decay, config.stage1.pad) == (0.9, 5e-4, 8)
    rates = ((20, 0.1), (40, 0.006), (50, 0.0012), (60, 0.00024))
    assert config.stage1.schedule == config.stage2.schedule == Steps(kind="steps", rates=rates)
    assert (config.stage2.episodes, config.stage2.ways, config.stage2.queries * 5) == (8, 5, 15)
    assert (config.stage2.base_queries, config.select) == (15, "novel")


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_valid(name):
    assert make_config(read_preset(name), {"data": "glyphs"}).preset == name


def test_options_win_over_a_preset_and_set_wins_over_options():
    preset = read_preset("paper")
    assert make_config(preset, {"data": "glyphs", "extractor": "c32f"}).extractor == "c32f"
    config = make_config(preset, {"data": "glyphs", "extractor": "c32f"}, {"extractor": "c64f"})
    assert config.extractor == "c64f"
    assert read_preset("paper") == preset


def test_differences_name_settings_by_their_path():
    old = make_config({}, {"data": "glyphs"})
    new = make_config({}, {"data": "glyphs"}, {"stage2.views": "3"})
    assert differences(old, new) == ["stage2.views: 8 → 3"]
    assert differences(old, old) == []


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("stage1.pases=3", "there is no setting 'stage1.pases'; did you mean 'stage1.passes'?"),
        ("shiftd=3", "there is no setting 'shiftd'; did you mean 'shifted'?"),
        ("stage1.small.sise=3", "there is no setting 'stage1.small.sise'; did you mean 'stage1.small.size'?"),
        ("learn_base=true", "there is no setting 'learn_base'; did you mean 'stage2.learn_base'?"),
        ("xyzzy=3", "there is no setting 'xyzzy'"),
        ("shifted=true", "--set shifted=true: this setting is not switched on or off; give it a number"),
        ("stage1.pad=false", "--set stage1.pad=false: this setting is not switched on or off; give it a"),
    ],
)
def test_a_setting_that_does_not_exist_or_is_no_switch_is_named(setting, words):
    key, value = setting.split("=")
    with pytest.raises(ConfigError, match=re.escape(words)):
        make_config({}, {"data": "glyphs"}, {key: value})


def test_switches_are_switched():
    assert make_config({}, {"data": "glyphs"}, {"mirrored": "true", "stage2.learn_base": "false"}).mirrored


@pytest.mark.parametrize(
    ("data", "extractor", "name"),
    [
        ("mini-imagenet:x", "", "mini-imagenet-c64f"),
        ("mini-imagenet:x", "c32f", "mini-imagenet-c32f"),
        ("mini-imagenet:x", "resnet", "mini-imagenet-resnet"),
        ("mini-imagenet:x", "resnet10", "mini-imagenet-c64f"),
        ("cifar-fs:x", "c32f", "cifar-fs-c64f-quick"),
        ("photos", "c32f", None),
    ],
)
def test_the_preset_suits_data_and_extractor(data, extractor, name):
    assert default_preset(data, extractor) == name


def test_every_step_has_its_own_seed():
    seeds = {
        step_seed(seed, stage, step) % 2**32 for seed in range(3) for stage in (1, 2) for step in range(200)
    }
    assert len(seeds) == 3 * 2 * 200


@pytest.mark.parametrize("stage", ["stage1", "stage2"])
def test_setting_one_part_of_a_schedule_leaves_the_others_alone(stage):
    default = getattr(make_config({}, {"data": "glyphs"}), stage).schedule
    changed = getattr(
        make_config({}, {"data": "glyphs"}, {f"{stage}.schedule.warm_up": "0.4"}), stage
    ).schedule
    assert changed == default.model_copy(update={"warm_up": 0.4})
