"""The exported page from a static server: it recognises and teaches in the browser alone."""

import base64
import functools
import http.server
import io
import json
import shutil
import threading
import zipfile

import numpy as np
import pytest
from looking import PSI, file, photograph

from exporting import ROOT
from pretrained import DATA, needs_photographs, needs_weights
from recollect import Recognizer
from recollect.backends.torch import TorchBackend
from recollect.export.runtime import FILES, runtime_files
from recollect.export.web import export_web

_ORT = ROOT / ".venv" / "onnxruntime-web"  # kept between runs of the tests


class Static:
    """A folder at an address, as any web server has it."""

    def __init__(self, folder):
        class Quiet(http.server.SimpleHTTPRequestHandler):
            def log_message(self, *_):
                pass

        handler = functools.partial(Quiet, directory=folder)
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://localhost:{self.server.server_port}/"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture(scope="session")
def runtime(browser):
    """The folder of onnxruntime-web, which npm fetched; not without a browser."""
    if shutil.which("npm") is None and not all((_ORT / name).is_file() for name in FILES):
        pytest.skip("there is no npm here to fetch onnxruntime-web")
    if not all((_ORT / name).is_file() for name in FILES):
        try:
            found = runtime_files()
        except Exception as error:  # noqa: BLE001 -- such as no network
            pytest.skip(f"onnxruntime-web cannot be fetched: {error}")
        _ORT.mkdir(exist_ok=True)
        for path in found:
            shutil.copyfile(path, _ORT / path.name)
    return _ORT


def exported(model, out, runtime):
    backend = TorchBackend.load(model)
    export_web(backend, Recognizer(backend), out, runtime)
    return Static(out)


@pytest.fixture(scope="session")
def glyphs(tmp_path_factory, runtime):
    return exported("glyphs", tmp_path_factory.mktemp("glyphs") / "web", runtime)


@pytest.fixture
def local(look, glyphs):
    return look(glyphs)


def download(page, tmp_path):
    with page.page.expect_download() as started:
        page.page.click("#download")
    started.value.save_as(tmp_path / "taught.safetensors")
    return (tmp_path / "taught.safetensors").read_bytes()


def answered(page, *pictures):
    """Return what the page's backend answers for pictures, by the bytes of their files."""
    return page.page.evaluate(
        """async (pictures) => {
          const { backend } = await import("./backend.js");
          const answers = [];
          for (const text of pictures) {
            const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
            answers.push(await backend.predict(new Blob([bytes])));
          }
          return answers;
        }""",
        [base64.b64encode(one).decode() for one in pictures],
    )


def same(found, expected):
    """Check that the page and Python give the same answers for each picture."""
    for one, other in zip(found, expected, strict=True):
        assert [answer["category"] for answer in one] == [answer.category for answer in other]
        assert [answer["origin"] for answer in one] == [answer.origin for answer in other]
        for answer, expectation in zip(one, other, strict=True):
            assert answer["probability"] == pytest.approx(expectation.probability, abs=2e-3)


def png(image):
    content = io.BytesIO()
    image.save(content, "PNG")
    return content.getvalue()


def test_answers_are_those_of_python(local):
    pictures = [png(photograph(seed, 60)) for seed in range(5)]
    same(answered(local, *pictures), Recognizer.load("glyphs").predict(pictures))
    local.choose(file("one.png", pictures[0], "image/png"))
    local.page.locator("#answers > li").nth(4).wait_for()
    assert local.answers[0][0] == Recognizer.load("glyphs").predict(pictures[0])[0].category


def test_what_is_taught_is_known_after_a_reload(local):
    for turn, size in ((0, 1.0), (8, 0.8), (-6, 0.9)):
        local.draw(PSI, turn, size)
        local.page.click("#add")
    local.page.locator("#tray li").nth(2).wait_for()
    local.teach("trident")
    local.page.reload()
    local.page.locator("#categories:not([aria-busy])").wait_for(state="attached")
    assert local.taught == ["trident"]
    local.draw(PSI, 4, 0.7)
    local.sees("trident")
    assert local.answers[0] == ("trident", "taught")


