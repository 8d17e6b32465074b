"""Recognise pictures, and add a category, with an exported folder: onnxruntime, numpy and Pillow alone.

python recognise.py EXPORTED PICTURE… [--teach NAME PICTURE…]
"""

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
import numpy as np
import onnxruntime
from PIL import Image, ImageOps

words = sys.argv[1:]
folder, cut = Path(words[0]), words.index("--teach") if "--teach" in words else len(words)
extractor, generator, classifier = (
    onnxruntime.InferenceSession(folder / f"{part}.onnx") for part in ("extractor", "generator", "classifier")
)
about = json.loads((folder / "categories.json").read_text(encoding="utf-8"))
vectors = np.load(folder / "vectors.npy")
names = [category["name"] for category in about["categories"]]
offsets = np.array(about["offsets"])


def feature(path: str) -> np.ndarray:
    pixels = np.asarray(ImageOps.exif_transpose(Image.open(path)).convert("RGB"))
    return extractor.run(["features"], {"pixels": pixels[None]})[0]


if words[cut:]:  # of the paper's generators, a category's vector is the mean of its examples' terms
    examples = np.concatenate([feature(path) for path in words[cut + 2 :]])
    mean = generator.run(["terms"], {"features": examples})[0].mean(axis=0)
    if about["generator"] == "ridge":
        sys.exit("this model solves all taught categories together: teach it with recollect")
    if about["fading"] is not None:  # the more examples there are, the less attention counts
        average, attended = np.split(mean, 2)
        mean = average + len(examples) ** -about["fading"] * attended
    vectors, names = np.vstack([vectors, mean]), [*names, words[cut + 1]]
    offsets = np.append(offsets, 0)

for path in words[1:cut]:
    scores = classifier.run(["scores"], {"features": feature(path), "vectors": vectors})[0][0] + offsets
    shares = np.exp((scores - scores.max()) / about["temperature"])
    best = np.argsort(-scores)[:5]
    print(path, *(f"{names[k]} {shares[k] / shares.sum():.4f}" for k in best), sep="\t")
