"""ONNX graphs in onnxruntime, on the CPU. A graph is data: nothing in it is loaded or run as a program."""

import ctypes
import os
import re
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

from recollect.errors import ExtraError, ModelError, brief
from recollect.system.forks import Lock, undisturbed
from recollect.system.machine import usual_threads

# Since 1.29, onnxruntime would report which models are used to its makers, and keep an id in the user's home.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
Arrays = list[npt.NDArray[Any]]
REMEDY = "pip install 'recollect[onnx]'"
_ONLY_FATAL = 4  # of what onnxruntime would write to standard error; the rest is in the errors it raises
_FAULTS = (  # what onnxruntime says, and what that means
    (r"protobuf|No graph was found", "it is not an ONNX file, or it is damaged"),
    (
        r"[Ee]xternal data|model_path must not be empty",
        "its weights lie in another file: save it as one file",
    ),
    (
        r"([\w.:]+)\(-?\d+\) is not a registered|implementation for ([\w.]+)\(",
        "onnxruntime does not have its operator {}",
    ),
)


def have_onnxruntime() -> bool:
    """Say whether onnxruntime is installed."""
    return find_spec("onnxruntime") is not None


class Session:
    """A graph that is ready to run, from any thread; it can be pickled, and used after a fork."""

    def __init__(self, content: bytes, name: str) -> None:
        """Open a graph; `name` is what errors call it."""
        self.content, self.name = content, name
        self._lock, self._process = Lock(), os.getpid()
        self._opened = self._open(usual_threads() or 0)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what belongs to this process."""
        return {"content": self.content, "name": self.name}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    @property
    def inputs(self) -> list[Any]:
        """Return name, type and shape of each input."""
        found: list[Any] = self._opened.get_inputs()
        return found

    @property
    def outputs(self) -> list[Any]:
        """Return name, type and shape of each output."""
        found: list[Any] = self._opened.get_outputs()
        return found

    @property
    def metadata(self) -> dict[str, str]:
        """Return what the file says about itself."""
        found: dict[str, str] = self._opened.get_modelmeta().custom_metadata_map
        return found

    @undisturbed()
    def run(self, outputs: list[str], /, **given: npt.NDArray[Any]) -> Arrays:
        """Return some outputs for the given inputs."""
        if os.getpid() != self._process:
            with self._lock:
                if os.getpid() != self._process:
                    # A fork leaves onnxruntime's other threads behind, and would wait for them for ever; so
                    # would the old session's end, which therefore never comes.
                    ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._opened))
                    self._opened, self._process = self._open(1), os.getpid()
        try:
            found: Arrays = self._opened.run(outputs, given)
        except Exception as error:
            raise ModelError(f"{self.name} cannot be run: {brief(error)}") from error
        return [np.asarray(values) for values in found]

    def _open(self, threads: int) -> Any:  # noqa: ANN401
        if not have_onnxruntime():
            raise ExtraError(f"{self.name} needs onnxruntime: {REMEDY}")
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads  # 0 for all cores
        options.inter_op_num_threads = 1
        options.log_severity_level = _ONLY_FATAL
        options.add_session_config_entry("session.load_model_format", "ONNX")
        # Weights in other files would be looked for in the working folder: below this, there are none.
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", os.devnull)
        try:
            return onnxruntime.InferenceSession(self.content, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise ModelError(f"{self.name} cannot be used: {_fault(str(error)) or brief(error)}") from error


def _fault(message: str) -> str | None:
    for pattern, meaning in _FAULTS:
        if found := re.search(pattern, message):
            return meaning.format(next((word for word in found.groups() if word), ""))
    return None
