"""What all commands print with: paths that keep their end, and outputs that are tried before the work."""

import os

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from recollect.commands.printing import PathText, common_folder, keep_end, require_writable
from recollect.errors import StorageError


@pytest.mark.parametrize("path", ["photos/zoo/okapi.jpg", "写真/動物/オカピ.jpg", "a" * 300])
@pytest.mark.parametrize("room", [1, 5, 11, 12, 40])
def test_a_path_that_is_too_long_keeps_its_end(path, room):
    shown = keep_end(path, room)
    assert cell_len(shown) <= room
    assert shown == path or (shown.startswith("…") and path.endswith(shown[1:]))
    assert shown == path or cell_len(shown) >= room - 1, "all the room is used"


def test_a_narrow_terminal_shows_the_names_of_files(capsys):
    table = Table("picture", "category")
    table.add_row(PathText("a/very/long/way/to/the/photos/okapi-1.jpg"), "okapi")
    Console(width=35).print(table)
    lines = capsys.readouterr().out.splitlines()
    assert "photos/okapi-1.jpg │ okapi" in lines[3]
    assert len(lines) == 5, "nothing is folded"


@pytest.mark.parametrize(
    ("paths", "folder"),
    [
        (["a/b/c.png", "a/b/d.png"], "a/b"),
        (["a/b/c.png", "a/d.png"], "a"),
        (["c.png", "a/d.png"], ""),
        (["/c.png", "/a/d.png"], ""),
        (["/a/c.png", "a/d.png"], ""),
    ],
)
def test_the_folder_that_paths_have_in_common(paths, folder):
    assert common_folder(paths) == folder


def test_a_place_that_can_be_written_is_left_as_it_is(tmp_path):
    require_writable(tmp_path / "new" / "deep" / "file.json")
    require_writable(tmp_path / "new", folder=True)
    require_writable(tmp_path, folder=True)
    (tmp_path / "old.json").write_text("mine")
    require_writable(tmp_path / "old.json")
    assert [path.name for path in tmp_path.iterdir()] == ["old.json"]
    assert (tmp_path / "old.json").read_text() == "mine"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_devices_and_pipes_are_left_to_whoever_writes_to_them(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    require_writable(tmp_path / "pipe")  # and does not wait for a reader


@pytest.mark.parametrize("name", ["file/x.json", "file/a/b/x.json", "folder", "x" * 5000])
def test_a_place_that_cannot_be_written_is_refused(tmp_path, name):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError, match="cannot write"):
        require_writable(tmp_path / name)
    with pytest.raises(StorageError, match="Not a directory"):
        require_writable(tmp_path / "file", folder=True)
