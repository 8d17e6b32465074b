"""Turn any kind of picture into checked RGB pixels.

A picture is a path, the bytes of a file, an open binary file, a PIL image, or a numpy array or torch tensor
of uint8. One that cannot be read raises :class:`~recollect.errors.PictureError`, which names the picture and
says what to do about it.
"""

import io
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path, PurePath
from typing import Any, BinaryIO, Protocol, TypeGuard, runtime_checkable

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, UnidentifiedImageError, features

from recollect.errors import PictureError, brief


@runtime_checkable
class Readable(Protocol):
    """An open binary file, or anything else that gives the bytes of one; errors call it by its `name`."""

    def read(self) -> bytes:
        """Return all its bytes."""


class Tensor(Protocol):
    """A torch tensor, recognised without importing torch."""

    @property
    def ndim(self) -> int:
        """Return the number of dimensions."""

    def detach(self) -> Any:  # noqa: ANN401
        """Return the same tensor outside of any gradient."""


Picture = str | os.PathLike[str] | bytes | Readable | Image.Image | npt.NDArray[np.uint8] | Tensor
Array4d = np.ndarray[tuple[int, int, int, int], np.dtype[np.uint8]]
Pictures = Array4d | Iterable[Picture]

_AVIF = features.check("avif")  # which Pillow reads only where it was built with it
PICTURE_SUFFIXES = frozenset(
    {
        *(".jpg", ".jpeg", ".jpe", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm"),
        *([".avif"] if _AVIF else []),
    }
)
HEIC_SUFFIXES = frozenset({".heic", ".heif", ".hif"})
HEIC_REMEDY = "pip install 'recollect[heic]'"
UNREAD_SUFFIXES = HEIC_SUFFIXES | {
    *(".avif", ".jxl", ".jp2", ".j2k", ".psd", ".tga", ".svg", ".eps", ".ico", ".exr", ".hdr", ".dcm"),
    *(".dng", ".raw", ".cr2", ".cr3", ".crw", ".nef", ".nrw", ".arw", ".orf", ".rw2", ".raf", ".pef", ".srw"),
}

# Raster formats only: Pillow hands EPS to Ghostscript, and rare formats have rarely tested decoders.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", *(["AVIF"] if _AVIF else []))
# The brands with which HEIC files start. AVIF may start with the last two; it names itself after them.
HEIC_START = re.compile(rb".{4}ftyp(heic|heix|heim|heis|hevc|hevx|hevm|hevs|mif1|msf1)", re.DOTALL)

# Just below the size from which Pillow itself warns of a decompression bomb.
MOST_PIXELS = 89_000_000
# Pillow crops in 32-bit floats, which no longer tell neighbouring pixels apart on much longer sides.
MOST_SIDE = 1_000_000
# Each scan of a JPEG goes through the whole picture again; a usual progressive one has 10.
MOST_SCANS = 1000
SCANNED = 20  # how often as many pixels as are allowed may be gone through
MOST_JPEG = 256 << 20  # bytes: the file is looked through in memory
_MARKER = re.compile(rb"\xff([^\x00\x01\xff\xd0-\xd7])")  # those with a length after them, and the end

# Not ImageOps.exif_transpose: it also rewrites the EXIF data, which fails where another entry is damaged.
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def has_picture_suffix(name: str) -> bool:
    """Say whether a file is one that is read here, by the end of its name."""
    suffix = PurePath(name).suffix.lower()
    return suffix in PICTURE_SUFFIXES or (suffix in HEIC_SUFFIXES and reads_heic())


def open_picture(
    picture: Picture,
    name: str | None = None,
    short_side: int | None = None,
    most_pixels: int = MOST_PIXELS,
) -> Image.Image:
    """Return the picture as an upright RGB image, fully decoded; transparent parts become white.

    ``name`` is what errors call the picture; by default its path. Of an animation the first frame
    counts, of a PIL image the current one. The image handed over is not changed, and an open file is read
    from its start. A tensor whose first dimension is 1, 3 or 4 is (channels, height, width), as torchvision
    has it; any other is (height, width, channels), or (height, width). A JPEG much larger than
    ``short_side`` needs may come back smaller. A file of more than ``most_pixels`` is refused undecoded.
    """
    name = name or own_name(picture) or "the picture"
    if isinstance(picture, np.ndarray):
        return _from_array(picture, name)
    if isinstance(picture, Image.Image):
        _check_size(picture.size, name)
        with _clear_errors(name):
            return _upright_rgb(picture, name)
    if isinstance(picture, bytes):
        return _decode(io.BytesIO(picture), name, short_side, most_pixels)
    if isinstance(picture, str | os.PathLike):
        return _read_file(picture, name, short_side, most_pixels)
    if _is_tensor(picture):
        return _from_array(_tensor_pixels(picture, name), name)
    if isinstance(picture, Readable):
        return _decode(io.BytesIO(_content(picture, name)), name, short_side, most_pixels)
    raise PictureError(
        f"{name}: expected a path, the bytes of a file, an open binary file, a PIL image, a numpy array or a "
        f"tensor, got {type(picture).__name__}"
    )


def fit(image: Image.Image, size: int, short_side: int | None = None) -> npt.NDArray[np.uint8]:
    """Resize the short side to ``short_side`` (by default ``size``) and cut out the centre: (size, size, 3).

    An image of (size, size) keeps its pixels as they are, and one whose short side already is
    ``short_side`` is only cropped.
    """
    short_side = _checked_short_side(size, short_side)
    if image.mode != "RGB":
        image = open_picture(image)
    _check_size(image.size, "the picture")
    if image.size != (size, size):
        image = _centre(image, size, short_side)
    return np.array(image, dtype=np.uint8)


def read_pixels(
    picture: Picture,
    size: int,
    short_side: int | None = None,
    name: str | None = None,
    most_pixels: int = MOST_PIXELS,
) -> npt.NDArray[np.uint8]:
    """Open a picture and fit it: (size, size, 3).

    >>> read_pixels(np.zeros((40, 60, 3), np.uint8), size=32).shape
    (32, 32, 3)
    """
    needed = _checked_short_side(size, short_side)
    return fit(open_picture(picture, name, needed, most_pixels), size, short_side)


def thumbnail(picture: Picture, side: int = 96) -> bytes:
    """Return a small copy of a picture as the bytes of a JPEG file, at most `side` pixels a side."""
    image = open_picture(picture, short_side=side)
    image.thumbnail((side, side))
    content = io.BytesIO()
    image.save(content, "JPEG", quality=85)
    return content.getvalue()


def are_many(pictures: Picture | Pictures) -> bool:
    """Tell many pictures from one: a sequence, an iterator, or an array or tensor of four dimensions.

    An open file, which is an iterator too, is one.
    """
    if isinstance(pictures, np.ndarray) or _is_tensor(pictures):
        return pictures.ndim == 4
    if isinstance(pictures, Sequence):
        return not isinstance(pictures, str | bytes | bytearray)
    return isinstance(pictures, Iterator) and not hasattr(pictures, "read")


def own_name(picture: Picture) -> str | None:
    """Return the path of a picture that has one."""
    if isinstance(picture, str | os.PathLike):
        return os.fspath(picture)
    if isinstance(picture, Image.Image):
        filename = getattr(picture, "filename", None)  # only of images that were opened from a file
        return os.fsdecode(filename) if filename else None
    name = getattr(picture, "name", None)  # of an open file; a number where it was opened by one
    return name if isinstance(name, str) else None


def _is_tensor(picture: object) -> TypeGuard[Tensor]:
    return hasattr(picture, "detach") and hasattr(picture, "ndim")


def _tensor_pixels(tensor: Tensor, name: str) -> npt.NDArray[np.uint8]:
    """Return the pixels of a tensor with the channels last."""
    try:
        array: npt.NDArray[np.uint8] = tensor.detach().cpu().numpy()
    except (TypeError, RuntimeError) as error:  # such as bfloat16, or a tensor without data
        raise PictureError(f"{name}: expected a tensor of uint8, 0 to 255 ({error})") from error
    return array.transpose(1, 2, 0) if array.ndim == 3 and array.shape[0] in {1, 3, 4} else array


def _content(file: Readable, name: str) -> bytes:
    try:
        if hasattr(file, "seek") and file.seekable():  # type: ignore[attr-defined]
            file.seek(0)
        content: object = file.read()
    except (OSError, ValueError) as error:  # such as a file that was closed
        raise PictureError(f"{name}: the file cannot be read ({error}). Open it again") from error
    if not isinstance(content, bytes):
        raise PictureError(
            f"{name}: the file gives {type(content).__name__}, not bytes. Open it with mode 'rb'"
        )
    return content


def _read_file(
    path: str | os.PathLike[str], name: str, short_side: int | None, most_pixels: int
) -> Image.Image:
    try:
        status = Path(path).stat()
        if stat.S_ISDIR(status.st_mode):
            raise PictureError(
                f"{name}: this is a folder. Give the pictures in it, such as "
                f"sorted(Path({name!r}).glob('*.jpg'))"
            )
        if not stat.S_ISREG(status.st_mode):  # a pipe or a device might block or never end
            raise PictureError(f"{name}: this is not a regular file. Copy the picture into one")
        with Path(path).open("rb") as stream:
            return _decode(stream, name, short_side, most_pixels)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise PictureError(f"{name}: there is no such file. Check the path") from error
    except (OSError, ValueError) as error:
        raise PictureError(
            f"{name}: the file cannot be opened ({brief(error)}). Check the path and the permissions"
        ) from error


def _decode(stream: BinaryIO, name: str, short_side: int | None, most_pixels: int) -> Image.Image:
    start = stream.read(64)
    if not start:
        raise PictureError(f"{name}: the file is empty. Save or download it again")
    heic = HEIC_START.match(start) is not None and not (_AVIF and b"avif" in start)
    if heic and not reads_heic():
        raise PictureError(f"{name}: this is HEIC. {HEIC_REMEDY}, or convert it to JPEG")
    with _clear_errors(name), Image.open(stream, formats=("HEIF",) if heic else FORMATS) as image:
        _check_size(image.size, name, most_pixels)
        if start.startswith(b"\xff\xd8"):
            _check_scans(stream, image.width * image.height, name, most_pixels)
        if short_side is not None:
            # A JPEG decodes at 1/2, 1/4 or 1/8 of its size several times faster. Twice what is
            # needed leaves the last step to the better filter; other formats ignore this.
            image.draft(None, (2 * short_side, 2 * short_side))
        return _upright_rgb(image, name)


@cache
def reads_heic() -> bool:
    """Let Pillow read HEIC where pillow-heif is installed, and say whether it is."""
    if find_spec("pillow_heif") is None:
        return False
    import_module("pillow_heif").register_heif_opener()
    return True


def _check_scans(stream: BinaryIO, pixels: int, name: str, most_pixels: int) -> None:
    """Refuse a JPEG whose scans would take minutes to decode."""
    stream.seek(0)
    content = stream.read(MOST_JPEG + 1)
    if len(content) > MOST_JPEG:
        raise PictureError(f"{name}: the file has more than {MOST_JPEG >> 20} MiB. Save it as another JPEG")
    most = min(MOST_SCANS, SCANNED * most_pixels // pixels)
    if content.count(b"\xff\xda") <= most:
        return
    # A thumbnail inside the file, or a video behind the picture, has such bytes too: count exactly.
    scans, place = 0, 2
    while (marker := _MARKER.search(content, place)) and marker[1] != b"\xd9":
        scans += marker[1] == b"\xda"
        if scans > most:
            raise PictureError(f"{name}: over {most} scans take too long to decode. Save it as another JPEG")
        place = marker.end() + int.from_bytes(content[marker.end() : marker.end() + 2])


@contextmanager
def _clear_errors(name: str) -> Iterator[None]:
    """Turn whatever Pillow raises on a picture into a PictureError."""
    try:
        yield
    except PictureError:
        raise
    except UnidentifiedImageError as error:
        raise PictureError(
            f"{name}: this is not a picture, or its format is not supported ({', '.join(FORMATS)}, and HEIC "
            "with the extra heic). Leave it out, or convert it to JPEG or PNG"
        ) from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise PictureError(f"{name}: {_too_large()}") from error
    # On damaged files decoders raise nearly anything: OSError, SyntaxError, struct.error, zlib.error,
    # EOFError, MemoryError, AttributeError and more.
    except Exception as error:
        raise PictureError(
            f"{name}: the picture is cut short or damaged ({brief(error)}). Save or download it again"
        ) from error


def _check_size(size: tuple[int, int], name: str, most_pixels: int = MOST_PIXELS) -> None:
    width, height = size
    if width < 1 or height < 1:
        raise PictureError(f"{name}: {width} × {height} pixels. Give a picture that has pixels")
    if width * height > most_pixels or max(size) > MOST_SIDE:
        raise PictureError(f"{name}: {width} × {height} pixels; {_too_large(most_pixels)}")


def _too_large(most_pixels: int = MOST_PIXELS) -> str:
    return (
        f"the picture is too large (at most {most_pixels // 1_000_000} megapixels, and no side longer than "
        f"{MOST_SIDE:,} pixels). Scale it down first"
    )


def _from_array(array: npt.NDArray[np.uint8], name: str) -> Image.Image:
    """Return the image of an array: (height, width), or (height, width, 1, 3 or 4)."""
    if array.dtype != np.uint8 or not (array.ndim == 2 or (array.ndim == 3 and array.shape[2] in {1, 3, 4})):
        raise PictureError(
            f"{name}: expected an array of uint8, 0 to 255, of shape (height, width, 3), (height, width, 4), "
            f"(height, width, 1) or (height, width); got {array.dtype} of shape {array.shape}"
        )
    _check_size((array.shape[1], array.shape[0]), name)
    grey = array.ndim == 3 and array.shape[2] == 1
    return _rgb(Image.fromarray(np.ascontiguousarray(array[:, :, 0] if grey else array)), name)


def _upright_rgb(image: Image.Image, name: str) -> Image.Image:
    image.load()
    try:
        turn = UPRIGHT.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # noqa: BLE001 -- damaged EXIF data is common and leaves the pixels readable
        turn = None
    upright = _rgb(image, name) if turn is None else _rgb(image, name).transpose(turn)
    upright.info = {}  # else an orientation that was applied here would be applied again by the next reader
    return upright


def _rgb(image: Image.Image, name: str) -> Image.Image:
    """Return a new RGB image, with white behind transparent parts."""
    if image.mode.startswith("I") or image.mode == "F":
        return Image.fromarray(_grey(image, name)).convert("RGB")
    if image.mode in {"1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa"} and image.has_transparency_data:
        # Pillow has no direct way from La, premultiplied grey, to RGBA.
        seen = (image.convert("LA") if image.mode == "La" else image).convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", seen.size, "white"), seen).convert("RGB")
    return image.convert("RGB")


def _grey(image: Image.Image, name: str) -> npt.NDArray[np.uint8]:
    """Return 8-bit grey (height, width) of an image of integers or floats."""
    values = np.asarray(image)
    low, high = values.min(), values.max()
    if not (low >= 0 and high <= 65535):  # also false for NaN
        raise PictureError(
            f"{name}: grey values from {low} to {high}; expected 0 to 255 or 0 to 65535. Scale them first"
        )
    # Modes I and F do not say their range, except that Pillow scales what a PGM file holds to 16 bit.
    if image.mode.startswith("I;16") or high > 255 or (image.mode == "I" and image.format == "PPM"):
        scaled = np.divide(values, 257, dtype=np.float32)  # 65535 / 255
    elif image.mode == "F" and high <= 1:
        scaled = np.multiply(values, 255, dtype=np.float32)
    else:
        scaled = values
    grey: npt.NDArray[np.uint8] = np.rint(scaled).astype(np.uint8)
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        grey[values == transparent] = 255
    return grey


def _checked_short_side(size: int, short_side: int | None) -> int:
    short_side = size if short_side is None else short_side
    if not 1 <= size <= short_side:
        raise ValueError(f"expected 1 <= size <= short_side, got size {size} and short_side {short_side}")
    return short_side


def _centre(image: Image.Image, size: int, short_side: int) -> Image.Image:
    """Resize and crop in one step, so that a long thin picture takes no more memory than a square one."""
    short = min(image.size)
    # The sizes and the rounding of torchvision's Resize and CenterCrop, on which pretrained models rely.
    full = [side * short_side // short for side in image.size]
    left, top = (round((side - size) / 2) for side in full)
    if short == short_side:
        return image.crop((left, top, left + size, top + size))
    width, height = image.size
    box = (
        left * width / full[0],
        top * height / full[1],
        (left + size) * width / full[0],
        (top + size) * height / full[1],
    )
    return image.resize((size, size), Image.Resampling.BICUBIC, box, reducing_gap=3.0)
