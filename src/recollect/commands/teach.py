"""What the commands teach, forget, rename and categories do, and how they open a model's store."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rich.table import Table
from rich.text import Text

from recollect.data.folder import find_items, find_pictures
from recollect.data.imageset import Item
from recollect.errors import DataError, RecollectError, StoreError
from recollect.images import Picture
from recollect.modelfile import read_header
from recollect.recognition.opening import DEFAULT, store_file
from recollect.recognition.recognizer import Recognizer
from recollect.store import fold, new_name, tidy
from recollect.system.progress import track

T = TypeVar("T")
_LEANS_ON = 3  # base categories told of each taught one
_SHOWN = 10  # base categories listed unless all are asked for


def reading(model: Path, store: str | None, extractor: str | None = None) -> Recognizer:
    """Return a recogniser with what a model was taught; a store that is named must be there."""
    if store is not None:
        path = store_file(model, store)
        try:
            if path is not None and not path.exists():
                raise StoreError(
                    f"there is no store at {path}: check --store, or teach something into it first"
                )
        except OSError as error:
            raise StoreError(f"cannot look at {path}: {error.strerror or error}") from error
    return Recognizer.load(model, store or DEFAULT, extractor=extractor)


def teach(
    model: Path,
    lessons: Mapping[str, Sequence[Picture]],
    store: str | None = None,
    *,
    thumbnails: bool = False,
    extractor: str | None = None,
) -> dict[str, Any]:
    """Teach categories from pictures, all of them or none: the result of `recollect teach`.

    `taught` has for each category its `id`, `name`, the pictures `added` now, all its `examples`, and under
    `leans_on` the base categories that its vector draws on most (`category`, `share`), where the model's
    generator pays attention to any.
    """
    path = _kept(model, store)
    lessons = {new_name(name): pictures for name, pictures in lessons.items()}
    _refuse_base_names(model, lessons)
    with Recognizer.load(model, path, extractor=extractor) as recognizer:
        kept = recognizer.teach_all(track(lessons.items(), "teaching", len(lessons)), thumbnails=thumbnails)
        taught = [
            {
                "id": one.id,
                "name": one.name,
                "added": len(lessons[one.name]),
                "examples": one.examples,
                "leans_on": _leans_on(recognizer, one.name),
            }
            for one in kept
        ]
    return {"model": str(model), "store": str(path), "taught": taught}


def forget(model: Path, name: str, store: str | None = None, extractor: str | None = None) -> dict[str, Any]:
    """Forget a taught category: the result of `recollect forget`."""

    def change(recognizer: Recognizer) -> int:
        examples = len(recognizer.examples(name))
        recognizer.forget(name)
        return examples

    path, examples = _change(model, store, change, extractor)
    return {"model": str(model), "store": str(path), "forgotten": tidy(name), "examples": examples}


def rename(
    model: Path, old: str, new: str, store: str | None = None, extractor: str | None = None
) -> dict[str, Any]:
    """Give a taught category another name: the result of `recollect rename`."""
    path, _ = _change(model, store, lambda recognizer: recognizer.rename(old, new), extractor)
    return {"model": str(model), "store": str(path), "old": tidy(old), "new": tidy(new)}


def lessons_in(folder: Path) -> dict[str, list[Item]]:
    """Return the pictures of each category of a folder or an archive, by its name."""
    folders: dict[str, str] = {}
    lessons: dict[str, list[Item]] = {}
    for item in find_items(folder, 0)[0]:
        name = tidy(item.category)
        if folders.setdefault(name, item.category) != item.category:
            raise DataError(f"{item.name}: two folders here have this name. Put their pictures into one")
        lessons.setdefault(name, []).append(item)
    return lessons


def pictures_of(paths: Sequence[Path]) -> list[Path]:
    """Return the paths, with the pictures of a folder in its place."""
    return [picture for path in paths for picture in (find_pictures(path) if _is_folder(path) else [path])]


def categories_report(model: Path, recognizer: Recognizer) -> dict[str, Any]:
    """Return the result of `recollect categories`: taught ones first, each with its number of examples."""
    known = sorted(recognizer.categories(), key=lambda category: category.origin != "novel")
    rows = [{"id": one.id, "name": one.name, "origin": one.origin, "examples": one.examples} for one in known]
    taught = sum(one.origin == "novel" for one in known)
    return {"model": str(model), "base": len(known) - taught, "taught": taught, "categories": rows}


def categories_table(report: dict[str, Any], *, everything: bool = False) -> Table:
    """Return a row for each taught category, and for the first few base ones or all of them."""
    base, taught = report["base"], report["taught"]
    shown = report["categories"] if everything else report["categories"][: taught + _SHOWN]
    left = len(report["categories"]) - len(shown)
    table = Table(
        title=f"{taught} taught, {base} base categories",
        title_justify="left",
        caption=f"{left} more base categories: --all" if left else None,
        caption_justify="left",
    )
    table.add_column("id", justify="right")
    table.add_column("category")
    table.add_column("origin")
    table.add_column("examples", justify="right")
    for row in shown:
        examples = "" if row["examples"] is None else str(row["examples"])
        table.add_row(str(row["id"]), Text(row["name"]), row["origin"], examples)
    return table


def teaching_text(result: dict[str, Any]) -> str:
    """Return what `teach` prints: a line for each category, and where they are kept."""
    lines = []
    for one in result["taught"]:
        line = f"Taught '{one['name']}' from {_count(one['added'], 'picture')}"
        if one["examples"] > one["added"]:
            line += f", {one['examples']} in all"
        lines.append(f"{line}.")
    return "\n".join([*lines, f"Kept in {result['store']}"])


def forgetting_text(result: dict[str, Any]) -> str:
    """Return what `forget` prints."""
    return f"Forgot '{result['forgotten']}' and its {_count(result['examples'], 'picture')}."


def renaming_text(result: dict[str, Any]) -> str:
    """Return what `rename` prints."""
    return f"'{result['old']}' is now called '{result['new']}'."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _change(
    model: Path, store: str | None, change: Callable[[Recognizer], T], extractor: str | None
) -> tuple[Path, T]:
    """Change what a model was taught; return where that is kept, and what the change gave."""
    path = _kept(model, store)
    with reading(model, store, extractor) as recognizer:
        return path, change(recognizer)


def _leans_on(recognizer: Recognizer, name: str) -> list[dict[str, Any]]:
    try:
        leaning = recognizer.explain(name, _LEANS_ON)
    except RecollectError:  # no attention, or another process has renamed or forgotten it
        return []
    return [{"category": category, "share": share} for category, share in leaning]


def _kept(model: Path, store: str | None) -> Path:
    """Return the file of the store that outlives the command."""
    path = store_file(model, store or DEFAULT)
    if path is None:
        raise StoreError("--store memory: would be gone when the command ends: name a file")
    return path


def _refuse_base_names(model: Path, lessons: Mapping[str, Sequence[Picture]]) -> None:
    """Name every category that is a base one, before any picture is read."""
    base = {fold(name): name for name in read_header(model).spec.categories}
    clashes = [
        f"'{name}'" + (f" (spelled '{base[fold(name)]}')" if name != base[fold(name)] else "")
        for name in lessons
        if fold(name) in base
    ]
    if clashes:
        are = "is a base category" if len(clashes) == 1 else "are base categories"
        raise RecollectError(f"{', '.join(clashes)} {are} already: choose another name; nothing was taught")


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # such as a name too long; whoever opens it says more
        return False
