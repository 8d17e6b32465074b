"""Recollect: dynamic few-shot visual learning without forgetting (Gidaris & Komodakis, CVPR 2018)."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recollect.estimator import RecollectClassifier
    from recollect.recognition.recognizer import Prediction, Recognizer

__all__ = ["Prediction", "Recognizer", "RecollectClassifier", "__version__"]


def __getattr__(name: str) -> Any:  # noqa: ANN401
    """Import a public name when it is first used, so that `import recollect` costs nothing."""
    if name == "__version__":
        from importlib.metadata import version

        return version("recollect")
    if name == "RecollectClassifier":
        from recollect.estimator import RecollectClassifier

        return RecollectClassifier
    if name in __all__:
        from recollect.recognition import recognizer

        return getattr(recognizer, name)
    raise AttributeError(f"module 'recollect' has no attribute {name!r}")
