"""The page that leads from the paper to the code names files, classes and functions that are there."""

import re
from pathlib import Path

import recollect

SOURCE = Path(recollect.__file__).parent
PAGE = (SOURCE.parents[1] / "docs" / "paper-to-code.md").read_text(encoding="utf-8")
CITED = re.findall(r"`([\w/]+\.(?:py|toml)|model/extractors/)`((?:(?:: |, )`[A-Z_a-z.]+`(?!:))*)", PAGE)


def test_every_file_and_name_is_there():
    assert len(CITED) > 20
    for path, names in CITED:
        place = SOURCE / path if "/" in path else next((SOURCE / "model").rglob(path))
        files = [place] if place.is_file() else sorted(place.glob("*.py"))
        text = "".join(file.read_text(encoding="utf-8") for file in files)
        for name in re.findall(r"`([\w.]+)`", names):
            if not name.endswith(".py"):
                last = name.rpartition(".")[2]
                assert re.search(rf"(def|class) {last}\b|^ *{last}\b[:= ]", text, re.MULTILINE), (
                    f"{path}: {name}"
                )
