"""`recollect store copy`: a complete copy of a store, though others may be writing to it."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from recollect.commands.printing import require_writable
from recollect.errors import ModelError, StoreError, counted
from recollect.recognition.opening import default_store
from recollect.store import store_path
from recollect.store.sqlite import copy_store
from recollect.system.disk import replacing_file


def copy(source: str, to: str) -> dict[str, Any]:
    """Copy a store that is whole: the result of `recollect store copy`.

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
    with replacing_file(new) as part:
        categories, examples = copy_store(old, part)
    return {"from": str(old), "to": str(new), "categories": categories, "examples": examples}


def copy_text(result: dict[str, Any]) -> str:
    """Return what `store copy` prints."""
    held = f"{counted(result['examples'], 'example')} of {counted(result['categories'], 'category')}"
    return f"Copied {result['from']} to {result['to']}: {held}, taught ones and corrected base ones"


def _file(place: str) -> Path:
    path = store_path(place)
    if path is None:
        raise StoreError("memory: holds nothing to copy: name a file")
    return path
