"""The paper's model, among the methods."""

from pathlib import Path

from recollect.data.splits import Split
from recollect.evaluation.evaluate import PaperScorer
from recollect.training.config import Config
from recollect.training.train import train


class PaperModel(PaperScorer):
    """Dynamic few-shot learning without forgetting: classifier and weight generator, in two stages."""

    title = "Dynamic few-shot learning without forgetting"

    def settled(self, config: Config) -> Config:
        """Return the configuration as it is."""
        return config

    def check(self, config: Config, split: Split) -> None:
        """Ask for no more than every training does."""

    def train(self, config: Config, out: Path, *, resume: bool = False) -> None:
        """Train both stages."""
        train(config, out, resume=resume)
