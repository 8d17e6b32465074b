"""What a recogniser keeps of its categories, in either kind of store, with others at work on it too."""

import io
import os
import subprocess
import sys
import time
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pictures import pixels_of, write_picture
from plain import PROBES, PlainBackend, names_of, pictures, same
from recollect import Recognizer
from recollect.errors import ModelError, RecollectError, StoreError


@pytest.fixture(params=["memory", "sqlite"])
def place(request, tmp_path):
    return None if request.param == "memory" else tmp_path / "stores" / "taught.sqlite"


def plain(place, seed=0):
    """Return a recogniser that computes in numpy, with its taught categories at a place."""
    return Recognizer(PlainBackend(seed), place)


def rows(recognizer):
    """Return everything in a recogniser's store, as it would be compared in a file."""
    return [
        (
            taught,
            [(one.id, one.added, one.feature.tobytes(), one.term.tobytes(), one.thumbnail) for one in kept],
        )
        for taught, kept in recognizer._known.store.content().categories
    ]


@pytest.mark.slow
def test_a_thousand_categories_come_and_go_without_a_trace(place):
    recognizer = plain(place)
    recognizer.teach("first", pixels_of(1))  # makes the file
    recognizer.forget("first")
    if place is not None:  # 2000 commits are soon made where none waits for the disk
        recognizer._known.store._connection.execute("PRAGMA synchronous = OFF")
    untaught = recognizer.scores(PROBES)[0]
    for seed, name in enumerate(("okapi", "tapir", "quoll")):
        recognizer.teach(name, pictures(seed, seed + 50))
    before, known, kept = recognizer.scores(PROBES), recognizer.categories(), rows(recognizer)
    for number in range(1000):
        recognizer.teach(f"category {number}", pixels_of(number % 100))
    base, novel, _ = recognizer.scores(PROBES)
    assert novel.shape == (len(PROBES), 1003)
    assert np.array_equal(base, untaught)
    assert np.array_equal(novel[:, :3], before[1])
    for number in range(1000):
        recognizer.forget(f"category {number * 7 % 1000}")
    assert same(recognizer.scores(PROBES), before)
    assert recognizer.categories() == known
    assert rows(recognizer) == kept


def test_the_last_example_takes_its_category_with_it(place):
    recognizer = plain(place)
    before = recognizer.scores(PROBES)
    recognizer.teach("okapi", pictures(1, 2))
    first, second = recognizer.examples("okapi")
    recognizer.forget_example(first.id)
    recognizer.forget_example(second.id)
    assert names_of(recognizer) == ["lion", "zebra", "Straße"]
    assert same(recognizer.scores(PROBES), before)
    with pytest.raises(StoreError, match=f"example {first.id} is not in the store"):
        recognizer.forget_example(first.id)


names = st.sampled_from(["okapi", "tapir", "quoll", "saola"])
actions = st.lists(
    st.tuples(st.sampled_from(["teach", "forget", "rename", "move"]), names, names), min_size=1, max_size=12
)


@settings(max_examples=20)
@given(actions=actions, sqlite=st.booleans())
def test_an_id_belongs_to_one_category_for_ever(tmp_path_factory, actions, sqlite):
    folder = tmp_path_factory.mktemp("ids")
    recognizer = plain(folder / "taught.sqlite" if sqlite else None)
    given, ids = set(), {}
    for number, (action, name, other) in enumerate(actions):
        if action == "teach":
            category = recognizer.teach(name, pixels_of(number))
            assert category.id == ids.get(name, category.id)
            assert (category.id in given) == (name in ids)
            ids[name] = category.id
            given.add(category.id)
        elif action == "forget" and name in ids:
            recognizer.forget(name)
            del ids[name]
        elif action == "rename" and name in ids and other not in ids:
            recognizer.rename(name, other)
            ids[other] = ids.pop(name)
        elif action == "move":  # to a store of the other kind, as a saved file does
            content = recognizer._known.store.content()
            sqlite = not sqlite
            recognizer = plain(None)
            recognizer._start(content, folder / f"{number}.sqlite" if sqlite else None)
        found = {category.name: category.id for category in recognizer.categories()}
        assert found == {"lion": 0, "zebra": 1, "Straße": 2, **ids}


