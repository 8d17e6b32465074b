"""A store in memory: gone with the process, unless the recogniser is saved."""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from recollect.store import (
    SAME,
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


@dataclass
class _Category:
    name: str
    revision: int = 0
    examples: dict[int, Example] = field(default_factory=dict)


class MemoryStore:
    """Taught categories in dictionaries, for one process; threads may share it."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self._lock = threading.RLock()
        self._categories: dict[int, _Category] = {}
        self._by_fold: dict[str, int] = {}
        self._of_example: dict[int, int] = {}
        self._norms: dict[int, float] = {}  # of each example's feature
        self._last_category = self._last_example = 0
        self._base: dict[str, BaseChange] = {}
        self._known: set[str] = set()  # digests of content that was taken over

    def state(self) -> object:
        """Return always the same: nobody else can change anything."""
        return None

    def categories(self) -> list[Taught]:
        """Return the taught categories in the order of their ids."""
        with self._lock:
            return [self._taught(category) for category in self._categories]

    def find(self, name: str) -> Taught | None:
        """Return the category that has this name in any spelling that `fold` makes the same."""
        with self._lock:
            category = self._by_fold.get(fold(name))
            return None if category is None else self._taught(category)

    def terms(self, ids: Sequence[int] | None = None) -> Iterator[tuple[int, Floats]]:
        """Yield the id of each category and the terms (examples, d) of its examples."""
        with self._lock:
            chosen = (
                list(self._categories) if ids is None else [id_ for id_ in ids if id_ in self._categories]
            )
            found = [(id_, list(self._categories[id_].examples.values())) for id_ in chosen]
        for id_, examples in found:
            yield id_, np.stack([example.term for example in examples])

    def examples(self, category: int) -> list[Example]:
        """Return the examples of a category in the order of teaching."""
        with self._lock:
            return list(self._find(category).examples.values())

    def add(self, name: str, examples: Sequence[NewExample]) -> Taught:
        """Add examples to the category called `name`, which is made where there is none."""
        return self.add_all({name: examples})[0]

    def add_all(self, new: Mapping[str, Sequence[NewExample]]) -> list[Taught]:
        """Add examples to several categories, by their names: to all of them or to none."""
        with self._lock:
            spellings: dict[str, str] = {}
            for name, examples in new.items():
                check_examples(name, examples, self.owner.width)
                category = self._by_fold.get(fold(name))
                known = name if category is None else self._categories[category].name
                known = spellings.setdefault(fold(name), known)
                if known != name:
                    raise taken(name, known)
                self._check_shown(name)
                check_id(self._last_category + len(new), "categories")
                check_id(self._last_example + sum(map(len, new.values())), "pictures")
            return [self._add(name, examples) for name, examples in new.items()]

    def remove(self, category: int) -> None:
        """Remove a category with its examples."""
        with self._lock:
            gone = self._find(category)
            del self._categories[category]
            del self._by_fold[fold(gone.name)]
            for example in gone.examples:
                del self._of_example[example], self._norms[example]

    def remove_example(self, example: int) -> Taught:
        """Remove an example; return its category, which is removed too if it has no other example."""
        with self._lock:
            if example not in self._of_example:
                raise missing(f"example {example}")
            category = self._of_example.pop(example)
            del self._norms[example]
            del self._categories[category].examples[example]
            self._changed(category)
            left = self._taught(category)
            if not left.examples:
                self.remove(category)
            return left

    def rename(self, category: int, name: str) -> None:
        """Give a category another name."""
        with self._lock:
            found = self._find(category)
            other = self._by_fold.get(fold(name), category)
            if other != category:
                raise taken(name, self._categories[other].name)
            self._check_shown(name)
            del self._by_fold[fold(found.name)]
            self._by_fold[fold(name)] = category
            self._categories[category] = replace(found, name=name)
            self._changed(category)

    def content(self) -> Content:
        """Return everything, as it is at one moment."""
        with self._lock:
            categories = [
                (self._taught(id_), list(category.examples.values()))
                for id_, category in self._categories.items()
            ]
            return Content(categories, self._last_category, self._last_example, dict(self._base))

    def base_changes(self) -> dict[str, BaseChange]:
        """Return what was changed about base categories, by their names in the model."""
        with self._lock:
            return dict(self._base)

    def change_base(self, name: str, change: BaseChange) -> None:
        """Change a base category, by its name in the model; `BaseChange()` makes it what it was."""
        with self._lock:
            if change.shown is not None:
                other = self._by_fold.get(fold(change.shown))
                if other is not None:
                    raise taken(change.shown, self._categories[other].name)
                self._check_shown(change.shown, but=name)
            self._base[name] = change
            if change == BaseChange():
                del self._base[name]

    def same(self, feature: Floats) -> list[tuple[int, int]]:
        """Return the ids of categories and examples whose feature is that of the same picture."""
        with self._lock:
            length = norm(feature)
            low, high = length * (1 - SAME), length * (1 + SAME)
            near = [example for example, value in self._norms.items() if low <= value <= high]
            return sorted(
                (category, example)
                for category, example in ((self._of_example[example], example) for example in near)
                if is_same(feature, self._categories[category].examples[example].feature)
            )

    def know(self, content: Content) -> None:
        """Note that this content came from here."""
        self._known.add(content.digest())

    def fill(self, content: Content) -> dict[str, int]:
        """Take over what another store held; return how many examples came to each category."""
        with self._lock:
            if not content or content.digest() in self._known:
                return {}
            if self._last_category or self._base:
                new = missing_from(content, self.content())
                if new:
                    self.add_all(new)
                for name, change in content.base.items():
                    if name not in self._base:
                        self.change_base(name, change)
                self._known.add(content.digest())
                return {name: len(examples) for name, examples in new.items()}
            for taught, examples in content.categories:
                kept = {example.id: example for example in examples}
                self._categories[taught.id] = _Category(taught.name, taught.revision, kept)
                self._by_fold[fold(taught.name)] = taught.id
                self._of_example.update(dict.fromkeys(kept, taught.id))
                self._norms.update({example.id: norm(example.feature) for example in examples})
            self._last_category, self._last_example = content.last_category, content.last_example
            self._base = dict(content.base)
            self._known.add(content.digest())
            return {taught.name: len(examples) for taught, examples in content.categories}

    def close(self) -> None:
        """Nothing to let go of."""

    def _add(self, name: str, examples: Sequence[NewExample]) -> Taught:
        category = self._by_fold.get(fold(name))
        if category is None:
            category = self._last_category = self._last_category + 1
            self._categories[category] = _Category(name)
            self._by_fold[fold(name)] = category
        for example in examples:
            number = self._last_example = self._last_example + 1
            values = _kept(example.feature), _kept(example.term)
            kept = Example(*values, example.thumbnail, number, time.time())
            self._categories[category].examples[number] = kept
            self._of_example[number] = category
            self._norms[number] = norm(kept.feature)
        self._changed(category)
        return self._taught(category)

    def _check_shown(self, name: str, but: str | None = None) -> None:
        for base, change in self._base.items():
            if base != but and change.shown is not None and fold(change.shown) == fold(name):
                raise taken(name, change.shown)

    def _find(self, category: int) -> _Category:
        if category not in self._categories:
            raise missing(f"category {category}")
        return self._categories[category]

    def _changed(self, category: int) -> None:
        self._categories[category].revision += 1

    def _taught(self, id_: int) -> Taught:
        category = self._categories[id_]
        return Taught(id_, category.name, len(category.examples), category.revision)


def _kept(values: Floats) -> Floats:
    """Return a copy that nobody can change, as if it were read from a file."""
    kept = np.array(values, np.float32)
    kept.setflags(write=False)
    return kept
