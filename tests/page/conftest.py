"""A real browser that looks at a real service."""

import pytest
from looking import CHROMIUM, INSECURE, Looking, browsing

from recollect import Recognizer
from serving import serving


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """Chromium, whose camera sees a thing that turns a little."""
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no chromium here: apt-get install chromium")
    with browsing(tmp_path_factory.mktemp("browser")) as chromium:
        yield chromium


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


@pytest.fixture(scope="session")
def served():
    """A service of the model of characters; what it is taught is in memory."""
    with serving("glyphs", threads=1, hosts=(INSECURE,)) as running:
        yield running


@pytest.fixture
def service(served):
    """The service, as if nothing had happened to it."""
    engine = served.engine
    engine.recognizer = Recognizer(engine.recognizer.backend)
    engine.recognizer.before_adding = engine._check_room
    engine._waiting = 0
    return served


@pytest.fixture
def page(look, service):
    """The page of a service that was taught nothing."""
    return look(service)
