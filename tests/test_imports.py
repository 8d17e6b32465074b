"""Imports go one way: every part of the package says here what it may stand on."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import recollect
from recollect.modelfile import save_model

SOURCE = Path(recollect.__file__).parent
MODULES = sorted(path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py"))

DATA = {"errors", "system", "images", "model", "modelfile", "pretrained", "data", "features"}
TRAINING = DATA | {"evaluation", "presets", "training"}
RECOGNITION = {"errors", "system", "images", "model", "modelfile", "store", "backends", "recognition"}
ALLOWED = {
    "errors": set(),
    "system": {"errors"},
    "presets": set(),
    "images": {"errors"},
    "store": {"errors", "system"},
    "model": {"errors", "system"},
    "pretrained": {"errors", "system", "model"},
    "modelfile": {"errors", "system", "model", "pretrained"},
    "data": {"errors", "system", "images", "model"},
    "features": {"errors", "system", "model", "modelfile", "data"},
    "evaluation": DATA,
    "training": DATA | {"evaluation", "presets"},
    "methods": TRAINING,
    "reproduce": TRAINING | {"methods"},
    "backends": {"errors", "system", "model", "modelfile"},
    "recognition": RECOGNITION - {"recognition"},
    "estimator": {"errors", "model", "training", "recognition"},
    "client": {"errors", "images", "recognition"},
    "serve": RECOGNITION,
    "export": RECOGNITION | {"serve"},
    "commands": TRAINING | RECOGNITION | {"methods", "reproduce", "client", "serve", "export"},
    "__init__": {"errors", "recognition", "estimator", "client"},
    "cli": TRAINING | RECOGNITION | {"methods", "reproduce", "commands", "serve", "__init__"},
}


def imported(tree, module):
    """Yield the full name of everything imported anywhere in a module."""
    package = ["recollect", *module.split("/")[:-1]]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            # `from recollect import system` names a module, `from recollect.errors import X` does not.
            yield from (f"{base}.{alias.name}" for alias in node.names)


def part_of(name):
    """Return which part of the package a full name belongs to, or `None`."""
    first, *rest = name.split(".")
    if first != "recollect":
        return None
    is_module = rest and ((SOURCE / rest[0]).is_dir() or (SOURCE / f"{rest[0]}.py").is_file())
    return rest[0] if is_module else "__init__"


def parsed(module):
    return ast.parse((SOURCE / module).read_text(encoding="utf-8"))


def test_the_check_sees_every_way_to_import():
    text = """
import recollect.cli
if TYPE_CHECKING:
    from recollect.data import folder
def later():
    from recollect import system, __version__
    from ..training import train
    import numpy
"""
    parts = [part_of(name) for name in imported(ast.parse(text), "data/made_up.py")]
    assert sorted(part for part in parts if part) == ["__init__", "cli", "data", "system", "training"]


def test_what_is_allowed_never_goes_round_in_a_circle():
    def reach(part, seen):
        assert part not in seen, f"{part} stands on itself"
        for below in ALLOWED[part] - {part}:
            reach(below, {*seen, part})

    for part in ALLOWED:
        reach(part, set())


def test_imports_go_only_in_the_allowed_direction():
    for module in MODULES:
        part = module.split("/")[0].removesuffix(".py")
        assert part in ALLOWED, f"say in ALLOWED what {part} may import"
        used = {part_of(name) for name in imported(parsed(module), module)} - {None, part}
        assert used <= ALLOWED[part], f"{module} may not import {used - ALLOWED[part]}"


def test_contributing_lists_the_parts_from_top_to_bottom():
    page = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = page[page.index("## Which part imports which") :].partition("\n## ")[0]
    rows = [
        re.findall(r"`(\w+)`", row.split("|")[1]) for row in section.splitlines() if row.startswith("| `")
    ]
    row_of = {part: number for number, row in enumerate(rows) for part in row}
    assert row_of.keys() == ALLOWED.keys()
    for part, below in ALLOWED.items():
        assert all(row_of[other] > row_of[part] for other in below - {part}), part


def test_no_module_stands_on_itself():
    below = {}
    for module in MODULES:
        names = {name.removeprefix("recollect.") for name in imported(parsed(module), module)}
        paths = {name.replace(".", "/") for name in names} | {
            name.rpartition(".")[0].replace(".", "/") for name in names
        }
        below[module] = {f"{path}.py" for path in paths} & set(MODULES)

    done = set()  # modules that lead into no circle

    def reach(module, seen):
        assert module not in seen, f"a circle of imports: {seen}"
        for other in below[module] - done:
            reach(other, (*seen, module))
        done.add(module)

    for module in MODULES:
        reach(module, ())
    assert "data/tars.py" in below["data/files.py"]


@pytest.mark.parametrize(
    "module",
    [
        "recognition/recognizer.py",
        "recognition/knowledge.py",
        "recognition/predictor.py",
        "backends/__init__.py",
        "images.py",
    ],
)
def test_what_people_hold_knows_models_by_their_words_and_backend_only(module):
    names = set(imported(parsed(module), module))
    assert not {name for name in names if name.split(".")[0] in {"torch", "safetensors"}}
    in_model = {name for name in names if name.startswith("recollect.model.")}
    assert all(name.startswith("recollect.model.spec.") for name in in_model)


def test_the_client_needs_no_recogniser_but_its_results():
    names = {name for name in imported(parsed("client.py"), "client.py") if part_of(name) == "recognition"}
    assert names
    assert all(name.startswith("recollect.recognition.results.") for name in names)


# What a person's program or shell loads before it asks for any computing.
LIGHT = (
    "import recollect",
    "import recollect.recognition.recognizer",
    "import recollect.cli",
    "import recollect.client",
    "import recollect.serve.settings",
    "import recollect.images",
    "import recollect.data.imageset",
    "import recollect.estimator",
    "from recollect.modelfile import read_header; print(read_header(sys.argv[1]).spec.model_dump_json())",
)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory, make_model):
    """What a fresh interpreter has loaded after each of LIGHT in turn, and what they printed."""
    path = tmp_path_factory.mktemp("light") / "model.safetensors"
    save_model(path, make_model())
    lines = ["import sys, json"]
    for statement in LIGHT:
        lines += [statement, "print(json.dumps(['torch' in sys.modules]))"]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines), str(path)], capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize("index", range(len(LIGHT)), ids=[line.split(";")[0] for line in LIGHT])
def test_torch_is_loaded_only_when_something_is_computed(loaded, index):
    heavy = [json.loads(line) for line in loaded if line.startswith("[")]
    assert heavy[index] == [False]


def test_a_models_header_reads_without_torch(loaded, tiny_spec):
    (words,) = [line for line in loaded if line.startswith("{")]
    assert json.loads(words) == tiny_spec.model_dump(mode="json")
