"""`glyphs`, the data set that comes with the package: characters of eleven scripts, drawn on demand.

The typefaces are those that ship with matplotlib. Typeface, weight, pose, colours, clutter, blur and noise
are random; the character is the category. Mirrored pictures would be other characters: never flip them.
"""

import unicodedata
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from recollect.data.imageset import cached_library, digest
from recollect.data.splits import Held, Reserved, Split, own_split, split_pictures
from recollect.errors import DataError
from recollect.system.progress import track

SIZE = 32
VERSION = 1  # of the drawing: another one makes cached pictures void
BASE_PICTURES, OTHER_PICTURES, HELD_PICTURES = 240, 120, 30

# Per script: base, validation and test categories, under their Unicode names; a capital initial asks for the
# capital letter. Chosen so that no two look alike, in any typeface and turned by up to 30 degrees.
_SCRIPTS = {
    "digit": ("two four", "seven", "three"),
    "latin": ("F g j K M T X", "e R", "N Y"),
    "greek": ("Delta Xi Phi alpha mu nu zeta", "Sigma lamda", "Psi Omega"),
    "cyrillic": ("Be De Che Shcha Yu Ya Lje uk Omega", "Yeru Tse", "Zhe Dje"),
    "armenian": ("Ben Ech Et Ca Ho Men Peh", "Ghad Cheh", "To Now Feh"),
    "georgian": ("an on un khar chin can", "phar", "rae jhan"),
    "hebrew": ("alef bet he pe tsadi", "tet qof", "lamed shin"),
    "arabic": ("beh jeem tah kaf feh meem yeh", "seen", "ain noon"),
    "lao": ("ko so-tam mo lo-loot ho-tam", "pho-sung", "ho-sung"),
    "nko": ("o n da rra gba", "fa", "sa nya"),
    "tifinagh": ("yaa yam yap yass", "yatt", "yey"),
}
_CASED = {"latin", "greek", "cyrillic", "armenian"}

