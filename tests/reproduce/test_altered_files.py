"""Plans and results that somebody altered are refused in one line that names the file."""

import base64
import json
import os
import shutil
import zlib
from pathlib import Path

import pytest

from pictures import memory_room
from recollect.errors import RecollectError
from recollect.reproduce.page import PICTURE, TSNE, write_page

PUBLISHED = next((Path(__file__).parents[2] / "docs/results").glob("*/tsne.json")).parent
PLAN, RESULT = "plan.json", "results/cosine-mean.json"


@pytest.fixture
def folder(tmp_path):
    kept = Path(shutil.copytree(PUBLISHED, tmp_path / "table"))
    write_page(kept)
    return kept


def refused(folder, name):
    with pytest.raises(RecollectError) as found:
        write_page(folder)
    assert name in str(found.value)
    assert len(str(found.value)) < 300


@pytest.mark.parametrize("name", [PLAN, TSNE, RESULT])
@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "3", '{"table": 3}', "[" * 100_000, '{"seeds": ' + "9" * 5000 + "}", "\udcff"]
)
def test_what_is_no_such_file_is_refused(folder, name, text):
    (folder / name).write_text(text, errors="surrogateescape")
    refused(folder, name)


@pytest.mark.parametrize("name", [PLAN, TSNE, PICTURE, RESULT])
def test_a_fifo_does_not_block(folder, name):
    (folder / name).unlink()
    os.mkfifo(folder / name)
    refused(folder, name)


def test_a_picture_that_is_gone_is_told_with_what_to_delete(folder):
    (folder / PICTURE).unlink()
    refused(folder, f"delete {TSNE} to draw it again")


def test_what_is_no_text_is_written_escaped(folder):
    words = json.loads((folder / RESULT).read_text())
    (folder / RESULT).write_text(json.dumps({**words, "commands": ["recollect train \udcff"]}))
    assert "recollect train \\udcff" in write_page(folder).read_text()


def test_a_figure_that_is_gone_is_a_dash(folder):
    words = json.loads((folder / RESULT).read_text())
    del words["right"]["1"]
    (folder / RESULT).write_text(json.dumps(words))
    assert "| cosine, mean | – | – | – |" in write_page(folder).read_text()


@pytest.mark.slow
def test_packed_numbers_that_unpack_to_gigabytes_are_refused(folder):
    words = json.loads((folder / RESULT).read_text())
    words["right"]["1"]["novel"] = base64.b64encode(zeros(1 << 10)).decode()
    (folder / RESULT).write_text(json.dumps(words))
    with memory_room(600 << 20):
        refused(folder, RESULT)


def zeros(megabytes):
    """Return what unpacks to so many megabytes of zeros, without packing them all."""
    packer, piece = zlib.compressobj(), bytes(1 << 20)
    first, other = (packer.compress(piece) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    checksum = ((megabytes << 20) % 65521 << 16 | 1).to_bytes(4, "big")
    return first + (megabytes - 1) * other + packer.flush()[:-4] + checksum


def packed(content):
    return base64.b64encode(zlib.compress(content)).decode()


CHANGES = [
    (PLAN, "table", "table9"),
    (PLAN, "keys", []),
    (PLAN, "keys", ["c32f"]),
    (PLAN, "seeds", 0),
    (PLAN, "seeds", 10**9),
    (PLAN, "tasks", -1),
    (PLAN, "settings", 3),
    *(
        (PLAN, "decided", {"cifar-fs-c64f-table": {"stage1.steps": "3", key: value}})
        for key, value in [("extractor", "module:os:abort"), ("device", "cpu"), ("stage2.steps", "many")]
    ),
    (TSNE, "pictures", None),
    (TSNE, "silhouettes", {"of features": {"cosine": 1.0}}),
    (TSNE, "silhouettes", []),
    *(
        (RESULT, key, None)
        for key in ("kind", "commands", "images_seen", "training_seconds", "report", "right")
    ),
    (RESULT, "training_seconds", "many"),
    (RESULT, "episodes_seen", []),
    (RESULT, "commands", [1]),
    (RESULT, "report", {"ways": 0, "queries": 1, "tasks": 1}),
    *(
        (RESULT, "right", {"1": {"novel": word}})
        for word in ("?", "AAAA", packed(b"123"), packed(b"1234"), 3)
    ),
]


@pytest.mark.parametrize(("name", "key", "value"), CHANGES)
def test_altered_words_are_refused(folder, name, key, value):
    words = json.loads((folder / name).read_text())
    assert key in words
    (folder / name).write_text(json.dumps({**words, key: value}))
    refused(folder, name)


def test_results_of_other_numbers_of_tasks_do_not_mix(folder):
    words = json.loads((folder / RESULT).read_text())
    words["report"]["tasks"], words["right"] = 2, {"1": {"novel": packed(b"1234")}}
    (folder / RESULT).write_text(json.dumps(words))
    refused(folder, "different numbers of tasks")