def test_teaching_a_renamed_category_again_adds_to_it(place):
    recognizer = plain(place)
    first = recognizer.teach("okapi", pixels_of(1))
    recognizer.rename("okapi", "Okapia johnstoni")
    assert recognizer.teach("Okapia johnstoni", pixels_of(2)).id == first.id
    assert recognizer.teach("okapi", pixels_of(3)).id != first.id


def test_one_name_in_two_unicode_forms_is_one_name(place):
    recognizer = plain(place)
    composed, decomposed = (unicodedata.normalize(form, "café") for form in ("NFC", "NFD"))
    first = recognizer.teach(f" {decomposed} ", pixels_of(1))
    assert recognizer.teach(composed, pixels_of(2)).id == first.id
    assert first.name == composed
    with pytest.raises(StoreError, match="'CAFÉ' is taught already as 'café'"):
        recognizer.teach("CAFÉ", pixels_of(3))
    with pytest.raises(RecollectError, match="'STRASSE' is a base category spelled 'Straße'"):
        recognizer.teach("STRASSE", pixels_of(3))
    recognizer.rename(decomposed, "CAFÉ")
    recognizer.forget("CAFÉ")
    assert names_of(recognizer) == ["lion", "zebra", "Straße"]


def test_every_kind_of_picture_one_or_many_teaches_the_same(tmp_path):
    path = write_picture(tmp_path / "a.png", 1)
    opened = Image.open(path)
    kinds = [path, str(path), path.read_bytes(), opened, np.array(opened)]
    found = []
    for one in [*kinds, *([kind] for kind in kinds), tuple(kinds), np.stack(pictures(1, 1))]:
        recognizer = plain(None)
        recognizer.teach("okapi", one, thumbnails=True)
        found.append(recognizer.scores(PROBES)[1])
        small = Image.open(io.BytesIO(recognizer.examples("okapi")[0].thumbnail))
        assert (small.format, small.size) == ("JPEG", (16, 16))
    for scores in found[1:]:
        np.testing.assert_allclose(scores, found[0], rtol=1e-6)


def test_thumbnails_are_kept_only_when_asked_for_and_are_small(place):
    recognizer = plain(place)
    recognizer.teach("okapi", np.zeros((400, 300, 3), np.uint8))
    recognizer.teach("okapi", np.zeros((400, 300, 3), np.uint8), thumbnails=True)
    without, with_one = recognizer.examples("okapi")
    assert without.thumbnail is None
    assert Image.open(io.BytesIO(with_one.thumbnail)).size == (72, 96)


class Broken(PlainBackend):
    """Gives no number in the part that is named, for the second of several pictures."""

    part = "extractor"

    def embed(self, pixels):
        return self._spoilt("extractor", super().embed(pixels))

    def generate(self, features):
        return self._spoilt("generator", features.copy())

    def _spoilt(self, part, values):
        if part == self.part and len(values) > 1:
            values[1, 0] = np.nan
        return values


@pytest.mark.parametrize("part", ["extractor", "generator"])
def test_features_that_are_no_numbers_are_refused(part):
    backend = Broken()
    backend.part = part
    recognizer = Recognizer(backend)
    recognizer.teach("okapi", pixels_of(1))
    before, kept = recognizer.scores(PROBES[0]), rows(recognizer)
    with pytest.raises(ModelError, match=f"the {part} gives no finite numbers for picture 2 of 3"):
        recognizer.teach("okapi", pictures(2, 3, 4))
    assert same(recognizer.scores(PROBES[0]), before)
    assert rows(recognizer) == kept


def test_a_store_of_another_model_is_refused(tmp_path):
    recognizer = plain(tmp_path / "taught.sqlite")
    recognizer.teach("okapi", pixels_of(1))
    kept = rows(recognizer)
    with pytest.raises(StoreError, match="belongs to another model, or to an earlier"):
        plain(tmp_path / "taught.sqlite", seed=1)
    assert rows(recognizer) == kept == rows(plain(tmp_path / "taught.sqlite"))


def test_two_recognisers_of_one_file_see_each_others_changes_on_the_next_call(tmp_path):
    one, other = (plain(tmp_path / "taught.sqlite") for _ in range(2))

    def agree():
        assert one.categories() == other.categories()
        assert same(one.scores(PROBES), other.scores(PROBES))

    one.teach("okapi", pictures(1, 2))
    agree()
    other.teach("okapi", pixels_of(3))
    other.teach("tapir", pixels_of(4))
    agree()
    one.rename("okapi", "Okapia")
    assert [example.id for example in other.examples("Okapia")] == [1, 2, 3]
    agree()
    other.forget_example(2)
    agree()
    one.teach("okapi", pixels_of(5))
    other.forget("okapi")
    agree()
    one.forget("Okapia")
    with pytest.raises(RecollectError, match="no category called 'Okapia' was taught; taught are: tapir"):
        other.forget("Okapia")
    agree()


