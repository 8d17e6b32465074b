"""The states that people meet, each of which looks intended, and none of which keeps anybody out."""

import threading

import pytest
from looking import HOUSE, INSECURE, PSI, file, jpeg, photograph

from recollect.modelfile import save_model
from serving import TOKEN, Service, serving

REFUSED = """
navigator.mediaDevices.getUserMedia = async () => { throw new DOMException("no", "NotAllowedError"); };
"""


def test_a_wrong_token_is_refused_and_the_right_one_teaches(look):
    with serving("glyphs", threads=1, token=TOKEN) as service:
        page = look(service, errors=["401", "404"])
        assert page.page.locator("#unlock").is_visible()
        page.draw(PSI)  # which everybody may ask about
        page.page.locator("#answers > li").first.wait_for()
        page.page.fill("#name", "trident")
        page.page.click("#teach-button")
        dialog = page.page.locator("#token")
        dialog.wait_for()
        page.page.fill("#token-value", "wrong")
        page.page.keyboard.press("Enter")
        page.page.get_by_text("This token is wrong.").wait_for()
        assert service.call("GET", "/v1/categories").json["taught"] == 0
        page.page.fill("#token-value", TOKEN)
        page.page.keyboard.press("Enter")
        page.toast("Taught “trident” from 1 picture.").wait_for()
        assert not dialog.is_visible()
        assert not page.page.locator("#unlock").is_visible()
        page.row("trident").locator(".face img").wait_for()  # what needs the token is shown now
        page.page.reload()
        page.row("trident").locator(".face img").wait_for()  # and the token is not asked for again


def test_without_the_token_nothing_is_taught_and_the_name_stays(look):
    with serving("glyphs", threads=1, token=TOKEN) as service:
        page = look(service, errors=["401"])
        page.draw(PSI)
        page.page.fill("#name", "trident")
        page.page.click("#teach-button")
        page.page.locator("#token").wait_for()
        page.page.keyboard.press("Escape")
        page.toast("This needs the token of the service.").wait_for()
        assert page.page.input_value("#name") == "trident"
        page.page.locator("body:not(.teaching)").wait_for()


def test_a_service_that_is_away_is_awaited(look, service):
    page = look(service, errors=["ERR_INTERNET_DISCONNECTED"], clock=True)
    page.context.set_offline(True)
    page.draw(PSI)
    page.page.get_by_text("The service does not answer. Trying to reach it again").wait_for()
    assert page.page.locator("#banner").get_attribute("role") == "status"
    page.context.set_offline(False)
    page.waits(2)
    page.page.locator("#banner").wait_for(state="hidden")
    page.page.locator("#answers > li").first.wait_for()  # what was asked is answered


def test_a_full_queue_is_waited_for(look, service):
    page = look(service, errors=["503"], clock=True)
    service.engine._waiting = service.engine.limits.queue
    page.draw(PSI)
    page.page.get_by_text("The service is busy. Trying again").wait_for()
    service.engine._waiting = 0
    page.waits(1)
    page.page.locator("#answers > li").first.wait_for()
    assert page.page.locator("#answer-note").inner_text().find("busy") < 0


def test_teaching_waits_for_room_and_says_so_at_its_button(look, service):
    page = look(service, errors=["503"], clock=True)
    page.draw(HOUSE)  # a single stroke, and so a single question
    page.page.locator("#answers > li").first.wait_for()
    note = page.page.locator("#answer-note").inner_text()
    service.engine._waiting = service.engine.limits.queue
    page.page.fill("#name", "trident")
    page.page.click("#teach-button")
    page.page.locator("#teach-hint", has_text="The service is busy. Trying again").wait_for()
    assert page.page.locator("#answer-note").inner_text() == note  # which is about the answers
    service.engine._waiting = 0
    page.waits(1)
    page.toast("Taught “trident”").wait_for()
    page.page.locator("#teach-hint", has_text="One picture is enough").wait_for()


def test_an_error_goes_when_something_later_succeeds(look, service):
    page = look(service, errors=["409", "422", "ERR_INTERNET_DISCONNECTED"])
    failed = page.page.locator(".toast.failed")
    page.page.fill("#name", "trident")
    for _ in range(2):
        page.page.click("#teach-button")
    page.toast("Show it a picture first.").wait_for()
    assert failed.count() == 1  # said once
    page.draw(HOUSE)
    assert failed.count() == 0
    page.drop(file("notes.txt", b"milk, bread", "text/plain"))
    failed.wait_for()
    page.drop(file("good.jpg", jpeg(photograph(2))))
    page.page.locator("#answers > li").first.wait_for()
    assert failed.count() == 0
    page.page.fill("#name", "unknown")
    page.page.click("#teach-button")
    failed.wait_for()
    page.teach("trident")
    assert failed.count() == 0
    row = page.row("trident")
    row.locator(".head").click()
    row.locator(".new-name").fill("latin-x")
    row.get_by_role("button", name="Rename").click()
    failed.wait_for()
    page.page.fill("#search", "latin-k")
    page.row("latin-k").locator(".head").click()
    page.row("latin-k").get_by_role("button", name="Never answer with it").click()  # which says nothing
    page.row("latin-k").get_by_text("hidden", exact=True).wait_for()
    assert failed.count() == 0


