"""What was tried for stage 1, one change at a time: `docs/results/recipe/*.json`.

    python -m benchmarks.recipe cifar-fs:images.zip NAME --out docs/results/recipe

NAME is one of `TRIALS`. A trial trains c32f and is judged with plain means on validation categories. What
helped is a setting of `recollect train` (`stage1.muon`, `stage1.small`, `mirrored`, `shifted`); the rest is
here only.
`--teaching` then compares ways of showing the examples to a trial's model: `NAME-teaching.json`.
"""

import argparse
import copy
import json
import math
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from recollect.data.augment import crop
from recollect.data.catalogue import load_data
from recollect.data.tasks import TaskShape, task_sampler
from recollect.evaluation.evaluate import evaluate, figures
from recollect.evaluation.metrics import Scores, summary
from recollect.features import extract
from recollect.model.classifier import unit
from recollect.modelfile import load_model, save_model
from recollect.system import machine
from recollect.system.disk import write_text
from recollect.training.config import make_config
from recollect.training.loop import step_seed
from recollect.training.optimizer import Descent
from recollect.training.stage1 import BaseClassification
from recollect.training.train import new_model

TASKS = 2000


@dataclass(frozen=True)
class Trial:
    """One recipe; images are as many as the others' time allows."""

    images: int = 192_000
    batch: int = 128
    peak: float = 0.1
    weight_decay: float = 5e-4
    muon: float = 0.0  # relative to `peak`
    small: int = 0  # size of the first pictures
    until: float = 0.4  # share of the steps that they take
    smoothing: float = 0.0
    mixup: float = 0.0  # α
    manifold: bool = False  # mixes at a random block
    rotation: float = 0.0  # weight of the loss; a quarter of the pictures are turned
    pooled: float = 0.0  # weight of a second classifier on average-pooled maps
    teacher: str = ""  # the trial whose model is distilled, with weight ½ at temperature 2
    jitter: float = 0.0  # of brightness, contrast and saturation
    least_area: float = 0.0  # of a resized crop, instead of the padded crop
    average: float = 0.0  # decay of averaged weights

    @property
    def steps(self):
        return self.images // self.batch


MUON = Trial(muon=0.5)
LONG = Trial(images=640_000)
TRIALS = {
    "sgd": Trial(),
    "sgd-averaged-weights": Trial(average=0.99),
    "sgd-rate-0.3": Trial(peak=0.3),
    "sgd-decay-2e-4": Trial(weight_decay=2e-4),
    "muon-0.25": Trial(muon=0.25),
    "muon": MUON,
    "muon-1": Trial(muon=1.0),
    "muon-batch-64": replace(MUON, batch=64),
    "muon-rotation": replace(MUON, rotation=0.5),
    "muon-mixup": replace(MUON, mixup=0.2),
    "muon-manifold-mixup": replace(MUON, mixup=0.5, manifold=True),
    "muon-smoothing": replace(MUON, smoothing=0.1),
    "muon-jitter": replace(MUON, jitter=0.3),
    "muon-resized-crop": replace(MUON, least_area=0.5),
    "muon-pooled": replace(MUON, pooled=0.5),
    "muon-distilled": replace(MUON, teacher="muon"),
    "muon-24-first": replace(MUON, images=256_000, small=24, until=0.6),
    "muon-16-first": replace(MUON, images=277_000, small=16),
    "muon-16-first-longer": replace(MUON, images=349_000, small=16, until=0.6),
    "muon-16-first-pooled": replace(MUON, images=277_000, small=16, pooled=0.25),
    "sgd-long": LONG,
    "muon-long": replace(LONG, muon=0.5),
    "muon-16-first-long": replace(LONG, images=914_000, muon=0.5, small=16),
    "muon-0.2-16-first-long": replace(LONG, images=914_000, muon=0.2, small=16),
    "muon-0.1-16-first-long": replace(LONG, images=914_000, muon=0.1, small=16),
}


