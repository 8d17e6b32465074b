import io
import pickle
import random
import struct
import subprocess
import sys
import time
import zipfile

import numpy as np
import pytest

from mutations import mutations
from pictures import memory_room
from recollect.data import pickles
from recollect.data.pickles import as_text, read_pickle, read_record
from recollect.errors import DataError

ARRAYS = [
    np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
    np.asfortranarray(np.arange(6, dtype=np.int64).reshape(2, 3)),
    np.array([1.5, -2.0], dtype=">f4"),
    np.array([True, False]),
    np.array([b"apple", b"bee"]),
    np.array(["apple", "größe"]),
    np.zeros((0, 3), np.float64),
    np.array(7, np.int32),
]


def read(content, place="data.pickle"):
    return read_pickle(io.BytesIO(content), place)


def same(one, other):
    if isinstance(one, np.ndarray | np.generic):
        return type(one) is type(other) and one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    return type(one) is type(other) and one == other


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_data_and_arrays_come_back_the_same_from_every_protocol(protocol):
    words = ["a", "größe", "x" * 300]
    data = {
        "data": ARRAYS,
        "again": ARRAYS,
        "labels": [0, 1, -5, 1 << 40, (1 << 63) - 1, 255, 70000],
        "names": words,
        b"bytes": [b"", b"raw\x00\xff", bytes(range(256)) * 2],
        "scalars": (np.uint8(3), np.float64(0.5), np.str_("word"), np.bool_(True)),
        "more": (None, True, False, 1.5, {}, [], (), ("one",), ("one", "two"), {"in": {"side": [words]}}),
    }
    assert same(read(pickle.dumps(data, protocol)), data)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_large_array_comes_back_and_cannot_be_written_to(protocol):
    data = np.random.default_rng(0).integers(0, 256, (50, 1000, 30), dtype=np.uint8)
    content = pickle.dumps({"data": data}, protocol)
    assert same(read(content)["data"], data)
    assert not read(content)["data"].flags.writeable


def python2(data):
    """Return a dict with an array, as Python 2 wrote it."""

    def word(text):
        return b"U" + bytes([len(text)]) + text

    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x02cnumpy\nndarray\nq\x03K\x00\x85q\x04U\x01bq\x05\x87q\x06Rq\x07"
        b"(K\x01" + b"".join(b"K" + bytes([side]) for side in data.shape) + b"\x86q\x08"
        b"cnumpy\ndtype\nq\x09U\x02u1q\x0aK\x00K\x01\x87q\x0bRq\x0c"
        b"(K\x03U\x01|q\x0dNNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tq\x0eb"
        b"\x89T" + struct.pack("<I", data.size) + data.tobytes() + b"q\x0ftq\x10b"
    )  # fmt: skip
    labels = b"]q\x11(" + b"".join(b"K" + bytes([number]) for number in range(len(data))) + b"e"
    return (
        b"\x80\x02}q\x01(" + word(b"data") + array + word(b"fine_labels") + labels
        + word(b"name") + word(b"caf\xe9") + b"u."
    )  # fmt: skip


def test_a_pickle_of_python_2_is_read_with_its_words_as_bytes():
    data = np.arange(12, dtype=np.uint8).reshape(3, 4)
    content = python2(data)
    assert np.array_equal(pickle.loads(content, encoding="bytes")[b"data"], data)  # so it is what we say
    found = read(content)
    assert same(found, {b"data": data, b"fine_labels": [0, 1, 2], b"name": b"caf\xe9"})
    record = read_record(io.BytesIO(content), "place")
    assert list(record) == ["data", "fine_labels", "name"]
    assert as_text(record["name"]) == "caf\ufffd"


def test_a_record_must_be_a_dict():
    with pytest.raises(DataError, match="meta holds a list where a dict is expected"):
        read_record(io.BytesIO(pickle.dumps([1])), "meta")


