"""Models saved with what they were taught."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from safetensors.torch import save_file as save_torch

from pictures import disk_room, pixels_of, tree
from recollect import Recognizer
from recollect.backends.torch import TorchBackend
from recollect.errors import ModelError, StorageError
from recollect.modelfile import FORMAT, fingerprint, load_model, read_header, save_model, summarise
from recollect.store import open_store

PROBES = [pixels_of(1000 + number) for number in range(3)]


def rows(recognizer):
    return [
        (
            taught.id,
            taught.name,
            [(one.id, one.added, one.feature.tolist(), one.term.tolist(), one.thumbnail) for one in kept],
        )
        for taught, kept in recognizer._known.store.content().categories
    ]


def same_scores(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one.scores(PROBES), other.scores(PROBES), strict=True))


def taught(model, store=None):
    """Return a recogniser with two categories, with and without thumbnails, after a third was forgotten."""
    recognizer = Recognizer(TorchBackend(model), store)
    recognizer.teach("okapi", [pixels_of(1), pixels_of(2)], thumbnails=True)
    recognizer.teach("tapir", pixels_of(3))
    recognizer.teach("okapi", pixels_of(4))
    recognizer.teach("quoll", pixels_of(5))
    recognizer.forget("quoll")
    return recognizer


@pytest.fixture(scope="module")
def saved(tmp_path_factory, make_model):
    path = tmp_path_factory.mktemp("saved") / "zoo.safetensors"
    taught(make_model()).save(path)
    return path


@pytest.mark.parametrize("source", ["memory", "sqlite"])
@pytest.mark.parametrize("target", ["memory", "sqlite"])
def test_a_saved_recogniser_comes_back_whole(tmp_path, tiny_model, source, target):
    recognizer = taught(tiny_model, None if source == "memory" else tmp_path / "a.sqlite")
    recognizer.save(tmp_path / "zoo.safetensors")
    place = None if target == "memory" else tmp_path / "b.sqlite"
    again = Recognizer.load(tmp_path / "zoo.safetensors", place)
    assert again.categories() == recognizer.categories()
    assert rows(again) == rows(recognizer)
    assert [one.thumbnail is None for one in again.examples("okapi")] == [False, False, True]
    assert same_scores(again, recognizer)
    for one in (recognizer, again):  # the id of the forgotten one is not given again
        assert one.teach("saola", pixels_of(6)).id == 7 + 3
        assert one.examples("saola")[0].id == 6
    assert same_scores(again, recognizer)
    again.save(tmp_path / "again.safetensors")
    recognizer.forget("saola")
    assert rows(Recognizer.load(tmp_path / "again.safetensors"))[:2] == rows(recognizer)


def test_ids_go_on_where_everything_was_forgotten(tmp_path, tiny_model):
    recognizer = taught(tiny_model)
    for name in ("okapi", "tapir"):
        recognizer.forget(name)
    recognizer.save(tmp_path / "zoo.safetensors")
    assert Recognizer.load(tmp_path / "zoo.safetensors").teach("saola", pixels_of(6)).id == 7 + 3


def test_a_store_that_was_used_keeps_its_own_content(saved, tmp_path, tiny_model):
    place = tmp_path / "taught.sqlite"
    first = Recognizer.load(saved, place)
    first.forget("okapi")
    first.teach("saola", pixels_of(6))
    again = Recognizer.load(saved, place)
    assert [category.name for category in again.categories()[7:]] == ["tapir", "saola"]
    assert rows(again) == rows(first)


def test_a_saved_file_is_the_same_model(saved, tmp_path, tiny_model):
    save_model(tmp_path / "bare.safetensors", tiny_model)
    assert fingerprint(load_model(saved)) == fingerprint(tiny_model)
    assert summarise(saved).parameters == summarise(tmp_path / "bare.safetensors").parameters
    assert Recognizer.load(saved)._backend.fingerprint == TorchBackend(tiny_model).fingerprint


def test_saving_over_the_file_that_was_loaded(saved, tmp_path):
    path = tmp_path / "zoo.safetensors"
    path.write_bytes(saved.read_bytes())
    recognizer = Recognizer.load(path)
    recognizer.teach("saola", pixels_of(6))
    recognizer.save(path)
    assert rows(Recognizer.load(path)) == rows(recognizer)


def test_nothing_but_a_model_is_saved_over(saved, tmp_path):
    recognizer = Recognizer.load(saved)
    for name, content in {"photo.jpg": b"not a model", "taught.sqlite": b""}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ModelError, match=f"{name} exists and is not a model: choose another name"):
            recognizer.save(tmp_path / name)
        assert (tmp_path / name).read_bytes() == content
    recognizer.save(tmp_path / "new" / "zoo.safetensors")
    assert rows(Recognizer.load(tmp_path / "new" / "zoo.safetensors")) == rows(recognizer)


def test_saving_on_a_full_disk_keeps_the_old_file(saved, tmp_path):
    path = tmp_path / "zoo.safetensors"
    path.write_bytes(saved.read_bytes())
    recognizer = Recognizer.load(path)
    recognizer.teach("saola", pixels_of(6))
    with disk_room(10_000), pytest.raises(StorageError, match="no room on the disk"):
        recognizer.save(path)
    assert tree(tmp_path) == {"zoo.safetensors": saved.read_bytes()}


def test_saving_while_another_process_forgets_writes_what_was_there_at_one_moment(tmp_path, tiny_model):
    recognizer = taught(tiny_model, tmp_path / "a.sqlite")
    recognizer._known.store._connection.execute("PRAGMA busy_timeout = 100")
    other = open_store(tmp_path / "a.sqlite", recognizer._known.owner)
    with other._transaction():  # a change that is not committed yet
        other.remove(1)
        recognizer.save(tmp_path / "zoo.safetensors")
    assert [name for _, name, _ in rows(Recognizer.load(tmp_path / "zoo.safetensors"))] == ["okapi", "tapir"]
    assert [name for _, name, _ in rows(recognizer)] == ["tapir"]


@settings(max_examples=25)
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_file_cut_short_anywhere_is_refused(saved, tmp_path_factory, share):
    path = tmp_path_factory.mktemp("cut") / "zoo.safetensors"
    content = saved.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    store = path.with_name("taught.sqlite")
    with pytest.raises(ModelError, match=r"zoo\.safetensors is not a model file, or it is damaged"):
        Recognizer.load(path, store)
    assert not store.exists()


def changed(saved, path, change):
    """Write a saved file with its header's words and its tensors changed."""
    words = json.loads(read_header(saved).model_dump_json())
    tensors = load_file(saved)
    change(words, tensors)
    save_file(tensors, path, metadata={"recollect": json.dumps(words)})
    return path


