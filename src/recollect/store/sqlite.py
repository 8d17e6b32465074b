"""A store in SQLite: in memory, or in a file that several processes share, on disk before a call returns."""

import logging
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from recollect.errors import StoreError, StoreFailure
from recollect.store import ANY, Owner, norm
from recollect.store.sql import SqlStore, checksum
from recollect.system.forks import Lock

FORMAT = 2  # 1 had no checksums, no changes of base categories and no norms
_log = logging.getLogger(__name__)
_APPLICATION = 0x52436C74  # marks an SQLite file as ours
_WAIT_SECONDS = 30.0  # for other processes' transactions
_ABOUT = "CREATE TABLE about (format INTEGER NOT NULL, fingerprint TEXT NOT NULL, width INTEGER NOT NULL)"
_SCHEMA = (
    _ABOUT,
    """CREATE TABLE categories (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    fold TEXT NOT NULL UNIQUE,
    revision INTEGER NOT NULL,
    examples INTEGER NOT NULL,
    checksum INTEGER NOT NULL
)""",
    """CREATE TABLE examples (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    category INTEGER NOT NULL REFERENCES categories ON DELETE CASCADE,
    added REAL NOT NULL,
    norm REAL NOT NULL,
    term_checksum INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    term BLOB NOT NULL,
    feature BLOB NOT NULL,
    thumbnail BLOB
)""",
    """CREATE TABLE base (
    name TEXT PRIMARY KEY,
    shown TEXT,
    fold TEXT UNIQUE,
    hidden INTEGER NOT NULL,
    checksum INTEGER NOT NULL
)""",
    "CREATE TABLE known (digest TEXT PRIMARY KEY)",
    "CREATE INDEX examples_of_category ON examples (category)",
    "CREATE INDEX examples_by_norm ON examples (norm)",
)
_SCHEMA_1 = (
    _ABOUT,
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
_FROM_1 = (  # `checksum` and `norm` are functions of ours
    "ALTER TABLE examples RENAME TO old_examples",
    "ALTER TABLE categories RENAME TO old_categories",
    "DROP INDEX examples_of_category",
    *_SCHEMA[1:],
    """INSERT INTO categories
    SELECT id, name, fold, revision, count, checksum(id, name, fold, revision, count)
    FROM (SELECT *, (SELECT COUNT(*) FROM old_examples WHERE category = c.id) AS count
        FROM old_categories c)""",
    """INSERT INTO examples
    SELECT id, category, added, norm(feature), checksum(id, category, term),
        checksum(id, category, added, norm(feature), feature, thumbnail), term, feature, thumbnail
    FROM old_examples""",
    "DELETE FROM sqlite_sequence WHERE name IN ('categories', 'examples')",
    "UPDATE sqlite_sequence SET name = substr(name, 5)",
    "DROP TABLE old_examples",
    "DROP TABLE old_categories",
    "UPDATE about SET format = 2",
)
_OURS = "SELECT sql FROM sqlite_master WHERE NOT (type IN ('table', 'index') AND name GLOB 'sqlite_*')"
_ALL = "SELECT COUNT(*), SUM(checksum) FROM categories"
_SEAL = """
SELECT 'categories', ?, ?
UNION ALL SELECT 'base', COUNT(*), SUM(checksum) FROM base
UNION ALL SELECT name, seq, 0 FROM sqlite_sequence
UNION ALL SELECT digest, 0, 0 FROM known ORDER BY 1, 2
"""
_OWN_SUMS = "SELECT count, CASE WHEN count THEN total END FROM sums"
# Of a connection: what the seal sums up over all categories, kept in step with changes made through it.
_FEW = 10_000  # categories, which are summed up again at every write
_SUM_SECONDS = 60  # after which more of them are
_SUMS = (
    "CREATE TEMP TABLE sums (count INTEGER NOT NULL, total INTEGER NOT NULL)",
    "INSERT INTO sums VALUES (0, 0)",
    """CREATE TEMP TRIGGER sum_inserted AFTER INSERT ON main.categories
BEGIN UPDATE sums SET count = count + 1, total = total + NEW.checksum; END""",
    """CREATE TEMP TRIGGER sum_deleted AFTER DELETE ON main.categories
BEGIN UPDATE sums SET count = count - 1, total = total - OLD.checksum; END""",
    """CREATE TEMP TRIGGER sum_updated AFTER UPDATE ON main.categories
BEGIN UPDATE sums SET total = total + NEW.checksum - OLD.checksum; END""",
)
_abandoned: list[sqlite3.Connection] = []  # by a fork; the child must not even close them


class SqliteStore(SqlStore):
    """Taught categories in one file, or in memory; one transaction for each call.

    With SQLite's rollback journal, everything acknowledged is in the one file: with a write-ahead log, one
    damaged byte could drop recent categories without a word. Every row has a checksum, and the file has a
    seal, a checksum of those, so that damage is noticed wherever it is. Reading all categories recomputes it,
    and so does the first write after another process's, every write to a small store, and one a minute to a
    large one; other writes add their change to the sums that the seal is made of. A read-only file can be
    read.
    """

    def __init__(self, path: Path | None, owner: Owner) -> None:
        self.path = path or Path(":memory:")
        self.owner = owner
        self._shared = path is not None  # by processes; or it is in memory
        self._lock = Lock()
        self._connect()
        try:
            self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def state(self) -> object:
        """Return a value that differs from the one before once anybody else has changed something.

        It is SQLite's count of commits through other connections, with the process that counts.
        """
        with self._connected() as connection:
            return self._process, connection.execute("PRAGMA data_version").fetchone()

    def close(self) -> None:
        """Close the file; the store cannot be used afterwards."""
        with self._lock:
            if self._shared and self._process != os.getpid():
                _abandoned.append(self._connection)
            else:
                self._connection.close()

    def _connect(self, *, copied: bool = False) -> None:
        """Connect to the file, to memory, or to a copy of the file in memory, which can only be read."""
        if "\0" in str(self.path):  # SQLite would stop reading the path there
            raise StoreError(
                f"cannot open the store {str(self.path)!r}: a path holds no character of value 0"
            )
        self._process = os.getpid()
        self._summed: int | None = None  # the state of the file that the sums of this connection belong to
        self._summed_at = 0.0
        self._file: tuple[int, ...] | None = None
        self._emptied = False
        place, content = ":memory:", b""
        try:
            if self._shared and (copied or self._needs_a_log()):
                content, self._shared = self.path.read_bytes(), False
            elif self._shared:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                require_files(self.path)
                self._emptied = _is_empty(self.path)
                place = self.path.absolute().as_uri()
            self._connection = sqlite3.connect(
                place, timeout=_WAIT_SECONDS, isolation_level=None, check_same_thread=False, uri=True
            )
            if content:
                self._connection.deserialize(content[:18] + b"\1\1" + content[20:])  # without a log
            self._connection.execute("PRAGMA foreign_keys = ON")
            self._connection.execute("PRAGMA synchronous = EXTRA")
            if self._shared or content:
                self._file = self._identity()
        except sqlite3.Error as error:
            raise self._explained(error) from error
        except (OSError, ValueError) as error:
            raise StoreFailure(f"cannot open the store {self.path}: {error}") from error

    def _prepare(self) -> None:
        """Set the file up where it is new, and make sure that it is whole and belongs to this model."""
        self._bring_up_to_date()
        with self._connected() as connection:
            kept = connection.execute("SELECT format, fingerprint, width FROM about").fetchone()
        if kept is None or kept[0] != FORMAT:
            raise self._other_version()
        if self.owner == ANY:
            self.owner = Owner(*kept[1:])
        if kept[1:] != (self.owner.fingerprint, self.owner.width):
            raise StoreFailure(
                f"the store {self.path} belongs to another model, or to an earlier state of this one: use "
                "that model, or move the file away or choose another store, and teach again"
            )
        self._leave_wal()
        if not self._shared and self._file:  # a copy
            self._connection.execute("PRAGMA query_only = ON")
        with self._transaction(write=False), self._connected() as connection:
            for table in ("categories", "base"):
                if connection.execute(f"PRAGMA integrity_check({table})").fetchone() != ("ok",):
                    raise self._damaged("its index does not match what it holds")

    def _bring_up_to_date(self) -> None:
        """Make the tables where there are none, and upgrade those of earlier versions."""
        with self._connected() as connection:
            (tables,) = connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            if application != _APPLICATION and (tables or self.owner == ANY):
                raise StoreFailure(f"{self.path} is an SQLite file of another program: choose another store")
            if not tables:
                self._create()
        # Before anything else is asked of the file: a trigger or a view would be run.
        schema = self._schema()
        if schema == sorted(_SCHEMA_1):
            if self._shared and not self._is_writable():
                self._connection.close()
                self._connect(copied=True)
            self._upgrade()
            schema = self._schema()
        if schema != sorted(_SCHEMA):
            raise StoreError(
                f"{self.path} was written by another version of recollect or altered: use that version, "
                "or bring back a copy"
            )

    def _schema(self) -> list[str]:
        return sorted(str(sql) for (sql,) in self._rows(_OURS))

    def _is_writable(self) -> bool:
        return os.access(self.path, os.W_OK) and os.access(self.path.parent, os.W_OK)

    def _needs_a_log(self) -> bool:
        """Say whether it is in an earlier version's write-ahead mode, and SQLite could not make a log."""
        log = self.path.with_name(f"{self.path.name}-wal")
        if not self.path.is_file() or self._is_writable() or (log.exists() and log.stat().st_size):
            return False
        with self.path.open("rb") as file:
            return file.read(20)[18:] == b"\2\2"

    def _create(self) -> None:
        with self._transaction(sealed=False), self._connected() as connection:
            (tables,) = connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
            if tables:  # another process was faster
                return
            for statement in _SCHEMA:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {_APPLICATION}")
            connection.execute(
                "INSERT INTO about VALUES (?, ?, ?)", (FORMAT, self.owner.fingerprint, self.owner.width)
            )
        if self._emptied:
            _log.warning("the store %s was empty: if anything was taught, bring back a copy", self.path)

    def _upgrade(self) -> None:
        """Bring a file of the first format to this one."""
        with self._transaction(sealed=False), self._connected() as connection:
            if self._schema() != sorted(_SCHEMA_1):  # another process was faster
                return
            if connection.execute("SELECT format FROM about").fetchone() != (1,):
                raise StoreFailure(
                    f"{self.path} was written by another version of recollect: use that version"
                )
            connection.create_function("checksum", -1, checksum)
            connection.create_function("norm", 1, lambda feature: norm(self._floats([feature])[0]))
            try:
                for statement in _FROM_1:
                    connection.execute(statement)
            except sqlite3.OperationalError as error:
                if "user-defined function" in str(error):
                    raise self._damaged("an example is no finite numbers") from error
                raise

    def _leave_wal(self) -> None:
        """Leave the write-ahead mode of earlier versions; SQLite itself does not wait for other processes."""
        began = time.monotonic()
        with self._connected() as connection:
            while connection.execute("PRAGMA journal_mode").fetchone() == ("wal",):
                try:
                    connection.execute("PRAGMA journal_mode = DELETE")
                except sqlite3.OperationalError as error:
                    name = getattr(error, "sqlite_errorname", "")
                    if name.startswith("SQLITE_READONLY"):  # it can be read all the same
                        return
                    if not name.startswith("SQLITE_BUSY") or time.monotonic() - began > _WAIT_SECONDS:
                        raise
                    time.sleep(0.01)

    def _rows(self, query: str, *values: object) -> list[Any]:
        with self._connected() as connection:
            return connection.execute(query, values).fetchall()

    def _insert(self, table: str, rows: Sequence[tuple[object, ...]]) -> None:
        if rows:
            marks = ", ".join("?" * len(rows[0]))
            with self._connected() as connection:
                connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)  # noqa: S608 -- our own

    def _last_id(self, table: str) -> int:
        query = "SELECT CAST(MAX(seq) AS INTEGER) FROM sqlite_sequence WHERE name = ?"
        found: int | None = self._rows(query, table)[0][0]
        return found or 0

    def _set_last_ids(self, category: int, example: int) -> None:
        self._rows("DELETE FROM sqlite_sequence")
        self._insert("sqlite_sequence", [("categories", category), ("examples", example)])

    @contextmanager
    def _transaction(self, *, write: bool = True, sealed: bool = True) -> Iterator[None]:
        with self._connected() as connection:
            if connection.in_transaction:  # a part of a larger one
                yield
                return
            summing = write and sealed
            if summing and self._summed is None:
                _prepare_sums(connection)
            connection.execute(f"BEGIN {'IMMEDIATE' if write else 'DEFERRED'}")
            try:
                if summing:
                    self._bring_sums_up_to_date(connection)
                if sealed:
                    self._check_seal(connection, _OWN_SUMS if summing else _ALL)
                yield
                if write:
                    seal = _seal(connection, _OWN_SUMS if summing else _ALL)
                    connection.execute(f"PRAGMA user_version = {seal}")
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                self._summed = None
                raise
            self._check_file()  # what went into a deleted file is lost: that must not count as done

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """Give the connection to one thread, and turn SQLite's errors into ours."""
        with self._lock:
            self._check_file()
            if self._shared and self._process != os.getpid():  # a connection must not cross a fork
                _abandoned.append(self._connection)
                self._connect()
            try:
                yield self._connection
            except sqlite3.Error as error:
                raise self._explained(error) from error
            except OverflowError as error:
                raise StoreError("no category or example has an id that large") from error

    def _check_file(self) -> None:
        """Make sure that the file that was opened is still the one at its path."""
        if self._file is None:
            return
        try:
            same = self._file == self._identity()
        except OSError:
            same = False
        if not same:
            raise self._replaced()

    def _identity(self) -> tuple[int, ...]:
        """Return what tells the file from another at its path, or a copy from what the file is now."""
        status = self.path.stat()
        found = status.st_dev, status.st_ino
        return found if self._shared else (*found, status.st_mtime_ns, status.st_size)

    def _bring_sums_up_to_date(self, connection: sqlite3.Connection) -> None:
        """Sum up all categories again if another process changed any, if it is quick, or after a while."""
        (state,) = connection.execute("PRAGMA data_version").fetchone()
        ((count, _),) = connection.execute(_OWN_SUMS).fetchall()
        is_due = count <= _FEW or time.monotonic() - self._summed_at > _SUM_SECONDS
        if state != self._summed or is_due:
            count, total = connection.execute(_ALL).fetchone()
            connection.execute("UPDATE sums SET count = ?, total = ?", (count, total or 0))
            self._summed, self._summed_at = state, time.monotonic()

    def _check_seal(self, connection: sqlite3.Connection, sums: str) -> None:
        about = connection.execute("SELECT fingerprint, width FROM about").fetchone()
        if about != (
            self.owner.fingerprint,
            self.owner.width,
        ):  # written over with the store of another model
            raise self._replaced()
        (kept,) = connection.execute("PRAGMA user_version").fetchone()
        if kept and kept != _seal(connection, sums):  # earlier versions had none: 0
            raise self._damaged("what it lists does not match its checksum")

    def _explained(self, error: sqlite3.Error) -> StoreFailure:
        name = getattr(error, "sqlite_errorname", "")
        reasons = {
            "SQLITE_FULL": "no room on the disk: free some space; what was taught before is intact",
            "SQLITE_IOERR": "the disk gives errors: check its room; what was taught before is intact",
            "SQLITE_READONLY": "the file or its folder is read-only: choose another store",
            "SQLITE_BUSY": "another process holds it too long: try again",
            "SQLITE_NOTADB": "it is not an SQLite file: choose another store",
            "SQLITE_CORRUPT": "the file is damaged: bring back a copy, or choose another store",
            "SQLITE_CANTOPEN": "it cannot be opened: check the path and the permissions",
        }
        reason = next((text for start, text in reasons.items() if name.startswith(start)), str(error))
        return StoreFailure(f"the store {self.path}: {reason}")

    def _other_version(self) -> StoreFailure:
        return StoreFailure(f"{self.path} was written by another version of recollect: use that version")

    def _replaced(self) -> StoreFailure:
        return StoreFailure(
            f"the store {self.path} was deleted or replaced while it was open: bring it back, or load the "
            "recogniser again"
        )

    def _damaged(self, how: str) -> StoreFailure:
        return StoreFailure(
            f"the store {self.path} is damaged: {how}; bring back a copy, or choose another store"
        )


