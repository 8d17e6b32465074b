"""What people do at the page, in a real browser."""

from urllib.parse import urlsplit

from looking import CROSS, HOUSE, PSI, file, jpeg, photograph


def test_a_character_drawn_three_times_is_recognised_the_fourth_time(page):
    for turn, size in ((0, 1.0), (8, 0.8), (-6, 0.9)):
        page.draw(PSI, turn, size)
        page.page.click("#add")
    page.page.locator("#tray li").nth(2).wait_for()
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
    page.page.wait_for_function("() => document.querySelectorAll('#tray-list li').length === 3")
    page.teach("my mug")
    with page.page.expect_response("**/v1/predict*"):
        pass
    page.sees("my mug")
    assert page.answers[0] == ("my mug", "taught")
    assert page.page.locator("#video").evaluate("video => !video.paused && video.videoWidth > 0")


def test_a_photograph_is_uploaded_and_answered(page):
    page.choose(file("beach.jpg", jpeg(photograph(3))))
    page.page.locator("#answers > li").nth(4).wait_for()
    assert (
        page.page.locator("#picture").evaluate("image => image.complete && image.naturalWidth") == 320
    )  # no larger than it was
    assert len(page.answers) == 5
    assert {origin for _, origin in page.answers} <= {"base", "unknown"}
    assert page.page.locator("#tray .caption").inner_text() == page.answers[0][0].lower()


def test_a_picture_that_is_taken_out_is_not_looked_at_any_more(page):
    page.choose(file("one.jpg", jpeg(photograph(3))), file("two.jpg", jpeg(photograph(4))))
    page.page.locator("#tray li").nth(1).wait_for()
    assert page.page.locator("#teach-label").inner_text() == "These 2 are"
    page.page.get_by_role("button", name="Remove picture 1").click()
    assert "two.jpg" in page.page.locator("#picture").get_attribute("alt")
    assert page.page.locator("#teach-label").inner_text() == "This is"
    page.page.get_by_role("button", name="Remove picture 1").click()
    assert page.page.locator("#drop").is_visible()
    page.page.fill("#name", "thing")
    page.page.click("#teach-button")
    page.toast("Show it a picture first.").wait_for()


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


def before_the_camera(page):
    """Turn the camera on, and return the button beside the last answer."""
    page.page.click("[data-mode=camera]")
    button = page.page.locator("#answers > li .fix:visible").last
    button.wait_for()
    return button


def test_a_wrong_answer_before_the_camera_is_corrected_in_one_step(page, service, monkeypatch):
    predict, teach = service.engine.predict, service.engine.teach
    answered, taught = {}, []

    async def predicting(uploads, question):
        found = await predict(uploads, question)
        names = ["Unknown" if one.origin == "unknown" else one.category for one in found[0]]
        answered.setdefault(uploads[0].content, names)
        return found

    async def teaching(given, **more):
        taught.extend((name, upload.content) for name, upload in given)
        return await teach(given, **more)

    monkeypatch.setattr(service.engine, "predict", predicting)
    monkeypatch.setattr(service.engine, "teach", teaching)
    button = before_the_camera(page)
    button.hover()
    page.page.locator("#still").wait_for()  # the picture that the answers are about
    right = button.get_attribute("aria-label").removeprefix("This is ")
    page.page.wait_for_timeout(600)  # while a live camera would have been asked about five times
    assert button.get_attribute("aria-label") == f"This is {right}"
    corrected = [name for name, _ in page.answers]
    button.click()
    page.toast(f"Taught “{right}” from 1 picture.").wait_for()
    ((name, content),) = taught
    assert name == right
    assert answered[content] == corrected  # those that were on the page, and not later ones
    page.page.mouse.move(5, 5)
    page.page.locator("#still").wait_for(state="hidden")
    with page.page.expect_response("**/v1/predict*"):
        page.sees(right)


