import copy
import json

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from pictures import disk_room, memory_room, tree
from recollect.errors import ModelError, StorageError
from recollect.model.model import Model
from recollect.model.spec import bias_at
from recollect.modelfile import (
    FILE_NAME,
    FORMAT,
    find_model,
    fingerprint,
    load_model,
    read_header,
    save_model,
)


@pytest.fixture
def saved(tmp_path, tiny_model):
    path = tmp_path / FILE_NAME
    save_model(path, tiny_model, {"finished": True})
    return path


def rewrite(path, change_words=lambda words: None, change_weights=lambda weights: None):
    """Alter a model file's header and weights as its writer never would."""
    with safe_open(path, framework="np") as file:
        words = json.loads(file.metadata()["recollect"])
    weights = load_file(path)
    changed = change_words(words)
    change_weights(weights)
    save_file(weights, path, metadata={"recollect": json.dumps(words if changed is None else changed)})


def refused(path):
    """Return the message with which a model is refused: one line, naming the file."""
    with pytest.raises(ModelError) as caught:
        load_model(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    assert len(message) < 800
    return message


@pytest.mark.parametrize("classifier", ["cosine", "dot"])
@pytest.mark.parametrize("generator", ["mean", "average", "attention"])
def test_a_model_comes_back_bit_for_bit(tmp_path, make_model, classifier, generator):
    model = make_model(classifier=classifier, generator=generator, last_relu=classifier == "dot")
    provenance = {"finished": False, "config": {"data": "glyphs", "rates": [0.1, 0.006]}}
    save_model(tmp_path / "m.safetensors", model, provenance)
    again = load_model(tmp_path / "m.safetensors")
    assert again.spec == model.spec
    assert not again.training
    assert again.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in model.state_dict().items())
    assert torch.equal(again.mean, model.mean)
    assert torch.equal(again.std, model.std)
    assert read_header(tmp_path / "m.safetensors").provenance == provenance


def test_the_same_model_makes_the_same_file(tmp_path, tiny_model):
    save_model(tmp_path / "a", tiny_model)
    save_model(tmp_path / "b", copy.deepcopy(tiny_model))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_model_in_training_mode_comes_back_ready_to_use(tmp_path, tiny_model):
    save_model(tmp_path / "m", tiny_model.train())
    assert not load_model(tmp_path / "m").training


def test_any_category_name_survives(tmp_path, make_spec):
    names = ("a/b", "", "Ünï", "两个", "new\nline", '"quoted"', " ")
    save_model(tmp_path / "m", Model(make_spec(categories=names)))
    assert read_header(tmp_path / "m").spec.categories == names


def test_a_run_folder_means_the_model_in_it(saved):
    assert find_model(saved.parent) == find_model(str(saved)) == saved


def test_a_run_without_a_model_says_how_to_end_it(tmp_path):
    with pytest.raises(ModelError, match=r"holds no model\.safetensors.*--resume"):
        find_model(tmp_path)


@pytest.mark.parametrize("name", ["nowhere", "notes.txt/below", "x" * 5000])
def test_a_path_without_a_model_is_refused_by_name(tmp_path, name):
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(ModelError, match=name):
        load_model(tmp_path / name)


def test_a_file_cut_short_is_refused(saved):
    content = saved.read_bytes()
    for length in [0, 4, 8, 9, 500, 3000, len(content) // 2, len(content) - 1]:
        saved.write_bytes(content[:length])
        assert "damaged" in refused(saved)


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
def test_weights_of_another_program_are_refused(tmp_path, metadata):
    save_file({"weight": torch.ones(3)}, tmp_path / "other.safetensors", metadata=metadata)
    assert "not one that recollect wrote" in refused(tmp_path / "other.safetensors")


def test_a_file_from_before_methods_is_a_model_of_the_papers(saved):
    def older(words):
        words["format"] = 2
        del words["method"]

    before = load_model(saved).state_dict()
    rewrite(saved, older)
    assert read_header(saved).method == "recollect"
    after = load_model(saved).state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("number", [0, FORMAT + 1, None, "x" * 10_000, [FORMAT]])
def test_another_format_is_refused_by_number(saved, number):
    rewrite(saved, lambda words: words.update(format=number))
    assert f"reads formats up to {FORMAT}" in refused(saved)


@pytest.mark.parametrize("shifted", [-1, 16, 1000, 2**40, "3.5", None])
def test_pictures_that_are_shifted_out_of_sight_are_refused(saved, shifted):
    """Not least because they would fill the memory."""
    rewrite(saved, lambda words: words["spec"].update(shifted=shifted))
    assert "shifted" in refused(saved)


@pytest.mark.parametrize("bias", [{}, {"0": 1.0}, {"1" + "0" * 30: 1.0}, {"5": 1e308}, {"x": 1.0}, [1.0]])
def test_a_bias_that_cannot_be_meant_is_refused(saved, bias):
    rewrite(saved, lambda words: words["calibration"].update(bias=bias))
    assert "damaged" in refused(saved)


@pytest.mark.parametrize("bias", [0.5, {"5": 0.5, "20": -0.5}])
def test_a_bias_is_one_number_or_several(saved, bias):
    rewrite(saved, lambda words: words["calibration"].update(bias=bias))
    assert bias_at(read_header(saved).calibration.bias, 10) == pytest.approx(0.5 if bias == 0.5 else 0.0)


def drop(name):
    return lambda weights: weights.pop(name)


def put(name, tensor):
    return lambda weights: weights.update({name: tensor})


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (drop("classifier.scale"), "'classifier.scale' is absent"),
        (put("extra", torch.ones(2)), "'extra' is float32 of shape (2,) and should be absent"),
        (put("classifier.weight", torch.ones(3, 32)), "'classifier.weight' is float32 of shape (3, 32)"),
        (put("classifier.weight", torch.ones(32, 7)), "should be float32 of shape (7, 32)"),
        (put("classifier.weight", torch.ones(7, 32).double()), "is float64 of shape (7, 32)"),
        (put("generator.keys", torch.ones(7, 32).int()), "is int32 of shape (7, 32)"),
        (lambda weights: weights.clear(), "is absent"),
    ],
)
def test_weights_that_do_not_fit_the_header_are_refused_by_name(saved, change, names):
    rewrite(saved, change_weights=change)
    assert names in refused(saved)


