import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from pictures import disk_room, tree
from recollect.errors import RecollectError, StorageError
from recollect.system import disk
from recollect.system.disk import (
    cache_folder,
    data_folder,
    locked,
    replacing_file,
    replacing_folder,
    write_text,
)


@pytest.fixture
def old(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("old")
    return path


def write_and_fail(path, fault):
    path.write_text("half")
    raise fault


def test_a_reader_sees_the_old_file_until_the_block_ends(old):
    with replacing_file(old) as part:
        part.write_text("new")
        assert old.read_text() == "old"
    assert tree(old.parent) == {"notes.txt": b"new"}


def test_folders_on_the_way_are_made(tmp_path):
    write_text(tmp_path / "a" / "b" / "c.txt", "ü")
    assert tree(tmp_path) == {"a/b/c.txt": "ü".encode()}


@pytest.mark.parametrize("fault", [ValueError("bug"), KeyboardInterrupt(), OSError(errno.EIO, "bad disk")])
def test_a_block_that_fails_leaves_the_old_file_and_nothing_else(old, fault):
    expected = StorageError if isinstance(fault, OSError) else type(fault)
    with pytest.raises(expected), replacing_file(old) as part:
        write_and_fail(part, fault)
    assert tree(old.parent) == {"notes.txt": b"old"}


def test_a_bug_in_the_block_is_not_dressed_up_as_a_storage_error(tmp_path):
    with pytest.raises(ValueError, match="bug"), replacing_file(tmp_path / "a"):
        raise ValueError("bug")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_is_full_when_it_counts_leaves_the_old_file(old, monkeypatch, number):
    def full(_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(disk.os, "fsync", full)
    with pytest.raises(StorageError, match=r"no room on the disk .*notes\.txt.* free some space"):
        write_text(old, "new")
    assert tree(old.parent) == {"notes.txt": b"old"}


def test_a_write_that_the_system_cuts_short_leaves_the_old_file(old):
    with disk_room(1000), pytest.raises(StorageError, match="no room on the disk"):
        write_text(old, "x" * 5000)
    assert tree(old.parent) == {"notes.txt": b"old"}


def test_other_faults_of_the_disk_are_told_in_its_own_words(old):
    with pytest.raises(StorageError, match=r"cannot write .*below: "):
        write_text(old / "below", "a folder would have to stand where a file does")
    assert tree(old.parent) == {"notes.txt": b"old"}


def test_files_and_folders_get_the_permissions_that_plain_ones_would(tmp_path, monkeypatch):
    mask = os.umask(0o027)
    monkeypatch.setattr(disk.os, "umask", None)  # it is the whole process's: other threads write too
    try:
        write_text(tmp_path / "a", "")
        with replacing_folder(tmp_path / "b"):
            pass
    finally:
        monkeypatch.undo()
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "b").stat().st_mode) == 0o750


def test_a_folder_appears_whole(tmp_path):
    target = tmp_path / "entry"
    with replacing_folder(target) as part:
        (part / "a").write_text("1")
        assert not target.exists()
        (part / "b").write_text("2")
    assert tree(tmp_path) == {"entry/a": b"1", "entry/b": b"2"}


@pytest.mark.parametrize("fault", [RecollectError("no"), KeyboardInterrupt()])
def test_a_folder_whose_block_fails_never_appears(tmp_path, fault):
    with pytest.raises(type(fault)), replacing_folder(tmp_path / "entry") as part:
        write_and_fail(part / "a", fault)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_no_part_of_a_folder(tmp_path):
    fault = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(StorageError, match="no room"), replacing_folder(tmp_path / "entry") as part:
        write_and_fail(part / "a", fault)
    assert list(tmp_path.iterdir()) == []


def test_a_faster_rivals_folder_stays(tmp_path):
    target = tmp_path / "entry"
    with replacing_folder(target) as part:
        (part / "a").write_text("ours")
        target.mkdir()
        (target / "a").write_text("the rival's")
    assert tree(tmp_path) == {"entry/a": b"the rival's"}
    assert [path.name for path in tmp_path.iterdir()] == ["entry"]


