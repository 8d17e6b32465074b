import contextlib
import io
import os
import struct
import time
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from PIL import Image, features

from pictures import memory_room
from recollect.errors import PictureError, one_line
from recollect.images import (
    MOST_SIDE,
    PICTURE_SUFFIXES,
    are_many,
    fit,
    has_picture_suffix,
    open_picture,
    read_pixels,
    thumbnail,
)

RED, GREEN, BLUE, WHITE, BLACK = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255), (0, 0, 0)

# A file of each format, as (name, format, options for saving).
FILES = [
    ("a.jpg", "JPEG", {}),
    ("progressive.jpg", "JPEG", {"progressive": True}),
    ("a.png", "PNG", {}),
    ("a.bmp", "BMP", {}),
    ("a.gif", "GIF", {}),
    ("a.webp", "WEBP", {}),
    ("lossless.webp", "WEBP", {"lossless": True}),
    ("a.tif", "TIFF", {}),
    ("deflate.tif", "TIFF", {"compression": "tiff_adobe_deflate"}),
    ("a.ppm", "PPM", {}),
]
NAMES = [name for name, _, _ in FILES]


def noise(width, height, channels=3, seed=0):
    shape = (height, width, channels) if channels else (height, width)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def encoded(image, form, **options):
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


def flat(colour, mode="RGB", size=(16, 16)):
    return Image.new(mode, size, colour)


def colours(picture, *places):
    image = open_picture(picture)
    assert image.mode == "RGB"
    found = [image.getpixel(place) for place in places or [(0, 0)]]
    return found if places else found[0]


def close(found, expected, within=3):
    return np.abs(np.subtract(found, expected)).max() <= within


