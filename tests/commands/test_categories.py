"""`recollect categories`, `forget`, `rename`, `hide`, `unhide` and `explain`."""

import pytest

from recollect import Recognizer
from recollect.modelfile import save_model


def test_forgetting_and_renaming(taught, answer, run, names):
    result = answer("rename", taught, "okapi", "forest giraffe")
    assert (result["old"], result["new"]) == ("okapi", "forest giraffe")
    assert names(taught) == ["forest giraffe", "tapir"]
    result = answer("forget", taught, "tapir")
    assert (result["forgotten"], result["examples"]) == ("tapir", 2)
    assert names(taught) == ["forest giraffe"]
    assert run("rename", taught, "forest giraffe", "okapi")[1] == "'forest giraffe' is now called 'okapi'.\n"
    assert run("forget", taught, "okapi")[1] == "Forgot 'okapi' and its 3 pictures.\n"
    assert names(taught) == []


def test_the_list_of_categories_shows_taught_ones_and_the_first_base_ones(tmp_path, make_model, run, photos):
    model = tmp_path / "m.safetensors"
    save_model(model, make_model(categories=tuple(f"[b]{n}" for n in range(30))))
    run("teach", model, "okapi", photos / "okapi")
    _, some, _ = run("categories", model)
    assert "1 taught, 30 base categories" in some
    assert some.index("okapi") < some.index("[b]0")
    assert "[b]9" in some
    assert "[b]10" not in some
    assert "20 more base categories" in some
    _, everything, _ = run("categories", model, "--all")
    assert "[b]29" in everything
    assert "more base categories" not in everything


def test_base_categories_that_were_changed_come_before_the_others(taught, photos, answer):
    answer("hide", taught, "base-5")
    answer("teach", taught, "base-6", photos / "okapi" / "000.png")
    found = [row["name"] for row in answer("categories", taught)["categories"]]
    assert found == ["okapi", "tapir", "base-5", "base-6", *(f"base-{number}" for number in range(5))]


def test_explaining_a_taught_category(taught, answer, run, refused):
    report = answer("explain", taught, "okapi", "--top", 2)
    expected = Recognizer.load(taught, "default").explain("okapi", 2)
    assert report["category"] == "okapi"
    assert [(row["category"], row["share"]) for row in report["leans_on"]] == [
        (name, pytest.approx(share)) for name, share in expected
    ]
    _, said, _ = run("explain", taught, "okapi")
    assert "'okapi' leans on" in said
    assert expected[0][0] in said
    assert "taught are: okapi, tapir" in refused("explain", taught, "yeti")


def test_a_base_category_can_be_hidden_and_renamed(taught, photos, answer, run, refused):
    def answers():
        (found,) = answer("predict", taught, photos / "okapi" / "000.png", "--top", 9)["predictions"]
        return [one["category"] for one in found["answers"]]

    before = answers()
    assert "base-1" in before
    assert answer("hide", taught, "base-1") == {
        "model": str(taught), "store": str(taught / "taught.sqlite"), "category": "base-1", "hidden": True,
    }  # fmt: skip
    assert answers() == [name for name in before if name != "base-1"]
    rows = answer("categories", taught)["categories"]
    assert [row["name"] for row in rows if row["hidden"]] == ["base-1"]
    assert "base, hidden" in run("categories", taught)[1]
    assert run("unhide", taught, "base-1") == (0, "'base-1' can be an answer again.\n", "")
    assert answers() == before
    assert run("rename", taught, "base-1", "ant")[0] == 0
    assert answers() == ["ant" if name == "base-1" else name for name in before]
    assert "is no longer an answer" in run("hide", taught, "ant")[1]
    assert "forget 'okapi' instead" in refused("hide", taught, "okapi")
    assert "no base category is called 'yeti'" in refused("unhide", taught, "yeti")
    assert refused("explain", taught, "ant").endswith(
        "'ant' is a base category, and nothing was taught to it\n"
    )


BAD_NAMES = {
    "": "a category needs a name that is not empty",
    " ": "a category needs a name that is not empty",
    "x" * 201: "has 201 characters: at most 200",
    "a\tb": "cannot be printed",
    "unknown": "the answer for pictures of no known category",
    "BASE-3": "'BASE-3' is a base category",
}


@pytest.mark.parametrize("name", [*BAD_NAMES][:-1])  # which the last one can be
def test_names_that_cannot_be_taught(model, photos, refused, name):
    assert BAD_NAMES[name] in refused("teach", model, name, photos / "okapi")


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_that_cannot_be_given(taught, refused, name):
    assert BAD_NAMES[name] in refused("rename", taught, "okapi", name)


@pytest.mark.parametrize("name", ["Okapi", "ｏｋａｐｉ"])
def test_another_spelling_of_a_taught_name(taught, photos, answer, refused, name):
    (one,) = answer("teach", taught, name, photos / "tapir")["taught"]
    assert (one["name"], one["examples"]) == ("okapi", 5)
    assert f"'{name}' is taught already as 'okapi'" in refused("rename", taught, "tapir", name)
    assert "it is spelled 'okapi'" in refused("forget", taught, name)


@pytest.mark.parametrize("words", [("forget", "yeti"), ("rename", "yeti", "bigfoot")])
def test_what_was_not_taught(model, photos, answer, refused, words):
    command, *rest = words
    assert "taught are: none" in refused(command, model, *rest)
    answer("teach", model, "--from", photos)
    assert "taught are: okapi, tapir" in refused(command, model, *rest)
    assert "no category called" in refused(command, model, "yeti", *rest[1:])
