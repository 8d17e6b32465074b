"""Settings of table 3's systems, tried on the validation half; the test half is not looked at.

    python -m benchmarks.lowshot_settings FOLDER DATA [GROUP …] [--set KEY=VALUE] [--out FILE.json]

Stage 1s are trained in FOLDER/runs, or taken over, and `recollect reproduce table3 DATA --out FOLDER` with
the same --set takes them over too. GROUP is some of generators, networks, logistic. The settings of a group
are tried in all combinations, the others being those of the preset, on a few systems and numbers of examples.
Printed, and written to the file: the mean of Novel, All and All with prior, top-5 and top-1, over 20 draws.
What the file has already is not tried again.
"""

import argparse
import json
import time
from itertools import product
from pathlib import Path

from recollect.commands.train import parse_settings
from recollect.evaluation.lowshot import FIGURES, TOP, choose_prior, count_right, draw_examples, named
from recollect.methods.lowshot import SYSTEMS
from recollect.methods.lowshot.system import scaled
from recollect.reproduce.lowshot import run
from recollect.reproduce.lowshot.plan import make_plan
from recollect.training.config import LowShot

SHOTS = (1, 5)
# By group: the systems that stand for it, and the values of each setting.
GROUPS: dict[str, tuple[tuple[str, ...], dict[str, tuple]]] = {
    "generators": (("attention",), {"peak": (0.01, 0.1), "dropout": (0.0, 0.5)}),
    "networks": (("prototypical", "prototype-matching"), {"network_rate": (3e-4, 1e-3, 3e-3)}),
    "logistic": (
        ("logistic",),
        {"logistic_rate": (0.003, 0.01, 0.03, 0.1), "logistic_decay": (1e-3, 1e-2)},
    ),
}


def changed(recipe: LowShot, setting: dict) -> LowShot:
    """Return the recipe with other settings."""
    own = dict(setting)
    if "peak" in own:
        own["schedule"] = recipe.schedule.model_copy(update={"peak": own.pop("peak")})
    return recipe.model_copy(update=own)


def judged(key: str, shots: int, recipe: LowShot, base, half, examples) -> dict[str, float]:
    """Return the figures of a system on the validation half, in percent."""
    system = SYSTEMS[key]
    teach = scaled(system.learn(base, (shots,), recipe, 0), base.factor)
    prior = choose_prior(teach, half, examples, shots)
    right = count_right(teach, half, examples, shots, prior)
    return {
        named(figure, k): 100 * right[named(figure, k)].double().mean().item() / half.asked[figure]
        for figure in FIGURES
        for k in TOP
    }


def main(folder: Path, data: str, groups: list[str], settings: list[str], out: Path | None) -> None:
    """Try every setting of every group."""
    plan = make_plan(folder, data, settings=parse_settings(settings))
    found: dict[str, list] = json.loads(out.read_text(encoding="utf-8")) if out and out.exists() else {}
    features: dict = {}
    for group in groups:
        keys, values = GROUPS[group]
        (kind,) = {SYSTEMS[key].stage1 for key in keys}
        if kind not in features:
            model, pictures = run._stage_one(plan, data, folder, kind, 0)
            features[kind] = run._features(plan, model, pictures, lambda: None)
        base, halves = features[kind]
        half = halves["val"]
        examples = draw_examples(half.examples.labels.numpy(), run.PRIOR_DRAWS, max(SHOTS), run.SEED["val"])
        tried = found.setdefault(group, [])
        for choice in product(*values.values()):
            setting, began = dict(zip(values, choice, strict=True)), time.process_time()
            if setting in [line["setting"] for line in tried]:
                continue
            figures = {
                f"{key} {shots}-shot": judged(key, shots, changed(plan.recipe, setting), base, half, examples)
                for key in keys
                for shots in SHOTS
            }
            each = [value for own in figures.values() for value in own.values()]
            line = {"setting": setting, "mean": round(sum(each) / len(each), 2), "figures": figures}
            tried.append(line)
            print(group, setting, f"{line['mean']:.2f}", f"({time.process_time() - began:.0f} s)", flush=True)
            if out:
                out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        best = max(tried, key=lambda line: line["mean"])
        print(f"{group}: best {best['setting']}, {best['mean']:.2f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("data")
    parser.add_argument("groups", nargs="*", metavar="GROUP")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if {*options.groups} - {*GROUPS}:
        parser.error(f"choose some of {', '.join(GROUPS)}")
    main(options.folder, options.data, options.groups or list(GROUPS), options.set, options.out)