def test_the_cache_is_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path / "chosen"))
    assert cache_folder() == tmp_path / "chosen"
    monkeypatch.delenv("RECOLLECT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "recollect"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    if sys.platform.startswith("linux"):
        assert cache_folder() == tmp_path / ".cache" / "recollect"
        assert data_folder() == tmp_path / ".local" / "share" / "recollect"


def test_a_lock_that_is_a_link_is_refused_and_its_target_is_left_alone(tmp_path):
    victim = tmp_path / "precious.txt"
    victim.write_text("precious")
    run = tmp_path / "run"
    run.mkdir()
    (run / ".lock").symlink_to(victim)
    with (
        pytest.raises(StorageError, match=r"run/\.lock is not a file that recollect wrote: remove it"),
        locked(run),
    ):
        pass
    (run / ".lock").unlink()
    os.link(victim, run / ".lock")
    with locked(run):
        assert victim.read_text() == "precious"
    (run / ".lock").unlink()
    os.mkfifo(run / ".lock")
    with pytest.raises(StorageError, match="not a file that recollect wrote"), locked(run):
        pass
    assert victim.read_text() == "precious"


def test_a_folder_is_held_by_one_writer_at_a_time(tmp_path):
    (tmp_path / ".model.1234.part").write_text("left by a killed writer")
    with locked(tmp_path):
        assert not (tmp_path / ".model.1234.part").exists()
        with pytest.raises(StorageError, match="another process is writing to"), locked(tmp_path):
            pass
    with locked(tmp_path):
        pass


@pytest.mark.skipif(not Path("/dev/null").exists(), reason="there is no /dev/null here")
def test_a_folder_where_a_file_is_to_be_removed_is_told(tmp_path):
    (tmp_path / ".model.1234.part").mkdir()
    with pytest.raises(StorageError, match=r"cannot write .*1234\.part: Is a directory"), locked(tmp_path):
        pass


def test_devices_are_written_to_and_not_replaced(tmp_path):
    before = os.lstat("/dev/null")
    write_text(Path("/dev/null"), "nothing")
    assert (os.lstat("/dev/null").st_mode, os.lstat("/dev/null").st_ino) == (before.st_mode, before.st_ino)
    program = (
        "from pathlib import Path; from recollect.system.disk import write_text; "
        "print('before', flush=True); write_text(Path('/dev/stdout'), 'written\\n'); print('after')"
    )
    link = os.lstat("/dev/stdout").st_ino
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "before\nwritten\nafter\n"
    with (tmp_path / "out").open("a") as out:
        subprocess.run([sys.executable, "-c", program], stdout=out, check=True)
    assert (tmp_path / "out").read_text() == "before\nwritten\nafter\n"
    assert os.lstat("/dev/stdout").st_ino == link


def test_pipes_and_links_to_devices_are_never_written_through(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StorageError, match=r"pipe is not a regular file, and is left as it is"):
        write_text(tmp_path / "pipe", "x")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    (tmp_path / "link").symlink_to("/dev/null")  # in a folder from elsewhere it might be a disk
    write_text(tmp_path / "link", "x")
    assert (tmp_path / "link").read_text() == "x"


def test_a_file_in_shared_memory_is_replaced_as_any_other(tmp_path):
    folder = Path("/dev/shm")
    if not folder.is_dir():
        pytest.skip("there is no shared memory here")
    path = folder / f"recollect-{os.getpid()}"
    try:
        for text in ("first", "second"):
            write_text(path, text)
        assert path.read_text() == "second"
        path.unlink()
        (tmp_path / "precious").write_text("precious")
        path.symlink_to(tmp_path / "precious")  # anybody may write there
        write_text(path, "third")
        assert (tmp_path / "precious").read_text() == "precious"
    finally:
        path.unlink(missing_ok=True)


@pytest.mark.parametrize("path", ["/", "/dev", "."])
def test_a_folder_is_not_written_to_as_a_file(path):
    with pytest.raises(StorageError, match="choose another name"):
        write_text(Path(path), "x")


def test_a_lock_has_the_permissions_of_a_plain_file(tmp_path):
    mask = os.umask(0o027)
    try:
        with locked(tmp_path):
            pass
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / ".lock").stat().st_mode) == 0o640


def test_a_part_whose_writer_finishes_meanwhile_is_no_error(tmp_path, monkeypatch):
    gone = tmp_path / ".entry.1234.part"
    monkeypatch.setattr(Path, "glob", lambda folder, pattern: iter([gone]))
    with replacing_folder(tmp_path / "entry"):
        pass
    assert (tmp_path / "entry").is_dir()


def test_the_cache_is_for_its_owner_alone(monkeypatch, tmp_path):
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path / "a" / "cache"))
    mask = os.umask(0o022)
    try:
        write_text(cache_folder() / "checked" / "x.json", "{}")
        with replacing_folder(cache_folder() / "images" / "key") as part:
            (part / "pixels").write_text("")
    finally:
        os.umask(mask)
    modes = {
        str(path.relative_to(tmp_path)): stat.S_IMODE(path.stat().st_mode)
        for path in tmp_path.rglob("*")
        if path.is_dir()
    }
    assert modes.pop("a") == 0o755
    assert modes == dict.fromkeys(
        ["a/cache", "a/cache/checked", "a/cache/images", "a/cache/images/key"], 0o700
    )
