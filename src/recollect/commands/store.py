"""`recollect store copy`: a complete copy of a store, though others may be writing to it."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from recollect.commands.printing import require_writable
from recollect.errors import ModelError, StoreError, counted
from recollect.recognition.opening import default_store
from recollect.store import Server, store_place
from recollect.store.copying import copy_content
from recollect.store.sqlite import copy_store
from recollect.system.disk import replacing_file


def copy(source: str, to: str) -> dict[str, Any]:
    """Copy a store that is whole: the result of `recollect store copy`.

    A model stands for its own store.
    """
    old, new = _place(source), _place(to)
    if isinstance(old, Path):
        old = _existing(old)
    if isinstance(new, Server):
        counts = copy_content(old, new)
    else:
        _require_new(new)
        with replacing_file(new) as part:
            counts = copy_content(old, part) if isinstance(old, Server) else copy_store(old, part)
    return {"from": str(old), "to": str(new), "categories": counts[0], "examples": counts[1]}


def copy_text(result: dict[str, Any]) -> str:
    """Return what `store copy` prints."""
    held = f"{counted(result['examples'], 'example')} of {counted(result['categories'], 'category')}"
    return f"Copied {result['from']} to {result['to']}: {held}, taught ones and corrected base ones"


def _existing(file: Path) -> Path:
    """Return the file of a store, or of the store of the model of that name."""
    found = file
    try:
        if file.suffix == ".safetensors" or not file.is_file():
            with suppress(ModelError):
                found = default_store(file)
        if not found.is_file():
            raise StoreError(
                f"there is no store at {found}: name a model, or a file such as zoo.taught.sqlite"
            )
    except OSError as error:
        raise StoreError(f"cannot look at {error.filename}: {error.strerror}") from error
    return found


def _require_new(file: Path) -> None:
    try:
        if file.exists():
            raise StoreError(f"{file} exists already: choose another name")
    except OSError as error:
        raise StoreError(f"cannot look at {error.filename}: {error.strerror}") from error
    require_writable(file)


def _place(place: str) -> Path | Server:
    found = store_place(place)
    if found is None:
        raise StoreError("memory: holds nothing to copy: name a file")
    return found