def test_what_others_change_meanwhile_is_not_hidden_by_ones_own_changes(tmp_path):
    one, other = (plain(tmp_path / "taught.sqlite") for _ in range(2))
    one.teach("okapi", pixels_of(1))
    other.teach("okapi", pixels_of(2))
    one.rename("okapi", "Okapia")  # without having looked at what the other did
    assert same(one.scores(PROBES), other.scores(PROBES))
    other.teach("Okapia", pixels_of(3))
    one.teach("Okapia", pixels_of(4))
    other.rename("Okapia", "okapi")
    assert one.teach("okapi", pixels_of(5)).examples == 5
    assert same(one.scores(PROBES), other.scores(PROBES))
    assert one.categories() == other.categories()


PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from pictures import pixels_of
from plain import PlainBackend
from recollect import Recognizer
recognizer = Recognizer(PlainBackend(), sys.argv[2])
for line in sys.stdin:
    answer = eval(line)
    print(repr(answer), flush=True)
assert "torch" not in sys.modules
"""


def test_two_processes_see_each_others_changes_on_the_next_call(tmp_path):
    path = tmp_path / "taught.sqlite"
    recognizer = plain(path)
    other = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(Path(__file__).parents[1]), str(path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip

    def there(expression):
        other.stdin.write(f"{expression}\n")
        other.stdin.flush()
        return eval(other.stdout.readline())

    names_there = "[category.name for category in recognizer.categories()][3:]"
    scores_there = "recognizer.scores(pixels_of(1000))[1].tolist()"
    recognizer.teach("okapi", pictures(1, 2))
    assert there(names_there) == ["okapi"]
    assert there("recognizer.teach('tapir', pixels_of(3)).id") == 4
    assert names_of(recognizer)[3:] == ["okapi", "tapir"]
    assert there(scores_there) == recognizer.scores(PROBES[0])[1].tolist()
    recognizer.rename("tapir", "malayan tapir")
    assert there(names_there) == ["okapi", "malayan tapir"]
    there("recognizer.forget('okapi')")
    assert names_of(recognizer)[3:] == ["malayan tapir"]
    assert there(scores_there) == recognizer.scores(PROBES[0])[1].tolist()
    other.stdin.close()
    assert other.wait() == 0
    other.stdout.close()


def test_predictions_go_on_while_other_threads_teach_and_forget(place):
    recognizer = plain(place)
    recognizer.teach("okapi", pictures(1, 2))
    base, novel, _ = recognizer.scores(PROBES)

    def change(who):
        for number in range(20):
            recognizer.teach(f"passing {who} {number}", pixels_of(number))
            recognizer.rename(f"passing {who} {number}", f"passing by {who} {number}")
            recognizer.forget(f"passing by {who} {number}")

    with ThreadPoolExecutor() as pool:
        changers = [pool.submit(change, who) for who in range(2)]
        while not all(changer.done() for changer in changers):
            found = recognizer.scores(PROBES)
            assert np.array_equal(found[0], base)
            assert np.array_equal(found[1][:, :1], novel)
            time.sleep(0.001)  # else this loop leaves the others hardly a turn
            answers = recognizer.predict(PROBES[0], top=9, among="novel")
            assert {answer.category.split()[0] for answer in answers} <= {"okapi", "passing"}
        for changer in changers:
            changer.result()
    assert names_of(recognizer)[3:] == ["okapi"]
    assert same(recognizer.scores(PROBES)[:2], (base, novel))


def test_a_forked_recogniser_goes_on(tmp_path):
    recognizer = plain(tmp_path / "taught.sqlite")
    recognizer.teach("okapi", pixels_of(1))
    expected = recognizer.scores(PROBES)
    child = os.fork()
    if child == 0:
        try:
            assert same(recognizer.scores(PROBES), expected)
            recognizer.teach("tapir", pixels_of(2))
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert names_of(recognizer)[3:] == ["okapi", "tapir"]
