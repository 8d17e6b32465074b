"""Pickles of published data sets, read without running anything that they ask for.

Python's unpicklers call what a pickle names, and allocate as much memory as it asks for. The instructions
that data sets need are few, so they are carried out here, on data alone.
"""

import codecs
import math
import pickle
import pickletools
import re
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from recollect.errors import DataError, RecollectError, brief

LARGE = 1 << 20
MAX_INSTRUCTIONS = 1_000_000  # CIFAR-100 has 200 000; each may take up to some hundred bytes of memory
MAX_NESTING = 100
MAX_DIMENSIONS = 16
MAX_BITS = 64  # of a number: very long ones are slow to print, and can all have one hash
MAX_COPIES = 4  # of what was read; an array over bytes that came as text is the second one
KEYS = (str, bytes, int, float, bool, type(None))
Array = np.ndarray[Any, Any]


def read_pickle(stream: BinaryIO, place: str) -> object:
    """Return the dicts, lists, tuples, strings, numbers and arrays of a pickle, also of one from Python 2.

    Python 2's strings come as bytes, and arrays are read-only. A pickle that asks for anything else, or is
    damaged, is a `DataError` that names `place`.
    """
    try:
        value = _Machine(stream).run()
        _require_data(value, set())
    except RecollectError:
        raise
    except _Refused as error:
        raise DataError(
            f"{place} asks for {error}, which no data set needs: refused, nothing was run"
        ) from error
    # Damage shows as nearly any exception, MemoryError among them.
    except Exception as error:
        raise DataError(f"{place} is damaged, or not a pickle of a data set: {brief(error)}") from error
    return value


def read_record(stream: BinaryIO, place: str) -> dict[str, object]:
    """Read a pickle that must be a dict, and return it with text as its keys."""
    value = read_pickle(stream, place)
    if not isinstance(value, dict):
        raise DataError(f"{place} holds a {type(value).__name__} where a dict is expected")
    record = {as_text(key): entry for key, entry in value.items()}
    if len(record) < len(value):
        raise DataError(f"{place} has an entry twice, named by text and by bytes: refused")
    return record


def as_text(value: object) -> str:
    """Return a string of a pickle, or the bytes of one from Python 2, as text.

    >>> as_text(b"apple"), as_text("apple"), as_text(7)
    ('apple', 'apple', '7')
    """
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(value)


class _Refused(Exception):  # noqa: N818
    """The pickle asks for something that is not allowed."""


class _Name(NamedTuple):
    """A name that a pickle calls, one of `KNOWN`."""

    module: str
    name: str


class _Type:
    """What a pickle says of an array's type: numbers, and strings of fixed size."""

    def __init__(self, code: object, align: object = None, copy: object = None) -> None:  # noqa: ARG002
        text = as_text(code) if isinstance(code, str | bytes) else ""
        if not re.fullmatch(r"[<>|=]?(b1|[iu][1248]|f[248]|[SU][1-9]\d{0,5})", text, re.ASCII):
            raise _Refused(f"an array of type {text[:40]!r}")
        self.numpy = np.dtype(text)

    def build(self, version: object, order: object, *more: object) -> "_Type":  # noqa: ARG002
        """Take the byte order; there must be no fields."""
        known = isinstance(order, str | bytes) and order in {*"<>|=", b"<", b">", b"|", b"="}
        if not known or any(part is not None for part in more[:3]):
            raise _Refused("an array with fields, or of unknown byte order")
        self.numpy = self.numpy.newbyteorder(as_text(order))  # type: ignore[arg-type]
        return self


class _Array:
    """An array whose content follows."""

    def __init__(self, *_: object) -> None:
        self.places: list[int] = []  # where it is in the memo

    def build(self, version: object, shape: object, kind: object, fortran: object, content: object) -> Array:  # noqa: ARG002
        """Return the array of this shape, type, order and content."""
        return _array(content, kind, shape, "F" if fortran is True or fortran == 1 else "C")


def _array(content: object, kind: object, shape: object, order: object = "C") -> Array:
    """Return an array over bytes that are exactly as many as its shape says."""
    if not (isinstance(content, bytes) and isinstance(kind, _Type) and isinstance(shape, tuple)):
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
        "".join(array.ravel().tolist()).encode()  # raises on invalid text
    return array


