"""How far pictures are best shifted (the setting `shifted`): `docs/results/shifts.json`.

    python -m benchmarks.shifts RUN mini-imagenet:mini-imagenet.zip 0 3 6 --out docs/results

Plain means on RUN's stage 1, on the same tasks of validation categories for every number of pixels. Each
takes up to ten passes over the pictures, so only some pictures of each validation category are used.
"""

import argparse
import json
from pathlib import Path

from recollect.data.tasks import TaskShape
from recollect.evaluation.evaluate import load_trained, model_figures
from recollect.evaluation.metrics import summary
from recollect.features import extract
from recollect.system import machine
from recollect.system.disk import write_text
from recollect.training.runfolder import RunFolder

TASKS = 2000
PICTURES = 150  # of each validation category
FIGURES = ("novel", "base", "both", "ausuc")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("data")
    parser.add_argument(
        "shifts", nargs="+", type=int, help="in pixels; the others are compared with the first"
    )
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    machine.prepare(1)
    model, split, _ = load_trained(RunFolder(options.run).stage_one_model, options.data)
    novel, base = split.evaluated("val")
    rows, first = [], {}
    for shift in options.shifts:
        model.spec = model.spec.model_copy(update={"shifted": shift})
        features = extract(model, novel.first(PICTURES)), extract(model, base)
        for shots in (1, 5):
            found = model_figures(model, *features, TaskShape(5, shots), TASKS, seed=1)
            row = {"shifted": shift, "shots": shots, **{name: summary(found[name]) for name in FIGURES}}
            if shots in first:
                row["gained"] = {name: summary(found[name] - first[shots][name]) for name in FIGURES}
            first.setdefault(shots, found)
            rows.append(row)
            print(json.dumps(row), flush=True)
    report = {"extractor": model.spec.extractor, "tasks": TASKS, "pictures": PICTURES, "results": rows}
    write_text(options.out / "shifts.json", json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
