"""What people hold: a recogniser that is taught categories while it is used."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, overload

import numpy as np

from recollect.backends import Backend, Floats
from recollect.errors import ModelError, RecollectError
from recollect.images import Picture, are_many, read_batch, thumbnail
from recollect.model.spec import bias_at
from recollect.modelfile import read_taught, write_model
from recollect.recognition.bundle import pack, unpack
from recollect.recognition.scoring import clearance, joint_scores, softmax, unknown_probability
from recollect.recognition.vectors import VectorTable, lengths, unit
from recollect.store import Example, NewExample, Owner, Store, Taught, fold, open_store, tidy

Origin = Literal["base", "novel"]
Among = Literal["all", "base", "novel"]
_AT_ONCE = 500  # categories taken over together, to spare memory


@dataclass(frozen=True)
class Prediction:
    """One answer: a category, how probable it is, and whether it was learned (base) or taught (novel).

    For a picture of no known category the first answer is "unknown", of origin "unknown".
    """

    category: str
    probability: float
    origin: Origin | Literal["unknown"]


@dataclass(frozen=True)
class Category:
    """A category that a recogniser knows; its id stays its own, whatever is taught or forgotten."""

    id: int
    name: str
    origin: Origin
    examples: int | None  # taught pictures; base categories keep none


class Recognizer:
    """A model and the categories it has been taught since; teaching never changes what it knew.

    Base and taught scores are products over matrices of fixed shapes, so base scores stay bit-identical
    however much is taught, and forgetting a category restores every score. Threads may share a recogniser.
    """

    def __init__(self, backend: Backend, store: Store | None = None) -> None:
        self._backend = backend
        self._spec = backend.header.spec
        width = backend.base_vectors.shape[1]
        self._store = store or open_store(None, Owner(backend.fingerprint, width))
        self._base_vectors = self._view(backend.base_vectors)
        self._base_names = {fold(name): name for name in self._spec.categories}
        self._taught: dict[int, Taught] = {}
        self._columns: list[Taught] | None = []  # the taught categories in the order of their scores
        self._vectors = VectorTable(width)
        self._seen: object = object()  # no state of any store
        self._lock = threading.RLock()

    @classmethod
    def load(
        cls, model: str | Path, store: str | Path | None = None, *, extractor: str | None = None
    ) -> "Recognizer":
        """Load a model file, a run folder, or a model that comes ready ("imagenet").

        Taught categories live in memory, or in the store at a path. A file that `save` wrote brings its
        taught categories along, into memory or into a new store. A model whose extractor is your own code
        loads only where you name it again: `extractor="module:package.module:callable"`.
        """
        from recollect.backends.torch import TorchBackend

        backend = TorchBackend.load(model, extractor)
        width = backend.base_vectors.shape[1]
        content = unpack(*read_taught(model), width)  # before a store is made for what cannot be used
        opened = open_store(store, Owner(backend.fingerprint, width))
        opened.fill(content)
        return cls(backend, opened)

    def save(self, path: str | Path) -> None:
        """Write the model and its taught categories to one file, which `load` restores."""
        words, tensors = pack(self._store.content())
        header = self._backend.header.model_copy(update=words)
        write_model(path, header, {**self._backend.weights(), **tensors})

    def categories(self) -> list[Category]:
        """Return all categories: base ones first, then taught ones in the order of teaching."""
        with self._lock:
            self._look()
            base = [Category(k, name, "base", None) for k, name in enumerate(self._spec.categories)]
            return [*base, *map(self.category, self._in_order())]

    def teach(
        self, name: str, pictures: Picture | Sequence[Picture], *, thumbnails: bool = False
    ) -> Category:
        """Add a category from one or a few pictures, or more pictures to a category taught before.

        With `thumbnails` a small copy of each picture is kept with it.
        """
        name = self._new_name(name)
        features = self._embed(pictures)
        terms = _finite("generator", self._backend.generate(features))
        many: Sequence[Picture] = pictures if are_many(pictures) else [pictures]  # type: ignore[assignment, list-item]
        small = [thumbnail(picture) for picture in many] if thumbnails else [None] * len(features)
        examples = [NewExample(*values) for values in zip(features, terms, small, strict=True)]
        with self._lock:
            taught = self._store.add(name, examples)
            self._learn([taught])
            return self.category(taught)

    def forget(self, name: str) -> None:
        """Remove a taught category."""
        with self._lock:
            taught = self._find(name)
            self._store.remove(taught.id)
            self._drop(taught.id)

    def examples(self, name: str) -> list[Example]:
        """Return what is kept of the pictures that a category was taught from."""
        with self._lock:
            return self._store.examples(self._find(name).id)

    def forget_example(self, example: int) -> None:
        """Remove one picture of a taught category, by its id; with its last one a category is forgotten."""
        with self._lock:
            self._look()
            changed = self._store.remove_example(example)
            if changed.examples:
                self._learn([changed])
            else:
                self._drop(changed.id)

    def rename(self, old: str, new: str) -> None:
        """Give a taught category another name; its id and its pictures stay."""
        new = self._new_name(new)
        with self._lock:
            taught = self._find(old)
            self._store.rename(taught.id, new)
            self._learn([Taught(taught.id, new, taught.examples, taught.revision + 1)])

    def scores(self, pictures: Picture | Sequence[Picture]) -> tuple[Floats, Floats]:
        """Return the raw scores of pictures over base (n, k) and over taught categories (n, taught)."""
        return self._scores(self._embed(pictures))[:2]

    @overload
    def predict(  # type: ignore[overload-overlap]  # a path is a sequence of strings to the type checker
        self, pictures: Picture, top: int = 5, among: Among = "all", *, unknown: bool = True
    ) -> list[Prediction]: ...
    @overload
    def predict(
        self, pictures: Sequence[Picture], top: int = 5, among: Among = "all", *, unknown: bool = True
    ) -> list[list[Prediction]]: ...
    def predict(
        self,
        pictures: Picture | Sequence[Picture],
        top: int = 5,
        among: Among = "all",
        *,
        unknown: bool = True,
    ) -> list[Prediction] | list[list[Prediction]]:
        """Return the `top` most probable answers for a picture, or a list of them for each of many.

        With a calibrated model, a picture that resembles no category gets "unknown" for its first answer. Its
        probability is that of a picture of no known category, if as many are shown as of known ones; the
        rest is shared out among the nearest categories, which follow. With `unknown=False`, or asked among
        base or novel categories only, the picture is taken to be of one of them.
        """
        calibration = self._backend.header.calibration
        base, novel, taught = self._scores(self._embed(pictures))
        scores = joint_scores(base, novel, bias_at(calibration.bias, len(taught)))
        known = base.shape[1]
        asked = {"all": slice(None), "base": slice(known), "novel": slice(known, None)}.get(among)
        if asked is None:
            raise RecollectError(f"among '{among}': choose among 'all', 'base' or 'novel' categories")
        scores, first = scores[:, asked], asked.start or 0
        if not scores.shape[1]:
            raise RecollectError("there are no taught categories to choose from: teach some first")
        nowhere = np.zeros(len(scores))
        if unknown and among == "all" and calibration.unknown is not None:
            cleared = clearance(scores.max(axis=1), len(taught), calibration.unknown)
            nowhere = np.where(cleared < 0, unknown_probability(cleared, calibration.unknown), 0)

        def answer(place: int, share: float) -> Prediction:
            if place < known:
                return Prediction(self._spec.categories[place], share, "base")
            return Prediction(taught[place - known].name, share, "novel")

        answers = []
        for row, strange in zip(softmax(scores, calibration.temperature), nowhere.tolist(), strict=True):
            nearest = [answer(first + k, float(row[k]) * (1 - strange)) for k in _best(row, top)]
            unsure = [Prediction("unknown", strange, "unknown")] if strange else []
            answers.append([*unsure, *nearest][:top])
        return answers if are_many(pictures) else answers[0]

    def explain(self, name: str, top: int = 5) -> list[tuple[str, float]]:
        """Return the base categories that a taught one leans on, with the attention that each gets.

        The shares are means over the category's examples and add up to 1 over all base categories.
        """
        features = np.stack([example.feature for example in self.examples(name)])
        leaning = self._backend.attend(features)
        if leaning is None:
            raise RecollectError(
                f"the generator of this model is '{self._spec.generator}', which leans on no base category"
            )
        shares = leaning.mean(axis=0)
        return [(self._spec.categories[k], float(shares[k])) for k in _best(shares, top)]

    def _scores(self, features: Floats) -> tuple[Floats, Floats, list[Taught]]:
        """Return base scores, novel scores, and the categories of the latter."""
        scale = np.float32(self._backend.scale)
        # Dividing scores by |z| takes fewer divisions than dividing features.
        factor = scale if self._spec.classifier == "dot" else scale / lengths(features)
        base: Floats = features @ self._base_vectors.T
        base *= factor
        with self._lock:
            self._look()
            novel = self._vectors.products(features)
            taught = self._in_order()
        novel *= factor
        return base, novel, taught

    def _embed(self, pictures: Picture | Sequence[Picture]) -> Floats:
        prepare = self._spec.preprocessing
        return _finite(
            "extractor", self._backend.embed(read_batch(pictures, prepare.size, prepare.short_side))
        )

    def _look(self) -> None:
        """Take over what others changed in the store since the last look."""
        state = self._store.state()
        if state == self._seen:
            return
        listed = {taught.id: taught for taught in self._store.categories()}
        for id_ in self._taught.keys() - listed.keys():
            self._drop(id_)
        changed = [taught for taught in listed.values() if self._taught.get(taught.id) != taught]
        for start in range(0, len(changed), _AT_ONCE):
            self._learn(changed[start : start + _AT_ONCE])
        self._seen = state

    def _learn(self, changed: list[Taught]) -> None:
        """Compute the vectors of categories whose examples changed: w' = the mean of their terms."""
        words = {taught.id: taught for taught in changed}
        for id_, terms in self._store.terms(list(words)):
            taught = words[id_]
            vector = self._view(terms.mean(axis=0, dtype=np.float64).astype(np.float32))
            self._vectors.put(taught.id, vector)
            self._taught[taught.id] = taught
        self._columns = None

    def _drop(self, id_: int) -> None:
        if self._taught.pop(id_, None) is not None:
            self._vectors.drop(id_)
            self._columns = None

    def _in_order(self) -> list[Taught]:
        """Return the taught categories in the order of their scores; the list is never changed."""
        if self._columns is None:
            self._columns = sorted(self._taught.values(), key=lambda taught: taught.id)
        return self._columns

    def _new_name(self, name: str) -> str:
        name = tidy(name)
        base = self._base_names.get(fold(name))
        if base is not None:
            spelled = "" if base == name else f" (spelled '{base}')"
            raise RecollectError(f"'{name}'{spelled} is a base category already: choose another name")
        return name

    def _find(self, name: str) -> Taught:
        """Return the taught category of that name."""
        name = tidy(name)
        found = self._store.find(name)
        if found is not None and found.name == name:
            return found
        if fold(name) in self._base_names:
            raise RecollectError(
                f"'{name}' is a base category: only taught ones can be changed, or have examples"
            )
        self._look()
        known = ", ".join(taught.name for taught in list(self._taught.values())[:20]) or "none"
        hint = f"it is spelled '{found.name}'" if found else f"taught are: {known}"
        raise RecollectError(f"no category called '{name}' was taught; {hint}")

    def category(self, taught: Taught) -> Category:
        """Return a taught category of the store as `categories` lists it: its ids follow the base ones."""
        return Category(len(self._spec.categories) + taught.id - 1, taught.name, "novel", taught.examples)

    def _view(self, vectors: Floats) -> Floats:
        """Return vectors as the classifier sees them: of unit length for cosine."""
        return vectors if self._spec.classifier == "dot" else unit(vectors)


def _finite(part: str, values: Floats) -> Floats:
    """Return what a part of the model gave for pictures (n, d), if all of it is numbers."""
    bad = np.flatnonzero(~np.isfinite(values).all(axis=1))
    if len(bad):
        raise ModelError(
            f"the {part} gives no finite numbers for picture {bad[0] + 1} of {len(values)}: "
            "the model is damaged, or its training diverged"
        )
    return values


def _best(values: Floats, top: int) -> list[int]:
    """Return where the `top` largest values are, the largest first; of equal ones the first."""
    if top < 1:
        raise RecollectError(f"top={top}: at least 1 answer can be asked for")
    if top < len(values):
        least = np.partition(values, -top)[-top]
        some = np.flatnonzero(values >= least)
    else:
        some = np.arange(len(values))
    return [int(k) for k in some[np.argsort(-values[some], kind="stable")][:top]]
