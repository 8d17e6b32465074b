"""A store in an SQLite file: on disk before a call returns, for several processes at once."""

import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from recollect.errors import StoreError
from recollect.store import (
    Content,
    Example,
    Floats,
    NewExample,
    Owner,
    Taught,
    check_examples,
    fold,
    missing,
    taken,
)

FORMAT = 1
_APPLICATION = 0x52436C74  # marks an SQLite file as ours
_WAIT_SECONDS = 30.0  # for other processes' transactions
_AT_ONCE = 100  # categories whose terms are read together
_SCHEMA = (
    "CREATE TABLE about (format INTEGER NOT NULL, fingerprint TEXT NOT NULL, width INTEGER NOT NULL)",
    """CREATE TABLE categories (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    fold TEXT NOT NULL UNIQUE,
    revision INTEGER NOT NULL DEFAULT 0
)""",
    """CREATE TABLE examples (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    category INTEGER NOT NULL REFERENCES categories ON DELETE CASCADE,
    added REAL NOT NULL,
    term BLOB NOT NULL,
    feature BLOB NOT NULL,
    thumbnail BLOB
)""",
    "CREATE INDEX examples_of_category ON examples (category)",
)
_OURS = "SELECT sql FROM sqlite_master WHERE NOT (type IN ('table', 'index') AND name GLOB 'sqlite_*')"
_LAST = 2**53  # no id is as large as this
_WRONG = f"""
SELECT EXISTS (
    SELECT 1 FROM categories
    WHERE typeof(name) <> 'text' OR typeof(fold) <> 'text' OR typeof(revision) <> 'integer' OR id < 1
)
OR EXISTS (SELECT 1 FROM examples WHERE id < 1)
OR EXISTS (SELECT 1 FROM categories WHERE id >= {_LAST})
OR EXISTS (SELECT 1 FROM examples WHERE id >= {_LAST})
OR EXISTS (SELECT 1 FROM sqlite_sequence WHERE typeof(seq) <> 'integer' OR seq NOT BETWEEN 0 AND {_LAST - 1})
"""  # noqa: S608 -- our own number
_TAUGHT = """
SELECT c.id, c.name, (SELECT COUNT(*) FROM examples WHERE category = c.id), c.revision
FROM categories c
"""
_EXAMPLES = "SELECT category, feature, term, thumbnail, id, added FROM examples"
_abandoned: list[sqlite3.Connection] = []  # by a fork; the child must not even close them


