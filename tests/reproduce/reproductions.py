"""Reproductions as tests read and compare them."""

import json
import shutil

from pictures import tree
from recollect.reproduce import page
from recollect.reproduce.results import write_json


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def timeless(folder, copy):
    """Copy what a page is made of, with all times 0, and return the page's bytes."""
    for path in [*folder.glob("*.json"), *folder.glob("*.png"), *folder.glob("results/*.json")]:
        there = copy / path.relative_to(folder)
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, there)
        if path.parent.name == "results":
            words = read(there)
            words |= {"training_seconds": 0, "evaluation_seconds": 0}
            words["report"]["seconds"] = 0
            write_json(there, words)
    page.write_page(copy)
    return tree(copy)


def words_of(settings):
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
