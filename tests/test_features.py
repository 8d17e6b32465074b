import io
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from recollect import features as features_module
from recollect.data.augment import Augmentation
from recollect.data.imageset import batches
from recollect.data.tasks import TaskShape, task_sampler
from recollect.errors import Diverged
from recollect.features import augmented_views, cached_features, extract, mapped_features
from recollect.model.spec import Preprocessing
from recollect.system.disk import cache_folder


@pytest.fixture
def images(make_images):
    return make_images([4, 3, 5])


@pytest.fixture
def seen(monkeypatch):
    """Return a list of the numbers of pictures that any model embeds from now on."""
    counts = []
    embed = features_module.Model.embed

    def counting(model, pixels, *extractor):
        counts.append(len(pixels))
        return embed(model, pixels, *extractor)

    monkeypatch.setattr(features_module.Model, "embed", counting)
    return counts


def the_cache_file():
    (path,) = (cache_folder() / "features").iterdir()
    return path


def test_features_are_the_extractors_in_evaluation_mode(tiny_model, images):
    found = extract(tiny_model, images)
    with torch.no_grad():
        for row in range(len(images)):
            expected = tiny_model.embed(torch.from_numpy(images.take(np.array([row]))))
            torch.testing.assert_close(found.features[row : row + 1], expected, rtol=1e-4, atol=1e-5)
    assert found.features.dtype == torch.float32
    assert found.labels.tolist() == images.labels.tolist()
    assert found.categories == images.categories


def test_a_batch_of_larger_pictures_is_smaller(images):
    many = replace(images, rows=np.zeros(1000, np.int64), labels=np.zeros(1000, np.int64))

    def longest(size):
        larger = replace(many, pixels=np.zeros((1, size, size, 3), np.uint8))
        return max(map(len, features_module._batches(larger)))

    assert [longest(size) for size in (32, 84, 1024)] == [256, 37, 8]


