"""Which model is served if none is named."""

from pathlib import Path

import pytest

from recollect.commands import demo
from recollect.commands import serve as command
from recollect.errors import ExtraError
from recollect.serve import run
from recollect.serve.settings import Settings
from recollect.system.disk import data_folder


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


def test_without_its_weights_it_trains_the_demo_once(served, monkeypatch, capsys):
    monkeypatch.setattr(command, "extractor_weights", missing)
    trained = []

    def train(out):
        trained.append(out)
        (out / "model").mkdir(parents=True)
        (out / "model" / "model.safetensors").touch()

    monkeypatch.setattr(demo, "run_demo", train)
    for _ in range(2):
        command.serve(Settings(model=Path("imagenet")), any_model=True)
    assert trained == [data_folder() / "demo"]
    assert served == [data_folder() / "demo" / "model"] * 2
    assert "training the demo's model instead" in capsys.readouterr().err


def test_a_model_that_was_named_is_never_replaced(served, monkeypatch):
    monkeypatch.setattr(command, "extractor_weights", missing)
    command.serve(Settings(model=Path("imagenet")))
    assert served == [Path("imagenet")]


def test_without_the_extra_it_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    with pytest.raises(ExtraError, match=r"pip install 'recollect\[serve\]'"):
        command.serve(Settings(model=Path("imagenet")))
