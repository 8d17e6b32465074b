"""What most commands work on: a model, the store of what it was taught, and how to compute."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from recollect.backends import BackendName
from recollect.errors import ConfigError, StoreError
from recollect.modelfile import read_header
from recollect.recognition.opening import DEFAULT, place_of_store
from recollect.recognition.recognizer import Recognizer
from recollect.recognition.results import Category
from recollect.store import ANY, Server, fold, no_store, open_store

if TYPE_CHECKING:
    from recollect.client import Client


class Described(NamedTuple):
    """What commands ask of a model before they open it."""

    size: int
    short_side: int | None
    attends: bool  # its generator pays attention to base categories
    says_unknown: bool
    categories: Sequence[str] | None  # the base categories; a service tells only what they are called now


@dataclass(frozen=True)
class Target:
    """A model with its store; without `store`, the model's own. Or a service."""

    model: Path
    store: str | None = None
    extractor: str | None = None
    device: str = "auto"
    threads: int | None = None
    server: str | None = None
    backend: BackendName = "auto"

    @property
    def name(self) -> str:
        """Return what reports call it."""
        return self.server or str(self.model)

    def open(self) -> "Recognizer | Client":
        """Load the recogniser; a store that was named must exist. Or connect to the service."""
        return self._client() if self.server else self.load()

    def load(self) -> Recognizer:
        """Load the recogniser; a store that was named must exist."""
        place = place_of_store(self.model, self.store) if self.store is not None else None
        try:
            if isinstance(place, Server):
                open_store(place, ANY).close()  # refuses what is not there
            elif place is not None and not place.exists():
                raise no_store(place)
        except OSError as error:
            raise StoreError(f"cannot look at {place}: {error.strerror or error}") from error
        return self._made()

    def make(self) -> "Recognizer | Client":
        """Load the recogniser, whose store is made when needed. Or connect to the service."""
        return self._client() if self.server else self._made()

    def _made(self) -> Recognizer:
        from recollect.system import machine

        machine.set_threads(self.threads)
        machine.keep_freed_memory()
        store = self.store or DEFAULT
        return Recognizer.load(
            self.model, store, device=self.device, extractor=self.extractor, backend=self.backend
        )

    def _client(self) -> "Client":
        from recollect.client import Client

        if self.store or self.extractor:
            raise ConfigError(
                "--server has a store and an extractor of its own: leave out the options for them"
            )
        return Client(self.server or "", os.environ.get("RECOLLECT_TOKEN"))

    def described(self) -> Described:
        """Return what the model is, without loading it."""
        if self.server:
            with self._client() as client:
                model = client.model
            size, short_side = model.input["size"], model.input["short_side"]
            return Described(size or 1, short_side, model.generator == "attention", model.says_unknown, None)
        header = read_header(self.model)
        prepare = header.spec.preprocessing
        return Described(
            prepare.size,
            prepare.short_side,
            header.spec.generator == "attention",
            header.calibration.unknown is not None,
            header.spec.categories,
        )

    def kept(self) -> Path | Server | str:
        """Return the file or server on which changes are kept, or the service that keeps them."""
        if self.server:
            return self.server
        place = place_of_store(self.model, self.store or DEFAULT)
        if place is None:
            raise StoreError("--store memory: would be gone when the command ends: name a file")
        return place


def spellings(categories: Iterable[Category], base: Sequence[str] | None) -> dict[str, str]:
    """Return the names of categories by `fold`: a person need not spell them as the model does.

    A renamed base category is found under its old name too, if `base`, the names in the model, are known.
    """
    known = list(categories)
    renamed = {fold(base[one.id]): one.name for one in known if base and one.origin == "base"}
    return renamed | {fold(one.name): one.name for one in known}
