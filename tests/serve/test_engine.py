"""One pass of the extractor serves many requests; what there is no room for is refused."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from recollect.errors import ModelError, StoreFailure
from recollect.images import read_pixels
from recollect.serve.settings import Limits
from serving import form, picture, serving

PICTURES = [picture(seed) for seed in range(8)]


class Held:
    """Stops an engine's passes until it is released, and notes how many pictures each has."""

    def __init__(self, engine):
        self.sizes, self.released, self.entered = [], threading.Event(), threading.Event()
        self._features = engine.recognizer.features
        engine.recognizer.features = self.features

    def features(self, pixels):
        self.sizes.append(len(pixels))
        self.entered.set()
        assert self.released.wait(60)
        return self._features(pixels)


def ask(service, one):
    return service.call("POST", "/v1/predict", one)


def waiting(service, count):
    """Wait until so many pictures wait for a pass."""
    engine, latest = service.engine, time.monotonic() + 60
    while True:
        with engine._changed:
            if len(engine._jobs) == count:
                return
        assert time.monotonic() < latest, f"{len(engine._jobs)} pictures wait, not {count}"
        time.sleep(0.001)


def test_requests_that_wait_together_share_one_pass(service):
    alone = [ask(service, one).json for one in PICTURES]
    held = Held(service.engine)
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(ask, service, PICTURES[0])
        assert held.entered.wait(60)
        others = [pool.submit(ask, service, one) for one in PICTURES[1:]]
        waiting(service, 7)
        held.released.set()
        answers = [one.result().json for one in (first, *others)]
    assert held.sizes == [1, 7]
    for found, expected in zip(answers, alone, strict=True):
        for one, other in zip(
            found["predictions"][0]["answers"], expected["predictions"][0]["answers"], strict=True
        ):
            assert one["category"] == other["category"]
            assert one["probability"] == pytest.approx(other["probability"], rel=1e-4)


def test_a_pass_takes_no_more_than_a_batch(model):
    with serving(model, threads=1, limits=Limits(batch=3)) as service, ThreadPoolExecutor(8) as pool:
        held = Held(service.engine)
        first = pool.submit(ask, service, PICTURES[0])
        assert held.entered.wait(60)
        others = [pool.submit(ask, service, one) for one in PICTURES[1:]]
        waiting(service, 7)
        held.released.set()
        assert {one.result().status for one in (first, *others)} == {200}
    assert held.sizes == [1, 3, 3, 1]


def test_pictures_that_wait_are_shared_by_the_threads(model):
    with serving(model, threads=2) as service, ThreadPoolExecutor(8) as pool:
        held = Held(service.engine)
        body, kind = form(*(("picture", one) for one in PICTURES[:7]))
        answer = pool.submit(service.call, "POST", "/v1/predict", body, content_type=kind)
        waiting(service, 1)  # 4 of 7, and then 2 of 3
        held.released.set()
        assert answer.result().status == 200
    assert sorted(held.sizes) == [1, 2, 4]


def test_a_picture_that_cannot_be_read_does_not_reach_the_others_of_its_pass(service):
    held = Held(service.engine)
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(ask, service, PICTURES[0])
        assert held.entered.wait(60)
        others = [pool.submit(ask, service, one) for one in (PICTURES[1], b"nothing", PICTURES[2])]
        waiting(service, 3)
        held.released.set()
        assert [one.result().status for one in (first, *others)] == [200, 200, 422, 200]
    assert held.sizes == [1, 2]


def test_different_questions_share_a_pass_and_get_their_own_answers(service):
    alone = service.call("POST", "/v1/predict?top=4", PICTURES[2]).json["predictions"][0]["answers"]
    held = Held(service.engine)
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(ask, service, PICTURES[0])
        assert held.entered.wait(60)
        calls = {"predict?top=1": 1, "predict?top=4": 2, "predict?among=novel": 3, "features": 4}
        others = {}
        for count, (call, place) in enumerate(calls.items(), 1):
            others[call] = pool.submit(service.call, "POST", f"/v1/{call}", PICTURES[place])
            waiting(service, count)  # so that they come in this order
        held.released.set()
        assert first.result().status == 200
        found = {call: answer.result() for call, answer in others.items()}
    assert held.sizes == [1, 4]
    assert len(found["predict?top=1"].json["predictions"][0]["answers"]) == 1
    answers = found["predict?top=4"].json["predictions"][0]["answers"]
    assert [one["category"] for one in answers] == [one["category"] for one in alone]
    probabilities = [one["probability"] for one in alone]
    assert [one["probability"] for one in answers] == pytest.approx(probabilities, rel=1e-4)
    assert found["predict?among=novel"].status == 409
    assert found["features"].json["width"] == 32


def test_a_full_queue_answers_503_and_says_when_to_try_again(model):
    with serving(model, threads=1, limits=Limits(queue=2)) as service, ThreadPoolExecutor(2) as pool:
        held = Held(service.engine)
        first = pool.submit(ask, service, PICTURES[0])
        assert held.entered.wait(60)
        second = pool.submit(ask, service, PICTURES[1])
        waiting(service, 1)
        late = threading.Timer(20, held.released.set)  # if it is not refused, it must not wait for ever
        late.start()
        refused = ask(service, PICTURES[2])
        late.cancel()
        assert refused.status == 503
        assert refused.headers["retry-after"] == "1"
        assert "2 pictures are waiting" in refused.detail
        held.released.set()
        assert {first.result().status, second.result().status} == {200}
        assert ask(service, PICTURES[2]).status == 200