def test_what_a_category_leans_on_is_asked_again_when_the_service_is_back(look, service):
    page = look(service, errors=["ERR_INTERNET_DISCONNECTED"], clock=True)
    page.draw(PSI)
    page.teach("trident")
    page.context.set_offline(True)
    row = page.row("trident")
    row.locator(".head").click()
    row.locator(".leans", has_text="The service does not answer.").wait_for()
    page.context.set_offline(False)
    page.waits(2)
    row.locator(".leans li").first.wait_for()
    assert "does not answer" not in row.inner_text()


def test_a_forgetting_that_fails_to_be_undone_can_still_be_undone(look, service):
    page = look(service, errors=["ERR_INTERNET_DISCONNECTED"], clock=True)
    page.draw(PSI)
    page.teach("trident")
    page.row("trident").locator(".head").click()
    page.row("trident").locator(".forget").click()
    page.toast("“trident” is forgotten.").wait_for()
    page.context.set_offline(True)
    page.page.keyboard.press("Enter")
    offer = page.page.locator(".toast.failed", has_text="Undo")
    offer.wait_for()
    for words in (offer.get_attribute("data-words"), "two", "three", "four"):  # the same, and many others
        page.page.evaluate(
            "async (words) => (await import('./notices.js')).toast(words, { kind: 'failed' })", words
        )
    page.context.set_offline(False)
    page.waits(2)
    page.page.locator("#banner").wait_for(state="hidden")
    page.draw(HOUSE)
    page.teach("house")
    page.page.get_by_role("button", name="Undo", exact=True).click()
    page.toast("“trident” is back.").wait_for()
    assert page.page.locator(".toast.failed").count() == 0


def test_slow_answers_are_announced(look, service, monkeypatch):
    page = look(service, clock=True)
    predict = service.engine.recognizer.predict_features
    released = threading.Event()

    def slowly(*words, **more):
        released.wait(20)
        return predict(*words, **more)

    monkeypatch.setattr(service.engine.recognizer, "predict_features", slowly)
    page.draw(PSI)
    page.waits(1)
    page.page.get_by_text("Looking…").wait_for()
    page.waits(5)
    page.page.get_by_text("This takes longer than usual…").wait_for()
    assert page.page.locator("#answers").get_attribute("aria-busy") == "true"
    released.set()
    page.page.locator("#answers > li").first.wait_for()
    assert page.page.locator("#answers").get_attribute("aria-busy") is None


def test_the_page_says_that_it_is_loading(look, service, monkeypatch):
    categories = service.engine.recognizer.categories
    released = threading.Event()
    monkeypatch.setattr(service.engine.recognizer, "categories", lambda: (released.wait(20), categories())[1])
    page = look(service, loaded=False)
    page.page.locator("#categories[aria-busy] .skeleton").first.wait_for()
    assert page.page.locator("#summary").inner_text() == "Loading the model…"
    released.set()
    page.page.get_by_text("Knows 64 categories").wait_for()


def test_a_model_that_knows_nothing_is_taught_its_first_category(look, make_model, tmp_path):
    path = tmp_path / "model.safetensors"
    save_model(path, make_model(categories=(), generator="mean"))
    with serving(path, threads=1) as service:
        page = look(service)
        assert page.verdict.inner_text() == "It knows nothing yet. Show it something, and name it."
        assert not page.page.locator("[data-mode=draw]").is_visible()  # it was trained on no characters
        page.choose(file("thing.jpg", jpeg(photograph(1))))
        page.page.locator("#picture").wait_for()
        page.teach("thing")
        page.page.locator("#answers > li").first.wait_for()
        assert page.taught == ["thing"]


def test_a_browser_that_refuses_the_camera_is_explained(look, service):
    page = look(service, script=REFUSED)
    page.page.click("[data-mode=camera]")
    page.page.locator("#camera-words", has_text="The browser refuses the camera. Allow it").wait_for()
    assert page.page.locator("#capture").is_disabled()
    assert page.page.locator("#camera-again").is_visible()


def test_a_page_that_is_neither_local_nor_encrypted_says_why_there_is_no_camera(look, service):
    _, port = service.address
    page = look(Service(f"http://{INSECURE}:{port}"), errors=["Cross-Origin-Opener-Policy"])
    page.page.click("[data-mode=camera]")
    page.page.locator("#camera-words", has_text="only at https:// or at localhost").wait_for()


def serious(page):
    """Return what axe-core finds, with the elements that it finds it in."""
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe-playwright-python is missing"
    )
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
