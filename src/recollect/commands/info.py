"""`recollect info`: what a model file is, from its header; without torch, so that it is quick.

Only published weights that were never read before need torch, because they are a pickle.
"""

from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from recollect.commands.printing import NEVER_UNKNOWN, PathText
from recollect.modelfile import PAPER, summarise
from recollect.pretrained import PUBLISHED

FIRST = 5  # names of base categories that are shown
_FINISHED = {"True": "yes", "False": "no: training was stopped, or is still running"}


def model_info(model: str | Path) -> dict[str, Any]:
    """Return what a model file is and where it comes from.

    `file`, `megabytes`, `format`, `method`, `parameters`, `fingerprint` (what features depend on),
    `extractor`, `last_relu`, `centred`, `mirrored`, `shifted`, `classifier`, `generator`, `shot_aware`,
    `preprocessing`, `base_categories` (how many) and the first of them, `first_categories`; `taught` (how
    many categories came with the file) and `calibration`; `trained_on` (`data`, `split`, `skip_bad`, `key`);
    `provenance` as the training wrote it, with its configuration. `parameters` and `fingerprint` are null if
    the extractor's weights come from a package that is not installed.
    """
    path, header, parameters, fingerprint = summarise(model)
    spec, provenance = header.spec, header.provenance
    return {
        "file": str(path),
        "megabytes": round(path.stat().st_size / 1e6, 2),
        "format": header.format,
        "method": header.method,
        "parameters": parameters,
        "fingerprint": fingerprint,
        **spec.model_dump(mode="json", exclude={"categories"}),
        "base_categories": len(spec.categories),
        "first_categories": list(spec.categories[:FIRST]),
        "taught": len(header.taught),
        "calibration": header.calibration.model_dump(mode="json"),
        "trained_on": {"data": _config(provenance).get("data"), **header.trained_on.model_dump(mode="json")},
        "provenance": provenance,
    }


def info_table(info: dict[str, Any]) -> Table:
    """Return it as two columns, without what the file does not say."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in {**_what(info), **_origin(info)}.items():
        if value:
            # Not a plain string: a name may hold what rich takes for markup.
            table.add_row(name, PathText(value) if name == "file" else Text(value))
    return table


def _what(info: dict[str, Any]) -> dict[str, str]:
    prepare = info["preprocessing"]
    cut = "" if prepare["short_side"] is None else f", cut from a short side of {prepare['short_side']}"
    mean, std = (", ".join(f"{value:.4g}" for value in prepare[name]) for name in ("mean", "std"))
    names, count = info["first_categories"], info["base_categories"]
    return {
        "file": info["file"],
        "size": f"{info['megabytes']:.1f} MB, format {info['format']}",
        "method": "" if info["method"] == PAPER else info["method"],
        "extractor": f"{info['extractor']}{', last ReLU kept' if info['last_relu'] else ''}"
        f"{', centred' if info['centred'] else ''}{', mirrored' if info['mirrored'] else ''}"
        f"{', shifted by ' + str(info['shifted']) + ' px' if info['shifted'] else ''}",
        "classifier": info["classifier"],
        "generator": f"{info['generator']}{', shot-aware' if info['shot_aware'] else ''}",
        "parameters": f"unknown, because its weights are not installed: {PUBLISHED[info['extractor']].remedy}"
        if info["parameters"] is None
        else f"{info['parameters']:,}",
        "input": f"{prepare['size']} × {prepare['size']} pixels{cut}; mean {mean}; std {std}",
        "base categories": f"{count}: {', '.join(names)}{', …' if count > len(names) else ''}"
        if count
        else "none",
        "taught": str(info["taught"] or ""),
        "calibration": _calibration(info["calibration"]),
        "unknown": _unknown(info["calibration"]["unknown"]) if info["method"] == PAPER else "",
        "fingerprint": info["fingerprint"] or "",
        "licence of weights": str(info["provenance"].get("weights_licence", "")),
    }


def _calibration(words: dict[str, Any]) -> str:
    if not words["report"]:
        return ""
    values = list(words["bias"].values()) if isinstance(words["bias"], dict) else [words["bias"]]
    bias = f"{min(values):+.1f}"
    if len(values) > 1:
        bias += f" to {max(values):+.1f}, depending on how many there are"
    return f"temperature {words['temperature']:.2f}; added to the scores of taught categories: {bias}"


def _unknown(words: dict[str, Any] | None) -> str:
    if words is None:
        return NEVER_UNKNOWN
    return f"about {100 * words['false_alarms']:.1f} % of pictures of known categories are called unknown"


def _origin(info: dict[str, Any]) -> dict[str, str]:
    trained_on, provenance = info["trained_on"], info["provenance"]
    config = _config(provenance)
    validation = provenance.get("validation")
    figures = validation.items() if isinstance(validation, dict) else ()
    versions = (f"{name} {provenance[name]}" for name in ("recollect", "torch") if name in provenance)
    return {
        "trained on": str(trained_on["data"] or ""),
        "split": str(trained_on["split"] or ""),
        "bad pictures": "left out" if trained_on["skip_bad"] else "",
        "preset": str(config.get("preset") or ""),
        "seed": str(config.get("seed", "")),
        "finished": _FINISHED.get(str(provenance.get("finished")), ""),
        "written": str(provenance.get("written", "")),
        "written with": ", ".join(versions),
        "machine": str(provenance.get("machine", "")),
        "refit": _refit(provenance.get("refit")),
        "stage 1": _stage(provenance, "stage1_seconds", "images_seen", "pictures"),
        "stage 2": _stage(provenance, "stage2_seconds", "episodes_seen", "episodes"),
        "validation": ", ".join(f"{name} {_percent(value)}" for name, value in figures),
    }


def _refit(words: object) -> str:
    if not isinstance(words, dict):
        return ""
    before, after = (_percent(words.get(name)) for name in ("before", "after"))
    return (
        f"{words.get('categories')} categories taught to {words.get('from')}; of {words.get('held_back')} "
        f"held-out examples {before} right before, {after} after"
    )


def _percent(figure: object) -> str:
    return f"{figure:.1f} %" if isinstance(figure, float | int) else str(figure)


def _stage(provenance: dict[str, Any], seconds: str, seen: str, what: str) -> str:
    known = []
    if isinstance(count := provenance.get(seen), int):
        known.append(f"{count:,} {what} seen")
    if isinstance(took := provenance.get(seconds), int):
        known.append(f"{took // 60} min {took % 60} s")
    return ", ".join(known)


def _config(provenance: dict[str, Any]) -> dict[str, Any]:
    config = provenance.get("config")
    return config if isinstance(config, dict) else {}