def without(name):
    return lambda _, tensors: tensors.pop(name)


def replaced(name, make):
    return lambda _, tensors: tensors.update({name: make(tensors[name])})


def spoilt(values):
    values = values.copy()
    values.flat[5] = np.nan
    return values


def said(make):
    return lambda words, _: make(words)


def of(words, *path):
    for step in path:
        words = words[step]
    return words


TENSORS = {
    "features absent": (without("taught.features"), "'features' does not fit"),
    "terms absent": (without("taught.terms"), "'terms' does not fit"),
    "a row too few": (replaced("taught.terms", lambda values: values[1:]), "'terms' does not fit"),
    "too narrow": (
        replaced("taught.features", lambda values: values[:, 1:].copy()),
        "'features' does not fit",
    ),
    "other numbers": (replaced("taught.terms", lambda values: values.astype(np.float64)), "'terms' does"),
    "no numbers": (replaced("taught.terms", spoilt), "'terms' does not fit"),
    "thumbnails too short": (replaced("taught.thumbnails", lambda values: values[:-1]), "'thumbnails' does"),
}
WORDS = {
    "one id twice": (said(lambda words: of(words, "taught", 1).update(id=1)), "ids contradict"),
    "one example twice": (
        said(lambda words: of(words, "taught", 1, "examples", 0).update(id=1)),
        "ids contradict",
    ),
    "an id to come": (said(lambda words: of(words, "taught", 1).update(id=9)), "ids contradict"),
    "no last ids": (said(lambda words: words.update(last_ids=None)), "ids contradict"),
    "falling ids": (said(lambda words: words["taught"].reverse()), "ids contradict"),
    "one name twice": (said(lambda words: of(words, "taught", 1).update(name="OKAPI")), "the same name"),
    "a base name": (said(lambda words: of(words, "taught", 1).update(name="Base-3")), "the same name"),
    "an empty name": (said(lambda words: of(words, "taught", 1).update(name=" ")), "not empty"),
    "a long name": (said(lambda words: of(words, "taught", 1).update(name="x" * 300)), "300 characters"),
    "an untidy name": (
        said(lambda words: of(words, "taught", 1).update(name=" yak")),
        "' yak' is not in the",
    ),
}


@pytest.mark.parametrize("case", [*TENSORS, *WORDS])
def test_taught_categories_that_do_not_fit_are_refused(saved, tmp_path, case):
    change, complaint = {**TENSORS, **WORDS}[case]
    path = changed(saved, tmp_path / "zoo.safetensors", change)
    with pytest.raises(
        ModelError, match=r"the taught categories in .*zoo\.safetensors are damaged"
    ) as caught:
        Recognizer.load(path, tmp_path / "taught.sqlite")
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "taught.sqlite").exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda words: of(words, "taught", 0).update(id=0),
        lambda words: of(words, "taught", 0).update(id=2**70),
        lambda words: of(words, "taught", 0).update(examples=[]),
        lambda words: of(words, "taught", 0, "examples", 0).update(thumbnail=-1),
        lambda words: words.update(last_ids=[-1, 3]),
    ],
)
def test_words_that_cannot_be_are_refused_with_the_header(saved, tmp_path, change):
    path = changed(saved, tmp_path / "zoo.safetensors", said(change))
    with pytest.raises(ModelError, match=r"the header of .*zoo\.safetensors is damaged"):
        Recognizer.load(path)


def test_numbers_that_numpy_does_not_know_are_refused(saved, tmp_path):
    path = tmp_path / "zoo.safetensors"
    tensors = {name: torch.from_numpy(values) for name, values in load_file(saved).items()}
    tensors["taught.terms"] = tensors["taught.terms"].bfloat16()
    save_torch(tensors, path, metadata={"recollect": read_header(saved).model_dump_json()})
    with pytest.raises(ModelError, match=r"zoo\.safetensors"):
        Recognizer.load(path)


@pytest.mark.parametrize("number", [FORMAT + 1, 99])
def test_a_file_of_a_newer_version_is_refused(saved, tmp_path, number):
    path = changed(saved, tmp_path / "zoo.safetensors", said(lambda words: words.update(format=number)))
    with pytest.raises(
        ModelError, match=f"has format {number}; this version reads formats up to {FORMAT}: use"
    ):
        Recognizer.load(path)


def test_a_file_of_the_first_format_still_loads(saved, tmp_path):
    def older(words, tensors):
        words["format"] = 1
        for name in ("taught", "last_ids", "calibration"):
            del words[name]
        for name in [name for name in tensors if name.startswith("taught.")]:
            del tensors[name]

    recognizer = Recognizer.load(changed(saved, tmp_path / "old.safetensors", older))
    assert len(recognizer.categories()) == 7