def png(width, height, depth, colour_type, row, *chunks):
    """Return a PNG file of one row of samples as Pillow cannot write it."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, depth, colour_type, 0, 0, 0)
    between = b"".join(chunk(*each) for each in chunks)
    pixels = chunk(b"IDAT", zlib.compress(b"\0" + row))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + between + pixels + chunk(b"IEND", b"")


PICTURE = Image.fromarray(noise(24, 20))
ENCODED = {name: encoded(PICTURE, form, **options) for name, form, options in FILES}


@pytest.mark.parametrize("name", NAMES)
def test_a_path_its_text_its_bytes_and_its_image_are_the_same_picture(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(ENCODED[name])
    assert path.suffix in PICTURE_SUFFIXES
    with Image.open(path) as opened:
        readings = [open_picture(each) for each in (path, str(path), path.read_bytes(), opened)]
    assert all(reading.size == (24, 20) for reading in readings)
    assert len({reading.tobytes() for reading in readings}) == 1
    if name in {"a.png", "a.bmp", "lossless.webp", "a.tif", "deflate.tif", "a.ppm"}:
        assert readings[0].tobytes() == PICTURE.tobytes()


def test_grey_pictures_become_grey_rgb():
    assert colours(encoded(flat(77, "L"), "PNG")) == (77, 77, 77)
    assert colours(encoded(flat(77, "L"), "PPM")) == (77, 77, 77)
    assert close(colours(encoded(flat(77, "L"), "JPEG")), (77, 77, 77))
    assert colours(encoded(flat(1, "1"), "PNG")) == WHITE
    assert colours(encoded(flat(0, "1"), "PPM")) == BLACK
    assert colours(flat((77, 255), "LA")) == (77, 77, 77)


@pytest.mark.parametrize(
    "image",
    [
        flat((255, 0, 0, 0), "RGBA"),
        flat((9, 0), "LA"),
        flat((255, 0, 0, 0), "RGBA").convert("RGBa"),
        flat((9, 0), "LA").convert("La"),
    ],
    ids=lambda image: image.mode,
)
def test_what_is_transparent_is_white(image):
    assert colours(image) == WHITE
    if image.mode in {"RGBA", "LA"}:
        assert colours(encoded(image, "PNG")) == WHITE


def test_what_is_half_transparent_is_mixed_with_white():
    assert close(colours(encoded(flat((255, 0, 0, 128), "RGBA"), "PNG")), (255, 127, 127), within=1)
    assert close(colours(encoded(flat((0, 0, 0, 128), "RGBA"), "WEBP", lossless=True)), (127, 127, 127), 1)
    assert close(colours(noise(1, 1, 4) * 0 + np.array([0, 0, 0, 51], np.uint8)), (204, 204, 204), within=1)


def test_palettes_give_their_colours_and_their_transparent_entry_white():
    image = Image.new("P", (2, 1))
    image.putpalette([*RED, *GREEN])
    image.putpixel((1, 0), 1)
    both = (0, 0), (1, 0)
    for form in ("PNG", "GIF", "BMP", "TIFF"):
        assert colours(encoded(image, form), *both) == [RED, GREEN], form
    assert colours(encoded(image, "PNG", transparency=1), *both) == [RED, WHITE]
    assert colours(encoded(image, "GIF", transparency=0), *both) == [WHITE, GREEN]
    mixed = colours(encoded(image, "PNG", transparency=bytes([255, 128])), *both)
    assert mixed[0] == RED
    assert close(mixed[1], (127, 255, 127), within=1)


def test_a_transparent_colour_of_a_png_without_alpha_is_white():
    image = Image.fromarray(np.array([[RED, BLUE]], np.uint8))
    assert colours(encoded(image, "PNG", transparency=BLUE), (0, 0), (1, 0)) == [RED, WHITE]
    grey = Image.fromarray(np.array([[9, 70]], np.uint8))
    assert colours(encoded(grey, "PNG", transparency=9), (0, 0), (1, 0)) == [WHITE, (70, 70, 70)]


def test_cmyk_pictures_give_their_colours():
    red = flat((0, 255, 255, 0), "CMYK")
    assert close(colours(encoded(red, "JPEG", quality=95)), RED)
    assert colours(encoded(red, "TIFF")) == RED
    assert colours(red) == RED


def test_ycck_jpeg_gives_its_colours():
    # YCCK keeps the inks C, M, Y as if they were R, G, B, turned into YCbCr; the Adobe marker says so.
    luma, blue_chroma, red_chroma = flat((0, 255, 255), "RGB", (1, 1)).convert("YCbCr").getpixel((0, 0))
    stored = flat((255 - luma, 255 - blue_chroma, 255 - red_chroma, 0), "CMYK")
    data = bytearray(encoded(stored, "JPEG", quality=95))
    transform = data.index(b"Adobe") + 11
    assert data[transform] == 0
    data[transform] = 2
    assert close(colours(bytes(data)), RED)


def test_other_colour_spaces_give_their_colours():
    assert close(colours(flat((76, 85, 255), "YCbCr")), RED)
    assert close(colours(flat((0, 255, 255), "HSV")), RED)
    assert close(colours(flat((255, 128, 128), "LAB")), WHITE)
    assert colours(flat((1, 2, 3, 0), "RGBX")) == (1, 2, 3)


@pytest.mark.parametrize("mode", ["I;16", "I;16B", "I"])
def test_sixteen_bit_grey_is_scaled_not_clipped(mode):
    image = Image.new(mode, (5, 1))
    for x, value in enumerate((0, 257, 32896, 33020, 65535)):
        image.putpixel((x, 0), value)
    places = [(x, 0) for x in range(5)]
    expected = [(grey, grey, grey) for grey in (0, 1, 128, 128, 255)]
    assert colours(image, *places) == expected
    for form in ("TIFF", "PNG") if mode != "I" else ("TIFF", "PPM"):
        assert colours(encoded(image, form), *places) == expected, form


def test_a_dark_sixteen_bit_file_stays_dark():
    assert colours(encoded(flat(200, "I;16"), "PNG")) == (1, 1, 1)
    assert colours(encoded(flat(200, "I;16"), "PPM")) == (1, 1, 1)


def test_integer_and_float_images_are_scaled_by_their_range():
    assert colours(flat(200, "I")) == (200, 200, 200)
    assert colours(flat(200.0, "F")) == (200, 200, 200)
    assert colours(flat(32896.0, "F")) == (128, 128, 128)
    assert colours(encoded(flat(0.2, "F"), "TIFF")) == (51, 51, 51)


@pytest.mark.parametrize(
    ("mode", "value"), [("I", -5), ("I", 70000), ("F", float("nan")), ("F", float("inf"))]
)
def test_grey_values_of_unknown_range_are_refused(mode, value):
    with pytest.raises(PictureError, match=r"^scan: grey values from .* expected 0 to 255 or 0 to 65535"):
        open_picture(flat(value, mode), name="scan")


def test_sixteen_bit_png_with_colour_or_alpha():
    assert colours(png(1, 1, 16, 2, struct.pack(">3H", 65535, 32896, 0))) == (255, 128, 0)
    assert colours(png(1, 1, 16, 6, struct.pack(">4H", 65535, 32896, 0, 65535))) == (255, 128, 0)
    assert colours(png(1, 1, 16, 4, struct.pack(">2H", 0, 0))) == WHITE
    grey = png(2, 1, 16, 0, struct.pack(">2H", 32896, 500), (b"tRNS", struct.pack(">H", 500)))
    assert colours(grey, (0, 0), (1, 0)) == [(128, 128, 128), WHITE]


@pytest.mark.parametrize("form", ["GIF", "WEBP", "PNG", "TIFF"])
def test_the_first_frame_of_several_counts(form):
    frames = {"save_all": True, "append_images": [flat(GREEN), flat(BLUE)]}
    data = encoded(flat(RED), form, **frames, **({"lossless": True} if form == "WEBP" else {}))
    with Image.open(io.BytesIO(data)) as image:
        assert image.n_frames == 3
    assert colours(data) == RED


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize(
    ("orientation", "corner"),
    list(enumerate(2 * ["top left", "top right", "bottom right", "bottom left"], start=1)),
)
def test_exif_orientation_turns_the_picture_upright_once(form, orientation, corner):
    stored = flat(BLACK, size=(48, 32))
    stored.paste(RED, (0, 0, 16, 16))
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(stored, form, exif=exif)
    width, height = (48, 32) if orientation < 5 else (32, 48)
    place = (4 if "left" in corner else width - 5, 4 if "top" in corner else height - 5)
    for picture in (data, Image.open(io.BytesIO(data)), open_picture(data)):
        image = open_picture(picture)
        assert image.size == (width, height)
        assert close(image.getpixel(place), RED, within=40)
        assert close(np.asarray(image, int).sum(axis=(0, 1))[0] / 255, 256, within=16)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_damaged_exif_data_does_not_cost_the_picture():
    data = encoded(PICTURE, "PNG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff rubbish")
    assert open_picture(data).tobytes() == PICTURE.tobytes()
    assert open_picture(encoded(PICTURE, "PNG", exif=b"Exif\0\0rubbish")).tobytes() == PICTURE.tobytes()


def test_an_orientation_beside_a_damaged_entry_counts():
    """`ImageOps.exif_transpose` fails on this one: an image's width that is a real number."""
    entries = [(0x0112, 3, 1, 6), (0x0100, 12, 1, 3)]
    body = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    exif = b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<H", len(entries)) + body + b"\0\0\0\0"
    assert open_picture(encoded(PICTURE, "JPEG", exif=exif)).size == (20, 24)


