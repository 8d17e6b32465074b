import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image
from sklearn.metrics import silhouette_score

from recollect.data.imageset import CACHE_GB, ImageSet
from recollect.errors import DataError
from recollect.evaluation import tsne
from recollect.evaluation.tsne import draw_projection, project, sample, tsne_figure, tsne_report
from recollect.features import FeatureSet, extract
from recollect.model.classifier import Classifier
from recollect.modelfile import TrainedOn, save_model


def features_of(counts, width=6, seed=0):
    """Features around a centre of their category; feature 0 numbers the pictures."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    centres = 3 * torch.randn(len(counts), width, generator=generator)
    features = centres[labels] + torch.randn(len(labels), width, generator=generator)
    features[:, 0] = torch.arange(len(labels))
    return FeatureSet(features, labels, tuple(f"category {index}" for index in range(len(counts))))


@pytest.fixture(scope="module", params=["cosine", "dot"])
def projected(request):
    features = features_of([12, 9, 15])
    return features, project(features, Classifier(2, 6, request.param), seed=3)


def test_the_silhouette_is_that_of_the_features_as_the_classifier_sees_them(projected):
    features, projection = projected
    values, labels = features.features.numpy(), features.labels.numpy()
    if projection.kind == "cosine":
        values = values / np.linalg.norm(values, axis=1, keepdims=True)
    expected = silhouette_score(values, labels, metric="euclidean")
    assert projection.silhouette == pytest.approx(expected, abs=1e-5)


def test_every_point_is_drawn_in_the_colour_and_shape_of_its_category(projected):
    _, projection = projected
    figure = tsne_figure(projection)
    (axes,) = figure.axes
    clouds = axes.collections
    assert len(clouds) == 3
    for label, cloud in enumerate(clouds):
        assert np.array_equal(cloud.get_offsets(), projection.places[projection.labels == label])
    assert len({tuple(cloud.get_facecolor()[0]) for cloud in clouds}) == 3
    assert [text.get_text() for text in axes.get_legend().get_texts()] == list(projection.categories)
    assert f"silhouette {projection.silhouette:.3f}" in axes.get_xlabel()
    assert ("L2-normalised" if projection.kind == "cosine" else "raw") in axes.get_xlabel()


def test_twenty_categories_have_twenty_colours(projected):
    many = tsne.Projection(
        np.zeros((20, 2), np.float32),
        np.arange(20),
        tuple(f"_${index}$" for index in range(20)),
        "dot",
        np.full(20, 0.1, np.float32),
    )
    figure = Figure()
    axes = figure.add_subplot()
    draw_projection(axes, many)
    assert len({tuple(cloud.get_facecolor()[0]) for cloud in axes.collections}) == 20
    # A name is neither mathematics nor, for its underscore, a thing to leave out.
    assert len(axes.get_legend_handles_labels()[1]) == 20
    figure.canvas.draw()


def test_a_sample_takes_some_pictures_of_some_categories_by_seed():
    features = features_of([8] * 25)
    first, same, other = (sample(features, each=5, most=20, seed=seed) for seed in (0, 0, 1))
    assert len(first.categories) == 20
    assert first.labels.bincount().tolist() == [5] * 20
    for row, label in zip(first.features, first.labels, strict=True):
        place = int(row[0])
        assert features.categories[features.labels[place]] == first.categories[label]
    assert torch.equal(first.features, same.features)
    assert first.categories == same.categories
    assert not torch.equal(first.features, other.features)


def test_a_sample_of_little_is_all_of_it():
    features = features_of([3, 5])
    everything = sample(features)
    assert torch.equal(everything.features, features.features)
    assert torch.equal(everything.labels, features.labels)
    assert everything.categories == features.categories


@pytest.mark.parametrize("counts", [[5], [1, 1]])
def test_too_few_pictures_are_refused(counts):
    with pytest.raises(DataError, match="a t-SNE needs at least two categories with two pictures each"):
        project(features_of(counts), Classifier(2, 6, "dot"))


def test_the_fewest_pictures_that_can_be_drawn():
    assert project(features_of([2, 1]), Classifier(2, 6, "dot")).places.shape == (3, 2)


@pytest.mark.parametrize("reserve", [True, False])
def test_a_report_draws_unseen_categories_and_says_where_none_are_reserved(
    tmp_path, make_split, tiny_model, monkeypatch, caplog, reserve
):
    split = make_split(reserve=reserve)
    save_model(tmp_path / "m.safetensors", tiny_model, trained_on=TrainedOn(key=split.base_train.key))
    monkeypatch.setattr("recollect.evaluation.evaluate.load_data", lambda *_, **__: split)
    out = tmp_path / "made" / "tsne.png"
    report = tsne_report(tmp_path / "m.safetensors", "zoo", out, part="val", seed=1)
    shown: ImageSet = split.val if reserve else split.base_val
    features = sample(extract(tiny_model, shown), seed=1)
    expected = silhouette_score(
        torch.nn.functional.normalize(features.features).numpy(), features.labels.numpy()
    )
    assert report == {
        "model": str(tmp_path / "m.safetensors"),
        "data": "zoo",
        "categories": "val" if reserve else "base",
        "shown": list(shown.categories),
        "pictures": len(shown),
        "seed": 1,
        "silhouette": pytest.approx(expected, abs=1e-4),
        **({} if reserve else {"warnings": [caplog.messages[0]]}),
        "picture": str(out),
    }
    assert ("the model was trained on all categories" in caplog.text) is not reserve
    with Image.open(out) as image:
        assert image.format == "PNG"
        assert image.width > 800
        assert image.height > 500


def test_the_limit_of_kept_pictures_reaches_the_loader(run, tmp_path, make_split, tiny_model, monkeypatch):
    asked = []

    def load(*_, cache_gb, **__):
        asked.append(cache_gb)
        return make_split()

    save_model(tmp_path / "m.safetensors", tiny_model)
    monkeypatch.setattr("recollect.evaluation.evaluate.load_data", load)
    words = ("plot", "tsne", tmp_path / "m.safetensors", "zoo", "--out", tmp_path / "tsne.png")
    assert [run(*words)[0], run(*words, "--cache-gb", "0.5")[0]] == [0, 0]
    assert asked == [CACHE_GB, 0.5]


def test_of_many_categories_twenty_are_drawn_and_that_is_said(
    tmp_path, make_split, tiny_model, monkeypatch, caplog
):
    split = make_split(novel=23, pictures=2)
    save_model(tmp_path / "m.safetensors", tiny_model)
    monkeypatch.setattr("recollect.evaluation.evaluate.load_data", lambda *_, **__: split)
    report = tsne_report(tmp_path / "m.safetensors", "zoo", tmp_path / "tsne.png", seed=5)
    assert len(report["shown"]) == len(set(report["shown"])) == 20
    assert set(report["shown"]) < set(split.test.categories)
    assert caplog.messages == ["20 of 23 categories are shown, drawn by --seed 5"] == report["warnings"]
