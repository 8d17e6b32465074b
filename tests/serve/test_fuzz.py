"""Whatever is sent, the service answers with what it promised, and goes on."""

import contextlib
import os
import random

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable

from mutations import COUNT, mutations
from serving import TOKEN, Service, form, picture, serving

EXAMPLES = 300 if "SOAK_MUTATIONS" in os.environ else 6
KINDS = ("JPEG", "PNG", "WEBP", "GIF")


@pytest.fixture(scope="module")
def fuzzed(model):
    with serving(model, token=TOKEN) as running:
        running.headers = {"Authorization": f"Bearer {TOKEN}"}
        yield running


MODES = [schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE]
CHECKS = [
    schemathesis.checks.status_code_conformance,
    schemathesis.checks.content_type_conformance,
    schemathesis.checks.response_headers_conformance,
    schemathesis.checks.response_schema_conformance,
]


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_every_call_keeps_to_its_description(fuzzed: Service, mode):
    schema = schemathesis.openapi.from_url(f"{fuzzed.url}/v1/openapi.json")
    statuses = []

    def check(case):
        answer = case.call(headers=fuzzed.headers)
        statuses.append(answer.status_code)
        assert answer.status_code < 500 or answer.status_code == 503, answer.text
        case.validate_response(answer, checks=CHECKS)

    for found in schema.get_all_operations():
        quick = settings(
            max_examples=EXAMPLES,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate],
            derandomize=True,
            database=None,
        )
        with contextlib.suppress(Unsatisfiable):  # a call without parameters, which none can be wrong
            quick(given(case=found.ok().as_strategy(generation_mode=mode))(check))()
    assert len(statuses) > EXAMPLES
    assert any(400 <= status < 500 for status in statuses)


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_pictures_are_refused_or_answered(fuzzed: Service, kind):
    whole = picture(1, 40, kind)
    statuses = {200: 0, 422: 0}
    for damaged in mutations(whole, COUNT):
        statuses[fuzzed.call("POST", "/v1/predict", damaged).status] += 1  # no other one is known
    assert statuses[422] > 0
    assert fuzzed.call("POST", "/v1/predict", whole).status == 200


def test_random_bodies_and_lengths_are_refused(fuzzed: Service):
    rng = random.Random(0)
    for _ in range(COUNT):
        body = rng.randbytes(rng.choice((0, 1, 100, 5000)))
        path = rng.choice(("/v1/predict", "/v1/features", "/v1/categories?name=a", "/v1/taught"))
        kind = rng.choice(
            ("image/png", "multipart/form-data; boundary=a", "multipart/form-data", "application/json")
        )
        assert fuzzed.call("POST", path, body, content_type=kind).status in {400, 422}
    good, kind = form(("picture", picture(0)))
    for damaged in mutations(good, COUNT):
        assert fuzzed.call("POST", "/v1/predict", damaged, content_type=kind).status in {200, 400, 422}


def test_damaged_backups_are_refused_and_change_nothing(fuzzed: Service):
    assert fuzzed.call("POST", "/v1/categories?name=kept", picture(3)).status == 200
    whole = fuzzed.call("GET", "/v1/taught").content
    for damaged in mutations(whole, COUNT):
        answer = fuzzed.call("POST", "/v1/taught", damaged)
        if answer.status == 200:  # only blanks were changed
            assert answer.json["restored"] == {}
        else:
            assert answer.status == 422
    assert fuzzed.call("GET", "/v1/taught").content == whole


@pytest.mark.parametrize(
    "name",
    [
        "a" * 10_000,
        "\0",
        "a\nb",
        "\u202eevil",
        "\ud7ff\u0301" * 300,
        "😀" * 201,
        "../../etc/passwd",
        "C:\\x",
        "'; --",
    ],
)
def test_names_are_names_and_never_paths(fuzzed: Service, name):
    body, kind = form(("name", name), ("picture", picture(0)))
    answer = fuzzed.call("POST", "/v1/categories", body, content_type=kind)
    assert answer.status in {200, 400, 422}
    if answer.status == 200:
        assert answer.json["categories"][0]["name"] == name