def _scalar(kind: object, content: object) -> object:
    return _array(content, kind, ())[()]


def _encode(text: object, encoding: object) -> bytes:
    """Return bytes that Python 3 wrote as text, so that Python 2 could read them."""
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError("bytes are wrong")
    return text.encode("latin1")


KNOWN: dict[tuple[str, str], Callable[..., object]] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy._core.multiarray", "scalar"): _scalar,
    ("numpy.core.numeric", "_frombuffer"): _array,
    ("numpy._core.numeric", "_frombuffer"): _array,
    ("_codecs", "encode"): _encode,
    ("__builtin__", "bytes"): lambda: b"",
    ("builtins", "bytes"): lambda: b"",
}
_OPCODES = {ord(opcode.code): opcode for opcode in pickletools.opcodes}


class _Machine:
    """The machine that a pickle is a program for: a stack, marks in it, and a memo."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._count = 0  # bytes read
        self._made = 0  # bytes of the arrays and strings made of them
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def run(self) -> object:
        """Return the value of the pickle."""
        for _ in range(MAX_INSTRUCTIONS):
            opcode = _OPCODES[self.read(1)[0]]
            if opcode.name == "STOP":
                return self._stack.pop()
            self._step(opcode.name, self._argument(opcode))
        raise pickle.UnpicklingError(f"it has more than {MAX_INSTRUCTIONS} instructions")

    def read(self, count: int) -> bytes:
        """Return exactly so many bytes; memory grows with what is read, not with what is promised."""
        if count <= LARGE:
            content = self._stream.read(max(0, count))
        else:
            parts, left = BytesIO(), count
            while left and (part := self._stream.read(min(left, LARGE))):
                left -= parts.write(part)
            content = parts.getvalue()
        self._count += len(content)
        if len(content) != count:
            raise EOFError("it is cut short")
        return content

    def readline(self) -> bytes:
        """Return the bytes up to the end of a line."""
        line = self._stream.readline()
        self._count += len(line)
        return line

    def _argument(self, opcode: pickletools.OpcodeInfo) -> Any:  # noqa: ANN401
        match opcode.name:  # pickletools makes text of Python 2's words, and fails on some
            case "STRING":
                quoted = re.fullmatch(rb"""\s*(['"])(.*)\1\s*""", self.readline())
                return codecs.escape_decode(_only(re.Match, quoted)[2])[0]
            case "BINSTRING":
                return self.read(int.from_bytes(self.read(4), "little"))
            case "SHORT_BINSTRING":
                return self.read(self.read(1)[0])
        return opcode.arg.reader(self) if opcode.arg else None  # type: ignore[arg-type]

    def _step(self, name: str, argument: Any) -> None:  # noqa: ANN401, C901, PLR0912, PLR0915
        stack = self._stack
        match name:
            case "INT" | "BININT" | "BININT1" | "BININT2" | "LONG" | "LONG1" | "LONG4":
                if argument.bit_length() > MAX_BITS:
                    raise pickle.UnpicklingError(f"a number has {argument.bit_length()} bits")
                stack.append(argument)
            case "UNICODE" | "BINUNICODE" | "SHORT_BINUNICODE" | "BINUNICODE8":
                argument.encode()  # raises on invalid text
                stack.append(argument)
            case "BINBYTES" | "SHORT_BINBYTES" | "BINBYTES8" | "BYTEARRAY8" | "FLOAT" | "BINFLOAT":
                stack.append(bytes(argument) if isinstance(argument, bytearray) else argument)
            case "STRING" | "BINSTRING" | "SHORT_BINSTRING":
                stack.append(argument)
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                stack.append({"NEWTRUE": True, "NEWFALSE": False}.get(name))
            case "EMPTY_LIST" | "EMPTY_TUPLE" | "EMPTY_DICT":
                stack.append({"EMPTY_LIST": list, "EMPTY_TUPLE": tuple, "EMPTY_DICT": dict}[name]())
            case "MARK":
                self._marks.append(len(stack))
            case "PUT" | "BINPUT" | "LONG_BINPUT" | "MEMOIZE":
                self._remember(len(self._memo) if argument is None else argument)
            case "GET" | "BINGET" | "LONG_BINGET":
                stack.append(self._memo[argument])
            case "LIST":
                stack.append(self._above_mark())
            case "TUPLE":
                stack.append(tuple(self._above_mark()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack.append(tuple(self._take(int(name[-1]))))
            case "DICT":
                values = self._above_mark()
                stack.append({})
                self._set(values)
            case "APPEND":
                (value,) = self._take(1)
                _only(list, stack[-1]).append(value)
            case "APPENDS":
                values = self._above_mark()
                _only(list, stack[-1]).extend(values)
            case "SETITEM":
                self._set(self._take(2))
            case "SETITEMS":
                self._set(self._above_mark())
            case "GLOBAL":
                stack.append(_name(argument.split(" ", 1)))
            case "STACK_GLOBAL":
                stack.append(_name(self._take(2)))
            case "REDUCE":
                called, arguments = self._take(2)
                made = KNOWN[_only(_Name, called)](*_only(tuple, arguments))
                stack.append(self._counted(made))
            case "BUILD":
                self._build(*self._take(2))
            case "PROTO" | "FRAME":
                pass
            case _:
                raise _Refused(f"the instruction {name}")

    def _take(self, count: int) -> list[Any]:
        """Take the uppermost values off the stack."""
        values = self._stack[-count:]
        del self._stack[-count:]
        if len(values) < count:
            raise pickle.UnpicklingError("a value is missing")
        return values

    def _above_mark(self) -> list[Any]:
        mark = self._marks.pop()
        values = self._stack[mark:]
        del self._stack[mark:]
        return values

    def _remember(self, place: int) -> None:
        if isinstance(self._stack[-1], _Array):
            self._stack[-1].places.append(place)
        self._memo[place] = self._stack[-1]

    def _set(self, values: list[Any]) -> None:
        keys = values[::2]
        if not all(isinstance(key, KEYS) for key in keys):  # the hash of nested tuples can take for ever
            raise _Refused("a dict with keys other than strings or numbers")
        _only(dict, self._stack[-1]).update(zip(keys, values[1::2], strict=True))

    def _build(self, begun: object, state: object) -> None:
        if not (isinstance(begun, _Type | _Array) and isinstance(state, tuple)):
            raise _Refused(f"a change of {_called(begun)}")
        built = self._counted(begun.build(*state))
        self._stack.append(built)
        if isinstance(begun, _Array):
            self._memo.update(dict.fromkeys(begun.places, built))

    def _counted(self, made: object) -> object:
        """Refuse a few bytes that are asked for again and again, to fill memory with copies."""
        self._made += len(made) if isinstance(made, bytes) else getattr(made, "nbytes", 0)
        if self._made > MAX_COPIES * self._count:
            raise pickle.UnpicklingError("it would unpack to many times its size")
        return made


def _name(words: Sequence[object]) -> _Name:
    module, name = map(str, words)
    if (module, name) not in KNOWN:
        raise _Refused(repr(f"{module}.{name}")[:100])
    return _Name(module, name)


def _only(kind: type, value: Any) -> Any:  # noqa: ANN401
    if not isinstance(value, kind):
        raise pickle.UnpicklingError(f"a {kind.__name__} is expected, not a {type(value).__name__}")
    return value


def _require_data(value: object, done: set[int], nesting: int = 0) -> None:
    """Refuse a value with anything but data in it, or with itself."""
    if isinstance(value, bytes | str | int | float | None | np.ndarray | np.generic) or id(value) in done:
        return
    if isinstance(value, _Name) or not isinstance(value, list | tuple | dict):
        raise _Refused(f"{_called(value)} without content")
    if nesting > MAX_NESTING:
        raise pickle.UnpicklingError("its lists are nested too deeply")
    for part in value.values() if isinstance(value, dict) else value:
        _require_data(part, done, nesting + 1)
    done.add(id(value))  # a list in many places is gone through once


def _called(value: object) -> str:
    kind = type(value).__name__.strip("_").lower()
    return f"an {kind}" if kind.startswith("a") else f"a {kind}"
