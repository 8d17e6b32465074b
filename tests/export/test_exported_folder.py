"""What `recollect export --onnx` writes: files for other programs, checked, all of them or none."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image

from exporting import ROOT, export, run_without_torch
from pictures import pixels_of, tree, write_folder, write_picture, write_zip
from pretrained import DATA, needs_photographs, needs_weights
from recollect import Recognizer
from recollect.backends import choice
from recollect.backends.exported import FILES, read_export
from recollect.commands.export import compared_on
from recollect.export import checking
from recollect.export import folder as module
from recollect.images import fit, open_picture
from recollect.modelfile import save_model
from recollect.system.sessions import Session

PICTURES = [pixels_of(number, 20 + number) for number in range(8)]
EXAMPLE = ROOT / "docs" / "examples" / "recognise.py"


@pytest.fixture(scope="module")
def exported(make_model, tmp_path_factory):
    out = tmp_path_factory.mktemp("export") / "out"
    found = export(make_model(), out, PICTURES, {"okapi": PICTURES[:2], "tapir": PICTURES[2:3]})
    return out, found


def test_it_says_how_close_the_files_are(exported):
    folder, found = exported
    assert found["scores"] < 1e-5
    assert found["top5"] == found["first"] == 1
    assert found["cosine"] > 0.999999
    assert found["whole_cosine"] > 0.99
    assert found["pictures"] == len(PICTURES)
    assert read_export(folder).checked == found
    assert {path.name for path in folder.iterdir()} == {*FILES, "export.json"}


def test_the_graphs_are_valid_and_say_nothing_of_where_they_were_made(exported):
    for name in ("extractor.onnx", "generator.onnx", "classifier.onnx"):
        content = (exported[0] / name).read_bytes()
        onnx.checker.check_model(onnx.load_model_from_string(content), full_check=True)
        assert b"site-packages" not in content
        assert b".py" not in content
        assert str(ROOT).encode() not in content


@pytest.mark.parametrize("shape", [(16, 16), (40, 60), (61, 17), (16, 33), (300, 200), (5, 9)])
@pytest.mark.parametrize("short_side", [None, 20])
def test_the_graph_prepares_pictures_as_pillow_does(shape, short_side):
    from recollect.export.notation import prepare_graph
    from recollect.model.spec import Preprocessing

    graph = prepare_graph(Preprocessing(size=16, short_side=short_side))
    smooth = Image.fromarray(pixels_of(3, 8)).resize(shape[::-1], Image.Resampling.BICUBIC)
    session = Session(graph.SerializeToString(), "prepare")
    (found,) = session.run(["prepared"], pixels=np.asarray(smooth)[None])
    difference = found[0].transpose(1, 2, 0).astype(int) - fit(open_picture(smooth), 16, short_side)
    if shape == (16, 16):
        assert not difference.any()
    assert np.abs(difference).max() <= 12
    assert np.abs(difference).mean() < 1.5


def test_the_example_needs_onnxruntime_and_numpy_alone(exported, tmp_path):
    folder, _ = exported
    assert len(EXAMPLE.read_text().splitlines()) <= 52
    pictures = [write_picture(tmp_path / f"{number}.png", number) for number in range(3)]
    done = run_without_torch(tmp_path, EXAMPLE, folder, *pictures)
    assert done.returncode == 0, done.stderr
    recognizer = Recognizer.load(folder, backend="onnx")
    for line, answers in zip(done.stdout.splitlines(), recognizer.predict(pictures), strict=True):
        shown = [words.rpartition(" ") for words in line.split("\t")[1:]]
        assert [name for name, _, _ in shown] == [answer.category for answer in answers]
        for (_, _, share), answer in zip(shown, answers, strict=True):
            assert float(share) == pytest.approx(answer.probability, abs=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize("shot_aware", [False, True])
def test_the_example_teaches(exported, make_model, tmp_path, shot_aware):
    folder = tmp_path / "out" if shot_aware else exported[0]
    if shot_aware:
        export(make_model(shot_aware=True), folder, PICTURES)
    pictures = [write_picture(tmp_path / f"{number}.png", number) for number in range(50, 53)]
    done = run_without_torch(tmp_path, EXAMPLE, folder, pictures[0], "--teach", "gnu", *pictures)
    assert done.returncode == 0, done.stderr
    recognizer = Recognizer.load(folder, backend="onnx")
    recognizer.teach("gnu", pictures)
    expected = {answer.category: answer.probability for answer in recognizer.predict(pictures[0])}
    shown = dict(words.rsplit(" ", 1) for words in done.stdout.strip().split("\t")[1:])
    assert float(shown["gnu"]) == pytest.approx(expected["gnu"], abs=2e-4)


@pytest.mark.slow
def test_files_that_differ_from_torch_are_not_written(make_model, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "extractor_graph", _shifted)
    with pytest.raises(Exception, match=r"differ by .* from torch's, more than 0.0001"):
        export(make_model(), tmp_path / "out", PICTURES)
    assert tree(tmp_path) == {}


def _shifted(model):
    from recollect.export.graphs import extractor_graph

    graph = extractor_graph(model)
    (last,) = (node for node in graph.graph.node if "features" in node.output)
    last.output[0] = "unshifted"
    graph.graph.node.append(onnx.helper.make_node("Neg", ["unshifted"], ["features"]))
    return graph


@pytest.mark.slow
@pytest.mark.parametrize("looks", [{}, {"mirrored": True, "shifted": 2}], ids=["once", "ten times"])
def test_int8_is_smaller_and_measured(make_model, tmp_path, looks):
    model = make_model(extractor="c64f", **looks)
    found = export(model, tmp_path / "out", PICTURES, int8=True)
    assert read_export(tmp_path / "out").int8
    assert found["cosine"] > 0.9
    assert found["scores"] > 1e-4
    whole = sum(values.nbytes for values in Recognizer.load(tmp_path / "out").backend.weights().values())
    assert (tmp_path / "out" / "extractor.onnx").stat().st_size < whole


def test_the_command_exports_what_was_taught(run, refused, tmp_path, make_model, monkeypatch):
    save_model(tmp_path / "zoo" / "model.safetensors", make_model(generator="ridge"))
    write_folder(tmp_path / "photos", {"okapi": 2, "tapir": 2})
    archive = write_zip(tmp_path / "photos.zip", tmp_path / "photos")
    assert run("teach", tmp_path / "zoo", "--from", tmp_path / "photos")[0] == 0
    out = tmp_path / "out"
    code, words, err = run("export", tmp_path / "zoo", "--onnx", out, "--pictures", archive, "--json")
    assert code == 0, err
    result = json.loads(words)
    assert result["checked"]["pictures"] == 4
    assert set(result["files"]) == {*FILES, "export.json"}
    _, expected, _ = run("predict", tmp_path / "zoo", tmp_path / "photos", "--recursive", "--json")
    _, found, _ = run("predict", out, tmp_path / "photos", "--recursive", "--json")
    assert [[one["category"] for one in some["answers"]] for some in json.loads(found)["predictions"]] == [
        [one["category"] for one in some["answers"]] for some in json.loads(expected)["predictions"]
    ]
    monkeypatch.setattr(choice, "compare", lambda *_: pytest.fail("measured again"))
    assert choice.measured(out).keys() == {"torch", "onnx"}  # the export remembers which is faster
    assert "exists already: choose another name" in refused("export", tmp_path / "zoo", "--onnx", out)
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    assert "no pictures" in refused(
        "export", tmp_path / "zoo", "--onnx", tmp_path / "o", "--pictures", nothing
    )


def test_without_the_extra_the_remedy_is_named(refused, tmp_path, make_model, monkeypatch):
    save_model(tmp_path / "model.safetensors", make_model())
    monkeypatch.setattr("recollect.commands.export.find_spec", lambda name: None)
    err = refused("export", tmp_path / "model.safetensors", "--onnx", tmp_path / "out")
    assert "pip install 'recollect[onnx]'" in err


@pytest.mark.slow
@pytest.mark.data
@needs_weights
@needs_photographs
def test_photographs_get_the_same_answers_from_the_ready_made_model(tmp_path):
    """500 real pictures: the same five best answers, scores within 1e-4."""
    from recollect.backends.torch import TorchBackend

    pictures = compared_on(Path(DATA, "grocery", "photos.zip"))
    assert len({picture.name for picture in pictures}) == 500

    backend = TorchBackend.load("imagenet")
    found = module.export_onnx(backend, Recognizer(backend), tmp_path / "out", pictures)
    assert found["scores"] <= checking.CLOSE
    assert found["top5"] == 1
    assert found["whole_cosine"] > 0.999


def test_export_leaves_torch_out_of_help():
    code = "import sys; from recollect import cli; sys.exit('torch' in sys.modules or 'onnx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
