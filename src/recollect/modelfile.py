"""model.safetensors: a model's weights, with a header that says what they are. Nothing in it can execute.

The header reads without torch; `load_model` and `save_model` bring it in.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from recollect.errors import ExtraError, ModelError, brief
from recollect.model.spec import Calibration, ModelSpec, Value, is_onnx, is_own_code
from recollect.pretrained import PUBLISHED, Tensors, extractor_weights
from recollect.system.disk import replacing_file

if TYPE_CHECKING:
    from torch import Tensor, nn

    from recollect.model.extractors import Extractor
    from recollect.model.model import Learner, Model

# 1 had no taught categories and no calibration, 2 no method and one bias only, 3 no mean feature, 4 no
# changes of base categories, 5 no learners of methods that learn to learn, and 6 no shifted pictures.
FORMAT = 7
PAPER = "recollect"  # the method of the paper
FILE_NAME = "model.safetensors"
EXPORT_NAME = "export.json"  # in a folder that was exported
_KEY = "recollect"
_EXTRACTOR = "extractor."  # prefix of its weights
TAUGHT = "taught."  # prefix of tensors that hold taught categories
_CENTRE = "centre"
_ONNX_FILE = "file"  # an extractor's weights, if it is one
_STATISTICS = {"running_mean", "running_var", "num_batches_tracked", "moments", _CENTRE, _ONNX_FILE}
_DRAWN = {"glyphs", "omniglot"}  # data sets of characters
READY = ("imagenet", "glyphs")  # models that come with the package


class TrainedOn(Value):
    """What the training used, so that an evaluation holds out the same pictures and categories."""

    split: Annotated[str, Field(pattern=r"^(\d+|\{.*\})$")] | None = None  # a number, or JSON
    skip_bad: bool = False
    key: str | None = None  # what the pictures were


Id = Annotated[int, Field(ge=1, lt=2**53)]
LastId = Annotated[int, Field(ge=0, lt=2**52)]  # leaves room for more than anybody teaches


class KeptExample(Value):
    """A taught picture in the header of a model file."""

    id: Id
    added: float
    thumbnail: Annotated[int, Field(ge=0)]  # bytes of it, 0 for none


class KeptCategory(Value):
    """A taught category in the header of a model file; its features are among the tensors."""

    id: Id
    name: str
    examples: Annotated[tuple[KeptExample, ...], Field(min_length=1)]


class KeptBaseChange(Value):
    """A base category that is shown under another name, or hidden."""

    shown: str | None = None
    hidden: bool = False


class Header(Value):
    """The header of a model file: what the model is, where it comes from, what it was taught since."""

    format: int = FORMAT
    method: str = PAPER  # how features become scores
    spec: ModelSpec
    trained_on: TrainedOn = TrainedOn()
    provenance: dict[str, Any] = Field(default_factory=dict)
    calibration: Calibration = Calibration()
    taught: tuple[KeptCategory, ...] = ()
    last_ids: tuple[LastId, LastId] | None = None  # of a taught category and an example
    base_changes: dict[str, KeptBaseChange] = Field(default_factory=dict)  # by names in `spec`


def is_drawn(header: Header) -> bool:
    """Say whether a model was trained on characters, which can be drawn."""
    config = header.provenance.get("config")
    data = str(config.get("data")) if isinstance(config, dict) else ""
    return data.partition(":")[0] in _DRAWN


def find_model(path: str | Path) -> Path:
    """Return the model file that `path` means: itself, the one in a run folder, or one of the package's."""
    name, path = str(path), Path(path)
    try:
        if name in READY and not path.exists():
            return _ready(name)
        if path.is_dir():
            if not (path / FILE_NAME).is_file():
                if name in READY:
                    raise ModelError(
                        f"the folder {name} here hides the model of that name that comes with recollect: "
                        "rename it, or work elsewhere"
                    )
                if (path / EXPORT_NAME).exists():
                    raise ModelError(
                        f"{path} lacks {FILE_NAME}: copy the whole folder, or export the model again"
                    )
                raise ModelError(
                    f"{path} holds no {FILE_NAME}: name a finished run, or finish this one with "
                    f"`recollect train --resume --out {path}`"
                )
            path = path / FILE_NAME
        if not path.is_file():
            raise ModelError(
                f"there is no model at {path}: name a model file, a run folder, or a model that comes with "
                f"recollect ({', '.join(READY)})"
            )
    except OSError as error:
        raise ModelError(f"cannot look at {path}: {error.strerror or error}") from error
    return path


def is_ready(path: str | Path) -> bool:
    """Say whether `path` means a model that comes with the package."""
    return find_model(path).resolve().parent == _ready("").resolve().parent


def _ready(name: str) -> Path:
    return Path(__file__).parent / "models" / f"{name}.safetensors"


def read_header(path: str | Path) -> Header:
    """Read a model file's header; no torch, no weights."""
    with _opened(path) as (_, header, _):
        return header


