"""`recollect train`: from the words of the command line to a run, new or resumed."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from recollect.commands.printing import require_writable
from recollect.data.splits import inline_split
from recollect.errors import RecollectError, Stopped
from recollect.methods import find_method
from recollect.model.spec import is_own_code
from recollect.training.config import Config, default_preset, make_config, read_preset
from recollect.training.runfolder import RunFolder


def train(
    out: Path, options: Mapping[str, Any], settings: Sequence[str] = (), *, resume: bool = False
) -> dict[str, Any]:
    """Train or resume a run: the result of `recollect train`.

    `run`, `model`, and `validation`: accuracies in percent, as far as the run measured any.
    """
    config = _config(out, options, parse_settings(settings), resume=resume)
    require_writable(out, folder=True)
    try:
        find_method(config.method).train(config, out, resume=resume)
    except Stopped as reason:
        words = ["recollect", "train", "--resume", "--out", str(out)]
        words += ["--extractor", config.extractor] if is_own_code(config.extractor) else []
        usable = f"; {out} holds a usable model" if RunFolder(out).model.exists() else ""
        raise Stopped(f"{reason}{usable}. Resume with: {shlex.join(words)}") from reason
    # A run that took over stage 1 and has no stage 2 measured nothing itself.
    validation = RunFolder(out).validation(1, 2)
    return {"run": str(out), "model": str(out / "model.safetensors"), "validation": validation}


def train_text(result: dict[str, Any]) -> str:
    """Return what `train` prints: the model, and how often it is right on held-out pictures."""
    measured = result["validation"]
    words = {
        "base": "among the trained categories",
        "novel": "among new categories taught from a few pictures",
        "both": "among all of them together",
    }
    parts = [f"{measured[name]:.1f} % {where}" for name, where in words.items() if name in measured]
    right = f"\nRight answers on held-out pictures: {', '.join(parts)}." if parts else ""
    return f"{result['model']}{right}"


def parse_settings(pairs: Sequence[str]) -> dict[str, str]:
    """Return the settings of `--set key=value`."""
    settings = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise RecollectError(f"--set {pair}: write key=value, such as stage1.passes=10")
        settings[key.strip()] = value.strip()
    return settings


def _config(out: Path, options: Mapping[str, Any], settings: dict[str, str], *, resume: bool) -> Config:
    options = {**options, "shots": _shots(options.get("shots"))}
    if resume:
        start = RunFolder(out).config(options["extractor"]).model_dump()
        options["split"] = inline_split(options["split"])  # as a run keeps it
        options["device"] = None if options["device"] == "auto" else options["device"]
        return make_config(start, options, settings)
    if options["data"] is None:
        raise RecollectError("DATA is missing: name a folder of categories, glyphs, or such as cifar-fs:PATH")
    named = {key: text for key, text in settings.items() if key in {"extractor", "finetune"}}
    asked = make_config({}, {key: options[key] for key in ("data", "extractor", "finetune")}, named)
    name = options["preset"] or default_preset(asked.data, asked.extractor, finetune=asked.finetune)
    return make_config(read_preset(name) if name else {}, options, settings)


def _shots(text: str | None) -> str | int | None:
    try:
        return int(text) if text is not None and text.isdecimal() else text
    except ValueError as error:  # Python refuses to read thousands of digits
        raise RecollectError(f"--shots: a number of {len(text or '')} digits is too large") from error