class Attack:
    def __init__(self, function, *arguments):
        self.reduced = function, arguments

    def __reduce__(self):
        return self.reduced


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_what_a_pickle_would_run_is_named_and_not_run(tmp_path, protocol):
    import os

    trace = tmp_path / "trace"
    content = pickle.dumps({"data": [1], "x": Attack(os.system, f"touch {trace}")}, protocol)
    with pytest.raises(DataError, match=r"^data\.pickle asks for '(posix|nt|os)\.system', .*nothing was run"):
        read(content)
    assert not trace.exists()
    pickle.loads(content)
    assert trace.exists()  # else the test would show nothing


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"(S'touch x'\nios\nsystem\n.", "the instruction INST"),
        (b"(cos\nsystem\nS'touch x'\no.", r"'os\.system'"),
        (b"cbuiltins\neval\n(S'1'\ntR.", r"'builtins\.eval'"),
        (b"cnumpy\nload\n(S'x'\ntR.", r"'numpy\.load'"),
        (b"cnumpy\nndarray.__new__\n.", r"'numpy\.ndarray\.__new__'"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", r"'os\.system'"),
        (b"Pobject\n.", "the instruction PERSID"),
        (b"K\x01Q.", "the instruction BINPERSID"),
        (b"\x82\x01.", "the instruction EXT1"),
        (b"cnumpy\nndarray\n.", "a name without content"),
        (b"cnumpy\ndtype\n(S'u1'\ntR.", "a type without content"),
        (b"(cnumpy\nndarray\n)Rl.", "an array without content"),
        (b"c_codecs\nencode\n(N}S'__defaults__'\n)stb.", "a change of a name"),
        (b"]}S'a'\nK\x01sb.", "a change of a list"),
        (b"cnumpy\ndtype\n(S'O8'\ntR.", "an array of type 'O8'"),
        (b"cnumpy\ndtype\n(S'M8'\ntR.", "an array of type 'M8'"),
        (b"cnumpy\ndtype\n(S'u1,u1'\ntR.", "an array of type 'u1,u1'"),
        (b"cnumpy\ndtype\n(S'u1'\ntR(K\x03S'|'\n(K\x01K\x02tNNK\x00K\x00K\x00tb.", "an array with fields"),
    ],
)  # fmt: skip
def test_anything_but_data_is_refused_by_name(content, named):
    with pytest.raises(DataError, match=rf"data\.pickle asks for .*{named}"):
        read(content)


def test_an_array_of_objects_is_refused():
    with pytest.raises(DataError, match="an array of type 'O8'"):
        read(pickle.dumps(np.array([{}, None], dtype=object)))


def from_buffer(content, shape, code="u1"):
    """Return a pickle that asks for an array over these bytes."""
    numbers = b"".join(b"\x8a\x09" + side.to_bytes(9, "little", signed=True) for side in shape)
    return (
        b"\x80\x05\x8c\x13numpy.core.numeric\x8c\x0b_frombuffer\x93(".replace(b"\x13", b"\x12")
        + b"B" + struct.pack("<I", len(content)) + content
        + b"cnumpy\ndtype\n\x8c" + bytes([len(code)]) + code.encode() + b"\x85R"
        + b"(" + numbers + b"t\x8c\x01CtR."
    )  # fmt: skip


def test_an_array_has_exactly_the_bytes_of_its_shape():
    assert same(read(from_buffer(b"abcdef", (2, 3))), np.frombuffer(b"abcdef", np.uint8).reshape(2, 3))
    for content, shape, code in (
        (b"abcdef", (2, 4), "u1"),
        (b"abcdef", (2, 2), "u1"),
        (b"abcdef", (-2, -3), "u1"),
        (b"", (1 << 62, 1 << 62), "u1"),
        (b"", (0, 1 << 62), "u8"),
        (b"", (1,) * 40, "u1"),
        (b"\xff\xff\xff\x7f", (1,), "<U1"),
        (b"\x00\xd8\x00\x00", (1,), "<U1"),
    ):
        with pytest.raises(DataError, match=r"data\.pickle is damaged"):
            read(from_buffer(content, shape, code))


HUGE = {
    "bytes": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b"x",
    "four gigabytes of bytes": b"\x80\x03B" + struct.pack("<I", 0xFFFFFFFF) + b"x",
    "bytearray": b"\x80\x05\x96" + struct.pack("<Q", 1 << 33) + b"x",
    "text": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 40) + b"x",
    "frame": b"\x80\x04\x95" + struct.pack("<Q", 1 << 40) + b"N",
    "memo": b"\x80\x02]r" + struct.pack("<I", 0xFFFFFFF0) + b"",
    "number": b"\x80\x02\x8b" + struct.pack("<i", 0x7FFFFFFF) + b"x",
    "more than an address": b"\x80\x04\x8e" + struct.pack("<Q", (1 << 64) - 1) + b"x",
}


@pytest.mark.parametrize("name", HUGE)
def test_a_tiny_file_that_promises_gigabytes_fails_quickly_and_with_little_memory(name):
    started = time.process_time()
    with memory_room(64 << 20), pytest.raises(DataError, match=r"data\.pickle is damaged"):
        read(HUGE[name])
    assert time.process_time() - started < 1


def test_a_file_that_asks_for_the_same_copy_again_and_again_is_refused():
    text = b"](X" + struct.pack("<I", 20_000) + b"x" * 20_000 + b"q\x00"
    encode = b"c_codecs\nencode\n(h\x00X\x06\0\0\0latin1tR"
    assert read(b"\x80\x02" + text + encode + b"e.") == ["x" * 20_000, b"x" * 20_000]
    with pytest.raises(DataError, match="it would unpack to many times its size"):
        read(b"\x80\x02" + text + encode * 50 + b"e.")


BOMBS = {"marks": b"(", "remembered lists": b"]\x94"}


