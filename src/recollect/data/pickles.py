"""Pickles of published data sets, read without running anything that they ask for."""

import math
import pickle
import re
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO, ClassVar

import numpy as np

from recollect.errors import DataError, RecollectError

LARGE = 1 << 20
MAX_DIMENSIONS = 16
MAX_BITS = 64
MAX_COPIES = 4  # of what was read; an array over bytes that came as text is the second one
KEYS = (str, bytes, int, float, bool, type(None))
Array = np.ndarray[Any, Any]


def read_pickle(stream: BinaryIO, place: str) -> object:
    """Return the dicts, lists, tuples, words, numbers and arrays of a pickle, of Python 2 too.

    Python 2's words come as bytes. Arrays cannot be written to. A pickle that asks for anything else, or
    is damaged, is a `DataError` that names `place`.
    """
    try:
        return _plain(_Reader(_Source(stream)).load(), {})
    except RecollectError:
        raise
    except _Refused as error:
        raise DataError(
            f"{place} asks for {error}, which no data set needs: refused, nothing was run"
        ) from error
    # Damage shows as nearly any exception, RecursionError and MemoryError among them.
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(f"{place} is damaged, or no pickle of a data set: {reason}") from error


def read_record(stream: BinaryIO, place: str) -> dict[str, object]:
    """Read a pickle that must be a dict, and return it with words as its keys."""
    value = read_pickle(stream, place)
    if not isinstance(value, dict):
        raise DataError(f"{place} holds a {type(value).__name__} where a dict is expected")
    record = {as_text(key): entry for key, entry in value.items()}
    if len(record) < len(value):
        raise DataError(f"{place} has an entry twice, named by text and by bytes: refused")
    return record


def as_text(value: object) -> str:
    """Return a word of a pickle, of Python 2 too, as text.

    >>> as_text(b"apple"), as_text("apple"), as_text(7)
    ('apple', 'apple', '7')
    """
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if not isinstance(value, str | int | float | None):  # a list may stand for more than memory holds
        raise DataError(f"a word is expected where a {type(value).__name__} stands")
    return str(value)


class _Refused(Exception):  # noqa: N818
    """Something that the pickle asks for and does not get."""


class _Source:
    """The file as the unpickler sees it: memory grows with what is read, not with what is promised."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.count = 0

    def readline(self) -> bytes:
        line = self._stream.readline()
        self.count += len(line)
        return line

    def read(self, count: int) -> bytes | memoryview:
        self.count += count
        part = self._stream.read(min(count, LARGE))
        if count <= LARGE:
            return part
        if len(part) == LARGE:
            content = np.empty(count, np.uint8)  # takes up memory only as it is filled
            filled = 0
            while part:
                content[filled : filled + len(part)] = np.frombuffer(part, np.uint8)
                filled += len(part)
                part = self._stream.read(min(LARGE, count - filled))
            if filled == count:
                content.setflags(write=False)
                return content.data
        raise EOFError("it is cut short")


class _Type:
    """What a pickle says of an array's type: numbers, and words of fixed size."""

    def __init__(self, code: object, align: object = None, copy: object = None) -> None:  # noqa: ARG002
        text = as_text(code) if isinstance(code, str | bytes) else ""
        if not re.fullmatch(r"[<>|=]?(b1|[iu][1248]|f[248]|[SU][1-9]\d{0,5})", text, re.ASCII):
            raise _Refused(f"an array of type {text[:40]!r}")
        self.numpy = np.dtype(text)

    def build(self, version: object, order: object, *more: object) -> None:  # noqa: ARG002
        """Take the byte order; there must be no fields."""
        told = isinstance(order, str | bytes) and order in {*"<>|=", b"<", b">", b"|", b"="}
        if not told or any(part is not None for part in more[:3]):
            raise _Refused("an array with fields, or of unknown byte order")
        self.numpy = self.numpy.newbyteorder(as_text(order))  # type: ignore[arg-type]


class _Array:
    """An array whose content follows."""

    value: Array | None = None

    def build(self, version: object, shape: object, kind: object, fortran: object, content: object) -> None:  # noqa: ARG002
        """Take shape, type, order and content."""
        self.value = _array(content, kind, shape, "F" if fortran is True or fortran == 1 else "C")


def _array(content: object, kind: object, shape: object, order: object = "C") -> Array:
    """Return an array over bytes that are exactly as many as its shape says."""
    if not (isinstance(content, bytes | memoryview) and isinstance(kind, _Type) and isinstance(shape, tuple)):
        raise pickle.UnpicklingError("an array is wrong")
    if len(shape) > MAX_DIMENSIONS or not all(type(side) is int and side >= 0 for side in shape):
        raise pickle.UnpicklingError("an array's shape is wrong")
    if math.prod(shape) * kind.numpy.itemsize != len(content):
        raise pickle.UnpicklingError(f"an array has {len(content)} bytes, not as many as its shape says")
    array: Array = np.ndarray(shape, kind.numpy, content, order="F" if order == "F" else "C")
    if kind.numpy.kind == "b":
        array = array.view(np.uint8) != 0
        array.setflags(write=False)
    if kind.numpy.kind == "U":
        "".join(array.ravel().tolist()).encode()  # raises on what is no text
    return array


def _reconstruct(kind: object, shape: object, code: object) -> _Array:  # noqa: ARG001
    return _Array()


