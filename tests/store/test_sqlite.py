"""What the SQLite store promises beyond what every store does."""

import contextlib
import multiprocessing
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mutations import COUNT, mutations
from pictures import disk_room
from recollect.errors import NameTakenError, StoreError
from recollect.store import BaseChange, NewExample, Owner, open_store, sqlite
from recollect.store.sql import checksum
from recollect.store.sqlite import SqliteStore

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
        assert other.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    assert store._connection.execute("PRAGMA synchronous").fetchone() == (3,)


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


def test_a_store_that_was_emptied_is_not_passed_over_in_silence(path, caplog):
    open_store(path, OWNER).add("okapi", [EXAMPLE])
    assert not caplog.messages
    path.write_bytes(b"")
    os.utime(path, (0, 0))  # or another process may be making it
    assert open_store(path, OWNER).categories() == []
    assert caplog.messages == [f"the store {path} was empty: if anything was taught, bring back a copy"]


def test_a_store_of_another_version(path):
    open_store(path, OWNER).close()
    with sqlite3.connect(path) as other:
        other.execute("UPDATE about SET format = 99")
    with pytest.raises(StoreError, match="another version"):
        open_store(path, OWNER)


@pytest.mark.parametrize(
    "change",
    [
        "CREATE TRIGGER t AFTER INSERT ON examples BEGIN DELETE FROM categories; END",
        "CREATE VIEW v AS SELECT * FROM categories",
        "ALTER TABLE categories DROP COLUMN revision",
        "ALTER TABLE about ADD COLUMN more",
        "DROP INDEX examples_of_category",
        "CREATE TABLE songs (name TEXT)",
    ],
)
def test_a_store_with_other_tables_is_refused_unchanged(path, change):
    store = open_store(path, OWNER)
    store.add("okapi", [EXAMPLE])
    store.close()
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute(change)
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"taught\.sqlite was written by another version .* or altered"):
        open_store(path, OWNER)
    assert path.read_bytes() == before


def test_what_sqlite_itself_adds_to_a_file_is_no_alteration(path):
    okapi = open_store(path, OWNER).add("okapi", [EXAMPLE])
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("ANALYZE")
        other.execute("VACUUM")
    assert open_store(path, OWNER).categories() == [okapi]


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE categories SET name = x'00ff'",
        "UPDATE categories SET fold = x'00ff'",
        "UPDATE categories SET revision = 'often'",
        "UPDATE categories SET id = -1",
        "UPDATE categories SET id = 9223372036854775807",
        "UPDATE examples SET id = 0",
        "UPDATE examples SET id = 9223372036854775807",
        "UPDATE sqlite_sequence SET seq = 9223372036854775807",
        "UPDATE sqlite_sequence SET seq = 'a'",
    ],
)
def test_rows_that_no_store_of_ours_holds_are_damage(path, change):
    open_store(path, OWNER).add("okapi", [EXAMPLE])
    with sqlite3.connect(path) as other:
        other.execute(change)
    with pytest.raises(StoreError, match=r"taught\.sqlite is damaged"):
        list(open_store(path, OWNER).terms())


def test_a_category_without_examples_is_damage_though_its_checksums_match(path):
    store = open_store(path, OWNER)
    row = 1, "okapi", "okapi", 0, 0
    with store._transaction():
        store._insert("categories", [(*row, checksum(*row))])
    with pytest.raises(StoreError, match=r"taught\.sqlite is damaged"):
        store.categories()