@pytest.mark.slow
@pytest.mark.parametrize("name", BOMBS)
def test_millions_of_instructions_take_little_memory_and_time(tmp_path, name):
    """60 MB of marks took 5 GB and 70 s; a zip of it has 60 KB."""
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("train", b"\x80\x04" + BOMBS[name] * (60_000_000 // len(BOMBS[name])))
    program = """if 1:
        import resource, sys, zipfile
        from recollect.data.pickles import read_pickle
        from recollect.errors import DataError
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            read_pickle(zipfile.ZipFile(sys.argv[1]).open("train"), "train")
        except DataError as error:
            print(error)
        used = resource.getrusage(resource.RUSAGE_SELF)
        print(used.ru_maxrss - before, used.ru_utime)
    """
    run = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=True)
    said, figures = run.stdout.splitlines()
    assert said == "train is damaged, or not a pickle of a data set: it has more than 1000000 instructions"
    kilobytes, seconds = map(float, figures.split())
    assert kilobytes < 300 << 10
    assert seconds < 20  # on a busy machine; 2 on an idle one


def test_a_pickle_of_python_2_in_text_is_read():
    content = b"(dp1\nS'name'\np2\nS'caf\\xe9\\n'\np3\nsS\"it's\"\nI01\nsS'n'\n(lp4\nI7\naL8L\nas."
    assert read(content) == {b"name": b"caf\xe9\n", b"it's": True, b"n": [7, 8]}


def test_lists_in_lists_that_share_their_parts_take_no_time_and_loops_are_refused():
    shared = b"](K\x01K\x02e" + b"".join(
        b"q%c" % number + b"\x85](h%ch%ce" % (number, number) for number in range(60)
    )
    found = read(b"\x80\x02" + shared + b".")
    for _ in range(60):
        found = found[0]
    assert found == [1, 2]
    for content in (b"\x80\x02]q\x00h\x00a.", b"\x80\x02" + b"]" * 5000 + b"a" * 4999 + b"."):
        with pytest.raises(DataError, match="is damaged"):
            read(content)


def test_keys_whose_hash_takes_for_ever_are_refused():
    key = b"K\x01" + b"q\x00h\x00\x86" * 60
    for content in (b"}" + key + b"Ns.", b"}(" + key + b"Nu.", b"(" + key + b"Nd."):
        with pytest.raises(DataError, match="keys other than strings or numbers"):
            read(b"\x80\x02" + content)


def test_sets_and_byte_orders_are_not_hashed():
    nested = b"K\x01" + b"q\x00h\x00\x86" * 60
    kind = b"cnumpy\ndtype\n(S'u1'\ntR(K\x03" + nested + b"NNNK\x00K\x00K\x00tb."
    for content in (b"\x8f(" + nested + b"\x90.", b"(" + nested + b"\x91.", kind):
        with pytest.raises(DataError, match=r"data\.pickle"):
            read(b"\x80\x04" + content)


def test_numbers_that_no_data_set_has_are_refused():
    for value in (1 << 70, {1 << 70: 1}, [-(1 << 70)], {"labels": [1 << 20_000]}):
        with pytest.raises(DataError, match="a number has"):
            read(pickle.dumps(value))


def test_text_that_is_none_is_refused():
    with pytest.raises(DataError, match="is damaged"):
        read(pickle.dumps({"name": "\ud800"}))


@pytest.mark.parametrize("protocol", [0, 2, 4, 5, "Python 2"])
def test_a_damaged_pickle_gives_plain_data_or_our_own_error(protocol):
    data = np.arange(12, dtype=np.uint8).reshape(3, 4)
    if protocol == "Python 2":
        content = python2(data)
    else:
        content = pickle.dumps(
            {"data": data, "labels": [1, 2, 300], "names": ["a", "b"], "x": np.int64(4)}, protocol
        )
    refused = 0
    for damaged in mutations(content, 1000):
        try:
            check(read(damaged))
        except DataError as error:
            refused += str(error).startswith("data.pickle ")
    assert 300 < refused < 1000


def check(value):
    if isinstance(value, dict):
        for key, part in value.items():
            check(key)
            check(part)
    elif isinstance(value, list | tuple):
        for part in value:
            check(part)
    else:
        assert isinstance(value, str | bytes | int | float | None | np.ndarray | np.generic)


def test_random_instructions_give_plain_data_or_our_own_error():
    rng = random.Random(0)
    names = [f"c{module}\n{name}\n".encode() for module, name in pickles.KNOWN]
    operations = [bytes([code]) for code in pickle._Unpickler.dispatch]
    parts = [
        *names * 3,
        *operations,
        b"U\x02u1",
        b"K\x01",
        b"K\x00",
        b"(",
        b"t",
        b"\x85",
        b"R",
        b"b",
        b"C\x01x",
    ]
    refused = 0
    for _ in range(3000):
        content = b"".join(rng.choice(parts) for _ in range(rng.randrange(1, 25))) + b"."
        try:
            check(read(content))
        except DataError as error:
            refused += str(error).startswith("data.pickle ")
    assert 1500 < refused < 3000
