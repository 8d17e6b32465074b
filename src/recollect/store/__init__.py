"""Where taught categories live: the interface that every store has, and how one is opened."""

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from recollect.errors import StoreError

Floats = npt.NDArray[np.float32]
LONGEST_NAME = 200


@dataclass(frozen=True)
class Owner:
    """The model that a store belongs to: a digest of all its weights, and the width d of its features."""

    fingerprint: str
    width: int


@dataclass(frozen=True)
class Taught:
    """A taught category. Its id never changes and is never given to another."""

    id: int
    name: str
    examples: int
    revision: int  # grows whenever its name or its examples change


@dataclass(frozen=True)
class NewExample:
    """A picture to be kept: its feature z, its term of the category's vector, perhaps a thumbnail."""

    feature: Floats  # (d,)
    term: Floats  # (d,)
    thumbnail: bytes | None = None


@dataclass(frozen=True)
class Example(NewExample):
    """A picture that is kept."""

    id: int = 0
    added: float = 0.0  # seconds since 1970


class Store(Protocol):
    """Taught categories and their examples; every method that changes something does so whole or not at all.

    What a method did is kept when it returns, as safely as the kind of store promises.
    """

    def state(self) -> object:
        """Return a value that differs from the one before once anybody else has changed something.

        Changes made through this object do not count.
        """
        ...

    def categories(self) -> list[Taught]:
        """Return the taught categories in the order of their ids."""
        ...

    def terms(self, ids: Sequence[int] | None = None) -> Iterator[tuple[int, Floats]]:
        """Yield the id of each category (default: of all) and the terms (examples, d) of its examples."""
        ...

    def examples(self, category: int) -> list[Example]:
        """Return the examples of a category in the order of teaching."""
        ...

    def add(self, name: str, examples: Sequence[NewExample]) -> Taught:
        """Add examples to the category called `name`, which is made where there is none."""
        ...

    def add_all(self, lessons: Mapping[str, Sequence[NewExample]]) -> list[Taught]:
        """Add examples to several categories, by their names: to all of them or to none."""
        ...

    def remove(self, category: int) -> None:
        """Remove a category with its examples."""
        ...

    def remove_example(self, example: int) -> int:
        """Remove an example, with its category if it was the last one; return the category's id."""
        ...

    def rename(self, category: int, name: str) -> None:
        """Give a category another name."""
        ...

    def fill(self, categories: Sequence[tuple[Taught, Sequence[Example]]]) -> None:
        """Put categories with examples, ids and all, into a store that never held any; else do nothing."""
        ...

    def close(self) -> None:
        """Let go of files; the store cannot be used afterwards."""
        ...


def open_store(place: str | Path | None, owner: Owner) -> Store:
    """Open the store at a path or URL (`sqlite:///path`), or one in memory for `None` or `memory:`."""
    from recollect.store.memory import MemoryStore
    from recollect.store.sqlite import SqliteStore

    path = store_path(place)
    return MemoryStore(owner) if path is None else SqliteStore(path, owner)


def store_path(place: str | Path | None) -> Path | None:
    """Return the file of the store at a path or URL, or `None` for one in memory."""
    if place is None or place == "memory:":
        return None
    text = str(place)
    scheme, colon, rest = text.partition("://")
    if colon and scheme != "sqlite":
        raise StoreError(f"there is no store of the kind '{scheme}': a path or sqlite:///PATH is expected")
    return Path(rest.removeprefix("/") if colon else text)


def tidy(name: str) -> str:
    r"""Return a category's name as it is kept: Unicode form NFC, without spaces around it.

    >>> tidy(" cafe\u0301 ") == "caf\u00e9"
    True
    """
    if not isinstance(name, str):
        raise StoreError(f"a category's name is text, not {type(name).__name__}")
    tidied = unicodedata.normalize("NFC", name).strip()
    if not tidied:
        raise StoreError("a category needs a name that is not empty")
    if len(tidied) > LONGEST_NAME:
        raise StoreError(
            f"the name '{tidied[:20]}…' has {len(tidied)} characters: at most {LONGEST_NAME} are allowed"
        )
    if not tidied.isprintable():
        raise StoreError(f"the name {tidied!r} holds characters that cannot be printed: leave them out")
    return tidied


def fold(name: str) -> str:
    """Return what two spellings of one name have in common: case and compatible forms do not count.

    >>> fold("Straße") == fold("STRASSE") and fold("ｏｋａｐｉ") == fold("Okapi")
    True
    """
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def taken(name: str, other: str) -> StoreError:
    """Return the error for a name that is taught already under another spelling."""
    return StoreError(f"'{name}' is taught already as '{other}': use that spelling, or rename it")


def missing(what: str) -> StoreError:
    """Return the error for something that is not, or no longer, in the store."""
    return StoreError(f"{what} is not in the store: another process may have removed it")
