"""onnxruntime beside torch: speed for `make bench`, and what int8 costs, for docs/results/onnx.json.

    python -m benchmarks.onnx                                            speed and start-up, about two minutes
    python -m benchmarks.onnx same PHOTOS.zip --out docs/results/onnx-same.json
    python -m benchmarks.onnx int8 RUN IMAGES.zip PHOTOS.zip --out docs/results/onnx.json

`same` exports the model imagenet and compares it with torch on 500 photographs, as `recollect export` does.

RUN is a model trained on CIFAR-FS with `recollect train cifar-fs:IMAGES.zip --preset cifar-fs-c64f-quick`.
Its int8 version is calibrated on 100 training pictures. Novel, Base and Both are measured as `recollect
evaluate` does, 5 ways, 600 tasks on test categories. PHOTOS.zip are the groceries: the model imagenet is
taught all 81 kinds from 5 photographs each, on which its int8 version is calibrated too; 7 photographs of
each are tested, Novel among the 81, Both among all 1081 categories as `predict` answers. `taught in float32`:
the store comes from the float32 model.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks.recogniser import fastest, torch_backend
from recollect.backends.onnx import OnnxBackend
from recollect.backends.torch import TorchBackend
from recollect.commands.export import compared_on
from recollect.data.folder import find_items
from recollect.data.tasks import TaskShape
from recollect.evaluation.evaluate import Scorer, answer_figures, load_trained, model_answers
from recollect.evaluation.metrics import summary
from recollect.export.folder import export_onnx
from recollect.features import FeatureSet
from recollect.images import read_pixels
from recollect.modelfile import save_model
from recollect.recognition.recognizer import Recognizer
from recollect.system.disk import write_text

NETWORKS = {"c64f": 84, "resnet10": 224, "efficientnet-lite0": 224}
SHOTS, TESTED = 5, 7
CALIBRATED = 100  # pictures


def exported(backend, folder, pictures, *, int8=False):
    recognizer = Recognizer(backend)
    checked = export_onnx(backend, recognizer, folder, pictures, int8=int8)
    return OnnxBackend(folder), checked


def speed(folder):
    """Print the speed of onnxruntime over torch's, for one picture and for 32."""
    rng = np.random.default_rng(0)
    for name, size in NETWORKS.items():
        torch_one = torch_backend(name, size)
        pixels = rng.integers(0, 256, (32, size, size, 3), np.uint8)
        onnx_one, _ = exported(torch_one, folder / name, list(pixels[:4]))
        for count, times in ((1, 20), (32, 2)):
            some = pixels[:count]
            ours, least = fastest(partial(onnx_one.embed, some), partial(torch_one.embed, some), times=times)
            what = (
                f"{name}, {count} {'picture' if count == 1 else 'pictures'}: onnxruntime {1000 * ours:.1f} ms"
            )
            print(f"{what}, torch {1000 * least:.1f} ms, {least / ours:.2f} times as fast", flush=True)


def starting(folder):
    """Print the seconds of `recollect predict` on one picture with each backend, start to end."""
    from PIL import Image

    backend = torch_backend("efficientnet-lite0", 224)
    save_model(folder / "torch" / "model.safetensors", backend.model)
    exported(backend, folder / "onnx", [np.zeros((224, 224, 3), np.uint8)])
    picture = folder / "picture.jpg"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (480, 640, 3), np.uint8)).save(picture)
    seconds = {}
    for name in ("torch", "onnx"):
        command = [
            sys.executable,
            "-m",
            "recollect.cli",
            "predict",
            str(folder / name),
            str(picture),
            "--json",
        ]
        subprocess.run(command, check=True, capture_output=True)
        seconds[name] = min(_timed(command) for _ in range(5))
    print(
        f"recollect predict on one picture, start to end: onnxruntime {seconds['onnx']:.2f} s (aim: below "
        f"0.8), torch {seconds['torch']:.2f} s",
        flush=True,
    )


def _timed(command):
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - began


