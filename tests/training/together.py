"""Stage 1 and feature extraction, in as many processes as started this; what came out goes to a file."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from made import split_of
from recollect import features as extraction
from recollect.system import workers
from recollect.training import loop
from recollect.training.config import make_config
from recollect.training.stage1 import BaseClassification
from recollect.training.train import new_model, resolve


def main(out: str, *settings: str) -> None:
    torch.set_num_threads(1)
    given = dict(word.split("=") for word in settings)
    exact, steps = given.pop("exact", ""), given.pop("compared", "6")
    has_bfloat16 = given.pop("bfloat16", "")
    torch.cpu.get_capabilities = lambda: {"avx512_bf16": has_bfloat16}
    config = make_config(
        {},
        {"data": "made up", "extractor": "c32f", "device": "cpu", "threads": 1},
        {"stage1.steps": steps, **given},
    )
    split = split_of(size=32, train=30)
    config = resolve(config, split)
    with workers.joined("cpu"):
        model = new_model(config, split)
        if exact:
            model.double()  # so that rounding does not grow into other choices of max-pool and ReLU
        before = {name: value.clone() for name, value in model.state_dict().items()}
        stage = BaseClassification(model, split, config)
        optimizer = loop.Descent(stage.learned(), momentum=0.9, weight_decay=5e-4, muon=config.stage1.muon)
        losses = []
        for step in range(stage.steps):
            rate = config.stage1.schedule.rate((step + 0.5) / stage.steps)
            losses.append(loop._take_step(stage, optimizer, step, rate))
        weights = {name: value.clone() for name, value in model.state_dict().items()}
        images = split.base_val
        extraction._BATCH_PIXELS = 8 * 32**2  # so that there are several batches
        features = extraction.extract(model, images).features
        views = extraction.augmented_views(model, images, stage.augmentation, 2, 3)
        torch.save(
            {
                "losses": torch.tensor(losses),
                "share": len(stage._pictures[0][0]),
                "before": before,
                "weights": weights,
                "features": features,
                "views": views,
            },
            Path(out) / f"{workers.rank()}-of-{workers.count()}.pt",
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
