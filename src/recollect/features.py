"""`FeatureSet`: an `ImageSet` after the extractor, kept on disk under weights, data and preprocessing."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from recollect.data.arrays import Rows
from recollect.data.augment import Augmentation
from recollect.data.imageset import ImageSet, batches, digest
from recollect.errors import Diverged, StorageError
from recollect.model.model import Model
from recollect.modelfile import fingerprint
from recollect.system import machine, workers
from recollect.system.disk import cache_folder, clear_write_errors, locked, replacing_file, require_regular
from recollect.system.progress import bar

log = logging.getLogger(__name__)
FEATURE_VERSION = 1
_CHUNK = 4096  # pictures whose features are written at a time
_BATCH_PIXELS = 256 * 32 * 32  # of one batch through the extractor: enough to keep it busy, little memory


@dataclass(frozen=True)
class FeatureSet:
    """Features (n, d) with the labels and category names of the pictures they come from.

    In tasks where these categories act as novel ones, their support comes from `support`, or else from these
    same features.
    """

    features: Tensor
    labels: Tensor
    categories: tuple[str, ...]
    support: "FeatureSet | None" = None


def extract(model: Model, images: ImageSet, advance: Callable[[int], None] = lambda _: None) -> FeatureSet:
    """Run the extractor once over every picture, in evaluation mode and without augmentation.

    `advance` is called with the number of pictures of each batch, and may raise to end the work.
    """
    modes = {module: module.training for module in model.modules()}
    model.eval()
    device, extractor = model.mean.device, model.extractor.for_extraction()
    features = torch.zeros(len(images), model.width)
    with torch.inference_mode(), closing(images.stream(_batches(images))) as stream:
        for rows, pixels in stream:
            found = model.embed(torch.from_numpy(pixels).to(device), extractor).float().cpu()
            features[rows[0] : rows[-1] + 1] = found
            advance(workers.count() * len(pixels))
    for module, mode in modes.items():
        module.training = mode
    return _labelled(workers.put_together(features), images)


def cached_features(model: Model, images: ImageSet) -> FeatureSet:
    """Return the features of `images`, from disk where the same extractor has seen the same pictures."""
    key = digest(FEATURE_VERSION, fingerprint(model), images.content_key())
    path = cache_folder() / "features" / f"{key}.npy"
    try:
        require_regular(path)
        with path.open("rb") as file:
            features = np.lib.format.read_array(file, allow_pickle=False)
        if features.shape == (len(images), model.width) and features.dtype == np.float32:
            return _labelled(torch.from_numpy(features), images)
    except Exception:  # noqa: BLE001, S110  # not there, or damaged in any way: it can be made again
        pass
    extracted = extract(model, images)
    try:
        with replacing_file(path) as part, part.open("wb") as file:
            np.save(file, extracted.features.numpy())
    except StorageError as error:
        log.warning("features are not cached: %s", error)
    return extracted


def mapped_features(
    model: Model, images: ImageSet, advance: Callable[[int], None] = lambda _: None
) -> FeatureSet:
    """Return the features of `images`, float16, in a file that is mapped: neither has to fit into memory.

    The file grows by whole chunks, which are on disk before the next one begins, so that work that was
    interrupted goes on with the last one. `advance` is that of `extract`.
    """
    key = digest(FEATURE_VERSION, "float16", fingerprint(model), images.content_key())
    folder = cache_folder() / "features" / key
    path, growing = folder / "features.f16", folder / "features.growing"
    row = 2 * model.width
    if not (path.is_file() and path.stat().st_size == row * len(images)):
        with locked(folder), clear_write_errors(path):
            done = _interrupted_chunks(growing, row) * _CHUNK
            advance(done)
            with growing.open("ab") as file:
                for rows in batches(len(images), _CHUNK):
                    if rows[0] >= done:
                        some = replace(images, rows=images.rows[rows], labels=images.labels[rows])
                        file.write(_half(extract(model, some, advance).features).numpy().tobytes())
                        file.flush()
                        os.fsync(file.fileno())
            growing.replace(path)
    require_regular(path)
    # Private to this process: torch wants writable memory, and nothing that it writes reaches the file.
    mapped = np.memmap(path, np.float16, mode="c", shape=(len(images), model.width))
    return _labelled(torch.from_numpy(mapped), images)


def _half(features: Tensor) -> Tensor:
    """Return features in half precision; refuse those that it cannot hold."""
    halved = features.half()
    if not halved.isfinite().all():
        raise Diverged("features are not finite, or above 65504: lower the learning rate of stage 1")
    return halved


def _interrupted_chunks(growing: Path, row: int) -> int:
    """Return how many chunks an interrupted file has for sure: all but the last one, which is cut off."""
    if not growing.exists():
        return 0
    require_regular(growing)
    chunks = max(0, growing.stat().st_size // (_CHUNK * row) - 1)
    os.truncate(growing, chunks * _CHUNK * row)
    return chunks


def learning_precision(model: Model) -> AbstractContextManager[object]:
    """Let the extractor compute as it does while it learns: in bfloat16 where that is faster."""
    return machine.mixed_precision(model.mean.device, on_cpu=model.extractor.learns_in_bfloat16)


def augmented_views(
    model: Model,
    images: ImageSet,
    augmentation: Augmentation,
    views: int,
    seed: int,
    check: Callable[[], None] = lambda: None,
) -> Tensor:
    """Return features of `views` augmented versions of every picture, float16 (views, n, d).

    The extractor is frozen: evaluation mode, in which the dropout of the paper's `resnet` still draws its own
    mask for every view. Views are shifted at random already, and so not by `spec.shifted`. They may be
    computed in bfloat16, as stage 1 is. `check` is called between batches and may raise to end the work.
    """
    model.extractor.freeze()
    device, extractor = model.mean.device, model.extractor.for_extraction()
    result = torch.zeros(views, len(images), model.width, dtype=torch.float16)
    work = images.stream(_batches(images))
    progress = bar("augmented views", views * len(images))
    with torch.no_grad(), model.unshifted(), progress as advance, closing(work) as stream:
        for rows, pixels in stream:
            for view in range(views):
                # torch seeds its CPU generator with 32 bits: those of a sum would repeat.
                words = np.random.SeedSequence([seed, view, int(rows[0])]).generate_state(2)
                generator = torch.Generator().manual_seed(int(words[0]))
                torch.manual_seed(int(words[1]))
                check()
                augmented = augmentation(torch.from_numpy(pixels), generator).to(device)
                with learning_precision(model):
                    found = model.embed(augmented, extractor)
                result[view, rows[0] : rows[-1] + 1] = found.half().cpu()
                advance(workers.count() * len(rows), "")
    return workers.put_together(result)


def _batches(images: ImageSet) -> Iterator[Rows]:
    """Return the rows of pictures in batches that take about the same memory whatever their size.

    Processes that compute together take turns with the batches.
    """
    whole = batches(len(images), max(8, _BATCH_PIXELS // images.size**2))
    return islice(whole, workers.rank(), None, workers.count())


def _labelled(features: Tensor, images: ImageSet) -> FeatureSet:
    return FeatureSet(features, torch.from_numpy(images.labels), images.categories)


def category_means(features: Tensor, labels: Tensor, categories: int) -> Tensor:
    """Return the mean feature of every category: (n, d) and (n,) → (categories, d)."""
    sums = torch.zeros(categories, features.shape[1], dtype=torch.double)
    sums.index_add_(0, labels, features.double())
    return (sums / torch.bincount(labels, minlength=categories).unsqueeze(1)).float()
