"""What a recogniser was taught: the store that keeps it, and the vectors of its categories, in step."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from recollect.backends import Backend
from recollect.errors import MissingError, RecollectError, StoreAway, StoreError
from recollect.recognition.many import MOST_EXACT, ManyVectors, index_of
from recollect.recognition.results import Among, Category, Floats
from recollect.recognition.ridge import SolvedVectors
from recollect.recognition.vectors import VectorTable, mean, unit
from recollect.store import (
    BaseChange,
    Content,
    NewExample,
    Owner,
    Place,
    Server,
    Store,
    Taught,
    fold,
    open_store,
    tidy,
)
from recollect.system.forks import Lock

T = TypeVar("T")
_log = logging.getLogger(__name__)
_CATEGORIES_AT_ONCE = 2000  # whose terms are in memory at a time
_MOST_ALIKE = 20_000  # names among which similar ones are soon found


class Knowledge:
    """The categories that a recogniser knows: base ones from the model, taught ones from the store.

    Others may change the store at any time: `refresh` takes over what they did. Whoever calls a method holds
    the lock.
    """

    def __init__(self, backend: Backend, content: Content, place: Place) -> None:
        """Start with a bundle's categories, in memory; open the store if it exists."""
        self._backend = backend
        self._spec = backend.header.spec
        width = backend.base_vectors.shape[1]
        self.owner = Owner(backend.fingerprint, width)
        self.lock = Lock()
        self.base_vectors = self._view(backend.base_vectors)
        self.base_places = {fold(name): place for place, name in enumerate(self._spec.categories)}
        self.base_changes: dict[str, BaseChange] = {}
        self.taught: dict[int, Taught] = {}
        self.corrected: dict[int, int] = {}  # ids of what base categories were taught, and their places
        self._solved = SolvedVectors(width, backend.solve) if self._spec.generator == "ridge" else None
        self.vectors = VectorTable(width) if self._solved is None else self._solved
        self.most_exact = MOST_EXACT
        self.many: ManyVectors | None = None  # an index, for more categories than are soon looked at
        self._listed: Columns | None = None
        self._opened: Store | None = open_store(None, self.owner)
        self._opened.fill(content)
        self.bundle = content
        self.place = place  # the store's file or server, or `None` for memory
        self.later = place is not None  # it is not open yet, and a file is perhaps not there
        self._seen: object = object()  # no state of any store
        self._is_complete = False  # all that the store held at some time is known
        self.refresh()

    @property
    def closed(self) -> bool:
        """Say whether the store was closed."""
        return self._opened is None

    def make_store(self) -> None:
        """Make the store's file now, if it is not there."""
        if self.later:
            self._open_file()
        self.refresh()

    def close(self) -> None:
        """Close the store."""
        if self._opened is not None:
            self._opened.close()
        self._opened, self.later = None, False

    def fill(self, content: Content) -> dict[str, int]:
        """Take over what the store lacks; return how many examples came to each category."""
        taken = self._change(lambda store: store.fill(content, once=False))
        self._seen = object()
        self.refresh()
        return taken

    def add(self, new: Mapping[str, Sequence[NewExample]]) -> list[Taught]:
        """Add examples to categories, by name; return these."""
        changed = self._change(lambda store: store.add_all(new))
        self._learn_own(changed, new)
        return changed

    def remove(self, taught: Taught) -> None:
        """Forget a taught category."""
        self._change(lambda store: store.remove(taught.id))
        self._drop(taught.id)
        self._seen = self.store.after(self._seen)

    def remove_example(self, example: int) -> None:
        """Forget one example; a category without examples is forgotten."""
        changed = self._change(lambda store: store.remove_example(example))
        if changed.examples:
            self._learn_own([changed])
        else:
            self._drop(changed.id)
            self._seen = self.store.after(self._seen)

    def rename(self, taught: Taught, new: str) -> Taught:
        """Give a taught category another name; return it with that name."""
        self._change(lambda store: store.rename(taught.id, new))
        renamed = Taught(taught.id, new, taught.examples, taught.revision + 1)
        self._learn_own([renamed])
        return renamed

    @property
    def store(self) -> Store:
        """Return the store, unless it is closed."""
        if self._opened is None:
            raise RecollectError("this recogniser is closed: load it again")
        return self._opened

    def _change(self, change: Callable[[Store], T]) -> T:
        """Change what is kept; a file that is not there yet is made only for a change that works."""
        if self.later:
            rehearsal = open_store(None, self.owner)
            rehearsal.fill(self.store.content())
            change(rehearsal)
            self._open_file()
        return change(self.store)

    def _open_file(self) -> None:
        """Open the store's file, and copy into it what the bundle has and it does not."""
        new = not self._is_there()
        opened = open_store(self.place, self.owner)
        try:
            taken = opened.fill(self.bundle)
        except StoreError as error:  # such as a file that is read-only
            taken = {}
            _log.warning("what was saved with the model could not be copied into the store: %s", error)
        if taken and not new:
            words = ", ".join(f"{name} ({count} more)" for name, count in taken.items())
            _log.warning("%s now also has the examples that were saved with the model: %s", self.place, words)
        self._opened, self.later, self._seen, self._is_complete = opened, False, object(), False

    def _is_there(self) -> bool:
        """Say whether the store's file exists; a server can say more when it is opened."""
        if isinstance(self.place, Server):
            return True
        try:
            return self.place is not None and self.place.exists()
        except OSError:  # opening it says more
            return True

    def refresh(self) -> None:
        """Take over what others changed in the store since the last time.

        While its server is away, what is known stays as it is.
        """
        if self.later and self._is_there():
            self._open_file()
        state = self.store.state()
        if state == self._seen or (self._is_complete and self.store.away):
            return
        try:
            self._take_over()
        except StoreAway as error:
            if not self._is_complete:
                raise
            _log.warning("answers go on from what is known: %s", error)
        else:
            self._seen, self._is_complete = state, True

    def _take_over(self) -> None:
        """Read what changed since the state that was seen last; then change what is known."""
        base, known = self.store.base_changes(), self.store.changed(self._seen)
        if known is None:
            listed = self.store.categories()
            known = listed, [*(self.taught.keys() - {taught.id for taught in listed})]
        changed = [taught for taught in known[0] if self.taught.get(taught.id) != taught]
        parts = range(0, len(changed), _CATEGORIES_AT_ONCE)
        for start in parts:
            some = changed[start : start + _CATEGORIES_AT_ONCE]
            terms = self.store.terms([taught.id for taught in some])
            self._learn(some, list(terms), last=False)
        for id_ in known[1]:
            self._drop(id_)
        self.base_changes, self._listed = base, None
        self._put(np.empty(0, np.int64), self.base_vectors[:0])

    def _learn_own(
        self, changed: list[Taught], new: Mapping[str, Sequence[NewExample]] | None = None
    ) -> None:
        """Learn what was changed here; a category that has no other examples than new ones is not read."""
        whole = {
            taught.id: np.stack([example.term for example in new[taught.name]])
            for taught in changed
            if new is not None and taught.examples == len(new[taught.name])
        }
        try:
            read = self.store.terms([taught.id for taught in changed if taught.id not in whole])
            self._learn(changed, [*whole.items(), *read])
            self._seen = self.store.after(self._seen)
        except StoreAway:
            pass  # it is kept; what cannot be read now is taken over later

    def _learn(
        self, changed: Sequence[Taught], terms: Sequence[tuple[int, Floats]], *, last: bool = True
    ) -> None:
        """Compute the vectors of categories whose examples changed, from their terms; others may follow."""
        words = {taught.id: taught for taught in changed}
        groups: dict[int, list[tuple[int, Floats]]] = {}  # by how many examples they have
        for id_, own in terms:
            self.taught[id_] = words[id_]
            place = self.base_places.get(fold(words[id_].name))
            if place is not None:
                self.corrected[id_] = place
            if self._solved is None:
                groups.setdefault(len(own), []).append((id_, own))
            else:
                self._solved.put(id_, own)
        self._listed = None
        if groups:
            composed = [
                self._view(self._backend.compose(mean(np.stack([own for _, own in some])), count))
                for count, some in groups.items()
            ]
            ids = np.array([id_ for some in groups.values() for id_, _ in some], np.int64)
            order = np.argsort(ids)
            self._put(ids[order], np.concatenate(composed)[order], last=last)

    def _put(self, ids: npt.NDArray[np.int64], vectors: Floats, *, last: bool = True) -> None:
        """Put vectors (n, d) into the table and the index, which is made after the last ones if it pays."""
        if not isinstance(self.vectors, VectorTable):
            return
        rows = self.vectors.put_all(ids, vectors)
        if self.many is not None:
            self.many.put(rows)
        elif last and len(self.vectors) > self.most_exact and self._spec.classifier == "cosine":
            self.many = index_of(self.vectors, self.examples_of, self._lifts)
            self.most_exact *= 1 if self.many else 2  # without faiss, a warning at each doubling

    def examples_of(self, ids: Iterable[int]) -> npt.NDArray[np.int64]:
        """Return how many examples each of some taught categories has."""
        return np.array([self.taught[id_].examples for id_ in ids], np.int64)

    def _lifts(self, examples: npt.NDArray[np.int64]) -> Floats:
        """Return what so many examples add to the score of a category, in units of a cosine."""
        biases = self._backend.header.calibration.biases
        lifts = (biases(examples, None, 1) - biases([1], None, 1)) / self._backend.scale
        return lifts.astype(np.float32)

    def _drop(self, id_: int) -> None:
        if self.taught.pop(id_, None) is not None:
            row = self.vectors.drop(id_)
            self.corrected.pop(id_, None)
            if self.many is not None and row is not None:
                self.many.drop(id_, row)
                if len(self.vectors) < self.most_exact // 2:
                    self.many = None
            self._listed = None

    def columns(self) -> "Columns":
        """Return the categories in the order of their scores."""
        if self._listed is None:
            taught = sorted(self.taught.values(), key=lambda taught: taught.id)
            more = {self.base_places.get(fold(one.name)): one.examples for one in taught}
            base = [self.base_category(k, more.get(k)) for k in range(len(self._spec.categories))]
            tightness = None if self._solved is None else self._solved.tightness()
            self._listed = Columns(base, [self.category(one) for one in taught], tightness)
        return self._listed

    def category(self, taught: Taught) -> Category:
        """Return a taught category as `categories` lists it: its ids follow the base ones."""
        place = self.base_places.get(fold(taught.name))
        if place is not None:
            return self.base_category(place, taught.examples)
        return Category(len(self._spec.categories) + taught.id - 1, taught.name, "novel", taught.examples)

    def base_category(self, place: int, examples: int | None) -> Category:
        """Return the base category at a place, with how many pictures it was taught."""
        change = self.changes_of(place)
        return Category(place, change.shown or self._spec.categories[place], "base", examples, change.hidden)

    def base_place(self, name: str) -> int | None:
        """Return the place of the base category that has or shows this name, in any spelling."""
        folded = fold(tidy(name))
        for base, change in self.base_changes.items():
            if change.shown is not None and fold(change.shown) == folded:
                return self.base_places.get(fold(base))
        return self.base_places.get(folded)

    def base_name(self, name: str) -> str | None:
        """Return a base category's name in the model; refuse another spelling than the one that is shown."""
        place = self.base_place(name)
        if place is None:
            return None
        own, shown = self._spec.categories[place], self.base_category(place, None).name
        if tidy(name) not in {own, shown}:
            raise RecollectError(f"'{tidy(name)}' is a base category spelled '{shown}': use that spelling")
        return own

    def changes_of(self, place: int) -> BaseChange:
        """Return what was changed of the base category at a place: its shown name, whether it is hidden."""
        return self.base_changes.get(self._spec.categories[place], BaseChange())

    def change_base(self, place: int, change: BaseChange) -> Category:
        """Rename, hide or unhide the base category at a place, and return it."""
        name = self._spec.categories[place]
        self._change(lambda store: store.change_base(name, change))
        self.base_changes[name] = change
        self._listed = None
        self._seen = self.store.after(self._seen)
        return self.columns().categories[place]

    def alike(self, name: str) -> str:
        """Return a hint at categories whose names are nearly the same."""
        if len(self.taught) > _MOST_ALIKE:
            return ""
        names = [category.name for category in self.columns().categories]
        close = get_close_matches(tidy(name), dict.fromkeys(names), 3, cutoff=0.75)
        return f"; did you mean {' or '.join(repr(one) for one in close)}?" if close else ""

    def find(self, name: str, advice: str = "", kind: str = "was taught") -> Taught:
        """Return the taught category of that name, or what a base category was taught."""
        name = tidy(name)
        self.refresh()
        base = self.base_name(name)
        found = self.store.find(base or name)
        if found is not None and found.name == (base or name):
            return found
        if base is not None:
            raise RecollectError(f"'{name}' is a base category, and nothing was taught to it{advice}")
        known = ", ".join(self.category(taught).name for taught in list(self.taught.values())[:20]) or "none"
        hint = f"; it is spelled '{found.name}'" if found else self.alike(name) or f"; taught are: {known}"
        raise MissingError(f"no category called '{name}' {kind}{hint}")

    def _view(self, vectors: Floats) -> Floats:
        """Return vectors as the classifier sees them: of unit length for cosine."""
        return vectors if self._spec.classifier == "dot" else unit(vectors)


class Columns:
    """The categories in the order of their scores: base ones, then taught ones."""

    def __init__(self, base: Sequence[Category], taught: Sequence[Category], tightness: float | None) -> None:
        self.categories, self.tightness = (*base, *taught), tightness
        self.corrected = [
            (category.id, place) for place, category in enumerate(taught) if category.origin == "base"
        ]  # base categories that were taught pictures, and where the scores of these are
        self.examples = np.array([category.examples or 0 for category in taught], np.int64)
        self._choices: dict[str, tuple[npt.NDArray[np.int64], list[Category]]] = {}
        self._known = len(base)

    def choice(self, among: Among) -> tuple[npt.NDArray[np.int64], list[Category]]:
        """Return the columns to choose from, and their categories; hidden ones are not among them."""
        if among not in self._choices:
            asked = [
                column
                for column, category in enumerate(self.categories)
                if among in {"all", category.origin}
                and not category.hidden
                and (column < self._known or category.origin == "novel")
            ]
            self._choices[among] = np.array(asked, np.int64), [self.categories[column] for column in asked]
        return self._choices[among]
