"""Every call does what the same method of a recogniser does."""

import base64
import json
from dataclasses import asdict
from urllib.parse import quote

import numpy as np
import pytest

from recollect import Recognizer
from serving import form, picture, serving

PICTURES = [picture(seed) for seed in range(6)]


@pytest.fixture
def recognizer(model):
    return Recognizer.load(model)


def teach(service, name, *pictures, query=""):
    body, kind = form(("name", name), *(("picture", one) for one in pictures))
    answer = service.call("POST", f"/v1/categories{query}", body, content_type=kind)
    assert answer.status == 200, answer.content
    return answer.json["categories"]


def names(service):
    return [one["name"] for one in service.call("GET", "/v1/categories").json["categories"]]


def same(found, expected):
    assert [one["category"] for one in found] == [one.category for one in expected]
    assert [one["origin"] for one in found] == [one.origin for one in expected]
    probabilities = [one["probability"] for one in found]
    assert probabilities == pytest.approx([one.probability for one in expected], rel=1e-4)


def test_a_picture_as_the_body_gets_the_answers_of_a_recogniser(service, recognizer):
    answer = service.call("POST", "/v1/predict?top=3", PICTURES[0])
    (only,) = answer.json["predictions"]
    assert only["unknown"] is False
    same(only["answers"], recognizer.predict(PICTURES[0], top=3))


def test_pictures_in_a_form_are_answered_in_their_order(service, recognizer):
    body, kind = form(*(("picture", one) for one in PICTURES))
    found = service.call("POST", "/v1/predict", body, content_type=kind).json["predictions"]
    assert len(found) == len(PICTURES)
    for one, expected in zip(found, recognizer.predict(PICTURES), strict=True):
        same(one["answers"], expected)


def test_what_may_be_answered_can_be_chosen(service, recognizer):
    teach(service, "okapi", PICTURES[0])
    recognizer.teach("okapi", PICTURES[0])
    for among in ("novel", "base", "all"):
        (found,) = service.call("POST", f"/v1/predict?among={among}", PICTURES[1]).json["predictions"]
        same(found["answers"], recognizer.predict(PICTURES[1], among=among))


def test_features_are_those_of_the_recogniser(service, recognizer):
    body, kind = form(*(("picture", one) for one in PICTURES))
    answer = service.call("POST", "/v1/features", body, content_type=kind).json
    assert answer["width"] == 32
    assert np.allclose(answer["features"], recognizer.features(PICTURES), atol=1e-5)


def test_teaching_adds_a_category_and_then_examples(service, recognizer):
    assert teach(service, "okapi", *PICTURES[:2]) == [asdict(recognizer.teach("okapi", PICTURES[:2]))]
    assert teach(service, "okapi", PICTURES[2]) == [asdict(recognizer.teach("okapi", PICTURES[2]))]
    listed = service.call("GET", "/v1/categories").json
    assert (listed["base"], listed["taught"]) == (7, 1)
    assert listed["categories"] == [asdict(one) for one in recognizer.categories()]
    assert service.call("GET", "/v1/categories/okapi").json == listed["categories"][-1]


def test_pictures_that_a_category_has_are_left_out_unless_they_are_to_count_again(service):
    body, kind = form(
        ("name", "okapi"),
        ("picture", PICTURES[0]),
        ("name", "tapir"),
        ("picture", PICTURES[0]),
        ("name", "okapi"),
        ("picture", PICTURES[0]),
        ("picture", PICTURES[1]),
    )
    taught = service.call("POST", "/v1/categories", body, content_type=kind).json
    assert taught["skipped"] == [2]
    assert [(one["name"], one["examples"]) for one in taught["categories"]] == [("okapi", 2), ("tapir", 1)]
    again = service.call("POST", "/v1/categories", body, content_type=kind).json
    assert (again["skipped"], again["categories"]) == ([0, 1, 2, 3], taught["categories"])
    counted = service.call("POST", "/v1/categories?keep_duplicates=true", body, content_type=kind).json
    assert counted["skipped"] == []
    assert [one["examples"] for one in counted["categories"]] == [5, 2]


def test_a_body_is_taught_under_the_name_in_the_query(service):
    answer = service.call("POST", "/v1/categories?name=okapi", PICTURES[0])
    assert [one["examples"] for one in answer.json["categories"]] == [1]


def test_each_name_in_a_form_is_that_of_the_pictures_after_it(service):
    fields = [("name", "okapi"), ("picture", PICTURES[0]), ("picture", PICTURES[1])]
    body, kind = form(*fields, ("name", "tapir"), ("picture", PICTURES[2]))
    taught = service.call("POST", "/v1/categories", body, content_type=kind).json["categories"]
    assert [(one["name"], one["examples"]) for one in taught] == [("okapi", 2), ("tapir", 1)]