def _scalar(kind: object, content: object) -> object:
    return _array(content, kind, ())[()]


def _encode(text: str, encoding: str) -> bytes:
    """Return bytes that Python 3 wrote as text, so that Python 2 could read them."""
    if encoding != "latin1":
        raise pickle.UnpicklingError("bytes are wrong")
    return text.encode("latin1")


def _no_bytes() -> bytes:
    return b""


KNOWN: dict[tuple[str, str], Callable[..., object]] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy._core.multiarray", "scalar"): _scalar,
    ("numpy.core.numeric", "_frombuffer"): _array,
    ("numpy._core.numeric", "_frombuffer"): _array,
    ("_codecs", "encode"): _encode,
    ("__builtin__", "bytes"): _no_bytes,
    ("builtins", "bytes"): _no_bytes,
}

_Python = pickle._Unpickler  # noqa: SLF001 -- the one in C claims memory by numbers that stand in the file
_LOADERS: dict[int, Callable[[Any], None]] = _Python.dispatch


class _Reader(_Python):
    """An unpickler that knows a few names only, and never touches an object but those of this module."""

    stack: list[Any]
    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {**_LOADERS}

    def __init__(self, source: _Source) -> None:
        super().__init__(source, encoding="bytes")  # type: ignore[arg-type]
        self._source = source
        self._made = 0

    def find_class(self, module: str, name: str) -> Callable[..., object]:
        known = KNOWN.get((module, name))
        if known is None:
            raise _Refused(repr(f"{module}.{name}")[:100])
        return known

    def persistent_load(self, pid: object) -> object:  # noqa: ARG002
        raise _Refused("an object outside of it")

    def get_extension(self, code: int) -> None:
        raise _Refused(f"extension {code}")

    def _call(self) -> None:
        _LOADERS[pickle.REDUCE[0]](self)
        self._count(self.stack[-1])

    def _instance(self) -> None:
        _LOADERS[pickle.INST[0]](self)
        self._count(self.stack[-1])

    def _count(self, made: object) -> None:
        """Refuse a few bytes that are asked for again and again, to fill memory with copies."""
        self._made += len(made) if isinstance(made, bytes) else getattr(made, "nbytes", 0)
        if self._made > MAX_COPIES * self._source.count:
            raise pickle.UnpicklingError("it unpacks to more than it is")

    def _build(self) -> None:
        state = self.stack.pop()
        if not (isinstance(self.stack[-1], _Type | _Array) and isinstance(state, tuple)):
            raise _Refused(f"a change of a {type(self.stack[-1]).__name__}")
        self.stack[-1].build(*state)
        self._count(getattr(self.stack[-1], "value", None))

    def _set_item(self) -> None:
        _check_keys(self.stack[-2:-1])
        _LOADERS[pickle.SETITEM[0]](self)

    def _set_items(self) -> None:
        _check_keys(self.stack[::2])
        _LOADERS[pickle.SETITEMS[0]](self)

    def _dict(self) -> None:
        _check_keys(self.stack[::2])
        _LOADERS[pickle.DICT[0]](self)

    dispatch[pickle.REDUCE[0]] = _call
    dispatch[pickle.INST[0]] = _instance
    dispatch[pickle.BUILD[0]] = _build
    dispatch[pickle.SETITEM[0]] = _set_item
    dispatch[pickle.SETITEMS[0]] = _set_items
    dispatch[pickle.DICT[0]] = _dict
    dispatch[pickle.BYTEARRAY8[0]] = _LOADERS[pickle.BINBYTES8[0]]
    # Sets hash what they are given, and the hash of nested tuples can take for ever.
    for unused in (
        *(pickle.OBJ, pickle.NEWOBJ, pickle.NEWOBJ_EX),
        *(pickle.EMPTY_SET, pickle.ADDITEMS, pickle.FROZENSET),
    ):
        del dispatch[ord(unused)]


def _check_keys(keys: Sequence[object]) -> None:
    """Refuse keys such as tuples of tuples, whose hash can take for ever."""
    if not all(isinstance(key, KEYS) for key in keys):
        raise _Refused("a dict with keys that are no words or numbers")
    for key in keys:
        _check_number(key)


def _check_number(value: object) -> None:
    """Refuse numbers that no data set has: very long ones are slow to print, and can all have one hash."""
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise pickle.UnpicklingError(f"a number has {value.bit_length()} bits")


def _plain(value: Any, done: dict[int, object]) -> object:  # noqa: ANN401
    """Return the value with arrays in their places; anything but data in it is refused."""
    if isinstance(value, str):
        if not value.isascii():
            value.encode()  # raises on what is no text
        return value
    if isinstance(value, bytes | int | float | None | np.ndarray | np.generic):
        _check_number(value)
        return value
    if id(value) in done:  # a list in many places is gone through once
        return done[id(value)]
    result: object
    if isinstance(value, memoryview):
        result = bytes(value)
    elif isinstance(value, _Array) and value.value is not None:
        result = value.value
    elif isinstance(value, list):
        result = [_plain(part, done) for part in value]
    elif isinstance(value, tuple):
        result = tuple(_plain(part, done) for part in value)
    elif isinstance(value, dict):
        result = {_plain(key, done): _plain(part, done) for key, part in value.items()}
    else:
        raise _Refused(f"a {type(value).__name__}")
    done[id(value)] = result
    return result
