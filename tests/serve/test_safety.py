"""Who may do what, and how much of it."""

import asyncio
import contextlib
import re
import select
import socket
import struct
import subprocess
import sys
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from recollect.errors import ConfigError
from recollect.serve.gate import Gate
from recollect.serve.protocol import LONGEST_HEAD
from recollect.serve.settings import Limits, Settings
from serving import TOKEN, form, picture, serving

PICTURE = picture(0)
READS = {("POST", "/v1/predict"), ("POST", "/v1/features")}


@pytest.fixture
def guarded(model):
    with serving(model, token=TOKEN) as running:
        yield running


def operations(service):
    """Yield the method and path of every call in the OpenAPI description, parameters filled in."""
    paths = service.call("GET", "/v1/openapi.json").json["paths"]
    for path, methods in paths.items():
        for method, words in methods.items():
            yield method.upper(), re.sub(r"\{\w+\}", "1", path), words


def test_nothing_that_changes_state_works_without_the_token(guarded):
    given = {"Authorization": f"Bearer {TOKEN}"}
    guarded.headers = given
    assert guarded.call("POST", "/v1/categories?name=1", PICTURE).status == 200
    before = guarded.call("GET", "/v1/taught").content
    changing = [
        (method, path, words)
        for method, path, words in operations(guarded)
        if method != "GET" and (method, path) not in READS
    ]
    assert len(changing) == 5
    for method, path, words in changing:
        assert words["security"] == [{"HTTPBearer": []}]
        for header in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": TOKEN},
            {"Authorization": "Basic YTpi"},
        ):
            guarded.headers = header
            answer = guarded.call(method, f"{path}?name=1", PICTURE)
            assert answer.status == 401, (method, path)
            assert answer.headers["www-authenticate"] == "Bearer"
    guarded.headers = given
    assert guarded.call("GET", "/v1/taught").content == before


def test_what_is_kept_of_pictures_is_not_given_away_without_the_token(guarded):
    for path in ("/v1/taught", "/v1/examples?category=okapi"):
        assert guarded.call("GET", path).status == 401
    for method, path in (*READS, ("GET", "/v1/categories"), ("GET", "/healthz"), ("GET", "/metrics")):
        assert guarded.call(method, path, PICTURE if method == "POST" else None).status == 200


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("127.0.0.1", True),
        ("localhost:8000", True),
        ("[::1]:80", True),
        ("192.168.1.4", True),
        ("Zoo.Example", True),
        ("evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example", False),
        ("[", False),
        ("", False),
    ],
)
def test_only_names_that_are_ours_are_answered(model, host, allowed):
    with serving(model, hosts=("zoo.example",)) as service:
        answer = service.call("GET", "/healthz", Host=host)
        assert answer.status == (200 if allowed else 421)


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({}, True),
        ({"Origin": "http://{host}"}, True),
        ({"Sec_Fetch_Site": "same-origin"}, True),
        ({"Sec_Fetch_Site": "none"}, True),
        ({"Origin": "http://evil.example"}, False),
        ({"Origin": "null"}, False),
        ({"Origin": "http://["}, False),
        ({"Origin": "http://{host}:1"}, False),
        ({"Sec_Fetch_Site": "cross-site"}, False),
        ({"Sec_Fetch_Site": "same-site"}, False),
        ({"Origin": "http://{host}", "Sec_Fetch_Site": "cross-site"}, False),
    ],
)
def test_pages_of_other_sites_cannot_post(service, headers, allowed):
    host = "{}:{}".format(*service.address)
    given = {name: value.format(host=host) for name, value in headers.items()}
    for path in ("/v1/predict", "/v1/categories?name=okapi"):
        assert service.call("POST", path, PICTURE, **given).status == (200 if allowed else 403)
    assert service.call("GET", "/v1/categories", **given).json["taught"] == int(allowed)


