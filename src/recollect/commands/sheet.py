"""The contact sheet: each picture with its answers as bars, many on one page."""

import io
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
from PIL import Image, ImageDraw, ImageFont, ImageOps

from recollect.commands.pictures import Named
from recollect.commands.printing import percent
from recollect.errors import counted, one_line
from recollect.images import thumbnail
from recollect.system.disk import replacing_file
from recollect.system.progress import say, track

MOST_PICTURES = 60
MOST_BARS = 10  # for each picture
MOST_COLUMNS = 5

_CELL, _PICTURE = 300, (276, 207)  # width of a cell; box of a picture
_MARGIN, _PAD, _ROW, _GAP = 28, 12, 26, 4
_PAGE, _CARD, _MAT, _INK, _FAINT, _TRACK = "#eef0f3", "#ffffff", "#f6f7f9", "#1d2430", "#667085", "#f0f2f5"


class Tint(NamedTuple):
    """The colours of an origin: of its bars, and of what stands out."""

    bar: str
    strong: str


TINTS = {
    "base": Tint("#b9d4f1", "#2f6fb5"),
    "novel": Tint("#fbd3a4", "#c46a10"),
    "unknown": Tint("#d5d8de", "#5d6675"),
}
_LEGEND = {"base": "base category", "novel": "taught category", "unknown": "unknown"}


def write_sheet(path: Path, report: dict[str, Any], pictures: Sequence[Named]) -> None:
    """Draw the result of `recollect predict` to a PNG file, whole or not at all."""
    image = draw_sheet(report, pictures)
    with replacing_file(path) as part:
        image.save(part, "PNG")
    shown, total = min(len(pictures), MOST_PICTURES), len(pictures)
    say(f"wrote {path}" + (f", with the first {shown} of {total} pictures" if shown < total else ""))


def draw_sheet(report: dict[str, Any], pictures: Sequence[Named]) -> Image.Image:
    """Return the sheet of the first pictures with their answers, in the order they came."""
    shown = report["predictions"][:MOST_PICTURES]
    bars = min(MOST_BARS, max(len(one["answers"]) for one in shown))
    columns = min(MOST_COLUMNS, len(shown))
    rows = -(-len(shown) // columns)
    height = _PAD + _PICTURE[1] + 34 + bars * (_ROW + _GAP) + _PAD
    top = 96
    width = max(2 * _MARGIN + columns * (_CELL + _PAD) - _PAD, 680)
    sheet = Image.new("RGB", (width, top + rows * (height + _PAD) - _PAD + _MARGIN), _PAGE)
    _draw_heading(ImageDraw.Draw(sheet), report, len(shown), width)
    for number, (one, picture) in enumerate(track(zip(shown, pictures, strict=False), "drawing", len(shown))):
        row, column = divmod(number, columns)
        corner = (_MARGIN + column * (_CELL + _PAD), top + row * (height + _PAD))
        _draw_cell(sheet, corner, height, one, picture)
    return sheet


def _draw_heading(draw: ImageDraw.ImageDraw, report: dict[str, Any], shown: int, width: int) -> None:
    total = len(report["predictions"])
    count = counted(total, "picture")
    count = count if shown == total else f"the first {shown} of {count}"
    bold = _font(20, bold=True)
    draw.text((_MARGIN, 22), _cut(report["model"], bold, width - 2 * _MARGIN), _INK, bold)
    draw.text((_MARGIN, 58), count, _FAINT, _font(14))
    left = width - _MARGIN
    present = {answer["origin"] for one in report["predictions"] for answer in one["answers"]}
    for origin in reversed([origin for origin in _LEGEND if origin in present]):
        left -= int(draw.textlength(_LEGEND[origin], _font(14)))
        draw.text((left, 58), _LEGEND[origin], _FAINT, _font(14))
        draw.rounded_rectangle((left - 24, 59, left - 8, 75), 3, TINTS[origin].bar, TINTS[origin].strong)
        left -= 48


def _draw_cell(
    sheet: Image.Image, corner: tuple[int, int], height: int, one: dict[str, Any], picture: Named
) -> None:
    """Draw one picture, its file's name and its answers into the rectangle at `corner`."""
    draw, (left, top) = ImageDraw.Draw(sheet), corner
    edge = TINTS["unknown"].strong if one["unknown"] else "#dde1e7"
    draw.rounded_rectangle(
        (left, top, left + _CELL, top + height), 8, _CARD, edge, 2 if one["unknown"] else 1
    )
    left, top = left + _PAD, top + _PAD
    sheet.paste(_letter_boxed(picture), (left, top))
    if one["unknown"]:
        _draw_mark(draw, (left + _PICTURE[0] - 6, top + 6))
    top += _PICTURE[1] + 9
    draw.text((left, top), _cut(_name(one["picture"]), _font(13), _PICTURE[0]), _FAINT, _font(13))
    top += 25
    for rank, answer in enumerate(one["answers"][:MOST_BARS]):
        _draw_bar(draw, (left, top), answer, best=rank == 0)
        top += _ROW + _GAP


def _draw_mark(draw: ImageDraw.ImageDraw, corner: tuple[int, int]) -> None:
    """Draw the mark of an unknown picture, with its upper right corner there."""
    right, top = corner
    font = _font(13, bold=True)
    left = right - round(font.getlength("unknown")) - 20
    draw.rounded_rectangle((left, top, right, top + 24), 12, TINTS["unknown"].strong, "white")
    draw.text(((left + right) // 2, top + 12), "unknown", "white", font, anchor="mm")


def _draw_bar(
    draw: ImageDraw.ImageDraw, corner: tuple[int, int], answer: dict[str, Any], *, best: bool
) -> None:
    left, top = corner
    right, bottom = left + _PICTURE[0], top + _ROW
    tint = TINTS[answer["origin"]]
    draw.rectangle((left, top, right, bottom), _TRACK)
    draw.rectangle((left, top, left + round(answer["probability"] * _PICTURE[0]), bottom), tint.bar)
    draw.rectangle((left, top, left + 3, bottom), tint.strong)
    font, share = _font(14, bold=best), percent(answer["probability"])
    room = _PICTURE[0] - draw.textlength(share, font) - 30
    name = _cut(answer["category"], font, room)
    middle = (top + bottom) // 2
    draw.text((left + 12, middle), name, _INK, font, anchor="lm")
    draw.text((right - 8, middle), share, _INK, font, anchor="rm")


def _letter_boxed(picture: Named) -> Image.Image:
    """Return the picture, upright and whole, in the middle of its box."""
    with Image.open(io.BytesIO(thumbnail(picture, 2 * max(_PICTURE)))) as small:
        return ImageOps.pad(small, _PICTURE, Image.Resampling.LANCZOS, _MAT)


def _name(path: str) -> str:
    """Return a file's name with its folder's, which often tells what it shows."""
    return "/".join(Path(path).parts[-2:])


def _cut(text: str, font: ImageFont.FreeTypeFont, room: float) -> str:
    """Return a text, shortened to the room there is."""
    text = one_line(text)
    if font.getlength(text) <= room:
        return text
    kept = len(text)
    while kept and font.getlength(f"{text[:kept]}…") > room:
        kept -= 1
    return f"{text[:kept]}…"


@cache
def _font(size: int, *, bold: bool = False) -> ImageFont.FreeTypeFont:
    """Return the typeface that comes with matplotlib, which knows more scripts than Pillow's own."""
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(Path(mpl.get_data_path(), "fonts", "ttf", name), size)
