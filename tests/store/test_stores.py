"""What every store does; a new kind of store joins `KINDS`."""

import itertools
import threading
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recollect.errors import StoreError, one_line
from recollect.store import BaseChange, Content, NewExample, Owner, fold, open_store, tidy

OWNER = Owner("a model", 3)
KINDS = ["memory", "sqlite", "postgres"]
_schemas = itertools.count()


@pytest.fixture
def place(request, tmp_path):
    """Return where a new store of a kind can be."""

    def found(kind):
        if kind == "postgres":
            return request.getfixturevalue("database").url(f"stores{next(_schemas)}")
        return None if kind == "memory" else tmp_path / f"{next(_schemas)}.sqlite"

    return found


@pytest.fixture(params=KINDS)
def store(request, place):
    opened = open_store(place(request.param), OWNER)
    yield opened
    opened.close()


def example(value, thumbnail=None):
    numbers = np.arange(3, dtype=np.float32) + np.float32(value)
    return NewExample(numbers, -numbers, thumbnail)


def names(store):
    return [category.name for category in store.categories()]


def terms_of(store, ids=None):
    return {category: terms.tolist() for category, terms in store.terms(ids)}


def test_a_new_store_is_empty(store):
    assert store.categories() == []
    assert terms_of(store) == {}


def test_what_is_added_is_there_with_its_examples(store):
    okapi = store.add("okapi", [example(1), example(2, b"small")])
    tapir = store.add("tapir", [example(5)])
    assert store.categories() == [okapi, tapir]
    assert (okapi.name, okapi.examples, tapir.examples) == ("okapi", 2, 1)
    assert terms_of(store) == {okapi.id: [[-1, -2, -3], [-2, -3, -4]], tapir.id: [[-5, -6, -7]]}
    assert terms_of(store, [tapir.id]) == {tapir.id: [[-5, -6, -7]]}
    first, second = store.examples(okapi.id)
    assert first.feature.tolist() == [1, 2, 3]
    assert (first.thumbnail, second.thumbnail) == (None, b"small")
    assert first.id != second.id
    assert first.added > 1.7e9


def test_examples_can_be_added_later(store):
    before = store.add("okapi", [example(1)])
    after = store.add("okapi", [example(2)])
    assert (after.id, after.examples) == (before.id, 2)
    assert after.revision > before.revision
    assert names(store) == ["okapi"]


def test_ids_are_never_given_again(store):
    first = store.add("okapi", [example(1)])
    second = store.add("tapir", [example(2)])
    store.remove(second.id)
    third = store.add("tapir", [example(2)])
    assert len({first.id, second.id, third.id}) == 3
    assert [category.id for category in store.categories()] == [first.id, third.id]


def test_removing_an_example_leaves_the_others_and_the_last_one_takes_its_category(store):
    okapi = store.add("okapi", [example(1), example(2)])
    first, second = store.examples(okapi.id)
    assert store.remove_example(first.id).examples == 1
    assert [kept.id for kept in store.examples(okapi.id)] == [second.id]
    assert store.categories()[0].revision > okapi.revision
    assert store.remove_example(second.id).id == okapi.id
    assert store.categories() == []
    with pytest.raises(StoreError, match=f"example {second.id}"):
        store.remove_example(second.id)


def test_what_is_not_there_is_named(store):
    for call in (store.remove, store.examples, lambda number: store.rename(number, "okapi")):
        with pytest.raises(StoreError, match="category 7 is not in the store"):
            call(7)


def test_renaming_keeps_id_and_examples(store):
    okapi = store.add("okapi", [example(1)])
    store.rename(okapi.id, "Okapia")
    (renamed,) = store.categories()
    assert (renamed.id, renamed.name, renamed.examples) == (okapi.id, "Okapia", 1)
    assert renamed.revision > okapi.revision
    store.add("okapi", [example(2)])
    assert names(store) == ["Okapia", "okapi"]


def test_a_change_of_case_alone_is_a_new_name_for_the_same_category(store):
    okapi = store.add("okapi", [example(1)])
    store.rename(okapi.id, "Okapi")
    assert names(store) == ["Okapi"]


def test_two_spellings_of_one_name_are_refused(store):
    okapi = store.add("okapi", [example(1)])
    tapir = store.add("tapir", [example(1)])
    for call in (lambda: store.add("OKAPI", [example(2)]), lambda: store.rename(tapir.id, "Okapi")):
        with pytest.raises(StoreError, match="is taught already as 'okapi'"):
            call()
    with pytest.raises(StoreError, match="'okapi' is taught already: choose another name"):
        store.rename(tapir.id, "okapi")
    assert store.categories() == [okapi, tapir]


