"""A store on a PostgreSQL server, which several machines share; committed there before a call returns.

Writers take turns: each change begins by counting itself in the one row of `about`, which stays locked until
the end. So the numbers of changes follow each other as the changes do, and "everything after number 17" is
complete. Triggers note the number with each category, and the ids of those that are removed. A notification
carries the number to everybody else.

Features and terms are bytes, as in SQLite: pgvector's half precision would lose bits of each score, and no
search runs inside the server.
"""

import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from recollect.errors import ExtraError, StoreAway, StoreFailure
from recollect.store import ANY, Owner, Server, Taught, no_store
from recollect.store.sql import TAUGHT, SqlStore
from recollect.system.forks import Lock

try:
    import psycopg
    from psycopg import conninfo, sql
except ImportError as error:
    raise ExtraError(
        "stores on a PostgreSQL server need psycopg: run `pip install 'recollect[postgres]'`"
    ) from error

_log = logging.getLogger(__name__)
_WAIT_SECONDS = 30  # for other processes' transactions
_LOOK_SECONDS = 0.5  # between two looks at the number of the last change, in case a notification got lost
_LONGEST_PAUSE = 15.0  # seconds between two tries to reach a server that is away
_CONNECTION = {
    "application_name": "recollect",
    "client_encoding": "utf8",
    "connect_timeout": "3",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
}
_SETTINGS = (
    "SET synchronous_commit = on",
    f"SET lock_timeout = '{_WAIT_SECONDS}s'",
    f"SET idle_in_transaction_session_timeout = '{_WAIT_SECONDS}s'",
)
# Each entry brings a store of the version before it to its own version: the first one, 1, makes the tables.
# What has been released is never changed here; a new version is a new entry.
MIGRATIONS = (
    """
CREATE TABLE about (
    version INTEGER NOT NULL,
    fingerprint TEXT NOT NULL,
    width INTEGER NOT NULL,
    change BIGINT NOT NULL DEFAULT 0,
    last_categories BIGINT NOT NULL DEFAULT 0,
    last_examples BIGINT NOT NULL DEFAULT 0
);
CREATE TABLE categories (
    id BIGINT PRIMARY KEY,
    name TEXT NOT NULL,
    fold TEXT NOT NULL UNIQUE,
    revision BIGINT NOT NULL,
    examples BIGINT NOT NULL,
    checksum BIGINT NOT NULL,
    change BIGINT
);
CREATE TABLE examples (
    id BIGINT PRIMARY KEY,
    category BIGINT NOT NULL REFERENCES categories ON DELETE CASCADE,
    added DOUBLE PRECISION NOT NULL,
    norm DOUBLE PRECISION NOT NULL,
    term_checksum BIGINT NOT NULL,
    checksum BIGINT NOT NULL,
    term BYTEA NOT NULL,
    feature BYTEA NOT NULL,
    thumbnail BYTEA
) WITH (toast_tuple_target = 4080);
ALTER TABLE examples
    ALTER term SET STORAGE MAIN,  -- beside its row, where a start of the service reads it
    ALTER feature SET STORAGE EXTERNAL,
    ALTER thumbnail SET STORAGE EXTERNAL;
CREATE TABLE base (
    name TEXT PRIMARY KEY,
    shown TEXT,
    fold TEXT UNIQUE,
    hidden INTEGER NOT NULL,
    checksum BIGINT NOT NULL
);
CREATE TABLE known (digest TEXT PRIMARY KEY);
CREATE TABLE removed (category BIGINT PRIMARY KEY, change BIGINT NOT NULL);
CREATE INDEX examples_of_category ON examples (category);
CREATE INDEX examples_by_norm ON examples (norm);
CREATE INDEX categories_by_change ON categories (change);
CREATE INDEX removed_by_change ON removed (change);
CREATE FUNCTION note_change() RETURNS TRIGGER LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        INSERT INTO removed SELECT OLD.id, change FROM about;
        RETURN OLD;
    END IF;
    SELECT change INTO NEW.change FROM about;
    RETURN NEW;
END $$;
CREATE TRIGGER note_change BEFORE INSERT OR UPDATE OR DELETE ON categories
    FOR EACH ROW EXECUTE FUNCTION note_change();
""",
)
_COLUMNS = {
    "categories": {
        "id": "int8",
        "name": "text",
        "fold": "text",
        "revision": "int8",
        "examples": "int8",
        "checksum": "int8",
    },
    "examples": {
        "id": "int8",
        "category": "int8",
        "added": "float8",
        "norm": "float8",
        "term_checksum": "int8",
        "checksum": "int8",
        "term": "bytea",
        "feature": "bytea",
        "thumbnail": "bytea",
    },
    "base": {"name": "text", "shown": "text", "fold": "text", "hidden": "int4", "checksum": "int8"},
    "known": {"digest": "text"},
}
_REASONS = (  # of what libpq says when no connection comes about
    ("password authentication failed", "the user name or the password is wrong"),
    ("no password supplied", "it asks for a password: set PGPASSWORD, or write one into ~/.pgpass"),
    ("Connection refused", "no server answers there: check the address, and that it runs"),
    ("No such file or directory", "no server answers there: check the address, and that it runs"),
    ("timeout expired", "no server answers there: check the address, and that it runs"),
    ("translate host name", "there is no host of that name"),
    ("resolve host", "there is no host of that name"),
    ("the database system is", "it is starting or stopping: try again soon"),
)
_SERVER_REASONS = {  # by PostgreSQL's codes of errors
    "53100": "no room on the server's disk: free some space; what was taught before is intact",
    "25006": "the server is read-only: name the one that takes changes",
    "42501": "this user may not do that: grant it rights on the schema, or name another user",
    "42P01": "its tables are gone: bring back a backup",
    "3F000": "its schema is gone: bring back a backup",
    "55P03": "another process holds it too long: try again",
}
_abandoned: list["psycopg.Connection[Any]"] = []  # by a fork; the child must not even close them


