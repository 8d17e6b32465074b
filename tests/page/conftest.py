"""A real browser that looks at a real service."""

import os
import shutil

import pytest
from looking import INSECURE, Looking, film

from serving import serving

CHROMIUM = shutil.which("chromium")
FLAGS = (
    *("--headless", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", f"--host-resolver-rules=MAP {INSECURE} 127.0.0.1"),
    *("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"),
)


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """Chromium, whose camera sees a thing that turns a little."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no chromium here: apt-get install chromium")
    folder = tmp_path_factory.mktemp("browser")
    flags = [*FLAGS, f"--use-file-for-fake-video-capture={film(folder)}"]
    if os.getuid() == 0:
        flags.append("--no-sandbox")
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(
            executable_path=CHROMIUM, args=flags, env={**os.environ, "HOME": str(folder)}
        )
        yield chromium
        chromium.close()


@pytest.fixture
def look(browser):
    """Open a page: `look(service)`; whatever the browser complains about fails the test."""
    opened = []

    def open_page(service, **options):
        opened.append(Looking(browser, service.url, **options))
        return opened[-1]

    yield open_page
    for one in opened:
        one.close()


@pytest.fixture
def service():
    """A service of the model of characters; what it is taught is in memory."""
    with serving("glyphs", threads=1, hosts=(INSECURE,)) as running:
        yield running


@pytest.fixture
def page(look, service):
    """The page of a service that was taught nothing."""
    return look(service)
