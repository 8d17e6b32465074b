"""model.safetensors: a model's weights, with a header that says what they are. Nothing in it can execute.

The header reads without torch; `load_model` and `save_model` bring it in.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from recollect.errors import ModelError
from recollect.model.spec import Calibration, Frozen, ModelSpec
from recollect.storage import replacing_file

if TYPE_CHECKING:
    from recollect.model.model import Model

FORMAT = 3  # 1 had no taught categories and no calibration, 2 no method and one bias only
PAPER = "recollect"  # the method of models that are the paper's
FILE_NAME = "model.safetensors"
_KEY = "recollect"
_EXTRACTOR = "extractor."  # before the names of its weights
TAUGHT = "taught."  # before the names of tensors that are no weights
_STATISTICS = {"running_mean", "running_var", "num_batches_tracked"}


class TrainedOn(Frozen):
    """What an evaluation must know of the training's data, to hold out the same pictures and categories."""

    split: Annotated[str, Field(pattern=r"^(\d+|\{.*\})$")] | None = None  # a number, or JSON
    skip_bad: bool = False
    key: str | None = None  # what the pictures were


Id = Annotated[int, Field(ge=1, lt=2**53)]


class KeptExample(Frozen):
    """The words for a taught picture in a model file."""

    id: Id
    added: float
    thumbnail: Annotated[int, Field(ge=0)]  # bytes of it, 0 for none


class KeptCategory(Frozen):
    """The words for a taught category in a model file; its features are among the tensors."""

    id: Id
    name: str
    examples: Annotated[tuple[KeptExample, ...], Field(min_length=1)]


class Header(Frozen):
    """The words of a model file: what the model is, where it comes from, what it was taught since."""

    format: int = FORMAT
    method: str = PAPER  # by which scores are made of features
    spec: ModelSpec
    trained_on: TrainedOn = TrainedOn()
    provenance: dict[str, Any] = Field(default_factory=dict)
    calibration: Calibration = Calibration()
    taught: tuple[KeptCategory, ...] = ()
    last_ids: tuple[Id, Id] | None = None  # of a taught category and an example; none is ever given again


def find_model(path: str | Path) -> Path:
    """Return the model file that `path` means: the file itself, or the one in a run folder."""
    path = Path(path)
    try:
        if path.is_dir():
            if not (path / FILE_NAME).is_file():
                raise ModelError(
                    f"{path} holds no {FILE_NAME}: name a finished run, or end this one with "
                    f"`recollect train --resume --out {path}`"
                )
            path = path / FILE_NAME
        if not path.is_file():
            raise ModelError(f"there is no model at {path}: name a model file or a run folder")
    except OSError as error:
        raise ModelError(f"cannot look at {path}: {error.strerror or error}") from error
    return path


def read_header(path: str | Path) -> Header:
    """Read a model file's header; no torch, no weights."""
    path = find_model(path)
    with _opened(path) as file:
        metadata = file.metadata() or {}
    return _parse_header(path, metadata)


class Summary(NamedTuple):
    """What a model file is, told without torch."""

    path: Path
    header: Header
    parameters: int  # from shapes alone; batch norm's statistics are none
    fingerprint: str  # of the model in it


def summarise(path: str | Path) -> Summary:
    """Read what a model file is, at one opening."""
    path = find_model(path)
    with _opened(path) as file:
        header = _parse_header(path, file.metadata() or {})
        weights = [name for name in file.keys() if not name.startswith(TAUGHT)]  # noqa: SIM118
        learned = [name for name in weights if name.rpartition(".")[2] not in _STATISTICS]
        parameters = sum(prod(file.get_slice(name).get_shape()) for name in learned)
        return Summary(path, header, parameters, _digest(header.spec, _tensors(path, file, _EXTRACTOR)))


def save_model(
    path: str | Path,
    model: "Model",
    provenance: dict[str, Any] | None = None,
    trained_on: TrainedOn | None = None,
    calibration: Calibration | None = None,
    method: str = PAPER,
) -> None:
    """Write the model to `path`, whole or not at all."""
    header = Header(
        method=method,
        spec=model.spec,
        trained_on=trained_on or TrainedOn(),
        provenance=provenance or {},
        calibration=calibration or Calibration(),
    )
    write_model(path, header, weights_of(model))


def write_model(path: str | Path, header: Header, tensors: Mapping[str, npt.NDArray[np.generic]]) -> None:
    """Write a model file, whole or not at all."""
    header = header.model_copy(update={"format": FORMAT})
    content = save(dict(tensors), metadata={_KEY: header.model_dump_json()})
    with replacing_file(Path(path)) as part:
        part.write_bytes(content)  # and not `save_file`, which hides a full disk in an error of its own


