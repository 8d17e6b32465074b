"""Recollect: dynamic few-shot visual learning without forgetting (Gidaris & Komodakis, CVPR 2018)."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recollect.client import Client
    from recollect.errors import (
        ArgumentError,
        ConfigError,
        DataError,
        EstimatorError,
        ExtraError,
        MissingError,
        ModelError,
        NameTakenError,
        PictureError,
        RecollectError,
        ServiceError,
        StorageError,
        StoreError,
        StoreFailure,
    )
    from recollect.estimator import RecollectClassifier
    from recollect.recognition.recognizer import Recognizer
    from recollect.recognition.results import Category, Duplicate, Example, Prediction, Scores

__all__ = [
    "ArgumentError",
    "Category",
    "Client",
    "ConfigError",
    "DataError",
    "Duplicate",
    "EstimatorError",
    "Example",
    "ExtraError",
    "MissingError",
    "ModelError",
    "NameTakenError",
    "PictureError",
    "Prediction",
    "Recognizer",
    "RecollectClassifier",
    "RecollectError",
    "Scores",
    "ServiceError",
    "StorageError",
    "StoreError",
    "StoreFailure",
    "__version__",
]
_MODULES = {
    "Client": "client",
    "Recognizer": "recognition.recognizer",
    "RecollectClassifier": "estimator",
    **dict.fromkeys(("Category", "Duplicate", "Example", "Prediction", "Scores"), "recognition.results"),
}


def __getattr__(name: str) -> Any:  # noqa: ANN401
    """Import a public name when it is first used, so that `import recollect` costs nothing."""
    if name == "__version__":
        from importlib.metadata import version

        return version("recollect")
    if name not in __all__:
        raise AttributeError(f"module 'recollect' has no attribute {name!r}")
    return getattr(import_module(f"recollect.{_MODULES.get(name, 'errors')}"), name)


def __dir__() -> list[str]:
    return __all__
