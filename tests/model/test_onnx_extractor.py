"""Any ONNX file as extractor: what its file says is read, and what cannot be used is said in one line."""

import re

import numpy as np
import pytest
import torch

from exporting import convolving, export, graph, outside, strange
from pictures import pixels_of, write_folder, write_picture
from recollect import Recognizer
from recollect.backends.torch import TorchBackend
from recollect.errors import ModelError
from recollect.model.extractors.onnx import onnx_extractor, onnx_input
from recollect.model.model import Model
from recollect.model.spec import ModelSpec, Preprocessing
from recollect.modelfile import load_model, save_model
from recollect.training.starting import starting_model

PICTURES = [pixels_of(number, 24) for number in range(4)]


@pytest.fixture
def named(tmp_path):
    """Write an ONNX file and return its name as an extractor."""

    def write(content, words=""):
        (tmp_path / "net.onnx").write_bytes(content)
        return f"onnx:{tmp_path / 'net.onnx'}{words}"

    return write


def spec_of(extractor, **changes):
    prepare = Preprocessing(size=16, mean=(120.0, 115.0, 104.0), std=(70.0, 68.0, 72.0))
    return ModelSpec.model_validate(
        {
            "extractor": extractor,
            "generator": "mean",
            "preprocessing": prepare,
            "categories": ("a", "b"),
            **changes,
        }
    )


def test_maps_become_their_means(named):
    extractor = onnx_extractor(named(convolving()), 16)
    x = torch.randn(3, 3, 16, 16)
    features = extractor(x)
    assert features.shape == (3, 8)
    (maps,) = extractor.session.run(["y"], x=x.numpy())
    np.testing.assert_allclose(features, maps.mean(axis=(2, 3)), rtol=1e-6)


def test_channels_may_come_last_and_pictures_one_by_one(named):
    lines = "m = ReduceMean <keepdims = 0> (x, a) y = Identity (m)"
    content = graph("float[1, 16, 16, 3] x", "float[1, 3] y", lines, {"a": np.array([1, 2])})
    extractor = onnx_extractor(named(content), 16)
    x = torch.randn(4, 3, 16, 16)
    np.testing.assert_allclose(extractor(x), x.mean(dim=(2, 3)), atol=1e-6)


@pytest.mark.parametrize(
    ("content", "words", "size", "mean", "std"),
    [
        (convolving(32), "", 32, 123.675, 58.395),
        (convolving(), "?mean=0.5,0.5,0.5&std=0.25,0.25,0.25", 224, 127.5, 63.75),
        (convolving(), "?mean=120,121,122&std=60,61,62", 224, 120.0, 60.0),
        (convolving(64, metadata={"mean": "[0.5, 0.5, 0.5]", "std": "[1, 1, 1]"}), "", 64, 127.5, 255.0),
        (convolving(64, metadata={"Image.NominalPixelRange": "Normalized_1_1"}), "", 64, 127.5, 127.5),
    ],
)
def test_the_input_is_read_from_the_file_or_given(named, content, words, size, mean, std):
    found = onnx_input(named(content, words))
    assert (found.size, found.mean[0], found.std[0]) == (size, mean, std)


def test_bytes_are_given_as_bytes(named):
    lines = "f = Cast <to = 1> (x) y = ReduceMean <keepdims = 0> (f, a)"
    content = graph("uint8[n, h, w, 3] x", "float[n, 3] y", lines, {"a": np.array([1, 2])})
    name = named(content)
    assert onnx_input(name).std == (1, 1, 1)
    spec = spec_of(name, preprocessing=onnx_input(name).model_copy(update={"size": 16}))
    backend = TorchBackend(starting_model(spec))
    pixels = pixels_of(1, 16)[None]
    np.testing.assert_allclose(backend.embed(pixels), pixels.mean(axis=(1, 2)), rtol=1e-5)


