"""What the SQLite store promises beyond what every store does."""

import os
import sqlite3
import subprocess
import sys

import numpy as np
import pytest

from recollect.errors import StoreError
from recollect.store import NewExample, Owner, open_store

OWNER = Owner("a model", 3)
EXAMPLE = NewExample(np.arange(3, dtype=np.float32), np.ones(3, np.float32))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "stores" / "taught.sqlite"


def test_a_store_opens_again_with_what_was_taught(path):
    first = open_store(path, OWNER)
    taught = first.add("okapi", [EXAMPLE, EXAMPLE])
    first.close()
    assert open_store(f"sqlite:///{path}", OWNER).categories() == [taught]


def test_every_commit_reaches_the_disk(path):
    store = open_store(path, OWNER)
    with sqlite3.connect(path) as other:
        assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert store._connection.execute("PRAGMA synchronous").fetchone() == (2,)


def test_changes_of_another_connection_are_seen_and_own_ones_do_not_count(path):
    ours, theirs = open_store(path, OWNER), open_store(path, OWNER)
    before = ours.state()
    ours.add("okapi", [EXAMPLE])
    assert ours.state() == before
    theirs.add("tapir", [EXAMPLE])
    assert ours.state() != before
    assert [category.name for category in ours.categories()] == ["okapi", "tapir"]


@pytest.mark.parametrize("owner", [Owner("another", 3), Owner("a model", 4)])
def test_a_store_of_another_model_is_refused(path, owner):
    open_store(path, OWNER).add("okapi", [EXAMPLE])
    with pytest.raises(StoreError, match="belongs to another model"):
        open_store(path, owner)


def test_a_failed_call_leaves_everything_as_it_was(path):
    store = open_store(path, OWNER)
    okapi = store.add("okapi", [EXAMPLE])
    with pytest.raises(AttributeError):
        store.add("tapir", [EXAMPLE, None])
    assert store.categories() == [okapi]
    assert store.add("tapir", [EXAMPLE]).examples == 1


def test_a_file_that_is_no_store(path):
    path.parent.mkdir()
    path.write_bytes(b"no database at all, but long enough to be looked at" * 10)
    with pytest.raises(StoreError, match="not an SQLite file"):
        open_store(path, OWNER)
    path.unlink()
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE songs (name TEXT)")
    with pytest.raises(StoreError, match="another program"):
        open_store(path, OWNER)


def test_a_store_of_another_version(path):
    open_store(path, OWNER).close()
    with sqlite3.connect(path) as other:
        other.execute("UPDATE about SET format = 99")
    with pytest.raises(StoreError, match="another version"):
        open_store(path, OWNER)


def test_a_damaged_feature_is_told(path):
    store = open_store(path, OWNER)
    okapi = store.add("okapi", [EXAMPLE])
    with sqlite3.connect(path) as other:
        other.execute("UPDATE examples SET term = x'00'")
    with pytest.raises(StoreError, match="damaged"):
        list(store.terms())
    with pytest.raises(StoreError, match="damaged"):
        store.examples(okapi.id)


def test_a_path_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot open"):
        open_store(tmp_path / "file" / "taught.sqlite", OWNER)


def test_a_full_disk_is_told_and_loses_nothing(path):
    store = open_store(path, OWNER)
    okapi = store.add("okapi", [EXAMPLE])
    (pages,) = store._connection.execute("PRAGMA page_count").fetchone()
    store._connection.execute(f"PRAGMA max_page_count = {pages}")  # SQLite then answers as on a full disk
    big = NewExample(EXAMPLE.feature, EXAMPLE.term, bytes(100_000))
    with pytest.raises(StoreError, match="no room on the disk"):
        store.add("tapir", [big])
    assert store.categories() == [okapi]


def test_a_read_only_store_is_told(path):
    store = open_store(path, OWNER)
    okapi = store.add("okapi", [EXAMPLE])
    store._connection.execute("PRAGMA query_only = ON")
    with pytest.raises(StoreError, match="read-only"):
        store.add("tapir", [EXAMPLE])
    assert store.categories() == [okapi]


def test_a_forked_process_may_go_on_with_the_store(path):
    store = open_store(path, OWNER)
    store.add("okapi", [EXAMPLE])
    child = os.fork()
    if child == 0:
        try:
            store.add("tapir", [EXAMPLE])
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    store.add("quoll", [EXAMPLE])
    assert sorted(category.name for category in store.categories()) == ["okapi", "quoll", "tapir"]


def test_processes_that_create_and_teach_at_once_lose_nothing(path):
    program = f"""
import sys
import numpy as np
from recollect.store import NewExample, Owner, open_store
example = NewExample(np.zeros(3, np.float32), np.zeros(3, np.float32))
sys.stdin.readline()
store = open_store({str(path)!r}, Owner("a model", 3))
for number in range(25):
    store.add(f"{{sys.argv[1]}}-{{number}}", [example])
    store.add("shared", [example])
"""
    running = [
        subprocess.Popen([sys.executable, "-c", program, str(who)], stdin=subprocess.PIPE) for who in range(3)
    ]
    for process in running:
        process.stdin.write(b"\n")
        process.stdin.flush()
    assert [process.wait() for process in running] == [0, 0, 0]
    sizes = {category.name: category.examples for category in open_store(path, OWNER).categories()}
    assert len(sizes) == 76
    assert sizes["shared"] == 75
