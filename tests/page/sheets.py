"""Sheets of the page in every state that people meet, to be looked at: `python tests/page/sheets.py OUT`.

For each state one sheet: 360, 768 and 1440 pixels wide, light above dark. RECOLLECT_DATA names the folder
with the photographs of groceries. `python tests/page/sheets.py OUT WORD` makes the sheets with a word in
their name.
"""

# ruff: noqa: E402
import io
import os
import sys
import tempfile
import threading
import zipfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
from looking import CROSS, HOUSE, INSECURE, PSI, Looking, browsing, file, jpeg, photograph
from PIL import Image

from recollect import Recognizer
from serving import TOKEN, Service, serving

WIDTHS, SCHEMES, HEIGHT = (360, 768, 1440), ("light", "dark"), 900
MARKUP = "<img src=x onerror=alert(1)>"
LONG = "the small green bottle of olive oil that my grandmother brought from a village near Kalamata in 1987"
UNBROKEN = "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft"
REFUSED = (
    "navigator.mediaDevices.getUserMedia = async () => { throw new DOMException('', 'NotAllowedError'); };"
)
STATES = {}


def state(function):
    """Make a sheet of a state; its docstring says how it comes about."""
    STATES[function.__name__] = function
    return function


class Scene:
    """The services, and the pictures that are shown to them."""

    def __init__(self, browser, glyphs, imagenet, locked, photos) -> None:
        self.browser, self.glyphs, self.imagenet, self.locked = browser, glyphs, imagenet, locked
        self.photos = photos
        self.how = {}

    def look(self, service, **options) -> Looking:
        return Looking(self.browser, service.url, **{**self.how, **options})

    def photo(self, name):
        return file(name.replace("/", " "), self.photos(name))


def known(page) -> None:
    page.page.locator("#answers > li").first.wait_for()


@state
def empty(scene):
    return scene.look(scene.imagenet)


@state
def empty_drawing(scene):
    return scene.look(scene.glyphs)


@state
def loading(scene):
    released = threading.Event()
    recognizer = scene.glyphs.engine.recognizer
    categories, recognizer.categories = recognizer.categories, lambda: (released.wait(9), categories())[1]
    page = scene.look(scene.glyphs, loaded=False)
    page.page.locator(".skeleton").first.wait_for()
    page.after = lambda: (released.set(), setattr(recognizer, "categories", categories))
    return page


@state
def slow(scene):
    page = scene.look(scene.imagenet, clock=True)
    page.page.route("**/v1/predict*", lambda _: None)
    page.choose(scene.photo("Lemon/004.jpg"))
    page.page.locator("#picture").wait_for()
    page.waits(6)
    return page


@state
def offline(scene):
    page = scene.look(scene.imagenet)
    page.choose(scene.photo("Lemon/004.jpg"))
    known(page)
    page.context.set_offline(True)
    page.choose(scene.photo("Kiwi/002.jpg"))
    page.page.locator("#banner").wait_for()
    return page


@state
def token(scene):
    page = scene.look(scene.locked)
    page.draw(HOUSE)
    page.page.fill("#name", "house")
    page.page.click("#teach-button")
    page.page.fill("#token-value", "wrong")
    page.page.keyboard.press("Enter")
    page.page.get_by_text("This token is wrong.").wait_for()
    return page


@state
def token_needed(scene):
    page = scene.look(scene.locked)
    page.draw(HOUSE)
    known(page)
    return page


@state
def queue_full(scene):
    page = scene.look(scene.imagenet, clock=True)
    full = {"status": 503, "headers": {"Retry-After": "9"}, "json": {"detail": "256 pictures are waiting"}}
    page.choose(scene.photo("Lemon/004.jpg"))
    known(page)
    page.page.route("**/v1/*", lambda route: route.fulfill(**full))
    page.page.fill("#name", "lemon tea")
    page.page.click("#teach-button")
    page.choose(scene.photo("Kiwi/002.jpg"))
    page.page.get_by_text("The service is busy").first.wait_for()
    return page


@state
def broken_picture(scene):
    page = scene.look(scene.imagenet)
    page.drop(scene.photo("Lemon/004.jpg"), file("holiday.jpg", scene.photos("Kiwi/002.jpg")[:900]))
    page.toast("holiday.jpg").wait_for()
    known(page)
    return page


@state
def camera_refused(scene):
    page = scene.look(scene.imagenet, script=REFUSED)
    page.page.click("[data-mode=camera]")
    page.page.locator("#camera-problem").wait_for()
    return page


@state
def camera_insecure(scene):
    page = scene.look(Service(f"http://{INSECURE}:{scene.imagenet.address[1]}"))
    page.page.click("[data-mode=camera]")
    page.page.locator("#camera-problem").wait_for()
    return page


@state
def camera_live(scene):
    page = scene.look(scene.imagenet)
    page.page.click("[data-mode=camera]")
    known(page)
    for _ in range(3):
        page.page.click("#capture")
    return page