FAULTS = {
    "not ONNX": (b"hello, this is no graph", "not an ONNX file, or it is damaged"),
    "empty": (b"", "not an ONNX file, or it is damaged"),
    "rank": (
        graph("float[n, 12] x", "float[n, 12] y", "y = Relu (x)"),
        r"input 'x' is tensor\(float\) of shape \(n, 12\): expected pictures",
    ),
    "channels": (convolving(channels=5), "expected 3 channels"),
    "kind": (
        graph("int64[n, 3, 16, 16] x", "int64[n, 3, 16, 16] y", "y = Identity (x)"),
        r"is tensor\(int64\)",
    ),
    "inputs": (
        graph("float[n, 3, 16, 16] x, float[n, 3, 16, 16] z", "float[n, 3, 16, 16] y", "y = Add (x, z)"),
        r"has 2 inputs \(x, z\)",
    ),
    "label": (
        graph("float[n, 3, 16, 16] x", "int64[n, 16, 16] y", "y = ArgMax <axis = 1, keepdims = 0> (x)"),
        "no output is a feature",
    ),
    "no square": (
        graph("float[n, 3, 16, 20] x", "float[n, 3, 16, 20] y", "y = Relu (x)"),
        "only square ones",
    ),
    "batch": (
        graph("float[8, 3, 16, 16] x", "float[8, 3, 16, 16] y", "y = Relu (x)"),
        "8 pictures at a time",
    ),
    "operator": (strange(), "onnxruntime does not have its operator some.vendor:Frobnicate"),
    "outside": (outside("../weights.bin"), "its weights lie in another file"),
    "absolute": (outside("/etc/hostname"), "its weights lie in another file"),
    "beside": (outside("weights.bin"), "its weights lie in another file"),
    "nan": (
        graph("float[n, 3, 16, 16] x", "float[n, 3, 16, 16] y", "z = Sub (x, x) y = Div (z, z)"),
        "not finite",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_be_used_is_one_line(named, refused, tmp_path, fault, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where onnxruntime would look for weights in other files
    content, reason = FAULTS[fault]
    (tmp_path / "weights.bin").write_bytes(bytes(4 * 8 * 3 * 9))
    err = refused("new", tmp_path / "out", "--extractor", named(content), "--size", 16)
    assert re.search(reason, err), err
    assert str(tmp_path / "net.onnx") in err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("?colour=red", "'colour' is not one of mean, std, layout, output"),
        ("?layout=chaos", "the layout is nchw or nhwc"),
        ("?mean=1,2,3", "mean and std go together"),
        ("?mean=1,2&std=1,2,3", "three numbers each"),
        ("?mean=1,2,3&std=0,2,3", "three numbers each"),
        ("?output=logits", "'logits' is a feature"),
    ],
)
def test_words_that_mean_nothing_are_refused(named, words, reason):
    with pytest.raises(ModelError, match=reason):
        onnx_input(named(convolving(), words))


def test_a_file_that_is_not_there_or_of_another_size_is_refused(named, tmp_path, refused):
    assert "No such file" in refused("new", tmp_path / "out", "--extractor", f"onnx:{tmp_path}/none.onnx")
    err = refused("new", tmp_path / "out", "--extractor", named(convolving(32)), "--size", 16)
    assert "takes pictures of 32×32, not of 16×16" in err


def test_the_model_file_holds_the_onnx_file(named, run, tmp_path):
    name = named(convolving(16))
    code, _, err = run("new", tmp_path / "model", "--extractor", name)
    assert code == 0, err
    (tmp_path / "net.onnx").unlink()
    picture = write_picture(tmp_path / "a.png", 3)
    assert run("teach", tmp_path / "model", "gnu", picture)[0] == 0
    recognizer = Recognizer.load(tmp_path / "model", store="default")
    assert recognizer.predict(picture)[0].category == "gnu"
    _, words, _ = run("info", tmp_path / "model", "--json")
    assert '"parameters": 1,' in words  # τ


def test_a_model_on_an_onnx_file_exports(named, tmp_path):
    spec = spec_of(named(convolving()), centred=True)
    model = starting_model(spec)
    model.centre.normal_()
    found = export(model, tmp_path / "out", PICTURES, {"okapi": PICTURES[:2]})
    assert found["scores"] < 1e-5
    assert found["top5"] == 1


def test_it_is_never_fine_tuned(named, tmp_path, refused):
    write_folder(tmp_path / "photos", {"a": 3, "b": 3})
    name = named(convolving(16))
    err = refused("train", tmp_path / "photos", "--extractor", name, "--finetune", "--out", tmp_path / "run")
    assert "an ONNX file is used as it is" in err


def test_a_damaged_model_file_does_not_lose_its_file_silently(named, tmp_path):
    model = starting_model(spec_of(named(convolving())))
    save_model(tmp_path / "model.safetensors", model)
    again = load_model(tmp_path / "model.safetensors")
    assert isinstance(again, Model)
    state = {key: value for key, value in model.state_dict().items() if key != "extractor.file"}
    from recollect.modelfile import Header, write_model

    header = Header(spec=model.spec)
    write_model(tmp_path / "model.safetensors", header, {key: value.numpy() for key, value in state.items()})
    with pytest.raises(ModelError, match="lacks the ONNX file of its extractor"):
        load_model(tmp_path / "model.safetensors")
