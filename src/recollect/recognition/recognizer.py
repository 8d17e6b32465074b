"""The recogniser, which is taught categories while it is used."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, cast, overload

import numpy as np

from recollect.backends import Backend, BackendName
from recollect.errors import (
    ArgumentError,
    MissingError,
    ModelError,
    NameTakenError,
    PictureError,
    RecollectError,
    StoreError,
)
from recollect.images import Array4d, Picture, Pictures, are_many, own_name, read_pixels, thumbnail
from recollect.modelfile import read_taught, require_replaceable
from recollect.recognition.bundle import backup_of, read_backup, save_bundle, unpack
from recollect.recognition.knowledge import Knowledge
from recollect.recognition.opening import place_of_store
from recollect.recognition.predictor import Predictor, best_places
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
from recollect.store import (
    SAME,
    Content,
    NewExample,
    Place,
    fold,
    is_same,
    missing_from,
    new_name,
    norm,
    store_place,
    tidy,
)

_BATCH, _BATCH_PIXELS = 32, 32 * 256**2  # pictures in memory at a time, and pixels of the extractor's input


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
        self._start(Content(), store_place(store))
        # Called with how many categories are taught, how many examples those have that get more, and how many
        # each is to get; raises to refuse them.
        self.before_adding: Callable[[int, Mapping[str, int], Mapping[str, int]], None] | None = None

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
        """Start with a bundle's categories and with the store, if it exists."""
        self._known = Knowledge(self._backend, content, place)
        self._predictor = Predictor(self._backend, self._known)

    def make_store(self) -> None:
        """Make the store's file now, if it is not there, instead of when something is first taught."""
        with self._known.lock:
            self._known.make_store()

    def close(self) -> None:
        """Close the store; the recogniser cannot be used afterwards."""
        with self._known.lock:
            self._known.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Callable[..., "Recognizer"], tuple[object, ...]]:
        """Pickle the model with what is in memory, or with the place of its store."""
        with self._known.lock:
            content = self._known.store.content() if self._known.place is None else self._known.bundle
        return _unpickled, (type(self), self._backend, content, self._known.place)

    def __repr__(self) -> str:
        base = len(self._spec.categories)
        with self._known.lock:
            novel = sum(fold(one.name) not in self._known.base_places for one in self._known.taught.values())
        kept = f"{novel} taught, kept in {self._known.place or 'memory'}"
        state = "closed" if self._known.closed else kept
        return f"<Recognizer: {self._spec.extractor}, {base} base categories, {state}>"

    @property
    def backend(self) -> Backend:
        """Return what it computes with."""
        return self._backend

    @property
    def fingerprint(self) -> str:
        """Return what tells this model from any other: taught categories belong to one model."""
        return self._known.owner.fingerprint

    @property
    def search(self) -> Literal["exact", "index"]:
        """Return how `predict` compares pictures with taught categories: with each, or through an index."""
        return "exact" if self._known.many is None else "index"

    @property
    def width(self) -> int:
        """Return how many numbers a feature has."""
        return self._known.owner.width

    def save(self, path: str | Path) -> None:
        """Write the model and its taught categories to one file, which `load` restores.

        Folders on the way are created. A model that is there already is replaced, once the new one is
        complete; any other file is refused.
        """
        require_replaceable(path)
        with self._known.lock:
            self._known.refresh()
            content = self._known.store.content()
            save_bundle(path, self._backend, content)
            if content and not self._known.later:
                with suppress(StoreError):  # what may only be read need not know what was saved
                    self._known.store.know(content)

    def backup(self, name: str | None = None) -> bytes:
        """Return everything that was taught, or what one category was taught, for `restore`.

        It is the bytes of a safetensors file.
        """
        with self._known.lock:
            self._known.refresh()
            content = self._known.store.content()
            if name is not None:
                own = self._known.find(name).id
                some = [(taught, examples) for taught, examples in content.categories if taught.id == own]
                content = replace(content, categories=some, base={})
            return backup_of(self._backend, content)

    def restore(self, backup: bytes) -> dict[str, int]:
        """Take over what a backup of the same model holds and this recogniser does not, all of it or nothing.

        Returns how many examples came to each category. What was taught since the backup stays.
        """
        content = read_backup(self._backend, backup)
        with self._known.lock:
            self._known.refresh()
            if self.before_adding is not None:
                self._ask_before(missing_from(content, self._known.store.content()))
            return self._known.fill(content)

    def categories(self) -> list[Category]:
        """Return all categories: base ones first, also hidden ones, then taught ones in order of teaching."""
        with self._known.lock:
            self._known.refresh()
            known = {category.id: category for category in self._known.columns().categories}
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
        with self._known.lock:
            taught = {name: self._known.find(name) for name, examples in new.items() if not examples}
            added = {name: examples for name, examples in new.items() if examples}
            self._ask_before(added)
            if added:
                taught |= {one.name: one for one in self._known.add(added)}
            return [self._known.category(taught[name]) for name in new]

    def _ask_before(self, new: Mapping[str, Sized]) -> None:
        if self.before_adding is not None:
            found = (self._known.store.find(name) for name in new)
            known = {one.name: one.examples for one in found if one is not None}
            self.before_adding(
                len(self._known.taught), known, {name: len(examples) for name, examples in new.items()}
            )

    def _was_taught(self, name: str, feature: Floats) -> bool:
        """Say whether a category has this picture already."""
        with self._known.lock:
            known = self._known.store.find(name)
            return known is not None and any(id_ == known.id for id_, _ in self._known.store.same(feature))

    def forget(self, name: str) -> None:
        """Remove a taught category, or what a base category was taught."""
        with self._known.lock:
            self._known.remove(self._known.find(name, ": hide it to remove it from the answers"))

    def examples(self, name: str) -> list[Example]:
        """Return the examples of a taught category, in the order of teaching."""
        with self._known.lock:
            kept = self._known.store.examples(self._known.find(name).id)
        return [Example(one.id, one.added, one.feature, one.thumbnail) for one in kept]

    def duplicates(self, name: str) -> list[Duplicate]:
        """Return which pictures of a category were also taught to another one, or earlier to this one."""
        with self._known.lock:
            taught = self._known.find(name)
            shown = {one.id: self._known.category(one).name for one in self._known.store.categories()}
            examples = self._known.store.examples(taught.id)
        found = []
        for one in examples:
            with self._known.lock:  # not all the time, so that others can go on
                same = self._known.store.same(one.feature)
            found += [
                Duplicate(one.id, other, shown[category])
                for category, other in same
                if category in shown and (category != taught.id or other < one.id)
            ]
        return found

    def forget_example(self, example: int) -> None:
        """Remove one example by its id; a category without examples is forgotten."""
        with self._known.lock:
            self._known.refresh()
            self._known.remove_example(example)

    def rename(self, old: str, new: str) -> Category:
        """Rename a category, and return it; its id and its examples stay.

        For a base category, only the name that is shown changes. It is kept in the store, not in the model.
        """
        with self._known.lock:
            self._known.refresh()
            self._known.base_name(old)  # refuses another spelling
            place, own = self._known.base_place(old), self._known.base_place(new)
            if own is not None and own != place:
                raise NameTakenError(f"'{tidy(new)}' is a base category already: choose another name")
            if place is not None:
                same = tidy(new) == self._spec.categories[place]
                change = replace(self._known.changes_of(place), shown=None if same else new_name(new))
                return self._known.change_base(place, change)
            taught = self._known.find(old, kind="is known")
            return self._known.category(self._known.rename(taught, new_name(new)))

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
        base, novel, columns = self._predictor.scores(self.features(pictures))
        return Scores(base, novel, columns.categories)

    def rule(self) -> Rule:
        """Return all that turns features into answers, at one moment: for programs that do without us."""
        return self._predictor.rule()

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
            for answer in self._predictor.answers(features, top, among, unknown=unknown)
        ]
        return answers if are_many(pictures) else answers[0]

    def predict_features(
        self, features: Floats, top: int = 5, among: Among = "all", *, unknown: bool = True
    ) -> list[list[Prediction]]:
        """Return the answers that `predict` gives for the pictures that these features (n, d) are of."""
        _check_answers(top, among)
        self._check_width(features)
        return list(self._predictor.answers(features, top, among, unknown=unknown))

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
        return [(shown[k].name, float(shares[k])) for k in best_places(shares, top)]

    def resembles(self, name: str, top: int = 5) -> list[tuple[str, float]]:
        """Return which categories, base or taught, the examples of a taught one resemble most.

        Each comes with its mean probability over the examples, as `predict` would give it if the category
        itself were not known. The probability of "unknown" belongs to none of them.
        """
        if top < 1:
            raise ArgumentError(f"top={top}: ask for at least 1 category")
        with self._known.lock:
            own = self._known.category(self._known.find(name)).id
            found = self._predictor.scores(self._features_of(name))
        return self._predictor.resemblance(found, own, top)

    def _check_width(self, features: Floats) -> None:
        if features.dtype != np.float32 or features.shape[1:] != (self.width,):
            raise ArgumentError(
                f"expected features of float32 and shape (n, {self.width}), got {features.dtype} of shape "
                f"{features.shape}"
            )

    def _features_of(self, name: str) -> Floats:
        return np.stack([example.feature for example in self.examples(name)])

    def _batches(self, pictures: Picture | Pictures) -> Iterator[tuple[Floats, list[Picture], list[str]]]:
        """Yield the features (n, d) of a few pictures at a time, with these and what errors call them."""
        several = are_many(pictures)
        total = 1 if not several else len(pictures) if isinstance(pictures, Sized) else None
        rest = cast("Iterator[Picture]", iter(pictures if several else [pictures]))  # type: ignore[arg-type]
        prepare, done = self._spec.preprocessing, 0
        count = max(1, min(_BATCH, _BATCH_PIXELS // (self._spec.looks * prepare.size**2)))
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

    def _teachable(self, name: str) -> str:
        """Return the name under which examples are kept."""
        with self._known.lock:
            self._known.refresh()
            return self._known.base_name(name) or new_name(name)

    def _set_hidden(self, name: str, *, hidden: bool) -> Category:
        with self._known.lock:
            self._known.refresh()
            own = self._known.base_name(name)
            if own is None and self._known.store.find(tidy(name)):
                raise RecollectError(f"only base categories can be hidden: forget '{tidy(name)}' instead")
            if own is None:
                raise MissingError(f"no base category is called '{tidy(name)}'{self._known.alike(name)}")
            place = self._known.base_places[fold(own)]
            return self._known.change_base(place, replace(self._known.changes_of(place), hidden=hidden))


def _unpickled(kind: type[Recognizer], backend: Backend, content: Content, place: Place) -> Recognizer:
    recognizer = kind(backend)
    recognizer._start(content, place)  # noqa: SLF001
    return recognizer


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
