"""The paper's model, among the methods."""

from pathlib import Path

from recollect.evaluation.evaluate import PaperScorer
from recollect.training.config import Config
from recollect.training.train import train


class PaperModel(PaperScorer):
    """Dynamic few-shot learning without forgetting: classifier and weight generator, in two stages."""

    title = "Dynamic few-shot learning without forgetting"

    def train(self, config: Config, out: Path, *, resume: bool = False) -> None:
        """Train both stages."""
        train(config, out, resume=resume)