def test_an_answer_that_changed_under_the_finger_is_not_taught(page, service):
    before_the_camera(page)
    tap = """(detail) => {
        const button = document.querySelectorAll("#answers .fix")[1];
        button.dispatchEvent(new PointerEvent("pointerdown", { bubbles: true, pointerType: "touch" }));
        button.dispatchEvent(new MouseEvent("click", { bubbles: true, detail }));
    }"""
    page.page.evaluate(
        f"""async () => {{
            const answers = await import("./answers.js");
            const found = ["latin-k", "latin-x"];
            const shown = found.map((category) => ({{ category, probability: 0.4, origin: "base" }}));
            answers.show(shown, {{ live: true }});
            ({tap})(1);
        }}"""
    )
    page.page.locator("#still").wait_for()
    page.page.wait_for_timeout(600)
    assert service.call("GET", "/v1/categories/latin-x").json["examples"] is None
    page.page.evaluate(tap, 2)  # again, now that it could be read; the browser may call it a double click
    page.toast("Taught “latin-x” from 1 picture.").wait_for()


def test_a_picture_is_answered_again_after_a_look_through_the_camera(page):
    page.choose(file("beach.jpg", jpeg(photograph(3))))
    page.page.locator("#answers > li").nth(4).wait_for()
    before = page.answers
    page.page.click("[data-mode=camera]")
    page.page.locator("#video").wait_for()
    page.page.click("[data-mode=picture]")
    page.page.locator("#picture").wait_for()
    page.page.locator("#answers > li").nth(4).wait_for()
    assert page.answers == before


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


def test_the_whole_way_goes_with_the_keyboard_alone(page):
    keys = page.page.keyboard
    page.tab_to("#canvas")
    for path in (
        "Right Right Right Right Right Right",
        "Down Down Down Down Down Down",
        "Left Left Left Left",
    ):
        keys.press("Space")  # lowers the pen
        for way in path.split():
            keys.press(f"Arrow{way}")
        keys.press("Space")  # lifts it
    page.page.locator("#answers > li").first.wait_for()
    page.tab_to("#add")
    keys.press("Enter")
    page.tab_to("#name")
    keys.type("hook")
    keys.press("Enter")
    page.toast("Taught “hook” from 1 picture.").wait_for()
    page.tab_to(".novel .head")
    keys.press("Enter")
    page.tab_to(".novel .new-name")
    keys.press("Control+A")
    keys.type("gallows")
    keys.press("Enter")
    page.toast("“hook” is now “gallows”.").wait_for()
    page.tab_to(".novel .forget")
    keys.press("Enter")
    page.toast("“gallows” is forgotten.").wait_for()
    keys.press("Enter")
    page.toast("“gallows” is back.").wait_for()
    assert page.taught == ["gallows"]


def test_pictures_are_chosen_with_the_keyboard(page):
    chosen = [file("one.jpg", jpeg(photograph(1)))]
    page.page.on("filechooser", lambda chooser: chooser.set_files(chosen))
    page.page.click("[data-mode=picture]")
    page.tab_to("#choose")
    page.page.keyboard.press("Enter")
    page.page.locator("#answers > li").first.wait_for()


def test_names_are_text_and_never_markup(page, service):
    for name in (
        "<img src=x onerror=document.title='broken'>",
        "<script>document.title='broken'</script>",
        "\"><svg onload=document.title='broken'>",
        "{{7*7}} &lt;b&gt; &amp; %41",
        "../../etc/passwd",
    ):
        page.page.click("#clear")
        page.draw(HOUSE)
        page.teach(name)
        page.sees(name)
        assert page.answers[0] == (name, "taught")
        row = page.row(name)
        row.locator(".head").click()
        row.locator(".leans li").first.wait_for()
        assert page.page.title() == "Recollect"
        markup = "#answers img, #categories .name *, #toasts img, #verdict *, script:not([src])"
        assert page.page.locator(markup).count() == 0
        row.locator(".new-name").fill(f"{name}!")
        row.get_by_role("button", name="Rename").click()
        page.toast(f"“{name}” is now “{name}!”.").wait_for()
        page.row(f"{name}!").locator(".forget").click()
        page.toast(f"“{name}!” is forgotten.").wait_for()
        assert page.taught == []
        assert page.page.title() == "Recollect"