class PostgresStore(SqlStore):
    """Taught categories in a schema of a PostgreSQL database.

    When the server is away, what is known already can still be asked for: `state` stays as it was. A change
    fails, and leaves nothing behind.
    """

    def __init__(self, server: Server, owner: Owner) -> None:
        self.server = server
        self.owner = owner
        self._lock = Lock()
        self._change = -1  # the number of the last change that is known of
        self._own = -1  # the number of the last change that was made here
        self._last_ids: dict[str, int] = {}  # that were given, while a transaction writes
        self._looked = self._pause = 0.0
        self._inside = False  # a transaction
        self._connect(patience=_WAIT_SECONDS)
        try:
            self._prepare()
        except BaseException:
            self._connection.close()
            raise

    @property
    def away(self) -> bool:
        """Say whether the server could not be reached when it was last tried."""
        return self._pause > 0

    def state(self) -> object:
        """Return the number of the last change that was heard of, through a notification or by a look."""
        with self._lock:
            pause = self._pause
            try:
                self._listen()
            except StoreFailure as error:
                if not pause:
                    _log.warning("answers go on from what is known: %s", error)
                self._note_away()
                self._pause = min(max(2 * pause, _LOOK_SECONDS), _LONGEST_PAUSE)
            return self._change

    def after(self, seen: object) -> object:
        """Return the number of the last change made here, for somebody who knew all before it."""
        return self._own if seen == self._own - 1 else seen

    def _note_away(self) -> None:
        """Note that the server does not answer; the next look at it waits for a while."""
        self._pause = max(self._pause, _LOOK_SECONDS)
        self._looked = time.monotonic()

    def changed(self, since: object) -> tuple[list[Taught], list[int]] | None:
        """Return the categories that changed since a state, and the ids of removed ones."""
        if not isinstance(since, int) or since < 0:
            return None
        with self._transaction(write=False):
            rows = self._rows(f"{TAUGHT} WHERE change > ? ORDER BY id", since)
            removed = [id_ for (id_,) in self._rows("SELECT category FROM removed WHERE change > ?", since)]
        return [self._category(row) for row in rows], removed

    def close(self) -> None:
        """Close the connection; the store cannot be used afterwards."""
        with self._lock:
            if self._process != os.getpid():
                _abandoned.append(self._connection)
            else:
                self._connection.close()

    def _listen(self) -> None:
        """Take in notifications that have come, and look at the number itself now and then."""
        wait = max(self._pause, _LOOK_SECONDS)
        if self._process == os.getpid() and not self._connection.closed:
            try:
                self._connection.pgconn.consume_input()  # does not wait
                while note := self._connection.pgconn.notifies():
                    self._heard(note.extra)
            except psycopg.OperationalError:  # the server went away: look for it now
                wait = self._pause
        if time.monotonic() - self._looked >= wait:
            try:
                self._heard(self._about("change")[0])
            finally:
                self._looked = time.monotonic()  # a try may take seconds
            self._pause = 0.0

    def _heard(self, change: bytes | str | int) -> None:
        self._change = max(self._change, int(change))

    def _connect(self, patience: float = 0) -> None:
        """Connect; wait up to `patience` seconds for a server that is starting, as it does after a crash."""
        until = time.monotonic() + patience
        while True:
            try:
                self._connection = self._new_connection()
                break
            except psycopg.Error as error:
                if "the database system is" not in str(error) or time.monotonic() >= until:
                    raise self._unreachable(error) from None  # whose text may hold the password
            time.sleep(0.1)
        self._connection.add_notify_handler(lambda note: self._heard(note.payload))
        self._process, self._pause = os.getpid(), 0.0

    def _new_connection(self) -> "psycopg.Connection[Any]":
        """Return a connection with the store's schema before all others, which hears of changes."""
        given = conninfo.conninfo_to_dict(self.server.connection)
        settings: dict[str, Any] = {**_CONNECTION, **given}
        connection = psycopg.connect(conninfo.make_conninfo(**settings), autocommit=True)
        schema, channel = sql.Identifier(self.server.schema), sql.Identifier(self._channel)
        for setting in _SETTINGS:
            connection.execute(setting)
        connection.execute(sql.SQL("SET search_path = {}").format(schema))
        connection.execute(sql.SQL("LISTEN {}").format(channel))
        return connection

    @property
    def _channel(self) -> str:
        return f"recollect {self.server.schema}"[:63]

    def _prepare(self) -> None:
        """Make the tables or bring them up to date, and make sure that they belong to this model."""
        with self._transaction(counted=False):
            # One process at a time, also while there is no table to lock.
            self._rows("SELECT pg_advisory_xact_lock(hashtext(?))", self._channel)
            version = self._version()
            if version > len(MIGRATIONS):
                raise StoreFailure(
                    f"the store {self.server} has version {version}, and this recollect knows only "
                    f"{len(MIGRATIONS)}: install a newer recollect"
                )
            if not version and self.owner == ANY:
                raise no_store(self.server)
            if not self._rows("SELECT 1 FROM pg_namespace WHERE nspname = ?", self.server.schema):
                self._run(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(self.server.schema)))
            for statements in MIGRATIONS[version:]:
                self._run(sql.SQL(statements))
            if not version:
                self._rows("INSERT INTO about VALUES (0, ?, ?)", self.owner.fingerprint, self.owner.width)
            if version < len(MIGRATIONS):
                self._rows("UPDATE about SET version = ?", len(MIGRATIONS))
            if self.owner == ANY:
                self.owner = Owner(*self._about("fingerprint, width"))
            change, fingerprint, width = self._about("change, fingerprint, width")
            if (fingerprint, width) != (self.owner.fingerprint, self.owner.width):
                raise StoreFailure(
                    f"the store {self.server} belongs to another model, or to an earlier state of this one: "
                    "use that model, or choose another schema with ?schema=NAME, and teach again"
                )
        self._change = max(self._change, change)

    def _version(self) -> int:
        """Return the version of the tables; 0 where there are none."""
        schema = self.server.schema
        names = "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = ?"
        if not self._rows(f"{names} AND table_name = 'about'", schema)[0][0]:
            if self._rows(names, schema)[0][0]:
                raise StoreFailure(
                    f"the schema of {self.server} holds tables of another program: choose another with "
                    "?schema=NAME"
                )
            return 0
        return int(self._about("version")[0])

    def _about(self, what: str) -> tuple[Any, ...]:
        found = self._rows(f"SELECT {what} FROM about")  # noqa: S608 -- our own names
        if len(found) != 1:
            raise self._damaged("it does not say which model it belongs to")
        return tuple(found[0])

    def _run(self, statement: sql.SQL | sql.Composed) -> None:
        with self._connected() as connection:
            connection.execute(statement)

    def _rows(self, query: str, *values: object) -> list[Any]:
        with self._connected() as connection:
            execute = connection.execute if self._inside else self._execute_first
            cursor = execute(query.replace("?", "%s"), values, binary=True)
            return cursor.fetchall() if cursor.description else []

    def _insert(self, table: str, rows: Sequence[tuple[object, ...]]) -> None:
        if not rows:
            return
        columns = _COLUMNS[table]
        names = f"{table} ({', '.join(columns)})"
        if len(rows) == 1:  # an answer sooner than a copy
            self._rows(f"INSERT INTO {names} VALUES ({', '.join('?' * len(columns))})", *rows[0])  # noqa: S608
        else:
            query = f"COPY {names} FROM STDIN (FORMAT BINARY)"
            with (
                self._connected() as connection,
                connection.cursor() as cursor,
                cursor.copy(query) as copy,
            ):
                copy.set_types(list(columns.values()))
                for row in rows:
                    copy.write_row(row)
        if "id" in columns:
            last = max(row[0] for row in rows)  # type: ignore[type-var]
            self._last_ids[table] = max(self._last_ids[table], last)  # type: ignore[call-overload]

    def _last_id(self, table: str) -> int:
        known = self._last_ids.get(table)
        return int(self._about(f"last_{table}")[0]) if known is None else known

    def _set_last_ids(self, category: int, example: int) -> None:
        self._last_ids = {"categories": category, "examples": example}

    @contextmanager
    def _transaction(
        self,
        *,
        write: bool = True,
        sealed: bool = True,  # noqa: ARG002 -- the server looks after the whole
        counted: bool = True,
    ) -> Iterator[None]:
        with self._connected():
            if self._inside:  # a part of a larger one
                yield
                return
            self._execute_first("BEGIN" if write else "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            self._inside = True
            try:
                change = self._count() if write and counted else None
                yield
                if change is not None:
                    self._announce(change)
                self._connection.execute("COMMIT")
            except BaseException:
                self._give_up()
                raise
            finally:
                self._inside, self._last_ids = False, {}
            if change is not None:
                self._own = change
                self._heard(change)

    def _execute_first(self, query: str, *values: Any, **words: Any) -> "psycopg.Cursor[Any]":  # noqa: ANN401
        """Begin a call, on a new connection if the one that was idle is gone, or another process's."""
        if self._process != os.getpid():  # a connection must not cross a fork
            _abandoned.append(self._connection)
            self._connect()
        try:
            return self._connection.execute(query, *values, **words)
        except psycopg.OperationalError:
            if not self._connection.closed:
                raise
            self._connect()
            return self._connection.execute(query, *values, **words)

    def _give_up(self) -> None:
        """Undo what a transaction did; without a connection, the server does."""
        try:
            self._connection.execute("ROLLBACK")
        except psycopg.Error:
            self._connection.close()

    def _count(self) -> int:
        """Wait for the turn to write; return the number of this change."""
        found = self._rows(
            "UPDATE about SET change = change + 1 WHERE fingerprint = ? AND width = ? "
            "RETURNING change, last_categories, last_examples",
            self.owner.fingerprint,
            self.owner.width,
        )
        if not found:
            raise StoreFailure(
                f"the store {self.server} was replaced while it was open: load the recogniser again"
            )
        change, *last = map(int, found[0])
        self._last_ids = dict(zip(("categories", "examples"), last, strict=True))
        return change

    def _announce(self, change: int) -> None:
        """Keep the last ids that were given, and tell everybody of a change, once it is committed."""
        self._rows(
            "UPDATE about SET last_categories = ?, last_examples = ? RETURNING pg_notify(?, ?)",
            *(self._last_ids["categories"], self._last_ids["examples"], self._channel, str(change)),
        )

    @contextmanager
    def _connected(self) -> Iterator["psycopg.Connection[Any]"]:
        """Give the connection to one thread, and turn PostgreSQL's errors into ours."""
        with self._lock:
            try:
                yield self._connection
            except psycopg.Error as error:
                raise self._explained(error) from None

    def _explained(self, error: psycopg.Error) -> StoreFailure:
        if self._connection.closed:
            return self._lost(
                "the connection was lost; what was being changed is kept whole or not at all: look whether "
                "it is there, and try again"
            )
        reason = _SERVER_REASONS.get(error.sqlstate or "") or error.diag.message_primary or "it failed"
        return StoreFailure(f"the store {self.server}: {reason}")

    def _lost(self, reason: str) -> StoreAway:
        self._note_away()
        return StoreAway(f"the store {self.server}: {reason}")

    def _unreachable(self, error: psycopg.Error) -> StoreAway:
        """Return the error for a connection that did not come about, without anything that may be secret."""
        text = str(error)
        known = (reason for words, reason in _REASONS if words in text)
        _, _, said = text.partition("FATAL:")  # by the server
        return self._lost(next(known, " ".join(said.split()) or "no connection: check the URL"))

    def _damaged(self, how: str) -> StoreFailure:
        return StoreFailure(f"the store {self.server} is damaged: {how}; bring back a backup")