def test_every_answer_has_strict_headers(service):
    for method, path in (
        ("GET", "/healthz"),
        ("GET", "/nothing"),
        ("PUT", "/v1/predict"),
        ("POST", "/v1/predict"),
    ):
        headers = service.call(method, path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert headers["cache-control"] == "no-store"
        assert "server" not in headers
        assert "access-control-allow-origin" not in headers


@pytest.fixture
def small(model):
    with serving(
        model, limits=Limits(body_mb=1, memory_mb=2, pictures=3, patience=1, connections=3)
    ) as running:
        yield running


def test_a_body_that_says_it_is_too_large_is_refused_unread(small):
    head = b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1048577\r\n\r\n"
    answer = small.raw(head)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in answer


def test_a_body_of_unsaid_length_is_cut_off_where_it_is_too_large(model):
    head = b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = b"10000\r\n" + bytes(0x10000) + b"\r\n"
    with serving(model, limits=Limits(body_mb=1)) as service:
        answer = service.raw(head + 17 * chunk)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in answer


def test_large_requests_at_once_are_refused_together(model):
    with serving(model, limits=Limits(body_mb=2, memory_mb=3)) as service:
        head = b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (2 << 20)
        with socket.create_connection(service.address) as first:
            first.sendall(head + bytes((2 << 20) - 1))
            time.sleep(0.5)
            answer = service.call("POST", "/v1/predict", bytes(2 << 20))
            assert answer.status == 503
            assert answer.headers["retry-after"] == "1"
            first.sendall(b"\0")
            assert first.recv(100).startswith(b"HTTP/1.1 422 ")
        assert service.call("POST", "/v1/predict", bytes(2 << 20)).status == 422


def test_too_many_pictures_in_a_call_are_refused(small):
    body, kind = form(*[("picture", PICTURE)] * 4)
    answer = small.call("POST", "/v1/predict", body, content_type=kind)
    assert answer.status == 413
    assert "Maximum number of files is 3" in answer.detail


def test_a_picture_of_too_many_pixels_is_refused_undecoded(model):
    size = struct.pack(">II", 2000, 2000) + bytes([8, 2, 0, 0, 0])
    chunk = b"IHDR" + size
    bomb = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
    idat = b"IDAT" + zlib.compress(bytes(100))
    bomb += struct.pack(">I", len(idat) - 4) + idat + struct.pack(">I", zlib.crc32(idat))
    with serving(model, limits=Limits(megapixels=3)) as service:
        answer = service.call("POST", "/v1/predict", bomb)
        assert answer.status == 422
        assert "at most 3 megapixels" in answer.detail
    with serving(model, limits=Limits(megapixels=5)) as service:
        assert "cut short or damaged" in service.call("POST", "/v1/predict", bomb).detail


_ONE_MORE = (
    b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"
)


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"GET /healthz HTTP/1.1\r\nHo",
        b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /healthz HTTP/1.1\r\nHo",
        b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900000\r\n\r\n" + bytes(800_000),
        _ONE_MORE,
    ],
)
def test_a_client_that_sends_a_byte_now_and_then_is_cut_off(small, start):
    began = time.monotonic()
    with socket.create_connection(small.address, timeout=30) as sock:
        sock.sendall(start)
        sock.settimeout(0.2)
        found = b""
        while time.monotonic() - began < 30:
            try:
                part = sock.recv(65536)
                found += part
                if not part:
                    break
            except TimeoutError:
                try:
                    sock.sendall(b"a" if start else b"")
                except OSError:
                    break
            except ConnectionResetError:
                break
    assert time.monotonic() - began < 10
    assert b"408 " in found


@pytest.mark.parametrize("last", [b"", b"no http at all\r\n\r\n"])
def test_a_client_that_does_not_take_its_answers_is_cut_off(small, last):
    """Ask for many large answers, and read none of them."""
    asked = b"GET /v1/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2000 + last
    began = time.monotonic()
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(small.address)
        sock.setblocking(False)
        while time.monotonic() - began < 60:
            try:
                asked = asked[sock.send(asked or b"\r\n") :]
            except BlockingIOError:
                pass
            except ConnectionError:
                break
            time.sleep(0.05)
    assert time.monotonic() - began < 50


