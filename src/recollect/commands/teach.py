"""`recollect teach`: categories from pictures, all of them or none."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recollect.commands.opening import Target
from recollect.commands.pictures import Named, find, name_of
from recollect.commands.printing import counted, keep_end, percent
from recollect.data.folder import find_items
from recollect.errors import RecollectError
from recollect.recognition.opening import DEFAULT
from recollect.recognition.recognizer import Recognizer
from recollect.store import fold, new_name
from recollect.system.progress import track

if TYPE_CHECKING:
    from recollect.client import Client

_CLOSE = 0.5  # mean probability above which a category closely resembles another
_LEANS_ON = 3  # base categories named for each taught one
_SHOWN, _ROOM = 3, 40  # duplicates named for each, and characters of their paths


def teach(
    target: Target,
    name: str | None,
    paths: Sequence[Path],
    folder: Path | None = None,
    *,
    thumbnails: bool = False,
) -> dict[str, Any]:
    """Teach a category from pictures, or each sub-folder of `folder` as one: the result of `recollect teach`.

    `taught` has for each category its `id`, `name`, `origin` (base for a corrected one), the pictures `added`
    now, all its `examples`, and under `leans_on` the base categories that its vector draws on most
    (`category`, `share`), if the model's generator pays attention to any. `resembles` has the `category` that
    the examples resemble most, with their mean `probability` of it; `None` if that is at most a half, or if
    the model cannot tell unknown pictures. `duplicates` has each added `picture` that was taught before, with
    the `category` that it was taught to.
    """
    path = target.kept()
    given = by_category(folder) if folder else {new_name(str(name)): find(paths)}
    model = target.described()
    with target.make() as recognizer:
        if folder:  # whose sub-folders need not be spelled as the categories are, in `check` too
            known = {fold(one.name): one.name for one in recognizer.categories()}
            given = {known.get(fold(name), name): pictures for name, pictures in given.items()}
        kept = recognizer.teach_all(track(given.items(), "teaching", len(given)), thumbnails=thumbnails)
        taught = [
            {
                "id": one.id,
                "name": one.name,
                "origin": one.origin,
                "added": len(pictures),
                "examples": one.examples,
                "leans_on": _leans_on(recognizer, one.name) if model.attends else [],
                "resembles": _resembles(recognizer, one.name) if model.says_unknown else None,
                "duplicates": _duplicates(recognizer, one.name, pictures),
            }
            for one, pictures in zip(kept, given.values(), strict=True)
        ]
    return {"model": target.name, "store": str(path), "taught": taught}


def by_category(folder: Path) -> dict[str, list[Named]]:
    """Return the pictures of each sub-folder of a folder or archive, by category."""
    found: dict[str, list[Named]] = {}
    for item in find_items(folder, size=1)[0]:
        found.setdefault(new_name(item.category), []).append(item)
    return found


def teach_text(result: dict[str, Any], *, own_store: bool) -> str:
    """Return what `teach` prints: a line for each category, and where they are kept."""
    lines = []
    for one in result["taught"]:
        count = counted(one["added"], "picture")
        line = f"Taught '{one['name']}' from {count}"
        if one["origin"] == "base":
            line = f"Added {count} to the base category '{one['name']}'"
        if one["examples"] > one["added"]:
            line += f", {one['examples']} in all"
        lines.append(f"{line}.")
        again = [f"{keep_end(twin['picture'], _ROOM)} ('{twin['category']}')" for twin in one["duplicates"]]
        if again:
            more = f" and {len(again) - _SHOWN} more" if len(again) > _SHOWN else ""
            lines.append(f"  Taught before, and counted again: {', '.join(again[:_SHOWN])}{more}")
        near = one["resembles"]
        if near and one["origin"] == "novel" and one["examples"] == one["added"]:
            lines.append(
                f"  Its pictures resemble '{near['category']}' ({percent(near['probability'])}). Check both "
                f"with `recollect check`; if '{near['category']}' loses pictures, teach it more."
            )
    if result["model"] == result["store"]:
        return "\n".join([*lines, f"Kept by {result['store']}"])
    places = (result["model"], DEFAULT if own_store else result["store"])
    model, store = (json.dumps(place, ensure_ascii=False) for place in places)
    return "\n".join(
        [*lines, f"Kept in {result['store']}", f"From Python: Recognizer.load({model}, store={store})"]
    )


def _duplicates(recognizer: "Recognizer | Client", name: str, added: Sequence[Named]) -> list[dict[str, str]]:
    try:
        ids = [example.id for example in recognizer.examples(name)][-len(added) :]
        twins = recognizer.duplicates(name)
    except RecollectError:  # another process has renamed or forgotten it
        return []
    picture = dict(zip(ids, map(name_of, added), strict=False))
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
