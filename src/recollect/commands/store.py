"""`recollect store copy`: a complete copy of a store, though others may be writing to it."""

import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from recollect.commands.printing import counted, require_writable
from recollect.errors import ModelError, StoreError
from recollect.recognition.opening import default_store
from recollect.store import store_path
from recollect.system.disk import replacing_file


def copy(source: str, to: str) -> dict[str, Any]:
    """Copy a store, with what is still in its log: the result of `recollect store copy`.

    A model stands for its own store.
    """
    old, new = _file(source), _file(to)
    try:
        if old.suffix == ".safetensors" or not old.is_file():
            with suppress(ModelError):
                old = default_store(source)
        if not old.is_file():
            raise StoreError(f"there is no store at {old}: name a model, or a file such as zoo.taught.sqlite")
        if new.exists():
            raise StoreError(f"{new} exists already: choose another name")
    except OSError as error:
        raise StoreError(f"cannot look at {error.filename}: {error.strerror}") from error
    require_writable(new)
    try:
        with (
            closing(sqlite3.connect(f"{old.absolute().as_uri()}?mode=ro", uri=True)) as reader,
            replacing_file(new) as part,
            closing(sqlite3.connect(part)) as writer,
        ):
            categories, examples = (
                reader.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0]  # noqa: S608
                for table in ("categories", "examples")
            )
            reader.backup(writer)
            writer.execute("PRAGMA journal_mode = DELETE")  # one file, with no log beside it
    except sqlite3.Error as error:
        raise StoreError(f"{old} cannot be copied; is it a store of recollect? ({error})") from error
    return {"from": str(old), "to": str(new), "categories": categories, "examples": examples}


def copy_text(result: dict[str, Any]) -> str:
    """Return what `store copy` prints."""
    held = f"{counted(result['categories'], 'category')} with {counted(result['examples'], 'example')}"
    return f"Copied {result['from']} to {result['to']}: {held}"


def _file(place: str) -> Path:
    path = store_path(place)
    if path is None:
        raise StoreError("memory: holds nothing to copy: name a file")
    return path
