"""Stage 2 with W_base fixed and a bias by number of shots, beside the paper's: `docs/results/stage2.json`.

    python -m benchmarks.stage2 RUN cifar-fs:images.zip --out docs/results

All generators are learned on RUN's stage 1 and the same views, and compared on the same 2000 tasks of
validation categories. The bias is fitted on other tasks of the same categories, as at the end of a training.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from benchmarks.shots import SHOTS, TASKS, Bench, told
from recollect.data.tasks import TaskShape
from recollect.evaluation.evaluate import model_answers
from recollect.evaluation.metrics import answer_figures, biased
from recollect.modelfile import load_model, read_header
from recollect.system import machine
from recollect.system.disk import write_text
from recollect.training.calibration import calibrate

FIGURES = ("novel", "base", "both", "both_calibrated", "ausuc")
MEANS, LEARNED, FIXED, QUERIES = (
    "plain means",
    "W_base learned",
    "W_base fixed",
    "W_base fixed, 60 base queries",
)
EACH = "W_base learned, for these shots"
GENERATORS = {
    LEARNED: {"learn_base": True, "base_queries": 15},
    FIXED: {"learn_base": False, "base_queries": 15},
    QUERIES: {"learn_base": False, "base_queries": 60},
}


def figures(bench: Bench, model, numbers) -> dict[int, dict[str, np.ndarray]]:
    """Return figures in percent by number of shots, each (tasks,)."""
    calibration = calibrate(model, bench.novel, bench.base, by_shots=True)
    found = {}
    for shots in numbers:
        given = model_answers(model, bench.novel, bench.base, TaskShape(5, shots, 15), TASKS, seed=1)
        bias = float(calibration.biases([shots] * 5)[0])
        values = answer_figures(given) | {"both_calibrated": answer_figures(biased(given, bias))["both"]}
        found[shots] = {name: 100 * values[name].numpy() for name in FIGURES}
    return found


def learned(bench: Bench, shots, seed: int, words: dict):
    recipe = bench.config.stage2.model_copy(update=words)
    bench.config = bench.config.model_copy(update={"stage2": recipe})
    return bench.generator(shots, seed, aware=shots == "mixed")


def measure(bench: Bench, seeds: int) -> list[dict]:
    """Return a row for each number of shots: every generator, and differences to one for these shots."""
    found = {}
    for seed in range(seeds):
        for shots, values in figures(bench, load_model(bench.run.stage_one_model).eval(), SHOTS).items():
            found[MEANS, shots, seed] = values
        for name, words in GENERATORS.items():
            for shots, values in figures(bench, learned(bench, "mixed", seed, words), SHOTS).items():
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
        both = "both_calibrated"
        row["differences"] = {
            f"{FIXED} − {LEARNED}": {
                one: told(values[FIXED][one] - values[LEARNED][one]) for one in ("novel", "base")
            }
            | {"both": told(values[FIXED][both] - values[LEARNED]["both"])},
            f"{FIXED} − {EACH}": {
                one: told(values[FIXED][one] - values[EACH][one]) for one in ("novel", "base")
            }
            | {"both": told(values[FIXED][both] - values[EACH]["both"])},
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