class TrialStage(BaseClassification):
    """Stage 1 with what a trial changes."""

    def __init__(self, trial, model, split, config, teacher):
        super().__init__(model, split, config)
        self.trial, self.teacher = trial, teacher
        channels = model.extractor.channels[-1]
        self.side = model.spec.preprocessing.size // 16
        self.turn_head = nn.Linear(model.width, 4)
        self.pooled_head = nn.Parameter(
            torch.randn(len(split.categories), channels) * math.sqrt(2 / channels)
        )

    def learned(self):
        heads = [*self.turn_head.parameters()] if self.trial.rotation else []
        return [*super().learned(), *heads, *([self.pooled_head] if self.trial.pooled else [])]

    def loss(self, step):
        trial, small = self.trial, self.trial.small and step < self.trial.until * self.steps
        rows = self.batches[step]
        targets = torch.from_numpy(self.images.labels[rows])
        pixels = self._augmented(torch.from_numpy(self.images.take(rows)))
        asked = pixels
        if small:
            pixels = resized(pixels, trial.small)
        turns = torch.zeros(len(pixels), dtype=torch.long)
        if trial.rotation:
            count = len(pixels) // 4
            turns[:count] = torch.randint(1, 4, (count,))
            pixels = turned(pixels, turns)
        mix = None
        if trial.mixup:
            share = float(np.random.default_rng([self.seed, 7, step]).beta(trial.mixup, trial.mixup))
            others = torch.randperm(len(pixels))
            mix = (int(torch.randint(0, 4, ())) if trial.manifold else 0, share, others)
        self.model.train()
        maps = self._maps(pixels, mix)
        features = (
            F.interpolate(maps, size=self.side, mode="bilinear").flatten(1) if small else maps.flatten(1)
        )
        scores = self.model.classifier(features)

        def classified(scores):
            loss = F.cross_entropy(scores, targets, label_smoothing=trial.smoothing)
            if mix is None:
                return loss
            other = F.cross_entropy(scores, targets[mix[2]], label_smoothing=trial.smoothing)
            return mix[1] * loss + (1 - mix[1]) * other

        loss = classified(scores)
        if self.teacher is not None:
            with torch.no_grad():
                wanted = self.teacher.classifier(self.teacher.embed(asked))
            found, wanted = (F.log_softmax(some / 2, 1) for some in (scores, wanted))
            loss = (loss + 4 * F.kl_div(found, wanted, log_target=True, reduction="batchmean")) / 2
        if trial.rotation:
            loss = loss + trial.rotation * F.cross_entropy(self.turn_head(features), turns)
        if trial.pooled:
            cosines = unit(maps.mean((2, 3))) @ unit(self.pooled_head).T
            loss = loss + trial.pooled * classified(self.model.classifier.scale * cosines)
        return loss, (scores.argmax(1) == targets).float().mean()

    def _augmented(self, pixels):
        trial = self.trial
        if trial.least_area:
            pixels = resized_crop(pixels, trial.least_area)
        else:
            pixels = self.augmentation(pixels, torch.default_generator)
        return jittered(pixels, trial.jitter) if trial.jitter else pixels

    def _maps(self, pixels, mix):
        x = ((pixels.float() - self.model.mean) / self.model.std).permute(0, 3, 1, 2)
        for index, block in enumerate(self.model.extractor.blocks):
            if mix is not None and index == mix[0]:
                x = mix[1] * x + (1 - mix[1]) * x[mix[2]]
            x = block(x)
        return x


def resized(pixels, size):
    planes = pixels.permute(0, 3, 1, 2).float()
    return F.interpolate(planes, size=size, mode="bilinear", antialias=True).permute(0, 2, 3, 1)


def turned(pixels, turns):
    pixels = pixels.clone()
    for quarter in (1, 2, 3):
        rows = (turns == quarter).nonzero()[:, 0]
        pixels[rows] = torch.rot90(pixels[rows], quarter, (1, 2))
    return pixels


def resized_crop(pixels, least):
    count, size = pixels.shape[:2]
    area = least + (1 - least) * torch.rand(count)
    ratio = torch.exp((torch.rand(count) * 2 - 1) * math.log(4 / 3))
    width, height = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
    x, y = (torch.rand(count) * 2 - 1) * (1 - width), (torch.rand(count) * 2 - 1) * (1 - height)
    window = torch.zeros(count, 2, 3)
    window[:, 0, 0] = torch.where(torch.rand(count) < 0.5, -width, width)
    window[:, 0, 2], window[:, 1, 1], window[:, 1, 2] = x, height, y
    grid = F.affine_grid(window, (count, 3, size, size), align_corners=False)
    planes = pixels.permute(0, 3, 1, 2).float().contiguous()
    found = F.grid_sample(planes, grid, align_corners=False, padding_mode="reflection")
    return found.permute(0, 2, 3, 1)


def jittered(pixels, most):
    def factor():
        return 1 + most * (2 * torch.rand(len(pixels), 1, 1, 1) - 1)

    x = pixels.float() * factor()
    for axes in ((1, 2, 3), (3,)):
        grey = x.mean(dim=axes, keepdim=True)
        x = grey + (x - grey) * factor()
    return x.clamp(0, 255)


def train(trial, split, data, teacher):
    """Return the model, its averaged weights or `None`, and the seconds that it took."""
    settings = {"stage1.steps": trial.steps, "stage1.batch": trial.batch, "stage1.pad": 4}
    settings["stage1.schedule.peak"] = trial.peak
    options = {"data": data, "extractor": "c32f", "device": "cpu"}
    config = make_config({}, options, {name: str(value) for name, value in settings.items()})
    model = new_model(config, split)
    stage = TrialStage(trial, model, split, config, teacher)
    descent = Descent(stage.learned(), momentum=0.9, weight_decay=trial.weight_decay, muon=trial.muon)
    averaged = copy.deepcopy(model) if trial.average else None
    began = time.monotonic()
    for step in range(stage.steps):
        for group in descent.param_groups:
            group["lr"] = config.stage1.schedule.rate((step + 0.5) / stage.steps)
        torch.manual_seed(step_seed(config.seed, 1, step))
        descent.zero_grad()
        stage.loss(step)[0].backward()
        descent.step()
        if averaged is not None:
            follow(averaged, model, min(trial.average, (step + 1) / (step + 10)))
    return model, averaged, time.monotonic() - began


