"""What the commands teach, forget, rename and categories do, and how they open a model's store."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from rich.table import Table
from rich.text import Text

from recollect.backends import Backend
from recollect.data.folder import find_items, find_pictures
from recollect.data.imageset import Item
from recollect.errors import DataError, RecollectError, StoreError
from recollect.images import Picture
from recollect.modelfile import find_model, is_ready, read_header, read_taught
from recollect.recognition.bundle import unpack
from recollect.recognition.recognizer import Recognizer
from recollect.store import Owner, Store, fold, open_store, store_path, tidy
from recollect.system.disk import data_folder
from recollect.system.progress import track

T = TypeVar("T")
STORE_NAME = "taught.sqlite"
_LEANS_ON = 3  # base categories told of each taught one
_SHOWN = 10  # base categories listed unless all are asked for


@contextmanager
def reading(model: Path, store: str | None, extractor: str | None = None) -> Iterator[Recognizer]:
    """Give a recogniser with what a model was taught; nothing is written, not even an empty store."""
    path = _existing(model, store)
    backend = _load(model, extractor)
    with _opened(model, backend, path) as opened:
        yield Recognizer(backend, opened)


def default_store(model: Path) -> Path:
    """Return the file that keeps what a model was taught, unless another is named."""
    if is_ready(model):
        return data_folder() / find_model(model).stem / STORE_NAME
    return find_model(model).parent / STORE_NAME


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
    `leans_on` the base categories that the added pictures' share of its vector draws on most (`category`,
    `share`), where the model's generator pays attention to any.
    """
    path = _kept(model, store)
    lessons = {tidy(name): pictures for name, pictures in lessons.items()}
    _refuse_base_names(model, lessons)
    backend = _load(model, extractor)
    # Everything that can be wrong with names and pictures shows before the store is opened or made.
    rehearsal = Recognizer(backend)
    for name, pictures in track(lessons.items(), "teaching", len(lessons)):
        rehearsal.teach(name, pictures, thumbnails=thumbnails)
    with _opened(model, backend, path) as opened:
        kept = opened.add_all({name: rehearsal.examples(name) for name in lessons})
    attentive = backend.header.spec.generator == "attention"
    # Not read again from the store: another process may have renamed or forgotten them since.
    taught = [
        {
            "id": rehearsal.category(one).id,
            "name": one.name,
            "added": len(lessons[one.name]),
            "examples": one.examples,
            "leans_on": [
                {"category": category, "share": share}
                for category, share in (rehearsal.explain(one.name, _LEANS_ON) if attentive else [])
            ],
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
    path, there, backend = _kept(model, store), _existing(model, store), _load(model, extractor)
    with _opened(model, backend, there) as opened:
        result = change(Recognizer(backend, opened))
    if there is None:  # a saved recogniser: its categories move to a store, now that nothing is wrong
        with _opened(model, backend, path) as opened:
            result = change(Recognizer(backend, opened))
    return path, result


def _kept(model: Path, store: str | None) -> Path:
    """Return the file of the store that outlives the command."""
    path = default_store(model) if store is None else store_path(store)
    if path is None:
        raise StoreError("--store memory: would be gone when the command ends: name a file")
    return path


def _existing(model: Path, store: str | None) -> Path | None:
    """Return the file of the store that is there, or `None` for one in memory."""
    path = default_store(model) if store is None else store_path(store)
    try:
        if path is None or path.exists():
            return path
    except OSError as error:
        raise StoreError(f"cannot look at {path}: {error.strerror or error}") from error
    if store is not None:
        raise StoreError(f"there is no store at {path}: check --store, or teach something into it first")
    return None


def _load(model: Path, extractor: str | None) -> Backend:
    from recollect.backends.torch import TorchBackend

    return TorchBackend.load(model, extractor)


@contextmanager
def _opened(model: Path, backend: Backend, path: Path | None) -> Iterator[Store]:
    """Open a store, as `Recognizer.load` does, and close it at the end."""
    width = backend.base_vectors.shape[1]
    content = unpack(*read_taught(model), width)
    opened = open_store(path, Owner(backend.fingerprint, width))
    try:
        opened.fill(content)
        yield opened
    finally:
        opened.close()


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