def embedded(backend, pixels, batch=64):
    return np.concatenate(
        [backend.embed(pixels[start : start + batch]) for start in range(0, len(pixels), batch)]
    )


def few_shot(run, data, folder):
    """Return Novel, Base and Both of a CIFAR-FS model in float32 and int8, with sizes."""
    model, split, _ = load_trained(run, data)
    novel_images, base_images = split.evaluated("test")
    step = len(split.base_train) // CALIBRATED
    some = list(split.base_train.take(np.arange(0, len(split.base_train), step)[:CALIBRATED]))
    backend, found = TorchBackend.load(run), {}
    for name, int8 in (("float32", False), ("int8", True)):
        onnx, checked = exported(backend, folder / name, some, int8=int8)
        sets = [
            FeatureSet(
                torch.from_numpy(embedded(onnx, images.take(np.arange(len(images))))),
                torch.from_numpy(images.labels),
                images.categories,
            )
            for images in (novel_images, base_images)
        ]
        score = Scorer().scores(model, *sets, split)
        figures = {}
        for shots in (1, 5):
            given = model_answers(model, *sets, TaskShape(5, shots, split.queries), 600, 0, score)
            summaries = {key: summary(values) for key, values in answer_figures(given).items()}
            figures[str(shots)] = {key: summaries[key] for key in ("novel", "base", "both")}
        found[name] = {"shots": figures, **_size(folder / name, checked)}
    return found


def same(photos, folder):
    """Return how the exported files of imagenet compare with torch."""
    backend = TorchBackend.load("imagenet")
    _, checked = exported(backend, folder, compared_on(photos))
    return {key: value for key, value in checked.items() if key != "milliseconds"}


def _size(folder, checked):
    size = (folder / "extractor.onnx").stat().st_size
    return {
        "extractor_megabytes": round(size / 1e6, 2),
        "cosine": checked["cosine"],
        "first": checked["first"],
    }


def groceries(photos, folder):
    """Return how often taught groceries are recognised in float32 and int8."""
    items, _ = find_items(photos, 224)
    by_name = {}
    for item in items:
        by_name.setdefault(f"grocery {item.category}", []).append(read_pixels(item, 224))
    support = {name: some[:SHOTS] for name, some in by_name.items()}
    tested = {name: some[SHOTS : SHOTS + TESTED] for name, some in by_name.items()}
    every = [picture for some in support.values() for picture in some]
    backend, found, backups = TorchBackend.load("imagenet"), {}, {}
    for name, int8 in (("float32", False), ("int8", True)):
        onnx, checked = exported(backend, folder / name, every[:: len(every) // CALIBRATED], int8=int8)
        recognizer = Recognizer(onnx)
        recognizer.teach_all(support)
        backups[name] = recognizer.backup()
        found[name] = {**_right(recognizer, tested), **_size(folder / name, checked)}
    other = Recognizer(OnnxBackend(folder / "int8"))
    other.restore(backups["float32"])
    found["int8, taught in float32"] = _right(other, tested)
    return found


def _right(recognizer, tested):
    shares = {}
    for key, among in (("novel", "novel"), ("both", "all")):
        right = [
            answers[0].category == name
            for name, pictures in tested.items()
            for answers in recognizer.predict(pictures, 1, among)
        ]
        shares[key] = round(100 * float(np.mean(right)), 2)
    return shares


def main():
    """Print speed and start-up."""
    with tempfile.TemporaryDirectory() as name:
        speed(Path(name))
        starting(Path(name) / "start")


def _command():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", nargs="?", choices=["speed", "same", "int8"], default="speed")
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.what == "speed":
        main()
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        *trained, photos = options.paths
        if options.what == "same":
            found = same(photos, folder / "same")
        else:
            run, images = trained
            found = {
                "cifar-fs": few_shot(run, f"cifar-fs:{images}", folder / "cifar"),
                "groceries": groceries(photos, folder / "groceries"),
            }
    text = json.dumps(found, indent=1) + "\n"
    print(text)
    if options.out is not None:
        write_text(options.out, text)


if __name__ == "__main__":
    _command()