@pytest.mark.parametrize("change", ["added = 'today'", "thumbnail = 'small'"])
def test_an_example_with_other_things_in_it_is_damage(path, change):
    store = open_store(path, OWNER)
    store.add("okapi", [EXAMPLE])
    with sqlite3.connect(path) as other:
        other.execute(f"UPDATE examples SET {change}")
    with pytest.raises(StoreError, match="example 1 does not match its checksum"):
        store.content()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("UPDATE categories SET name = 'okapo'", "category 1 ('okapo')"),
        ("UPDATE categories SET revision = 7", "category 1 ('okapi')"),
        ("UPDATE categories SET examples = 1", "category 1 ('okapi')"),
        ("UPDATE examples SET category = 2 WHERE id = 1", "example 1"),
        ("UPDATE examples SET added = added + 1 WHERE id = 2", "example 2"),
        ("UPDATE examples SET norm = 1.0 WHERE id = 2", "example 2"),
        ("UPDATE examples SET term = zeroblob(12) WHERE id = 2", "example 2"),
        ("UPDATE examples SET feature = zeroblob(12) WHERE id = 2", "example 2"),
        ("UPDATE examples SET thumbnail = x'01' WHERE id = 2", "example 2"),
        ("UPDATE base SET hidden = 0", "base category 'lion'"),
        ("UPDATE base SET shown = 'lynx'", "base category 'lion'"),
        ("DELETE FROM examples WHERE id = 2", "pictures of 'okapi' are gone"),
    ],
)
def test_what_was_altered_is_refused_by_name(path, change, named):
    store = open_store(path, OWNER)
    store.add("okapi", [EXAMPLE, EXAMPLE])
    store.add("tapir", [EXAMPLE])
    store.change_base("lion", BaseChange("Löwe", hidden=True))
    store.content()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute(change)
    with pytest.raises(StoreError, match=re.escape(named)) as caught:
        store.content()
    assert str(path) in str(caught.value)


def test_an_altered_term_is_refused_before_it_scores(path):
    store = open_store(path, OWNER)
    store.add("okapi", [EXAMPLE])
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("UPDATE examples SET term = zeroblob(12)")
    with pytest.raises(StoreError, match="example 1 does not match its checksum"):
        list(store.terms())


@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM categories WHERE name = 'okapi'",
        "DELETE FROM base",
        "DELETE FROM known",
        "UPDATE sqlite_sequence SET seq = 7",
        "PRAGMA user_version = 7",
    ],
)
def test_whatever_is_gone_from_a_store_is_noticed_at_the_next_call(path, change):
    store = open_store(path, OWNER)
    store.add_all({"okapi": [EXAMPLE], "tapir": [EXAMPLE]})
    store.change_base("lion", BaseChange("Löwe", hidden=True))
    store.know(store.content())
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA foreign_keys = ON")
        other.execute(change)
    for call in (store.categories, lambda: store.add("quoll", [EXAMPLE]), lambda: open_store(path, OWNER)):
        with pytest.raises(StoreError, match=r"taught\.sqlite is damaged: what it lists does not match"):
            call()


def test_the_sums_of_the_seal_keep_in_step_with_every_change(path, monkeypatch):
    """A change counts itself into the sums, whoever wrote before it; a copy that is opened anew agrees."""
    monkeypatch.setattr(sqlite, "_FEW", -1)  # as if there were too many to sum them up every time

    def whole():
        """Check the seal against all that is kept."""
        store.categories()
        open_store(path, OWNER).close()

    store, other = open_store(path, OWNER), open_store(path, OWNER)
    okapi = store.add("okapi", [EXAMPLE])
    store.add("tapir", [EXAMPLE, EXAMPLE])
    whole()
    store.add("okapi", [EXAMPLE])
    store.rename(okapi.id, "Okapi")
    whole()
    other.add("quoll", [EXAMPLE])
    store.add("saola", [EXAMPLE])
    whole()
    with pytest.raises(NameTakenError):
        store.add_all({"kakapo": [EXAMPLE], "TAPIR": [EXAMPLE]})
    other.remove_example(store.examples(okapi.id)[0].id)
    with pytest.raises(NameTakenError):
        store.add_all({"kakapo": [EXAMPLE], "TAPIR": [EXAMPLE]})
    store.add("kakapo", [EXAMPLE])
    whole()
    for taught in store.categories():
        store.remove(taught.id)
    whole()
    store.add("okapi", [EXAMPLE])
    whole()


@pytest.mark.parametrize("few", [10_000, -1])
def test_a_writer_notices_damage_that_no_process_announced(path, monkeypatch, few):
    monkeypatch.setattr(sqlite, "_FEW", few)
    store = open_store(path, OWNER)
    first, *_ = store.add_all({f"category {number}": [EXAMPLE] for number in range(2000)})
    store.add("okapi", [EXAMPLE])
    ((kept,),) = store._rows("SELECT checksum FROM categories WHERE id = ?", first.id)
    row = b"category 0category 0"  # name and fold lie side by side
    content = path.read_bytes()
    assert content.count(row) == 1
    place = content.index(kept.to_bytes(4, "big"), content.index(row))
    with path.open("r+b") as file:
        file.seek(place)
        file.write((kept ^ 1).to_bytes(4, "big"))
    store._rows("PRAGMA shrink_memory")  # as if other pages had taken the place of this one
    if few < 0:
        store.add("tapir", [EXAMPLE])  # the sums are of a moment ago
        store._rows("PRAGMA shrink_memory")
        monkeypatch.setattr(sqlite, "_SUM_SECONDS", -1)
    with pytest.raises(StoreError, match="is damaged: what it lists does not match"):
        store.add("quoll", [EXAMPLE])


