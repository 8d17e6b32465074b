"""Speed of tasks, of stage 2 and of stage 1, each against the obvious alternative, on the built-in data."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.nn import functional as F

from recollect.data.augment import Augmentation
from recollect.data.catalogue import load_data
from recollect.data.tasks import TaskShape, task_sampler
from recollect.evaluation.evaluate import figures, model_figures, model_scores
from recollect.features import augmented_views, extract
from recollect.system import machine
from recollect.training.config import make_config, read_preset
from recollect.training.stage1 import BaseClassification
from recollect.training.stage2 import EpisodicTraining
from recollect.training.train import new_model, resolve


def seconds(run, times=1, warm_up=1):
    for _ in range(warm_up):
        run()
    began = time.perf_counter()
    for _ in range(times):
        run()
    return (time.perf_counter() - began) / times


def show(what, ours, other, against):
    print(
        f"{what}: {ours * 1e3:.2f} ms, {against}: {other * 1e3:.2f} ms, ratio {other / ours:.2f}", flush=True
    )


def evaluation(model, split):
    """2000 tasks from features computed once, against the extractor run again for every task."""
    shape = TaskShape(5, 1, 15)
    began = time.perf_counter()
    novel, base = extract(model, split.test), extract(model, split.base_test)
    extraction = time.perf_counter() - began
    cached = seconds(lambda: model_figures(model, novel, base, shape, 2000, 0)) / 2000
    tasks = task_sampler(base, novel).draw(shape, 20, 0)

    def recomputed():
        with torch.inference_mode():
            for index in range(20):
                task = tasks[index : index + 1]
                rows = torch.cat([task.support.flatten(), task.novel_queries.flatten()]).numpy()
                model.embed(torch.from_numpy(split.test.take(rows)))
                model.embed(torch.from_numpy(split.base_test.take(task.base_queries.flatten().numpy())))
            figures(model_scores(model, novel, base), tasks)

    each = seconds(recomputed) / 20
    show("a task from cached features", cached, each, "with features recomputed")
    show("the same, one extraction for 2000 tasks included", cached + extraction / 2000, each, "recomputed")


def stage_two(model, split, config):
    """A stage-2 step on cached views, against one that runs the extractor inside."""
    views = augmented_views(model, split.base_train, Augmentation(2, flip=False), 1, 0)
    stage = EpisodicTraining(model, split, config, views)

    def step():
        stage.loss(0)[0].backward()

    ours = seconds(step, 50, 5)
    pictures = config.stage2.episodes * (5 * (config.most_shots + config.stage2.queries) + 15)
    pixels = torch.from_numpy(split.base_train.take(np.arange(pictures)))

    def with_extractor():
        with torch.no_grad():
            model.embed(pixels)
        stage.loss(0)[0].backward()

    show("a stage-2 step", ours, seconds(with_extractor, 10), "with the extractor inside")


def stage_one(split, config):
    """A stage-1 step with its data path, against the bare passes on a fixed batch; pictures a second."""
    model = new_model(config, split)
    stage = BaseClassification(model, split, config)
    optimizer = torch.optim.SGD(stage.learned(), 0.01, momentum=0.9, nesterov=True, weight_decay=5e-4)
    steps = iter(range(10_000))

    def step():
        optimizer.zero_grad()
        stage.loss(next(steps))[0].backward()

    ours = seconds(step, 20, 3)
    rows = stage.batches[0]
    pixels, targets = (
        torch.from_numpy(values) for values in (split.base_train.take(rows), split.base_train.labels[rows])
    )

    def bare():
        optimizer.zero_grad()
        F.cross_entropy(model.classifier(model.embed(pixels)), targets).backward()

    show("a stage-1 step", ours, seconds(bare, 20, 3), "bare forward and backward")

    def learn():
        step()
        optimizer.step()

    return len(rows) / seconds(learn, 20, 3)


def plain_loop(split, config, speed):
    """The speed of stage 1 against a plain PyTorch loop over picture files."""
    images, channels = split.base_train, int(config.extractor[1:-1])
    with tempfile.TemporaryDirectory() as folder:
        save_pictures(images, Path(folder))
        plain = {w: plain_speed(folder, channels, images.size, config.stage1.batch, w) for w in (0, 1, 2)}
    for workers, other in plain.items():
        print(
            f"stage 1: {speed:.0f} pictures a second, a plain loop over a DataLoader of {workers} workers: "
            f"{other:.0f}, ratio {speed / other:.2f}",
            flush=True,
        )


def save_pictures(images, folder):
    """Write the first pictures of every category as files, the way other code reads them."""
    for row in range(0, len(images), 8):
        path = folder / images.categories[images.labels[row]] / f"{row}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(images.take(np.array([row]))[0]).save(path)


def plain_speed(*words, steps=30):
    program = Path(__file__).with_name("plain.py")
    return float(subprocess.check_output([sys.executable, program, *map(str, words), str(steps)]))


def main():
    threads = machine.prepare()
    split = load_data("glyphs")
    for extractor in ("c32f", "c64f"):
        print(f"{extractor} at 32×32, {threads} threads")
        options = {"data": "glyphs", "extractor": extractor}
        config = resolve(make_config(read_preset("demo"), options, {"shots": "5"}), split)
        model = new_model(config, split).eval()
        model.replace_generator("attention")
        evaluation(model, split)
        stage_two(model, split, config)
        plain_loop(split, config, stage_one(split, config))


def large_pictures(data):
    """Stage 1 of the mini-ImageNet presets on pictures of that size and number."""
    for preset in ("mini-imagenet-c32f", "mini-imagenet-c64f"):
        print(f"{preset}, random pixels")
        config = make_config(read_preset(preset), {"data": data}, {})
        split = load_data(data)
        config = resolve(config, split)
        speed = stage_one(split, config)
        minutes = config.stage1.steps * config.stage1.batch / speed / 60
        print(
            f"stage 1: {speed:.0f} pictures a second, {minutes:.0f} minutes for the whole stage", flush=True
        )