def test_of_several_categories_all_are_taught_or_none(service):
    body, kind = form(
        ("name", "okapi"), ("picture", PICTURES[0]), ("name", "tapir"), ("picture", b"no picture")
    )
    answer = service.call("POST", "/v1/categories", body, content_type=kind)
    assert answer.status == 422
    assert answer.detail.startswith("picture.png: this is not a picture")
    assert "okapi" not in names(service)


@pytest.mark.parametrize("name", ["a/b", "Straße №1", "/", "100 %", "a?b#c", "..", "日本 "])
def test_names_of_any_kind_are_found_again(service, name):
    teach(service, name, PICTURES[0])
    place = f"/v1/categories/{quote(name, safe='')}"
    assert service.call("GET", place).json["name"] == name.strip()
    assert service.call("DELETE", place).status == 204
    assert service.call("GET", place).status == 404


def test_forgetting_renaming_and_hiding(service):
    teach(service, "okapi", PICTURES[0])
    renamed = service.call(
        "PATCH", "/v1/categories/okapi", b'{"name": "tapir"}', content_type="application/json"
    )
    assert (renamed.status, renamed.json["name"]) == (200, "tapir")
    for hidden in (True, False):
        body = json.dumps({"hidden": hidden}).encode()
        answer = service.call("PATCH", "/v1/categories/base-1", body, content_type="application/json")
        assert answer.json["hidden"] is hidden
    assert service.call("DELETE", "/v1/categories/tapir").status == 204
    assert names(service) == [f"base-{number}" for number in range(7)]


def test_examples_are_listed_and_forgotten_one_by_one(service, recognizer):
    teach(service, "okapi", *PICTURES[:2], query="?thumbnails=true")
    recognizer.teach("okapi", PICTURES[:2])
    found = service.call("GET", "/v1/examples?category=okapi").json["examples"]
    for one, expected in zip(found, recognizer.examples("okapi"), strict=True):
        assert np.allclose(one["feature"], expected.feature, atol=1e-5)
        assert base64.b64decode(one["thumbnail"]).startswith(b"\xff\xd8")
    for one in found:
        assert service.call("DELETE", f"/v1/examples/{one['id']}").status == 204
    assert "okapi" not in names(service)


def test_a_category_is_explained(service, recognizer):
    for name, one in zip(("okapi", "tapir"), PICTURES, strict=False):
        teach(service, name, one)
        recognizer.teach(name, one)
    teach(service, "tapir", PICTURES[0])
    recognizer.teach("tapir", PICTURES[0])
    for call, expected, relation in (
        ("explain", recognizer.explain("okapi", 3), "leans_on"),
        ("resembles", recognizer.resembles("okapi", 3), "resembles"),
    ):
        answer = service.call("GET", f"/v1/{call}/okapi?top=3").json
        assert answer["relation"] == relation
        assert [one["category"] for one in answer["shares"]] == [category for category, _ in expected]
        shares = [one["share"] for one in answer["shares"]]
        assert shares == pytest.approx([share for _, share in expected], rel=1e-3)
    twins = service.call("GET", "/v1/duplicates/tapir").json["duplicates"]
    assert twins == [asdict(one) for one in recognizer.duplicates("tapir")] != []


def test_what_was_taught_moves_to_another_service(service, model, tmp_path):
    teach(service, "okapi", *PICTURES[:2])
    service.call("PATCH", "/v1/categories/base-1", b'{"name": "zebu"}', content_type="application/json")
    backup = service.call("GET", "/v1/taught").content
    with serving(model, store=str(tmp_path / "other.sqlite")) as other:
        assert other.call("POST", "/v1/taught", backup).json == {"restored": {"okapi": 2}}
        assert names(other) == names(service)
        assert other.call("POST", "/v1/taught", backup).json == {"restored": {}}
        for one in PICTURES:
            assert (
                other.call("POST", "/v1/predict", one).json == service.call("POST", "/v1/predict", one).json
            )


def test_a_backup_brings_back_what_was_forgotten(service):
    teach(service, "okapi", PICTURES[0])
    backup = service.call("GET", "/v1/taught").content
    for _ in range(2):
        service.call("DELETE", "/v1/categories/okapi")
        assert service.call("POST", "/v1/taught", backup).json == {"restored": {"okapi": 1}}


