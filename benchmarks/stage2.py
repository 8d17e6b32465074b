"""Stage 2 with W_base fixed and a bias by number of shots, beside the paper's: `docs/results/stage2.json`.

    python -m benchmarks.stage2 RUN cifar-fs:images.zip --out docs/results

All generators are learned on RUN's stage 1 and the same views, and compared on the same 2000 tasks of
validation categories. A bias is fitted on half of the validation categories and pictures and measured on the
other half, and the other way round; models were selected on all of them.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from benchmarks.shots import SHOTS, TASKS, Bench, told
from recollect.data.tasks import TaskShape
from recollect.evaluation.evaluate import model_answers
from recollect.evaluation.metrics import answer_figures, biased
from recollect.features import FeatureSet
from recollect.modelfile import load_model, read_header
from recollect.system import machine
from recollect.system.disk import write_text
from recollect.training.calibration import calibrate

FIGURES = ("novel", "base", "both", "both_calibrated", "ausuc")
MEANS, LEARNED, FIXED, WIDE = (
    "plain means",
    "W_base learned",
    "W_base fixed",
    "W_base fixed, 1 to 20 shots",
)
EACH = "W_base learned, for these shots"
GENERATORS = {  # what they are selected by, whether W_base is learned, and the most shots of an episode
    LEARNED: ("both", True, 5),
    FIXED: ("ausuc", False, 5),
    WIDE: ("ausuc", False, 20),
}


def halves(features: FeatureSet, *, by_category: bool) -> list[FeatureSet]:
    """Return features in two halves: of every second category, or every second picture of each."""
    count = len(features.categories)
    found = []
    for half in range(2):
        if by_category:
            names = features.categories[half::2]
            rows = features.labels % 2 == half
            found.append(FeatureSet(features.features[rows], features.labels[rows] // 2, names))
        else:
            rows = torch.cat([(features.labels == label).nonzero()[half::2, 0] for label in range(count)])
            found.append(FeatureSet(features.features[rows], features.labels[rows], features.categories))
    return found


def figures(bench: Bench, model, numbers) -> dict[int, dict[str, np.ndarray]]:
    """Return figures in percent by number of shots, each (tasks,)."""
    novel, base = halves(bench.novel, by_category=True), halves(bench.base, by_category=False)
    fitted = [calibrate(model, *half, by_shots=True) for half in zip(novel, base, strict=True)]
    found = {}
    for shots in numbers:
        parts = []
        for mine, other in ((0, 1), (1, 0)):
            bias = float(fitted[other].biases([shots] * 5)[0])
            shape = TaskShape(5, shots, 15)
            given = model_answers(model, novel[mine], base[mine], shape, TASKS // 2, seed=1)
            calibrated = answer_figures(biased(given, bias))["both"]
            parts.append(answer_figures(given) | {"both_calibrated": calibrated})
        found[shots] = {name: 100 * torch.cat([part[name] for part in parts]).numpy() for name in FIGURES}
    return found


def learned(bench: Bench, shots, seed: int, recipe: tuple[str, bool, int]):
    select, learn_base, most = recipe
    stage2 = bench.config.stage2.model_copy(update={"learn_base": learn_base})
    bench.config = bench.config.model_copy(update={"stage2": stage2, "select": select})
    return bench.generator(shots, seed, aware=shots == "mixed", most=most)


def measure(bench: Bench, seeds: int) -> list[dict]:
    """Return a row for each number of shots: every generator, and differences to one for these shots."""
    found = {}
    for seed in range(seeds):
        for shots, values in figures(bench, load_model(bench.run.stage_one_model).eval(), SHOTS).items():
            found[MEANS, shots, seed] = values
        for name, recipe in GENERATORS.items():
            for shots, values in figures(bench, learned(bench, "mixed", seed, recipe), SHOTS).items():
                found[name, shots, seed] = values
        for shots in SHOTS:
            model = learned(bench, shots, seed, GENERATORS[LEARNED])
            found[EACH, shots, seed] = figures(bench, model, (shots,))[shots]
    rows = []
    for shots in SHOTS:
        values = {
            name: {one: np.stack([found[name, shots, seed][one] for seed in range(seeds)]) for one in FIGURES}
            for name in (MEANS, *GENERATORS, EACH)
        }
        row = {"shots": shots} | {
            name: {one: told(some[one]) for one in FIGURES} for name, some in values.items()
        }
        row["differences"] = {
            f"{one} − {other}": {
                "novel": told(values[one]["novel"] - values[other]["novel"]),
                "base": told(values[one]["base"] - values[other]["base"]),
                "both": told(values[one]["both_calibrated"] - values[other]["both"]),
                "both, both calibrated": told(
                    values[one]["both_calibrated"] - values[other]["both_calibrated"]
                ),
            }
            for one, other in ((FIXED, LEARNED), (FIXED, EACH), (WIDE, FIXED), (WIDE, EACH))
        }
        rows.append(row)
        print(json.dumps(row, ensure_ascii=False), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("data")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    machine.prepare(options.threads)
    bench = Bench(options.run, options.data)
    header = read_header(bench.run.stage_one_model)
    report = {
        "extractor": header.spec.extractor,
        "images_seen": header.provenance["images_seen"],
        "episodes_seen": bench.config.stage2.steps * bench.config.stage2.episodes,
        "seeds": options.seeds,
        "tasks": TASKS,
        "results": measure(bench, options.seeds),
    }
    write_text(options.out / "stage2.json", json.dumps(report, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
