"""A recogniser on an exported folder: the same answers without torch, and nothing else is accepted."""

import functools
import json
import multiprocessing
import os
import pickle
import shutil
import sys

import numpy as np
import pytest

from exporting import export, run_without_torch
from pictures import pixels_of, write_picture
from recollect import Recognizer
from recollect.backends import choice
from recollect.backends.exported import FILES
from recollect.errors import ArgumentError, ConfigError, ExtraError, ModelError
from recollect.model.spec import Calibration, TaughtOffset, Unknown
from recollect.modelfile import Header, save_model

PICTURES = [pixels_of(number, 20 + number) for number in range(12)]
NEW = [pixels_of(number) for number in range(100, 103)]
CALIBRATION = Calibration(
    temperature=0.7,
    bias={1: 0.4, 4: -0.2},
    bias_rise=0.1,
    unknown=Unknown(
        threshold=1.5,
        steepness=2.0,
        offset=0.3,
        false_alarms=0.05,
        taught=TaughtOffset(start=0.2, number=0.1, rise=0.1, slope=0.0),
    ),
)
KINDS = {
    "attention": {"calibration": CALIBRATION},
    "ridge": {"generator": "ridge", "mirrored": True, "shifted": 2, "centred": True},
}
TAUGHT = {"okapi": PICTURES[:2], "tapir": PICTURES[2:3], "base-2": PICTURES[3:5]}


_SERVED = """
import io, socket, sys, threading, time, urllib.request
from pathlib import Path
from PIL import Image
import uvicorn
from recollect.serve.run import configured
from recollect.serve.settings import Settings
picture = io.BytesIO()
Image.new("RGB", (20, 20)).save(picture, "PNG")
server = uvicorn.Server(configured(Settings(model=Path(sys.argv[1]), store="memory:"), None))
sock = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=server.run, kwargs={"sockets": [sock]}).start()
while not server.started:
    time.sleep(0.05)
url = f"http://localhost:{sock.getsockname()[1]}/v1/predict"
print(urllib.request.urlopen(url, picture.getvalue()).status)
server.should_exit = True
"""


@pytest.fixture(scope="module")
def exports(make_model, tmp_path_factory):
    """A maker of exported folders, each with the model file that it was made of."""

    @functools.cache
    def make(kind):
        place = tmp_path_factory.mktemp(kind)
        options = dict(KINDS[kind])
        calibration = options.pop("calibration", Calibration())
        model = make_model(**options)
        save_model(place / "model.safetensors", model, calibration=calibration)
        header = Header(spec=model.spec, calibration=calibration)
        export(model, place / "exported", PICTURES, TAUGHT, header=header)
        return place / "exported", place / "model.safetensors"

    return make


@pytest.fixture(params=KINDS)
def exported(request, exports):
    """An exported folder of each kind of model, and the model file that it was made of."""
    return exports(request.param)


@pytest.fixture
def any_kind(exports):
    """The same, where the kind of model makes no difference."""
    return exports("attention")


@pytest.fixture
def folder(any_kind, tmp_path):
    """A copy of an exported folder."""
    return shutil.copytree(any_kind[0], tmp_path / "copy")


def both(exported):
    folder, model = exported
    onnx, torch = Recognizer.load(folder, backend="onnx"), Recognizer.load(model, backend="torch")
    for name, pictures in TAUGHT.items():
        torch.teach(name, pictures)
    return onnx, torch


def test_scores_and_answers_are_those_of_torch(exported):
    onnx, torch = both(exported)
    found, expected = onnx.scores(PICTURES), torch.scores(PICTURES)
    assert found.categories == expected.categories
    np.testing.assert_allclose(found.base, expected.base, atol=1e-5)
    np.testing.assert_allclose(found.novel, expected.novel, atol=1e-4)
    for one, other in zip(onnx.predict(PICTURES), torch.predict(PICTURES), strict=True):
        assert [answer.category for answer in one] == [answer.category for answer in other]
        for answer, same in zip(one, other, strict=True):
            assert answer.probability == pytest.approx(same.probability, abs=1e-5)


def test_teaching_and_forgetting_give_the_same_vectors(exported):
    onnx, torch = both(exported)
    for recognizer in (onnx, torch):
        recognizer.teach("zebu", PICTURES[5:8])
        recognizer.forget("okapi")
    one, other = onnx.rule(), torch.rule()
    assert one.categories == other.categories
    # Examples of `ridge` are kept in steps of 2⁻¹⁵, so that a last digit may become a step.
    step = 2**-15 if onnx.backend.header.spec.generator == "ridge" else 0
    np.testing.assert_allclose(one.vectors, other.vectors, atol=1e-5 + step)


