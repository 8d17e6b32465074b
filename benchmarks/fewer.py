"""What fewer training pictures of each base category cost: `docs/results/fewer.json`.

    python -m benchmarks.fewer mini-imagenet:mini-imagenet.zip 417 500 --preset mini-imagenet-c64f \
        --steps 8000 --size 48 --runs runs --out docs/results

Stage 1 of the preset for every number of pictures, all with the same number of steps, at this size from the
first step on; plain means on the same tasks of validation categories, features mirrored where the preset says
so, but not shifted. `learned` is the accuracy on the last augmented training pictures. An interrupted
training goes on.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from recollect.data.catalogue import load_data
from recollect.data.tasks import TaskShape
from recollect.evaluation.evaluate import model_figures
from recollect.evaluation.metrics import summary
from recollect.features import extract
from recollect.system import machine
from recollect.system.disk import write_text
from recollect.training.config import make_config, read_preset
from recollect.training.runfolder import RunFolder
from recollect.training.train import learn_stage_one, resolve

TASKS = 2000
FIGURES = ("novel", "base", "both", "ausuc")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("counts", nargs="+", type=int, help="pictures of each base category")
    parser.add_argument("--preset", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    machine.prepare(1)
    preset = read_preset(options.preset)
    recipe = {**preset["stage1"], "small": None, "pad": None, "steps": options.steps}
    asked = {"data": options.data, "size": options.size, "threads": 1, "stage1": recipe, "shifted": 0}
    split = load_data(options.data, size=options.size)
    config = resolve(make_config(preset, asked), split)
    fewest = int(np.bincount(split.base_train.labels).min())
    if max(options.counts) > fewest:
        parser.error(f"some base category has no more than {fewest} training pictures")
    novel, base = split.evaluated("val")
    rows = []
    for count in options.counts:
        fewer = replace(split, base_train=split.base_train.first(count))
        folder = RunFolder(options.runs / f"{options.preset}-{options.size}-{options.steps}-{count}")
        model = learn_stage_one(config, fewer, folder).eval()
        learned = [line["accuracy"] for line in folder.metrics() if "accuracy" in line][-1]
        features = extract(model, novel), extract(model, base)
        for shots in (1, 5):
            found = model_figures(model, *features, TaskShape(5, shots), TASKS, seed=1)
            row = {name: summary(found[name]) for name in FIGURES}
            rows.append({"pictures": count, "shots": shots, "learned": learned, **row})
            print(json.dumps(rows[-1]), flush=True)
    report = {"preset": options.preset, "size": options.size, "steps": options.steps, "tasks": TASKS}
    write_text(options.out / "fewer.json", json.dumps({**report, "results": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
