"""What hostile files, forks, pickles and shared folders may not do to a recogniser."""

import io
import json
import logging
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file, save_file

from pictures import pixels_of
from plain import PROBES, PlainBackend, names_of, pictures, same
from recollect import Recognizer
from recollect.backends.torch import TorchBackend
from recollect.errors import ModelError
from recollect.model.spec import ModelSpec, Preprocessing
from recollect.modelfile import Header, read_header, save_model
from recollect.recognition import recognizer as module
from recollect.recognition.opening import default_store


@pytest.fixture
def model(tmp_path, tiny_model):
    path = tmp_path / "zoo.safetensors"
    save_model(path, tiny_model)
    return path


def altered(path, change):
    """Change the header's words and the tensors of a model file."""
    words, tensors = json.loads(read_header(path).model_dump_json()), load_file(path)
    change(words, tensors)
    save_file(tensors, path, metadata={"recollect": json.dumps(words)})
    return path


@pytest.mark.parametrize("last", [2**53 - 1, 2**52, 2**60])
def test_a_bundle_whose_next_id_could_not_be_read_again_is_refused(model, tmp_path, last):
    altered(model, lambda words, _: words.update(last_ids=[last, 5]))
    with pytest.raises(ModelError, match=r"the header of .*zoo\.safetensors is damaged"):
        Recognizer.load(model, tmp_path / "taught.sqlite")
    assert not (tmp_path / "taught.sqlite").exists()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["classifier.weight", "classifier.scale", "generator.phi_avg"])
def test_a_model_that_is_not_finite_is_refused_in_one_line(model, name, value):
    def spoil(_, tensors):
        tensors[name] = np.array(tensors[name])
        tensors[name].flat[-1] = value

    altered(model, spoil)
    with pytest.raises(ModelError, match=f"zoo.*'{name}' holds numbers that are not finite") as caught:
        Recognizer.load(model)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("temperature", [0, 1e-46, 1e-30, 1e30])
def test_a_temperature_that_no_score_can_be_divided_by_is_refused(model, temperature):
    altered(model, lambda words, _: words["calibration"].update(temperature=temperature))
    with pytest.raises(ModelError, match="header"):
        Recognizer.load(model)


def test_an_input_that_takes_gigabytes_is_refused(model):
    altered(model, lambda words, _: words["spec"]["preprocessing"].update(size=4096))
    with pytest.raises(ModelError, match="less than or equal to 1024"):
        Recognizer.load(model)


@pytest.mark.parametrize(("size", "expected"), [(4, 32), (256, 32), (512, 8), (1024, 2)])
def test_pictures_that_are_large_come_fewer_at_a_time(size, expected, monkeypatch):
    batches = []

    class Large(PlainBackend):
        def __init__(self):
            super().__init__()
            spec = self.header.spec.model_copy(update={"preprocessing": Preprocessing(size=size)})
            self.header = Header(spec=ModelSpec.model_validate(spec.model_dump()))

        def embed(self, pixels):
            batches.append(len(pixels))
            return super().embed(pixels[:, :4, :4])

    monkeypatch.setattr(module, "read_pixels", lambda *_: np.zeros((size, size, 3), np.uint8))
    Recognizer(Large()).features([pixels_of(1)] * 33)
    assert batches[0] == expected


def test_provenance_that_is_no_text_is_saved_and_read_again(tiny_model, tmp_path):
    header = Header(spec=tiny_model.spec, provenance={"data": "photos-\udcff"})
    Recognizer(TorchBackend(tiny_model, header)).save(tmp_path / "zoo.safetensors")
    assert read_header(tmp_path / "zoo.safetensors").provenance == {"data": "photos-\udcff"}


def test_each_model_file_has_a_default_store_of_its_own(tmp_path, tiny_model):
    for name in ("model", "zoo", "farm"):
        save_model(tmp_path / f"{name}.safetensors", tiny_model)
    stores = [default_store(tmp_path / f"{name}.safetensors").name for name in ("model", "zoo", "farm")]
    assert stores == ["taught.sqlite", "zoo.taught.sqlite", "farm.taught.sqlite"]
    assert default_store(tmp_path).name == "taught.sqlite"
    with Recognizer.load(tmp_path / "zoo.safetensors", "default") as zoo:
        zoo.teach("okapi", pixels_of(1))
    assert "okapi" not in names_of(Recognizer.load(tmp_path / "farm.safetensors", "default"))


