"""A run's folder: configuration, metrics as JSON lines, checkpoints, and in the end `model.safetensors`."""

import json
import shutil
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from recollect.data.catalogue import kind_of
from recollect.errors import ConfigError
from recollect.model.spec import ModelSpec, is_own_code
from recollect.modelfile import FILE_NAME, TrainedOn, read_header
from recollect.system.disk import clear_write_errors, read_kept, remove_file, replacing_file, write_text
from recollect.training.config import NEWER_SECTIONS, Config, differences

STAGE_ONE_MODEL = "stage1.safetensors"
TEACHER = "teacher.safetensors"


class RunFolder:
    """The files of one training."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.model = path / FILE_NAME
        self.stage_one_model = path / STAGE_ONE_MODEL
        self.teacher = path / TEACHER
        self.curves = path / "curves.png"
        self._config = path / "config.json"
        self._metrics = path / "metrics.jsonl"

    def require_new(self) -> None:
        """Refuse a folder that holds a run already."""
        try:
            taken = any(file.exists() for file in self._files())
        except OSError as error:
            raise ConfigError(f"--out {self.path} cannot be used: {error.strerror or error}") from error
        if taken:
            raise ConfigError(
                f"{self.path} already holds a run: continue it with --resume, or choose another --out"
            )

    def begun(self) -> bool:
        """Return whether the folder holds a run, finished or not."""
        return self._config.exists()

    def begun_stage_one(self) -> bool:
        """Return whether stage 1 has left anything to go on from."""
        return self.checkpoint(1).exists() or self.stage_one_model.exists()

    def _files(self) -> tuple[Path, ...]:
        checkpoints = map(self.checkpoint, (1, 2))
        models = self.model, self.stage_one_model, self.teacher
        return (self._config, self._metrics, *models, self.curves, *checkpoints)

    def finished(self, config: Config) -> bool:
        """Return whether the folder holds a finished run with this configuration."""
        if not self.begun() or not self.model.exists() or differences(self._read()[0], config):
            return False
        return bool(read_header(self.model).provenance.get("finished"))

    def restart(self, config: Config) -> None:
        """Start again where the same recipe ran before, or resume it if it did not finish; refuse others."""
        if self.begun():
            before, _ = self._read()
            if (before.data, before.preset) != (config.data, config.preset):
                raise ConfigError(f"{self.path} holds another run: choose another --out")
            if not differences(before, config) and not self.finished(config):
                return
            for file in self._files():
                remove_file(file)
        self.require_new()
        self.keep(config)

    def require_stage_one(self, spec: ModelSpec, trained_on: TrainedOn, *, finetune: bool) -> None:
        """Refuse this folder's stage-1 model unless it is of this kind and learned from these pictures.

        How the finished model looks at pictures does not matter, unless its features were centred: a model
        that is trained from the start looks at each once.
        """
        header = read_header(self.stage_one_model)
        names = ModelSpec.model_fields.keys() - (set() if spec.centred else {"mirrored", "shifted"})
        different = [name for name in sorted(names) if getattr(header.spec, name) != getattr(spec, name)]
        if header.trained_on != trained_on:
            different.append("data or split")
        config = header.provenance.get("config")
        if (isinstance(config, dict) and config.get("finetune", False)) != finetune:
            different.append("--finetune")
        if different:
            raise ConfigError(
                f"the stage 1 of {self.path} has another {' and '.join(different)}: train it again"
            )

    def adopt_stage_one(self, other: "RunFolder") -> None:
        """Begin with the stage-1 model of another run."""
        with replacing_file(self.stage_one_model) as part:
            shutil.copyfile(other.stage_one_model, part)

    def adopt_teacher(self, model: Path) -> None:
        """Keep a copy of the model to be distilled: a resumed run learns from the same."""
        with replacing_file(self.teacher) as part:
            shutil.copyfile(model, part)

    def keep(self, config: Config) -> None:
        """Write the configuration."""
        write_text(self._config, config.model_dump_json(indent=1) + "\n")

    def config(self, extractor: str | None = None) -> Config:
        """Return the configuration of the run; one that says more or less than ours is refused.

        No file causes an import: an extractor that is a caller's own code must be named again.
        """
        config, words = self._read()
        if is_own_code(config.extractor) and config.extractor != extractor:
            raise ConfigError(
                f"the extractor of {self.path} is your own code, never loaded from a file: name it again, "
                f"with --extractor {config.extractor}"
            )
        said = config.model_dump(mode="json")
        newer = {name: said[name] for name in NEWER_SECTIONS if name not in words}
        if {**words, **newer} != said:  # else today's defaults would fill the gaps
            raise self._foreign()
        return config

    def _read(self) -> tuple[Config, Any]:
        """Return the configuration as far as it is understood, and what the file says."""
        try:
            text = read_kept(self._config)
            return Config.model_validate_json(text), json.loads(text)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ConfigError(
                f"{self.path} holds no run to resume: leave --resume out to start one"
            ) from error
        except OSError as error:
            raise ConfigError(f"cannot read {self._config}: {error.strerror or error}") from error
        except (ValueError, RecursionError) as error:
            raise self._foreign() from error

    def _foreign(self) -> ConfigError:
        return ConfigError(
            f"{self._config} was written by another version of recollect or altered: start a new run"
        )

    def require_same(self, config: Config) -> Config:
        """Refuse to resume with a configuration other than the run's own, which is returned."""
        begun = self.config(config.extractor)
        changed = differences(begun, config)
        if changed:
            raise ConfigError(
                f"{self.path} was begun with another configuration ({'; '.join(changed)}): "
                "resume with the same options, or choose another --out, as where a preset has changed since"
            )
        return begun

    def require_pictures(self, data: str, key: str | None = None) -> None:
        """Refuse another data set than the run's and, where the `key` of its pictures is given, others."""
        begun, _ = self._read()
        if kind_of(begun.data) == kind_of(data) and key in {None, begun.data_key}:
            return
        if begun.data == data:
            raise ConfigError(
                f"the pictures of {data} have changed since {self.path} was begun: start a new run"
            )
        raise ConfigError(
            f"{self.path} learns from the pictures of {begun.data}, and those of {data} are others: "
            "choose another --out"
        )

    def checkpoint(self, stage: int) -> Path:
        """Return where the checkpoint of a stage in progress lies."""
        return self.path / f"stage{stage}.checkpoint.safetensors"

    def log(self, **values: Any) -> None:  # noqa: ANN401
        """Append a line to the metrics."""
        with clear_write_errors(self._metrics), self._metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """Return the lines of the metrics; a last line that a crash cut short is passed over."""
        if not self._metrics.exists():
            return []
        try:
            *whole, _cut_short = read_kept(self._metrics).split("\n")
        except OSError as error:
            raise ConfigError(f"cannot read {self._metrics}: {error.strerror or error}") from error
        except ValueError as error:
            raise ConfigError(f"{self._metrics} is damaged: delete it, and the run goes on") from error
        lines = []
        for number, text in enumerate(whole, 1):
            try:
                lines.append(_Line.model_validate_json(text).model_dump(exclude_unset=True))
            except ValidationError as error:
                raise ConfigError(
                    f"line {number} of {self._metrics} is damaged: delete that line, and the run goes on"
                ) from error
        return lines

    def validation(self, *stages: int) -> dict[str, float]:
        """Return the validation figures of the model last selected in one of the stages, if any was."""
        selected = [line for line in self.metrics() if line.get("selected") and line["stage"] in stages][-1:]
        return {name: line[name] for line in selected for name in ("novel", "base", "both") if name in line}

    def forget_after(self, stage: int, step: int) -> None:
        """Drop the metrics of steps that a resumed run will repeat."""
        kept = [line for line in self.metrics() if (line["stage"], line["step"]) <= (stage, step)]
        write_text(self._metrics, "".join(json.dumps(line) + "\n" for line in kept))


class _Line(BaseModel):
    """A line of the metrics: what a stage logged, or how its model was judged."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True)

    stage: Annotated[int, Field(ge=1, le=2)]
    step: Annotated[int, Field(ge=1, le=2**31)]
    loss: float = 0
    accuracy: float = 0
    rate: float = 0
    seconds: float = 0
    novel: float = 0
    base: float = 0
    both: float = 0
    ausuc: float = 0
    selected: bool = False
    by: str = ""
