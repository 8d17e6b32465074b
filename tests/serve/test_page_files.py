"""The page's files: open to everybody, never stale, and under a strict policy."""

import re
from pathlib import Path

import pytest

import recollect.serve
from serving import TOKEN, serving

PAGE = Path(recollect.serve.__file__).parent / "page"
FILES = sorted(path.name for path in PAGE.iterdir())
KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


@pytest.fixture(scope="module")
def guarded(model):
    with serving(model, token=TOKEN) as running:
        yield running


def place(name):
    return "/" if name == "index.html" else f"/{name}"


@pytest.mark.parametrize("name", FILES)
def test_every_file_is_served_without_the_token_and_known_again(guarded, name):
    answer = guarded.call("GET", place(name))
    assert answer.status == 200
    assert answer.content == (PAGE / name).read_bytes()
    assert answer.headers["content-type"].startswith(KINDS[name.rpartition(".")[2]])
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["permissions-policy"].startswith("camera=(self)")
    assert answer.headers["x-content-type-options"] == "nosniff"
    again = guarded.call("GET", place(name), If_None_Match=f'W/"other", {answer.headers["etag"]}')
    assert (again.status, again.content) == (304, b"")
    assert again.headers["etag"] == answer.headers["etag"]
    assert guarded.call("GET", place(name), If_None_Match='"other"').status == 200
    head = guarded.call("HEAD", place(name))
    assert (head.status, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(answer.content))


def test_the_policy_allows_nothing_but_the_pages_own_files(guarded):
    policy = guarded.call("GET", "/").headers["content-security-policy"]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules.pop("img-src") == "'self' blob: data:"
    assert rules.pop("require-trusted-types-for") == "'script'"
    for name in ("script-src", "style-src", "connect-src"):
        assert rules.pop(name) == "'self'"
    assert set(rules.values()) == {"'none'"}
    assert {"default-src", "base-uri", "form-action", "frame-ancestors"} == rules.keys()


def test_nothing_in_the_page_would_be_stopped_by_the_policy_or_comes_from_elsewhere():
    html = (PAGE / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", html)
    for name in FILES:
        text = (PAGE / name).read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"(src|href|import|url\()\W*(https?:)?//", text), name


def test_only_one_module_uses_the_network_and_none_parses_markup():
    for name in FILES:
        text = (PAGE / name).read_text(encoding="utf-8")
        assert (re.search(r"\bfetch\(|XMLHttpRequest|WebSocket|EventSource", text) is not None) == (
            name == "service.js"
        )
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|DOMParser", text
        )


def test_the_backend_of_the_page_is_chosen_in_one_place():
    users = [
        name
        for name in FILES
        if re.search(r'from "\./service\.js"', (PAGE / name).read_text(encoding="utf-8"))
    ]
    assert users == ["backend.js"]


@pytest.mark.parametrize(
    "path", ["/page/app.js", "/../app.py", "/%2e%2e/app.py", "/files.py", "/index.htm", "//"]
)
def test_nothing_else_is_served(guarded, path):
    assert guarded.call("GET", path).status == 404


def test_the_model_says_whether_it_needs_a_token_and_can_be_drawn_for(guarded, service):
    assert guarded.call("GET", "/v1/model").json["needs_token"] is True
    assert service.call("GET", "/v1/model").json["needs_token"] is False
    assert service.call("GET", "/v1/model").json["drawn"] is False
    with serving("glyphs", threads=1) as characters:
        assert characters.call("GET", "/v1/model").json["drawn"] is True
