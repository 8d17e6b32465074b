"""The client does what a recogniser does, and so do the commands with --server."""

import inspect
import json
from dataclasses import asdict

import numpy as np
import pytest
from PIL import Image

from pictures import pixels_of, write_folder, write_picture
from recollect import Client, Recognizer
from recollect.errors import (
    ArgumentError,
    MissingError,
    NameTakenError,
    PictureError,
    RecollectError,
    ServiceError,
)
from recollect.serve.settings import Limits
from serving import TOKEN, serving

PICTURES = [pixels_of(seed, 40) for seed in range(5)]


@pytest.fixture
def guarded(model):
    with serving(model, token=TOKEN, limits=Limits(pictures=4)) as running:
        yield running


@pytest.fixture
def client(guarded):
    with Client(guarded.url, TOKEN) as connected:
        yield connected


@pytest.fixture
def recognizer(model):
    return Recognizer.load(model)


def same(found, expected):
    for some, others in zip(found, expected, strict=True):
        assert [(one.category, one.origin) for one in some] == [(one.category, one.origin) for one in others]
        probabilities = [one.probability for one in others]
        assert [one.probability for one in some] == pytest.approx(probabilities, rel=1e-3)


def test_its_methods_take_what_those_of_a_recogniser_take():
    theirs = {name for name, _ in inspect.getmembers(Recognizer, inspect.isfunction) if name[0] != "_"}
    only_there = {"save", "scores", "predict_features", "teach_features", "make_store", "rule"}
    for name in theirs - only_there:
        ours = inspect.signature(getattr(Client, name)).parameters
        assert [*ours] == [*inspect.signature(getattr(Recognizer, name)).parameters], name


def test_pictures_of_every_kind_get_the_answers_of_a_recogniser(client, recognizer, tmp_path):
    path = write_picture(tmp_path / "a.png", 1, 50)
    with path.open("rb") as file:
        for one in (path, str(path), path.read_bytes(), file, Image.open(path), PICTURES[0]):
            same([client.predict(one)], [recognizer.predict(one)])
    for some in (PICTURES, iter(PICTURES), np.stack(PICTURES)):
        same(client.predict(some, 3, "base"), recognizer.predict(PICTURES, 3, "base"))
    assert np.allclose(client.features(PICTURES), recognizer.features(PICTURES), atol=1e-5)


def test_everything_a_recogniser_can_do(client, recognizer, model):
    for one in (client, recognizer):
        one.teach("okapi", PICTURES[:2], thumbnails=True)
        one.teach_all([("tapir", PICTURES[2]), ("a/b", [PICTURES[0]])])
        one.rename("tapir", "Straße 1")
        one.hide("base-3")
        one.hide("base-4")
        one.unhide("base-4")
        one.forget_example(one.examples("okapi")[0].id)
    assert client.categories() == recognizer.categories()
    assert client.duplicates("a/b") == recognizer.duplicates("a/b")
    for method in ("explain", "resembles"):
        ours, theirs = (getattr(one, method)("okapi", 3) for one in (client, recognizer))
        assert [name for name, _ in ours] == [name for name, _ in theirs]
        assert [share for _, share in ours] == pytest.approx([share for _, share in theirs], rel=1e-3)
    (ours,), (theirs,) = (one.examples("okapi") for one in (client, recognizer))
    assert np.allclose(ours.feature, theirs.feature, atol=1e-5)
    assert ours.thumbnail.startswith(b"\xff\xd8")
    backup = client.backup()
    client.forget("okapi")
    assert client.restore(backup) == {"okapi": 1}
    assert Recognizer.load(model).restore(client.backup("a/b")) == {"a/b": 1}
    other = Recognizer.load(model)
    assert other.restore(backup) == {"okapi": 1, "Straße 1": 1, "a/b": 1}
    assert other.categories() == recognizer.categories()


def test_pictures_taught_before_are_left_out_as_a_recogniser_leaves_them_out(client, recognizer):
    found = []
    for one in (client, recognizer):
        skipped = []
        one.teach("okapi", PICTURES[:2])
        one.teach("okapi", [PICTURES[0], PICTURES[2]], skip_duplicates=True)
        one.teach_all([("tapir", PICTURES[3:]), ("okapi", PICTURES[1:3])], skipped=skipped)
        one.teach("tapir", PICTURES[3])
        found.append((skipped, one.categories()))
    assert found[0] == found[1]
    assert found[0][0] == [2, 3]


def refusal(recognizer, act):
    with pytest.raises(RecollectError) as caught:
        act(recognizer)
    return type(caught.value), str(caught.value)


@pytest.mark.parametrize(
    ("act", "kind"),
    [
        (lambda one: one.forget("okapi"), MissingError),
        (lambda one: one.explain("okapi"), MissingError),
        (lambda one: one.rename("base-1", "base-2"), NameTakenError),
        (lambda one: one.forget("base-1"), RecollectError),
        (lambda one: one.predict(PICTURES[0], among="novel"), RecollectError),
        (lambda one: one.restore(b"nothing"), ArgumentError),
    ],
)
def test_errors_are_those_of_a_recogniser(client, recognizer, act, kind):
    assert refusal(client, act) == refusal(recognizer, act)
    assert refusal(client, act)[0] is kind


