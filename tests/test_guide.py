"""The guide is true: its code blocks run, in their order, on a small folder of pictures.

The same commands with --json print what the page on JSON shows.
"""

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from PIL import Image

from pictures import write_picture
from pretrained import HAVE_WEIGHTS
from recollect import cli
from recollect.commands import refit

GUIDE = Path(__file__).parents[1] / "docs" / "guide.md"
BLOCKS = re.findall(r"```(sh|python)\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
# All but this is run as it is printed; the training is cut to a few steps of a small network.
TRAINING = "train photos --extractor efficientnet-lite0"
SHORT_TRAINING = (
    "train photos --extractor c32f --size 16 --threads 1 --device cpu --set stage1.steps=2 "
    "--set stage2.steps=2 --set stage2.views=1 --set select_tasks=4"
)
SHOWN = {
    title: json.loads(text)
    for title, text in re.findall(
        r'```json title="recollect (\w+)"\n(.*?)```',
        (GUIDE.parent / "json.md").read_text(encoding="utf-8"),
        re.DOTALL,
    )
}
COMMANDS = {command.name or command.callback.__name__ for command in cli.app.registered_commands}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with everything that the guide names, as small as can be."""
    seed = 0
    for top, names, count in (
        ("photos", ("Orange", "Zucchini", "Garlic"), 10),
        ("new", ("Kiwi", "Red-Beet", "Ginger"), 3),
        ("labelled", ("Orange", "Kiwi"), 2),
    ):
        for name in names:
            for number in range(1, count + 1):
                seed += 1
                write_picture(tmp_path / top / name / f"{number:03}.jpg", seed)
    for number in range(1, 5):
        write_picture(tmp_path / "inbox" / f"IMG_{number:04}.jpg", number)
    monkeypatch.setattr(refit, "_STEPS", 2)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def paths(value, place=""):
    """Yield the place of every key; of lists the first entry counts."""
    if isinstance(value, list):
        value = value[0] if value else None
    if isinstance(value, dict):
        for key, inner in value.items():
            yield f"{place}.{key}"
            yield from paths(inner, f"{place}.{key}")


@pytest.mark.slow
def test_every_code_block_runs(folder, run, capsys):
    assert [kind for kind, _ in BLOCKS].count("python") == 2
    text = "".join(code for _, code in BLOCKS)
    assert text.count(TRAINING) == 1
    named, ran = {}, {}
    for kind, code in BLOCKS:
        if kind == "python":
            exec(code, named)
            continue
        for line in code.replace(TRAINING, SHORT_TRAINING).splitlines():
            words = shlex.split(line)
            if words[0] != "recollect":
                subprocess.run(words, check=True)
            elif words[1] in COMMANDS and (HAVE_WEIGHTS or not {"imagenet", "fresh"} & {*words}):
                ended, said, err = run(*words[1:], "--json")
                assert ended == 0, err
                ran.setdefault(words[1], set()).update(paths(json.loads(said)))
    assert {"train", "teach", "forget", "rename", "categories", "predict", "check"} <= set(ran)
    assert {"new", "refit"} <= set(ran) or not HAVE_WEIGHTS
    assert "6 categories" in capsys.readouterr().out
    ended, said, err = run(
        *shlex.split("evaluate runs/mine photos --ways 2 --queries 1 --tasks 4 --shots 1 --json --quiet")
    )
    assert ended == 0, err
    ran["evaluate"] = {*paths(json.loads(said))}
    for command, found in ran.items():
        shown = {*paths(SHOWN[command])}
        may_lack = (".confused_with.", ".resembles.")  # which depend on what the pictures show
        assert {place for place in shown if not any(part in place for part in may_lack)} <= found, command
        assert {place for place in found if place.count(".") == 1} <= shown | {".warnings"}, command
    with Image.open(folder / "answers.png") as sheet:
        assert sheet.format == "PNG"
    taught = {category.name for category in named["again"].categories() if category.origin == "novel"}
    assert taught == {"Kiwi", "Beetroot", "Ginger"}
