"""What a person does at the page, through a browser."""

import base64
import io
import math
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

INSECURE = "recollect.test"  # a name that leads here, at which a browser trusts nobody
PATIENCE = 20_000  # milliseconds, for a busy machine
CHROMIUM = shutil.which("chromium")
FLAGS = (
    *("--headless", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", f"--host-resolver-rules=MAP {INSECURE} 127.0.0.1"),
    *("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"),
)


@contextmanager
def browsing(folder: Path, seen: Path | None = None) -> Iterator:
    """Start Chromium, whose camera sees a film, or else a thing that turns a little."""
    from playwright.sync_api import sync_playwright

    flags = [*FLAGS, f"--use-file-for-fake-video-capture={seen or film(folder)}"]
    if os.getuid() == 0:
        flags.append("--no-sandbox")
    home = {**os.environ, "HOME": str(folder)}
    with sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=flags, env=home)
        yield chromium
        chromium.close()


def photograph(seed: int = 0, side: int = 240, turn: float = 0.0) -> Image.Image:
    """Return a picture of a thing: a few shapes in colours of its own, turned a little."""
    rng = np.random.default_rng(seed)
    image = Image.new("RGB", (side * 4 // 3, side), tuple(rng.integers(140, 256, 3).tolist()))
    draw = ImageDraw.Draw(image)
    for _ in range(4):
        x, y = rng.integers(side // 4, side, 2).tolist()
        size = int(rng.integers(side // 8, side // 3))
        draw.ellipse((x, y, x + size, y + size // 2), fill=tuple(rng.integers(0, 160, 3).tolist()))
    return image.rotate(turn, fillcolor=image.getpixel((0, 0)))


def jpeg(image: Image.Image) -> bytes:
    content = io.BytesIO()
    image.save(content, "JPEG", quality=90)
    return content.getvalue()


def film(folder: Path) -> Path:
    """Return a film for the browser's camera: JPEGs one after the other."""
    path = folder / "thing.mjpeg"
    turns = [10 * math.sin(k / 15 * math.pi) for k in range(30)]
    path.write_bytes(b"".join(jpeg(photograph(1, 480, turn)) for turn in turns))
    return path


def file(name: str, content: bytes, kind: str = "image/jpeg") -> dict[str, object]:
    return {"name": name, "mimeType": kind, "buffer": content}


# Characters as lists of strokes, each a list of points between 0 and 1.
PSI = [
    [(0.2, 0.2), (0.22, 0.45), (0.35, 0.6), (0.5, 0.62), (0.65, 0.6), (0.78, 0.45), (0.8, 0.2)],
    [(0.5, 0.15), (0.5, 0.85)],
]
CROSS = [[(0.2, 0.2), (0.8, 0.8)], [(0.8, 0.2), (0.2, 0.8)]]
HOUSE = [[(0.25, 0.85), (0.25, 0.45), (0.5, 0.15), (0.75, 0.45), (0.75, 0.85), (0.25, 0.85)]]


class Looking:
    """One person at the page of a service."""

    def __init__(self, browser, url, *, errors=(), script=None, loaded=True, clock=False, **options) -> None:
        self.context = browser.new_context(
            **{"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce", **options}
        )
        if script:
            self.context.add_init_script(script)
        self.page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.errors: list[str] = []
        self.expected = errors
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", self._complain)
        if clock:
            self.page.clock.install()
        self.page.goto(url)
        if loaded:
            self.page.locator("#categories:not([aria-busy])").wait_for(state="attached")

    def _complain(self, message) -> None:
        if message.type in {"error", "warning"}:
            self.errors.append(message.text)

    def close(self) -> None:
        found = [text for text in self.errors if not any(word in text for word in self.expected)]
        self.context.close()
        assert found == [], found  # pytest does not explain assertions outside of test files

    # What a person sees

    @property
    def verdict(self):
        return self.page.locator("#verdict")

    @property
    def answers(self) -> list[tuple[str, str]]:
        """The name and the origin of each answer."""
        rows = self.page.locator("#answers > li").all()
        return [
            (row.locator(".name").inner_text(), row.locator(".tag").inner_text() or "unknown") for row in rows
        ]

    @property
    def taught(self) -> list[str]:
        return self.page.locator("#categories > .novel .head .name").all_inner_texts()

    def row(self, name):
        return self.page.locator("#categories > li").filter(has=self.page.get_by_text(name, exact=True))

    def toast(self, words):
        return self.page.locator("#toasts > div", has_text=words)

    def sees(self, name) -> None:
        """Wait until a category is the first answer."""
        self.page.wait_for_function(
            "name => document.getElementById('verdict').textContent === name", arg=name
        )

    def waits(self, seconds) -> None:
        """Let time pass for the page, which was opened with a `clock`, and for nobody else."""
        self.page.clock.run_for(1000 * seconds)

    # What a person does

    def draw(self, strokes, turn=0.0, size=1.0) -> None:
        """Draw strokes with the mouse, turned by some degrees, and smaller."""
        box = self.page.locator("#canvas").bounding_box()
        sin, cos = math.sin(math.radians(turn)), math.cos(math.radians(turn))
        for stroke in strokes:
            for number, (x, y) in enumerate(stroke):
                right, down = size * (x - 0.5), size * (y - 0.5)
                place = (
                    box["x"] + box["width"] * (0.5 + cos * right - sin * down),
                    box["y"] + box["height"] * (0.5 + sin * right + cos * down),
                )
                self.page.mouse.move(*place, steps=4)
                if number == 0:
                    self.page.mouse.down()
            self.page.mouse.up()

    def choose(self, *files) -> None:
        self.page.locator("#files").set_input_files(list(files))

    def drop(self, *files) -> None:
        """Drag files from outside, and drop them on the page."""
        given = [(one["name"], one["mimeType"], base64.b64encode(one["buffer"]).decode()) for one in files]
        self.page.evaluate(
            """given => {
                const carried = new DataTransfer();
                for (const [name, type, content] of given) {
                    const bytes = Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0));
                    carried.items.add(new File([bytes], name, { type }));
                }
                for (const kind of ["dragenter", "dragover", "drop"]) {
                    const how = { dataTransfer: carried, bubbles: true, cancelable: true };
                    const event = new DragEvent(kind, how);
                    document.getElementById("stage").dispatchEvent(event);
                }
            }""",
            given,
        )

    def tab_to(self, selector) -> None:
        """Press Tab until something has the focus, which can be seen."""
        for _ in range(80):
            self.page.keyboard.press("Tab")
            if self.page.evaluate("words => document.activeElement.matches(words)", selector):
                return
        raise AssertionError(f"Tab never leads to {selector}")

    def teach(self, name) -> None:
        self.page.fill("#name", name)
        self.page.click("#teach-button")
        self.toast(f"“{name}”").first.wait_for()
