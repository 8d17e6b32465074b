"""A model, pictures, and the commands that are run on them."""

import json

import pytest

from pictures import write_folder
from recollect.modelfile import save_model


@pytest.fixture
def model(tmp_path, make_model):
    """A run folder with a model and nothing taught."""
    save_model(tmp_path / "run" / "model.safetensors", make_model())
    return tmp_path / "run"


@pytest.fixture
def photos(tmp_path):
    return write_folder(tmp_path / "photos", {"okapi": 3, "tapir": 2})


@pytest.fixture
def answer(run):
    """Run a right call with --json and return its result."""

    def ask(*words):
        code, out, err = run(*words, "--json")
        assert (code, err) == (0, "")
        return json.loads(out)

    return ask


@pytest.fixture
def taught(model, photos, answer):
    """The model with okapi and tapir taught."""
    answer("teach", model, "--from", photos)
    return model


@pytest.fixture
def names(answer):
    """Return the names of taught categories."""

    def ask(model, *words):
        rows = answer("categories", model, *words)["categories"]
        return [row["name"] for row in rows if row["origin"] == "novel"]

    return ask
