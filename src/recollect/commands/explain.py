"""`recollect explain`: which base categories a taught one is built from."""

from typing import Any

from rich.table import Table
from rich.text import Text

from recollect.commands.opening import Target
from recollect.commands.printing import percent
from recollect.store import tidy


def explain(target: Target, name: str, top: int = 5) -> dict[str, Any]:
    """Return the result of `recollect explain`: under `leans_on` each base `category` with its `share`."""
    with target.open() as recognizer:
        leaning = recognizer.explain(name, top)
    rows = [{"category": category, "share": share} for category, share in leaning]
    return {"model": str(target.model), "category": tidy(name), "leans_on": rows}


def explain_table(report: dict[str, Any]) -> Table:
    """Return a row for each base category."""
    table = Table(title=Text(f"'{report['category']}' leans on"), title_justify="left")
    table.add_column("base category")
    table.add_column("share", justify="right")
    for row in report["leans_on"]:
        table.add_row(Text(row["category"]), percent(row["share"]))
    return table
