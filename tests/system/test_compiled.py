"""C code that is compiled when it is first needed."""

import logging
import os
import shutil

import pytest

from recollect.model.extractors import blocks
from recollect.system import compiled, machine

pytestmark = pytest.mark.skipif(not blocks.available(), reason="the blocks cannot be compiled here")


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "small.c"
    path.write_text("int three(void) { return 3; }")
    return path


def load(path):
    """Load as a new process would."""
    return compiled._load(path)


def refused(path, caplog):
    """Return what is logged about a library that cannot be had."""
    with caplog.at_level(logging.INFO):
        assert load(path) is None
    return caplog.text


def test_a_library_is_compiled_once_and_kept_for_its_owner_alone(source, tmp_path):
    assert load(source).three() == 3
    (library,) = (tmp_path / "cache" / "compiled").iterdir()
    before = library.stat()
    assert (before.st_mode & 0o777, library.parent.stat().st_mode & 0o777) == (0o700, 0o700)
    assert load(source).three() == 3
    assert library.stat().st_mtime_ns == before.st_mtime_ns


def test_another_source_is_another_library(source):
    assert load(source).three() == 3
    source.write_text("int three(void) { return 4; }")
    assert load(source).three() == 4


@pytest.mark.parametrize("which", ["folder", "file", "link"])
def test_a_library_that_others_could_have_written_is_not_loaded(source, tmp_path, caplog, which):
    assert load(source).three() == 3
    folder = tmp_path / "cache" / "compiled"
    (library,) = folder.iterdir()
    if which == "link":
        folder.rename(tmp_path / "elsewhere")
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        (folder if which == "folder" else library).chmod(0o777)
    assert "could have been changed by others: remove it" in refused(source, caplog)


def test_nothing_is_written_to_a_folder_of_others(source, tmp_path, caplog):
    folder = tmp_path / "cache" / "compiled"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    assert str(folder) in refused(source, caplog)
    assert not [*folder.iterdir()]


def test_a_place_that_others_could_take_is_refused(source, tmp_path, caplog):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    assert f"everyone may write to {tmp_path / 'cache'}: set RECOLLECT_CACHE" in refused(source, caplog)
    (tmp_path / "cache").chmod(0o1777)  # as /tmp is
    assert load(source).three() == 3


@pytest.mark.parametrize("left", [0, 1000, 4096, 8192])
def test_a_damaged_library_is_compiled_again(source, left):
    path = compiled._compiled(["cc"], source)
    os.truncate(path, left)
    assert load(source).three() == 3


def test_the_cache_is_for_its_owner_alone(source, tmp_path):
    load(source)
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700


def test_a_compiler_may_have_options(source, monkeypatch, caplog):
    monkeypatch.setenv("CC", f"{shutil.which('cc')} -O1")
    assert load(source).three() == 3
    monkeypatch.setenv("CC", "'no compiler' -O1")
    assert "no C compiler is called 'no compiler'" in refused(source, caplog)
    monkeypatch.setenv("CC", "'unfinished")
    assert "could not be compiled" in refused(source, caplog)


def test_without_a_compiler_there_is_no_library(source, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "no C compiler is called 'cc'" in refused(source, caplog)


def test_compiling_can_be_switched_off(source, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("RECOLLECT_COMPILE", "0")
    assert refused(source, caplog) == ""
    assert not (tmp_path / "cache").exists()


def test_code_that_does_not_compile_leaves_nothing(source, tmp_path, caplog):
    source.write_text("no C")
    assert "small.c could not be compiled: " in refused(source, caplog)
    assert "exit status" not in caplog.text
    assert not [*(tmp_path / "cache" / "compiled").iterdir()]


def test_a_cache_that_cannot_be_written_is_no_error(source, tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path / "file"))
    assert "could not be compiled" in refused(source, caplog)


def test_what_could_not_be_compiled_is_tried_again_by_the_next_training(source, monkeypatch):
    monkeypatch.setattr(compiled, "_libraries", {})
    with monkeypatch.context() as patch:
        patch.setenv("PATH", "/nowhere")
        assert compiled.library(source) is None
    assert compiled.library(source) is None, "every step would try again"
    machine.prepare(1)
    assert compiled.library(source).three() == 3
    loaded = compiled.library(source)
    machine.prepare(1)
    assert compiled.library(source) is loaded
