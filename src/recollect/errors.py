"""Our error types: each says what was wrong, where, and what to do about it.

The command line turns any :class:`RecollectError` into one line and exit code 2. Any other exception is a bug
and shows a traceback.
"""

from collections.abc import Sequence

JOINERS = "\u200c\u200d"  # unseen, but Persian is spelled with them, and emoji are joined by them


def one_line(text: object) -> str:
    r"""Return a text with control characters escaped: a name from outside cannot break or forge a line.

    >>> print(one_line("a\nb\x1b[31m"))
    a\nb\x1b[31m
    """
    return "".join(
        letter if letter.isprintable() or letter in JOINERS else letter.encode("unicode_escape").decode()
        for letter in str(text)
    )


def brief(error: Exception) -> str:
    """Return the reason for an error in one short line."""
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(reason).split())[:300]


def counted(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> counted(1, "picture"), counted(2, "picture"), counted(2, "category")
    ('1 picture', '2 pictures', '2 categories')
    """
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"


def listed(names: Sequence[str], most: int = 5) -> str:
    """Return the first few names, and how many more there are.

    >>> listed(["okapi", "tapir", "zebra"], 2)
    'okapi, tapir and 1 more'
    """
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


class RecollectError(Exception):
    """Something you can fix: the message says in one line what is wrong, where, and what to do."""

    def __str__(self) -> str:
        return one_line(super().__str__())


class PictureError(RecollectError):
    """A picture that cannot be read or used."""


class DataError(RecollectError):
    """A data set that is missing, damaged or too small."""


class ModelError(RecollectError):
    """A model that cannot be read, built or used."""


class ExtraError(ModelError):
    """An optional dependency that is not installed; the message has the command that installs it."""


class ConfigError(RecollectError):
    """A setting that is wrong, or that contradicts the run it would resume."""


class Diverged(RecollectError):  # noqa: N818
    """A loss, a weight, a score or a feature became infinite or NaN."""


class Stopped(RecollectError):  # noqa: N818
    """The user stopped the work; the message says what was kept and how to continue."""


class StorageError(RecollectError):
    """A file that could not be written; the old file is intact."""


class StoreError(RecollectError):
    """A store that cannot be used, or a category that is not in it."""


class MissingError(StoreError):
    """A category or an example that is not, or no longer, there."""


class NameTakenError(StoreError):
    """A name that another category has already."""


class StoreFailure(StoreError):  # noqa: N818
    """A store that cannot be read or written: damaged, locked, read-only, or on a full disk."""


class StoreAway(StoreFailure):
    """A store whose server cannot be reached now; what is known of it stays known."""


class ServiceError(RecollectError):
    """A service that does not answer, or refuses the request."""


class ArgumentError(RecollectError, ValueError):
    """A wrong argument; also a `ValueError`."""


class EstimatorError(RecollectError, ValueError):
    """Data or parameters that the estimator cannot use; also a `ValueError`, as scikit-learn expects."""