def require_files(path: Path) -> None:
    """Refuse a store where it, or what SQLite keeps beside it, is no regular file: a FIFO would block."""
    for end in ("", "-journal", "-wal", "-shm"):
        beside = Path(f"{os.path.realpath(path)}{end}")
        if beside.exists() and not beside.is_file():
            raise StoreFailure(f"the store {path} cannot be opened: {beside} is not a regular file")


def copy_store(old: Path, new: Path) -> tuple[int, int]:
    """Copy a store of any model, though others may be writing to it; return its categories and examples.

    Where there was a log, its content is in the copy. What is damaged is refused.
    """
    require_files(old)
    try:
        with (
            closing(sqlite3.connect(f"{old.absolute().as_uri()}?mode=rw", uri=True)) as reader,
            closing(sqlite3.connect(new)) as writer,
        ):
            reader.backup(writer)
    except sqlite3.Error as error:
        raise StoreError(f"{old} cannot be copied; is it a store of recollect? ({error})") from error
    try:
        with closing(SqliteStore(new, ANY)) as copied:
            counts = [len(copied.examples(taught.id)) for taught in copied.categories()]
    except StoreError as error:
        raise StoreError(str(error).replace(str(new), str(old))) from error
    return len(counts), sum(counts)


def _is_empty(path: Path) -> bool:
    """Say whether a store was emptied by some fault; a young file may be in the making."""
    if not path.exists():
        return False
    status = path.stat()
    return status.st_size == 0 and time.time() - status.st_mtime > _WAIT_SECONDS


def _prepare_sums(connection: sqlite3.Connection) -> None:
    """Make the connection keep its sums in step: with all of the triggers, or none if it is interrupted."""
    if connection.execute("SELECT COUNT(*) FROM sqlite_temp_master").fetchone()[0]:
        return
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute("BEGIN")
    try:
        for statement in _SUMS:
            connection.execute(statement)
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _seal(connection: sqlite3.Connection, sums: str) -> int:
    """Return a checksum of all that a file holds, from those of its rows; never 0."""
    (found,) = connection.execute(sums).fetchall()
    return checksum(*connection.execute(_SEAL, found).fetchall()) & 0x7FFFFFFF or 1