def test_what_was_saved_into_a_bundle_later_reaches_its_store_and_is_reported(model, caplog):
    with Recognizer.load(model, "default") as kept:
        kept.teach("okapi", pixels_of(1))
    other = Recognizer.load(model)
    other.teach("tapir", pictures(2, 3))
    other.save(model)
    with caplog.at_level(logging.WARNING):
        again = Recognizer.load(model, "default")
    assert names_of(again)[7:] == ["okapi", "tapir"]
    assert "now also has the examples that were saved with the model: tapir (2 more)" in caplog.text
    again.forget("tapir")
    caplog.clear()
    assert names_of(Recognizer.load(model, "default"))[7:] == ["okapi"]
    assert caplog.text == ""


def test_what_a_store_forgets_after_saving_does_not_come_back(model):
    with Recognizer.load(model, "default") as recognizer:
        recognizer.teach("okapi", pixels_of(1))
        recognizer.save(model)
        recognizer.forget("okapi")
    assert names_of(Recognizer.load(model, "default"))[7:] == []


@pytest.mark.parametrize("place", ["memory", "sqlite", "not yet"])
def test_a_recogniser_can_be_pickled(tiny_model, tmp_path, place):
    store = None if place == "memory" else tmp_path / "taught.sqlite"
    recognizer = Recognizer(TorchBackend(tiny_model), store)
    if place != "not yet":
        recognizer.teach("okapi", pictures(1, 2))
        recognizer.hide("base-2")
    again = pickle.loads(pickle.dumps(recognizer))
    assert again.categories() == recognizer.categories()
    assert same(again.scores(PROBES), recognizer.scores(PROBES))
    again.teach("tapir", pixels_of(3))
    assert ("tapir" in names_of(recognizer)) == (place != "memory")


@pytest.mark.slow
def test_a_process_that_a_recogniser_is_sent_to_keeps_its_threads(tiny_model):
    program = """
import pickle, sys, torch
torch.set_num_threads(2)
recognizer = pickle.load(sys.stdin.buffer)
recognizer.predict(bytes(pickle.load(sys.stdin.buffer)))
sys.exit(torch.get_num_threads() != 2)
"""
    buffer = io.BytesIO()
    Image.fromarray(pixels_of(1)).save(buffer, "png")
    sent = pickle.dumps(Recognizer(TorchBackend(tiny_model))) + pickle.dumps(buffer.getvalue())
    assert subprocess.run([sys.executable, "-c", program], input=sent, check=False).returncode == 0


FORK = """
import os, signal, sys, threading, time
sys.path.insert(0, sys.argv[1])
import torch
torch.set_num_threads(2)
from conftest import model_of
from pictures import pixels_of
from recollect import Recognizer
from recollect.backends.torch import TorchBackend
model = model_of(extractor="c64f", preprocessing={"size": 84}, generator="mean")
recognizer = Recognizer(TorchBackend(model), sys.argv[2])
many = [pixels_of(seed, 84) for seed in range(8)]
recognizer.teach("okapi", many[0])
before = [answers[0].category for answers in recognizer.predict(many, among="base")]
def forked(number):
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        after = [answers[0].category for answers in recognizer.predict(many, among="base")]
        recognizer.teach(f"tapir {number}", many[1])
        os._exit(0 if after == before else 1)
    return child
def ended(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""
AFTER_PREDICTING = """
sys.exit(ended(forked(0)))
"""
LOCK_HELD = """
held, products = threading.Event(), recognizer._known.vectors.products
def slow(features):
    held.set()
    time.sleep(1)
    return products(features)
recognizer._known.vectors.products = slow
threading.Thread(target=recognizer.predict, args=(many,)).start()
held.wait()
sys.exit(ended(forked(0)))
"""


@pytest.mark.slow
@pytest.mark.parametrize("program", [AFTER_PREDICTING, LOCK_HELD], ids=["idle", "lock held"])
def test_a_process_that_forks_at_any_moment_goes_on_in_the_child(program, tmp_path):
    here = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", FORK + program, here, tmp_path / "taught.sqlite"], check=False, timeout=180
    )
    assert done.returncode == 0