class Summary(NamedTuple):
    """What a model file is, read without torch."""

    path: Path
    header: Header
    parameters: int | None  # learned ones, counted from shapes; batch norm statistics are not
    fingerprint: str | None  # of the model in it


def summarise(path: str | Path) -> Summary:
    """Read what a model file is, opening it once.

    Where the extractor's weights would come from a package that is not installed, they are not counted, and
    there is no fingerprint.
    """
    with _opened(path) as (found, header, file):
        names = [name for name in file.keys() if not name.startswith(TAUGHT)]  # noqa: SIM118
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in names}
        weights = _tensors(found, file, _EXTRACTOR)
        centre = _tensors(found, file, _CENTRE).get("")
    try:
        missing = _weights_from_the_extra(header.spec, shapes)
    except ExtraError:
        return Summary(found, header, None, None)
    shapes |= {name: values.shape for name, values in missing.items()}
    learned = [shape for name, shape in shapes.items() if name.rpartition(".")[2] not in _STATISTICS]
    weights |= {name.removeprefix(_EXTRACTOR): values for name, values in missing.items()}
    return Summary(found, header, sum(map(prod, learned)), _digest(header.spec, weights, centre))


def _weights_from_the_extra(spec: ModelSpec, names: Iterable[str]) -> Tensors:
    """Return an extractor's weights by their names in a model file that has none of them."""
    if spec.extractor not in PUBLISHED or any(name.startswith(_EXTRACTOR) for name in names):
        return {}
    return {f"{_EXTRACTOR}{name}": values for name, values in extractor_weights(spec.extractor).items()}


def stamp() -> dict[str, str]:
    """Return when and with what a model is written, for its provenance."""
    return {"written": datetime.now(UTC).isoformat(timespec="seconds"), "recollect": version("recollect")}


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


def require_replaceable(path: str | Path) -> None:
    """Refuse a path at which there is something other than a model file."""
    if os.path.lexists(path):
        try:
            read_header(path)
        except ModelError as error:
            raise ModelError(f"{path} exists and is not a model: choose another name") from error


def write_model(path: str | Path, header: Header, tensors: Tensors) -> None:
    """Write a model file, whole or not at all."""
    header = header.model_copy(update={"format": FORMAT})
    # In ASCII: a path in the provenance may hold bytes that are not valid text.
    content = save(
        dict(tensors), metadata={_KEY: json.dumps(header.model_dump(mode="json"), separators=(",", ":"))}
    )
    with replacing_file(Path(path)) as part:
        part.write_bytes(content)  # and not `save_file`, which hides a full disk in an error of its own


def weights_of(model: "nn.Module") -> Tensors:
    """Return every weight of a model, or of a part of one, by its name."""
    state = model.state_dict().items()
    return {name: tensor.detach().cpu().contiguous().numpy() for name, tensor in state}


def read_taught(path: str | Path) -> tuple[Path, Header, Tensors]:
    """Return a model file's path, its header, and the tensors of its taught categories."""
    with _opened(path) as (found, header, file):
        return found, header, _tensors(found, file, TAUGHT)


def read_weights(path: str | Path, *, extractor: bool = True) -> tuple[Header, Tensors]:
    """Return a model file's header and weights by name, perhaps without the extractor's; needs no torch."""
    with _opened(path) as (found, header, file):
        left_out = (TAUGHT,) if extractor else (TAUGHT, _EXTRACTOR)
        weights = _tensors(found, file, "", left_out)
    for name, values in weights.items():
        if not np.isfinite(values).all():
            raise ModelError(f"{found} cannot be used: '{name}' holds numbers that are not finite")
    return header, weights


def load_model(
    path: str | Path,
    extractor: str | None = None,
    learner: "Learner | None" = None,
) -> "Model":
    """Read a model, in evaluation mode.

    No file causes an import: a model whose extractor is a caller's own code loads only where the caller
    names it again, as `extractor`. `learner` makes what a method adds to a model.
    """
    import torch
    from safetensors.torch import load_file

    from recollect.model.model import Model

    path = find_model(path)
    header = read_header(path)
    _require_named(path, header, extractor, learner)
    own = _given_extractor(path, header.spec, extractor)
    try:
        with torch.device("meta"):  # shapes only: a header may ask for more memory than there is
            expected = Model(header.spec, own, learner).state_dict()
    except ModelError as error:
        raise ModelError(f"{path} cannot be used: {error}") from error
    except (RuntimeError, OverflowError) as error:
        raise ModelError(f"{path} describes an impossible model: {brief(error)}") from error
    try:
        weights = {name: tensor for name, tensor in load_file(path).items() if not name.startswith(TAUGHT)}
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} is not a model file, or it is damaged: {brief(error)}") from error
    weights |= {
        name: torch.from_numpy(values)
        for name, values in _weights_from_the_extra(header.spec, weights).items()
    }
    for name, tensor in weights.items():
        if tensor.dtype == torch.float16 and name in expected:
            weights[name] = tensor.to(expected[name].dtype)
    for name in sorted({*expected, *weights}):
        has, needs = (_described(tensors.get(name)) for tensors in (weights, expected))
        if has != needs:
            raise ModelError(
                f"the weights in {path} do not fit its header: '{name}' is {has} and should be {needs}"
            )
        if not weights[name].isfinite().all():
            raise ModelError(
                f"{path} cannot be used: '{name}' holds numbers that are not finite. It is damaged, or its "
                "training diverged: train again with a lower learning rate"
            )
    model = Model(header.spec, own, learner)
    model.load_state_dict(weights)
    return model.eval()