def test_a_head_that_is_too_long_is_refused(small):
    lines = b"".join(b"X-%d: %s\r\n" % (number, b"a" * 1000) for number in range(LONGEST_HEAD // 1000 + 1))
    assert small.raw(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + lines).startswith(b"HTTP/1.1 431 ")


def test_connections_beyond_the_limit_are_turned_away_and_the_next_one_is_not(small):
    held = [socket.create_connection(small.address) for _ in range(3)]
    time.sleep(0.3)
    assert small.raw(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").startswith(b"HTTP/1.1 503 ")
    for one in held:
        one.close()
    time.sleep(0.3)
    assert small.call("GET", "/healthz").status == 200


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
        b"no http at all\r\n\r\n",
        b"CONNECT a:1 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"GET /v1/categories/%ff HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    ],
)
def test_what_is_not_a_request_is_refused(service, head):
    answer = service.raw(head, timeout=30) if b"close" in head or b"no http" in head else b""
    if not answer:
        with socket.create_connection(service.address, timeout=30) as sock:
            sock.sendall(head)
            answer = sock.recv(65536)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"application/problem+json" in answer
    assert b"x-content-type-options: nosniff" in answer


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"host": "0.0.0.0"}, "set a token"),
        ({"host": "zoo.example"}, "set a token"),
        ({"token": "short"}, "shorter than 16"),
        ({"tls_cert": "cert.pem"}, "go together"),
        ({"workers": 2, "store": "memory:"}, "share what is taught through a file"),
        ({"limits": Limits(megapixels=90)}, "at most 89"),
    ],
)
def test_unsafe_settings_are_refused(model, settings, words):
    with pytest.raises(ConfigError, match=words):
        Settings(model=model, **settings).check()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.8.8.8"])
def test_on_this_machine_alone_no_token_is_needed(model, host):
    Settings(model=model, host=host).check()
    Settings(model=model, host="0.0.0.0", token=TOKEN).check()


def test_a_token_is_not_shown(model):
    assert TOKEN not in repr(Settings(model=model, token=TOKEN))


def test_a_token_on_the_command_line_moves_to_the_environment(tmp_path):
    """In a process of its own, whose second start prints what it was started with."""
    program = tmp_path / "program.py"
    program.write_text(
        "import os, sys\n"
        "from recollect.commands.serve import hide_token\n"
        "if 'RECOLLECT_TOKEN' not in os.environ:\n"
        "    hide_token(sys.orig_argv, os.environ)\n"
        "print(sys.argv[1:], os.environ['RECOLLECT_TOKEN'])\n"
    )
    for words in (["--token", TOKEN], [f"--token={TOKEN}"]):
        line = [sys.executable, str(program), "serve", *words, "--port", "1"]
        done = subprocess.run(line, capture_output=True, text=True, check=True)
        assert done.stdout == f"['serve', '--port', '1'] {TOKEN}\n"


def test_a_body_is_not_read_before_the_token_was_seen(guarded):
    nested = b"[" + b"[]," * 1_000_000 + b"1]"
    answer = guarded.call("PATCH", "/v1/categories/okapi", nested, content_type="application/json")
    assert answer.status == 401
    with_token = {"content_type": "application/json", "Authorization": f"Bearer {TOKEN}"}
    assert guarded.call("PATCH", "/v1/categories/okapi", nested, **with_token).status == 413


@pytest.mark.parametrize("chunked", [False, True])
def test_a_refused_client_may_send_the_rest_before_it_reads_its_answer(guarded, chunked):
    told, part = b"Content-Length: 50000", bytes(10_000)
    if chunked:
        told, part = b"Transfer-Encoding: chunked", b"2710\r\n" + part + b"\r\n"
    with socket.create_connection(guarded.address, timeout=30) as sock:
        sock.sendall(b"PATCH /v1/categories/okapi HTTP/1.1\r\nHost: localhost\r\n" + told + b"\r\n\r\n")
        assert select.select([sock], [], [], 30)[0]  # the answer is here
        for _ in range(5):
            sock.sendall(part)
            time.sleep(0.05)
        sock.sendall(b"0\r\n\r\n" if chunked else b"")
        found = b""
        while more := sock.recv(65536):
            found += more
    assert found.startswith(b"HTTP/1.1 401 ")
    assert b"connection: close" in found