def test_teaching_changes_no_base_score_and_forgetting_restores_every_score(exported):
    recognizer = Recognizer.load(exported[0], backend="onnx")
    before = recognizer.scores(PICTURES)
    recognizer.teach("zebu", PICTURES[5:8])
    during = recognizer.scores(PICTURES)
    np.testing.assert_array_equal(during.base, before.base)
    recognizer.forget("zebu")
    np.testing.assert_array_equal(recognizer.scores(PICTURES).novel, before.novel)


def test_a_store_moves_between_torch_and_onnxruntime(exported, tmp_path):
    folder, model = exported
    with Recognizer.load(model, tmp_path / "taught.sqlite", backend="torch") as torch:
        torch.teach("zebu", NEW)
        expected = torch.scores(NEW[0]).novel
    with Recognizer.load(folder, tmp_path / "taught.sqlite", backend="onnx") as onnx:
        assert onnx.fingerprint == torch.fingerprint
        assert [one.name for one in onnx.categories()][7] == "zebu"
        onnx.forget("okapi")
        onnx.forget("tapir")
        onnx.forget("base-2")
        np.testing.assert_allclose(onnx.scores(NEW[0]).novel, expected, atol=1e-4)
        onnx.teach("gnu", PICTURES[4:6])
    with Recognizer.load(model, tmp_path / "taught.sqlite") as again:
        assert {"zebu", "gnu"} <= {one.name for one in again.categories()}


def test_what_a_category_leans_on_is_the_same(exported):
    onnx, torch = both(exported)
    for (name, share), (other, same) in zip(onnx.explain("okapi"), torch.explain("okapi"), strict=True):
        assert name == other
        assert share == pytest.approx(same, abs=1e-5)


def test_it_saves_to_one_file_that_torch_loads(exported, tmp_path):
    onnx = Recognizer.load(exported[0], backend="onnx")
    onnx.save(tmp_path / "zoo.safetensors")
    torch = Recognizer.load(tmp_path / "zoo.safetensors")
    assert torch.fingerprint == onnx.fingerprint
    assert torch.categories() == onnx.categories()


def test_it_can_be_pickled(any_kind):
    recognizer = Recognizer.load(any_kind[0], backend="onnx")
    again = pickle.loads(pickle.dumps(recognizer))
    np.testing.assert_array_equal(again.features(PICTURES[:1]), recognizer.features(PICTURES[:1]))


