"""Measure the speed claims on the built-in data and print ratios; nothing else should be running."""

import time

import numpy as np
import torch
from torch.nn import functional as F

from recollect import machine
from recollect.data.augment import Augmentation
from recollect.data.catalogue import load_data
from recollect.data.features import augmented_views, extract
from recollect.data.tasks import TaskShape, task_sampler
from recollect.evaluation.evaluate import figures, model_figures, model_scores
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
    print(f"{what}: {ours * 1e3:.2f} ms, {against}: {other * 1e3:.2f} ms, ratio {other / ours:.2f}")


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
    """A stage-1 step with its data path, against the bare forward and backward pass on a fixed batch."""
    model = new_model(config, split)
    stage = BaseClassification(model, split, config)
    steps = iter(range(10_000))

    def step():
        stage.loss(next(steps))[0].backward()

    ours = seconds(step, 20, 3)
    rows = stage.batches[0]
    pixels, targets = (
        torch.from_numpy(values) for values in (split.base_train.take(rows), split.base_train.labels[rows])
    )

    def bare():
        F.cross_entropy(model.classifier(model.embed(pixels)), targets).backward()

    other = seconds(bare, 20, 3)
    show("a stage-1 step", ours, other, "bare forward and backward")
    print(f"stage 1: {len(rows) / ours:.0f} pictures a second")


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
        stage_one(split, config)


if __name__ == "__main__":
    main()