def spec(**changes):
    return lambda words: words["spec"].update(changes)


def preprocessing(**changes):
    return lambda words: words["spec"]["preprocessing"].update(changes)


NAN, INF = float("nan"), float("inf")
DEEP = json.loads("[" * 500 + "]" * 500)


@pytest.mark.parametrize(
    "change",
    [
        spec(extractor="os.system"),
        spec(extractor=""),
        spec(classifier="euclid"),
        spec(generator="none"),
        spec(categories=["a"] * 7),
        spec(categories=["a", "b"]),
        spec(categories="abcdefg"),
        spec(categories=[1, 2, 3, 4, 5, 6, 7]),
        spec(surprise=1),
        preprocessing(size=1024),  # its attention generator would take 256 GiB
        preprocessing(size=10**30),
        preprocessing(size=0),
        preprocessing(size=8),
        preprocessing(size="16px"),
        preprocessing(std=[NAN, 1, 1]),
        preprocessing(std=[1, NAN, 1]),
        preprocessing(std=[0, 1, 1]),
        preprocessing(std=[INF, 1, 1]),
        preprocessing(mean=[NAN, 1, 1]),
        preprocessing(mean=[1, 1]),
        preprocessing(short_side=8),
        lambda words: words.update(provenance=3),
        lambda words: words.update(surprise=DEEP),
        lambda words: words.pop("spec"),
        lambda words: [words],
        lambda words: 3,
    ],
)
def test_a_hostile_header_is_refused(saved, change):
    rewrite(saved, change)
    refused(saved)


def test_a_header_that_asks_for_much_memory_is_refused_before_it_gets_any(saved):
    rewrite(saved, preprocessing(size=320))  # its attention generator would take 655 MB
    with memory_room(200 << 20):
        assert "do not fit its header" in refused(saved)


@pytest.mark.parametrize(
    "text", ["", "{", "[" * 200_000, '{"format": ' + "1" * 10_000 + "}", "nul", "\ud7ff"]
)
def test_a_header_that_is_no_json_is_refused(saved, text):
    save_file(load_file(saved), saved, metadata={"recollect": text})
    assert "header" in refused(saved)


@pytest.fixture(scope="module")
def valid(tmp_path_factory, make_model):
    path = tmp_path_factory.mktemp("valid") / FILE_NAME
    save_model(path, make_model(generator="average", categories=("a", "b")))
    return path.read_bytes()


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("scratch") / FILE_NAME


# Most of the file is weights, in which any byte is as good as another: aim at its words.
places = st.integers(0, 11) | st.integers(0, 5000) | st.integers(0, 2**31)
changes = st.lists(st.tuples(places, st.binary(max_size=3), st.integers(0, 3)), min_size=1, max_size=5)


@settings(max_examples=300)
@given(changes=changes)
@example(changes=[(0, b"\xff", 1)])
def test_no_change_of_bytes_makes_anything_but_a_model_or_a_model_error(valid, scratch, changes):
    content = bytearray(valid)
    for place, put_in, cut_out in changes:
        start = place % len(content)
        content[start : start + cut_out] = put_in
    scratch.write_bytes(content)
    try:
        model = load_model(scratch)
    except ModelError as error:
        message = str(error)
    else:
        assert model.classifier.weight.shape == (len(model.spec.categories), model.width)
        message = ""
    assert "\n" not in message


@pytest.mark.parametrize("room", [0, 2000, 20_000])
def test_saving_on_a_full_disk_keeps_the_old_model(saved, make_model, room):
    before = tree(saved.parent)
    with disk_room(room), pytest.raises(StorageError, match="no room on the disk"):
        save_model(saved, make_model(seed=1))
    assert tree(saved.parent) == before


def test_the_fingerprint_changes_with_what_features_depend_on_and_nothing_else(make_model, make_spec):
    model = make_model()
    same = make_model()
    with torch.no_grad():
        same.classifier.weight.add_(1)
        same.generator.keys.add_(1)
    assert fingerprint(same) == fingerprint(model)
    wider = make_spec().preprocessing.model_copy(update={"short_side": 20})
    other = make_model()
    with torch.no_grad():
        next(other.extractor.parameters())[0] += 1
    others = [
        other,
        make_model(last_relu=True),
        make_model(preprocessing=wider),
        make_model(mirrored=True),
        make_model(shifted=2),
        make_model(shifted=3),
    ]
    assert len({fingerprint(one) for one in [model, *others]}) == 7
