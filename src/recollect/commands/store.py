"""`recollect store`: copies of stores in use, and backups that move between programs."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from recollect.commands.opening import Target
from recollect.commands.printing import require_writable
from recollect.errors import ArgumentError, ModelError, StoreError, counted
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


def backup(target: Target, to: Path) -> dict[str, Any]:
    """Write what was taught to one file: the result of `recollect store backup`."""
    if os.path.lexists(to):
        raise StoreError(f"{to} exists already: choose another name")
    require_writable(to)
    with target.load() as recognizer:
        content = recognizer.backup()
        taught = [one for one in recognizer.categories() if one.examples]
    with replacing_file(to) as part:
        part.write_bytes(content)
    examples = sum(one.examples or 0 for one in taught)
    return {"from": target.name, "to": str(to), "categories": len(taught), "examples": examples}


def backup_text(result: dict[str, Any]) -> str:
    """Return what `store backup` prints."""
    held = f"{counted(result['examples'], 'example')} of {counted(result['categories'], 'category')}"
    return f"Wrote {held} to {result['to']}"


def restore(target: Target, source: Path) -> dict[str, Any]:
    """Take over a backup: the result of `recollect store restore`.

    `restored` has how many examples came to each category.
    """
    kept = target.kept()
    try:
        content = source.read_bytes()
    except OSError as error:
        raise StoreError(f"cannot read {source}: {error.strerror or error}") from error
    with target.make() as recognizer:
        try:
            restored = recognizer.restore(content)
        except ArgumentError as error:
            raise StoreError(f"{source}: {error}") from error
    return {"model": target.name, "store": str(kept), "restored": restored}


def restore_text(result: dict[str, Any]) -> str:
    """Return what `store restore` prints."""
    restored = result["restored"]
    if not restored:
        return f"{result['store']} has everything that is in it already"
    lines = [f"'{name}' has {counted(count, 'more example')}" for name, count in restored.items()]
    return "\n".join([*lines, f"Kept in {result['store']}"])


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
