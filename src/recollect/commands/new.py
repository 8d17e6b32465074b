"""`recollect new`: a recogniser on a pretrained extractor that knows no category yet."""

import shlex
from pathlib import Path
from typing import Any

from recollect.commands.printing import require_writable
from recollect.errors import ModelError
from recollect.model.spec import ModelSpec, is_own_code
from recollect.modelfile import FILE_NAME, save_model, stamp
from recollect.pretrained import PUBLISHED, licence_of

# Without pictures τ cannot be fitted; the best one rises with the number of categories and of examples.
SCALE = 25.0


def new_recogniser(extractor: str, out: Path, size: int | None = None) -> dict[str, Any]:
    """Write a model without base categories: the result of `recollect new`."""
    from recollect.training.starting import input_of, starting_model

    prepare = input_of(extractor, size)
    if prepare is None:
        raise ModelError(
            f"--extractor {extractor} has no weights yet: name a pretrained one ({', '.join(PUBLISHED)}, or "
            "onnx:PATH, module:package.module:callable), or use `recollect train`"
        )
    path = unused(out)
    spec = ModelSpec(extractor=extractor, generator="ridge", preprocessing=prepare, categories=())
    model = starting_model(spec)
    model.classifier.scale.data.fill_(SCALE)
    licence = licence_of(extractor)
    save_model(path, model, {**stamp(), **({"weights_licence": licence} if licence else {})})
    return {"model": str(path), "extractor": extractor, "input": prepare.size}


def unused(out: Path) -> Path:
    """Return the model file that `out` means, a file or a folder; refuse one that exists, or cannot be."""
    path = out if out.suffix == ".safetensors" else out / FILE_NAME
    try:
        if path.exists():
            raise ModelError(f"{path} exists already: choose another name")
    except OSError as error:
        raise ModelError(f"cannot look at {path}: {error.strerror or error}") from error
    require_writable(path)
    return path


def new_text(result: dict[str, Any]) -> str:
    """Return what `new` prints."""
    path = Path(result["model"])
    model = str(path.parent if path.name == FILE_NAME else path)
    again = f" --extractor {result['extractor']}" if is_own_code(result["extractor"]) else ""
    return (
        f"{model} knows no category yet. Teach it: recollect teach {shlex.quote(model)} NAME PICTURE…{again}"
    )
