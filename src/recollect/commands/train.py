"""`recollect train`: from the words of the command line to a run, new or resumed."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from recollect.commands.printing import NEVER_UNKNOWN, require_writable
from recollect.data.splits import inline_split
from recollect.errors import RecollectError, Stopped, StoreError, counted
from recollect.methods import find_method
from recollect.model.spec import is_own_code
from recollect.modelfile import FILE_NAME, PAPER, read_header
from recollect.recognition.opening import default_store
from recollect.recognition.recognizer import Recognizer
from recollect.system import workers
from recollect.training.config import Config, default_preset, make_config, read_preset
from recollect.training.runfolder import RunFolder


def train(
    out: Path, options: Mapping[str, Any], settings: Sequence[str] = (), *, resume: bool = False
) -> dict[str, Any]:
    """Train or resume a run: the result of `recollect train`.

    `run`, `model`, and `validation`: accuracies in percent on the `held_out` pictures, as far as the run
    measured any. `warnings`, where there are any, say what you would not expect of the model.
    """
    # Where torchrun starts everything again after a loss, the same command goes on.
    resume = resume or (workers.restarted() and workers.is_first() and RunFolder(out).begun())
    config = _config(out, options, parse_settings(settings), resume=resume)
    if workers.is_first():
        require_writable(out, folder=True)
    try:
        held_out = find_method(config.method).train(config, out, resume=resume)
        if not workers.is_first():
            sys.exit(0)
    except Stopped as reason:
        words = ["recollect", "train", "--resume", "--out", str(out)]
        words += ["--extractor", config.extractor] if is_own_code(config.extractor) else []
        usable = f"; {out} holds a usable model (what you teach it will not fit the finished one)"
        usable = usable if RunFolder(out).model.exists() else ""
        raise Stopped(f"{reason}{usable}. Resume with: {shlex.join(words)}") from reason
    # A run that took over stage 1 and has no stage 2 measured nothing itself.
    validation = RunFolder(out).validation(1, 2)
    calibrated = "both_calibrated"  # which a run that an earlier version finished lacks
    if config.balanced_by_bias and calibrated in (kept := read_header(out).provenance["validation"]):
        validation |= {calibrated: kept[calibrated]}
    result = {"run": str(out), "model": str(out / FILE_NAME), "held_out": held_out, "validation": validation}
    warnings = _warnings(out, config.extractor)
    return {**result, **({"warnings": warnings} if warnings else {})}


def train_text(result: dict[str, Any]) -> str:
    """Return what `train` prints: the model, and how often it is right on held-out pictures."""
    measured = result["validation"]
    words = {
        "base": "among the trained categories",
        "novel": "among new categories taught from a few pictures",
        "both_calibrated" if "both_calibrated" in measured else "both": "among all of them together",
    }
    parts = [f"{measured[name]:.1f} % {where}" for name, where in words.items() if name in measured]
    held_out = counted(result["held_out"], "held-out picture")
    right = f"\nRight answers in random tasks on {held_out}: {', '.join(parts)}." if parts else ""
    notes = "".join(f"\nNote: {warning}." for warning in result.get("warnings", []))
    return f"{result['model']}{right}{notes}"


def parse_settings(pairs: Sequence[str]) -> dict[str, str]:
    """Return the settings of `--set key=value`."""
    for pair in pairs:
        if "=" not in pair:
            raise RecollectError(f"--set {pair}: write key=value, such as stage1.passes=10")
    return {key.strip(): value.strip() for key, _, value in (pair.partition("=") for pair in pairs)}


def _config(out: Path, options: Mapping[str, Any], settings: dict[str, str], *, resume: bool) -> Config:
    device = None if options["device"] == "auto" else options["device"]
    options = {**options, "shots": _shots(options.get("shots")), "device": device}
    if resume:
        start = RunFolder(out).config(options["extractor"]).model_dump()
        options["split"] = inline_split(options["split"])  # as a run keeps it
        return make_config(start, options, settings)
    if options["data"] is None:
        raise RecollectError(
            "DATA is missing: name a folder of categories, glyphs, or a data set such as cifar-fs:PATH"
        )
    named = {key: text for key, text in settings.items() if key in {"extractor", "finetune", "method"}}
    asked = make_config({}, {key: options[key] for key in ("data", "extractor", "finetune")}, named)
    name = options["preset"] or default_preset(
        asked.data, asked.extractor, finetune=asked.finetune, method=asked.method
    )
    return make_config(read_preset(name) if name else {}, options, settings)


def _warnings(out: Path, extractor: str) -> list[str]:
    header, store = read_header(out), default_store(out)
    if header.method != PAPER:
        return []
    warnings = [NEVER_UNKNOWN] if header.calibration.unknown is None else []
    if store.exists():
        try:
            Recognizer.load(out, store, device="cpu", extractor=extractor).close()
        except StoreError as error:  # taught before the training was resumed
            warnings.append(str(error))
    return warnings


def _shots(text: str | None) -> str | int | None:
    try:
        return int(text) if text is not None and text.isdecimal() else text
    except ValueError as error:  # Python refuses to read thousands of digits
        raise RecollectError(f"--shots: a number of {len(text or '')} digits is too large") from error
