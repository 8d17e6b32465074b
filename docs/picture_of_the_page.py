"""Make docs/page.png and docs/page.webp from real use of the page.

    RECOLLECT_DATA=… python docs/picture_of_the_page.py

Starts `recollect serve imagenet` and Chromium, whose camera sees photographs of groceries in turn.
Somebody holds up a kiwi, captures it twice, names it, shows a lemon, and another photograph of kiwis.
"""

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

HERE = Path(__file__).parent
PHONE, DESK = (390, 780), (1360, 800)
SEEN = ("Kiwi/002.jpg", "Kiwi/005.jpg", "Lemon/004.jpg", "Kiwi/003.jpg")
SECONDS = 10  # for each photograph
RATE = 30  # pictures a second, as the browser plays them
FLAGS = (
    *("--headless", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--hide-scrollbars"),
    *("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"),
)


def film(photographs: list[Image.Image], path: Path) -> Path:
    """Write a film for the browser's camera: each photograph comes slowly nearer."""
    with path.open("wb") as file:
        for photograph in photographs:
            for number in range(SECONDS * RATE):
                near = 1 - 0.12 * number / (SECONDS * RATE)
                width, height = (round(side * near) for side in photograph.size)
                left, top = (photograph.width - width) // 2, (photograph.height - height) // 2
                frame = photograph.resize((480, 480), box=(left, top, left + width, top + height))
                frame.save(file, "JPEG", quality=85)
    return path


def square(content: bytes) -> Image.Image:
    """Return the middle of a photograph."""
    image = Image.open(io.BytesIO(content)).convert("RGB")
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return image.crop((left, top, left + side, top + side))


class Recording:
    """Pictures of a page, with the time that each was shown."""

    def __init__(self, page: Page) -> None:
        self.page, self.frames, self.moments = page, [], []

    def shoot(self) -> None:
        """Take one picture."""
        self.moments.append(time.monotonic())
        self.frames.append(Image.open(io.BytesIO(self.page.screenshot())).convert("RGB"))

    def watch(self, seconds: float) -> None:
        """Take pictures for a while."""
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            self.shoot()
            self.page.wait_for_timeout(100)

    def save(self, path: Path) -> None:
        """Write an animation that plays as it was, but never waits long."""
        gaps = [later - earlier for earlier, later in zip(self.moments, self.moments[1:], strict=False)]
        lengths = [min(400, max(60, round(1000 * gap))) for gap in gaps] + [1500]
        first, *rest = self.frames
        first.save(path, save_all=True, append_images=rest, duration=lengths, loop=0, quality=60, method=4)


def use(page: Page, url: str, recording: Recording | None) -> None:
    """Do what the pictures show."""

    def watch(seconds: float) -> None:
        if recording:
            recording.watch(seconds)
        else:
            page.wait_for_timeout(1000 * seconds)

    def until(photograph: int) -> None:
        """Wait until the camera has shown a photograph for a moment."""
        left = SECONDS * photograph + 1.0 - (time.monotonic() - began)
        page.wait_for_timeout(max(0, 1000 * left))

    page.goto(url)
    page.locator("#categories:not([aria-busy])").wait_for()
    page.click("[data-mode=camera]")
    page.wait_for_function("() => document.getElementById('video').readyState === 4")
    began = time.monotonic()
    page.locator("#answers > li").first.wait_for()
    watch(1.5)
    page.click("#capture")
    watch(0.5)
    until(1)
    watch(1)
    page.click("#capture")
    watch(0.3)
    for letter in "kiwi":
        page.locator("#name").press_sequentially(letter)
        watch(0.1)
    page.click("#teach-button")
    watch(2.5)
    until(2)
    watch(2.5)
    until(3)
    watch(2.5)


def main() -> None:
    """Serve, use, and write the pictures."""
    chromium = shutil.which("chromium")
    if chromium is None or "RECOLLECT_DATA" not in os.environ:
        sys.exit("install chromium, and name the folder of the data in RECOLLECT_DATA")
    with zipfile.ZipFile(Path(os.environ["RECOLLECT_DATA"]) / "grocery" / "photos.zip") as photos:
        seen = [square(photos.read(name)) for name in SEEN]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        flags: list[str] = [
            *FLAGS,
            f"--use-file-for-fake-video-capture={film(seen, folder / 'seen.mjpeg')}",
        ]
        if os.getuid() == 0:
            flags.append("--no-sandbox")
        with sync_playwright() as playwright:
            for size, out in ((PHONE, "page.webp"), (DESK, "page.png")):
                with _Service(folder / Path(out).suffix[1:]) as url:
                    browser = playwright.chromium.launch(executable_path=chromium, args=flags)
                    width, height = size
                    page = browser.new_page(viewport={"width": width, "height": height})
                    recording = Recording(page) if out == "page.webp" else None
                    use(page, url, recording)
                    if recording:
                        recording.save(HERE / out)
                    else:
                        page.locator(".toast .dismiss").first.click()
                        page.locator(".novel .head").first.click()
                        page.locator(".leans li").first.wait_for()
                        page.screenshot(path=HERE / out, animations="disabled")
                    browser.close()


class _Service:
    """`recollect serve imagenet` with a store of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> str:
        self._folder.mkdir()
        log = self._folder / "log"
        words = ["serve", "imagenet", "--port", "0", "--store", str(self._folder / "taught.sqlite")]
        with log.open("wb") as file:
            self._process = subprocess.Popen([sys.executable, "-m", "recollect.cli", *words], stderr=file)
        while not (found := re.search(r"served at (\S+)\"", log.read_text(encoding="utf-8"))):
            if self._process.poll() is not None:
                sys.exit(log.read_text(encoding="utf-8"))
            time.sleep(0.1)
        return found[1]

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()


if __name__ == "__main__":
    main()
