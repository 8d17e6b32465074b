"""Reproductions as tests read and compare them."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

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


HERE = Path(__file__).parent
SLOW = """
import sys, time
sys.path[:0] = sys.argv[1:3]
from pathlib import Path
import pytest
from recollect.training import loop
save = loop.save_checkpoint
def slow(path, state):
    save(path, state)
    time.sleep(0.1)
loop.save_checkpoint = slow
"""


def kill_when(begun, code, *words):
    """Run Python code in a process that writes checkpoints slowly; kill it once the file `begun` is there.

    `words` are its `sys.argv[3:]`; it may import the tests.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW + code, str(HERE), str(HERE.parent), *map(str, words)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    while not begun.exists():
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()


def words_of(settings):
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
