"""`recollect categories`, and the commands that change one: forget, rename, hide, unhide."""

import shlex
from dataclasses import asdict
from typing import Any

from rich.table import Column, Table
from rich.text import Text

from recollect.commands.opening import Target
from recollect.errors import counted
from recollect.recognition.opening import default_store
from recollect.store import tidy

_SHOWN = 10  # base categories listed unless all are asked for


def categories(target: Target) -> dict[str, Any]:
    """Return the result of `recollect categories`: taught ones first, then base ones that were changed."""
    with target.open() as recognizer:
        known = recognizer.categories()
    known.sort(key=lambda one: (one.origin != "novel", not one.hidden and one.examples is None))
    rows = [asdict(one) for one in known]
    taught = sum(one.origin == "novel" for one in known)
    return {"model": target.name, "base": len(known) - taught, "taught": taught, "categories": rows}


def categories_table(report: dict[str, Any], *, everything: bool = False) -> Table:
    """Return a row for each taught category, and for the first few base ones or all of them."""
    base, taught = report["base"], report["taught"]
    changed = sum(row["hidden"] or row["examples"] is not None for row in report["categories"])
    shown = report["categories"] if everything else report["categories"][: changed + _SHOWN]
    left = len(report["categories"]) - len(shown)
    table = Table(
        Column("id", justify="right"),
        "category",
        "origin",
        Column("examples", justify="right"),
        title=f"{taught} taught, {base} base categories",
        title_justify="left",
        caption=f"{left} more base categories: --all" if left else None,
        caption_justify="left",
    )
    for row in shown:
        examples = "" if row["examples"] is None else str(row["examples"])
        # Not plain strings: a name may hold what rich takes for markup.
        origin = f"{row['origin']}, hidden" if row["hidden"] else row["origin"]
        table.add_row(str(row["id"]), Text(row["name"]), origin, examples)
    return table


def forget(target: Target, name: str) -> dict[str, Any]:
    """Forget a taught category: the result of `recollect forget`."""
    kept = _kept(target)
    with target.open() as recognizer:
        examples = len(recognizer.examples(name))
        recognizer.forget(name)
        stays = tidy(name) in {one.name for one in recognizer.categories()}
    origin = "base" if stays else "novel"
    return {**kept, "forgotten": tidy(name), "origin": origin, "examples": examples}


def rename(target: Target, old: str, new: str) -> dict[str, Any]:
    """Rename a category: the result of `recollect rename`."""
    kept = _kept(target)
    with target.open() as recognizer:
        recognizer.rename(old, new)
    return {**kept, "old": tidy(old), "new": tidy(new)}


def hide(target: Target, name: str, *, hidden: bool = True) -> dict[str, Any]:
    """Hide a base category, or let it be an answer again: the result of `recollect hide` and `unhide`."""
    kept = _kept(target)
    with target.open() as recognizer:
        (recognizer.hide if hidden else recognizer.unhide)(name)
    return {**kept, "category": tidy(name), "hidden": hidden}


def forget_text(result: dict[str, Any]) -> str:
    """Return what `forget` prints."""
    name, pictures = result["forgotten"], counted(result["examples"], "picture")
    if result["origin"] == "base":
        return f"Removed {pictures} from the base category '{name}', which is as it was before."
    return f"Forgot '{name}' and its {pictures}."


def rename_text(result: dict[str, Any]) -> str:
    """Return what `rename` prints."""
    return f"'{result['old']}' is now called '{result['new']}'."


def hide_text(result: dict[str, Any]) -> str:
    """Return what `hide` and `unhide` print."""
    if result["hidden"]:
        undo = undo_hiding(result["model"], result["category"], result["store"])
        return f"'{result['category']}' is no longer an answer. To undo this: {undo}"
    return f"'{result['category']}' can be an answer again."


def undo_hiding(model: str, name: str, store: str) -> str:
    """Return the command that unhides a category."""
    if model == store:
        return shlex.join(["recollect", "unhide", "--server", model, name])
    own = str(default_store(model)) == store
    return shlex.join(["recollect", "unhide", model, name, *([] if own else ["--store", store])])


def _kept(target: Target) -> dict[str, Any]:
    """Return the model, and where changes to what it was taught are kept."""
    return {"model": target.name, "store": str(target.kept())}
