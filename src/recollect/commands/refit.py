"""`recollect refit`: taught categories with enough examples become base categories of a new model.

A model without base categories is solved in closed form, as `recollect train` does on a frozen extractor, and
centres features on their mean. A model with base categories keeps their vectors and τ: their pictures are not
there to weigh the new ones against. The new ones keep the vectors that the generator made, but lose the bias
of taught categories; then the generator is trained further, on episodes in which the new ones act as novel.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from recollect.backends.torch import TorchBackend
from recollect.commands.new import unused
from recollect.commands.opening import Target
from recollect.errors import RecollectError, counted
from recollect.features import FeatureSet
from recollect.model.generator import AttentionGenerator, RidgeGenerator
from recollect.model.model import Model
from recollect.model.spec import Calibration, ModelSpec
from recollect.modelfile import Header, load_model, read_header, stamp
from recollect.recognition.bundle import save_bundle
from recollect.recognition.results import Category, Example
from recollect.recognition.ridge import SolvedVectors
from recollect.recognition.scoring import joint_scores
from recollect.store import BaseChange, NewExample, Owner, new_name, open_store
from recollect.training.calibration import calibrate
from recollect.training.head import learn_generator
from recollect.training.ridge import fit_scale, solve_base

ENOUGH = 4  # examples that a taught category needs
HELD_BACK = 3  # one example in so many is held out, to measure on
_STEPS, _PEAK = 200, 0.05


@dataclass(frozen=True)
class _Support:
    """Features of the examples of each category."""

    names: tuple[str, ...]
    features: list[Tensor]

    def rest(self) -> "_Support":
        """Return them without those that are held out."""
        return _Support(self.names, [some[: len(some) - len(some) // HELD_BACK] for some in self.features])

    def held(self) -> "_Support":
        """Return those that are held out to measure on."""
        return _Support(self.names, [some[len(some) - len(some) // HELD_BACK :] for some in self.features])

    def seen_by(self, new: Model, old: Model) -> FeatureSet:
        """Return the features of an old model as a new one, of another centre, would give them."""
        sizes = torch.tensor([len(some) for some in self.features])
        features = torch.cat(self.features) - (new.centre - old.centre)
        return FeatureSet(features, torch.arange(len(sizes)).repeat_interleave(sizes), self.names)


def refit(target: Target, out: Path, *, seed: int = 0) -> dict[str, Any]:
    """Write a new model in which taught categories are base categories: the result of `recollect refit`.

    `base` names the promoted categories, `taught` those with too few examples, which stay taught. What was
    changed about the old base categories (pictures, names, hidden) is kept. `before` and `after` are
    accuracies in percent on `held_back` examples, among old and new base categories; `after` is that of a
    model trained without them, while the model that is written is trained on all.
    """
    path = unused(out)
    with target.load() as recognizer:
        known = recognizer.categories()
        taught = [one.name for one in known if one.origin == "novel"]
        examples = {one.name: recognizer.examples(one.name) for one in known if one.examples}
    old, header = load_model(target.model, target.extractor), read_header(target.model)
    names = tuple(new_name(name) for name in taught if len(examples[name]) >= ENOUGH)
    if len(names) < 2:
        raise RecollectError(
            f"{len(names)} of {len(taught)} taught categories have {ENOUGH} examples or more, and refit "
            "needs 2 of them: teach more pictures"
        )
    support = _Support(names, [_features(examples[name]) for name in names])
    rest, held = support.rest(), support.held()
    trial = _grown(old, rest, seed, "training without the held-out examples")
    asked = replace(held.seen_by(trial, old), support=rest.seen_by(trial, old))
    if not old.spec.categories:
        fit_scale(trial, asked)
    calibration = header.calibration if old.spec.categories else _calibrated(trial, asked, seed)
    report = {
        "held_back": len(asked.labels),
        "before": _before(
            old,
            rest,
            held.seen_by(old, old),
            header.calibration.biases([len(some) for some in rest.features], _tightness(old, rest)),
        ),
        "after": _after(trial, asked, len(old.spec.categories)),
    }
    grown = _grown(old, support, seed, "training on all examples")
    grown.classifier.scale.data.copy_(trial.classifier.scale)
    left = [name for name in taught if name not in names]
    new_header = Header(
        spec=grown.spec,
        calibration=calibration,
        provenance={
            **stamp(),
            **{name: header.provenance[name] for name in ("weights_licence",) if name in header.provenance},
            "refit": {"from": str(target.model), "categories": len(names), **report},
        },
    )
    stay = [one for one in known if one.origin == "base" or one.name in left]
    _save(path, grown, new_header, stay, examples, old)
    return {"model": str(target.model), "new": str(path), "base": list(names), "taught": left, **report}


def refit_text(result: dict[str, Any]) -> str:
    """Return what `refit` prints."""
    stay = f"; {len(result['taught'])} stay taught" if result["taught"] else ""
    lines = [
        f"{result['new']}: {len(result['base'])} taught categories are base categories now{stay}.",
        (
            f"On {counted(result['held_back'], 'held-out example')} of the promoted categories, among all: "
            f"{result['before']:.1f} % right before, {result['after']:.1f} % after."
        ),
    ]
    if result["after"] < result["before"]:
        lines.append(
            "These categories did better as taught ones: measure both models with `recollect check` on "
            "pictures of all categories before you choose."
        )
    return "\n".join(lines)


def _features(examples: Sequence[Example]) -> Tensor:
    return torch.from_numpy(np.stack([example.feature for example in examples]))


def _grown(old: Model, support: _Support, seed: int, bar: str) -> Model:
    """Return a model with these categories as base categories, after those of the old one."""
    spec = old.spec.model_copy(update={"categories": (*old.spec.categories, *support.names)})
    if not old.spec.categories:
        return _solved(old, spec, support)
    model = _extended(old, spec, support)
    if list(model.generator.parameters()):
        _learn_on(model, support, seed, bar)
    return model


@torch.no_grad()
def _solved(old: Model, spec: ModelSpec, support: _Support) -> Model:
    """Solve all vectors together; from now on the mean feature of the examples is subtracted."""
    model = Model(spec.model_copy(update={"generator": "ridge", "centred": True}), old.extractor).eval()
    model.centre.copy_(old.centre + torch.stack([some.mean(dim=0) for some in support.features]).mean(dim=0))
    solve_base(model, support.seen_by(model, old))
    return model


def _vectors(old: Model, support: _Support) -> Tensor:
    """Return the vectors (categories, d) that the generator makes of all examples."""
    terms = pad_sequence([old.terms(some) for some in support.features], batch_first=True)
    present = pad_sequence([torch.ones(len(some)) for some in support.features], batch_first=True)
    return old.generator.compose(terms, present)


@torch.no_grad()
def _extended(old: Model, spec: ModelSpec, support: _Support) -> Model:
    """Add the vectors that the generator makes to those of the old base categories."""
    model = Model(spec, old.extractor).eval()
    vectors = _vectors(old, support)
    if spec.classifier == "cosine":
        vectors = vectors * old.classifier.weight.norm(dim=1).mean() / vectors.norm(dim=1, keepdim=True)
    state = old.state_dict()
    state["classifier.weight"] = torch.cat([state["classifier.weight"], vectors])
    if isinstance(old.generator, AttentionGenerator):
        keys = state["generator.keys"]
        seen = torch.cat([some.mean(dim=0, keepdim=True) for some in support.features])
        queries = old.generator.phi_q(old.classifier.view(seen))  # what resembles them will lean on them
        queries = queries * keys.norm(dim=1).mean() / queries.norm(dim=1, keepdim=True)
        state["generator.keys"] = torch.cat([keys, queries])
    model.load_state_dict(state)
    if isinstance(model.generator, RidgeGenerator):
        model.generator.see(torch.cat([model.classifier.view(some) for some in support.features]))
    return model


def _learn_on(model: Model, support: _Support, seed: int, bar: str) -> None:
    """Train the generator further, with W_base and τ frozen."""
    sizes = [len(some) for some in support.features]
    largest = sorted(range(len(sizes)), key=lambda place: -sizes[place])
    first = len(model.spec.categories) - len(sizes)
    order = torch.tensor([first + place for place in largest] + list(range(first)))
    _reorder(model, order)  # those that may act as novel come first
    features = torch.cat([support.features[place] for place in largest])
    labels = np.repeat(np.arange(len(sizes)), [sizes[place] for place in largest])
    learn_generator(model, features, labels, steps=_STEPS, peak=_PEAK, seed=seed, bar=bar)
    _reorder(model, order.argsort())


@torch.no_grad()
def _reorder(model: Model, order: Tensor) -> None:
    model.classifier.weight.copy_(model.classifier.weight[order])
    if isinstance(model.generator, AttentionGenerator):
        model.generator.keys.copy_(model.generator.keys[order])


def _tightness(old: Model, support: _Support) -> float | None:
    vectors = SolvedVectors(old.width, lambda _, sums: sums)
    for place, some in enumerate(support.features):
        vectors.put(place, old.classifier.view(some).numpy())
    return vectors.tightness()


@torch.no_grad()
def _before(old: Model, support: _Support, held: FeatureSet, bias: npt.NDArray[np.float64]) -> float:
    vectors = _vectors(old, support)
    base, novel = old.classifier(held.features), old.classifier.scores(held.features, vectors)
    best = joint_scores(base.numpy(), novel.numpy(), bias).argmax(axis=1) - base.shape[1]
    return _percent(best == held.labels.numpy())


@torch.no_grad()
def _after(model: Model, held: FeatureSet, offset: int) -> float:
    best = model.classifier(held.features).argmax(dim=1) - offset
    return _percent((best == held.labels).numpy())


def _percent(right: Any) -> float:  # noqa: ANN401
    return round(100 * float(right.mean()), 2)


def _calibrated(model: Model, held: FeatureSet, seed: int) -> Calibration:
    """Calibrate on the held-out examples, if there are enough categories for tasks."""
    if len(held.categories) < 4:
        return Calibration()
    return calibrate(model, None, held, seed=seed)


def _save(
    path: Path,
    model: Model,
    header: Header,
    categories: Sequence[Category],
    examples: dict[str, list[Example]],
    old: Model,
) -> None:
    """Write the model with what these categories were taught, and how base ones among them are shown."""
    backend = TorchBackend(model, header)
    store = open_store(None, Owner(backend.fingerprint, model.width))
    for one in categories:
        name = old.spec.categories[one.id] if one.origin == "base" else one.name
        if one.hidden or one.name != name:
            store.change_base(name, BaseChange(None if one.name == name else one.name, one.hidden))
        if not one.examples:
            continue
        kept = examples[one.name]
        features = _Support((name,), [_features(kept)]).seen_by(model, old).features.numpy()
        terms = backend.generate(features)
        small = [example.thumbnail for example in kept]
        store.add(name, [NewExample(*values) for values in zip(features, terms, small, strict=True)])
    save_bundle(path, backend, store.content())
