"""`recollect teach`: categories from pictures, all of them or none."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recollect.commands.categories import undo_hiding
from recollect.commands.opening import Described, Target, spellings
from recollect.commands.pictures import Named, find, name_of, read
from recollect.commands.printing import keep_end, percent
from recollect.data.folder import find_items
from recollect.data.imageset import Item
from recollect.errors import RecollectError, counted, listed
from recollect.images import Picture
from recollect.recognition.recognizer import Recognizer
from recollect.recognition.results import Category
from recollect.store import fold, new_name

if TYPE_CHECKING:
    from recollect.client import Client

_CLOSE = 0.5  # mean probability above which a category closely resembles another
_LEANS_ON = 3  # base categories named for each taught one
_ROOM = 40  # characters of a path


def teach(
    target: Target,
    name: str | None,
    paths: Sequence[Path],
    folder: Path | None = None,
    *,
    thumbnails: bool = False,
    skip_bad: bool = False,
    keep_duplicates: bool = False,
) -> dict[str, Any]:
    """Teach a category from pictures, or each sub-folder of `folder` as one: the result of `recollect teach`.

    `taught` has for each category its `id`, `name`, `origin` (base for a corrected one), whether it is
    `hidden`, how many pictures were `added` now, and how many `examples` it has in all. `skipped` lists
    pictures that it was taught before, which are not counted again. `duplicates` has each added `picture`
    that was taught before, with the `category` it was taught to. `leans_on` has the base categories that its
    vector draws on most (`category`, `share`), if the model's generator uses attention. `resembles` has the
    `category` that the examples resemble most, with their mean `probability` of it; `None` if that is at most
    a half, or if the model never answers "unknown". `left_out`, where there are any, has each bad `picture`
    with the `reason`.
    """
    path = target.kept()
    model = target.described()
    found: list[Named] = [*find_items(folder, 1, skip_bad=skip_bad)[0]] if folder else find(paths)
    # By the name of the folder, if there is one.
    names = {one: new_name(one) for one in dict.fromkeys(_folder_of(picture, name) for picture in found)}
    given: list[tuple[str, str]] = []  # the category and the path of each picture
    skipped: list[int] = []
    bad: list[dict[str, str]] = []

    def lessons() -> Iterator[tuple[str, list[Picture]]]:
        for good, pixels in read(found, model, "teaching", skip_bad=skip_bad, bad=bad):
            # A thumbnail is made of the whole picture.
            pictures: Sequence[Picture] = good if thumbnails else list(pixels)
            categories = [names[_folder_of(picture, name)] for picture in good]
            given.extend(zip(categories, map(name_of, good), strict=True))
            for category, pairs in groupby(zip(categories, pictures, strict=True), itemgetter(0)):
                yield category, [picture for _, picture in pairs]

    with target.make() as recognizer:
        known = spellings(recognizer.categories(), model.categories)
        names = {one: known.get(fold(spelled), spelled) for one, spelled in names.items()}
        kept = recognizer.teach_all(
            lessons(), thumbnails=thumbnails, skipped=None if keep_duplicates else skipped
        )
        taught = [
            _taught(recognizer, one, category, given, {*skipped}, model)
            for one, category in zip(kept, dict.fromkeys(category for category, _ in given), strict=True)
        ]
    report = {"model": target.name, "store": str(path), "taught": taught}
    return {**report, **({"left_out": bad} if bad else {})}


def _folder_of(picture: Named, name: str | None) -> str:
    return picture.category if isinstance(picture, Item) else str(name)


def _taught(
    recognizer: "Recognizer | Client",
    one: Category,
    category: str,
    given: Sequence[tuple[str, str]],
    skipped: set[int],
    model: Described,
) -> dict[str, Any]:
    """Return what the result says of one category."""
    mine = [(place, path) for place, (of, path) in enumerate(given) if of == category]
    added = [path for place, path in mine if place not in skipped]
    return {
        "id": one.id,
        "name": one.name,
        "origin": one.origin,
        "hidden": one.hidden,
        "added": len(added),
        "examples": one.examples,
        "skipped": [path for place, path in mine if place in skipped],
        "duplicates": _duplicates(recognizer, one.name, added) if added else [],
        "leans_on": _leans_on(recognizer, one.name) if model.attends else [],
        "resembles": _resembles(recognizer, one.name) if model.says_unknown else None,
    }


def teach_text(result: dict[str, Any]) -> str:
    """Return what `teach` prints: a few lines for each category, and where they are kept."""
    lines = []
    for one in result["taught"]:
        count = counted(one["added"], "picture")
        line = f"Taught '{one['name']}' from {count}"
        if one["origin"] == "base":
            line = f"Added {count} to the base category '{one['name']}'"
        if not one["added"]:
            line = f"Added nothing to '{one['name']}', which was taught these pictures before"
        elif one["examples"] > one["added"]:
            line += f", {one['examples']} in all"
        lines.append(f"{line}.")
        if one["skipped"] and one["added"]:
            paths = [keep_end(path, _ROOM) for path in one["skipped"]]
            lines.append(f"  Left out, because the category has them already: {listed(paths, 3)}")
        twins = {True: "Taught before, and counted again", False: "Also taught to another category"}
        for own, words in twins.items():
            again = [
                f"{keep_end(twin['picture'], _ROOM)} ('{twin['category']}')"
                for twin in one["duplicates"]
                if (twin["category"] == one["name"]) == own
            ]
            if again:
                lines.append(f"  {words}: {listed(again, 3)}")
        if one["hidden"]:
            undo = undo_hiding(result["model"], one["name"], result["store"])
            lines.append(f"  It is hidden, so it is never an answer. To undo this: {undo}")
        near = one["resembles"]
        if near and one["origin"] == "novel" and one["examples"] == one["added"]:
            check = "Check both with `recollect check`; if" if result["model"] != result["store"] else "If"
            lines.append(
                f"  Its pictures resemble '{near['category']}' ({percent(near['probability'])}). {check} "
                f"'{near['category']}' loses pictures, teach it more."
            )
    kept = "by" if result["model"] == result["store"] else "in"
    return "\n".join([*lines, f"Kept {kept} {result['store']}"])


def _duplicates(recognizer: "Recognizer | Client", name: str, added: Sequence[str]) -> list[dict[str, str]]:
    try:
        ids = [example.id for example in recognizer.examples(name)][-len(added) :]
        twins = recognizer.duplicates(name)
    except RecollectError:  # another process has renamed or forgotten it
        return []
    picture = dict(zip(ids, added, strict=False))
    found = dict.fromkeys((picture[one.example], one.category) for one in twins if one.example in picture)
    return [{"picture": name, "category": category} for name, category in found]


def _resembles(recognizer: "Recognizer | Client", name: str) -> dict[str, Any] | None:
    try:
        nearest = recognizer.resembles(name, 1)
    except RecollectError:  # another process has renamed or forgotten it
        return None
    close = [{"category": category, "probability": share} for category, share in nearest if share > _CLOSE]
    return close[0] if close else None


def _leans_on(recognizer: "Recognizer | Client", name: str) -> list[dict[str, Any]]:
    try:
        leaning = recognizer.explain(name, _LEANS_ON)
    except RecollectError:  # another process has renamed or forgotten it
        return []
    return [{"category": category, "share": share} for category, share in leaning]
