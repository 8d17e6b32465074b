"""`recollect reproduce`: a table or figure of the paper, with remarks on standard error."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recollect.commands.printing import require_writable
from recollect.commands.train import parse_settings
from recollect.errors import Stopped
from recollect.reproduce import run
from recollect.system import machine
from recollect.system.progress import say


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
    own = {"device": device if device != "auto" else None, "threads": threads}
    asked = {name: str(value) for name, value in own.items() if value is not None}
    options["settings"] = asked | parse_settings(settings)
    try:
        made = run.reproduce(what, data, out, say, **options)
    except Stopped as reason:
        raise Stopped(f"{reason}; run the same command again to resume") from reason
    return {"made": str(made), "folder": str(out)}
