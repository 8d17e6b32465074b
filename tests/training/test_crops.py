"""What reaches the loss: random crops of training pictures, their labels, and what a teacher says of them."""

import copy
import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_learning import configured, new_folder
from torch.nn import functional as F

from recollect.data.imageset import ImageSet
from recollect.methods.episodic import EpisodesOfPictures
from recollect.methods.prototypical import PrototypicalNetworks
from recollect.model.model import Model
from recollect.modelfile import save_model
from recollect.training import budget, stage1
from recollect.training.config import EpisodicRecipe
from recollect.training.loop import run_stage
from recollect.training.stage1 import BaseClassification
from recollect.training.stage2 import EpisodicTraining, make_views, shared_views
from recollect.training.teacher import Teacher


def noise_pictures(sizes, seed=0, size=16):
    """Pictures of noise: a crop of one tells which it was cut from."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    pixels = rng.integers(1, 256, (len(labels), size, size, 3), dtype=np.uint8)
    names = tuple(f"base-{label}" for label in range(len(sizes)))
    return ImageSet(pixels, np.arange(len(labels)), labels, names, f"noise-{seed}-{sizes}")


@pytest.fixture
def seen(monkeypatch):
    """Return a list of every batch of pixels that goes into an extractor from now on."""
    batches, embed = [], Model.embed

    def spy(model, pixels, extractor=None):
        batches.append(pixels.numpy().copy())
        return embed(model, pixels, extractor)

    monkeypatch.setattr(Model, "embed", spy)
    return batches


def origin_of(picture, originals, pad):
    """Return which original a crop was cut from, where, and whether it was mirrored."""
    padded = np.pad(originals, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    size = picture.shape[0]
    for mirrored, top, left in itertools.product((False, True), range(2 * pad + 1), range(2 * pad + 1)):
        windows = padded[:, top : top + size, left : left + size]
        same = (windows == (picture[:, ::-1] if mirrored else picture)).all(axis=(1, 2, 3))
        if same.any():
            return int(same.argmax()), (top, left), mirrored
    return pytest.fail("this is no crop of a training picture")


def origins(batches, images, pad, *, flips):
    """Return the rows that batches were cut from; check that crops vary, and mirror half of the pictures."""
    rows, places, mirrored = zip(
        *(origin_of(one, images.pixels, pad) for batch in batches for one in batch), strict=True
    )
    assert len(set(places)) > pad
    assert (0.2 < np.mean(mirrored) < 0.8) if flips else not any(mirrored)
    return list(rows)


@pytest.mark.parametrize("flips", [True, False])
def test_stage_1_learns_from_random_crops_of_training_pictures_and_their_labels(
    tiny_split, make_model, seen, flips, monkeypatch
):
    images = noise_pictures([5, 3, 9, 6, 4, 8, 7])
    split = replace(tiny_split, base_train=images, flips=flips)
    stage = BaseClassification(make_model(), split, configured({"pad": 2}))
    targets, cross_entropy = [], F.cross_entropy
    monkeypatch.setattr(F, "cross_entropy", lambda s, t: targets.append(t) or cross_entropy(s, t))
    for step in range(3):
        stage.loss(step)
    rows = origins(seen, images, 2, flips=flips)
    assert torch.cat(targets).tolist() == images.labels[rows].tolist()


def test_stage_1_learns_what_a_teacher_says_of_the_same_augmented_pictures(
    tiny_split, make_model, seen, monkeypatch
):
    model, wise, said = make_model(), make_model(seed=3), []
    wise.spec = wise.spec.model_copy(update={"mirrored": True, "shifted": 2})
    before = copy.deepcopy(wise.state_dict())
    monkeypatch.setattr(
        stage1, "distilled", lambda loss, *scores: said.append([loss, *scores]) or sum(scores).sum()
    )
    split = replace(tiny_split, base_train=noise_pictures([5, 3, 9, 6, 4, 8, 7]))
    stage = BaseClassification(model, split, configured({"pad": 2}), Teacher(wise))
    found, _ = stage.loss(0)
    asked, *again = seen
    assert [batch.tolist() for batch in again] == [asked.tolist()], "each looks once, at the same"
    ((loss, scores, wanted),) = said
    assert found == (scores + wanted).sum()
    rows = torch.tensor(origins([asked], split.base_train, 2, flips=True))
    torch.testing.assert_close(loss, F.cross_entropy(scores, torch.from_numpy(split.base_train.labels)[rows]))
    with torch.no_grad():
        torch.testing.assert_close(wanted, wise.eval().classifier(wise.embed(torch.from_numpy(asked))))
    found.backward()
    assert all(value.grad is None for value in wise.parameters())
    assert all(torch.equal(value, before[name]) for name, value in wise.state_dict().items())


def test_a_teacher_is_asked_once_pictures_are_large(tiny_split, make_model, monkeypatch):
    asked = []
    monkeypatch.setattr(stage1, "distilled", lambda loss, *_: asked.append(step) or loss)
    recipe = {"steps": 4, "small": {"size": 16, "until": 0.5}}
    large = make_model().spec.preprocessing.model_copy(update={"size": 32})
    split = replace(tiny_split, base_train=noise_pictures([4] * 7, size=32))
    model, teacher = (make_model(preprocessing=large, seed=seed) for seed in range(2))
    stage = BaseClassification(model, split, configured(recipe, size=32), Teacher(teacher))
    for step in range(4):
        stage.loss(step)
    assert asked == [2, 3]


def test_the_time_of_a_teacher_is_measured_apart_from_that_of_a_step(
    tiny_split, make_model, tmp_path, monkeypatch
):
    def seconds_each(take, **_):
        asked.clear()
        take(0)
        return 7.0 if asked else 2.0

    asked = []
    save_model(tmp_path / "wise.safetensors", make_model())
    monkeypatch.setattr(Teacher, "scores", lambda *_: asked.append("teacher"))
    monkeypatch.setattr(budget, "seconds_each", seconds_each)
    teacher = {"teacher": str(tmp_path / "wise.safetensors")}
    speed = budget.measure(configured(teacher, generator="mean"), make_model(), tiny_split)
    assert (speed.stage1_step, speed.teacher) == (2.0, 7.0)
    assert speed.picture == 2.0 / 14, "nobody asks it about pictures that are judged"


def test_a_pass_of_stage_1_shows_small_categories_as_often_as_large_ones(tiny_split, make_model, seen):
    images = noise_pictures([5, 3, 9, 6, 4, 8, 7])
    split = replace(tiny_split, base_train=images, flips=False)
    stage = BaseClassification(make_model(), split, configured({"pad": 0, "batch": 21}))
    stage.loss(0)
    stage.loss(1)
    rows = origins(seen, images, 0, flips=False)
    assert np.bincount(images.labels[rows]).tolist() == [6] * 7


def test_views_for_stage_2_are_random_crops_each_its_own(tiny_split, make_model, seen):
    images = noise_pictures([4] * 7)
    split = replace(tiny_split, base_train=images)
    views = make_views(make_model(), split, configured({"pad": 2}, {"views": 3}))
    assert views.shape == (3, 28, 32)
    assert sorted(origins(seen, images, 2, flips=True)) == sorted([*range(28)] * 3)
    assert not any(torch.equal(views[a], views[b]) for a, b in itertools.combinations(range(3), 2))


def test_views_are_computed_once_for_generators_on_one_stage_1(tiny_split, make_model, seen):
    images = noise_pictures([4] * 7)
    split, model = replace(tiny_split, base_train=images), make_model()
    config = configured({"pad": 2}, {"views": 2})
    views = shared_views(model, split, config)
    looked_at = len(seen)
    assert torch.equal(views, make_views(make_model(), split, config))
    seen.clear()
    model = make_model()
    assert shared_views(model, split, config) is views
    assert not seen
    assert not any(parameter.requires_grad for parameter in model.extractor.parameters())
    with torch.no_grad():
        next(model.extractor.parameters()).add_(0.1)
    assert not torch.equal(shared_views(model, split, config), views)
    assert len(seen) == looked_at
    assert not torch.equal(
        shared_views(model, split, config.model_copy(update={"seed": 1})), shared_views(model, split, config)
    )


def test_neither_views_nor_the_judgement_of_stage_1_depend_on_where_a_finished_model_looks(
    tiny_split, make_model
):
    config = configured()
    plain, shifted = make_model(generator="mean"), make_model(generator="mean", shifted=3)
    assert torch.equal(make_views(shifted, tiny_split, config), make_views(plain, tiny_split, config))
    views = shared_views(plain, tiny_split, config)
    assert shared_views(shifted, tiny_split, config) is views
    classified = [BaseClassification(model, tiny_split, config).judge() for model in (plain, shifted)]
    assert classified[0] == classified[1]
    recipe = EpisodicRecipe(ways=3, queries=2, episodes=2)
    config = configured(shots=1, episodic=recipe, select_tasks=50)
    method = PrototypicalNetworks()
    episodic = [EpisodesOfPictures(method, model, tiny_split, config).judge() for model in (plain, shifted)]
    assert episodic[0] == episodic[1]


def test_episodes_of_pictures_are_random_crops_too(tiny_split, make_model, seen):
    images = noise_pictures([9] * 7)
    split = replace(tiny_split, base_train=images)
    recipe = EpisodicRecipe(ways=3, queries=2, episodes=2)
    config = configured({"pad": 2}, shots=1, episodic=recipe)
    stage = EpisodesOfPictures(PrototypicalNetworks(), make_model(), split, config)
    stage.loss(0)
    labels = images.labels[origins(seen, images, 2, flips=True)].reshape(2, -1)
    for support, queries in zip(labels[:, :3], labels[:, 3:], strict=True):
        assert len(set(support)) == 3
        assert queries.tolist() == np.repeat(support, 2).tolist()


def test_random_numbers_of_a_step_follow_from_seed_and_step_alone(
    tiny_split, make_model, seen, tmp_path, monkeypatch
):
    monkeypatch.setattr(BaseClassification, "judge", lambda _: {"ausuc": 0.0})

    def crops(seed, noise):
        torch.manual_seed(noise)  # whatever else drew numbers before
        seen.clear()
        run_stage(BaseClassification(make_model(), tiny_split, configured(seed=seed)), new_folder(tmp_path))
        return np.stack(seen)

    first = crops(0, noise=1)
    assert np.array_equal(first, crops(0, noise=2))
    assert all((one != other).any() for one, other in zip(first, crops(1, noise=1), strict=True))
    batches = [
        BaseClassification(make_model(), tiny_split, configured(seed=seed)).batches[0] for seed in (0, 1)
    ]
    assert batches[0].tolist() != batches[1].tolist()
    one_place = crops_at(first, tiny_split)
    assert len(set(one_place)) == len(one_place), "every step draws its own"


def crops_at(batches, split):
    """Return, for each batch, where its crops were cut."""
    pixels = np.asarray(split.base_train.pixels)
    return [tuple(origin_of(one, pixels, 1)[1:] for one in batch) for batch in batches]


def test_stage_2_drops_features_in_steps_and_none_when_judging(tiny_split, make_model, monkeypatch):
    config = configured(two={"dropout": 0.5})
    model = make_model()
    stage = EpisodicTraining(model, tiny_split, config, make_views(model, tiny_split, config))
    losses = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        losses.append(stage.loss(0)[0].item())
    assert losses[0] != losses[1]
    monkeypatch.setattr("recollect.training.stage2.drop_out", lambda *_: pytest.fail("dropped"))
    assert stage.judge() == stage.judge()
