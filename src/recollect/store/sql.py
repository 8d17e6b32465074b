"""What stores in SQL databases have in common: rows with checksums, and one transaction for each call."""

import time
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import groupby, islice
from typing import Any

import numpy as np

from recollect.errors import StoreFailure
from recollect.store import (
    LAST_ID,
    SAME,
    TERM_PARTS,
    BaseChange,
    Content,
    Example,
    Floats,
    NewExample,
    Owner,
    Taught,
    check_examples,
    check_id,
    fold,
    is_same,
    missing,
    missing_from,
    norm,
    taken,
)

_AT_ONCE = 2000  # categories whose terms are read together
_ROWS_AT_ONCE = 5000  # examples that are written together
TAUGHT = "SELECT id, name, examples, revision, fold, checksum FROM categories"
_EXAMPLES = """
SELECT category, feature, term, thumbnail, id, added, norm, term_checksum, checksum FROM examples
"""


class SqlStore(ABC):
    """Taught categories in tables; one transaction for each call.

    Every row has a checksum, so that damage is noticed wherever it is.
    """

    owner: Owner

    @abstractmethod
    def state(self) -> object:
        """Return a value that differs from the one before once anybody else has changed something."""

    @property
    def away(self) -> bool:
        """Say whether it cannot be reached for now, so that nothing need be asked of it."""
        return False

    def after(self, seen: object) -> object:
        """Return the state that somebody knows who knew the state `seen` and what was last changed here."""
        return seen

    @abstractmethod
    def close(self) -> None:
        """Close the store, which cannot be used afterwards."""

    @abstractmethod
    def _transaction(self, *, write: bool = True, sealed: bool = True) -> AbstractContextManager[None]:
        """Make what is done inside one change, kept whole or not at all; inside another, a part of it.

        Without `write` it sees everything at one moment. Without `sealed`, a check of the whole is left out.
        """

    @abstractmethod
    def _rows(self, query: str, *values: object) -> list[Any]:
        """Run a statement with `?` for each value; return the rows that it gives."""

    @abstractmethod
    def _insert(self, table: str, rows: Sequence[tuple[object, ...]]) -> None:
        """Insert whole rows."""

    @abstractmethod
    def _last_id(self, table: str) -> int:
        """Return the last id that was given in a table."""

    @abstractmethod
    def _set_last_ids(self, category: int, example: int) -> None:
        """Note the last ids that were given."""

    @abstractmethod
    def _damaged(self, how: str) -> StoreFailure:
        """Return the error for damage."""

    def changed(self, since: object) -> tuple[list[Taught], list[int]] | None:  # noqa: ARG002
        """Return the categories that changed since a state, and the ids of removed ones, if that is known.

        `None` means that it is not: compare with `categories`.
        """
        return None

    def categories(self) -> list[Taught]:
        """Return the taught categories in the order of their ids."""
        with self._transaction(write=False):
            rows = self._rows(f"{TAUGHT} ORDER BY id")
        # Not inside: a server ends transactions in which nothing happens for long.
        return [self._category(row) for row in rows]

    def find(self, name: str) -> Taught | None:
        """Return the category that has this name in any spelling that `fold` makes the same."""
        found = self._rows(f"{TAUGHT} WHERE fold = ?", fold(name))
        return self._category(found[0]) if found else None

    def terms(self, ids: Sequence[int] | None = None) -> Iterator[tuple[int, Floats]]:
        """Yield the id of each category (default: of all) and the terms (examples, d) of its examples."""
        if ids is None:
            ids = [category.id for category in self.categories()]
        for start in range(0, len(ids), _AT_ONCE):
            some = ids[start : start + _AT_ONCE]
            whole = list(some) == list(range(some[0], some[-1] + 1))
            among = "BETWEEN ? AND ?" if whole else f"IN ({','.join('?' * len(some))})"
            rows = self._rows(
                "SELECT c.id, c.name, c.examples, e.term, e.id, e.term_checksum "  # noqa: S608
                "FROM categories c LEFT JOIN examples e ON e.category = c.id "
                f"WHERE c.id {among} ORDER BY c.id, e.id",
                *((some[0], some[-1]) if whole else some),
            )
            kept = [row for row in rows if row[4] is not None]
            for category, *_, term, id_, expected in kept:
                if checksum(id_, category, term) != expected:
                    raise self._mismatch(f"example {id_}")
            counts = Counter(row[0] for row in kept)
            for category, name, count, *_ in rows:
                if counts[category] != count:
                    raise self._damaged(f"pictures of '{name}' are gone")
            values, first = self._floats([row[3] for row in kept], TERM_PARTS), 0
            for category, count in counts.items():
                yield category, values[first : first + count]
                first += count

    def examples(self, category: int) -> list[Example]:
        """Return the examples of a category in the order of teaching."""
        with self._transaction(write=False, sealed=False):
            found = self._rows(f"{TAUGHT} WHERE id = ?", category)
            rows = self._rows(f"{_EXAMPLES} WHERE category = ? ORDER BY id", category)
        if not found:
            raise missing(f"category {category}")
        taught = self._category(found[0])
        if len(rows) != taught.examples:
            raise self._damaged(f"pictures of '{taught.name}' are gone")
        return [self._example(row) for row in rows]

    def add(self, name: str, examples: Sequence[NewExample]) -> Taught:
        """Add examples to the category called `name`, which is made where there is none."""
        return self.add_all({name: examples})[0]

    def add_all(self, new: Mapping[str, Sequence[NewExample]]) -> list[Taught]:
        """Add examples to several categories, by their names: to all of them or to none."""
        for name, examples in new.items():
            check_examples(name, examples, self.owner.width)
        with self._transaction():
            return [self._add(name, examples) for name, examples in new.items()]

    def remove(self, category: int) -> None:
        """Remove a category with its examples."""
        with self._transaction():
            self._require(category)
            self._rows("DELETE FROM categories WHERE id = ?", category)

    def remove_example(self, example: int) -> Taught:
        """Remove an example; return its category, which is removed too if it has no other example."""
        with self._transaction():
            found = self._rows("SELECT category FROM examples WHERE id = ?", example)
            if not found:
                raise missing(f"example {example}")
            self._rows("DELETE FROM examples WHERE id = ?", example)
            left = self._changed(found[0][0], added=-1)
            if not left.examples:
                self._rows("DELETE FROM categories WHERE id = ?", left.id)
            return left

    def rename(self, category: int, name: str) -> None:
        """Give a category another name."""
        with self._transaction():
            self._require(category)
            other = self.find(name)
            if other is not None and other.id != category:
                raise taken(name, other.name)
            self._check_shown(name)
            self._rows("UPDATE categories SET name = ?, fold = ? WHERE id = ?", name, fold(name), category)
            self._changed(category)

    def base_changes(self) -> dict[str, BaseChange]:
        """Return what was changed about base categories, by their names in the model."""
        rows = sorted(self._rows("SELECT * FROM base"))
        for name, shown, folded, hidden, expected in rows:
            self._check(f"base category {name!r}", expected, name, shown, folded, hidden)
        return {name: BaseChange(shown, bool(hidden)) for name, shown, _, hidden, _ in rows}

    def change_base(self, name: str, change: BaseChange) -> None:
        """Change a base category, by its name in the model; `BaseChange()` makes it what it was."""
        with self._transaction():
            if change.shown is not None:
                other = self.find(change.shown)
                if other is not None and other.name != name:
                    raise taken(change.shown, other.name)
                self._check_shown(change.shown, but=name)
            self._rows("DELETE FROM base WHERE name = ?", name)
            if change != BaseChange():
                row = name, change.shown, change.shown and fold(change.shown), int(change.hidden)
                self._insert("base", [(*row, checksum(*row))])

    def same(self, feature: Floats) -> list[tuple[int, int]]:
        """Return the ids of categories and examples whose feature is that of the same picture."""
        query = f"{_EXAMPLES} WHERE norm BETWEEN ? AND ? ORDER BY category, id"
        rows = self._rows(query, norm(feature) * (1 - SAME), norm(feature) * (1 + SAME))
        return [(row[0], row[4]) for row in rows if is_same(feature, self._example(row).feature)]

    def content(self) -> Content:
        """Return everything, as it is at one moment."""
        with self._transaction(write=False):
            rows = self._rows(f"{_EXAMPLES} ORDER BY category, id")
            kept, base = self._rows(f"{TAUGHT} ORDER BY id"), self.base_changes()
            last_category, last_example = (self._last_id(table) for table in ("categories", "examples"))
        listed = [self._category(row) for row in kept]  # not inside, as in `categories`
        examples = {
            category: [self._example(row) for row in some] for category, some in groupby(rows, lambda r: r[0])
        }
        for taught in listed:
            if len(examples.get(taught.id, ())) != taught.examples:
                raise self._damaged(f"pictures of '{taught.name}' are gone")
        categories = [(taught, examples[taught.id]) for taught in listed]
        if sum(map(len, examples.values())) != sum(taught.examples for taught in listed):
            raise self._damaged("pictures belong to no category")
        return Content(categories, last_category, last_example, base)

    def know(self, content: Content) -> None:
        """Note that this content came from here: `fill` takes nothing of it."""
        with self._transaction():
            if not self._knows(content):
                self._insert("known", [(content.digest(),)])

    def fill(self, content: Content, *, once: bool = True) -> dict[str, int]:
        """Take over what another store held; return how many examples came to each category.

        A store that never held anything takes all of it, ids included. Another one takes the examples that it
        does not have. With `once`, what was taken over and forgotten since does not come back.
        """
        if not content or (once and self._knows(content)):
            return {}
        with self._transaction():
            if once and self._knows(content):  # another process was faster
                return {}
            kept = self.content()
            if kept:
                new = missing_from(content, kept)
                for name, examples in new.items():
                    self._add(name, examples)
                changes = {name: one for name, one in content.base.items() if name not in kept.base}
            else:
                new = {taught.name: list(examples) for taught, examples in content.categories}
                changes = dict(content.base)
                self._insert_all(content)
            for name, change in changes.items():
                self.change_base(name, change)
            self.know(content)
        return {name: len(examples) for name, examples in new.items()}

    def _insert_all(self, content: Content) -> None:
        """Insert all categories and examples with their ids."""
        rows = [_category_row(replace(taught, examples=len(given))) for taught, given in content.categories]
        self._insert("categories", rows)
        examples = (_row(one, taught.id) for taught, given in content.categories for one in given)
        while some := list(islice(examples, _ROWS_AT_ONCE)):
            self._insert("examples", some)
        self._set_last_ids(content.last_category, content.last_example)

    def _knows(self, content: Content) -> bool:
        return bool(self._rows("SELECT 1 FROM known WHERE digest = ?", content.digest()))

    def _require(self, category: int) -> None:
        if not self._rows("SELECT 1 FROM categories WHERE id = ?", category):
            raise missing(f"category {category}")

    def _check_shown(self, name: str, but: str = "") -> None:
        """Refuse the name under which a base category is shown."""
        for (shown,) in self._rows("SELECT shown FROM base WHERE fold = ? AND name <> ?", fold(name), but):
            raise taken(name, shown)

    def _new_id(self, table: str, count: int = 1) -> int:
        """Return the first of some new ids, none of which was ever given."""
        first = self._last_id(table) + 1
        check_id(first + count - 1, "pictures" if table == "examples" else table)
        return first

    def _add(self, name: str, examples: Sequence[NewExample]) -> Taught:
        """Add examples to a category, which is made where there is none."""
        found = self.find(name)
        if found is not None and found.name != name:
            raise taken(name, found.name)
        self._check_shown(name, but=name)
        if found is None:
            new = Taught(self._new_id("categories"), name, len(examples), 1)
            self._insert("categories", [_category_row(new)])
        else:
            new = Taught(found.id, name, found.examples + len(examples), found.revision + 1)
            *_, revision, count, expected = _category_row(new)
            self._rows(
                "UPDATE categories SET revision = ?, examples = ?, checksum = ? WHERE id = ?",
                *(revision, count, expected, new.id),
            )
        first, now = self._new_id("examples", len(examples)), time.time()
        kept = [
            Example(one.feature, one.term, one.thumbnail, first + place, now)
            for place, one in enumerate(examples)
        ]
        self._insert("examples", [_row(one, new.id) for one in kept])
        return new

    def _changed(self, category: int, added: int = 0) -> Taught:
        """Count a change of a category, and update its checksum."""
        self._rows(
            "UPDATE categories SET revision = revision + 1, examples = examples + ? WHERE id = ?",
            added,
            category,
        )
        id_, name, examples, revision, folded, _ = self._rows(f"{TAUGHT} WHERE id = ?", category)[0]
        self._rows(
            "UPDATE categories SET checksum = ? WHERE id = ?",
            checksum(id_, name, folded, revision, examples),
            category,
        )
        return Taught(id_, name, examples, revision)

    def _example(self, row: Sequence[Any]) -> Example:
        category, feature, term, thumbnail, id_, added, length, term_checksum, expected = row
        self._check(f"example {id_}", term_checksum, id_, category, term)
        self._check(f"example {id_}", expected, id_, category, added, length, feature, thumbnail)
        if not isinstance(added, float) or not isinstance(thumbnail, bytes | None):
            raise self._damaged(f"example {id_} has no time, or a thumbnail that is no picture")
        return Example(self._floats([feature])[0], self._floats([term], TERM_PARTS)[0], thumbnail, id_, added)

    def _category(self, row: Sequence[Any]) -> Taught:
        id_, name, examples, revision, folded, expected = row
        self._check(f"category {id_} ({name!r})", expected, id_, name, folded, revision, examples)
        numbers = {type(examples), type(revision)} == {int} and 0 < id_ < LAST_ID and examples > 0
        if not (isinstance(name, str) and numbers):
            raise self._damaged("a name is no text, or a number is not one that was given")
        return Taught(id_, name, examples, revision)

    def _check(self, what: str, expected: int, *values: object) -> None:
        if checksum(*values) != expected:
            raise self._mismatch(what)

    def _mismatch(self, what: str) -> StoreFailure:
        return self._damaged(f"{what} does not match its checksum")

    def _floats(self, contents: Sequence[bytes], parts: Sequence[int] = (1,)) -> Floats:
        """Return arrays (n, d), or (n, 2d) where two parts are allowed, of the bytes that are kept."""
        for width in (part * self.owner.width for part in parts):
            if all(type(content) is bytes and len(content) == 4 * width for content in contents):
                values = np.frombuffer(b"".join(contents), "<f4").reshape(len(contents), width)
                if np.isfinite(values).all():
                    return values.astype(np.float32, copy=False)
        raise self._damaged(f"an example is not {self.owner.width} finite numbers")