def _given_extractor(path: Path, spec: ModelSpec, extractor: str | None) -> "Extractor | None":
    """Return an extractor that no name stands for: the caller's code, or the ONNX file in a model file."""
    from recollect.model.extractors.onnx import OnnxExtractor
    from recollect.model.extractors.own import own_extractor

    size = spec.preprocessing.size
    if is_onnx(spec.extractor):
        return OnnxExtractor(_onnx_file(path), spec.extractor, size)
    return own_extractor(extractor, size) if is_own_code(extractor) else None


def _onnx_file(path: Path) -> bytes:
    """Return the ONNX file in a model file."""
    with _opened(path) as (found, _, file):
        content = _tensors(found, file, f"{_EXTRACTOR}{_ONNX_FILE}").get("")
    if content is None or content.dtype != np.uint8:
        raise ModelError(f"{path} lacks the ONNX file of its extractor: it is damaged")
    return content.tobytes()


def _require_named(path: Path, header: Header, extractor: str | None, learner: "Learner | None") -> None:
    """Refuse a caller who names another extractor, or no learner where the model has one."""
    if extractor not in {None, header.spec.extractor}:
        raise ModelError(
            f"the extractor of {path} is '{header.spec.extractor}' and not '{extractor}': name that, or none"
        )
    if header.spec.learner is not None and learner is None:
        raise ModelError(
            f"{path} is a model of the method {header.method}, which has no features of its own: it is there "
            "for `recollect evaluate`"
        )


def fingerprint(model: "Model") -> str:
    """Return a digest of the extractor's weights, preprocessing and centre: what features depend on."""
    centre = model.centre.cpu().numpy() if model.spec.centred else None
    return _digest(model.spec, weights_of(model.extractor), centre)


def digest_of(spec: ModelSpec, weights: Tensors) -> str:
    """Return a digest of a whole model: what taught vectors depend on."""
    # Newer fields are left out at their defaults, so that stores of older models still match.
    newer = ("centred", "mirrored", "shifted", "shot_aware", "learner")
    unused = {name for name in newer if not getattr(spec, name)}
    return _digest_of(spec.model_dump(exclude=unused), weights)


def _digest(spec: ModelSpec, weights: Tensors, centre: npt.NDArray[np.generic] | None = None) -> str:
    words = [spec.extractor, spec.last_relu, spec.preprocessing.model_dump()]
    words += ["mirrored"] if spec.mirrored else []
    words += [f"shifted {spec.shifted}"] if spec.shifted else []
    return _digest_of(words, weights if centre is None else {**weights, "": centre.astype(np.float32)})


def _digest_of(words: object, weights: Tensors) -> str:
    digest = hashlib.sha256(json.dumps(words).encode())
    for name, values in sorted(weights.items()):
        digest.update(name.encode())
        digest.update(values.tobytes())
    return digest.hexdigest()[:32]


@contextmanager
def _opened(model: str | Path) -> Iterator[tuple[Path, Header, Any]]:
    """Give the path of a model file, its header, and the file."""
    path = find_model(model)
    try:
        with safe_open(path, framework="np") as file:
            yield path, _parse_header(path, file.metadata() or {}), file
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} is not a model file, or it is damaged: {brief(error)}") from error


def _tensors(path: Path, file: Any, start: str, left_out: tuple[str, ...] = ()) -> Tensors:  # noqa: ANN401
    """Return the tensors whose names begin with `start`, without it, but not those that are left out."""
    names = [name for name in file.keys() if name.startswith(start) and not name.startswith(left_out)]  # noqa: SIM118
    try:
        found = {name.removeprefix(start): file.get_tensor(name) for name in names}
    except (TypeError, AttributeError) as error:  # a number type that numpy lacks, and that we never write
        raise ModelError(f"{path} holds numbers of an unknown type: {brief(error)}") from error
    strange = {str(tensor.dtype) for tensor in found.values() if tensor.dtype.kind not in "biuf"}
    if strange:  # one that numpy got from another library
        raise ModelError(f"{path} holds numbers of an unknown type: {min(strange)}")
    return found


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
        first = error.errors()[0]["msg"] if isinstance(error, ValidationError) else brief(error)
        raise ModelError(f"the header of {path} is damaged: {first}") from error


def _described(tensor: "Tensor | None") -> str:
    if tensor is None:
        return "absent"
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"