def test_several_categories_are_added_all_or_none(store):
    okapi = store.add("okapi", [example(1)])
    for clash in ("Okapi", "TAPIR"):  # taught before, and in the same call
        with pytest.raises(StoreError, match="is taught already as"):
            store.add_all({"tapir": [example(2)], "okapi": [example(3)], clash: [example(4)]})
        assert store.categories() == [okapi]
    assert [one.examples for one in store.add_all({"tapir": [example(2)], "okapi": [example(3)]})] == [1, 2]
    assert names(store) == ["okapi", "tapir"]
    assert terms_of(store, [okapi.id]) == {okapi.id: [[-1, -2, -3], [-3, -4, -5]]}


def test_a_removed_name_can_be_taught_again(store):
    store.remove(store.add("okapi", [example(1)]).id)
    assert store.add("Okapi", [example(2)]).name == "Okapi"


def test_threads_that_teach_at_once_lose_nothing(store):
    def teach(who):
        for number in range(20):
            store.add(f"{who}-{number}", [example(number)])
            store.add("shared", [example(number)])

    threads = [threading.Thread(target=teach, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sizes = {category.name: category.examples for category in store.categories()}
    assert len(sizes) == 81
    assert sizes["shared"] == 80


def test_more_categories_than_are_read_at_a_time(store, monkeypatch):
    monkeypatch.setattr("recollect.store.sql._AT_ONCE", 7)
    ids = [store.add(f"c{number}", [example(number)] * (1 + number % 3)).id for number in range(20)]
    found = list(store.terms())
    assert [category for category, _ in found] == ids
    assert [len(terms) for _, terms in found] == [1 + number % 3 for number in range(20)]
    assert all(terms[0, 0] == -number for number, (_, terms) in enumerate(found))


@pytest.mark.parametrize(
    "name",
    ["", "  ", "\n", "x" * 201, "a\x00b", "a\nb", "a\u200bb", "a\u202eb", "\u200d", "a\u200c", "\u200da"],
)
def test_names_that_cannot_be_used(name):
    with pytest.raises(StoreError, match="name"):
        tidy(name)


@pytest.mark.parametrize("name", ["می\u200cخواهم", "\N{WOMAN}\u200d\N{PERSONAL COMPUTER}"])
def test_joiners_inside_a_name_belong_to_it_but_make_no_other_one(store, name):
    assert tidy(name) == name == one_line(name)
    store.add(name, [example(1)])
    bare = name.replace("\u200c", "").replace("\u200d", "")
    assert store.find(bare).name == name
    with pytest.raises(StoreError, match="taught already as"):
        store.add(bare, [example(1)])


def test_a_name_may_have_200_characters():
    assert tidy("x" * 200) == "x" * 200


@given(st.text())
def test_unicode_forms_of_a_name_are_one_name(text):
    try:
        tidied = tidy(text)
    except StoreError:
        return
    for form in ("NFC", "NFD"):
        assert tidy(unicodedata.normalize(form, text)) == tidied
        assert fold(unicodedata.normalize(form, text).strip()) == fold(tidied)


def test_a_kind_of_store_that_there_is_not():
    with pytest.raises(StoreError, match="'mysql'"):
        open_store("mysql://here", OWNER)


def rows(store):
    content = store.content()
    return [
        (
            taught,
            [(one.id, one.added, one.feature.tolist(), one.term.tolist(), one.thumbnail) for one in kept],
        )
        for taught, kept in content.categories
    ], (content.last_category, content.last_example)


def test_a_name_is_found_in_any_spelling(store):
    okapi = store.add("okapi", [example(1)])
    assert store.find("okapi") == store.find("OKAPI") == okapi
    assert store.find("tapir") is None
    store.rename(okapi.id, "tapir")
    assert store.find("okapi") is None
    assert store.find("Tapir").id == okapi.id
    store.remove(okapi.id)
    assert store.find("tapir") is None


@pytest.mark.parametrize(
    "bad",
    [
        [],
        [example(1), NewExample(np.ones(2, np.float32), np.ones(3, np.float32))],
        [example(1), NewExample(np.ones(3, np.float32), np.ones((1, 3), np.float32))],
        [example(1), NewExample(np.ones(3, np.float32), np.full(3, np.nan, np.float32))],
        [example(1), NewExample(np.full(3, np.inf, np.float32), np.ones(3, np.float32))],
    ],
    ids=["none", "short feature", "term of two dimensions", "no number", "infinite"],
)
@pytest.mark.parametrize("name", ["okapi", "tapir"])
def test_examples_that_cannot_be_used_change_nothing(store, bad, name):
    store.add("okapi", [example(1)])
    before = rows(store)
    for call in (lambda: store.add(name, bad), lambda: store.add_all({"quoll": [example(2)], name: bad})):
        with pytest.raises(StoreError, match=f"'{name}'"):
            call()
        assert rows(store) == before


def test_what_is_kept_cannot_be_changed_from_outside(store):
    numbers = np.ones(3, np.float32)
    okapi = store.add("okapi", [NewExample(numbers, numbers)])
    numbers[:] = 7
    (kept,) = store.examples(okapi.id)
    assert kept.feature.tolist() == kept.term.tolist() == [1, 1, 1]
    for values in (kept.feature, kept.term):
        with pytest.raises(ValueError, match="read-only"):
            values[0] = 7


def test_a_number_that_no_store_gives_is_not_there(store):
    for call in (
        store.remove,
        store.examples,
        store.remove_example,
        lambda number: store.rename(number, "a"),
    ):
        for number in (0, -1, 2**70):
            with pytest.raises(StoreError):
                call(number)


@pytest.mark.parametrize("kind", KINDS)
def test_content_fills_a_store_of_any_kind_and_ids_go_on(store, place, kind):
    store.add("okapi", [example(1), example(2, b"small")])
    store.remove(store.add("tapir", [example(3)]).id)
    quoll = store.add("quoll", [example(4)])
    store.remove_example(store.add("quoll", [example(5)]) and store.examples(quoll.id)[-1].id)
    store.remove(store.add("saola", [example(6)]).id)
    other = open_store(place(kind), OWNER)
    other.fill(store.content())
    assert rows(other) == rows(store)
    for one in (store, other):
        assert one.add("tapir", [example(7)]).id == 5
        assert one.examples(5)[0].id == 7
    assert terms_of(other) == terms_of(store)


def test_content_where_everything_was_forgotten_still_tells_the_last_ids(store, tmp_path):
    store.remove(store.add("okapi", [example(1), example(2)]).id)
    assert store.content() == Content([], 1, 2)
    other = open_store(tmp_path / "other.sqlite", OWNER)
    other.fill(store.content())
    assert other.add("tapir", [example(3)]).id == 2
    assert other.examples(2)[0].id == 3


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_store_that_was_used_takes_what_it_does_not_have_once(store, tmp_path, forgotten):
    source = open_store(None, OWNER)
    source.add("tapir", [example(1)])
    okapi = store.add("okapi", [example(2)])
    if forgotten:
        store.remove(okapi.id)
    before = rows(store)
    assert store.fill(source.content()) == {"tapir": 1}
    assert names(store) == (["tapir"] if forgotten else ["okapi", "tapir"])
    store.remove(store.find("tapir").id)
    assert rows(store)[0] == before[0]
    assert store.fill(source.content()) == {}  # what was forgotten since does not come back
    assert rows(store)[0] == before[0]


def test_filling_with_nothing_leaves_a_store_to_be_filled(store):
    store.fill(Content())
    source = open_store(None, OWNER)
    source.add("tapir", [example(1)])
    store.fill(source.content())
    assert names(store) == ["tapir"]


def test_only_examples_that_are_not_there_are_taken_over(store):
    source = open_store(None, OWNER)
    source.add("okapi", [example(1), example(2)])
    store.fill(source.content())
    before = rows(store)
    source.add("okapi", [example(3)])
    source.add("quoll", [example(4)])
    source.change_base("lion", BaseChange(hidden=True))
    assert store.fill(source.content()) == {"okapi": 1, "quoll": 1}
    assert terms_of(store) == terms_of(source)
    assert store.base_changes() == {"lion": BaseChange(hidden=True)}
    assert rows(store)[0][0][1][:2] == before[0][0][1]


def test_content_that_came_from_a_store_is_not_taken_back(store):
    okapi = store.add("okapi", [example(1)])
    saved = store.content()
    store.know(saved)
    store.remove(okapi.id)
    assert store.fill(saved) == {}
    assert names(store) == []


def test_base_categories_are_hidden_and_shown_under_other_names(store):
    store.change_base("lion", BaseChange("Löwe"))
    store.change_base("zebra", BaseChange(hidden=True))
    changes = {"lion": BaseChange("Löwe"), "zebra": BaseChange(hidden=True)}
    assert store.base_changes() == store.content().base == changes
    other = open_store(None, OWNER)
    other.fill(store.content())
    assert other.base_changes() == changes
    store.change_base("zebra", BaseChange())
    store.change_base("lion", BaseChange("Löwin", hidden=True))
    assert store.base_changes() == {"lion": BaseChange("Löwin", hidden=True)}


def test_a_name_is_shown_for_one_category_only(store):
    okapi = store.add("okapi", [example(1)])
    store.change_base("lion", BaseChange("Löwe"))
    for call in (
        lambda: store.add("LÖWE", [example(2)]),
        lambda: store.rename(okapi.id, "Löwe"),
        lambda: store.change_base("zebra", BaseChange("löwe")),
        lambda: store.change_base("zebra", BaseChange("Okapi")),
    ):
        with pytest.raises(StoreError, match="is taught already"):
            call()
    assert store.categories() == [okapi]
    assert store.base_changes() == {"lion": BaseChange("Löwe")}


def test_the_same_picture_is_found_by_its_feature(store):
    okapi, tapir = store.add("okapi", [example(1), example(2)]), store.add("tapir", [example(1)])
    again = example(1).feature * np.float32(1 + 1e-5)
    assert store.same(again) == [(okapi.id, 1), (tapir.id, 3)]
    assert store.same(example(1.1).feature) == []
    assert store.same(-example(1).feature) == []


@pytest.mark.parametrize("last", [2**53 - 1, 2**53 - 2])
def test_a_store_gives_no_id_that_could_not_be_read_again(store, last):
    store.fill(Content((), last, last))
    for count in (2, 1):
        try:
            store.add_all({f"c{number}": [example(1)] for number in range(count)})
        except StoreError as error:
            assert "all ids are used" in str(error)  # noqa: PT017
    assert len(store.categories()) == (1 if last == 2**53 - 2 else 0)


numbers = st.integers(0, 5)
some_names = st.sampled_from(["okapi", "Okapi", "tapir", "quoll"])
calls = st.lists(
    st.one_of(
        st.tuples(st.just("add"), some_names, numbers.map(lambda number: [example(number)] * (number % 3))),
        st.tuples(st.just("remove"), numbers),
        st.tuples(st.just("remove_example"), numbers),
        st.tuples(st.just("rename"), numbers, some_names),
        st.tuples(
            st.just("change_base"),
            st.sampled_from(["lion", "zebra"]),
            st.builds(BaseChange, st.none() | some_names, st.booleans()),
        ),
    ),
    max_size=15,
)


@pytest.mark.parametrize("kind", KINDS[1:])
def test_all_stores_do_the_same(place, kind):
    """Any calls give the same answers, the same errors and the same content in every kind of store."""

    @settings(max_examples=40 if kind == "sqlite" else 15)
    @given(calls)
    def check(calls):
        stores = [open_store(None, OWNER), open_store(place(kind), OWNER)]
        if kind == "sqlite":
            stores[1]._connection.execute("PRAGMA synchronous = OFF")
        for name, *arguments in calls:
            answers = []
            for store in stores:
                try:
                    answers.append(getattr(store, name)(*arguments))
                except StoreError as error:
                    answers.append(str(error))
            assert answers[0] == answers[1]
            one, other = (store.content() for store in stores)
            assert without_times(one) == without_times(other)
            assert terms_of(stores[0]) == terms_of(stores[1])
            assert stores[0].categories() == stores[1].categories()
            assert stores[0].same(example(1).feature) == stores[1].same(example(1).feature)
        stores[1].close()

    check()


def without_times(content):
    listed = [(taught, [one.id for one in examples]) for taught, examples in content.categories]
    return listed, content.last_category, content.last_example, content.base


def test_a_base_category_can_be_shown_in_another_spelling_of_its_own_name(store):
    store.change_base("lion", BaseChange("Lion"))
    assert store.add("lion", [example(1)]).name == "lion"
    store.change_base("lion", BaseChange("LION"))
    assert store.base_changes() == {"lion": BaseChange("LION")}
    with pytest.raises(StoreError, match="'Lion' is taught already as 'lion'"):
        store.add("Lion", [example(1)])
