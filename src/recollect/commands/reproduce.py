"""`recollect reproduce`: a table or figure of the paper, with remarks on standard error."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recollect.commands.evaluate import parse_shots
from recollect.commands.printing import require_writable
from recollect.commands.train import parse_settings
from recollect.errors import ConfigError, Stopped
from recollect.reproduce import run
from recollect.reproduce.lowshot.rows import NAME as TABLE_3
from recollect.system import machine
from recollect.system.progress import say

_OWN = {"split", "draws", "shots"}  # options of table 3
_OTHERS = {"minutes", "tasks", "queries", "extractors"}


def reproduce(
    what: str,
    data: str,
    out: Path,
    settings: Sequence[str],
    device: str = "auto",
    threads: int | None = None,
    **options: Any,  # noqa: ANN401
) -> dict[str, Any]:
    """Return the result of `recollect reproduce`: what was `made`, and the `folder` of it all."""
    require_writable(out, folder=True)
    machine.prepare(threads)
    options = suited(what, options)
    own = {"device": device if device != "auto" else None, "threads": threads}
    asked = {name: str(value) for name, value in own.items() if value is not None}
    options["settings"] = asked | parse_settings(settings)
    try:
        made = run.reproduce(what, data, out, say, **options)
    except Stopped as reason:
        raise Stopped(f"{reason}; run the same command again to resume") from reason
    return {"made": str(made), "folder": str(out)}


def suited(what: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that were given, parsed; refuse those of another table."""
    given = {name: value for name, value in options.items() if value is not None}
    wrong = sorted({*given} & (_OTHERS if what == TABLE_3 else _OWN))
    if wrong:
        raise ConfigError(f"--{wrong[0]} is not an option of {what}: leave it out")
    for name in {"extractors", "methods"} & given.keys():
        given[name] = [one.strip() for one in given[name].split(",")]
    if "split" in given:
        given["split"] = str(given["split"])
    if "shots" in given:
        given["shots"] = parse_shots(given["shots"])
    return given
