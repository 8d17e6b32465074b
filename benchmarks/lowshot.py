"""The low-shot benchmark at ImageNet's size, on random features: time and memory.

    python -m benchmarks.lowshot [draws] [saving] [hallucination] [--out FILE.json]

draws: the seconds of each generator for 100 draws of 1, 2, 5, 10 and 20 examples, and those of a loop over
draws with sorted scores for the same (of a few draws, extrapolated). saving: the peak memory of saving
features of 10 000 and of 100 000 random pictures. hallucination: the peak memory of both kinds of "w/ H",
with as many features of a base category as ImageNet has pictures, and with a quarter of them. Nothing else
should be running; the processor's time beside the seconds tells whether something was.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.memory import peak_of
from recollect.evaluation.lowshot import SHOTS, HalfFeatures, count_right, draw_examples
from recollect.features import FeatureSet
from recollect.methods.lowshot import SYSTEMS
from recollect.methods.lowshot.generators import teach_with
from recollect.methods.lowshot.system import Base
from recollect.model.classifier import Classifier
from recollect.model.generator import build_generator
from recollect.model.model import Head
from recollect.training.config import LowShot

BASE, HALF, NOVEL, WIDTH, QUERIES, EXAMPLES, DRAWS = 389, 196, 311, 512, 50, 100, 100
PRIOR = {5: 0.8, 1: 0.6}
LOOPED = 2  # draws of each number of examples that the loop does
PICTURES = 10_000
EACH = 1300  # training pictures of a category of ImageNet
PARTS = ("draws", "saving", "hallucination")


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
def compare(kind: str, half: HalfFeatures, examples: torch.Tensor) -> dict:
    """Time one generator both ways, on the same draws; the answers must be the same."""
    head = Head(Classifier(BASE, WIDTH, "cosine"), build_generator(kind, BASE, WIDTH, 30.0))
    teach = teach_with(head)
    began, used = time.perf_counter(), time.process_time()
    right = {shots: count_right(teach, half, examples, shots, PRIOR) for shots in SHOTS}
    batched, batched_used = time.perf_counter() - began, time.process_time() - used
    began, used = time.perf_counter(), time.process_time()
    slow = {shots: looped(teach, half, examples[:LOOPED], shots) for shots in SHOTS}
    more = DRAWS / LOOPED
    loop, loop_used = (time.perf_counter() - began) * more, (time.process_time() - used) * more
    for shots in SHOTS:
        for column, figure in enumerate(("all", "novel", "prior")):
            ours = right[shots][f"{figure} top-5"][:LOOPED]
            assert (ours - slow[shots][:, column]).abs().max() <= 3, "rounding aside, answers are the same"
    print(
        f"low-shot benchmark, {kind}: {DRAWS} draws × {len(SHOTS)} numbers of examples in {batched:.0f} s "
        f"(aim: less than 60; processor {batched_used:.0f} s, {torch.get_num_threads()} threads), a loop "
        f"over draws with sorted scores: {loop:.0f} s (processor {loop_used:.0f} s; top-5 alone), ratio "
        f"{loop / batched:.1f} (processor {loop_used / batched_used:.1f})",
        flush=True,
    )
    return {
        "seconds": round(batched, 1), "processor_seconds": round(batched_used, 1),
        "loop_seconds": round(loop, 1), "loop_processor_seconds": round(loop_used, 1),
        "ratio": round(loop / batched, 2), "processor_ratio": round(loop_used / batched_used, 2),
        "threads": torch.get_num_threads(),
    }  # fmt: skip


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


def saving(pictures: int) -> dict:
    """Compare the peaks of saving features of a tenth of the pictures and of all."""
    peaks = {}
    for count in (pictures // 10, pictures):
        with tempfile.TemporaryDirectory() as name:
            os.environ["RECOLLECT_CACHE"] = name
            peaks[count] = peak_of(sys.executable, "-m", "benchmarks.lowshot", "--save", str(count)) / 1e6
    less, more = peaks.values()
    print(
        f"peak memory of saving features: {less:.0f} MB for {pictures // 10:,} pictures, "
        f"{more:.0f} MB for {pictures:,}, difference {more - less:+.0f} MB",
        flush=True,
    )
    return {f"{count} pictures, MB": round(peak) for count, peak in peaks.items()}


def hallucinate(key: str, each: int, folder: Path) -> None:
    """Learn from so many random features of every base category, and be taught 100 draws of one example."""
    path = folder / "features.f16"
    rng = np.random.default_rng(0)
    with path.open("wb") as file:
        for _ in range(BASE):
            centre = rng.normal(size=WIDTH)
            file.write(np.maximum(0, centre + rng.normal(size=(each, WIDTH))).astype(np.float16).tobytes())
    features = torch.from_numpy(np.memmap(path, np.float16, mode="c", shape=(BASE * each, WIDTH)))
    head = Head(
        Classifier(BASE, WIDTH, "dot").requires_grad_(False), build_generator("mean", BASE, WIDTH, 1.0)
    )
    base = Base(features, torch.arange(BASE).repeat_interleave(each), head, torch.device("cpu"))
    half = random_half()
    examples = draw_examples(half.examples.labels.numpy(), DRAWS, 1, seed=0)
    teach = SYSTEMS[key].learn(base, (1,), LowShot(steps=3, logistic_steps=3), 0)
    with torch.inference_mode():
        taught = teach(half.examples.features[examples].float(), half.columns)
        assert taught.scores(half.novel.features[:16].float())[1].shape == (16, DRAWS, NOVEL)


def hallucination() -> dict:
    """Compare the peaks of learning to hallucinate from a quarter of ImageNet's pictures and from all."""
    found = {}
    for key in ("logistic-h", "prototype-matching-h"):
        for each in (EACH // 4, EACH):
            with tempfile.TemporaryDirectory() as name:
                words = ("--hallucinate", key, str(each), name)
                peak = peak_of(sys.executable, "-m", "benchmarks.lowshot", *words) / 1e6
            found[f"{key}, {each} pictures of each category, MB"] = round(peak)
            print(
                f"peak memory of {SYSTEMS[key].title}, {BASE} base categories with {each} pictures each, "
                f"{DRAWS} draws of {NOVEL} novel ones: {peak:.0f} MB, of which the mapped file may be "
                f"{2 * BASE * each * WIDTH / 1e6:.0f}",
                flush=True,
            )
    return found


def main(parts: tuple[str, ...] = PARTS, pictures: int = 10 * PICTURES, out: str | None = None) -> None:
    """Measure what is asked for; keep what the file has of the other parts."""
    found: dict = {}
    if "draws" in parts:
        half = random_half()
        examples = draw_examples(half.examples.labels.numpy(), DRAWS, max(SHOTS), seed=0)
        found["draws"] = {kind: compare(kind, half, examples) for kind in ("average", "attention")}
    if "saving" in parts:
        found["saving"] = saving(pictures)
    if "hallucination" in parts:
        found["hallucination"] = hallucination()
    if out:
        path = Path(out)
        before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        path.write_text(json.dumps(before | found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"some of {', '.join(PARTS)} (all)")
    parser.add_argument("--pictures", type=int, default=10 * PICTURES)
    parser.add_argument("--out", help="a JSON file for the figures")
    parser.add_argument("--save", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--hallucinate", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if {*options.parts} - {*PARTS}:
        parser.error(f"choose some of {', '.join(PARTS)}")
    if options.save:
        save_random_features(options.save)
    elif options.hallucinate:
        key, each, folder = options.hallucinate
        hallucinate(key, int(each), Path(folder))
    else:
        main(tuple(options.parts) or PARTS, options.pictures, options.out)
