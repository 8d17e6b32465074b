"""The scikit-learn estimator, for people who have their own features."""

from dataclasses import dataclass
from functools import partial
from numbers import Integral, Real
from typing import Any, Self, get_args

import numpy as np
import numpy.typing as npt
from scipy.linalg import solve
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state, check_scalar
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from recollect.errors import EstimatorError
from recollect.model.spec import RIDGE, Calibration, GeneratorKind
from recollect.recognition.ridge import SolvedVectors
from recollect.recognition.scoring import softmax
from recollect.recognition.vectors import Floats, VectorTable, dots, unit

Labels = npt.NDArray[Any]
_LABEL_KINDS = ("iuf", "UO")  # labels of one of these can stand beside each other: numbers, text


@dataclass
class _TaughtClass:
    """What is kept of a taught category: the sum of its examples' terms, and how many there were."""

    id: int
    total: npt.NDArray[np.float64]
    examples: int = 0


class RecollectClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn is untyped
    """A classifier of features that you can teach new categories at any time, without refitting.

    `fit` learns the base categories in the paper's two stages. Stage 1 trains W_base and τ of the cosine
    classifier by ordinary classification. Stage 2 trains the generator on episodes in which some base
    categories act as novel ones. `teach` adds categories from one or a few examples and leaves the scores of
    all others the same, bit for bit. `forget` removes one again.

    With `generator="ridge"` nothing is trained in steps: base vectors are solved by a ridge regression, and
    taught vectors by a second one over all taught examples, with the base examples as negatives. Taught
    categories then compete with each other; base scores stay the same, bit for bit. If there are at least
    four base categories with at least four examples each, the balance between base and taught scores and the
    probabilities are calibrated on a quarter of the examples first.

    With the paper's generators every category is weighted equally, however many examples it has. Episodes
    need at least two categories with two examples each; without them `generator_` is "mean".

    Parameters
    ----------
    generator : {"attention", "average", "mean", "ridge"}, default="attention"
        How the vector of a taught category is made from its examples (Eq. 8, 6 and 5 of the paper, or a
        regression). "mean" needs no stage 2. "attention" has d × d weights, which take memory and time; it
        pays off when there are many base categories. "ridge" is the best choice for features of a pretrained
        network; it takes a d × d matrix, and `steps` and `learning_rate` have no effect.
    centre : bool, default=True
        Subtract the mean of the base features before normalising to unit length. Features after a ReLU are
        all positive, so without centring they all point in similar directions.
    steps : int, default=200
        Training steps of each of the two stages.
    learning_rate : float, default=0.05
        The peak of the learning rate in both stages.
    random_state : int, RandomState instance or None, default=None
        An int gives the same weights every time.

    Attributes
    ----------
    classes_ : ndarray
        Base classes, sorted, then taught classes in the order of teaching (sorted within one call). The
        columns of scores and probabilities are in this order.
    n_base_ : int
        How many of `classes_` are base classes.
    generator_ : str
        The generator in use.
    mean_ : ndarray of shape (n_features_in_,)
        What is subtracted from features.
    weights_ : dict of str to ndarray
        W_base, τ and the generator's weights, by their names in a model file.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from recollect import RecollectClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> base = y < 8
    >>> classifier = RecollectClassifier(random_state=0).fit(X[base][:1000], y[base][:1000])
    >>> few = [*(y == 8).nonzero()[0][:5], *(y == 9).nonzero()[0][:5]]
    >>> classifier.teach(X[few], y[few]).classes_.tolist()
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    >>> bool(classifier.score(X[1300:], y[1300:]) > 0.8)
    True
    >>> classifier.forget(9).classes_.tolist()
    [0, 1, 2, 3, 4, 5, 6, 7, 8]
    """

    def __init__(
        self,
        generator: GeneratorKind = "attention",
        *,
        centre: bool = True,
        steps: int = 200,
        learning_rate: float = 0.05,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.generator = generator
        self.centre = centre
        self.steps = steps
        self.learning_rate = learning_rate
        self.random_state = random_state

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike) -> Self:
        """Learn the base categories from features (n, d) and labels (n,); forget everything taught before."""
        self._check_parameters()
        features, y = validate_data(self, X, y, dtype=np.float32)
        check_classification_targets(y)
        classes, labels = np.unique(y, return_inverse=True)
        if len(classes) < 2:
            raise EstimatorError(
                f"2 or more base classes are needed, and there is 1 class: {classes.tolist()}"
            )
        mean = features.mean(axis=0, dtype=np.float64) if self.centre else np.zeros(features.shape[1])
        self._learn(features, labels, mean.astype(np.float32))
        self.classes_: Labels = classes
        self.n_base_ = len(classes)
        self._taught: dict[Any, _TaughtClass] = {}
        self._next_id = 0  # no id is given twice
        width = features.shape[1]
        self._vectors: VectorTable | SolvedVectors = VectorTable(width)
        if self.generator_ == "ridge":
            self._vectors = SolvedVectors(width, partial(_solve, self.weights_["generator.moments"]))
        return self

    def teach(self, X: npt.ArrayLike, y: npt.ArrayLike) -> Self:
        """Add categories, or examples to known ones, from features (n, d) and their labels (n,).

        In any order and grouping the same examples make the same vector, to the precision of floats (with
        "ridge", the same bits). A base class that is taught examples answers with the better of its base
        score and that of the examples.
        """
        check_is_fitted(self)
        if np.ndim(X) < 2 <= np.ndim(y):
            raise EstimatorError("features (n, d) come first and labels (n,) second: swap the two arguments")
        features, y = validate_data(self, X, y, dtype=np.float32, reset=False)
        check_classification_targets(y)
        found, places = np.unique(y, return_inverse=True)
        self._check_kind(found)
        terms = self._terms(unit(features - self.mean_))
        known = set(self.classes_.tolist())
        new = [label not in known for label in found.tolist()]
        for place, label in enumerate(found.tolist()):
            self._add(label, terms[places == place])
        self.classes_ = np.concatenate([self.classes_, found[new]])
        self._settle()
        return self

    def partial_fit(self, X: npt.ArrayLike, y: npt.ArrayLike, classes: npt.ArrayLike | None = None) -> Self:
        """Fit on the first batch of features (n, d) and labels (n,); teach the examples of every later one.

        `classes` may name all labels to come; those without an example so far have probability 0. Base
        classes are those of the first batch: give it as many examples as you have.
        """
        if not hasattr(self, "classes_"):
            expected = np.unique(np.asarray(y if classes is None else classes))
            _check_listed(np.unique(np.asarray(y)), expected)
            self.fit(X, y)
            self._check_kind(expected)
            later = np.setdiff1d(expected, self.classes_)
            for label in later.tolist():
                self._add(label, np.empty((0, self.n_features_in_), np.float32))
            self.classes_ = np.concatenate([self.classes_, later])
            self._settle()
            return self
        if classes is not None:
            _check_listed(np.unique(np.asarray(y)), np.asarray(classes))
        return self.teach(X, y)

    def forget(self, label: Any) -> Self:  # noqa: ANN401
        """Remove what a class was taught; every score is then as if it had never been taught."""
        check_is_fitted(self)
        if label not in self._taught:
            base = label in self.classes_[: self.n_base_].tolist()
            why = "is a base class that was taught nothing" if base else "was not taught"
            raise EstimatorError(f"class {label!r} {why}; taught are: {list(self._taught)}")
        place = self.classes_.tolist().index(label)
        if place >= self.n_base_:
            self.classes_ = np.delete(self.classes_, place)
        self._vectors.drop(self._taught.pop(label).id)
        self._settle()
        return self

    def decision_function(self, X: npt.ArrayLike) -> Floats:
        """Return the scores of features (n, d) for every class, (n, classes).

        As everywhere in scikit-learn, two classes give the second's score less the first's, (n,).
        """
        scores = self._scores(X)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict_proba(self, X: npt.ArrayLike) -> Floats:
        """Return the softmax of the scores of features (n, d), (n, classes)."""
        scores = self._scores(X).astype(np.float64)
        probabilities: Floats = softmax(scores, self._calibration.temperature).astype(np.float32)
        return probabilities

    def predict(self, X: npt.ArrayLike) -> Labels:
        """Return the class of the highest score for features (n, d), (n,)."""
        best = self._scores(X).argmax(axis=1)
        answers: Labels = self.classes_[best]
        return answers

    def _check_parameters(self) -> None:
        kinds = get_args(GeneratorKind)
        if self.generator not in kinds:
            raise EstimatorError(f"generator={self.generator!r}: choose one of {', '.join(map(repr, kinds))}")
        check_scalar(self.steps, "steps", Integral, min_val=1)
        check_scalar(self.learning_rate, "learning_rate", Real, min_val=0, include_boundaries="neither")

    def _check_kind(self, labels: Labels) -> None:
        base = self.classes_[: self.n_base_]
        kinds = {base.dtype.kind, labels.dtype.kind}
        if len(kinds) > 1 and not any(kinds <= set(group) for group in _LABEL_KINDS):
            raise EstimatorError(
                f"labels to teach are of type {labels.dtype} and base classes {base.dtype}: use one for both"
            )

    def _learn(self, features: Floats, labels: npt.NDArray[np.int64], mean: Floats) -> None:
        import torch

        from recollect.training.head import solve_head, train_head

        seen, labels = torch.from_numpy(unit(features - mean)), labels.astype(np.int64)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self._calibration = Calibration()
        if self.generator == "ridge":
            head, self._calibration = solve_head(seen, labels, seed)
        else:
            steps, peak = int(self.steps), float(self.learning_rate)
            head = train_head(seen, labels, self.generator, steps=steps, peak=peak, seed=seed)
        weights = {name: weight.numpy().copy() for name, weight in head.state_dict().items()}
        if not all(np.isfinite(weight).all() for weight in weights.values()):
            raise EstimatorError(f"the training diverged: lower learning_rate={self.learning_rate}")
        self.weights_: dict[str, Floats] = weights
        self.mean_ = mean
        self.generator_: GeneratorKind = "ridge" if self.generator == "ridge" else "mean"
        if "generator.phi_avg" in weights:
            self.generator_ = "attention" if "generator.keys" in weights else "average"
        self._base = unit(weights["classifier.weight"])

    def _terms(self, seen: Floats) -> Floats:
        """Return each example's term (n, d) of its category's vector."""
        if self.generator_ in {"mean", "ridge"}:
            return seen
        import torch
        from torch.nn import functional as F

        from recollect.model.generator import attention_terms, attention_weights, average_terms

        def phi(name: str) -> torch.Tensor:
            # A classifier that was loaded as a memory map cannot be written to, which torch would warn of.
            return torch.from_numpy(np.require(self.weights_[f"generator.{name}"], requirements="W"))

        z = torch.from_numpy(seen)
        terms = average_terms(z, phi("phi_avg"))
        if self.generator_ == "attention":
            queries = F.linear(z, phi("phi_q.weight"), phi("phi_q.bias"))
            leaning = attention_weights(queries, phi("keys"), phi("sharpness"), None)
            base = torch.from_numpy(np.require(self._base, requirements="W"))
            terms = attention_terms(terms, leaning, base, phi("phi_att"))
        found: Floats = terms.numpy()
        return found

    def _add(self, label: Any, terms: Floats) -> None:  # noqa: ANN401
        """Add examples to a category, new or not: w' is the mean of all their terms, or solved from them."""
        if label not in self._taught:
            self._taught[label] = _TaughtClass(self._next_id, np.zeros(terms.shape[1]))
            self._next_id += 1
        kept = self._taught[label]
        kept.examples += len(terms)
        if isinstance(self._vectors, SolvedVectors):
            self._vectors.extend(kept.id, terms)
            return
        kept.total += terms.sum(axis=0, dtype=np.float64)
        self._vectors.put(kept.id, unit((kept.total / max(1, kept.examples)).astype(np.float32)))

    def _settle(self) -> None:
        """Solve at once what `ridge` solves, so that threads that predict only read."""
        if isinstance(self._vectors, SolvedVectors):
            self._vectors.solve()

    def _scores(self, X: npt.ArrayLike) -> Floats:
        check_is_fitted(self)
        seen = unit(validate_data(self, X, dtype=np.float32, reset=False) - self.mean_)
        scale = self.weights_["classifier.scale"]
        base, taught = scale * dots(seen, self._base), scale * self._vectors.products(seen)
        examples = np.array([kept.examples for kept in self._taught.values()], np.int64)
        there = examples > 0
        taught[:, there] += self._calibration.biases(examples[there]).astype(np.float32)
        own = []  # columns of classes that are not base ones
        places = {label: place for place, label in enumerate(self.classes_[: self.n_base_].tolist())}
        for column, (label, kept) in enumerate(self._taught.items()):
            if label in places:
                place = places[label]
                base[:, place] = np.maximum(base[:, place], taught[:, column])
            else:
                own.append(column)
                if not kept.examples:
                    taught[:, column] = -np.inf
        scores: Floats = np.concatenate([base, taught[:, own]], axis=1)
        return scores


def _solve(triangle: Floats, moments: npt.NDArray[np.float64], sums: Floats) -> Floats:
    """Return vectors (k, d) for `sums` (k, d), G (its upper triangle) and the moments of taught examples."""
    matrix = np.zeros_like(moments)
    matrix[np.triu_indices(len(matrix))] = triangle
    matrix += np.triu(matrix, 1).T + moments + RIDGE * np.eye(len(matrix))
    found: Floats = solve(matrix, sums.T, assume_a="pos").T.astype(np.float32)
    return found


def _check_listed(labels: Labels, classes: Labels) -> None:
    unlisted = [label for label in labels.tolist() if label not in classes.tolist()]
    if unlisted:
        raise EstimatorError(f"label {unlisted[0]!r} is not one of the given classes: list it there")
