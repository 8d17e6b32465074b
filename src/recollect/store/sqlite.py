"""A store in an SQLite file: on disk before a call returns, for several processes at once."""

import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from recollect.errors import StoreError
from recollect.store import Example, Floats, NewExample, Owner, Taught, fold, missing, taken

FORMAT = 1
_APPLICATION = 0x52436C74  # marks an SQLite file as ours
_WAIT_SECONDS = 30.0  # for other processes' transactions
_AT_ONCE = 500  # categories whose terms are read together
_SCHEMA = """
CREATE TABLE about (format INTEGER NOT NULL, fingerprint TEXT NOT NULL, width INTEGER NOT NULL);
CREATE TABLE categories (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    fold TEXT NOT NULL UNIQUE,
    revision INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE examples (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    category INTEGER NOT NULL REFERENCES categories ON DELETE CASCADE,
    added REAL NOT NULL,
    term BLOB NOT NULL,
    feature BLOB NOT NULL,
    thumbnail BLOB
);
CREATE INDEX examples_of_category ON examples (category);
"""
_TAUGHT = """
SELECT c.id, c.name, (SELECT COUNT(*) FROM examples WHERE category = c.id), c.revision
FROM categories c
"""


class SqliteStore:
    """Taught categories in one file: WAL, `synchronous=FULL`, one transaction for each call."""

    def __init__(self, path: Path, owner: Owner) -> None:
        self.path = path
        self.owner = owner
        self._lock = threading.RLock()
        self._process, self._connection = os.getpid(), self._connect()
        try:
            self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def state(self) -> object:
        """Return SQLite's count of commits through other connections, with the process that counts."""
        with self._told() as connection:
            return self._process, connection.execute("PRAGMA data_version").fetchone()

    def categories(self) -> list[Taught]:
        """Return the taught categories in the order of their ids."""
        with self._told() as connection:
            return [Taught(*row) for row in connection.execute(f"{_TAUGHT} ORDER BY c.id")]

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
            terms = self._floats(b"".join(term for _, term in rows), len(rows))
            starts = np.flatnonzero(np.diff(categories, prepend=-1))
            yield from zip(categories[starts].tolist(), np.split(terms, starts[1:]), strict=True)

    def examples(self, category: int) -> list[Example]:
        """Return the examples of a category in the order of teaching."""
        with self._told() as connection:
            rows = connection.execute(
                "SELECT feature, term, thumbnail, id, added FROM examples WHERE category = ? ORDER BY id",
                (category,),
            ).fetchall()
        if not rows:
            raise missing(f"category {category}")
        return [
            Example(self._floats(feature)[0], self._floats(term)[0], *rest) for feature, term, *rest in rows
        ]

    def add(self, name: str, examples: Sequence[NewExample]) -> Taught:
        """Add examples to the category called `name`, which is made where there is none."""
        return self.add_all({name: examples})[0]

    def add_all(self, lessons: Mapping[str, Sequence[NewExample]]) -> list[Taught]:
        """Add examples to several categories, by their names: to all of them or to none."""
        with self._changing() as connection:
            return [_add(connection, name, examples) for name, examples in lessons.items()]

    def remove(self, category: int) -> None:
        """Remove a category with its examples."""
        with self._changing() as connection:
            if connection.execute("DELETE FROM categories WHERE id = ?", (category,)).rowcount == 0:
                raise missing(f"category {category}")

    def remove_example(self, example: int) -> int:
        """Remove an example, with its category if it was the last one; return the category's id."""
        with self._changing() as connection:
            found = connection.execute("SELECT category FROM examples WHERE id = ?", (example,)).fetchone()
            if found is None:
                raise missing(f"example {example}")
            connection.execute("DELETE FROM examples WHERE id = ?", (example,))
            connection.execute(
                "DELETE FROM categories WHERE id = ?"
                " AND NOT EXISTS (SELECT 1 FROM examples WHERE category = categories.id)",
                found,
            )
            _touch(connection, found[0])
            return int(found[0])

    def rename(self, category: int, name: str) -> None:
        """Give a category another name."""
        with self._changing() as connection:
            other = connection.execute(
                "SELECT name FROM categories WHERE fold = ? AND id != ?", (fold(name), category)
            ).fetchone()
            if other is not None:
                raise taken(name, other[0])
            changed = connection.execute(
                "UPDATE categories SET name = ?, fold = ?, revision = revision + 1 WHERE id = ?",
                (name, fold(name), category),
            )
            if changed.rowcount == 0:
                raise missing(f"category {category}")

    def fill(self, categories: Sequence[tuple[Taught, Sequence[Example]]]) -> None:
        """Put categories with examples, ids and all, into a store that never held any; else do nothing."""
        with self._changing() as connection:
            if connection.execute("SELECT 1 FROM sqlite_sequence").fetchone() is not None:
                return
            for taught, examples in categories:
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

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    def _connect(self) -> sqlite3.Connection:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return sqlite3.connect(
                self.path, timeout=_WAIT_SECONDS, isolation_level=None, check_same_thread=False
            )
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"cannot open the store {self.path}: {error}") from error

    def _prepare(self) -> None:
        """Set the file up where it is new, and make sure that it belongs to this model."""
        with self._told() as connection:
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("PRAGMA synchronous = FULL")
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            (tables,) = connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
            if application != _APPLICATION and tables:
                raise StoreError(f"{self.path} is an SQLite file of another program: choose another --store")
            if not tables:
                self._create()
            self._use_wal(connection)
            kept = connection.execute("SELECT format, fingerprint, width FROM about").fetchone()
        if kept is None or kept[0] != FORMAT:
            raise StoreError(f"{self.path} was written by another version of recollect: use that version")
        if kept[1:] != (self.owner.fingerprint, self.owner.width):
            raise StoreError(
                f"the store {self.path} belongs to another model: use that model, or choose another --store "
                "and teach again"
            )

    def _create(self) -> None:
        with self._changing() as connection:
            (tables,) = connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
            if tables:  # another process was faster
                return
            for statement in _SCHEMA.split(";"):
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
                busy = getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY")
                if not busy or time.monotonic() - began > _WAIT_SECONDS:
                    raise
                time.sleep(0.01)
            else:
                return

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        """Give the connection inside a transaction: kept whole on disk at the end, or not at all."""
        with self._told() as connection:
            connection.execute("BEGIN IMMEDIATE")
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
                self._process, self._connection = os.getpid(), self._connect()
                self._connection.execute("PRAGMA foreign_keys = ON")
                self._connection.execute("PRAGMA synchronous = FULL")
            try:
                yield self._connection
            except sqlite3.Error as error:
                raise self._explained(error) from error

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

    def _floats(self, content: bytes, count: int = 1) -> Floats:
        if len(content) != count * self.owner.width * 4:
            raise StoreError(
                f"the store {self.path} is damaged: a feature has another width than {self.owner.width}"
            )
        return np.frombuffer(content, "<f4").reshape(count, self.owner.width).astype(np.float32, copy=False)


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
