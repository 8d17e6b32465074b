"""What every page of the documentation prints can be typed: commands, options, links, and short Python."""

import importlib
import re
import shlex
from pathlib import Path

import pytest
import typer

import recollect
from pictures import write_picture
from recollect import Recognizer, cli
from recollect.modelfile import save_model

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "docs" / "results" / "README.md"]
TOP = typer.main.get_command(cli.app)
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


def printed(page):
    """Yield every command that a page prints, in blocks or within a sentence."""
    text = page.read_text(encoding="utf-8")
    for line in re.findall(r"^ *(?:PYTHONPATH=\. )?(recollect [a-z].*)$", text, re.MULTILINE):
        yield line.partition("#")[0].partition(" > ")[0]
    for words in re.findall(r"`(recollect\s[^`]+)`", text):
        yield " ".join(words.split())


def command_of(words):
    """Return the command that words start with, and the words after it."""
    command, rest = TOP, words[1:]
    while rest and rest[0] in getattr(command, "commands", {}):
        command, rest = command.commands[rest[0]], rest[1:]
    return command, rest


@every_page
def test_every_command_and_option_exists(page):
    for line in printed(page):
        if line.startswith("recollect COMMAND"):
            continue
        command, rest = command_of(shlex.split(line))
        assert command is not TOP, line
        known = {name for parameter in command.params for name in parameter.opts} | {"--help"}
        assert {word for word in rest if word.startswith("--")} <= known, line


def test_a_command_or_option_that_does_not_exist_is_seen(tmp_path):
    page = tmp_path / "page.md"
    for text in ("    recollect guess a.jpg\n", "`recollect predict imagenet a.jpg --loudly`"):
        page.write_text(text, encoding="utf-8")
        with pytest.raises(AssertionError):
            test_every_command_and_option_exists(page)


@every_page
def test_every_link_leads_somewhere(page):
    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if not link.startswith("http"):
            assert (page.parent / link).exists(), link


@pytest.fixture
def folder(tmp_path, monkeypatch, tiny_model):
    """A model in runs/mine that was taught a category."""
    save_model(tmp_path / "runs" / "mine" / "model.safetensors", tiny_model)
    write_picture(tmp_path / "okapi-1.jpg", 1)
    monkeypatch.chdir(tmp_path)
    Recognizer.load("runs/mine", store="runs/mine/taught.sqlite").teach("okapi", "okapi-1.jpg")
    return tmp_path


def test_a_backup_made_as_the_page_says_holds_what_was_taught(folder, run):
    page = ROOT / "docs/stores.md"
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    exec(code, {})
    (line,) = [line for line in printed(page) if line.startswith("recollect store copy runs/mine backup")]
    assert run(*shlex.split(line)[1:])[0] == 0
    for again in (Recognizer.load("runs/mine", store="backup.sqlite"), Recognizer.load("backup.safetensors")):
        assert again.categories()[-1].name == "okapi"


def commands_below(command, name):
    for inner, below in getattr(command, "commands", {}).items():
        yield f"{name} {inner}", below
        yield from commands_below(below, f"{name} {inner}")


def test_the_page_of_the_command_line_has_every_command_and_option(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    page = importlib.import_module("hooks").command_line()
    for name, command in commands_below(TOP, "recollect"):
        assert f"`{name}`\n" in page
        section = page.partition(f"`{name}`\n")[2].partition("\n#")[0]
        options = {option for parameter in command.params for option in parameter.opts}
        for option in options - {"--version", "--help"}:
            if option.startswith("--"):
                assert option in section, name


def test_the_python_page_has_every_public_name_and_its_example_runs(folder, capsys):
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert sorted([*re.findall(r"^::: recollect\.(\w+)", page, re.MULTILINE), "__version__"]) == dir(
        recollect
    )
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    for number, name in enumerate(("okapi-2.jpg", "unknown.jpg")):
        write_picture(folder / name, number)
    (folder / "imagenet").symlink_to("runs/mine")
    (folder / "runs" / "mine" / "taught.sqlite").unlink()
    names = {}
    exec(code, names)
    assert capsys.readouterr().out.count("%") == 3
    assert names["features"].shape == (2, 32)
