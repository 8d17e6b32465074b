"""Limits for files from outside: what claims to be larger is refused before it fills memory."""

from recollect.errors import DataError

MAX_DEPTH = 6  # folders above a file; deeper ones are ignored
MAX_ENTRIES = 2_000_000  # of an archive; all of ImageNet has 1.4 million
MAX_FILE_BYTES = 256 << 20  # of a file that is read whole
MAX_HEADER_BYTES = 1 << 20  # of a long name or the like in a tar archive
# What is compressed may unpack to this much in any case, and to so many times its own size.
ANY_BYTES = 64 << 20
MAX_RATIO = 100


def most_bytes(packed: int) -> int:
    """Return the most that so many compressed bytes may unpack to."""
    return max(ANY_BYTES, MAX_RATIO * packed)


def too_much(packed: int) -> DataError:
    """Return the error for more than `most_bytes`."""
    most = most_bytes(packed) >> 20
    return DataError(f"it would unpack from {packed} bytes to more than {most} MiB: refused")


def require_few(entries: int) -> None:
    """Refuse an archive of more entries than any data set has."""
    if entries > MAX_ENTRIES:
        raise DataError(f"it has more than {MAX_ENTRIES} entries: refused, pack fewer files")