def checksum(*values: object) -> int:
    """Return a checksum of values as databases keep them: of the length of each, a space, and itself.

    A million of them are computed at a start, so nothing large is copied, and texts are encoded together.
    """
    found, text = 0, ""
    for value in values:
        if isinstance(value, bytes):
            found, text = zlib.crc32(value, zlib.crc32(_encoded(f"{text}{len(value)} "), found)), ""
        else:
            shown = repr(value)
            text += f"{len(shown if shown.isascii() else _encoded(shown))} {shown}"
    return zlib.crc32(_encoded(text), found)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _category_row(taught: Taught) -> tuple[object, ...]:
    """Return a category as its row in the table."""
    row = taught.id, taught.name, fold(taught.name), taught.revision, taught.examples
    return *row, checksum(*row)


def _row(one: Example, category: int) -> tuple[object, ...]:
    """Return an example as its row in the table."""
    feature, term, length = _bytes(one.feature), _bytes(one.term), norm(one.feature)
    checksums = (
        checksum(one.id, category, term),
        checksum(one.id, category, one.added, length, feature, one.thumbnail),
    )
    return one.id, category, one.added, length, *checksums, term, feature, one.thumbnail


def _bytes(values: Floats) -> bytes:
    return values.astype("<f4", copy=False).tobytes()
