"""The states that people meet, each of which looks intended."""

import threading

from looking import INSECURE, PSI, file, jpeg, photograph

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
    page = look(service, errors=["ERR_INTERNET_DISCONNECTED"])
    page.context.set_offline(True)
    page.draw(PSI)
    page.page.get_by_text("The service does not answer. Trying to reach it again").wait_for()
    assert page.page.locator("#banner").get_attribute("role") == "status"
    page.context.set_offline(False)
    page.page.locator("#banner").wait_for(state="hidden")
    page.page.locator("#answers > li").first.wait_for()  # what was asked is answered


def test_a_full_queue_is_waited_for(look, service):
    page = look(service, errors=["503"])
    service.engine._waiting = service.engine.limits.queue
    page.draw(PSI)
    page.page.get_by_text("The service is busy. Trying again").wait_for()
    service.engine._waiting = 0
    page.page.locator("#answers > li").first.wait_for()
    assert page.page.locator("#answer-note").inner_text().find("busy") < 0


def test_slow_answers_are_announced(page, service, monkeypatch):
    predict = service.engine.recognizer.predict_features
    released = threading.Event()

    def slowly(*words, **more):
        released.wait(20)
        return predict(*words, **more)

    monkeypatch.setattr(service.engine.recognizer, "predict_features", slowly)
    page.draw(PSI)
    page.page.get_by_text("Looking…").wait_for()
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
