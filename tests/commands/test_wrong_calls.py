"""What is wrong is one line and exit code 2, and leaves every file as it was: also no new, empty store."""

import re

import pytest

from pictures import png_of_size, write_picture
from recollect.modelfile import save_model


def cut_short(tmp_path):
    whole = write_picture(tmp_path / "whole.png").read_bytes()
    return whole[: len(whole) // 2]


BAD_PICTURES = {
    "nowhere": (None, "there is no such file"),
    "empty": (lambda _: b"", "the file is empty"),
    "text": (lambda _: b"no picture", "this is not a picture"),
    "cut short": (cut_short, "cut short or damaged"),
    "huge": (lambda _: png_of_size(100_000, 100_000), "too large"),
    "flat": (lambda _: png_of_size(0, 5), "bad.png"),
}


@pytest.mark.parametrize("kind", BAD_PICTURES)
def test_pictures_that_cannot_be_used(model, photos, refused, tmp_path, kind):
    make, complaint = BAD_PICTURES[kind]
    bad = tmp_path / "bad.png"
    if make is not None:
        bad.write_bytes(make(tmp_path))
    good = photos / "okapi" / "000.png"
    for words in (("teach", model, "okapi", good, bad), ("predict", model, good, bad)):
        said = refused(*words)
        assert "bad.png" in said
        assert complaint in said


def test_folders_without_pictures(model, refused, tmp_path):
    (tmp_path / "empty").mkdir()
    write_picture(tmp_path / "deep" / "below" / "a.png")
    assert "its sub-folders were not read (predict and" in refused("predict", model, tmp_path / "deep")
    for folder in (tmp_path / "empty", tmp_path / "deep"):
        assert "there are no pictures directly in this folder" in refused("predict", model, folder)
        assert "there are no pictures directly in this folder" in refused("teach", model, "okapi", folder)


@pytest.mark.parametrize(
    "words",
    [
        ("teach",),
        ("teach", "MODEL"),
        ("teach", "MODEL", "okapi"),
        ("teach", "MODEL", "okapi", "--from", "PHOTOS"),
        ("teach", "MODEL", "okapi", "PHOTOS/okapi", "--from", "PHOTOS"),
        ("teach", "MODEL", "--from", "nowhere"),
        ("forget", "MODEL"),
        ("rename", "MODEL", "okapi"),
        ("categories",),
        ("predict", "MODEL"),
        ("predict", "MODEL", "PHOTOS/okapi", "--top", "0"),
        ("predict", "MODEL", "PHOTOS/okapi", "--among", "some"),
        ("predict", "MODEL", "PHOTOS/okapi", "--sheet", "sheet.jpg"),
        ("predict", "MODEL", "x" * 5000),
        ("predict", "MODEL", "nul\0byte"),
    ],
    ids=" ".join,
)
def test_wrong_calls(model, photos, refused, words):
    refused(*(word.replace("MODEL", str(model)).replace("PHOTOS", str(photos)) for word in words))


def test_a_message_quotes_a_path_as_it_is(model, refused, tmp_path):
    assert f"{tmp_path}/two  spaces" in refused("predict", model, tmp_path / "two  spaces.png")


COMMANDS = {
    "teach": ("quoll", "PHOTOS/okapi"),
    "hide": ("base-1",),
    "unhide": ("base-1",),
    "explain": ("okapi",),
    "check": ("PHOTOS",),
    "forget": ("okapi",),
    "rename": ("okapi", "quoll"),
    "categories": (),
    "predict": ("PHOTOS/okapi",),
}


@pytest.fixture(params=COMMANDS)
def command(request, photos):
    """Every command in turn, as a function of the model: its words."""
    rest = [word.replace("PHOTOS", str(photos)) for word in COMMANDS[request.param]]
    return lambda model, *more: (request.param, model, *rest, *more)


def test_a_model_that_cannot_be_used(model, command, refused, tmp_path):
    assert "there is no model at" in refused(*command(tmp_path / "nowhere"))
    path = model / "model.safetensors"
    whole = path.read_bytes()
    for content in (whole[:-10], whole[:5], b"", whole.replace(b'"recollect"', b'"recollekt"', 1)):
        path.write_bytes(content)
        assert "model.safetensors" in refused(*command(model))
    path.write_bytes(re.sub(rb'(?<={\\"format\\":)\d', b"9", whole, count=1))
    assert "this version reads formats up to" in refused(*command(model))


def test_a_store_that_cannot_be_used(taught, make_model, command, refused, tmp_path):
    save_model(taught / "model.safetensors", make_model(seed=1))
    said = refused(*command(taught))
    assert "belongs to another model" in said
    assert "another store" in said
    (tmp_path / "text.sqlite").write_text("not a store, but long enough to be looked at by SQLite" * 50)
    assert "another store" in refused(*command(taught, "--store", tmp_path / "text.sqlite"))
    assert "no store of the kind 'ftp'" in refused(*command(taught, "--store", "ftp://x/y"))
    refused(*command(taught, "--store", tmp_path))
    refused(*command(taught, "--store", "x" * 5000))


def test_a_store_that_is_not_there_is_not_made_by_mistake(taught, command, refused, tmp_path):
    name, *rest = command(taught, "--store", tmp_path / "typo.sqlite")
    if name != "teach":
        assert "there is no store at" in refused(name, *rest)
    if name in {"teach", "forget", "rename", "hide", "unhide"}:
        assert "gone when the command ends" in refused(name, *rest[:-1], "memory:")


def test_features_that_are_no_numbers(tmp_path, make_model, photos, refused):
    broken = make_model()
    next(broken.extractor.parameters()).data.fill_(float("nan"))
    save_model(tmp_path / "m.safetensors", broken)
    for words in (("teach", "okapi"), ("predict",)):
        command, *rest = words
        said = refused(command, tmp_path / "m.safetensors", *rest, photos / "okapi")
        assert "numbers that are not finite" in said
