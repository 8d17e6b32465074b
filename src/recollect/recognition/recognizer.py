"""The recogniser, which is taught categories while it is used."""

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self, TypeVar, cast, overload

import numpy as np
import numpy.typing as npt

from recollect.backends import Backend, BackendName
from recollect.errors import (
    ArgumentError,
    MissingError,
    ModelError,
    NameTakenError,
    PictureError,
    RecollectError,
    StoreAway,
    StoreError,
)
from recollect.images import Array4d, Picture, Pictures, are_many, own_name, read_pixels, thumbnail
from recollect.modelfile import read_taught, require_replaceable
from recollect.recognition.bundle import backup_of, read_backup, save_bundle, unpack
from recollect.recognition.many import MOST_EXACT, MOST_TOP, ManyVectors, Shortlist, Some, index_of
from recollect.recognition.opening import place_of_store
from recollect.recognition.results import (
    Among,
    Category,
    Duplicate,
    Example,
    Floats,
    Prediction,
    Rule,
    Scores,
)
from recollect.recognition.ridge import SolvedVectors
from recollect.recognition.scoring import clearance, joint_scores, sigmoid, softmax, unknown_probability
from recollect.recognition.vectors import VectorTable, dots, lengths, mean, unit
from recollect.store import (
    SAME,
    BaseChange,
    Content,
    NewExample,
    Owner,
    Place,
    Server,
    Store,
    Taught,
    fold,
    is_same,
    missing_from,
    new_name,
    norm,
    open_store,
    store_place,
    tidy,
)
from recollect.system.forks import Lock

T = TypeVar("T")
_KINDS = {"all": "categories", "base": "base categories", "novel": "taught categories"}
_log = logging.getLogger(__name__)
_BATCH, _BATCH_PIXELS = 32, 32 * 256**2  # pictures in memory at a time, and pixels of the extractor's input
_CATEGORIES_AT_ONCE = 2000  # whose terms are in memory at a time
_MOST_ALIKE = 20_000  # names among which similar ones are soon found