def test_open_files_are_read_from_their_start_as_often_as_asked(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(ENCODED["a.png"])
    with path.open("rb") as file:
        file.read(10)
        for _ in range(2):
            assert open_picture(file).tobytes() == PICTURE.tobytes()
        assert thumbnail(file) == thumbnail(path)
        np.testing.assert_array_equal(read_pixels(file, 16), read_pixels(path, 16))
    with pytest.raises(PictureError, match=r"a\.png: the file cannot be read \(.*closed.*\)"):
        open_picture(file)
    with path.open("w+") as text, pytest.raises(PictureError, match=r"a\.png: the file gives str.*mode 'rb'"):
        open_picture(text)
    path.write_bytes(ENCODED["a.jpg"][:200])
    with path.open("rb") as file, pytest.raises(PictureError, match=r"a\.png: the picture is cut short"):
        open_picture(file)


def test_what_cannot_go_back_is_read_once():
    reader, writer = os.pipe()
    with os.fdopen(writer, "wb") as end:
        end.write(ENCODED["a.png"])
    with os.fdopen(reader, "rb") as pipe:
        assert open_picture(pipe).tobytes() == PICTURE.tobytes()


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_tensors_are_pictures_with_the_channels_first_or_last(channels):
    pixels = noise(24, 20, channels)
    expected = open_picture(pixels).tobytes()
    tensor = torch.from_numpy(pixels)
    for picture in (tensor, tensor.permute(2, 0, 1), tensor.permute(2, 0, 1).contiguous()):
        assert open_picture(picture).tobytes() == expected
    assert (
        open_picture(torch.from_numpy(pixels[:, :, 0])).tobytes() == open_picture(pixels[:, :, 0]).tobytes()
    )


def test_a_tensor_of_four_dimensions_is_many_pictures():
    pixels = np.stack([noise(24, 20, seed=seed) for seed in range(3)])
    batch = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    assert are_many(batch)
    assert not are_many(batch[0])
    np.testing.assert_array_equal(read_pixels(batch[1], 16), read_pixels(pixels[1], 16))


def test_other_tensors_are_refused_by_name():
    for tensor, said in (
        (torch.zeros(3, 4, 4, dtype=torch.bfloat16), "expected a tensor of uint8.*BFloat16"),
        (torch.zeros(3, 4, 4, dtype=torch.uint8, device="meta"), "expected a tensor of uint8.*no data"),
        (torch.rand(3, 9, 9), r"got float32 of shape \(9, 9, 3\)"),
        (torch.zeros(2, 9, 9, dtype=torch.uint8), r"got uint8 of shape \(2, 9, 9\)"),
    ):
        with pytest.raises(PictureError, match=said):
            open_picture(tensor)


def heic(**options):
    pillow_heif = pytest.importorskip("pillow_heif")
    stream = io.BytesIO()
    pillow_heif.from_pillow(flat(RED, size=(64, 48))).save(stream, quality=90, **options)
    return stream.getvalue()


def test_heic_is_read_where_pillow_heif_is_installed(tmp_path):
    (tmp_path / "a.heic").write_bytes(heic())
    for picture in (tmp_path / "a.heic", heic(), io.BytesIO(heic())):
        assert open_picture(picture).size == (64, 48)
        assert close(colours(picture), RED, within=8)
    assert has_picture_suffix("IMG_1.HEIC")
    with pytest.raises(PictureError, match=r"cut\.heic: this is not a picture, or its format"):
        open_picture(heic()[:-100], "cut.heic")


def test_avif_is_read_where_pillow_reads_it(tmp_path):
    if not features.check("avif"):
        pytest.skip("this Pillow was built without AVIF")
    Image.new("RGB", (40, 30), (200, 20, 20)).save(tmp_path / "a.avif", quality=95)
    assert np.abs(read_pixels(tmp_path / "a.avif", 16).astype(int) - (200, 20, 20)).max() < 8
    # The brand in front may be one that HEIC has too.
    content = (tmp_path / "a.avif").read_bytes()
    assert content[8:12] == b"avif"
    other = content[:8] + b"mif1" + content[12:]
    assert b"avif" in other[12:64]
    assert np.array_equal(read_pixels(other, 16), read_pixels(content, 16))
    assert has_picture_suffix("IMG_1.AVIF")


def test_heic_is_turned_upright_once():
    exif = Image.Exif()
    exif[0x0112] = 6
    assert open_picture(heic(exif=exif.tobytes())).size == (48, 64)


def test_without_pillow_heif_the_error_says_what_to_install(monkeypatch):
    content = heic()
    monkeypatch.setattr("recollect.images.reads_heic", lambda: False)
    assert not has_picture_suffix("IMG_1.HEIC")
    with pytest.raises(
        PictureError, match=r"IMG_1\.HEIC: this is HEIC\. pip install 'recollect\[heic\]', or"
    ):
        open_picture(content, "IMG_1.HEIC")


def with_scans(content, count):
    """Return a progressive JPEG whose last scan comes `count` times more."""
    last = content.rindex(b"\xff\xda")
    return content[:-2] + content[last:-2] * count + content[-2:]


def test_a_jpeg_of_very_many_scans_is_refused_at_once():
    content = encoded(flat(RED, size=(2000, 1500)), "JPEG", progressive=True)
    assert open_picture(with_scans(content, 2)).size == (2000, 1500)
    began = time.process_time()
    with pytest.raises(PictureError, match=r"slow\.jpg: over 593 scans take too long"):
        open_picture(with_scans(content, 3000), "slow.jpg")
    assert time.process_time() - began < 2
    small = with_scans(ENCODED["progressive.jpg"], 3000)
    with pytest.raises(PictureError, match="over 1000 scans"):
        read_pixels(small, 16)


def test_scans_cannot_hide_behind_a_marker_that_has_no_length():
    content = encoded(flat(RED, size=(2000, 1500)), "JPEG", progressive=True)
    scans = content[content.rindex(b"\xff\xda") : -2] * 3000
    hidden = content[:-2] + b"\xff\x01" + (len(scans) + 2).to_bytes(2) + scans + content[-2:]
    with pytest.raises(PictureError, match="over 593 scans"):
        open_picture(hidden)


def test_a_jpeg_file_of_gigabytes_is_refused_without_reading_it_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("recollect.images.MOST_JPEG", 4 << 20)
    path = tmp_path / "huge.jpg"
    path.write_bytes(ENCODED["a.jpg"])
    os.truncate(path, 1 << 30)  # it takes no room on the disk
    with memory_room(64 << 20), pytest.raises(PictureError, match=r"huge\.jpg: the file has more than 4 MiB"):
        open_picture(path)


def test_what_looks_like_scans_outside_the_picture_does_not_count():
    """A thumbnail inside the file, or the video that a phone appends."""
    content = ENCODED["progressive.jpg"]
    comment = b"\xff\xfe\xff\xf0" + b"\xff\xda" * ((0xFFF0 - 2) // 2)
    for each in (content + b"\xff\xda" * 5000, content[:2] + comment + content[2:]):
        assert open_picture(each).tobytes() == open_picture(content).tobytes()


def test_the_image_handed_over_is_left_alone():
    image = Image.open(io.BytesIO(ENCODED["a.jpg"]))
    before = (image.size, image.mode, image.copy().tobytes())
    result = open_picture(image)
    read_pixels(image, 4)
    result.paste(WHITE, (0, 0, 24, 20))
    assert (image.size, image.mode, image.tobytes()) == before


def test_arrays_of_every_accepted_shape():
    array = noise(7, 5)
    assert (np.asarray(open_picture(array)) == array).all()
    assert (np.asarray(open_picture(array[:, ::-1])) == array[:, ::-1]).all()
    grey = array[:, :, 0]
    for each in (grey, grey[:, :, None]):
        assert (np.asarray(open_picture(each)) == grey[:, :, None]).all()
    opaque = np.dstack([array, np.full((5, 7), 255, np.uint8)])
    assert (np.asarray(open_picture(opaque)) == array).all()


@pytest.mark.parametrize(
    ("array", "came"),
    [
        (np.zeros((4, 4, 3), np.float32), r"float32 of shape \(4, 4, 3\)"),
        (np.zeros((4, 4), bool), r"bool of shape \(4, 4\)"),
        (np.zeros((3, 8, 8), np.uint8), r"uint8 of shape \(3, 8, 8\)"),
        (np.zeros((2, 4, 4, 3), np.uint8), r"uint8 of shape \(2, 4, 4, 3\)"),
        (np.zeros(4, np.uint8), r"uint8 of shape \(4,\)"),
        (np.zeros((), np.uint8), r"uint8 of shape \(\)"),
        (np.zeros((0, 4, 3), np.uint8), "4 × 0 pixels"),
        (np.zeros((4, 0), np.uint8), "0 × 4 pixels"),
        (np.broadcast_to(np.uint8(0), (10_000, 10_000, 3)), "10000 × 10000 pixels"),
    ],
)
def test_other_arrays_are_refused_with_what_came(array, came):
    with pytest.raises(PictureError, match=came) as caught:
        open_picture(array, name="frame 7")
    assert str(caught.value).startswith("frame 7: ")


@pytest.mark.parametrize("thing", [None, 3, ["a.png"], bytearray(b"abc"), object()])
def test_other_things_are_refused_with_their_type(thing):
    with pytest.raises(PictureError, match=f"expected a path.*got {type(thing).__name__}"):
        open_picture(thing)


def test_missing_files_folders_and_pipes_are_named(tmp_path):
    (tmp_path / "a.jpg").mkdir()
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "note.jpg").write_text("not a picture at all, " * 20)
    for name, why in {
        "none.jpg": "there is no such file",
        "note.jpg/b.jpg": "there is no such file",
        "a.jpg": r"this is a folder. Give the pictures in it, such as sorted\(Path\('.*a\.jpg'\)\.glob",
        "pipe.jpg": "not a regular file",
        "empty.jpg": "the file is empty",
        "note.jpg": "not a picture",
        "x" * 5000: "cannot be opened",
        "nul\0.jpg": "cannot be opened",
    }.items():
        with pytest.raises(PictureError, match=why) as caught:
            open_picture(tmp_path / name)
        assert str(caught.value).startswith(one_line(f"{tmp_path / name}: "))
        assert "\n" not in str(caught.value)
    with pytest.raises(PictureError, match="the file is empty"):
        open_picture(b"")


def test_formats_that_run_programs_or_are_rare_are_refused():
    for form in ("EPS", "PDF", "ICNS"):
        with pytest.raises(PictureError, match="not a picture, or its format is not supported"):
            open_picture(encoded(flat(RED, size=(16, 16)), form))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", NAMES)
def test_files_cut_short_anywhere_are_refused_and_named(tmp_path, name):
    path = tmp_path / name
    data = ENCODED[name]
    for length in {1, 2, 4, 8, 16, 30, 60, len(data) // 3, len(data) // 2, len(data) * 3 // 4}:
        path.write_bytes(data[:length])
        with pytest.raises(PictureError) as caught:
            open_picture(path)
        assert str(caught.value).startswith(f"{path}: ")
        assert "again" in str(caught.value) or "convert" in str(caught.value)


def test_a_picture_that_declares_a_huge_size_is_refused_before_decoding(tmp_path):
    path = tmp_path / "bomb.png"
    path.write_bytes(png(60_000, 60_000, 8, 2, b""))
    with pytest.raises(PictureError, match=r"bomb\.png: the picture is too large.*Scale it down") as caught:
        open_picture(path)
    assert str(caught.value).count("too large") == 1


@pytest.mark.parametrize("action", ["ignore", "error"])
def test_a_picture_that_pillow_only_warns_of_is_refused_too(action):
    with warnings.catch_warnings():
        warnings.simplefilter(action)
        with pytest.raises(PictureError, match="the picture is too large"):
            open_picture(png(10_000, 9_500, 8, 2, b""))


def test_a_limit_someone_else_set_in_pillow_holds_and_stays(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(PictureError, match="too large"):
        open_picture(ENCODED["a.png"])
    assert Image.MAX_IMAGE_PIXELS == 100


def test_an_interruption_is_not_taken_for_a_damaged_picture(monkeypatch):
    def interrupt(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(Image, "open", interrupt)
    with pytest.raises(KeyboardInterrupt):
        open_picture(ENCODED["a.png"])


def test_a_closed_image_is_refused():
    image = Image.open(io.BytesIO(ENCODED["a.png"]))
    image.close()
    with pytest.raises(PictureError):
        open_picture(image)


MUTATION = st.tuples(
    st.one_of(st.integers(0, 90), st.integers(0, 4000)),
    st.sampled_from("=+-|"),
    st.binary(min_size=1, max_size=6),
)


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=300, deadline=None)
@given(st.sampled_from(NAMES), st.lists(MUTATION, min_size=1, max_size=8))
def test_damaged_files_raise_nothing_but_picture_errors(name, mutations):
    data = bytearray(ENCODED[name])
    for place, action, filling in mutations:
        start = place % (len(data) or 1)
        end = {"+": start, "|": len(data)}.get(action, start + len(filling))
        data[start:end] = b"" if action in "-|" else filling
    try:
        read = read_pixels(bytes(data), 8, name="damaged")
    except PictureError as error:
        read = str(error)
    if isinstance(read, str):
        assert read.startswith("damaged: ")
        assert "\n" not in read
    else:
        assert read.shape == (8, 8, 3)


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=100, deadline=None)
@given(
    st.binary(max_size=60),
    st.sampled_from([b"", b"\xff\xd8\xff", b"GIF89a", b"II*\0", b"BM", b"P6 ", b"P2 9 "]),
)
def test_rubbish_raises_nothing_but_picture_errors(rubbish, start):
    with contextlib.suppress(PictureError):
        open_picture(start + rubbish)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 20), st.integers(0, 9))
