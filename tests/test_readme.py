"""What the README says is true: its example runs."""

import json
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
    assert "okapi" not in [known.name for known in names["recognizer"].categories()]


def test_every_file_that_the_readme_shows_is_there():
    for link in re.findall(r"\]\(([^)#]+)\)", README.read_text(encoding="utf-8")):
        if not link.startswith("http"):
            assert (README.parent / link).exists(), link


def test_every_result_in_the_readme_was_written_by_a_command():
    text = README.read_text(encoding="utf-8")
    folder = README.parent / "docs" / "results" / "cifar-fs-c64f-quick"
    labels = {
        "cifar-mean": "mean (stage 1 alone)",
        "cifar-average": "average",
        "cifar": "attention, mixed shots (the default)",
        "cifar-1-shot": "attention, trained for 1 shot",
        "cifar-5-shot": "attention, trained for 5 shots",
    }
    assert {file.stem for file in folder.glob("*.json")} == set(labels)
    for name, label in labels.items():
        report = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        assert report["model"] == f"runs/{name}"
        assert (report["categories"], report["tasks"], report["ways"]) == ("test", 600, 5)
        cells = []
        for figure in ("novel", "base", "both"):
            values = [result[figure] for result in report["results"]]
            means = [f"{value['mean']:.1f} ± {value['ci95']:.1f}" for value in values]
            cells.append(" / ".join(dict.fromkeys(means)))
        assert f"| {label} | {' | '.join(cells)} |" in text


def test_the_demonstration_shows_what_it_should():
    result = json.loads((README.parent / "docs" / "results" / "demo.json").read_text(encoding="utf-8"))
    one_shot = {row["generator"]: row for row in result["generators"] if row["shots"] == 1}
    assert all(60 <= row["novel"]["mean"] <= 92 for row in one_shot.values())
    for kind in ("average", "attention"):
        gain = one_shot[kind]["both_minus_mean"]
        assert gain["mean"] >= 2
        assert gain["mean"] - gain["ci95"] > 0
    assert result["taught"]["base_scores_bit_identical"]