def test_the_model_is_described_without_a_path(service, recognizer, model):
    answer = service.call("GET", "/v1/model")
    assert answer.json["fingerprint"] == recognizer.fingerprint
    assert answer.json["input"] == {"size": 16, "short_side": None}
    assert str(model.parent) not in answer.content.decode()


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "words"),
    [
        ("POST", "/v1/predict", b"", 422, "no picture was sent"),
        ("POST", "/v1/predict", b"no picture", 422, "the body: this is not a picture"),
        ("POST", "/v1/predict?top=0", PICTURES[0], 422, "in the query: 'top'"),
        ("POST", "/v1/predict?top=x", PICTURES[0], 422, "'top' must be a whole number"),
        ("POST", "/v1/predict?topp=1", PICTURES[0], 422, "no parameter 'topp' here: there are top, among"),
        ("POST", "/v1/predict?among=few", PICTURES[0], 422, "in the query: 'among'"),
        ("POST", "/v1/predict?among=novel", PICTURES[0], 409, "there are no taught categories"),
        ("POST", "/v1/categories", PICTURES[0], 422, "what do the pictures show?"),
        ("POST", "/v1/categories?name=%20", PICTURES[0], 422, "a name that is not empty"),
        ("POST", "/v1/categories?name=unknown", PICTURES[0], 422, "'unknown' is the answer for pictures"),
        ("POST", "/v1/categories?name=Base-1", PICTURES[0], 409, "spelled 'base-1'"),
        ("DELETE", "/v1/categories/okapi", None, 404, "no category called 'okapi'"),
        ("DELETE", "/v1/categories/base-1", None, 409, "nothing was taught to it"),
        ("DELETE", "/v1/examples/7", None, 404, "example 7 is not in the store"),
        ("GET", "/v1/examples?category=okapi", None, 404, "no category called 'okapi'"),
        ("GET", "/v1/explain/okapi", None, 404, "no category called 'okapi'"),
        ("POST", "/v1/taught", b"nothing of ours", 422, "this is not a backup"),
        ("GET", "/v1/nothing", None, 404, "there is nothing here"),
        ("GET", "/v1/examples", None, 422, "'category' is missing"),
        ("PUT", "/v1/predict", b"", 405, "has another method"),
    ],
)
def test_a_refusal_says_what_was_wrong(service, method, path, body, status, words):
    answer = service.call(method, path, body)
    assert answer.status == status
    assert words in answer.detail


@pytest.mark.parametrize(
    ("fields", "query", "words"),
    [
        ([("name", "a"), ("name", "b"), ("picture", PICTURES[0])], "", "no picture follows the name 'a'"),
        ([("picture", PICTURES[0]), ("name", "a")], "?name=b", "no picture follows the name 'a'"),
        ([("name", "a"), ("picture", PICTURES[0])], "?name=b", "in the query and in the form"),
        ([("name", "a"), ("picture", "okapi.jpg")], "", "-F picture=@FILE"),
        ([("name", "a"), ("photo", PICTURES[0])], "", "'photo' is not expected"),
    ],
)
def test_forms_that_say_something_else_than_they_mean_are_refused(service, fields, query, words):
    body, kind = form(*fields)
    answer = service.call("POST", f"/v1/categories{query}", body, content_type=kind)
    assert answer.status == 422
    assert words in answer.detail
    assert len(names(service)) == 7


@pytest.mark.parametrize("body", [b'{"name": "a", "hidden": true}', b"{}", b'{"names": "a"}', b"[" * 60_000])
def test_a_change_is_one_change(service, body):
    answer = service.call("PATCH", "/v1/categories/base-1", body, content_type="application/json")
    assert answer.status == 422
    assert "body" in answer.detail
    assert names(service) == [f"base-{number}" for number in range(7)]


def test_two_categories_cannot_have_one_name(service):
    teach(service, "okapi", PICTURES[0])
    for name in ("okapi", "base-2"):
        body = json.dumps({"name": name}).encode()
        teach(service, "tapir", PICTURES[1])
        answer = service.call("PATCH", "/v1/categories/tapir", body, content_type="application/json")
        assert answer.status == 409
        assert answer.json["error"] == "NameTakenError"


def test_a_backup_of_one_category_brings_back_that_one_alone(service):
    for number, name in enumerate(("okapi", "tapir", "a/b")):
        teach(service, name, *PICTURES[2 * number : 2 * number + 2], query="?thumbnails=true")
    kept = service.call("GET", "/v1/examples?category=a/b").json["examples"]
    backup = service.call("GET", f"/v1/taught?category={quote('a/b', safe='')}").content
    for name in ("okapi", "a%2Fb"):
        assert service.call("DELETE", f"/v1/categories/{name}").status == 204
    assert service.call("POST", "/v1/taught", backup).json == {"restored": {"a/b": 2}}
    assert names(service)[7:] == ["tapir", "a/b"]
    again = service.call("GET", "/v1/examples?category=a/b").json["examples"]
    for name in ("feature", "thumbnail"):
        assert [one[name] for one in again] == [one[name] for one in kept]
    assert service.call("GET", "/v1/taught?category=okapi").status == 404


def test_examples_come_without_their_features_if_wanted(service):
    teach(service, "okapi", PICTURES[0], query="?thumbnails=true")
    (one,) = service.call("GET", "/v1/examples?category=okapi&features=false").json["examples"]
    assert one["feature"] is None
    assert base64.b64decode(one["thumbnail"]).startswith(b"\xff\xd8")
