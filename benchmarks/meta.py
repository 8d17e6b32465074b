"""A step of MAML with all its tasks in one pass, against loops over tasks and torch's layers under vmap.

Without second derivatives MAML takes the tasks one by one; that is compared with one pass over all of them.
"""

from unittest import mock

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from benchmarks.learning import seconds, show
from recollect.methods import find_method
from recollect.methods.adapting import Adaptation
from recollect.model.model import Model
from recollect.model.spec import LearnerSpec, ModelSpec, Preprocessing
from recollect.system import machine

TASKS, WAYS, QUERIES, STEPS, SIZE = 4, 5, 15, 5, 32


def plain_network(model):
    """Return the same network of torch's own layers, with batch norm of the current batch."""
    blocks = []
    for inputs in (3, 32, 32, 32):
        blocks += [
            nn.Conv2d(inputs, 32, 3, padding=1, bias=False),
            nn.BatchNorm2d(32, track_running_stats=False),
            nn.MaxPool2d(2),
            nn.ReLU(),
        ]
    network = nn.Sequential(*blocks, nn.Flatten(), nn.Linear(model.width, WAYS))
    return network.to(memory_format=torch.channels_last)


def compare(shots, name):
    """Measure a step of `name`, forward and backward."""
    method = find_method(name)
    spec = ModelSpec(
        extractor="c32f",
        last_relu=True,
        preprocessing=Preprocessing(size=SIZE),
        categories=("a", "b"),
        learner=LearnerSpec(ways=WAYS, shots=shots, steps=STEPS, training_steps=STEPS, rate=0.01),
    )
    model = Model(spec, learner=method.learner).train()
    support = torch.randint(0, 256, (TASKS, WAYS, shots, SIZE, SIZE, 3), dtype=torch.uint8)
    queries = torch.randint(0, 256, (TASKS, WAYS * QUERIES, SIZE, SIZE, 3), dtype=torch.uint8)
    targets = torch.arange(WAYS).repeat_interleave(QUERIES)
    known = torch.arange(WAYS).repeat_interleave(shots)

    def at_once(some=slice(None)):
        scores = method.novel_scores(model, support[some], queries[some])
        F.cross_entropy(scores.flatten(0, 1), targets.repeat(len(scores))).backward()

    network = plain_network(model)
    start = dict(network.named_parameters())
    x, asked = ((part.float() / 64 - 2).movedim(-1, -3) for part in (support.flatten(1, 2), queries))

    def loss(weights, pictures, labels):
        return F.cross_entropy(functional_call(network, weights, (pictures,)), labels)

    def looped():
        for one, other in zip(x, asked, strict=True):
            weights = start
            for _ in range(STEPS):
                slopes = torch.autograd.grad(
                    loss(weights, one, known), [*weights.values()], create_graph=method.second_order
                )
                weights = {key: w - 0.01 * g for (key, w), g in zip(weights.items(), slopes, strict=True)}
            loss(weights, other, targets).backward()

    def adapted(one, other):
        weights = start
        for _ in range(STEPS):
            slopes = grad(loss)(weights, one, known)
            weights = {key: weights[key] - 0.01 * slopes[key] for key in weights}
        return loss(weights, other, targets)

    ours = seconds(at_once, times=5)
    how = "at once" if method.second_order else "one by one"
    what = f"a step of {method.title}, {TASKS} tasks {how}, {shots} shots, {torch.get_num_threads()} threads"
    show(what, ours, seconds(looped, times=5), "a loop over tasks with torch's layers")
    if not method.second_order:
        with mock.patch.object(method, "adaptation", Adaptation):
            show(what, ours, seconds(at_once, times=5), "one pass over all tasks")
        return
    alone = [slice(task, task + 1) for task in range(TASKS)]
    show(what, ours, seconds(lambda: [at_once(one) for one in alone], times=5), "a loop over tasks with ours")
    under = seconds(lambda: vmap(adapted)(x, asked).mean().backward(), times=2)
    show(what, ours, under, "torch's layers under vmap")


def main():
    machine.prepare(1)
    for shots in (1, 5):
        compare(shots, "maml")
        compare(shots, "fomaml")


if __name__ == "__main__":
    main()