@pytest.mark.parametrize("done", range(6))
def test_an_interruption_while_sums_are_prepared_leaves_nothing_behind(path, monkeypatch, done):
    monkeypatch.setattr(sqlite, "_FEW", -1)
    store, whole = open_store(path, OWNER), sqlite._SUMS
    monkeypatch.setattr(sqlite, "_SUMS", (*whole[:done], "SELECT no_such_column"))
    with pytest.raises(StoreError):
        store.add("okapi", [EXAMPLE])
    monkeypatch.setattr(sqlite, "_SUMS", whole)
    okapi = store.add("okapi", [EXAMPLE])
    store.add("tapir", [EXAMPLE])
    store.remove(okapi.id)
    assert [taught.name for taught in open_store(path, OWNER).categories()] == ["tapir"]


def test_a_change_looks_only_at_its_own_category(path, monkeypatch):
    monkeypatch.setattr(sqlite, "_FEW", -1)
    store = open_store(path, OWNER)
    store.add_all({f"category {number}": [EXAMPLE] for number in range(50)})
    store.add("okapi", [EXAMPLE])
    asked = []
    store._connection.set_trace_callback(asked.append)
    store.add("tapir", [EXAMPLE])
    assert asked
    assert not [query for query in asked if "(checksum) FROM categories" in query]


def test_an_index_that_lost_a_name_is_noticed(path):
    store = open_store(path, OWNER)
    store.add_all({f"category {number}": [EXAMPLE] for number in range(5)})
    store.close()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        query = "SELECT rootpage FROM sqlite_master WHERE name = 'sqlite_autoindex_categories_1'"
        (page,) = other.execute(query).fetchone()
    content = bytearray(path.read_bytes())
    content[(page - 1) * 4096 + 4] -= 1  # how many names the page has
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"taught\.sqlite is damaged: its index"):
        open_store(path, OWNER)


def test_examples_that_their_index_lost_are_noticed_before_they_score(path):
    store = open_store(path, OWNER)
    store.add("okapi", [EXAMPLE, EXAMPLE])
    store.add("tapir", [EXAMPLE])
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("DELETE FROM examples WHERE id = 3")
    with pytest.raises(StoreError, match=r"taught\.sqlite is damaged: pictures of 'tapir' are gone"):
        list(store.terms())
    with pytest.raises(StoreError, match=r"taught\.sqlite is damaged: pictures of 'tapir' are gone"):
        store.examples(2)


