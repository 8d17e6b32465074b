"""What people do at the page, in a real browser."""

import pytest

from looking import CROSS, HOUSE, PSI, file, jpeg, photograph


def test_a_character_drawn_three_times_is_recognised_the_fourth_time(page):
    for turn, size in ((0, 1.0), (8, 0.8), (-6, 0.9)):
        page.draw(PSI, turn, size)
        page.page.click("#add")
    assert page.page.locator("#tray li").count() == 3
    page.teach("trident")
    assert page.taught == ["trident"]
    page.page.click("#clear")
    page.draw(PSI, 4, 0.7)
    page.sees("trident")
    assert page.answers[0] == ("trident", "taught")
    page.page.click("#clear")
    page.draw(CROSS)
    page.sees("latin-x")
    assert page.answers[0] == ("latin-x", "base")


def test_a_thing_before_the_camera_is_taught_and_named_live(page):
    page.page.click("[data-mode=camera]")
    page.page.locator("#answers > li").first.wait_for()
    for _ in range(3):
        page.page.click("#capture")
    page.page.wait_for_function("document.querySelectorAll('#tray-list li').length === 3")
    page.teach("my mug")
    with page.page.expect_response("**/v1/predict*"):
        pass
    page.sees("my mug")
    assert page.answers[0] == ("my mug", "taught")
    assert page.page.locator("#video").evaluate("video => !video.paused && video.videoWidth > 0")


def test_a_photograph_is_uploaded_and_answered(page):
    page.choose(file("beach.jpg", jpeg(photograph(3))))
    page.page.locator("#answers > li").nth(4).wait_for()
    assert page.page.locator("#picture").evaluate("image => image.complete && image.naturalWidth") == 320  # no larger than it was
    assert len(page.answers) == 5
    assert {origin for _, origin in page.answers} <= {"base", "unknown"}
    assert page.page.locator("#tray .caption").inner_text() == page.answers[0][0].lower()


def test_a_dropped_file_that_is_no_picture_is_refused_by_its_name(look, service):
    page = look(service, errors=["422"])
    page.drop(file("notes.txt", b"milk, bread", "text/plain"))
    message = page.toast("notes.txt: this is not a picture")
    message.wait_for()
    assert message.get_attribute("role") == "alert"
    assert page.page.locator("#tray li").count() == 0
    page.drop(file("good.jpg", jpeg(photograph(2))), file("cut.jpg", jpeg(photograph(2))[:900]))
    page.toast("cut.jpg").wait_for()
    assert page.page.locator("#tray li").count() == 1
    page.page.locator("#answers > li").first.wait_for()


def test_a_wrong_answer_is_corrected_in_one_step(page, service):
    page.draw(HOUSE)
    page.page.locator("#answers > li .fix:visible").first.wait_for()
    wrong = page.answers[0][0]
    button = page.page.locator("#answers > li .fix:visible").last
    right = button.get_attribute("aria-label").removeprefix("This is ")
    assert right != wrong
    button.click()
    page.sees(right)
    known = service.call("GET", f"/v1/categories/{right}").json
    assert known["examples"] == 1
    assert page.row(right).locator(".count").inner_text() == "1 picture"


def test_what_is_forgotten_comes_back_as_it_was(page, service):
    page.draw(PSI)
    page.teach("trident")
    page.page.click("#clear")
    page.draw(HOUSE)
    page.teach("house")
    before = service.engine.recognizer.scores(photograph(5))
    kept = service.engine.recognizer.examples("trident")
    page.row("trident").locator(".head").click()
    page.row("trident").locator(".forget").click()
    page.toast("“trident” is forgotten.").wait_for()
    assert page.taught == ["house"]
    assert service.call("GET", "/v1/categories/trident").status == 404
    page.page.keyboard.press("Enter")  # "Undo" has the focus
    page.toast("“trident” is back.").wait_for()
    assert sorted(page.taught) == ["house", "trident"]
    after = service.engine.recognizer.scores(photograph(5))
    assert (after.novel[:, ::-1] == before.novel).all()  # it was taught first, and is the last now
    (again,) = service.engine.recognizer.examples("trident")
    assert again.thumbnail == kept[0].thumbnail
    assert (again.feature == kept[0].feature).all()