def weights_of(model: "Model") -> dict[str, npt.NDArray[np.generic]]:
    """Return every weight of a model by its name in a model file."""
    state = model.state_dict().items()
    return {name: tensor.detach().cpu().contiguous().numpy() for name, tensor in state}


def read_taught(path: str | Path) -> tuple[Path, Header, dict[str, npt.NDArray[np.generic]]]:
    """Return a model file's path, its header, and the tensors of its taught categories."""
    path = find_model(path)
    with _opened(path) as file:
        header = _parse_header(path, file.metadata() or {})
        tensors = _tensors(path, file, TAUGHT)
    return path, header, tensors


def load_model(path: str | Path) -> "Model":
    """Read a model, in evaluation mode."""
    import torch
    from safetensors.torch import load_file

    from recollect.model.model import Model

    path = find_model(path)
    header = read_header(path)
    try:
        with torch.device("meta"):  # shapes only: a header may ask for more memory than there is
            expected = Model(header.spec).state_dict()
    except ModelError as error:
        raise ModelError(f"{path} cannot be used: {error}") from error
    except (RuntimeError, OverflowError) as error:
        raise ModelError(f"{path} describes an impossible model: {_brief(error)}") from error
    try:
        weights = {name: tensor for name, tensor in load_file(path).items() if not name.startswith(TAUGHT)}
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} is not a model file, or it is damaged: {_brief(error)}") from error
    for name in sorted({*expected, *weights}):
        has, needs = (
            None if tensor is None else (tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
            for tensor in (weights.get(name), expected.get(name))
        )
        if has != needs:
            raise ModelError(
                f"the weights in {path} do not fit its header: '{name}' is {_described(has)} and should be "
                f"{_described(needs)}"
            )
    model = Model(header.spec)
    model.load_state_dict(weights)
    return model.eval()


def fingerprint(model: "Model") -> str:
    """Return a digest of the extractor's weights and preprocessing: what features depend on."""
    state = model.extractor.state_dict().items()
    return _digest(model.spec, {name: tensor.detach().cpu().numpy() for name, tensor in state})


def digest_of(spec: ModelSpec, weights: Mapping[str, npt.NDArray[np.generic]]) -> str:
    """Return a digest of a whole model: what taught vectors depend on."""
    return _digest_of(spec.model_dump(), weights)


def _digest(spec: ModelSpec, weights: Mapping[str, npt.NDArray[np.generic]]) -> str:
    return _digest_of([spec.extractor, spec.last_relu, spec.preprocessing.model_dump()], weights)


def _digest_of(words: object, weights: Mapping[str, npt.NDArray[np.generic]]) -> str:
    digest = hashlib.sha256(json.dumps(words).encode())
    for name, values in sorted(weights.items()):
        digest.update(name.encode())
        digest.update(values.tobytes())
    return digest.hexdigest()[:32]


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="np") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} is not a model file, or it is damaged: {_brief(error)}") from error


def _tensors(path: Path, file: Any, start: str) -> dict[str, npt.NDArray[np.generic]]:  # noqa: ANN401
    """Return the tensors whose names begin with `start`, without it."""
    names = [name for name in file.keys() if name.startswith(start)]  # noqa: SIM118
    try:
        return {name.removeprefix(start): file.get_tensor(name) for name in names}
    except (TypeError, AttributeError) as error:  # numpy has no such numbers, and no model of ours
        raise ModelError(f"the numbers in {path} are of another kind: {_brief(error)}") from error


def _parse_header(path: Path, metadata: dict[str, str]) -> Header:
    if _KEY not in metadata:
        raise ModelError(f"{path} is a safetensors file, but not one that recollect wrote")
    try:
        words = json.loads(metadata[_KEY])
        if isinstance(words, dict) and words.get("format") not in range(1, FORMAT + 1):
            raise ModelError(
                f"{path} has format {str(words.get('format'))[:20]}; this version reads formats up to "
                f"{FORMAT}: use the version that wrote it, or a newer one"
            )
        return Header.model_validate(words)
    except (ValueError, RecursionError) as error:
        first = error.errors()[0]["msg"] if isinstance(error, ValidationError) else _brief(error)
        raise ModelError(f"the header of {path} is damaged: {first}") from error


def _described(tensor: tuple[tuple[int, ...], str] | None) -> str:
    return "absent" if tensor is None else f"{tensor[1]} of shape {tensor[0]}"


def _brief(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
