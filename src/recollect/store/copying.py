"""Copies of stores, from one kind to another."""

from contextlib import closing
from pathlib import Path

from recollect.errors import StoreError
from recollect.store import ANY, Server, open_store


def copy_content(old: Path | Server, new: Path | Server) -> tuple[int, int]:
    """Copy what a store of any model holds into a new one; return how many categories and examples.

    Others may be writing to the old one: it is copied as it is at one moment. The copy is read again and
    compared.
    """
    with closing(open_store(old, ANY)) as source:
        content, owner = source.content(), source.owner
    with closing(open_store(new, owner)) as copied:
        if copied.content():
            raise StoreError(f"{new} holds taught categories already: choose another place")
        copied.fill(content)
        if copied.content().digest() != content.digest():
            raise StoreError(f"{new} changed while it was written: choose a place that nobody uses")
    return len(content.categories), sum(len(examples) for _, examples in content.categories)
