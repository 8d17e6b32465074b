"""Run the guide's commands on photographs: the figures of `docs/results/guide/*.json`.

    python -m benchmarks.guide PHOTOS.zip --out docs/results/guide

Of twelve photographs of each kind, ten of 75 kinds are trained on, five of the six others are taught, and two
of all 81 are checked.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path, PurePosixPath

from recollect.system.disk import write_text

NEW = {"Banana", "Carrots", "Ginger", "Kiwi", "Lime", "Red-Beet"}
TRAINED, TAUGHT = 10, 5
LITE0 = ("--extractor", "efficientnet-lite0")


def lay_out(photos, folder):
    """Write the folders that the guide names: photos, new and labelled."""
    with zipfile.ZipFile(photos) as archive:
        kinds = {}
        for name in sorted(archive.namelist()):
            path = PurePosixPath(name)
            if path.suffix == ".jpg":
                kinds.setdefault(path.parent.name, []).append(name)
        for kind, names in kinds.items():
            top, count = ("new", TAUGHT) if kind in NEW else ("photos", TRAINED)
            for part, some in ((top, names[:count]), ("labelled", names[TRAINED:])):
                place = folder / part / kind
                place.mkdir(parents=True)
                for name in some:
                    (place / PurePosixPath(name).name).write_bytes(archive.read(name))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("photos", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        lay_out(options.photos, Path(folder))

        def run(*words, keep=None):
            command = [Path(sys.executable).with_name("recollect"), *words, "--json"]
            said = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, check=True).stdout
            if keep:
                write_text(options.out / f"{keep}.json", json.dumps(json.loads(said), indent=1) + "\n")
                print(keep, json.loads(said))

        run("train", "photos", *LITE0, "--out", "runs/mine", keep="train")
        run("teach", "runs/mine", "--from", "new")
        run("check", "runs/mine", "labelled", "--out", "confusion.png", keep="check")
        run("new", "fresh", *LITE0)
        run("teach", "fresh", "--from", "photos")
        run("refit", "fresh", "--out", "better", keep="refit")


if __name__ == "__main__":
    main()
