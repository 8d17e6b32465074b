"""Which model is served if none is named."""

from pathlib import Path

import pytest

from recollect.commands import serve as command
from recollect.errors import ExtraError
from recollect.modelfile import save_model
from recollect.serve import run
from recollect.serve.settings import Settings


@pytest.fixture
def served(monkeypatch):
    found = []
    monkeypatch.setattr(run, "serve", lambda settings: found.append(settings.model))
    return found


def missing(_):
    raise ExtraError("the weights are not installed")


def test_without_a_model_it_serves_imagenet(served, monkeypatch):
    monkeypatch.setattr(command, "extractor_weights", lambda _: {})
    command.serve(Settings(model=Path("imagenet")), any_model=True)
    assert served == [Path("imagenet")]


def test_without_its_weights_it_serves_characters(served, monkeypatch, capsys):
    monkeypatch.setattr(command, "extractor_weights", missing)
    command.serve(Settings(model=Path("imagenet")), any_model=True)
    assert served == [Path("glyphs")]
    assert "the weights are not installed; serving the model of characters" in capsys.readouterr().err


def test_a_model_that_was_named_is_never_replaced(served, monkeypatch):
    monkeypatch.setattr(command, "extractor_weights", missing)
    command.serve(Settings(model=Path("imagenet")))
    assert served == [Path("imagenet")]


def test_without_the_extra_it_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    with pytest.raises(ExtraError, match=r"pip install 'recollect\[serve\]'"):
        command.serve(Settings(model=Path("imagenet")))


def test_a_store_that_cannot_be_made_is_noticed_before_anything_is_served(refused, make_model, tmp_path):
    model = tmp_path / "model.safetensors"
    save_model(model, make_model())
    (tmp_path / "note.txt").write_text("of another program", encoding="utf-8")
    (tmp_path / "file").touch()
    assert "not an SQLite file" in refused("serve", model, "--store", tmp_path / "note.txt", "--port", "0")
    assert "cannot open the store" in refused(
        "serve", model, "--store", tmp_path / "file" / "taught.sqlite", "--port", "0"
    )
