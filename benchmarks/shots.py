"""One generator for any number of examples, against one for each number: `docs/results/shots.json`.

    python -m benchmarks.shots RUN cifar-fs:images.zip --out docs/results

All generators are learned as RUN's stage 2 has it, on RUN's stage 1 and the same views, and compared on the
same tasks of validation categories, which are not those by which models are selected.
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import torch

from recollect.data.catalogue import load_data
from recollect.data.tasks import TaskShape
from recollect.evaluation.evaluate import model_figures
from recollect.features import extract
from recollect.modelfile import load_model, read_header
from recollect.reproduce.results import interval
from recollect.system import machine
from recollect.system.disk import write_text
from recollect.training.config import make_config
from recollect.training.loop import run_stage, step_seed
from recollect.training.runfolder import RunFolder
from recollect.training.stage2 import EpisodicTraining, make_views

SHOTS, TASKS = (1, 2, 3, 5, 10, 20), 2000
FIGURES = ("novel", "base", "both")
MIXED, AWARE, WIDE, EACH = "mixed", "shot-aware", "shot-aware, 1 to 20", "for these shots"


class Bench:
    """RUN's stage 1, with its views and the features of validation pictures."""

    def __init__(self, run, data):
        self.run, self.config = RunFolder(run), RunFolder(run).config().model_copy(update={"data": data})
        self.split = load_data(data)
        model = load_model(self.run.stage_one_model)
        self.views = make_views(model, self.split, self.config)
        self.novel, self.base = (extract(model, images) for images in self.split.evaluated("val"))

    def generator(self, shots, seed, *, aware=False, most=5):
        """Learn a generator, and return the model that it makes."""
        config = make_config(
            self.config.model_dump(), {"shots": shots, "seed": seed}, {"stage2.max_shots": most}
        )
        model = load_model(self.run.stage_one_model)
        torch.manual_seed(step_seed(seed, 2, 0))
        model.replace_generator("attention", config.stage2.sharpness, shot_aware=aware)
        stage = EpisodicTraining(model, self.split, config, self.views, (self.novel, self.base))
        with tempfile.TemporaryDirectory() as folder:
            run_stage(stage, RunFolder(Path(folder)))
        return model.eval()

    def figures(self, model, shots):
        """Return figures in percent, each (tasks,)."""
        found = model_figures(model, self.novel, self.base, TaskShape(5, shots, 15), TASKS, seed=1)
        return {name: 100 * found[name].numpy() for name in FIGURES}


def measure(bench, seeds):
    """Return a row for each number of shots: every generator, and paired differences."""
    found = {}
    fadings = []
    for seed in range(seeds):
        for name, words in {
            MIXED: {},
            AWARE: {"aware": True},
            WIDE: {"aware": True, "most": 20},
        }.items():
            model = bench.generator("mixed", seed, **words)
            if name == AWARE:
                fadings.append(round(model.generator.fading.item(), 3))
            for shots in SHOTS:
                found[name, shots, seed] = bench.figures(model, shots)
        for shots in SHOTS:
            found[EACH, shots, seed] = bench.figures(bench.generator(shots, seed), shots)
    rows = []
    for shots in SHOTS:
        row = {"shots": shots}
        values = {
            name: {
                figure: np.stack([found[name, shots, seed][figure] for seed in range(seeds)])
                for figure in FIGURES
            }
            for name in (MIXED, AWARE, WIDE, EACH)
        }
        row |= {name: {figure: told(some[figure]) for figure in FIGURES} for name, some in values.items()}
        row["differences"] = {
            f"{one} − {EACH}": {
                figure: told(values[one][figure] - values[EACH][figure]) for figure in FIGURES
            }
            for one in (MIXED, AWARE, WIDE)
        }
        rows.append(row)
        print(json.dumps(row, ensure_ascii=False), flush=True)
    return rows, fadings


def told(values):
    mean, ci95 = interval(values.astype(np.float64))
    return {"mean": round(mean, 2), "ci95": round(ci95, 2)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("data")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    machine.prepare()
    bench = Bench(options.run, options.data)
    rows, fadings = measure(bench, options.seeds)
    header = read_header(bench.run.stage_one_model)
    report = {
        "extractor": header.spec.extractor,
        "images_seen": header.provenance["images_seen"],
        "episodes_seen": bench.config.stage2.steps * bench.config.stage2.episodes,
        "seeds": options.seeds,
        "tasks": TASKS,
        "fading": fadings,
        "results": rows,
    }
    write_text(options.out / "shots.json", json.dumps(report, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