def test_bad_pictures_are_named_before_anything_is_sent(client, tmp_path):
    path = tmp_path / "empty.jpg"
    path.touch()
    with pytest.raises(PictureError, match=f"{path}: the file is empty"):
        client.teach("okapi", [PICTURES[0], path])
    with pytest.raises(PictureError, match="no pictures were given"):
        client.predict([])
    with pytest.raises(PictureError, match="no pictures were given"):
        client.teach("okapi", [])


def test_what_cannot_be_reached_or_is_refused_says_so(guarded, client):
    with pytest.raises(ServiceError, match=r"this call needs a token.*RECOLLECT_TOKEN"):
        Client(guarded.url).forget("okapi")
    with pytest.raises(ServiceError, match="the token is wrong"):
        Client(guarded.url, "another token").forget("okapi")
    with pytest.raises(ServiceError, match="at most 4 pictures at once, and these are 5"):
        client.teach("okapi", PICTURES)
    with pytest.raises(ServiceError, match=r"http://127\.0\.0\.1:9 does not answer"):
        Client("http://127.0.0.1:9").categories()
    with pytest.raises(ServiceError, match="there is nothing here"):
        Client(f"{guarded.url}/elsewhere").categories()
    with pytest.raises(ArgumentError, match="expected http://HOST:PORT"):
        Client("localhost:8000")


def test_a_service_without_room_is_asked_again(model, client, guarded):
    engine, refusals = guarded.engine, iter([True])
    admitted = engine._admitted

    def crowded(pictures):
        if next(refusals, False):
            engine._waiting += engine.limits.queue
            try:
                with admitted(pictures):
                    raise AssertionError("there was room")
            finally:
                engine._waiting -= engine.limits.queue
        return admitted(pictures)

    engine._admitted = crowded
    client.teach("okapi", PICTURES[0])
    assert next(refusals, None) is None
    assert client.categories()[-1].examples == 1


@pytest.fixture
def command(run, guarded, monkeypatch):
    monkeypatch.setenv("RECOLLECT_TOKEN", TOKEN)

    def call(name, *words):
        code, out, err = run(name, "--server", guarded.url, *words, "--json", "--quiet")
        assert (code, err) == (0, "")
        return json.loads(out)

    return call


def test_the_commands_ask_a_service(command, guarded, recognizer, tmp_path):
    folder = write_folder(tmp_path / "zoo", {"okapi": 2, "tapir": 1})
    taught = command("teach", "--from", folder)
    assert taught["model"] == taught["store"] == guarded.url
    assert [(one["name"], one["examples"]) for one in taught["taught"]] == [("okapi", 2), ("tapir", 1)]
    again = command("teach", "--from", folder)["taught"]
    assert [(one["added"], len(one["skipped"]), one["examples"]) for one in again] == [(0, 2, 2), (0, 1, 1)]
    recognizer.teach_all(
        {"okapi": sorted((folder / "okapi").iterdir()), "tapir": [folder / "tapir" / "000.png"]}
    )
    new = write_picture(tmp_path / "new.png", 9)
    (answer,) = command("predict", new, "--top", 2)["predictions"]
    assert [one["category"] for one in answer["answers"]] == [
        one.category for one in recognizer.predict(new, 2)
    ]
    leaning = command("explain", "okapi", "--top", "1")["leans_on"]
    assert leaning[0]["category"] == recognizer.explain("okapi", 1)[0][0]
    assert command("rename", "okapi", "giraffe")["new"] == "giraffe"
    assert command("hide", "base-1")["hidden"] is True
    assert command("unhide", "base-1")["hidden"] is False
    assert command("forget", "tapir")["examples"] == 1
    assert command("features", new, "--out", tmp_path / "new.npz")["width"] == 32
    recognizer.rename("okapi", "giraffe")
    recognizer.forget("tapir")
    listed = {one["name"]: one for one in command("categories")["categories"]}
    assert listed == {one.name: asdict(one) for one in recognizer.categories()}


def test_what_the_commands_print_names_the_service(run, guarded, monkeypatch, tmp_path):
    monkeypatch.setenv("RECOLLECT_TOKEN", TOKEN)
    path = write_picture(tmp_path / "new.png", 9)
    code, out, _ = run("teach", "okapi", path, f"--server={guarded.url}")
    assert (code, out.splitlines()[-1]) == (0, f"Kept by {guarded.url}")
    _, out, _ = run("hide", "base-1", "--server", guarded.url)
    assert out.endswith(f"To undo this: recollect unhide --server {guarded.url} base-1\n")


def test_a_service_that_refuses_is_one_line(refused, guarded, tmp_path):
    path = write_picture(tmp_path / "new.png", 9)
    assert "this call needs a token" in refused("teach", "--server", guarded.url, "okapi", path)
    assert "does not answer" in refused("predict", "--server", "http://127.0.0.1:9", path)
    assert "has a store" in refused("forget", "--server", guarded.url, "okapi", "--store", "a.sqlite")