def test_what_is_taught_in_the_page_gives_the_same_answers_in_recollect(local, tmp_path, run):
    pictures = [png(photograph(seed, 60)) for seed in (11, 12, 13)]
    local.choose(*(file(f"{number}.png", one, "image/png") for number, one in enumerate(pictures[:2])))
    local.page.locator("#tray li").nth(1).wait_for()
    local.teach("Dîner 🍜")
    backup = download(local, tmp_path)
    recognizer = Recognizer.load("glyphs")
    assert recognizer.restore(backup) == {"Dîner 🍜": 2}
    same(answered(local, *pictures), recognizer.predict(pictures))
    own = Recognizer.load("glyphs")
    own.teach("Dîner 🍜", [pictures[0], pictures[1]])
    np.testing.assert_allclose(recognizer.rule().vectors, own.rule().vectors, atol=1e-4)
    code, words, err = run(
        "store",
        "restore",
        "glyphs",
        tmp_path / "taught.safetensors",
        "--store",
        tmp_path / "s.sqlite",
        "--json",
    )
    assert code == 0, err
    assert json.loads(words)["restored"] == {"Dîner 🍜": 2}


def test_what_recollect_was_taught_comes_into_the_page(local):
    recognizer = Recognizer.load("glyphs")
    picture = png(photograph(21, 60))
    recognizer.teach("kettle", [picture], thumbnails=True)
    recognizer.hide("latin-x")
    local.page.set_input_files(
        "#uploaded", file("taught.safetensors", recognizer.backup(), "application/octet-stream")
    )
    local.page.get_by_text("kettle", exact=True).first.wait_for()
    local.choose(file("kettle.png", picture, "image/png"))
    local.sees("kettle")
    same(answered(local, picture), [recognizer.predict(picture)])


def test_a_backup_that_is_damaged_or_foreign_is_refused(local):
    recognizer = Recognizer.load("glyphs")
    recognizer.teach("kettle", photograph(21, 60))
    damaged = bytearray(recognizer.backup())
    damaged[-1] ^= 1
    for content, words in ((bytes(damaged), "damaged: take another one"), (b"nonsense", "not a backup")):
        local.page.set_input_files("#uploaded", file("t.safetensors", content, "application/octet-stream"))
        local.page.get_by_text(words).first.wait_for()
    assert local.taught == []


def test_categories_are_renamed_hidden_and_forgotten_and_come_back(local):
    found = local.page.evaluate(
        """async () => {
          const { backend } = await import("./backend.js");
          const canvas = new OffscreenCanvas(40, 40);
          canvas.getContext("2d").fillRect(0, 0, 20, 40);
          const picture = await canvas.convertToBlob();
          const say = (work) => work.then((value) => value, (error) => error.message);
          const taught = await backend.teach("Okapi", [picture, picture], { thumbnails: true });
          const renamed = await backend.rename("Okapi", "Giraffe");
          const kept = await backend.forget("Giraffe");
          const without = (await backend.categories()).filter(({ origin }) => origin === "novel").length;
          const back = await backend.upload(kept);
          const hidden = await backend.hide("latin-x", true);
          const [example] = await backend.examples("Giraffe");
          return {
            taught, renamed, without, back, hidden: hidden.hidden, thumbnail: example.thumbnail.type,
            explained: (await backend.explain("Giraffe")).shares.length,
            answers: (await backend.predict(picture)).map(({ category }) => category),
            unknown: await say(backend.teach("Unknown", [picture])),
            empty: await say(backend.teach("  ", [picture])),
            taken: await say(backend.rename("Giraffe", "LATIN-X")),
            none: await say(backend.forget("nobody")),
            noPicture: await say(backend.predict(new Blob(["text"]))),
            gone: await say(backend.forgetExample(example.id)),
            last: (await backend.categories()).filter(({ origin }) => origin === "novel").length,
          };
        }"""
    )
    assert found["taught"]["skipped"] == 1
    assert found["taught"]["category"]["examples"] == 1
    assert found["renamed"]["name"] == "Giraffe"
    assert (found["without"], found["back"], found["last"]) == (0, {"Giraffe": 1}, 0)
    assert found["hidden"] is True
    assert found["thumbnail"] == "image/jpeg"
    assert found["explained"] == 5
    assert "latin-x" not in found["answers"]
    for key, words in {
        "unknown": "no known category", "empty": "not empty", "taken": "base category already",
        "none": "was taught", "noPicture": "cannot read",
    }.items():  # fmt: skip
        assert words in found[key]