def follow(averaged, model, decay):
    with torch.no_grad():
        for mean, value in zip(averaged.state_dict().values(), model.state_dict().values(), strict=True):
            if mean.is_floating_point():
                mean.lerp_(value, 1 - decay)


def judged(model, split, *, mirrored=False):
    model.spec = model.spec.model_copy(update={"mirrored": mirrored})
    results = evaluate(model.eval(), split, part="val", tasks=TASKS)
    kept = ("shots", "novel", "base", "both", "ausuc")
    return [{name: result[name] for name in kept} for result in results]


class Views:
    """The pictures of an image set, each changed in the same way."""

    def __init__(self, images, change):
        self.images, self.change = images, change

    def __getattr__(self, name):
        return getattr(self.images, name)

    def __len__(self):
        return len(self.images)

    def stream(self, rows):
        for some, pixels in self.images.stream(rows):
            yield some, self.change(torch.from_numpy(pixels)).numpy()


def moved(down, right, mirrored):
    def change(pixels):
        whole = torch.ones(len(pixels), 1, dtype=torch.long)
        return crop(pixels, 2, whole * (2 + down), whole * (2 + right), whole.bool() & mirrored)

    return change


def teaching(model, split):
    """Return figures with examples and queries as they are, with mirror images, and with ten crops."""
    shifts = ((0, 0), (2, 0), (-2, 0), (0, 2), (0, -2))
    changes = [moved(*shift, mirrored) for shift in shifts for mirrored in (False, True)]
    novel, base = split.evaluated("val")
    kept = extract(model, novel)
    views = [unit(extract(model, Views(novel, change)).features) for change in changes]
    ways = {
        "examples and queries as they are": (1, 1),
        "examples mirrored": (2, 1),
        "examples in ten crops": (10, 1),
        "examples and queries mirrored": (2, 2),
        "examples in ten crops, queries mirrored": (10, 2),
    }
    plain = extract(model, base)
    base_views = [unit(extract(model, Views(base, change)).features) for change in changes[:2]]
    classifier, results = model.classifier, []
    for name, (examples, queries) in ways.items():
        support = unit(sum(views[:examples]))
        asked, asked_base = sum(views[:queries]), sum(base_views[:queries])
        with torch.inference_mode():
            scores = classifier(asked), classifier(asked_base), unit(asked), unit(asked_base)

        def score(tasks, support=support, scores=scores):
            novel_base, base_base, novel_view, base_view = scores
            vectors = classifier.scale.detach() * unit(support[tasks.support].mean(2))
            return Scores(
                novel_base=novel_base[tasks.novel_queries],
                novel_novel=novel_view[tasks.novel_queries] @ vectors.mT,
                base_base=base_base[tasks.base_queries],
                base_novel=base_view[tasks.base_queries] @ vectors.mT,
            )

        for shots in (1, 5):
            tasks = task_sampler(plain, kept).draw(TaskShape(5, shots, split.queries), TASKS, 0)
            found = figures(score, tasks)
            row = {figure: summary(found[figure]) for figure in ("novel", "base", "both")}
            results.append({"way": name, "shots": shots, **row})
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("names", nargs="+", choices=TRIALS, metavar="NAME")
    parser.add_argument("--models", type=Path, default=Path("runs/recipe"))
    parser.add_argument("--teaching", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    machine.prepare(1)
    options.models.mkdir(parents=True, exist_ok=True)
    split = load_data(options.data)
    for name in options.names:
        if options.teaching:
            model = load_model(options.models / f"{name}.safetensors")
            report = {"trial": name, "tasks": TASKS, "results": teaching(model, split)}
            write_text(options.out / f"{name}-teaching.json", json.dumps(report, indent=1) + "\n")
            continue
        trial = TRIALS[name]
        teacher = load_model(options.models / f"{trial.teacher}.safetensors") if trial.teacher else None
        model, averaged, seconds = train(trial, split, options.data, teacher)
        report = {
            "trial": name,
            "extractor": "c32f",
            "categories": "val",
            "tasks": TASKS,
            **asdict(trial),
            "seconds": round(seconds),
            "results": judged(averaged or model, split),
            "mirrored": judged(averaged or model, split, mirrored=True),
        }
        save_model(options.models / f"{name}.safetensors", model)
        write_text(options.out / f"{name}.json", json.dumps(report, indent=1) + "\n")
        print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