class Recognizer:
    """A model and the categories it has been taught since; teaching never changes what it knew.

    Each score is the dot product of a picture's feature and a category's vector. Teaching or forgetting other
    categories does not change a bit of it; only with the generator "ridge" do taught categories compete, so
    that each taught vector depends on all taught examples. The order of teaching never matters. A feature may
    differ in its last digits (about 1e-6) with the pictures in the same batch and the number of threads.
    Threads may share a recogniser.

    A picture is a path, the bytes of a file, a PIL image or an array of uint8 (height, width, 3). Where many
    are taken, they may be a list, a generator or an array (n, height, width, 3); only a few of them are in
    memory at a time.
    """

    def __init__(self, backend: Backend, store: str | Path | None = None) -> None:
        """Compute with a backend; keep taught categories in the store at a path or URL, or in memory."""
        self._backend = backend
        self._spec = backend.header.spec
        width = backend.base_vectors.shape[1]
        self._owner = Owner(backend.fingerprint, width)
        self._base_vectors = self._view(backend.base_vectors)
        self._base_places = {fold(name): place for place, name in enumerate(self._spec.categories)}
        self._base_changes: dict[str, BaseChange] = {}
        self._taught: dict[int, Taught] = {}
        self._listed: _Columns | None = None
        self._solved = SolvedVectors(width, backend.solve) if self._spec.generator == "ridge" else None
        self._vectors = VectorTable(width) if self._solved is None else self._solved
        self._most_exact = MOST_EXACT
        self._many: ManyVectors | None = None  # an index, for more categories than are soon looked at
        self._corrected: dict[int, int] = {}  # ids of what base categories were taught, and their places
        self._lock = Lock()
        # Called with how many categories are taught, how many examples those have that get more, and how many
        # each is to get; raises to refuse them.
        self.before_adding: Callable[[int, Mapping[str, int], Mapping[str, int]], None] | None = None
        self._start(Content(), store_place(store))

    @classmethod
    def load(
        cls,
        model: str | Path,
        store: str | Path | None = None,
        *,
        device: str = "auto",
        extractor: str | None = None,
        backend: BackendName = "auto",
    ) -> Self:
        """Load a model file, a run folder, an exported folder, or a model of the package ("imagenet").

        `store` says where taught categories are kept: in memory (`None`), in the SQLite file at a path, on a
        PostgreSQL server (`"postgresql://…"`), or in the file that the command line uses for this model
        (`"default"`: `taught.sqlite` beside model.safetensors, `zoo.taught.sqlite` beside zoo.safetensors, or
        one in the user's data folder for models that come with the package). The file and its folder are
        created when you first teach. A model file that `save` wrote also holds taught categories; those that
        the store lacks are copied into it.

        `device` is "auto" (CUDA, then MPS, then the CPU), "cpu", "cuda" or "mps". A model whose extractor is
        your own code loads only if you name it again: `extractor="module:package.module:callable"`.

        `backend` is "torch", "onnx" (onnxruntime, for exported folders) or "auto": torch for models that are
        not exported; onnxruntime for those that are, unless torch is loaded and is faster on this machine.
        """
        from recollect.backends.choice import open_backend

        place = place_of_store(model, store)
        opened = open_backend(model, backend, device, extractor)
        content = unpack(*read_taught(model), opened.base_vectors.shape[1])
        recognizer = cls(opened)
        recognizer._start(content, place)
        return recognizer

    def _start(self, content: Content, place: Place) -> None:
        """Start with the bundle's categories, in memory; open the store if it exists."""
        self._opened: Store | None = open_store(None, self._owner)
        self._opened.fill(content)
        self._bundle = content
        self._place = place  # the store's file or server, or `None` for memory
        self._later = place is not None  # it is not open yet, and a file is perhaps not there
        self._seen: object = object()  # no state of any store
        self._is_complete = False  # all that the store held at some time is known
        self._refresh()

    def make_store(self) -> None:
        """Make the store's file now, if it is not there, instead of when something is first taught."""
        with self._lock:
            if self._later:
                self._open_file()
            self._refresh()

    def close(self) -> None:
        """Close the store; the recogniser cannot be used afterwards."""
        with self._lock:
            if self._opened is not None:
                self._opened.close()
            self._opened, self._later = None, False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Callable[..., "Recognizer"], tuple[object, ...]]:
        """Pickle the model with what is in memory, or with the place of its store."""
        with self._lock:
            content = self._store.content() if self._place is None else self._bundle
        return _unpickled, (type(self), self._backend, content, self._place)

    def __repr__(self) -> str:
        base = len(self._spec.categories)
        novel = sum(fold(one.name) not in self._base_places for one in self._taught.values())
        kept = f"{novel} taught, kept in {self._place or 'memory'}"
        state = "closed" if self._opened is None else kept
        return f"<Recognizer: {self._spec.extractor}, {base} base categories, {state}>"

    @property
    def backend(self) -> Backend:
        """Return what it computes with."""
        return self._backend

    @property
    def fingerprint(self) -> str:
        """Return what tells this model from any other: taught categories belong to one model."""
        return self._owner.fingerprint

    @property
    def search(self) -> Literal["exact", "index"]:
        """Return how `predict` compares pictures with taught categories: with each, or through an index."""
        return "exact" if self._many is None else "index"

    @property
    def width(self) -> int:
        """Return how many numbers a feature has."""
        return self._owner.width

    def save(self, path: str | Path) -> None:
        """Write the model and its taught categories to one file, which `load` restores.

        Folders on the way are created. A model that is there already is replaced, once the new one is
        complete; any other file is refused.
        """
        require_replaceable(path)
        with self._lock:
            self._refresh()
            content = self._store.content()
            save_bundle(path, self._backend, content)
            if content and not self._later:
                with suppress(StoreError):  # what may only be read need not know what was saved
                    self._store.know(content)

    def backup(self, name: str | None = None) -> bytes:
        """Return everything that was taught, or what one category was taught, for `restore`.

        It is the bytes of a safetensors file.
        """
        with self._lock:
            self._refresh()
            content = self._store.content()
            if name is not None:
                own = self._find(name).id
                some = [(taught, examples) for taught, examples in content.categories if taught.id == own]
                content = replace(content, categories=some, base={})
            return backup_of(self._backend, content)

    def restore(self, backup: bytes) -> dict[str, int]:
        """Take over what a backup of the same model holds and this recogniser does not, all of it or nothing.

        Returns how many examples came to each category. What was taught since the backup stays.
        """
        content = read_backup(self._backend, backup)
        with self._lock:
            self._refresh()
            if self.before_adding is not None:
                self._ask_before(missing_from(content, self._store.content()))
            taken = self._change(lambda store: store.fill(content, once=False))
            self._seen = object()
            self._refresh()
        return taken

    def categories(self) -> list[Category]:
        """Return all categories: base ones first, also hidden ones, then taught ones in order of teaching."""
        with self._lock:
            self._refresh()
            known = {category.id: category for category in self._in_order().categories}
        return list(known.values())

    def teach(
        self,
        name: str,
        pictures: Picture | Pictures,
        *,
        thumbnails: bool = False,
        skip_duplicates: bool = False,
    ) -> Category:
        """Add a category from one or a few pictures, or add pictures to one that is known.

        A base category that is taught pictures answers with the better of its own score and the score of the
        pictures. With `thumbnails`, a small copy of each picture is kept. With `skip_duplicates`, pictures
        that this category was taught before are left out.
        """
        skipped: list[int] | None = [] if skip_duplicates else None
        return self.teach_all({name: pictures}, thumbnails=thumbnails, skipped=skipped)[0]

    def teach_all(
        self,
        pictures: Mapping[str, Picture | Pictures] | Iterable[tuple[str, Picture | Pictures]],
        *,
        thumbnails: bool = False,
        skipped: list[int] | None = None,
    ) -> list[Category]:
        """Teach several categories, by name, all of them or none; return them in the same order.

        Pairs of a name and its pictures may come from a generator; they are read one after the other. Given a
        list as `skipped`, pictures that their category was taught before are left out, and the place of each
        among all pictures is appended to the list.
        """
        pairs = pictures.items() if isinstance(pictures, Mapping) else pictures
        lessons = (
            (self._teachable(name), self._new_examples(some, thumbnails=thumbnails)) for name, some in pairs
        )
        return self._keep(lessons, skipped)

    def teach_features(
        self,
        names: Sequence[str],
        features: Floats,
        thumbnails: Sequence[bytes] | None = None,
        *,
        skipped: list[int] | None = None,
    ) -> list[Category]:
        """Teach from features (n, d) that `features` returned, with the name of the category of each.

        Otherwise as `teach_all`; `thumbnails` may have a small JPEG for each of them.
        """
        self._check_width(features)
        shown = [f"example {number} ('{name}')" for number, name in enumerate(names, 1)]
        terms = _finite("generator", self._backend.generate(features), shown)
        small: Sequence[bytes | None] = thumbnails or [None] * len(features)
        examples = (NewExample(*values) for values in zip(features, terms, small, strict=True))
        lessons = ((self._teachable(name), [one]) for name, one in zip(names, examples, strict=True))
        return self._keep(lessons, skipped)

    def _keep(
        self, lessons: Iterable[tuple[str, Iterable[NewExample]]], skipped: list[int] | None
    ) -> list[Category]:
        """Keep the examples of categories, all of them or none; see `teach_all` for `skipped`."""
        new: dict[str, list[NewExample]] = {}
        seen: dict[str, _Seen] = {}
        count = 0
        for name, examples in lessons:
            kept, before = new.setdefault(name, []), seen.setdefault(name, _Seen())
            for example in examples:
                if skipped is not None and (
                    before.again(example.feature) or self._was_taught(name, example.feature)
                ):
                    skipped.append(count)
                else:
                    kept.append(example)
                count += 1
        with self._lock:
            taught = {name: self._find(name) for name, examples in new.items() if not examples}
            added = {name: examples for name, examples in new.items() if examples}
            self._ask_before(added)
            if added:
                changed = self._change(lambda store: store.add_all(added))
                self._learn_own(changed, added)
                taught |= {one.name: one for one in changed}
            return [self._category(taught[name]) for name in new]

    def _ask_before(self, new: Mapping[str, Sized]) -> None:
        if self.before_adding is not None:
            found = (self._store.find(name) for name in new)
            known = {one.name: one.examples for one in found if one is not None}
            self.before_adding(
                len(self._taught), known, {name: len(examples) for name, examples in new.items()}
            )

    def _was_taught(self, name: str, feature: Floats) -> bool:
        """Say whether a category has this picture already."""
        with self._lock:
            known = self._store.find(name)
            return known is not None and any(id_ == known.id for id_, _ in self._store.same(feature))

    def forget(self, name: str) -> None:
        """Remove a taught category, or what a base category was taught."""
        with self._lock:
            taught = self._find(name, ": hide it to remove it from the answers")
            self._change(lambda store: store.remove(taught.id))
            self._drop(taught.id)
            self._seen = self._store.after(self._seen)

    def examples(self, name: str) -> list[Example]:
        """Return the examples of a taught category, in the order of teaching."""
        with self._lock:
            kept = self._store.examples(self._find(name).id)
        return [Example(one.id, one.added, one.feature, one.thumbnail) for one in kept]

    def duplicates(self, name: str) -> list[Duplicate]:
        """Return which pictures of a category were also taught to another one, or earlier to this one."""
        with self._lock:
            taught = self._find(name)
            shown = {one.id: self._category(one).name for one in self._store.categories()}
            examples = self._store.examples(taught.id)
        found = []
        for one in examples:
            with self._lock:  # not all the time, so that others can go on
                same = self._store.same(one.feature)
            found += [
                Duplicate(one.id, other, shown[category])
                for category, other in same
                if category in shown and (category != taught.id or other < one.id)
            ]
        return found

    def forget_example(self, example: int) -> None:
        """Remove one example by its id; a category without examples is forgotten."""
        with self._lock:
            self._refresh()
            changed = self._change(lambda store: store.remove_example(example))
            if changed.examples:
                self._learn_own([changed])
            else:
                self._drop(changed.id)
                self._seen = self._store.after(self._seen)

    def rename(self, old: str, new: str) -> Category:
        """Rename a category, and return it; its id and its examples stay.

        For a base category, only the name that is shown changes. It is kept in the store, not in the model.
        """
        with self._lock:
            self._refresh()
            self._base_name(old)  # refuses another spelling
            place, own = self._base_place(old), self._base_place(new)
            if own is not None and own != place:
                raise NameTakenError(f"'{tidy(new)}' is a base category already: choose another name")
            if place is not None:
                same = tidy(new) == self._spec.categories[place]
                change = replace(self._changes_of(place), shown=None if same else new_name(new))
                return self._change_base(place, change)
            new = new_name(new)
            taught = self._find(old, kind="is known")
            self._change(lambda store: store.rename(taught.id, new))
            renamed = Taught(taught.id, new, taught.examples, taught.revision + 1)
            self._learn_own([renamed])
            return self._category(renamed)

    def hide(self, name: str) -> Category:
        """Never answer with this base category again, and return it; its scores stay."""
        return self._set_hidden(name, hidden=True)

    def unhide(self, name: str) -> Category:
        """Allow a hidden base category as an answer again, and return it."""
        return self._set_hidden(name, hidden=False)

    def features(self, pictures: Picture | Pictures) -> Floats:
        """Return the features (n, d) of pictures, as the extractor gives them."""
        return np.concatenate([features for features, *_ in self._batches(pictures)])

    def scores(self, pictures: Picture | Pictures) -> Scores:
        """Return the raw scores of pictures over base (n, k) and over taught categories (n, taught)."""
        base, novel, columns = self._scores(self.features(pictures))
        return Scores(base, novel, columns.categories)

    def rule(self) -> Rule:
        """Return all that turns features into answers, at one moment: for programs that do without us."""
        calibration = self._backend.header.calibration
        with self._lock:
            self._refresh()
            vectors, columns = self._vectors.matrix(), self._in_order()
        unknown, none = calibration.unknown, np.empty(0)
        return Rule(
            np.concatenate([self._base_vectors, vectors]),
            columns.categories,
            calibration.temperature,
            calibration.biases(columns.examples, columns.tightness) if len(vectors) else none,
            calibration.unknown_offsets(columns.examples, columns.tightness) if len(vectors) else none,
            None if unknown is None else -float(clearance(np.zeros(1), len(vectors), unknown)[0]),
            unknown,
        )

    @overload
    def predict(  # type: ignore[overload-overlap]  # an array of any shape may be either
        self, pictures: Array4d, top: int = 5, among: Among = "all", *, unknown: bool = True
    ) -> list[list[Prediction]]: ...
    @overload
    def predict(  # type: ignore[overload-overlap]  # a path is a sequence of strings to the type checker
        self, pictures: Picture, top: int = 5, among: Among = "all", *, unknown: bool = True
    ) -> list[Prediction]: ...
    @overload
    def predict(
        self, pictures: Iterable[Picture], top: int = 5, among: Among = "all", *, unknown: bool = True
    ) -> list[list[Prediction]]: ...
    def predict(
        self, pictures: Picture | Pictures, top: int = 5, among: Among = "all", *, unknown: bool = True
    ) -> list[Prediction] | list[list[Prediction]]:
        """Return the `top` most probable answers for a picture, or a list of them for each of many.

        With a calibrated model, the first answer for a picture that resembles no category is "unknown". Its
        probability assumes that pictures of known and of unknown categories are equally frequent; the nearest
        categories follow and share the rest. If only one category is known, every picture is weighed against
        "unknown" in this way, even without a calibration. With `unknown=False`, or `among` base or novel
        categories only, every picture is assumed to show one of them.
        """
        _check_answers(top, among)
        answers = [
            answer
            for features, *_ in self._batches(pictures)
            for answer in self._answers(features, top, among, unknown=unknown)
        ]
        return answers if are_many(pictures) else answers[0]

    def predict_features(
        self, features: Floats, top: int = 5, among: Among = "all", *, unknown: bool = True
    ) -> list[list[Prediction]]:
        """Return the answers that `predict` gives for the pictures that these features (n, d) are of."""
        _check_answers(top, among)
        self._check_width(features)
        return list(self._answers(features, top, among, unknown=unknown))

    def _answers(
        self, features: Floats, top: int, among: Among, *, unknown: bool
    ) -> Iterator[list[Prediction]]:
        """Yield the best answers for each of some features (n, d)."""
        if among != "base" and top <= MOST_TOP:
            with self._lock:  # until the names are known, too
                some = self._shortlists(features, among)
                answers = [self._answer_from(one, top, unknown=unknown and among == "all") for one in some]
            if answers:
                yield from answers
                return
        calibration = self._backend.header.calibration
        found = self._scores(features)
        scores, categories = _joint(found, calibration.biases, among)
        if not categories:
            raise RecollectError(f"there are no {_KINDS[among]} to choose from: teach some first")
        strange = np.zeros(len(scores))  # the probability of no known category
        if unknown and among == "all":
            taught, rule = found.novel.shape[1], calibration.unknown
            apart = taught and rule is not None and rule.taught is not None
            judged = _joint(found, calibration.unknown_offsets, among)[0] if apart else scores
            strange = self._strangeness(judged.max(axis=1), len(categories), taught)
        for row, share in zip(softmax(scores, calibration.temperature), strange.tolist(), strict=True):
            yield _ranked([(categories[k], float(row[k])) for k in _best(row, top)], share, top)

    def _shortlists(self, features: Floats, among: Among) -> list[Shortlist]:
        """Return what may answer for each of some features (n, d); nothing if each category is looked at."""
        factor = np.float32(self._backend.scale) / lengths(features)
        with self._lock:
            self._refresh()
            if self._many is None or not isinstance(self._vectors, VectorTable):
                return []
            base = dots(features, self._base_vectors) * factor
            hidden = [self._base_places[fold(name)] for name, one in self._base_changes.items() if one.hidden]
            places = np.delete(np.arange(len(self._spec.categories)), hidden)
            corrected = [*self._corrected]
            rows = np.array([self._vectors.row(id_) for id_ in corrected], np.int64)
            own, examples = dots(features, self._vectors.rows(rows)) * factor, self._examples_of(corrected)
            count = len(self._taught)
            return [
                Shortlist(
                    places if among == "all" else places[:0],
                    base[place],
                    {
                        where: Some(rows[[k]], own[place, [k]], examples[[k]])
                        for k, where in enumerate(self._corrected.values())
                    },
                    near.but(corrected, factor[place]),
                    others.but(corrected, factor[place]),
                    count - len(corrected),
                    count,
                )
                for place, (near, others) in enumerate(self._many.near(features))
            ]

    def _answer_from(self, found: Shortlist, top: int, *, unknown: bool) -> list[Prediction]:
        """Return the best answers for a picture."""
        calibration = self._backend.header.calibration
        shares, share = found.shares(calibration.biases, calibration.temperature), 0.0
        if unknown:
            best = found.joint(calibration.unknown_offsets)[0].max(keepdims=True)
            share = float(self._strangeness(best, len(found.places) + found.novel, found.count)[0])
        known = len(found.places)
        nearest = [
            (
                self._base_category(int(found.places[k]), None)
                if k < known
                else self._category(self._taught[int(found.candidates.ids[k - known])]),
                float(shares[k]),
            )
            for k in _best(shares, top)
        ]
        return _ranked(nearest, share, top)

    def _strangeness(self, best: Floats, count: int, taught: int) -> npt.NDArray[np.float64]:
        """Return the probability that pictures with these best scores (n,) are of no known category.

        A single category has nothing to compare with, and a softmax would give it everything. So it competes
        with anything else: by the calibration, or where there is none as if all else scored at cosine ½.
        """
        calibration = self._backend.header.calibration
        if calibration.unknown is not None:
            cleared = clearance(best, taught, calibration.unknown)
            strange = unknown_probability(cleared, calibration.unknown)
            return strange if count == 1 else np.where(cleared < 0, strange, 0.0)
        if count > 1:
            return np.zeros(len(best))
        other = self._backend.scale / 2 if self._spec.classifier == "cosine" else 0.0
        found: npt.NDArray[np.float64] = sigmoid((other - best.astype(np.float64)) / calibration.temperature)
        return found

    def explain(self, name: str, top: int = 5) -> list[tuple[str, float]]:
        """Return the base categories that a taught one leans on, with the attention that each gets.

        The shares are means over the category's examples and add up to 1 over all base categories. With
        generators other than "attention", returns the categories it competes with, as `resembles` does.
        """
        if top < 1:
            raise ArgumentError(f"top={top}: ask for at least 1 category")
        leaning = self._backend.attend(self._features_of(name))
        if leaning is None:
            return self.resembles(name, top)
        shares, shown = leaning.mean(axis=0), self.categories()
        return [(shown[k].name, float(shares[k])) for k in _best(shares, top)]

    def resembles(self, name: str, top: int = 5) -> list[tuple[str, float]]:
        """Return which categories, base or taught, the examples of a taught one resemble most.

        Each comes with its mean probability over the examples, as `predict` would give it if the category
        itself were not known. The probability of "unknown" belongs to none of them.
        """
        if top < 1:
            raise ArgumentError(f"top={top}: ask for at least 1 category")
        calibration = self._backend.header.calibration
        with self._lock:
            own = self._category(self._find(name)).id
            found = self._scores(self._features_of(name))
        scores, categories = _joint(found, calibration.biases, "all")
        judged, _ = _joint(found, calibration.unknown_offsets, "all")
        others = [k for k, category in enumerate(categories) if category.id != own]
        if not others:
            return []
        strange = self._strangeness(judged[:, others].max(axis=1), len(others), found.novel.shape[1])
        shares = softmax(scores[:, others], calibration.temperature) * (1 - strange[:, None])
        means = shares.mean(axis=0)
        return [(categories[others[k]].name, float(means[k])) for k in _best(means, top)]

    def _check_width(self, features: Floats) -> None:
        if features.dtype != np.float32 or features.shape[1:] != (self._owner.width,):
            raise ArgumentError(
                f"expected features of float32 and shape (n, {self._owner.width}), got {features.dtype} of "
                f"shape {features.shape}"
            )

    def _features_of(self, name: str) -> Floats:
        return np.stack([example.feature for example in self.examples(name)])

    @property
    def _store(self) -> Store:
        if self._opened is None:
            raise RecollectError("this recogniser is closed: load it again")
        return self._opened

    def _change(self, change: Callable[[Store], T]) -> T:
        """Change what is kept; a file that is not there yet is made only for a change that works."""
        if self._later:
            rehearsal = open_store(None, self._owner)
            rehearsal.fill(self._store.content())
            change(rehearsal)
            self._open_file()
        return change(self._store)

    def _open_file(self) -> None:
        """Open the store's file, and copy into it what the bundle has and it does not."""
        new = not self._is_there()
        opened = open_store(self._place, self._owner)
        try:
            taken = opened.fill(self._bundle)
        except StoreError as error:  # such as a file that is read-only
            taken = {}
            _log.warning("what was saved with the model could not be copied into the store: %s", error)
        if taken and not new:
            words = ", ".join(f"{name} ({count} more)" for name, count in taken.items())
            _log.warning(
                "%s now also has the examples that were saved with the model: %s", self._place, words
            )
        self._opened, self._later, self._seen, self._is_complete = opened, False, object(), False

    def _is_there(self) -> bool:
        """Say whether the store's file exists; a server can say more when it is opened."""
        if isinstance(self._place, Server):
            return True
        try:
            return self._place is not None and self._place.exists()
        except OSError:  # opening it says more
            return True

    def _scores(self, features: Floats) -> "_Found":
        """Return base and novel scores of features (n, d), and what their columns are, at one moment."""
        scale = np.float32(self._backend.scale)
        # Dividing scores by |z| takes fewer divisions than dividing features.
        factor = scale if self._spec.classifier == "dot" else scale / lengths(features)
        base = dots(features, self._base_vectors)
        base *= factor
        with self._lock:
            self._refresh()
            novel = self._vectors.products(features)
            columns = self._in_order()
        novel *= factor
        return _Found(base, novel, columns)

    def _batches(self, pictures: Picture | Pictures) -> Iterator[tuple[Floats, list[Picture], list[str]]]:
        """Yield the features (n, d) of a few pictures at a time, with these and what errors call them."""
        several = are_many(pictures)
        total = 1 if not several else len(pictures) if isinstance(pictures, Sized) else None
        rest = cast("Iterator[Picture]", iter(pictures if several else [pictures]))  # type: ignore[arg-type]
        prepare, done = self._spec.preprocessing, 0
        count = max(1, min(_BATCH, _BATCH_PIXELS // prepare.size**2))
        while some := list(islice(rest, count)):
            names = [_name(picture, done + place, total) for place, picture in enumerate(some, 1)]
            pixels = [
                read_pixels(picture, prepare.size, prepare.short_side, name)
                for picture, name in zip(some, names, strict=True)
            ]
            yield _finite("extractor", self._backend.embed(np.stack(pixels)), names), some, names
            done += len(some)
        if not done:
            raise PictureError("no pictures were given: name at least one")

    def _new_examples(self, pictures: Picture | Pictures, *, thumbnails: bool) -> Iterator[NewExample]:
        for features, some, names in self._batches(pictures):
            terms = _finite("generator", self._backend.generate(features), names)
            for feature, term, picture in zip(features, terms, some, strict=True):
                yield NewExample(feature, term, thumbnail(picture) if thumbnails else None)

    def _refresh(self) -> None:
        """Take over what others changed in the store since the last time.

        While its server is away, what is known stays as it is.
        """
        if self._later and self._is_there():
            self._open_file()
        state = self._store.state()
        if state == self._seen or (self._is_complete and self._store.away):
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
        base, known = self._store.base_changes(), self._store.changed(self._seen)
        if known is None:
            listed = self._store.categories()
            known = listed, [*(self._taught.keys() - {taught.id for taught in listed})]
        changed = [taught for taught in known[0] if self._taught.get(taught.id) != taught]
        parts = range(0, len(changed), _CATEGORIES_AT_ONCE)
        for start in parts:
            some = changed[start : start + _CATEGORIES_AT_ONCE]
            terms = self._store.terms([taught.id for taught in some])
            self._learn(some, list(terms), last=False)
        for id_ in known[1]:
            self._drop(id_)
        self._base_changes, self._listed = base, None
        self._put(np.empty(0, np.int64), self._base_vectors[:0])

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
            read = self._store.terms([taught.id for taught in changed if taught.id not in whole])
            self._learn(changed, [*whole.items(), *read])
            self._seen = self._store.after(self._seen)
        except StoreAway:
            pass  # it is kept; what cannot be read now is taken over later

    def _learn(
        self, changed: Sequence[Taught], terms: Sequence[tuple[int, Floats]], *, last: bool = True
    ) -> None:
        """Compute the vectors of categories whose examples changed, from their terms; others may follow."""
        words = {taught.id: taught for taught in changed}
        groups: dict[int, list[tuple[int, Floats]]] = {}  # by how many examples they have
        for id_, own in terms:
            self._taught[id_] = words[id_]
            place = self._base_places.get(fold(words[id_].name))
            if place is not None:
                self._corrected[id_] = place
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
        if not isinstance(self._vectors, VectorTable):
            return
        rows = self._vectors.put_all(ids, vectors)
        if self._many is not None:
            self._many.put(rows)
        elif last and len(self._vectors) > self._most_exact and self._spec.classifier == "cosine":
            self._many = index_of(self._vectors, self._examples_of, self._lifts)
            self._most_exact *= 1 if self._many else 2  # without faiss, a warning at each doubling

    def _examples_of(self, ids: Iterable[int]) -> npt.NDArray[np.int64]:
        """Return how many examples each of some taught categories has."""
        return np.array([self._taught[id_].examples for id_ in ids], np.int64)

    def _lifts(self, examples: npt.NDArray[np.int64]) -> Floats:
        """Return what so many examples add to the score of a category, in units of a cosine."""
        biases = self._backend.header.calibration.biases
        lifts = (biases(examples, None, 1) - biases([1], None, 1)) / self._backend.scale
        return lifts.astype(np.float32)

    def _drop(self, id_: int) -> None:
        if self._taught.pop(id_, None) is not None:
            row = self._vectors.drop(id_)
            self._corrected.pop(id_, None)
            if self._many is not None and row is not None:
                self._many.drop(id_, row)
                if len(self._vectors) < self._most_exact // 2:
                    self._many = None
            self._listed = None

    def _in_order(self) -> "_Columns":
        """Return the categories in the order of their scores."""
        if self._listed is None:
            taught = sorted(self._taught.values(), key=lambda taught: taught.id)
            more = {self._base_places.get(fold(one.name)): one.examples for one in taught}
            base = [self._base_category(k, more.get(k)) for k in range(len(self._spec.categories))]
            tightness = None if self._solved is None else self._solved.tightness()
            self._listed = _Columns(base, [self._category(one) for one in taught], tightness)
        return self._listed

    def _category(self, taught: Taught) -> Category:
        """Return a taught category as `categories` lists it: its ids follow the base ones."""
        place = self._base_places.get(fold(taught.name))
        if place is not None:
            return self._base_category(place, taught.examples)
        return Category(len(self._spec.categories) + taught.id - 1, taught.name, "novel", taught.examples)

    def _base_category(self, place: int, examples: int | None) -> Category:
        change = self._changes_of(place)
        return Category(place, change.shown or self._spec.categories[place], "base", examples, change.hidden)

    def _base_place(self, name: str) -> int | None:
        """Return the place of the base category that has or shows this name, in any spelling."""
        folded = fold(tidy(name))
        for base, change in self._base_changes.items():
            if change.shown is not None and fold(change.shown) == folded:
                return self._base_places.get(fold(base))
        return self._base_places.get(folded)

    def _base_name(self, name: str) -> str | None:
        """Return a base category's name in the model; refuse another spelling than the one that is shown."""
        place = self._base_place(name)
        if place is None:
            return None
        own, shown = self._spec.categories[place], self._base_category(place, None).name
        if tidy(name) not in {own, shown}:
            raise RecollectError(f"'{tidy(name)}' is a base category spelled '{shown}': use that spelling")
        return own

    def _teachable(self, name: str) -> str:
        """Return the name under which examples are kept."""
        with self._lock:
            self._refresh()
            return self._base_name(name) or new_name(name)

    def _set_hidden(self, name: str, *, hidden: bool) -> Category:
        with self._lock:
            self._refresh()
            own = self._base_name(name)
            if own is None and self._store.find(tidy(name)):
                raise RecollectError(f"only base categories can be hidden: forget '{tidy(name)}' instead")
            if own is None:
                raise MissingError(f"no base category is called '{tidy(name)}'{self._alike(name)}")
            place = self._base_places[fold(own)]
            return self._change_base(place, replace(self._changes_of(place), hidden=hidden))

    def _changes_of(self, place: int) -> BaseChange:
        return self._base_changes.get(self._spec.categories[place], BaseChange())

    def _change_base(self, place: int, change: BaseChange) -> Category:
        name = self._spec.categories[place]
        self._change(lambda store: store.change_base(name, change))
        self._base_changes[name] = change
        self._listed = None
        self._seen = self._store.after(self._seen)
        return self._in_order().categories[place]

    def _alike(self, name: str) -> str:
        """Return a hint at categories whose names are nearly the same."""
        if len(self._taught) > _MOST_ALIKE:
            return ""
        names = [category.name for category in self._in_order().categories]
        close = get_close_matches(tidy(name), dict.fromkeys(names), 3, cutoff=0.75)
        return f"; did you mean {' or '.join(repr(one) for one in close)}?" if close else ""

    def _find(self, name: str, advice: str = "", kind: str = "was taught") -> Taught:
        """Return the taught category of that name, or what a base category was taught."""
        name = tidy(name)
        self._refresh()
        base = self._base_name(name)
        found = self._store.find(base or name)
        if found is not None and found.name == (base or name):
            return found
        if base is not None:
            raise RecollectError(f"'{name}' is a base category, and nothing was taught to it{advice}")
        known = (
            ", ".join(self._category(taught).name for taught in list(self._taught.values())[:20]) or "none"
        )
        hint = f"; it is spelled '{found.name}'" if found else self._alike(name) or f"; taught are: {known}"
        raise MissingError(f"no category called '{name}' {kind}{hint}")

    def _view(self, vectors: Floats) -> Floats:
        """Return vectors as the classifier sees them: of unit length for cosine."""
        return vectors if self._spec.classifier == "dot" else unit(vectors)


def _unpickled(kind: type[Recognizer], backend: Backend, content: Content, place: Place) -> Recognizer:
    recognizer = kind(backend)
    recognizer._start(content, place)  # noqa: SLF001
    return recognizer


class _Columns:
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


class _Found(NamedTuple):
    """Raw scores (n, k) and (n, taught) of some features at one moment, and what their columns are."""

    base: Floats
    novel: Floats
    columns: _Columns


class _Seen:
    """Pictures in the order of their features' norms, among which one is soon found again."""

    def __init__(self) -> None:
        self._norms: list[float] = []
        self._features: list[Floats] = []

    def again(self, feature: Floats) -> bool:
        """Say whether a picture was seen before; remember it otherwise."""
        length = norm(feature)
        first = bisect_left(self._norms, length * (1 - SAME))
        last = bisect_right(self._norms, length * (1 + SAME))
        if any(is_same(feature, other) for other in self._features[first:last]):
            return True
        place = bisect_left(self._norms, length)
        self._norms.insert(place, length)
        self._features.insert(place, feature)
        return False


def _ranked(best: Sequence[tuple[Category, float]], strange: float, top: int) -> list[Prediction]:
    """Return the answers for a picture, which is of no known category with the probability `strange`."""
    nearest = [Prediction(one.name, share * (1 - strange), one.origin) for one, share in best]
    unsure = [Prediction("unknown", strange, "unknown")] if strange >= 0.5 else []
    return [*unsure, *nearest][:top]


def _joint(
    found: _Found, offsets: Callable[..., npt.NDArray[np.float64]], among: Among
) -> tuple[Floats, list[Category]]:
    """Return the scores (n, choices) of all that may be answered, offsets added to taught ones, and these."""
    base, novel, columns = found
    scores = joint_scores(base, novel, offsets(columns.examples, columns.tightness))
    for own, other in columns.corrected:  # the better of its own score and that of what it was taught
        scores[:, own] = np.maximum(scores[:, own], scores[:, base.shape[1] + other])
    asked, categories = columns.choice(among)
    return np.take(scores, asked, axis=1), categories


def _check_answers(top: int, among: str) -> None:
    if top < 1:
        raise ArgumentError(f"top={top}: ask for at least 1 answer")
    if among not in {"all", "base", "novel"}:
        raise ArgumentError(f"among '{among}': choose among 'all', 'base' or 'novel' categories")


def _name(picture: Picture, number: int, total: int | None) -> str:
    """Return what errors call a picture: its own name, or its place among the others."""
    own = own_name(picture)
    if own:
        return own
    return "the picture" if total == 1 else f"picture {number}" + (f" of {total}" if total else "")


def _finite(part: str, values: Floats, names: Sequence[str]) -> Floats:
    """Return what a part of the model gave for pictures (n, d), if all of it is numbers."""
    bad = np.flatnonzero(~np.isfinite(values).all(axis=1))
    if len(bad):
        raise ModelError(
            f"the {part} gives no finite numbers for {names[bad[0]]}: the model is damaged, or its training "
            "diverged"
        )
    return values


def _best(values: npt.NDArray[np.floating[Any]], top: int) -> list[int]:
    """Return where the `top` largest values are, the largest first; of equal ones the first."""
    if top < len(values):
        least = np.partition(values, -top)[-top]
        some = np.flatnonzero(values >= least)
    else:
        some = np.arange(len(values))
    return [int(k) for k in some[np.argsort(-values[some], kind="stable")][:top]]