def test_batches_do_not_change_features(tiny_model, images, monkeypatch):
    whole = extract(tiny_model, images).features
    monkeypatch.setattr(features_module, "_batches", lambda images: batches(len(images), 5))
    torch.testing.assert_close(extract(tiny_model, images).features, whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_extracting_leaves_the_model_as_it_was(tiny_model, images, training):
    tiny_model.train(training)
    before = {name: value.clone() for name, value in tiny_model.state_dict().items()}
    extract(tiny_model, images)
    assert all(module.training == training for module in tiny_model.modules())
    assert all(torch.equal(before[name], value) for name, value in tiny_model.state_dict().items())


def test_extracting_leaves_a_frozen_extractor_frozen(make_model, images):
    model = make_model(extractor="resnet")
    model.train()
    model.extractor.freeze()
    modes = [module.training for module in model.modules()]
    extract(model, images)
    assert [module.training for module in model.modules()] == modes


def test_extracted_features_can_take_part_in_learning(tiny_model, images):
    found = extract(tiny_model, images).features
    tiny_model.classifier(found).sum().backward()
    assert tiny_model.classifier.weight.grad is not None


def test_the_second_call_finds_the_features_on_disk(tiny_model, images, seen):
    first = cached_features(tiny_model, images)
    assert sum(seen) == len(images)
    second = cached_features(tiny_model, images)
    assert sum(seen) == len(images)
    assert torch.equal(first.features, second.features)
    assert torch.equal(first.labels, second.labels)
    assert first.categories == second.categories


def test_generator_and_classifier_do_not_matter_to_features(tiny_model, images, seen):
    cached_features(tiny_model, images)
    tiny_model.replace_generator("mean")
    with torch.no_grad():
        tiny_model.classifier.weight.add_(1)
    cached_features(tiny_model, images)
    assert sum(seen) == len(images)


def test_other_weights_are_other_features(tiny_model, images, seen):
    first = cached_features(tiny_model, images)
    with torch.no_grad():
        next(tiny_model.extractor.parameters())[0, 0, 1, 1] += 0.5
    second = cached_features(tiny_model, images)
    assert sum(seen) == 2 * len(images)
    assert not torch.equal(first.features, second.features)


def test_other_batch_norm_statistics_are_other_features(tiny_model, images, seen):
    first = cached_features(tiny_model, images)
    next(m for m in tiny_model.modules() if isinstance(m, torch.nn.BatchNorm2d)).running_mean[0] += 0.5
    assert not torch.equal(cached_features(tiny_model, images).features, first.features)
    assert sum(seen) == 2 * len(images)


def test_other_preprocessing_is_other_features(make_model, images, seen):
    first = cached_features(make_model(), images)
    other = make_model(preprocessing=Preprocessing(size=16, mean=(1.0, 2.0, 3.0), std=(70.0, 68.0, 72.0)))
    second = cached_features(other, images)
    assert sum(seen) == 2 * len(images)
    assert not torch.equal(first.features, second.features)


def test_the_last_relu_is_other_features(make_model, images):
    first, second = (cached_features(make_model(last_relu=relu), images).features for relu in (False, True))
    assert torch.equal(first.clamp(min=0), second)
    assert not torch.equal(first, second)


def test_other_pictures_are_other_features(tiny_model, make_images, seen):
    first = cached_features(tiny_model, make_images([4, 3, 5], seed=0))
    second = cached_features(tiny_model, make_images([4, 3, 5], seed=1))
    assert sum(seen) == 24
    assert not torch.equal(first.features, second.features)


def test_another_choice_or_order_of_the_same_pictures_is_other_features(tiny_model, images):
    whole = cached_features(tiny_model, images).features
    rows = np.array([7, 2, 9])
    some = replace(images, rows=images.rows[rows], labels=images.labels[rows])
    torch.testing.assert_close(cached_features(tiny_model, some).features, whole[rows], rtol=1e-4, atol=1e-5)
    rows = np.arange(len(images))[::-1].copy()
    turned = replace(images, rows=images.rows[rows], labels=images.labels[rows])
    torch.testing.assert_close(
        cached_features(tiny_model, turned).features, whole.flip(0), rtol=1e-4, atol=1e-5
    )


def of_numpy(save, array):
    buffer = io.BytesIO()
    save(buffer, array)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "damage",
    [
        lambda _whole: b"",
        lambda whole: whole[:7],
        lambda whole: whole[:60],
        lambda whole: whole[:-40],
        lambda whole: whole.replace(b"'", b" ", 1),
        lambda whole: whole.replace(b"}", b" ", 1),
        lambda whole: b"\xff" * len(whole),
        lambda whole: b"PK\x03\x04" + whole[4:],
        lambda _whole: of_numpy(np.save, np.zeros((2, 32), np.float32)),
        lambda _whole: of_numpy(np.save, np.zeros((12, 32), np.float64)),
        lambda _whole: of_numpy(np.save, np.zeros((12, 32), np.complex256)),
        lambda _whole: of_numpy(np.savez, np.zeros((12, 32), np.float32)),
        lambda _whole: of_numpy(np.save, np.array([{"an": "object"}], dtype=object)),
    ],
    ids=[
        "empty", "magic-only", "cut-in-header", "cut-in-data", "unquoted-header", "open-header",
        "garbage", "zip-like", "other-shape",
        "double", "no-tensor", "archive", "pickle",
    ],
)  # fmt: skip
def test_a_damaged_cache_file_is_made_again(tiny_model, images, seen, damage):
    first = cached_features(tiny_model, images)
    path = the_cache_file()
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    again = cached_features(tiny_model, images)
    assert sum(seen) == 2 * len(images)
    assert torch.equal(first.features, again.features)
    assert path.read_bytes() == whole
    cached_features(tiny_model, images)
    assert sum(seen) == 2 * len(images)


def test_an_interrupted_extraction_leaves_nothing_behind(tiny_model, images, monkeypatch):
    def fail(_model, _pixels, *_):
        raise KeyboardInterrupt

    monkeypatch.setattr(features_module.Model, "embed", fail)
    with pytest.raises(KeyboardInterrupt):
        cached_features(tiny_model, images)
    assert not list(cache_folder().rglob("*.npy"))


def views_of(model, images, *, views=3, seed=0, pad=2, flip=True):
    return augmented_views(model, images, Augmentation(pad, flip), views, seed)


def test_views_without_augmentation_are_the_features(tiny_model, images):
    views = views_of(tiny_model, images, views=2, pad=0, flip=False)
    expected = extract(tiny_model, images).features
    assert views.dtype == torch.float16
    assert views.shape == (2, len(images), tiny_model.width)
    for view in views:
        torch.testing.assert_close(view.float(), expected, rtol=2e-3, atol=2e-3)