def test_a_refused_client_that_sends_no_more_is_not_waited_for_long(guarded, monkeypatch):
    monkeypatch.setattr("recollect.serve.gate._LINGER", 0.3)
    head = b"PATCH /v1/categories/okapi HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50000\r\n\r\n"
    began = time.monotonic()
    assert guarded.raw(head, timeout=30).startswith(b"HTTP/1.1 401 ")
    assert 0.3 <= time.monotonic() - began < 4


def test_no_more_than_a_body_may_have_is_thrown_away(small):
    """One that declares too much and sends on is cut off."""
    head = b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n"
    began, sent = time.monotonic(), 0
    with socket.create_connection(small.address, timeout=30) as sock, contextlib.suppress(OSError):
        sock.sendall(head)
        while sent < 100 << 20:
            sent += sock.send(bytes(65536))
    assert sent < 20 << 20
    assert time.monotonic() - began < 4


def test_a_body_is_counted_until_the_application_lets_go_of_it(model):
    held, sent = [], []

    async def refusing(scope, receive, send):
        await receive()
        await send({"type": "http.response.start", "status": 401, "headers": []})
        await send({"type": "http.response.body", "body": b"no"})
        held.append(gate._held)

    async def receive():
        held.append(gate._held)
        return {"type": "http.request", "body": bytes(100), "more_body": len(held) < 4}

    async def send(message):
        sent.append(message)

    gate = Gate(refusing, Settings(model=model))
    head = {"method": "POST", "path": "/", "raw_path": b"/", "client": None}
    scope = {"type": "http", **head, "headers": [(b"host", b"localhost"), (b"transfer-encoding", b"chunked")]}
    with ThreadPoolExecutor(1) as pool:  # a browser of another test may have a loop in this thread
        pool.submit(asyncio.run, gate(scope, receive, send)).result()
    assert held == [0, 100, 0, 0]  # asked for the body, answered, and asked for the rest twice
    assert [message.get("more_body", False) for message in sent] == [False, True, False]


def test_calls_that_wait_are_not_too_many(service):
    release = threading.Event()
    categories = service.engine.recognizer.categories

    def slow():
        assert release.wait(60)
        return categories()

    service.engine.recognizer.categories = slow
    with ThreadPoolExecutor(70) as pool:
        calls = [pool.submit(service.call, "GET", "/v1/categories") for _ in range(70)]
        while sum(one.done() for one in calls) < 6:
            time.sleep(0.01)
        release.set()
        statuses = [one.result().status for one in calls]
    assert (statuses.count(200), statuses.count(503)) == (64, 6)
    assert service.call("POST", "/v1/predict", PICTURE).status == 200


@pytest.mark.parametrize("charset", ["undefined", "utf-7", "unicode_escape", "no-such"])
def test_forms_are_read_as_utf_8_whatever_they_say(service, charset):
    body = (
        b'--edge\r\nContent-Disposition: form-data; name="picture"; filename="+2AA-\\ud800.png"\r\n'
        b"\r\n" + PICTURE + b"\r\n--edge--\r\n"
    )
    kind = f"multipart/form-data; boundary=edge; charset={charset}"
    answer = service.call("POST", "/v1/predict", body, content_type=kind)
    assert answer.status == 200
    assert answer.json["predictions"][0]["picture"] == "+2AA-\\ud800.png"
    assert service.call("POST", "/v1/predict", body, content_type="multipart/form-data").status == 400


def test_limits_that_leave_no_room_for_a_request_are_refused(tmp_path):
    for limits in (Limits(queue=10, pictures=11), Limits(memory_mb=10, body_mb=11)):
        with pytest.raises(ConfigError, match="must be at least"):
            Settings(model=tmp_path, limits=limits).check()
