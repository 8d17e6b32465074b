"""Nobody is kept out: axe-core finds nothing serious in any state, light or dark, wide or narrow."""

import pytest
from looking import PSI

axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is missing")


def serious(page):
    """Return what axe-core finds, with the elements that it finds it in."""
    found = axe.Axe().run(page.page).response["violations"]
    return [
        (one["id"], [node["html"][:200] for node in one["nodes"]])
        for one in found
        if one["impact"] in {"serious", "critical"}
    ]


@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (1440, "dark")])
def test_axe_finds_nothing_serious(look, service, width, scheme):
    page = look(service, color_scheme=scheme, viewport={"width": width, "height": 900})
    assert serious(page) == []
    page.draw(PSI)
    page.page.click("#add")
    page.draw(PSI)
    page.page.locator("#answers > li").first.wait_for()
    page.teach("trident")
    page.row("trident").locator(".head").click()
    page.row("trident").locator(".leans li").first.wait_for()
    assert serious(page) == []
    page.page.evaluate("document.getElementById('token').showModal()")
    assert serious(page) == []
    assert page.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