def test_what_one_request_breaks_does_not_reach_the_others_of_its_pass(service):
    held = Held(service.engine)
    features = held._features

    def broken(pixels):
        if any(np.array_equal(one, bad_pixels) for one in pixels):
            raise ModelError("the extractor gives no finite numbers for /secret/place")
        return features(pixels)

    held._features = broken
    bad_pixels = read_pixels(PICTURES[2], 16)
    three = form(*[("picture", one) for one in PICTURES[:3]])
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(ask, service, PICTURES[0])
        assert held.entered.wait(60)
        bad = pool.submit(service.call, "POST", "/v1/predict", three[0], content_type=three[1])
        good = pool.submit(ask, service, PICTURES[1])
        waiting(service, 4)
        held.released.set()
        assert first.result().status == good.result().status == 200
        assert bad.result().status == 503
        assert "/secret" not in bad.result().content.decode()


def test_a_bug_in_a_pass_is_a_500_and_the_next_request_is_answered(service, caplog):
    features = service.engine.recognizer.features
    service.engine.recognizer.features = lambda pixels: 1 / 0
    answer = ask(service, PICTURES[0])
    assert answer.status == 500
    assert answer.detail == "a bug of the service; its log says more"
    for _ in range(200):  # the answer is sent first
        if "ZeroDivisionError" in caplog.text:
            break
        time.sleep(0.05)
    assert "ZeroDivisionError" in caplog.text
    service.engine.recognizer.features = features
    assert ask(service, PICTURES[0]).status == 200


def test_a_store_that_fails_is_a_503_without_its_path(service, caplog):
    def full(*_, **__):
        raise StoreFailure("the store /secret/taught.sqlite: no room on the disk")

    service.engine.recognizer.teach_features = full
    answer = service.call("POST", "/v1/categories?name=okapi", PICTURES[0])
    assert answer.status == 503
    assert answer.headers["retry-after"] == "5"
    assert "/secret" not in answer.content.decode()
    assert "/secret/taught.sqlite: no room" in caplog.text


@pytest.mark.parametrize(
    ("limits", "names"), [(Limits(categories=2), ["a", "b", "c"]), (Limits(examples=2), ["a", "a", "a"])]
)
def test_no_more_is_taught_than_the_limits_allow(model, limits, names):
    with serving(model, limits=limits) as service:
        statuses = [
            service.call("POST", f"/v1/categories?name={name}", one).status
            for name, one in zip(names, PICTURES, strict=False)
        ]
        assert statuses == [200, 200, 409]
        backup = service.call("GET", "/v1/taught").content
        known = service.call("GET", "/v1/categories").json
        assert service.call("DELETE", f"/v1/categories/{names[0]}").status == 204
        other = "d" if limits.categories == 2 else "a"
        assert service.call("POST", f"/v1/categories?name={other}", PICTURES[3]).status == 200
        assert service.call("POST", "/v1/taught", backup).status == 409
    assert sum(one["examples"] or 0 for one in known["categories"]) == 2


def test_a_known_category_can_be_taught_more_where_no_other_fits(model):
    with serving(model, limits=Limits(categories=1)) as service:
        for one in PICTURES[:2]:
            assert service.call("POST", "/v1/categories?name=okapi", one).status == 200


def test_teaching_under_load_loses_no_request_and_no_category(service):
    def predict(number):
        return ask(service, PICTURES[number % 8]).status

    def teach(number):
        taught = service.call("POST", f"/v1/categories?name=new-{number}", PICTURES[number])
        seen = service.call("POST", "/v1/predict?among=novel&top=100", PICTURES[number]).json
        return taught.status, f"new-{number}" in [
            one["category"] for one in seen["predictions"][0]["answers"]
        ]

    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(predict, number) for number in range(60)]
        taught = [pool.submit(teach, number) for number in range(8)]
        assert {one.result() for one in answers} == {200}
        assert {one.result() for one in taught} == {(200, True)}
    assert service.call("GET", "/v1/categories").json["taught"] == 8


def test_what_is_known_already_takes_no_room(model):
    with serving(model, limits=Limits(categories=1, examples=1)) as service:
        taught = service.call("POST", "/v1/categories?name=okapi", PICTURES[0])
        again = service.call("POST", "/v1/categories?name=okapi", PICTURES[0])
        assert (taught.status, again.status, again.json["skipped"]) == (200, 200, [0])
        restored = service.call("POST", "/v1/taught", service.call("GET", "/v1/taught").content)
        assert (restored.status, restored.json) == (200, {"restored": {}})


def test_a_renamed_base_category_has_no_more_room_than_others(model):
    with serving(model, limits=Limits(examples=1)) as service:
        change = {"content_type": "application/json"}
        assert service.call("PATCH", "/v1/categories/base-1", b'{"name": "zebu"}', **change).status == 200
        hidden = service.call("PATCH", "/v1/categories/base-1", b'{"hidden": true}', **change)
        assert (hidden.status, hidden.json["name"], hidden.json["hidden"]) == (200, "zebu", True)
        statuses = [
            service.call("POST", f"/v1/categories?name={name}", one).status
            for name, one in zip(["base-1", "zebu", "base-1"], PICTURES, strict=False)
        ]
        assert statuses == [200, 409, 409]
