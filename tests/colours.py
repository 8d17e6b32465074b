"""A folder of small pictures whose categories are colours, for trainings that take a second."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from recollect.model.spec import Calibration
from recollect.training import curves, train

SPLIT = '{"val": ["c00", "c01", "c02", "c03", "c04"], "test": ["c05", "c06", "c07", "c08", "c09"]}'
SETTINGS = {
    "extractor": "c32f",
    "size": "16",
    "threads": "1",
    "split": SPLIT,
    "select_tasks": "8",
    "checkpoint_seconds": "0",
    "stage1.steps": "8",
    "stage1.batch": "24",
    "stage1.evaluations": "2",
    "stage2.steps": "4",
    "stage2.views": "2",
    "stage2.episodes": "2",
    "stage2.evaluations": "2",
    "episodic.ways": "3",
    "episodic.queries": "2",
    "episodic.episodes": "2",
}


def train_quickly(patch: pytest.MonkeyPatch) -> None:
    """Leave out what a training does beside learning: its picture and its calibration."""
    patch.setattr(curves, "training_figure", lambda lines: None)
    patch.setattr(train, "calibrate", lambda *words, **more: Calibration())


def write_colours(root: Path, categories: int = 18, pictures: int = 12) -> Path:
    """Write pictures of noise around a colour of each category's own; ten categories are those of `SPLIT`."""
    rng = np.random.default_rng(0)
    for label in range(categories):
        folder = root / f"c{label:02}"
        folder.mkdir(parents=True)
        colour = rng.integers(0, 256, 3)
        for index in range(pictures):
            pixels = np.clip(colour + rng.normal(0, 40, (16, 16, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{index}.png")
    return root
