"""The low-shot benchmark at ImageNet's size, on random features: 100 draws at once against a loop over draws.

    python -m benchmarks.lowshot [--pictures 100000]

prints the seconds of each generator for 100 draws of 1, 2, 5, 10 and 20 examples, the seconds that a loop
over draws with sorted scores takes for the same (of a few draws, extrapolated), and the peak memory of saving
features of 10 000 and of 100 000 random pictures.
"""

import argparse
import os
import sys
import tempfile
import time

import numpy as np
import torch

from benchmarks.memory import peak_of
from recollect.evaluation.lowshot import SHOTS, HalfFeatures, count_right, draw_examples
from recollect.features import FeatureSet
from recollect.methods.lowshot.generators import teach_with
from recollect.model.classifier import Classifier
from recollect.model.generator import build_generator
from recollect.model.model import Head

BASE, HALF, NOVEL, WIDTH, QUERIES, EXAMPLES, DRAWS = 389, 196, 311, 512, 50, 100, 100
PRIOR = {5: 0.8, 1: 0.6}
LOOPED = 2  # draws of each number of examples that the loop does
PICTURES = 10_000


def random_half() -> HalfFeatures:
    """Return features as many as ImageNet's validation pictures of the half for results."""

    def features(categories, each):
        labels = torch.arange(categories).repeat_interleave(each)
        return FeatureSet(torch.randn(len(labels), WIDTH).half(), labels, ())

    torch.manual_seed(0)
    base, examples, novel = features(HALF, QUERIES), features(NOVEL, EXAMPLES), features(NOVEL, QUERIES)
    return HalfFeatures(torch.randperm(BASE)[:HALF].sort().values, base, examples, novel)


def looped(teach, half, examples, shots):
    """Return right answers of All in every draw, as a loop over draws with sorted scores finds them."""
    right = []
    labels = torch.cat([half.novel.labels + HALF, half.base.labels])
    queries = torch.cat([half.novel.features, half.base.features]).float()
    for draw in examples[:, :, :shots]:
        base, novel = teach(half.examples.features[draw].float()[None], half.columns).scores(queries)
        found, novel_places = [], half.novel.labels[:, None]
        joint = torch.cat([base[:, 0], novel[:, 0]], dim=1)
        found.append((joint.argsort(dim=1, descending=True)[:, :5] == labels[:, None]).any(1).sum())
        asked = novel[: len(novel_places), 0]
        found.append((asked.argsort(dim=1, descending=True)[:, :5] == novel_places).any(1).sum())
        mu = PRIOR[5]
        weighed = torch.cat([(1 - mu) * base[:, 0].softmax(1), mu * novel[:, 0].softmax(1)], dim=1)
        found.append((weighed.argsort(dim=1, descending=True)[:, :5] == labels[:, None]).any(1).sum())
        right.append(torch.stack(found))
    return torch.stack(right)


@torch.inference_mode()
def compare(kind: str, half: HalfFeatures, examples: torch.Tensor) -> None:
    """Time one generator both ways, on the same draws; the answers must be the same."""
    head = Head(Classifier(BASE, WIDTH, "cosine"), build_generator(kind, BASE, WIDTH, 30.0))
    teach = teach_with(head)
    began = time.perf_counter()
    right = {shots: count_right(teach, half, examples, shots, PRIOR) for shots in SHOTS}
    batched = time.perf_counter() - began
    began = time.perf_counter()
    slow = {shots: looped(teach, half, examples[:LOOPED], shots) for shots in SHOTS}
    loop = (time.perf_counter() - began) * DRAWS / LOOPED
    for shots in SHOTS:
        for column, figure in enumerate(("all", "novel", "prior")):
            ours = right[shots][f"{figure} top-5"][:LOOPED]
            assert (ours - slow[shots][:, column]).abs().max() <= 3, "rounding aside, answers are the same"
    print(
        f"low-shot benchmark, {kind}: {DRAWS} draws × {len(SHOTS)} numbers of examples in {batched:.0f} s, "
        f"a loop over draws with sorted scores: {loop:.0f} s (top-5 alone), ratio {loop / batched:.1f}",
        flush=True,
    )


def save_random_features(count: int) -> None:
    """Save the features of so many random pictures of 16 × 16, from a small extractor."""
    from recollect.data.imageset import ImageSet
    from recollect.features import mapped_features
    from recollect.model.model import Model
    from recollect.model.spec import ModelSpec, Preprocessing

    class Random:
        shape = (count, 16, 16, 3)

        def __getitem__(self, rows):
            return np.random.default_rng(int(rows[0])).integers(
                0, 256, (len(rows), 16, 16, 3), dtype=np.uint8
            )

    torch.manual_seed(0)
    spec = ModelSpec(
        extractor="c32f", last_relu=False, classifier="cosine", generator="mean", categories=("a", "b"),
        preprocessing=Preprocessing(size=16, mean=(120, 120, 120), std=(60, 60, 60)),
    )  # fmt: skip
    images = ImageSet(Random(), np.arange(count), np.arange(count) % 2, ("a", "b"), "random")
    features = mapped_features(Model(spec).eval(), images).features
    assert features.shape == (count, 32)


def memory(pictures: int) -> None:
    """Compare the peaks of saving features of a tenth of the pictures and of all."""
    peaks = []
    for count in (pictures // 10, pictures):
        with tempfile.TemporaryDirectory() as name:
            os.environ["RECOLLECT_CACHE"] = name
            peaks.append(peak_of(sys.executable, "-m", "benchmarks.lowshot", "--save", str(count)))
    print(
        f"peak memory of saving features: {peaks[0] / 1e6:.0f} MB for {pictures // 10:,} pictures, "
        f"{peaks[1] / 1e6:.0f} MB for {pictures:,}, difference {(peaks[1] - peaks[0]) / 1e6:+.0f} MB",
        flush=True,
    )


def main(pictures: int = 10 * PICTURES) -> None:
    """Measure both."""
    half = random_half()
    examples = draw_examples(half.examples.labels.numpy(), DRAWS, max(SHOTS), seed=0)
    for kind in ("average", "attention"):
        compare(kind, half, examples)
    memory(pictures)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pictures", type=int, default=10 * PICTURES)
    parser.add_argument("--save", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.save:
        save_random_features(options.save)
    else:
        main(options.pictures)
