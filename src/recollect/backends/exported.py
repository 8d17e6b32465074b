"""A folder that `recollect export --onnx` wrote: its files, and the list by which they are checked."""

import hashlib
import json
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from recollect.errors import ModelError, brief
from recollect.model.spec import Value
from recollect.modelfile import EXPORT_NAME, FILE_NAME, find_model
from recollect.system.disk import read_kept

EXTRACTOR, GENERATOR, CLASSIFIER = "extractor.onnx", "generator.onnx", "classifier.onnx"
VECTORS, CATEGORIES = "vectors.npy", "categories.json"
FILES = (FILE_NAME, EXTRACTOR, GENERATOR, CLASSIFIER, VECTORS, CATEGORIES)
FORMAT = 1


class Export(Value):
    """What export.json says."""

    format: int = FORMAT
    recollect: str  # the version that wrote it
    fingerprint: str  # of the model: taught categories belong to it
    files: dict[str, str]  # SHA-256 of each
    int8: bool = False
    checked: dict[str, Any] = Field(default_factory=dict)  # how the files compare with torch


def find_export(model: str | Path) -> Path | None:
    """Return the exported folder that `model` means, if it is one."""
    folder = find_model(model).parent
    return folder if find_model(model).name == FILE_NAME and (folder / EXPORT_NAME).exists() else None


def read_export(folder: Path) -> Export:
    """Read the list of an exported folder."""
    path = folder / EXPORT_NAME
    again = "export the model again"
    try:
        words = json.loads(read_kept(path))
        if isinstance(words, dict) and words.get("format") != FORMAT:
            raise ModelError(
                f"{path} has format {str(words.get('format'))[:20]}; this version reads {FORMAT}: {again}"
            )
        found = Export.model_validate(words)
    except ValidationError as error:
        raise ModelError(f"{path} is damaged ({error.errors()[0]['msg']}): {again}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read ({brief(error)}): {again}") from error
    if not set(FILES) <= set(found.files):
        raise ModelError(f"{path} is damaged (it does not list every file): {again}")
    return found


def checked_bytes(folder: Path, export: Export, name: str) -> bytes:
    """Return the bytes of a file of an exported folder, which must be the one that was exported."""
    path = folder / name
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise ModelError(
            f"{folder} lacks {name}: copy the whole folder, or export the model again"
        ) from error
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {brief(error)}") from error
    if hashlib.sha256(content).hexdigest() != export.files[name]:
        raise ModelError(
            f"{path} is not the file that was exported with the others: copy the whole folder, or export the "
            "model again"
        )
    return content
