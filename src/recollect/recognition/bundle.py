"""Taught categories as part of a model file: names and ids in its header, features among its tensors.

A backup is such a file without the model.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

from recollect.backends import Backend
from recollect.errors import ArgumentError, ModelError, StoreError
from recollect.modelfile import TAUGHT, Header, KeptBaseChange, KeptCategory, KeptExample, write_model
from recollect.store import BaseChange, Content, Example, Taught, fold, new_name

Tensors = Mapping[str, npt.NDArray[np.generic]]
_BACKUP = "recollect-backup"  # the key of a backup's header
_DIGEST = "sha256"  # of all the rest
_KEPT = {"taught", "last_ids", "base_changes"}


def pack(content: Content) -> tuple[dict[str, Any], dict[str, npt.NDArray[np.generic]]]:
    """Return what a store holds as fields of a model file's header, and as tensors."""
    taught = tuple(
        KeptCategory(
            id=category.id,
            name=category.name,
            examples=tuple(
                KeptExample(id=one.id, added=one.added, thumbnail=len(one.thumbnail or b""))
                for one in examples
            ),
        )
        for category, examples in content.categories
    )
    last = content.last_category, content.last_example
    base = {name: KeptBaseChange(shown=one.shown, hidden=one.hidden) for name, one in content.base.items()}
    fields = {"taught": taught, "last_ids": last if any(last) else None, "base_changes": base}
    kept = [one for _, examples in content.categories for one in examples]
    if not kept:
        return fields, {}
    return fields, {
        f"{TAUGHT}features": np.stack([one.feature for one in kept]),
        f"{TAUGHT}terms": np.stack([one.term for one in kept]),
        f"{TAUGHT}thumbnails": np.frombuffer(b"".join(one.thumbnail or b"" for one in kept), np.uint8),
    }


def save_bundle(path: str | Path, backend: Backend, content: Content) -> None:
    """Write a model and what it was taught to one file."""
    fields, tensors = pack(content)
    write_model(path, backend.header.model_copy(update=fields), {**backend.weights(), **tensors})


def backup_of(backend: Backend, content: Content) -> bytes:
    """Return what a model was taught as the bytes of a safetensors file."""
    fields, tensors = pack(content)
    header = Header(spec=backend.header.spec, **fields)
    words = {"model": backend.fingerprint, **header.model_dump(mode="json", include=_KEPT)}
    return save(tensors, metadata={_BACKUP: json.dumps({**words, _DIGEST: _digest(words, tensors)})})


def read_backup(backend: Backend, backup: bytes) -> Content:
    """Return the content of a backup; refuse one that is damaged, or of another model."""
    try:
        tensors = load(backup)
        length = int.from_bytes(backup[:8], "little")
        words = json.loads(json.loads(backup[8 : 8 + length])["__metadata__"][_BACKUP])
        whole = words.pop(_DIGEST) == _digest(words, tensors)
        kept = {name: words[name] for name in _KEPT}
        header = Header.model_validate({"spec": backend.header.spec, **kept})
    except (SafetensorError, LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ArgumentError("this is not a backup of taught categories, or it is damaged") from error
    if not whole:
        raise ArgumentError("this backup is damaged: take another one")
    if words.get("model") != backend.fingerprint:
        raise ArgumentError("this backup belongs to another model: restore it there, or teach again")
    try:
        own = {name.removeprefix(TAUGHT): values for name, values in tensors.items()}
        return unpack("the backup", header, own, backend.base_vectors.shape[1])
    except ModelError as error:
        raise ArgumentError(str(error)) from error


def _digest(words: Mapping[str, Any], tensors: Tensors) -> str:
    found = hashlib.sha256(json.dumps(words, sort_keys=True).encode())
    for name in sorted(tensors):
        found.update(f"{name}{tensors[name].dtype}{tensors[name].shape}".encode())
        found.update(tensors[name].tobytes())
    return found.hexdigest()


def unpack(path: Path | str, header: Header, tensors: Tensors, width: int) -> Content:
    """Return the content that `pack` turned into header fields and tensors; refuse what does not fit."""
    kept = [one for category in header.taught for one in category.examples]
    terms = width * (2 if header.spec.shot_aware else 1)
    wrong = _wrong_fields(header, kept) or (kept and _wrong_tensors(tensors, kept, width, terms))
    if wrong:
        raise ModelError(f"the taught categories in {path} are damaged: {wrong}")
    last_category, last_example = header.last_ids or (0, 0)
    base = {name: BaseChange(one.shown, one.hidden) for name, one in header.base_changes.items()}
    if not kept:
        return Content((), last_category, last_example, base)
    sizes = [one.thumbnail for one in kept]
    small = tensors["thumbnails"].tobytes()
    rows = zip(tensors["features"], tensors["terms"], sizes, accumulate(sizes), kept, strict=True)
    examples = iter(
        Example(feature, term, small[end - size : end] or None, one.id, one.added)
        for feature, term, size, end, one in rows
    )
    categories = [
        (
            Taught(category.id, category.name, len(category.examples), 1),
            [next(examples) for _ in category.examples],
        )
        for category in header.taught
    ]
    return Content(categories, last_category, last_example, base)


def _wrong_fields(header: Header, kept: list[KeptExample]) -> str | None:
    """Return what is wrong with the header fields, or `None`."""
    last_category, last_example = header.last_ids or (0, 0)
    orders = [
        ([category.id for category in header.taught], last_category),
        *(([one.id for one in category.examples], last_example) for category in header.taught),
    ]
    if not all(_rise(ids, last) for ids, last in orders) or len({one.id for one in kept}) != len(kept):
        return "their ids contradict each other"
    base = {fold(name): name for name in header.spec.categories}
    shown = {name: one.shown for name, one in header.base_changes.items() if one.shown is not None}
    if not set(header.base_changes) <= set(header.spec.categories):
        return "a change is of a category that is not one of the model's"
    # A base category may be taught pictures, under its own name.
    novel = [category.name for category in header.taught if base.get(fold(category.name)) != category.name]
    folds = [*map(fold, novel), *map(fold, shown.values())]
    others = {folded for folded, name in base.items() if fold(shown.get(name) or "") != folded}
    if len({*folds}) != len(folds) or others & {*folds}:
        return "two of them, or one and a base category, have the same name"
    if len({category.name for category in header.taught}) != len(header.taught):
        return "two of them, or one and a base category, have the same name"
    try:
        strange = [name for name in (*novel, *shown.values()) if new_name(name) != name]
    except StoreError as error:
        return str(error)
    return f"the name {strange[0]!r} is not in the form that is kept" if strange else None


def _wrong_tensors(tensors: Tensors, kept: list[KeptExample], width: int, terms: int) -> str | None:
    """Return which tensor does not fit the header, or `None`; `terms` is the width of terms."""
    expected = {
        "features": ((len(kept), width), np.dtype(np.float32)),
        "terms": ((len(kept), terms), np.dtype(np.float32)),
        "thumbnails": ((sum(one.thumbnail for one in kept),), np.dtype(np.uint8)),
    }
    for name, (shape, kind) in expected.items():
        found = tensors.get(name)
        if found is None or found.shape != shape or found.dtype != kind or not np.isfinite(found).all():
            return f"'{name}' does not fit the header"
    return None


def _rise(ids: Iterable[int], last: int) -> bool:
    ids = [0, *ids]
    return ids == sorted(set(ids)) and ids[-1] <= last
