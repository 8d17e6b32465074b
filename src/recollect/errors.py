"""Our error types: each says what was wrong, where, and what to do about it.

The command line turns any :class:`RecollectError` into one line and exit code 2; every other
exception is a bug and is shown as it is.
"""

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


class RecollectError(Exception):
    """Something the caller can mend: the message says what, where and how, in one line."""

    def __str__(self) -> str:
        return one_line(super().__str__())


class PictureError(RecollectError):
    """A picture that cannot be read or used."""


class DataError(RecollectError):
    """A data set that is missing, damaged, or too small for what is asked of it."""


class ModelError(RecollectError):
    """A model file that cannot be used, or an impossible model."""


class ExtraError(ModelError):
    """A part of the package that is not installed; the message has the command that installs it."""


class ConfigError(RecollectError):
    """A configuration that is wrong or contradicts an earlier one."""


class Diverged(RecollectError):  # noqa: N818
    """A training's loss is no number any more."""


class Stopped(RecollectError):  # noqa: N818
    """The work was asked to stop; the message says what is kept and how to go on."""


class StorageError(RecollectError):
    """A file that could not be written; whatever stood there before is intact."""


class StoreError(RecollectError):
    """A store of taught categories that cannot be used, or a category that is not in it."""


class ArgumentError(RecollectError, ValueError):
    """An argument that no call takes; a ValueError too."""


class EstimatorError(RecollectError, ValueError):
    """What an estimator cannot use; a ValueError too, as scikit-learn's conventions ask."""
