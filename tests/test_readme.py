"""What the README says is true: its example runs."""

import re
from pathlib import Path

import numpy as np
from PIL import Image

from recollect.modelfile import save_model

README = Path(__file__).parents[1] / "README.md"


def test_the_five_lines_of_python_run(tmp_path, monkeypatch, capsys, tiny_model):
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    lines = [line for line in code.splitlines() if line]
    assert len(lines) == 5
    save_model(tmp_path / "demo" / "model" / "model.safetensors", tiny_model)
    rng = np.random.default_rng(0)
    for name in ("okapi-1.jpg", "okapi-2.jpg", "unknown.jpg"):
        Image.fromarray(rng.integers(0, 256, (40, 30, 3), dtype=np.uint8)).save(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(code, names)
    printed = capsys.readouterr().out
    assert printed.count("Prediction(category=") == 3
    assert "okapi" not in names["recognizer"].categories()


def test_every_file_that_the_readme_shows_is_there():
    for link in re.findall(r"\]\(([^)#]+)\)", README.read_text(encoding="utf-8")):
        if not link.startswith("http"):
            assert (README.parent / link).exists(), link