@settings(max_examples=150, deadline=None)
def test_the_result_always_has_the_size_asked_for(width, height, size, more):
    pixels = read_pixels(noise(width, height), size, size + more)
    assert pixels.shape == (size, size, 3)
    assert pixels.dtype == np.uint8
    assert pixels.flags.writeable
    assert pixels.flags.c_contiguous


def resized_then_cut(image, size, short_side):
    full = [side * short_side // min(image.size) for side in image.size]
    left, top = (round((side - size) / 2) for side in full)
    whole = np.asarray(image.resize(full, Image.Resampling.BICUBIC), int)
    return whole[top : top + size, left : left + size]


@given(st.integers(1, 60), st.integers(1, 60), st.integers(10, 20), st.integers(0, 6))
@settings(max_examples=150, deadline=None)
def test_fit_equals_resizing_the_whole_and_cutting_out_the_centre(width, height, size, more):
    # Away from 0 and 255: Pillow clips between its two passes, and a crop may change which comes first.
    image = Image.fromarray(noise(width, height) // 2 + 64)
    assume(image.size != (size, size))
    assert np.abs(fit(image, size, size + more) - resized_then_cut(image, size, size + more)).max() <= 3


@pytest.mark.parametrize("shape", [(1200, 900), (900, 1201)])
def test_shrinking_a_large_picture_in_two_steps_looks_the_same(shape):
    image = Image.fromarray(noise(12, 9)).resize(shape, Image.Resampling.BICUBIC)
    assert np.abs(fit(image, 64, 72) - resized_then_cut(image, 64, 72)).max() <= 4


def test_pixels_that_fit_already_are_kept():
    array = noise(32, 32)
    assert (fit(Image.fromarray(array), 32) == array).all()
    assert (fit(Image.fromarray(array), 32, short_side=36) == array).all()
    assert (read_pixels(encoded(Image.fromarray(array), "PNG"), 32) == array).all()
    wide = noise(47, 32)
    assert (fit(Image.fromarray(wide), 32) == wide[:, 8:40]).all()
    tall = noise(36, 50)
    assert (fit(Image.fromarray(tall), 32, short_side=36) == tall[9:41, 2:34]).all()


def test_fit_takes_images_of_any_mode():
    assert (fit(flat((9, 9, 9, 0), "RGBA"), 4) == 255).all()
    assert (fit(flat(32896, "I;16"), 4) == 128).all()
    with pytest.raises(PictureError, match="0 × 4 pixels"):
        fit(Image.new("RGB", (0, 4)), 4)


@pytest.mark.parametrize(("width", "height"), [(1, 5000), (5000, 1), (1, MOST_SIDE), (MOST_SIDE, 2)])
def test_extreme_shapes_show_their_centre(width, height):
    array = np.zeros((height, width, 3), np.uint8)
    array[height // 2 - min(9, height // 2) : height // 2 + 9, max(0, width // 2 - 9) : width // 2 + 9] = 200
    assert (read_pixels(array, 84) == 200).all()
    assert (read_pixels(array, 224, 256) == 200).all()


def test_a_side_beyond_the_limit_is_refused():
    with pytest.raises(PictureError, match="too large"):
        read_pixels(np.zeros((1, MOST_SIDE + 1), np.uint8), 8)


@pytest.mark.parametrize(("size", "short_side"), [(0, None), (-1, None), (8, 7)])
def test_an_impossible_size_is_the_callers_mistake(size, short_side):
    with pytest.raises(ValueError, match="size"):
        read_pixels(noise(9, 9), size, short_side)


@pytest.mark.parametrize("orientation", [1, 6])
def test_a_large_jpeg_read_the_quick_way_looks_the_same(orientation):
    smooth = Image.fromarray(noise(12, 9)).resize((1200, 900), Image.Resampling.BICUBIC)
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(smooth, "JPEG", quality=95, exif=exif)
    quick = read_pixels(data, 64, 72).astype(int)
    exact = fit(open_picture(data), 64, 72)
    assert np.abs(quick - exact).mean() < 1
    assert np.abs(quick - exact).max() < 12


@pytest.mark.parametrize("many", [[], (), [b""], np.zeros((0, 8, 8, 3), np.uint8)], ids=str)
def test_sequences_and_arrays_of_four_dimensions_are_many_pictures(many):
    assert are_many(many)
    for one in ("a.jpg", Path("a.jpg"), b"", flat(RED), noise(9, 9), noise(9, 9, 0)):
        assert not are_many(one)