def test_a_fork_can_compute(any_kind, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    recognizer = Recognizer.load(any_kind[0], backend="onnx")
    expected = recognizer.features(PICTURES[:1])
    here, there = multiprocessing.get_context("fork").Pipe()

    def compute():
        features = recognizer.features(PICTURES[:1])
        there.send((features, recognizer.backend._extractor._process))

    process = multiprocessing.get_context("fork").Process(target=compute)
    process.start()
    try:
        assert here.poll(60), "the fork waits for threads that it does not have"
        features, computed_in = here.recv()
        np.testing.assert_allclose(features, expected, atol=1e-6)
        assert computed_in == process.pid  # with a session of its own
    finally:
        process.terminate()
        process.join()


def test_the_commands_import_no_torch(exported, tmp_path):
    folder = shutil.copytree(exported[0], tmp_path / "copy")
    picture = write_picture(tmp_path / "new.png", 7)
    call = ["-m", "recollect.cli"]
    taught = run_without_torch(tmp_path, *call, "teach", folder, "gnu", picture)
    assert taught.returncode == 0, taught.stderr
    found = run_without_torch(tmp_path, *call, "predict", folder, picture, "--json", "--no-unknown")
    assert found.returncode == 0, found.stderr
    with Recognizer.load(exported[1], folder / "taught.sqlite", backend="torch") as torch:
        expected = torch.predict(picture, unknown=False)
    (answer,) = json.loads(found.stdout)["predictions"]
    assert [one["category"] for one in answer["answers"]] == [one.category for one in expected]
    assert "gnu" in {one.category for one in expected}


def test_a_service_imports_no_torch(folder, tmp_path):
    served = run_without_torch(tmp_path, "-c", _SERVED, folder)
    assert served.stdout == "200\n", served.stderr
    blocked = run_without_torch(tmp_path, "-c", "import torch")
    assert "blocked: torch" in blocked.stderr


def test_auto_takes_onnxruntime_where_torch_is_not_loaded(any_kind, monkeypatch):
    folder, model = any_kind
    monkeypatch.setattr(choice, "_faster", lambda *_: "measured")
    assert choice.open_backend(folder) == "measured"  # torch is loaded here
    monkeypatch.delitem(sys.modules, "torch")
    assert type(choice.open_backend(folder)).__name__ == "OnnxBackend"
    monkeypatch.setattr(choice, "_torch", lambda *_: "torch")
    assert choice.open_backend(model) == "torch"
    assert choice.open_backend(folder, device="cuda") == "torch"
    monkeypatch.setattr(choice, "have_onnxruntime", lambda: False)
    assert choice.open_backend(folder) == "torch"


@pytest.mark.parametrize(("faster", "name"), [("onnx", "OnnxBackend"), ("torch", "TorchBackend")])
def test_auto_measures_once_and_remembers(any_kind, monkeypatch, faster, name):
    times = {"torch": 2.0, "onnx": 2.0} | {faster: 1.0}
    calls = []
    monkeypatch.setattr(choice, "compare", lambda *_: calls.append(1) or times)
    for _ in range(2):
        assert type(choice.open_backend(any_kind[0])).__name__ == name
    assert len(calls) == 1


def test_a_damaged_memory_of_what_is_faster_is_measured_again(any_kind, monkeypatch):
    monkeypatch.setattr(choice, "compare", lambda *_: {"torch": 1.0, "onnx": 2.0})
    path = choice._place(any_kind[0], "cpu")
    path.parent.mkdir(parents=True)
    path.write_text('{"torch": "nonsense"}')
    assert choice.measured(any_kind[0]) == {"torch": 1.0, "onnx": 2.0}


@pytest.mark.parametrize("name", ["model.safetensors", "extractor.onnx", "generator.onnx"])
def test_a_file_that_is_missing_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(ModelError, match=rf"lacks {name}: copy the whole folder, or export the model again"):
        Recognizer.load(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "extractor.onnx", "generator.onnx"])
def test_a_file_that_was_exchanged_is_named(folder, name):
    content = bytearray((folder / name).read_bytes())
    content[-1] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(ModelError, match=rf"{name} is not the file that was exported"):
        Recognizer.load(folder, backend="onnx")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("{", "cannot be read"),
        ("[]", "is damaged"),
        ('{"format": 2}', "has format 2; this version reads 1"),
        ('{"format": 1, "recollect": "1", "fingerprint": "x", "files": {}}', "does not list every file"),
    ],
)
def test_a_list_that_is_damaged_is_refused(folder, words, reason):
    (folder / "export.json").write_text(words)
    with pytest.raises(ModelError, match=reason):
        Recognizer.load(folder, backend="onnx")


def test_a_list_without_an_exported_graph_changes_nothing_for_torch(folder):
    for name in FILES:
        if name != "model.safetensors":
            (folder / name).unlink()
    assert Recognizer.load(folder, backend="torch").categories()


def test_a_model_that_was_not_exported_says_how(any_kind):
    with pytest.raises(ModelError, match=r"is not exported to ONNX: run `recollect export"):
        Recognizer.load(any_kind[1], backend="onnx")
    with pytest.raises(ArgumentError, match="choose 'auto', 'torch' or 'onnx'"):
        Recognizer.load(any_kind[1], backend="abacus")
    with pytest.raises(ConfigError, match="not on 'cuda'"):
        Recognizer.load(any_kind[0], backend="onnx", device="cuda")


def test_without_onnxruntime_the_remedy_is_named(any_kind, monkeypatch):
    monkeypatch.setattr("recollect.system.sessions.have_onnxruntime", lambda: False)
    with pytest.raises(ExtraError, match=r"pip install 'recollect\[onnx\]'"):
        Recognizer.load(any_kind[0], backend="onnx")


def test_numbers_of_threads_reach_onnxruntime(any_kind, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    recognizer = Recognizer.load(any_kind[0], backend="onnx")
    options = recognizer.backend._extractor._opened.get_session_options()
    assert options.intra_op_num_threads == 3
    assert os.getpid() == recognizer.backend._extractor._process
