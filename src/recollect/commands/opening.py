"""What most commands work on: a model, the store of what it was taught, and how to compute."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from recollect.errors import StoreError
from recollect.recognition.opening import DEFAULT, store_file
from recollect.recognition.recognizer import Recognizer
from recollect.recognition.results import Category
from recollect.store import fold


@dataclass(frozen=True)
class Target:
    """A model with its store; without `store`, the model's own."""

    model: Path
    store: str | None = None
    extractor: str | None = None
    device: str = "auto"
    threads: int | None = None

    def open(self) -> Recognizer:
        """Load the recogniser; a store that was named must exist."""
        path = store_file(self.model, self.store) if self.store is not None else None
        try:
            if path is not None and not path.exists():
                raise StoreError(
                    f"there is no store at {path}: check --store, or teach something into it first"
                )
        except OSError as error:
            raise StoreError(f"cannot look at {path}: {error.strerror or error}") from error
        return self.make()

    def make(self) -> Recognizer:
        """Load the recogniser; its store is made when something is first taught."""
        from recollect.system import machine

        machine.prepare(self.threads)
        store = self.store or DEFAULT
        return Recognizer.load(self.model, store, device=self.device, extractor=self.extractor)

    def kept(self) -> Path:
        """Return the file in which changes are kept."""
        path = store_file(self.model, self.store or DEFAULT)
        if path is None:
            raise StoreError("--store memory: would be gone when the command ends: name a file")
        return path


def spellings(categories: Iterable[Category], base: Sequence[str]) -> dict[str, str]:
    """Return the names of categories by `fold`: a person need not spell them as the model does.

    A renamed base category is found under its old name too; `base` are the names in the model.
    """
    known = list(categories)
    renamed = {fold(base[one.id]): one.name for one in known if one.origin == "base"}
    return renamed | {fold(one.name): one.name for one in known}
