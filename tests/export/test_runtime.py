"""onnxruntime-web from npm: only the package that we know, or a folder that somebody names."""

import base64
import hashlib
import io
import tarfile

import pytest

from recollect.errors import ExtraError
from recollect.export import runtime
from recollect.export.runtime import FILES, runtime_files


def package(path, content=b"x"):
    with tarfile.open(path, "w:gz") as archive:
        for name in FILES:
            info = tarfile.TarInfo(f"package/dist/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def test_a_package_with_another_digest_is_refused(tmp_path):
    with pytest.raises(ExtraError, match="its digest differs"):
        runtime.unpack(package(tmp_path / "p.tgz"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_three_files_are_taken_out(tmp_path, monkeypatch):
    made = package(tmp_path / "p.tgz", b"content")
    known = base64.b64encode(hashlib.sha512(made.read_bytes()).digest()).decode()
    monkeypatch.setattr(runtime, "_SHA512", known)
    runtime.unpack(made, tmp_path / "out")
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == dict.fromkeys(
        FILES, b"content"
    )
    (tmp_path / "package").mkdir()
    (tmp_path / "out").rename(tmp_path / "package" / "dist")
    assert [path.name for path in runtime_files(tmp_path / "package")] == list(FILES)


def test_without_npm_the_other_way_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(runtime.shutil, "which", lambda _: None)
    with pytest.raises(
        ExtraError, match=r"install npm, or unpack that package and name its folder with --ort"
    ):
        runtime_files()
    (tmp_path / FILES[0]).write_text("")
    with pytest.raises(ExtraError, match=rf"lacks {FILES[1]}"):
        runtime_files(tmp_path)


def test_an_npm_that_fails_gives_its_reason(tmp_path, monkeypatch):
    npm = tmp_path / "npm"
    npm.write_text("#!/bin/sh\necho 'npm error network' >&2\nexit 1\n")
    npm.chmod(0o755)
    monkeypatch.setattr(runtime.shutil, "which", lambda _: str(npm))
    with pytest.raises(ExtraError, match=r"npm could not fetch .* \(npm error network\)"):
        runtime_files()


def test_a_wrong_call_is_refused(refused, tmp_path):
    for words in (("--web", tmp_path / "a", "--int8"), ("--onnx", tmp_path / "a", "--ort", tmp_path), ()):
        assert "give --onnx DIR" in refused("export", "glyphs", *words)