# Only typefaces with ordinary letters under ordinary code points, in a fixed order.
_TYPEFACES = (
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique"),
    *("DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique", "DejaVuSansMono-BoldOblique"),
    *("DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic"),
    *("STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "STIXGeneralBolIta"),
    *("cmr10", "cmb10", "cmss10", "cmtt10", "cmti10"),
)


def _part(part: int) -> dict[str, str]:
    """Return category name → character for one of the three columns of the table."""
    characters = {}
    for script, columns in _SCRIPTS.items():
        for entry in columns[part].split():
            case = ("CAPITAL " if entry[0].isupper() else "SMALL ") if script in _CASED else ""
            kind = "DIGIT" if script == "digit" else f"{script} {case}LETTER"
            name = f"{script}-{entry.lower()}"
            characters[name] = unicodedata.lookup(f"{kind} {entry.replace('-', ' ')}")
    return characters


_PARTS = (_part(0), _part(1), _part(2))
_CHARACTERS = {name: character for part in _PARTS for name, character in part.items()}

BASE: tuple[str, ...] = tuple(_PARTS[0])
VALIDATION: tuple[str, ...] = tuple(_PARTS[1])
TEST: tuple[str, ...] = tuple(_PARTS[2])


@dataclass(frozen=True)
class Variation:
    """How much pictures of one category differ: (from, to) of uniform distributions; lengths in pixels."""

    weights: tuple[int, ...] = (-1, 0, 1, 3)  # strokes thinned or thickened, at the size of the drawing
    side: tuple[float, float] = (14.0, 26.0)  # the longer side of the character
    stretch: tuple[float, float] = (0.8, 1.25)  # width over height, relative to the typeface
    shear: tuple[float, float] = (-0.25, 0.25)
    degrees: tuple[float, float] = (-20.0, 20.0)
    shift: tuple[float, float] = (-3.5, 3.5)
    blur: tuple[float, float] = (0.0, 1.1)
    noise: tuple[float, float] = (0.01, 0.12)  # standard deviation; white is 1
    contrast: tuple[float, float] = (0.2, 0.8)  # between ink and ground, in brightness
    chroma: float = 0.5  # how far each channel strays from grey
    gradient: float = 0.3  # how much the brightness of the ground changes across the picture
    strokes: tuple[float, float] = (-1.0, 3.0)  # number of stray strokes, none below 1


VARIATION = Variation()

_DRAWN = 96  # font size at which characters are drawn before they are made equally large
_MASK = 64  # side of the equally large characters, of which the longer side takes _FILLED
_FILLED = 48
_FINE = 2  # pictures are made this many times finer and then averaged, against jagged edges
_MAX_STROKES = 2
# Random numbers per picture: more than are used, so that one more, taken last, changes nothing else.
_COLUMNS = 48

_Floats = npt.NDArray[np.float64]


def render(category: str, count: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    """Return `count` pictures of a category, uint8 (count, 32, 32, 3).

    The first n pictures are the same whatever `count` is.
    """
    if category not in _CHARACTERS:
        raise DataError(f"glyphs has no category {category!r}; it has {', '.join(sorted(_CHARACTERS))}")
    variation = VARIATION
    # Two streams: within each, picture i takes the same numbers however many pictures follow it.
    stream = zlib.crc32(category.encode())
    columns = iter(np.random.default_rng([seed, stream, 0]).random((count, _COLUMNS)).T)
    noise = np.random.default_rng([seed, stream, 1]).standard_normal((count, SIZE, SIZE, 3), dtype=np.float32)

    ink = _characters(category, columns, variation)
    stray = _strokes(columns, variation)
    ground, ink_colour, stray_colour = _colours(columns, variation)
    noise *= _between(variation.noise, columns).astype(np.float32)[:, None, None, None]

    pictures = ground
    pictures += stray * (stray_colour - pictures)
    pictures += ink * (ink_colour - pictures)
    pictures += noise
    return (pictures.clip(0, 1) * 255 + 0.5).astype(np.uint8)


@cache
def typefaces(category: str) -> tuple[str, ...]:
    """Return the typefaces that have the character of a category."""
    from matplotlib.ft2font import FT2Font  # slow to import, and needed only here

    code = ord(_CHARACTERS[category])
    return tuple(face for face in _TYPEFACES if FT2Font(_font_file(face)).get_char_index(code))


@cache
def _font_file(typeface: str) -> str:
    import matplotlib as mpl

    return str(Path(mpl.get_data_path()) / "fonts" / "ttf" / f"{typeface}.ttf")


@cache
def _font(typeface: str) -> ImageFont.FreeTypeFont:
    # The basic layout engine is part of every Pillow; the other is not, and single characters need none.
    return ImageFont.truetype(_font_file(typeface), _DRAWN, layout_engine=ImageFont.Layout.BASIC)


@lru_cache(maxsize=256)
def mask(category: str, typeface: str, weight: int = 0) -> Image.Image:
    """Return the character upright, centred and as large as every other, grey (64, 64)."""
    sheet = Image.new("L", (3 * _DRAWN, 3 * _DRAWN))
    ImageDraw.Draw(sheet).text(
        (_DRAWN, _DRAWN), _CHARACTERS[category], fill=255, font=_font(typeface), stroke_width=max(weight, 0)
    )
    if weight < 0:
        sheet = sheet.filter(ImageFilter.MinFilter(1 - 2 * weight))
    sheet = sheet.crop(sheet.getbbox())
    zoom = _FILLED / max(sheet.size)
    sheet = sheet.resize((max(1, round(sheet.width * zoom)), max(1, round(sheet.height * zoom))))
    centred = Image.new("L", (_MASK, _MASK))
    centred.paste(sheet, ((_MASK - sheet.width) // 2, (_MASK - sheet.height) // 2))
    return centred


def _between(limits: tuple[float, float], columns: Iterator[_Floats]) -> _Floats:
    """Return the next random number of every picture, (count,), spread over the limits."""
    low, high = limits
    return low + (high - low) * next(columns)


def _characters(category: str, columns: Iterator[_Floats], variation: Variation) -> npt.NDArray[np.float32]:
    """Return how much ink the character leaves on each pixel, (count, 32, 32, 1)."""
    faces = typefaces(category)
    face = (next(columns) * len(faces)).astype(int)
    weight = (next(columns) * len(variation.weights)).astype(int)
    blur = _between(variation.blur, columns)
    poses = _poses(columns, variation)
    side = SIZE * _FINE
    fine = []
    for i, pose in enumerate(poses.tolist()):
        upright = mask(category, faces[face[i]], variation.weights[weight[i]])
        turned = upright.transform((side, side), Image.Transform.AFFINE, pose, Image.Resampling.BILINEAR)
        fine.append(turned.filter(ImageFilter.GaussianBlur(float(blur[i]) * _FINE)).reduce(_FINE))
    return _stack(fine)


def _poses(columns: Iterator[_Floats], variation: Variation) -> _Floats:
    """Return for each picture the affine map from its fine pixels to those of the mask, (count, 6)."""
    zoom = _FILLED / (_FINE * _between(variation.side, columns))
    stretch = np.sqrt(_between(variation.stretch, columns))
    shear = _between(variation.shear, columns)
    angle = np.radians(_between(variation.degrees, columns))
    cos, sin = np.cos(angle), np.sin(angle)
    a, b = (cos + shear * sin) * zoom / stretch, (sin - shear * cos) * zoom / stretch
    d, e = -sin * zoom * stretch, cos * zoom * stretch
    x = _FINE * (SIZE / 2 + _between(variation.shift, columns))
    y = _FINE * (SIZE / 2 + _between(variation.shift, columns))
    return np.stack([a, b, _MASK / 2 - a * x - b * y, d, e, _MASK / 2 - d * x - e * y], axis=1)


def _strokes(columns: Iterator[_Floats], variation: Variation) -> npt.NDArray[np.float32]:
    """Return how much of each pixel stray lines and arcs cover, (count, 32, 32, 1)."""
    count = _between(variation.strokes, columns).tolist()
    each = np.stack([next(columns) for _ in range(6 * _MAX_STROKES)], axis=1)
    side = SIZE * _FINE
    fine = []
    for number, values in zip(count, each.tolist(), strict=True):
        sheet = Image.new("L", (side, side))
        draw = ImageDraw.Draw(sheet)
        for k in range(min(int(number), _MAX_STROKES)):
            kind, width, *ends = values[6 * k : 6 * k + 6]
            x, y, x2, y2 = (end * side for end in ends)
            if kind < 0.5:
                draw.line((x, y, x2, y2), fill=255, width=round(2 + 3 * width))
            else:
                box = (x - side / 3, y - side / 3, x + side / 3, y + side / 3)
                draw.arc(box, 6 * x2, 6 * x2 + 60 + 2 * y2, fill=255, width=round(2 + 3 * width))
        fine.append(sheet.reduce(_FINE))
    return _stack(fine)


def _stack(masks: list[Image.Image]) -> npt.NDArray[np.float32]:
    """Return grey pictures as one array between 0 and 1, (count, 32, 32, 1)."""
    pixels = b"".join(mask.tobytes() for mask in masks)
    return np.frombuffer(pixels, np.uint8).reshape(-1, SIZE, SIZE, 1).astype(np.float32) / np.float32(255)


def _colours(
    columns: Iterator[_Floats], variation: Variation
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return the ground (count, 32, 32, 3), and the colours of ink and stray strokes (count, 1, 1, 3)."""
    brightness = next(columns)
    step = np.where(brightness < 0.5, 1, -1) * _between(variation.contrast, columns)

    def coloured(grey: _Floats) -> npt.NDArray[np.float32]:
        tint = np.stack([_between((-variation.chroma, variation.chroma), columns) for _ in range(3)], axis=1)
        tint -= tint.mean(axis=1, keepdims=True)
        return (grey[:, None] + tint).clip(0, 1).astype(np.float32)[:, None, None, :]

    ground, ink = coloured(brightness), coloured(brightness + step)
    stray = coloured(brightness + step * _between((0.2, 0.7), columns))
    angle = _between((0, 2 * np.pi), columns)
    slope = _between((0, variation.gradient), columns)
    axis = np.linspace(-1, 1, SIZE)
    along = np.cos(angle)[:, None, None] * axis[:, None] + np.sin(angle)[:, None, None] * axis
    ramp = (slope[:, None, None] * along / 2).astype(np.float32)[..., None]
    return ground + ramp, ink, stray


def load(seed: int = 0, split: str | None = None) -> Split:
    """Render the data set, or find it in the cache; a JSON `split` reserves other categories."""
    counts = dict.fromkeys(BASE, BASE_PICTURES) | dict.fromkeys((*VALIDATION, *TEST), OTHER_PICTURES)
    categories = tuple(counts)

    def build(room: Callable[[int], npt.NDArray[np.uint8]]) -> dict[str, Any]:
        pixels, start = room(sum(counts.values())), 0
        for category in track(categories, "drawing glyphs", len(categories)):
            pixels[start : start + counts[category]] = render(category, counts[category], seed)
            start += counts[category]
        return {
            "categories": categories,
            "labels": [label for label, category in enumerate(categories) for _ in range(counts[category])],
            "names": [
                f"{category}/{index:04}" for category in categories for index in range(counts[category])
            ],
            "bad": [],
        }

    key = digest("glyphs", VERSION, seed, counts, asdict(VARIATION))
    library, _ = cached_library(key, SIZE, build)
    held = Held(HELD_PICTURES, HELD_PICTURES)
    reserved = own_split("glyphs", Reserved(VALIDATION, TEST), split, categories)
    return split_pictures(library, reserved, lambda _: held, flips=False)