class SqliteStore:
    """Taught categories in one file: WAL, `synchronous=FULL`, one transaction for each call.

    A file in a folder where nothing may be written can be read, as long as no log lies beside it.
    """

    def __init__(self, path: Path, owner: Owner) -> None:
        self.path = path
        self.owner = owner
        self._lock = threading.RLock()
        self._connect()
        try:
            self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def state(self) -> object:
        """Return SQLite's count of commits through other connections, with the process that counts."""
        with self._told() as connection:
            version = connection.execute("PRAGMA data_version").fetchone()
            return self._process, self._stamp, version

    def categories(self) -> list[Taught]:
        """Return the taught categories in the order of their ids."""
        with self._told() as connection:
            return [Taught(*row) for row in connection.execute(f"{_TAUGHT} ORDER BY c.id")]

    def find(self, name: str) -> Taught | None:
        """Return the category that has this name in any spelling that `fold` makes the same."""
        with self._told() as connection:
            found = connection.execute(f"{_TAUGHT} WHERE c.fold = ?", (fold(name),)).fetchone()
        return None if found is None else Taught(*found)

    def terms(self, ids: Sequence[int] | None = None) -> Iterator[tuple[int, Floats]]:
        """Yield the id of each category and the terms (examples, d) of its examples."""
        if ids is None:
            ids = [category.id for category in self.categories()]
        for start in range(0, len(ids), _AT_ONCE):
            some = ids[start : start + _AT_ONCE]
            marks = ",".join("?" * len(some))
            with self._told() as connection:
                rows = connection.execute(
                    f"SELECT category, term FROM examples WHERE category IN ({marks}) ORDER BY category, id",  # noqa: S608
                    some,
                ).fetchall()
            if not rows:
                continue
            categories = np.array([category for category, _ in rows])
            terms = self._floats([term for _, term in rows])
            starts = np.flatnonzero(np.diff(categories, prepend=categories[0] - 1))
            yield from zip(categories[starts].tolist(), np.split(terms, starts[1:]), strict=True)

    def examples(self, category: int) -> list[Example]:
        """Return the examples of a category in the order of teaching."""
        with self._told() as connection:
            rows = connection.execute(f"{_EXAMPLES} WHERE category = ? ORDER BY id", (category,)).fetchall()
        if not rows:
            raise missing(f"category {category}")
        return [self._example(row) for row in rows]

    def add(self, name: str, examples: Sequence[NewExample]) -> Taught:
        """Add examples to the category called `name`, which is made where there is none."""
        return self.add_all({name: examples})[0]

    def add_all(self, lessons: Mapping[str, Sequence[NewExample]]) -> list[Taught]:
        """Add examples to several categories, by their names: to all of them or to none."""
        for name, examples in lessons.items():
            check_examples(name, examples, self.owner.width)
        with self._transaction() as connection:
            return [_add(connection, name, examples) for name, examples in lessons.items()]

    def remove(self, category: int) -> None:
        """Remove a category with its examples."""
        with self._transaction() as connection:
            if connection.execute("DELETE FROM categories WHERE id = ?", (category,)).rowcount == 0:
                raise missing(f"category {category}")

    def remove_example(self, example: int) -> Taught:
        """Remove an example; return its category, which is removed too if it has no other example."""
        with self._transaction() as connection:
            found = connection.execute("SELECT category FROM examples WHERE id = ?", (example,)).fetchone()
            if found is None:
                raise missing(f"example {example}")
            connection.execute("DELETE FROM examples WHERE id = ?", (example,))
            _touch(connection, found[0])
            left = Taught(*connection.execute(f"{_TAUGHT} WHERE c.id = ?", found).fetchone())
            if not left.examples:
                connection.execute("DELETE FROM categories WHERE id = ?", found)
            return left

    def rename(self, category: int, name: str) -> None:
        """Give a category another name."""
        with self._transaction() as connection:
            if connection.execute("SELECT 1 FROM categories WHERE id = ?", (category,)).fetchone() is None:
                raise missing(f"category {category}")
            other = self.find(name)
            if other is not None and other.id != category:
                raise taken(name, other.name)
            connection.execute(
                "UPDATE categories SET name = ?, fold = ?, revision = revision + 1 WHERE id = ?",
                (name, fold(name), category),
            )

    def content(self) -> Content:
        """Return everything, as it is at one moment."""
        with self._transaction("DEFERRED") as connection:
            rows = connection.execute(f"{_EXAMPLES} ORDER BY category, id")
            examples = {
                category: [self._example(row) for row in some]
                for category, some in groupby(rows, lambda r: r[0])
            }
            listed = self.categories()
            last = dict(connection.execute("SELECT name, seq FROM sqlite_sequence").fetchall())
        categories = [(taught, examples[taught.id]) for taught in listed if taught.id in examples]
        return Content(categories, last.get("categories", 0), last.get("examples", 0))

    def fill(self, content: Content) -> None:
        """Put everything that another store held into one that never held anything; else do nothing."""
        if not content.last_category or self._was_used():
            return
        with self._transaction() as connection:
            if self._was_used():  # another process was faster
                return
            for taught, examples in content.categories:
                connection.execute(
                    "INSERT INTO categories VALUES (?, ?, ?, ?)",
                    (taught.id, taught.name, fold(taught.name), taught.revision),
                )
                connection.executemany(
                    "INSERT INTO examples VALUES (?, ?, ?, ?, ?, ?)",
                    [
                        (one.id, taught.id, one.added, _bytes(one.term), _bytes(one.feature), one.thumbnail)
                        for one in examples
                    ],
                )
            connection.execute("DELETE FROM sqlite_sequence")
            connection.execute(
                "INSERT INTO sqlite_sequence VALUES ('categories', ?), ('examples', ?)",
                (content.last_category, content.last_example),
            )

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    def _connect(self) -> None:
        if "\0" in str(self.path):  # SQLite would stop reading the path there
            raise StoreError(
                f"cannot open the store {str(self.path)!r}: a path holds no character of value 0"
            )
        try:
            self._process, self._stamp = os.getpid(), self._frozen()
            self.path.parent.mkdir(parents=True, exist_ok=True)
            place = self.path.absolute().as_uri()
            self._connection = sqlite3.connect(
                f"{place}?immutable=1" if self._stamp else place,
                timeout=_WAIT_SECONDS, isolation_level=None, check_same_thread=False, uri=True,
            )  # fmt: skip
            self._connection.execute("PRAGMA foreign_keys = ON")
            self._connection.execute("PRAGMA synchronous = FULL")
        except sqlite3.Error as error:
            raise self._explained(error) from error
        except (OSError, ValueError) as error:
            raise StoreError(f"cannot open the store {self.path}: {error}") from error

    def _frozen(self) -> tuple[int, int] | None:
        """Return time and size of a file that stands still: its folder is read-only and it has no log.

        SQLite reads such a file only if told that nobody changes it; so it is opened again when somebody did.
        """
        log = self.path.with_name(f"{self.path.name}-wal")
        if os.access(self.path.parent, os.W_OK) or not self.path.is_file() or _size(log):
            return None
        status = self.path.stat()
        return status.st_mtime_ns, status.st_size

    def _prepare(self) -> None:
        """Set the file up where it is new, and make sure that it belongs to this model."""
        with self._told() as connection:
            (tables,) = connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            if application != _APPLICATION and tables:
                raise StoreError(f"{self.path} is an SQLite file of another program: choose another --store")
            if not tables:
                self._create()
            # Before anything else is asked of the file: a trigger or a view would be run.
            if sorted(str(sql) for (sql,) in connection.execute(_OURS)) != sorted(_SCHEMA):
                raise StoreError(
                    f"{self.path} was written by another version of recollect or altered: use that version, "
                    "or bring back a copy"
                )
            self._use_wal(connection)
            kept = connection.execute("SELECT format, fingerprint, width FROM about").fetchone()
        if kept is None or kept[0] != FORMAT:
            raise StoreError(f"{self.path} was written by another version of recollect: use that version")
        if kept[1:] != (self.owner.fingerprint, self.owner.width):
            raise StoreError(
                f"the store {self.path} belongs to another model, or to an earlier state of this one: use "
                "that model, or move the file away or choose another --store, and teach again"
            )
        with self._told() as connection:
            if connection.execute(_WRONG).fetchone() != (0,):
                raise self._damaged("a name is no text, or a number is not one that was given")

    def _create(self) -> None:
        with self._transaction() as connection:
            (tables,) = connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
            if tables:  # another process was faster
                return
            for statement in _SCHEMA:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {_APPLICATION}")
            connection.execute(
                "INSERT INTO about VALUES (?, ?, ?)", (FORMAT, self.owner.fingerprint, self.owner.width)
            )

    def _use_wal(self, connection: sqlite3.Connection) -> None:
        """Switch to the write-ahead log; where another process does so too, SQLite itself does not wait."""
        began = time.monotonic()
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError as error:
                name = getattr(error, "sqlite_errorname", "")
                busy = name.startswith("SQLITE_BUSY")
                if name.startswith("SQLITE_READONLY"):  # what is written otherwise can be read too
                    return
                if not busy or time.monotonic() - began > _WAIT_SECONDS:
                    raise
                time.sleep(0.01)
            else:
                return

    def _was_used(self) -> bool:
        with self._told() as connection:
            return connection.execute("SELECT 1 FROM sqlite_sequence WHERE seq").fetchone() is not None

    @contextmanager
    def _transaction(self, kind: str = "IMMEDIATE") -> Iterator[sqlite3.Connection]:
        """Give the connection inside a transaction: kept whole on disk at the end, or not at all."""
        with self._told() as connection:
            connection.execute(f"BEGIN {kind}")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _told(self) -> Iterator[sqlite3.Connection]:
        """Give the connection to one thread, and turn SQLite's errors into ours."""
        with self._lock:
            if self._process != os.getpid():  # a connection must not cross a fork
                _abandoned.append(self._connection)
                self._connect()
            elif self._stamp and not self._connection.in_transaction and self._stamp != self._frozen():
                self._connection.close()
                self._connect()
            try:
                yield self._connection
            except sqlite3.Error as error:
                raise self._explained(error) from error
            except OverflowError as error:
                raise StoreError(f"the store {self.path} gives no such large numbers") from error

    def _explained(self, error: sqlite3.Error) -> StoreError:
        name = getattr(error, "sqlite_errorname", "")
        reasons = {
            "SQLITE_FULL": "no room on the disk: free some space; what was taught before is intact",
            "SQLITE_IOERR": "the disk gives errors: check its room; what was taught before is intact",
            "SQLITE_READONLY": "the file or its folder is read-only: choose another --store",
            "SQLITE_BUSY": "another process holds it too long: try again",
            "SQLITE_NOTADB": "it is not an SQLite file: choose another --store",
            "SQLITE_CORRUPT": "the file is damaged: bring back a copy, or choose another --store",
            "SQLITE_CANTOPEN": "it cannot be opened: check the path and the permissions",
        }
        reason = next((text for start, text in reasons.items() if name.startswith(start)), str(error))
        return StoreError(f"the store {self.path}: {reason}")

    def _example(self, row: Sequence[Any]) -> Example:
        _, feature, term, thumbnail, id_, added = row
        if not isinstance(added, float) or not isinstance(thumbnail, bytes | None):
            raise self._damaged(f"example {id_} has no time, or a thumbnail that is no picture")
        values = self._floats([feature, term])
        return Example(values[0], values[1], thumbnail, id_, added)

    def _floats(self, contents: Sequence[bytes]) -> Floats:
        """Return arrays (n, d) of the bytes that are kept of them."""
        size = 4 * self.owner.width
        if all(type(content) is bytes and len(content) == size for content in contents):
            values = np.frombuffer(b"".join(contents), "<f4").reshape(len(contents), self.owner.width)
            if np.isfinite(values).all():
                return values.astype(np.float32, copy=False)
        raise self._damaged(f"an example is not {self.owner.width} finite numbers")

    def _damaged(self, how: str) -> StoreError:
        return StoreError(
            f"the store {self.path} is damaged: {how}; bring back a copy, or choose another --store"
        )


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _add(connection: sqlite3.Connection, name: str, examples: Sequence[NewExample]) -> Taught:
    found = connection.execute("SELECT id, name FROM categories WHERE fold = ?", (fold(name),)).fetchone()
    if found is not None and found[1] != name:
        raise taken(name, found[1])
    if found is None:
        category = connection.execute(
            "INSERT INTO categories (name, fold) VALUES (?, ?)", (name, fold(name))
        ).lastrowid
    else:
        category = found[0]
    now = time.time()
    connection.executemany(
        "INSERT INTO examples (category, added, term, feature, thumbnail) VALUES (?, ?, ?, ?, ?)",
        [
            (category, now, _bytes(example.term), _bytes(example.feature), example.thumbnail)
            for example in examples
        ],
    )
    _touch(connection, category)
    return Taught(*connection.execute(f"{_TAUGHT} WHERE c.id = ?", (category,)).fetchone())


def _touch(connection: sqlite3.Connection, category: int | None) -> None:
    connection.execute("UPDATE categories SET revision = revision + 1 WHERE id = ?", (category,))


def _bytes(values: Floats) -> bytes:
    return values.astype("<f4", copy=False).tobytes()
