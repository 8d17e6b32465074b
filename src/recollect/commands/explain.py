"""`recollect explain`: which base categories a taught one is built from, or which it competes with."""

from typing import Any

from rich.table import Column, Table
from rich.text import Text

from recollect.commands.opening import Target
from recollect.commands.printing import percent
from recollect.store import tidy


def explain(target: Target, name: str, top: int = 5) -> dict[str, Any]:
    """Return the result of `recollect explain`: under `leans_on` each base `category` with its `share`.

    Without attention: under `competes_with` each base or taught `category` with its `share`, the mean
    probability that `predict` would give it for the examples if the category itself were not known.
    """
    with target.open() as recognizer:
        found = recognizer.explain(name, top)
    key = "leans_on" if target.described().attends else "competes_with"
    rows = [{"category": category, "share": share} for category, share in found]
    return {"model": target.name, "category": tidy(name), key: rows}


def explain_table(report: dict[str, Any]) -> Table:
    """Return a row for each category."""
    leans = "leans_on" in report
    title = f"'{report['category']}' {'leans on' if leans else 'competes with'}"
    what = "base category" if leans else "category"
    table = Table(what, Column("share", justify="right"), title=Text(title), title_justify="left")
    for row in report["leans_on" if leans else "competes_with"]:
        table.add_row(Text(row["category"]), percent(row["share"]))
    return table
