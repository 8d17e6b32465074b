"""Try the faults of `faults.py`: `make mutants`.

Each is applied alone to a copy of the tree, and the tests are run on the copy.

`python tests/mutants.py [WORD…]` tries those whose file or name has one of the words.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from faults import MUTANTS, Mutant

ROOT = Path(__file__).parent.parent
TOO_LONG = 300  # seconds; a fault that makes tests hang is caught, too


def broken(mutant: Mutant) -> str | None:
    """Say why a fault cannot be tried, if it cannot."""
    found = (ROOT / "src/recollect" / mutant.file).read_text(encoding="utf-8").count(mutant.old)
    if found != 1:
        return f"its text stands {found} times in {mutant.file} and must stand there once: {mutant.old!r}"
    missing = [word for word in mutant.tests.split(" -k ")[0].split() if not (ROOT / "tests" / word).exists()]
    return f"there is no tests/{missing[0]}" if missing else None


def copy_tree(folder: Path) -> None:
    """Copy what the tests need."""
    for name in ("src", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)


def run_tests(folder: Path, words: str) -> tuple[int, str]:
    """Run pytest in a copy of the tree: exit code and output."""
    files, _, chosen = words.partition(" -k ")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header"]
    command += ["-m", ""]  # slow ones, too
    command += ["-k", chosen.strip("'")] if chosen else []
    environment = {
        **os.environ,
        "PYTHONPATH": f"{folder / 'src'}{os.pathsep}{folder / 'tests'}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
    }
    command += [f"tests/{file}" for file in files.split()] + [f"--basetemp={folder / 'temporary'}"]
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TOO_LONG,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 1, "too long"
    return done.returncode, done.stdout + done.stderr


def tried(mutant: Mutant) -> str:
    """Apply a fault to a copy and run its tests: "caught", "SURVIVED", or what went wrong."""
    reason = broken(mutant)
    if reason:
        return f"ERROR: {reason}"
    with tempfile.TemporaryDirectory(prefix="mutant-") as place:
        folder = Path(place)
        copy_tree(folder)
        file = folder / "src/recollect" / mutant.file
        file.write_text(file.read_text(encoding="utf-8").replace(mutant.old, mutant.new), encoding="utf-8")
        code, said = run_tests(folder, mutant.tests)
    if code in {0, 1}:
        return "caught" if code else "SURVIVED"
    return f"ERROR: pytest ended with {code}: {' '.join(said.split())[-300:]}"


def sound() -> str | None:
    """Run every named test on the tree as it is; say what fails."""
    named = [mutant.tests.partition(" -k ") for mutant in MUTANTS]
    files = sorted({file for words, _, _ in named for file in words.split()})
    whole = {Path(file).name for words, _, chosen in named if not chosen for file in words.split()}
    chosen = " or ".join(sorted({*whole, *(f"({words.strip(chr(39))})" for _, _, words in named if words)}))
    with tempfile.TemporaryDirectory(prefix="mutant-") as place:
        copy_tree(Path(place))
        code, said = run_tests(Path(place), f"{' '.join(files)} -k {chosen}")
    return None if code == 0 else said[-2000:]


def main() -> int:
    """Try all, print each and the score; 1 if any survived."""
    words, began = sys.argv[1:], time.monotonic()
    chosen = [one for one in MUTANTS if not words or any(word in f"{one.file} {one.name}" for word in words)]
    wrong = None if words else sound()
    if wrong:
        sys.stdout.write(f"{wrong}\nthe tests fail without any fault: mend them first\n")
        return 1
    caught = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for mutant, verdict in zip(chosen, pool.map(tried, chosen), strict=True):
            caught += verdict == "caught"
            sys.stdout.write(f"{verdict:9} {mutant.file}: {mutant.name}\n")
            sys.stdout.flush()
    minutes = (time.monotonic() - began) / 60
    sys.stdout.write(f"{caught} of {len(chosen)} mutants caught, {minutes:.1f} minutes\n")
    return 0 if caught == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