def test_two_tabs_share_what_is_taught(look, glyphs):
    first = look(glyphs)
    second = first.context.new_page()
    second.goto(glyphs.url)
    second.locator("#categories:not([aria-busy])").wait_for(state="attached")
    teach = """async (name) => {
      const { backend } = await import("./backend.js");
      const canvas = new OffscreenCanvas(40, 40);
      canvas.getContext("2d").fillRect(0, 0, name.length, 40);
      await backend.teach(name, [await canvas.convertToBlob()]);
      return (await backend.categories()).filter(({ origin }) => origin === "novel").map((one) => one.name);
    }"""
    assert first.page.evaluate(teach, "gnu") == ["gnu"]
    assert second.evaluate(teach, "zebra") == ["gnu", "zebra"]
    assert first.page.evaluate(teach, "otter") == ["gnu", "zebra", "otter"]


def test_a_folder_that_is_not_whole_says_so(look, glyphs, tmp_path):
    folder = shutil.copytree(glyphs.server.RequestHandlerClass.keywords["directory"], tmp_path / "part")
    (folder / "model" / "vectors.bin").unlink()
    page = look(Static(folder), loaded=False, errors=["404"])
    page.page.get_by_text("vectors.bin cannot be loaded").first.wait_for()


def test_the_camera_is_recognised_live(local):
    local.page.click("[data-mode=camera]")
    local.page.locator("#answers > li").first.wait_for()
    local.page.click("#capture")
    local.page.wait_for_function("() => document.querySelectorAll('#tray-list li').length === 1")
    local.teach("my mug")
    local.sees("my mug")
    assert local.answers[0] == ("my mug", "taught")


@pytest.mark.slow
@pytest.mark.data
@needs_weights
@needs_photographs
def test_photographs_get_the_same_first_answers_as_in_python(look, tmp_path, runtime):
    """20 groceries, with categories taught before and in the page: the generator `ridge`."""
    with zipfile.ZipFile(f"{DATA}/grocery/photos.zip") as archive:
        names = sorted(name for name in archive.namelist() if name.endswith(".jpg"))
        content = {name: archive.read(name) for name in names[::47][:20] + names[:4]}
    page = look(exported("imagenet", tmp_path / "web", runtime))
    recognizer = Recognizer.load("imagenet")
    for name in names[:2]:
        page.choose(file(name.rpartition("/")[2], content[name]))
    page.page.locator("#tray li").nth(1).wait_for()
    page.teach("soyghurt")
    recognizer.teach("soyghurt", [content[name] for name in names[:2]])
    found = answered(page, *content.values())
    for answers, expected in zip(found, recognizer.predict(list(content.values())), strict=True):
        assert answers[0]["category"] == expected[0].category
        assert answers[0]["probability"] == pytest.approx(expected[0].probability, abs=0.02)


def test_the_page_loads_nothing_from_elsewhere(glyphs, look):
    asked = []
    page = look(glyphs, loaded=False)
    page.page.on("request", lambda request: asked.append(request.url))
    page.page.reload()
    page.page.locator("#categories:not([aria-busy])").wait_for(state="attached")
    assert asked
    assert all(url.startswith((glyphs.url, "blob:")) for url in asked)
