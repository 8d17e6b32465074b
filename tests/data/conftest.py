"""What tests of several files on one data set may ask for."""

import shutil

import pytest
from mini_releases import LAYOUTS


@pytest.fixture(scope="module")
def releases(tmp_path_factory):
    root = tmp_path_factory.mktemp("mini")
    for name, write in LAYOUTS.items():
        (root / name).mkdir()
        write(root / name)
    return root


@pytest.fixture
def copy_of(releases, tmp_path):
    """Return a copy of a release that a test may alter."""
    return lambda layout: shutil.copytree(releases / layout, tmp_path / "mini")
