"""The contact sheet: every picture with its answers, upright and whole, on one page."""

import numpy as np
import pytest
from PIL import Image

from pictures import write_picture
from recollect.commands import sheet
from recollect.errors import StorageError


def answer(category, probability, origin="base"):
    return {"category": category, "probability": probability, "origin": origin}


def report_of(pictures, answers=None):
    answers = answers or [answer("ant", 0.7), answer("okapi", 0.2, "novel")]
    unknown = answers[0]["origin"] == "unknown"
    predictions = [{"picture": str(one), "unknown": unknown, "answers": answers} for one in pictures]
    return {"model": "runs/zoo", "predictions": predictions}


def drawn(pictures, answers=None):
    return np.asarray(sheet.draw_sheet(report_of(pictures, answers), pictures))


def amount(pixels, colour):
    """How many pixels have a colour."""
    rgb = [int(colour[start : start + 2], 16) for start in (1, 3, 5)]
    return int((pixels == rgb).all(axis=-1).sum())


@pytest.fixture
def picture(tmp_path):
    return write_picture(tmp_path / "zoo" / "a.png")


def test_a_bar_is_as_long_as_its_answer_is_probable_in_the_colour_of_its_origin(picture):
    few, many = (drawn([picture], [answer("ant", 0.02), answer("okapi", p, "novel")]) for p in (0.3, 0.9))
    novel = sheet.TINTS["novel"].bar
    assert amount(many, novel) > 2 * amount(few, novel) > 0
    assert amount(drawn([picture], [answer("ant", 0.9)]), novel) == 0


def test_an_unknown_picture_is_marked(picture):
    known = drawn([picture], [answer("ant", 0.8), answer("bee", 0.1)])
    unknown = drawn([picture], [answer("unknown", 0.8, "unknown"), answer("bee", 0.1)])
    strong = sheet.TINTS["unknown"].strong
    assert amount(known, strong) == 0
    assert amount(unknown, strong) > 1000


def test_pictures_stand_upright_and_whole(tmp_path):
    red_over_blue = np.zeros((40, 20, 3), np.uint8)
    red_over_blue[:20], red_over_blue[20:] = (255, 0, 0), (0, 0, 255)
    upright, turned = tmp_path / "upright.png", tmp_path / "turned.png"
    Image.fromarray(red_over_blue).save(upright)
    exif = Image.Exif()
    exif[0x0112] = 6  # as a camera held sideways says: turn by a quarter
    Image.fromarray(np.rot90(red_over_blue)).save(turned, exif=exif)
    boxes = [np.asarray(sheet._letter_boxed(path)) for path in (upright, turned)]
    assert boxes[0].shape == (207, 276, 3)
    np.testing.assert_allclose(boxes[0].astype(int), boxes[1].astype(int), atol=12)
    coloured = (boxes[1].max(axis=2).astype(int) - boxes[1].min(axis=2)) > 100
    assert coloured.any(axis=1).all(), "the whole height of the box is used"
    assert 90 < coloured.sum(axis=1).max() < 120, "and half as much of its width"
    assert boxes[1][5, 138, 0] > 200
    assert boxes[1][-5, 138, 2] > 200


@pytest.mark.parametrize(("count", "columns"), [(1, 1), (4, 4), (5, 5), (11, 5)])
def test_pictures_stand_in_a_grid(picture, count, columns):
    tall, wide, _ = drawn([picture] * count).shape
    one = drawn([picture])
    assert wide == max(one.shape[1], 2 * 28 + columns * 312 - 12)
    rows = -(-count // columns)
    assert (tall - one.shape[0]) % max(rows - 1, 1) == 0
    assert (tall > one.shape[0]) == (rows > 1)


def test_more_pictures_than_a_sheet_holds_are_left_out_and_that_is_said(
    picture, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(sheet, "MOST_PICTURES", 3)
    path = tmp_path / "sheet.png"
    sheet.write_sheet(path, report_of([picture] * 5), [picture] * 5)
    assert capsys.readouterr().err == f"wrote {path}, with the first 3 of 5 pictures\n"
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert image.size == drawn([picture] * 3).shape[1::-1]


def test_any_names_and_any_number_of_answers_can_be_drawn(tmp_path):
    picture = write_picture(tmp_path / ("long name " * 20) / "\x1b[31m\n.png")
    few = drawn([picture], [answer("ant", 1.0)])
    many = drawn([picture], [answer(f"Ω {'x' * 300}\t[b]{n}", 0.01) for n in range(50)])
    assert few.shape[1] == many.shape[1]
    row = sheet._ROW + sheet._GAP
    assert many.shape[0] - few.shape[0] == (sheet.MOST_BARS - 1) * row


def test_a_text_is_cut_to_its_room():
    font = sheet._font(14)
    assert sheet._cut("okapi", font, 1000) == "okapi"
    cut = sheet._cut("okapi" * 50, font, 100)
    assert cut.endswith("…")
    assert 80 < font.getlength(cut) <= 100


def test_a_sheet_that_cannot_be_written(picture, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot write"):
        sheet.write_sheet(tmp_path / "file" / "sheet.png", report_of([picture]), [picture])