def test_views_differ_from_each_other_and_by_seed_alone(tiny_model, images):
    views = views_of(tiny_model, images)
    torch.manual_seed(99)
    assert torch.equal(views_of(tiny_model, images), views)
    assert not torch.equal(views[0], views[1])
    assert not torch.equal(views[1], views[2])
    assert not torch.equal(views_of(tiny_model, images, seed=1), views)


def test_every_batch_of_a_view_is_augmented_its_own_way(tiny_model, make_images, monkeypatch):
    one = make_images([1])
    same = replace(one, rows=np.zeros(6, np.int64), labels=np.zeros(6, np.int64))
    monkeypatch.setattr(features_module, "_batches", lambda images: batches(len(images), 3))
    views = augmented_views(tiny_model, same, Augmentation(4, flip=True), 4, 0).view(8, -1)
    assert len({tuple(row) for row in views.tolist()}) == 8


def test_dropout_draws_a_mask_for_every_view(make_model, images):
    model = make_model(extractor="resnet")
    views = views_of(model, images, views=2, pad=0, flip=False)
    dropped = views == 0
    assert dropped.float().mean().item() == pytest.approx(0.5, abs=0.05)
    assert not torch.equal(dropped[0], dropped[1])
    assert torch.equal(views_of(model, images, views=2, pad=0, flip=False), views)


def test_making_views_freezes_the_extractor(tiny_model, images):
    tiny_model.train()
    before = {name: value.clone() for name, value in tiny_model.extractor.state_dict().items()}
    views_of(tiny_model, images)
    assert not any(parameter.requires_grad for parameter in tiny_model.extractor.parameters())
    assert all(torch.equal(before[name], value) for name, value in tiny_model.extractor.state_dict().items())


def test_tasks_over_features_are_those_over_their_pictures(tiny_model, make_images):
    base, novel = make_images([8, 9, 7]), make_images([6, 5, 6], seed=1, names=["x", "y", "z"])
    shape = TaskShape(2, 1, 3)
    over_pictures = task_sampler(base, novel).draw(shape, 5, 0)
    over_features = task_sampler(extract(tiny_model, base), extract(tiny_model, novel)).draw(shape, 5, 0)
    assert torch.equal(over_pictures.support, over_features.support)
    assert torch.equal(over_pictures.base_queries, over_features.base_queries)
    labels = torch.from_numpy(novel.labels)
    assert torch.equal(labels[over_pictures.support], over_pictures.ways.unsqueeze(2).expand(-1, -1, 1))
    assert task_sampler(base, None).fake


def test_mapped_features_are_those_of_the_plain_path(tiny_model, images, seen, monkeypatch):
    monkeypatch.setattr(features_module, "_CHUNK", 3)
    plain = extract(tiny_model, images)
    mapped = mapped_features(tiny_model, images)
    assert mapped.features.dtype == torch.float16
    assert torch.equal(mapped.features, plain.features.half())
    assert torch.equal(mapped.labels, plain.labels)
    before = len(seen)
    again = mapped_features(tiny_model, images)
    assert len(seen) == before, "the second call finds them on disk"
    again.features.zero_()  # private to the process
    assert torch.equal(mapped_features(tiny_model, images).features, plain.features.half())


def test_an_interrupted_file_of_features_goes_on_where_it_was(tiny_model, images, monkeypatch):
    monkeypatch.setattr(features_module, "_CHUNK", 3)
    whole = mapped_features(tiny_model, images).features.clone()
    shutil.rmtree(cache_folder() / "features")
    done = []

    def stop_in_the_third(count):
        done.append(count)
        if sum(done) > 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mapped_features(tiny_model, images, stop_in_the_third)
    (growing,) = (cache_folder() / "features").rglob("features.growing")
    with growing.open("ab") as file:
        file.write(b"half a row")
    resumed = []
    found = mapped_features(tiny_model, images, resumed.append)
    assert torch.equal(found.features, whole)
    assert resumed[0] == 3, "two chunks were there, and the last one is not trusted"
    assert sum(resumed) == len(images)


def test_features_that_half_precision_cannot_hold_are_refused(tiny_model, images):
    with torch.no_grad():
        for weight in tiny_model.extractor.parameters():
            weight.mul_(1e4)
    with pytest.raises(Diverged, match="not finite, or above 65504"):
        mapped_features(tiny_model, images)
