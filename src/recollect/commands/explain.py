"""`recollect explain`: which base categories a taught one is built from, or competes with."""

from typing import Any

from rich.table import Column, Table
from rich.text import Text

from recollect.commands.opening import Target
from recollect.commands.printing import percent
from recollect.modelfile import read_header
from recollect.store import tidy


def explain(target: Target, name: str, top: int = 5) -> dict[str, Any]:
    """Return the result of `recollect explain`: under `leans_on` each base `category` with its `share`.

    With the generator "ridge": under `competes_with` each base or taught `category` with its `cosine`.
    """
    with target.open() as recognizer:
        found = recognizer.explain(name, top)
    ridge = read_header(target.model).spec.generator == "ridge"
    key, value = ("competes_with", "cosine") if ridge else ("leans_on", "share")
    rows = [{"category": category, value: number} for category, number in found]
    return {"model": str(target.model), "category": tidy(name), key: rows}


def explain_table(report: dict[str, Any]) -> Table:
    """Return a row for each category."""
    leans = "leans_on" in report
    title = f"'{report['category']}' {'leans on' if leans else 'competes with'}"
    what, how = ("base category", "share") if leans else ("category", "cosine")
    table = Table(what, Column(how, justify="right"), title=Text(title), title_justify="left")
    for row in report["leans_on"] if leans else report["competes_with"]:
        table.add_row(Text(row["category"]), percent(row["share"]) if leans else f"{row['cosine']:.2f}")
    return table