def test_a_picture_is_pasted(page):
    page.page.evaluate(
        """async () => {
            const canvas = new OffscreenCanvas(64, 64);
            canvas.getContext("2d").fillRect(10, 10, 30, 30);
            const carried = new DataTransfer();
            carried.items.add(new File([await canvas.convertToBlob()], "pasted.png", { type: "image/png" }));
            document.dispatchEvent(new ClipboardEvent("paste", { clipboardData: carried, bubbles: true }));
        }"""
    )
    page.page.locator("#picture").wait_for()
    page.page.locator("#answers > li").first.wait_for()


def test_categories_are_found_looked_into_renamed_and_hidden(page, service):
    page.draw(PSI)
    page.teach("trident")
    row = page.row("trident")
    assert row.locator(".count").inner_text() == "1 picture"
    assert row.locator(".tag").inner_text() == "taught"
    row.locator(".face img").wait_for()
    row.locator(".head").click()
    row.locator(".leans li").first.wait_for()
    assert row.locator(".leans h3").inner_text() == "Leans on"
    shares = service.call("GET", "/v1/explain/trident").json["shares"]
    assert row.locator(".leans .name").all_inner_texts() == [one["category"] for one in shares]
    assert row.locator(".kept img").count() == 1

    page.page.fill("#search", "LATIN-k")
    assert page.page.locator("#categories > li").count() == 1
    page.row("latin-k").locator(".head").click()
    page.row("latin-k").get_by_role("button", name="Never answer with it").click()
    page.row("latin-k").get_by_text("hidden", exact=True).wait_for()
    assert service.call("GET", "/v1/categories/latin-k").json["hidden"]
    page.page.fill("#search", "nothing like it")
    assert page.page.locator("#none").inner_text() == "No category has “nothing like it” in its name."
    page.page.fill("#search", "")
    page.page.select_option("#which", "novel")
    assert page.page.locator("#categories > li").count() == 1
    page.page.select_option("#which", "base")
    assert page.page.locator("#categories > li").count() == 24
    page.page.click("#more")
    assert page.page.locator("#categories > li").count() == 64


def test_what_was_taught_is_downloaded_and_uploaded(page, service, tmp_path):
    page.draw(PSI)
    page.teach("trident")
    with page.page.expect_download() as download:
        page.page.click("#download")
    assert download.value.suggested_filename == "taught.safetensors"
    download.value.save_as(tmp_path / "taught.safetensors")
    (kept,) = service.engine.recognizer.examples("trident")
    service.call("DELETE", "/v1/categories/trident")
    page.page.locator("#uploaded").set_input_files(tmp_path / "taught.safetensors")
    page.toast("1 picture came to 1 category.").wait_for()
    assert page.taught == ["trident"]
    (again,) = service.engine.recognizer.examples("trident")
    assert (again.feature == kept.feature).all()


def test_teaching_and_the_answer_take_one_request_each(page):
    page.draw(HOUSE)  # a single stroke, and so a single question
    page.page.locator("#answers > li").first.wait_for()
    sent = []
    page.page.on("request", lambda request: sent.append((request.method, urlsplit(request.url).path)))
    page.page.fill("#name", "trident")
    page.page.click("#teach-button")
    page.sees("trident")
    assert sent[:2] == [("POST", "/v1/categories"), ("POST", "/v1/predict")]


def test_small_copies_are_kept_only_if_wanted(page, service):
    page.page.uncheck("#thumbnails")
    page.draw(PSI)
    page.teach("trident")
    assert [one.thumbnail for one in service.engine.recognizer.examples("trident")] == [None]
    page.page.reload()
    assert not page.page.locator("#thumbnails").is_checked()


def test_one_picture_of_several_is_forgotten(page, service):
    for turn in (0, 10):
        page.draw(PSI, turn)
        page.page.click("#add")
    page.page.locator("#tray li").nth(1).wait_for()
    page.teach("trident")
    row = page.row("trident")
    row.locator(".head").click()
    row.locator(".kept img").nth(1).wait_for()
    row.get_by_role("button", name="Forget picture 1 of trident").click()
    row.get_by_text("1 picture", exact=True).wait_for()
    assert len(service.engine.recognizer.examples("trident")) == 1