@state
def camera_held(scene):
    page = scene.look(scene.imagenet)
    page.page.click("[data-mode=camera]")
    page.page.locator("#answers .fix:visible").first.hover()
    page.page.locator("#still").wait_for()
    return page


@state
def unknown(scene):
    page = scene.look(scene.glyphs)
    page.draw([[(0.1, 0.5), (0.9, 0.5)], [(0.5, 0.1), (0.5, 0.9)], [(0.1, 0.1), (0.9, 0.9)], *CROSS, *HOUSE])
    known(page)
    return page


@state
def answers(scene):
    page = scene.look(scene.imagenet)
    page.choose(*(scene.photo(f"Kiwi/00{number}.jpg") for number in (3, 6, 7)), scene.photo("Lemon/004.jpg"))
    page.page.locator("#tray .caption").nth(3).wait_for()
    known(page)
    page.page.fill("#name", "kiwi")
    return page


@state
def taught(scene):
    page = scene.look(scene.imagenet)
    page.choose(scene.photo("Avocado/003.jpg"))
    known(page)
    page.row("kiwi").locator(".head").click()
    page.row("kiwi").locator(".leans li").first.wait_for()
    return page


@state
def forgotten(scene):
    page = scene.look(scene.imagenet)
    page.page.route("**/v1/categories/kiwi", lambda route: route.fulfill(status=204))
    page.row("kiwi").locator(".head").click()
    page.row("kiwi").locator(".forget").click()
    page.toast("is forgotten").wait_for()
    return page


@state
def names(scene):
    page = scene.look(scene.imagenet)
    page.choose(file("one.jpg", jpeg(photograph(5))))
    known(page)
    page.page.fill("#name", MARKUP)
    page.row(LONG).locator(".head").click()
    page.row(LONG).locator(".leans li").first.wait_for()
    return page


@state
def drawing(scene):
    page = scene.look(scene.glyphs)
    for turn in (0, 8):
        page.draw(PSI, turn)
        page.page.click("#add")
    page.draw(PSI, -6)
    known(page)
    page.page.fill("#name", "trident")
    return page


@state
def search_none(scene):
    page = scene.look(scene.glyphs)
    page.page.fill("#search", "zebra")
    return page


def sheet(scene, make, out) -> None:
    """Write a sheet of one state."""
    shots = []
    for scheme in SCHEMES:
        for width in WIDTHS:
            scene.how = {"color_scheme": scheme, "viewport": {"width": width, "height": HEIGHT}}
            page = make(scene)
            try:
                page.page.wait_for_timeout(200)
                shots.append(Image.open(io.BytesIO(page.page.screenshot(full_page=width < 1000))))
            finally:
                getattr(page, "after", lambda: None)()
                page.context.close()
    gap = 12
    columns = [max(shot.width for shot in shots[place :: len(WIDTHS)]) for place in range(len(WIDTHS))]
    heights = [
        max(shot.height for shot in shots[: len(WIDTHS)]),
        max(shot.height for shot in shots[len(WIDTHS) :]),
    ]
    paper = Image.new("RGB", (sum(columns) + gap * 4, sum(heights) + gap * 3), "#808080")
    for number, shot in enumerate(shots):
        row, column = divmod(number, len(WIDTHS))
        paper.paste(shot, (gap + sum(columns[:column]) + gap * column, gap + row * (heights[0] + gap)))
    paper.save(out / f"{make.__name__}.png")
    print(make.__name__, flush=True)  # noqa: T201


def main(out: str, word: str = "") -> None:
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    archive = zipfile.ZipFile(Path(os.environ["RECOLLECT_DATA"]) / "grocery" / "photos.zip")
    with tempfile.TemporaryDirectory() as place:
        seen = Path(place) / "seen.mjpeg"
        frames = Image.open(io.BytesIO(archive.read("Kiwi/002.jpg"))).convert("RGB").resize((480, 480))
        seen.write_bytes(30 * jpeg(frames))
        with (
            serving("glyphs", threads=1) as glyphs,
            serving("imagenet", threads=1, hosts=(INSECURE,)) as imagenet,
            serving("glyphs", threads=1, token=TOKEN) as locked,
            browsing(Path(place), seen) as browser,
        ):
            recognizer: Recognizer = imagenet.engine.recognizer
            odd = {LONG: "Leek/003.jpg", MARKUP: "Lime/003.jpg", UNBROKEN: "Mango/003.jpg"}
            for name, picture in odd.items():
                recognizer.teach(name, archive.read(picture), thumbnails=True)
            kiwis = [archive.read(f"Kiwi/00{number}.jpg") for number in (2, 5)]
            recognizer.teach("kiwi", kiwis, thumbnails=True)
            scene = Scene(browser, glyphs, imagenet, locked, archive.read)
            for name, make in STATES.items():
                if word in name:
                    sheet(scene, make, folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