def write_ahead(path):
    """Switch a store to the write-ahead log, and take its seal away, as the second version left it."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA journal_mode = WAL")
        other.execute("PRAGMA user_version = 0")


def test_a_store_with_a_write_ahead_log_becomes_one_file(path):
    store = open_store(path, OWNER)
    okapi = store.add("okapi", [EXAMPLE])
    store.close()
    write_ahead(path)
    again = open_store(path, OWNER)
    tapir = again.add("tapir", [EXAMPLE])
    assert [file.name for file in path.parent.iterdir()] == ["taught.sqlite"]
    copy = path.with_name("copy.sqlite")
    copy.write_bytes(path.read_bytes())
    assert open_store(copy, OWNER).categories() == [okapi, tapir]
    assert again._connection.execute("PRAGMA user_version").fetchone() != (0,)


@pytest.mark.parametrize("replaced", [False, True])
def test_a_store_that_was_deleted_or_replaced_acknowledges_nothing(path, replaced):
    store = open_store(path, OWNER)
    store.add("okapi", [EXAMPLE])
    for file in path.parent.glob("*"):
        file.unlink()
    if replaced:
        open_store(path, OWNER).close()
    for call in (lambda: store.add("tapir", [EXAMPLE]), store.categories, store.state):
        with pytest.raises(StoreError, match=r"taught\.sqlite was deleted or replaced while it was open"):
            call()
    store.close()
    assert path.exists() == replaced


def test_a_store_written_over_with_that_of_another_model_acknowledges_nothing(path):
    store, other = open_store(path, OWNER), path.with_name("other.sqlite")
    store.add("okapi", [EXAMPLE])
    theirs = open_store(other, Owner("another model", 3))
    for name in ("tapir", "wombat"):  # SQLite takes a file of as many changes for the one it knows
        theirs.add(name, [EXAMPLE])
    path.write_bytes(other.read_bytes())  # the same file, as `cp` leaves it
    for call in (lambda: store.add("quoll", [EXAMPLE]), store.categories):
        with pytest.raises(StoreError, match="was deleted or replaced while it was open"):
            call()
    assert path.read_bytes() == other.read_bytes()


def test_a_store_deleted_in_the_middle_of_a_change_does_not_acknowledge_it(path, monkeypatch):
    store = open_store(path, OWNER)
    add = SqliteStore._add

    def and_delete(self, *arguments):
        path.unlink()
        return add(self, *arguments)

    monkeypatch.setattr(SqliteStore, "_add", and_delete)
    with pytest.raises(StoreError, match="was deleted or replaced"):
        store.add("tapir", [EXAMPLE])


def test_an_open_store_can_be_copied_as_one_file(path):
    stores = [open_store(path, OWNER) for _ in range(2)]
    stores[0].add("okapi", [EXAMPLE])
    copy = path.with_name("copy.sqlite")
    copy.write_bytes(path.read_bytes())
    assert [one.name for one in open_store(copy, OWNER).categories()] == ["okapi"]
    stores[1].add("tapir", [EXAMPLE])


def test_what_is_damaged_is_not_copied_without_a_word(path):
    store = open_store(path, OWNER)
    store.add_all({"okapi": [EXAMPLE], "tapir": [EXAMPLE, EXAMPLE]})
    copy = path.with_name("copy.sqlite")
    assert sqlite.copy_store(path, copy) == (2, 3)
    assert open_store(copy, OWNER).content().digest() == store.content().digest()
    store.close()
    for old, new in ((b"okapi", b"okapu"), (EXAMPLE.feature.tobytes(), bytes(12))):
        path.write_bytes(copy.read_bytes().replace(old, new))
        with pytest.raises(StoreError, match=rf"{path} is damaged"):
            sqlite.copy_store(path, path.with_name(old.hex()))


ENDLESS = "CREATE VIEW categories AS WITH RECURSIVE m AS (SELECT 1 UNION ALL SELECT 1 FROM m) SELECT 1 FROM m"


@pytest.mark.parametrize(
    "statements",
    [
        [],
        ["CREATE TABLE categories (id)", "CREATE TABLE examples (id)"],
        [
            f"PRAGMA application_id = {sqlite._APPLICATION}",
            ENDLESS,
        ],
    ],
)
def test_what_is_no_store_is_not_copied(tmp_path, statements):
    path = tmp_path / "taught.sqlite"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as file:
        for statement in statements:
            file.execute(statement)
    with pytest.raises(StoreError, match=f"{path} (is an SQLite file of|was written by) another"):
        sqlite.copy_store(path, tmp_path / "copy.sqlite")


@pytest.mark.parametrize("end", ["", "-journal", "-wal", "-shm"])
def test_a_fifo_in_place_of_a_file_does_not_block(path, end):
    open_store(path, OWNER).close()
    link = path.with_name("link.sqlite")
    link.symlink_to(path)
    beside = Path(f"{path}{end}")
    beside.unlink(missing_ok=True)
    os.mkfifo(beside)
    for open_ in (open_store, sqlite.copy_store):
        for place in (path, link):
            with pytest.raises(StoreError, match=f"{beside} is not a regular file"):
                open_(place, OWNER if open_ is open_store else path.with_name("copy.sqlite"))


def first_format(path):
    """Write a store as the first version did: two categories, a third forgotten."""
    values = np.arange(3, dtype="<f4").tobytes(), np.ones(3, "<f4").tobytes()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as file:
        for statement in sqlite._SCHEMA_1:
            file.execute(statement)
        file.execute(f"PRAGMA application_id = {sqlite._APPLICATION}")
        file.execute("INSERT INTO about VALUES (1, 'a model', 3)")
        for name in ("okapi", "quoll", "tapir"):
            file.execute("INSERT INTO categories (name, fold, revision) VALUES (?, ?, 2)", (name, name))
        for category, small in ((1, None), (1, b"small"), (3, None), (2, None)):
            file.execute(
                "INSERT INTO examples (category, added, feature, term, thumbnail) VALUES (?, 5.5, ?, ?, ?)",
                (category, *values, small),
            )
        file.execute("DELETE FROM examples WHERE category = 2")
        file.execute("DELETE FROM categories WHERE id = 2")


def test_a_store_of_the_first_format_is_brought_up_to_date(tmp_path):
    path = tmp_path / "taught.sqlite"
    first_format(path)
    store = open_store(path, OWNER)
    content = store.content()
    assert [(one.id, one.name, one.examples, one.revision) for one, _ in content.categories] == [
        (1, "okapi", 2, 2),
        (3, "tapir", 1, 2),
    ]
    assert (content.last_category, content.last_example) == (3, 4)
    kept = content.categories[0][1][1]
    assert (kept.id, kept.added, kept.thumbnail, kept.feature.tolist()) == (2, 5.5, b"small", [0, 1, 2])
    assert store.same(EXAMPLE.feature) == [(1, 1), (1, 2), (3, 3)]
    assert store.add("saola", [EXAMPLE]).id == 4
    store.change_base("lion", BaseChange(hidden=True))
    store.close()
    assert len(open_store(path, OWNER).categories()) == 3


@pytest.mark.parametrize("feature", ["x'00'", "zeroblob(8) || x'0000807f'"])
def test_a_damaged_store_of_the_first_format_is_refused_unchanged(tmp_path, feature):
    path = tmp_path / "taught.sqlite"
    first_format(path)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as file:
        file.execute(f"UPDATE examples SET feature = {feature}")
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"taught\.sqlite is damaged"):
        open_store(path, OWNER)
    assert path.read_bytes() == before


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


def in_a_fork(work, user=None):
    """Run something in a forked process, perhaps as another user; return what it returned or raised."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if user is not None and os.getuid() == 0:  # who may write anywhere
                os.setuid(user)
            os.write(writer, (work() or "").encode())
        except Exception as error:  # noqa: BLE001
            os.write(writer, repr(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader, "rb") as stream:
        return stream.read().decode()


def test_a_forked_process_may_go_on_with_the_store_on_a_connection_of_its_own(path):
    store = open_store(path, OWNER)
    store.add("okapi", [EXAMPLE])
    before = store._connection

    def teach():
        store.add("tapir", [EXAMPLE])
        assert store._connection is not before

    assert in_a_fork(teach) == ""
    store.add("quoll", [EXAMPLE])
    assert sorted(category.name for category in store.categories()) == ["okapi", "quoll", "tapir"]


def test_a_forked_process_notices_that_the_store_was_deleted(path):
    store = open_store(path, OWNER)
    store.add("okapi", [EXAMPLE])
    for file in path.parent.glob("*"):
        file.unlink()
    assert "was deleted or replaced" in in_a_fork(lambda: store.add("tapir", [EXAMPLE]))
    assert not path.exists()


def test_a_forked_process_that_closes_the_store_leaves_its_parents_connection_alone(path):
    store = open_store(path, OWNER)
    store.add("okapi", [EXAMPLE])

    def close():
        store.close()
        assert store._connection.execute("SELECT COUNT(*) FROM categories").fetchone() == (1,)

    assert in_a_fork(close) == ""
    store.add("tapir", [EXAMPLE])
    assert [category.name for category in open_store(path, OWNER).categories()] == ["okapi", "tapir"]


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


def test_a_disk_that_fills_up_while_teaching_is_told_and_loses_nothing(path):
    store = open_store(path, OWNER)
    big = NewExample(EXAMPLE.feature, EXAMPLE.term, bytes(50_000))
    taught, refused = [], []
    with disk_room(400_000):
        for number in range(20):
            try:
                taught.append(store.add(f"category {number}", [big, big]))
            except StoreError as error:
                refused.append(str(error))
            assert store.categories() == taught
    assert taught
    assert refused
    assert all("check its room" in told for told in refused)
    taught.append(store.add("there is room again", [big]))
    store.close()
    again = open_store(path, OWNER)
    assert again.categories() == taught
    assert again._connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def as_nobody(check):
    """Run a check in a process whose user may not write what belongs to us; return what it returned."""
    return in_a_fork(check, user=65534)


@pytest.fixture
def shared():
    """A folder that everybody can enter."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def read_and_teach(path):
    """Say what is in a store, and how teaching is refused."""
    store = open_store(path, OWNER)
    known = " ".join(f"{category.name}:{category.examples}" for category in store.categories())
    try:
        store.add("quoll", [EXAMPLE])
    except StoreError as error:
        return f"{known}; {error}"
    return f"{known}; no error"


@pytest.mark.parametrize(
    "modes", [(0o555, 0o444), (0o555, 0o644), (0o777, 0o444)], ids=["folder and file", "folder", "file"]
)
@pytest.mark.parametrize("at_work", [False, True], ids=["closed", "open elsewhere"])
def test_a_read_only_store_can_be_read_and_refuses_to_be_taught(shared, modes, at_work):
    path = shared / "taught ?#.sqlite"
    store = open_store(path, OWNER)
    store.add("okapi", [EXAMPLE, EXAMPLE])
    if not at_work:
        store.close()
    folder_mode, file_mode = modes
    if at_work and file_mode & 0o200 and os.getuid() != 0:
        pytest.skip("SQLite's files are there already, and their owner may write to them")
    path.chmod(file_mode)
    shared.chmod(folder_mode)
    before = path.read_bytes()
    told = as_nobody(lambda: read_and_teach(path))
    assert told.startswith("okapi:2; ")
    assert "the file or its folder is read-only" in told
    assert path.read_bytes() == before


@pytest.mark.parametrize("kind", ["second format", "first format", "first format with a log"])
@pytest.mark.parametrize("modes", [(0o555, 0o444), (0o777, 0o444)], ids=["folder and file", "file"])
def test_a_read_only_store_of_an_earlier_version_can_be_read(shared, kind, modes):
    path = shared / "taught.sqlite"
    if kind == "second format":
        store = open_store(path, OWNER)
        store.add_all({"okapi": [EXAMPLE, EXAMPLE], "tapir": [EXAMPLE]})
        store.close()
    else:
        first_format(path)
    if kind != "first format":
        write_ahead(path)
    shared.chmod(modes[0])
    path.chmod(modes[1])
    before = path.read_bytes()
    told = as_nobody(lambda: read_and_teach(path))
    assert told.startswith("okapi:2 tapir:1; ")
    assert "the file or its folder is read-only: choose another store" in told
    assert path.read_bytes() == before


def test_a_copy_of_a_read_only_store_is_not_used_once_the_file_changed(tmp_path, monkeypatch):
    path = tmp_path / "taught.sqlite"
    first_format(path)
    monkeypatch.setattr(SqliteStore, "_is_writable", lambda _: False)
    store = open_store(path, OWNER)
    assert [one.name for one in store.categories()] == ["okapi", "tapir"]
    os.utime(path, (1, 1))
    with pytest.raises(StoreError, match="was deleted or replaced while it was open"):
        store.categories()


def test_a_store_that_only_others_may_write_is_read_anew_when_they_did(shared):
    path = shared / "taught.sqlite"
    open_store(path, OWNER).close()
    shared.chmod(0o555)
    first, second = os.pipe(), os.pipe()

    def check():
        store = open_store(path, OWNER)
        before = store.state(), store.categories()
        os.write(first[1], b"x")
        os.read(second[0], 1)
        after = store.state(), store.categories()
        return f"{len(before[1])} {len(after[1])} {before[0] != after[0]}"

    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, as_nobody(check).encode())
        os._exit(0)
    os.close(writer)
    os.read(first[0], 1)
    if os.getuid() != 0:
        shared.chmod(0o755)
    ours = open_store(path, OWNER)
    ours.add("okapi", [EXAMPLE])
    ours.close()
    os.write(second[1], b"x")
    with os.fdopen(reader, "rb") as stream:
        assert stream.read() == b"0 1 True"
    os.waitpid(child, 0)


def test_a_new_store_where_nothing_may_be_written_is_refused(shared):
    shared.chmod(0o555)
    told = as_nobody(lambda: read_and_teach(shared / "taught.sqlite"))
    assert told.startswith("StoreFailure(")
    assert str(shared) in told
    assert list(shared.iterdir()) == []


def content_of(store):
    """What a store holds, read in both ways."""
    return store.content().digest(), [(id_, terms.tolist()) for id_, terms in store.terms()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The bytes of a store with a few categories, and its content."""
    path = tmp_path_factory.mktemp("whole") / "taught.sqlite"
    store = open_store(path, OWNER)
    examples = [EXAMPLE, NewExample(EXAMPLE.feature, EXAMPLE.term, bytes(300))]
    store.add_all({f"category {number}": examples for number in range(30)})
    return path.read_bytes(), content_of(store)


@settings(max_examples=max(60, COUNT // 3))
@given(seed=st.integers(0, 2**32), cut=st.booleans())
def test_damage_anywhere_is_a_store_error_or_changes_nothing(whole, tmp_path_factory, seed, cut):
    draw = random.Random(seed)
    content = bytearray(whole[0])
    if cut:
        del content[draw.randrange(len(content)) :]
    else:
        for _ in range(draw.choice((1, 5, 50))):
            content[draw.randrange(len(content))] = draw.randrange(256)
    path = tmp_path_factory.mktemp("damaged") / "taught.sqlite"
    path.write_bytes(content)
    told = []
    try:
        store = open_store(path, OWNER)
        assert not content or content_of(store) == whole[1]
    except StoreError as error:
        told.append(str(error))
    else:
        first = 1
        for call in (
            lambda: store.examples(first),
            lambda: store.find("category 3"),
            lambda: store.add("okapi", [EXAMPLE]),
            lambda: store.rename(first, "tapir"),
            lambda: store.remove_example(first),
            lambda: store.remove(first),
        ):
            try:
                call()
            except StoreError as error:
                told.append(str(error))
        store.close()
    assert all(str(path) in line or "is not in the store" in line for line in told)


CHANGES = {
    "teaching": lambda store: [store.add(f"new {number}", [EXAMPLE] * 40) for number in range(20)],
    "forgetting": lambda store: [store.remove(taught.id) for taught in store.categories()[::2]],
    "renaming": lambda store: [
        store.rename(taught.id, f"{taught.name}, too") for taught in store.categories()
    ],
}


@pytest.fixture(params=CHANGES)
def cut_off(whole, tmp_path, request):
    """The file and the journal that a process leaves which is killed in the middle of a change."""
    path = tmp_path / "killed" / "taught.sqlite"
    path.parent.mkdir()
    path.write_bytes(whole[0])
    child = os.fork()
    if not child:
        store = SqliteStore(path, OWNER)
        store._connection.execute("PRAGMA cache_size = 3")  # so that much of it is in the file before the end
        with store._transaction():
            CHANGES[request.param](store)
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    content = path.read_bytes()
    assert content != whole[0]
    return content, Path(f"{path}-journal").read_bytes()


@pytest.mark.parametrize("which", [0, 1], ids=["file", "journal"])
def test_damage_to_what_a_killed_process_leaves_is_a_store_error_or_changes_nothing(
    whole, cut_off, tmp_path, which
):
    same, unharmed, count = 0, False, max(30, COUNT // 10)
    for number, damaged in enumerate([cut_off[which], b"", *mutations(cut_off[which], count)]):
        path = tmp_path / str(number) / "taught.sqlite"
        path.parent.mkdir()
        left = [*cut_off[:which], damaged, *cut_off[which + 1 :]]
        path.write_bytes(left[0])
        path.with_name(f"{path.name}-journal").write_bytes(left[1])
        try:
            with contextlib.closing(SqliteStore(path, OWNER)) as store:
                assert content_of(store) == whole[1] or not left[0]
            same += 1
            unharmed = unharmed or not number
        except StoreError:
            pass
    assert unharmed
    assert same < count + 2


@pytest.mark.parametrize("place", ["", ".", "sqlite://", "a\0b"])
def test_places_that_are_no_file(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreError, match="store"):
        open_store(place, OWNER)


def test_a_read_only_store_that_is_replaced_is_refused(shared):
    path, other = shared / "taught.sqlite", shared / "other.sqlite"
    for place, owner in ((path, OWNER), (other, Owner("another model", 3))):
        store = open_store(place, owner)
        store.add("okapi", [EXAMPLE])
        store.close()
    shared.chmod(0o555)

    def read():
        store = open_store(path, OWNER)
        ready.set()
        replaced.wait(30)
        said = []
        for _ in range(2):
            try:
                said.append(f"{store.categories()}")
            except StoreError as error:
                said.append(str(error))
        return "; ".join(said)

    ready, replaced = multiprocessing.Event(), multiprocessing.Event()

    def replace():
        ready.wait(30)
        shared.chmod(0o755)
        other.replace(path)
        shared.chmod(0o555)
        replaced.set()

    replacing = threading.Thread(target=replace)
    replacing.start()
    told = as_nobody(read)
    replacing.join()
    assert told.count("was deleted or replaced") == 2
