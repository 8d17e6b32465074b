"""What the README and the page of results say is true: the example runs, the figures were measured."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import typer
from PIL import Image

from pretrained import HAVE_WEIGHTS
from recollect import cli
from recollect.modelfile import save_model
from recollect.reproduce.claims import CLAIMS
from recollect.reproduce.rows import SHOTS, TABLE_1

README = Path(__file__).parents[1] / "README.md"
RESULTS = README.parent / "docs" / "results"
PAGE = (RESULTS / "README.md").read_text(encoding="utf-8")
TABLE = RESULTS / "table1-cifar-fs-c64f"


def test_the_five_lines_of_python_run(tmp_path, monkeypatch, capsys, tiny_model):
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    lines = [line for line in code.splitlines() if line]
    assert len(lines) == 5
    if not HAVE_WEIGHTS:
        save_model(tmp_path / "imagenet" / "model.safetensors", tiny_model)
    rng = np.random.default_rng(0)
    for name in ("okapi-1.jpg", "okapi-2.jpg", "unknown.jpg"):
        Image.fromarray(rng.integers(0, 256, (40, 30, 3), dtype=np.uint8)).save(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(code, names)
    printed = capsys.readouterr().out
    assert printed.count("Prediction(category=") == 3
    assert "okapi" not in [known.name for known in names["recognizer"].categories()]


def test_the_readme_has_a_line_for_every_command():
    rows = " ".join(
        row.split("|")[1] for row in README.read_text(encoding="utf-8").splitlines() if row[:3] == "| `"
    )
    listed = {words.split(" ", 1)[0] for words in re.findall(r"`([^`]+)`", rows)}
    assert listed == {*typer.main.get_command(cli.app).commands}


def test_the_readme_is_short_and_has_one_table_of_results():
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    assert text.count("| Novel |") == 1


def results(folder, name):
    report = json.loads((RESULTS / folder / f"{name}.json").read_text(encoding="utf-8"))
    assert report["model"] == f"runs/{name}"
    assert (report["categories"], report["tasks"], report["ways"]) == ("test", 600, 5)
    return {result["shots"]: result for result in report["results"]}


def cell(value):
    return f"{value['mean']:.1f} ± {value['ci95']:.1f}"


@pytest.mark.parametrize(
    ("folder", "heading", "labels"),
    [
        (
            "cifar-fs-c64f-quick",
            "Preset `cifar-fs-c64f-quick`",
            {
                "cifar-mean": "mean (stage 1 alone)",
                "cifar-average": "average",
                "cifar": "attention, mixed shots (the default)",
                "cifar-1-shot": "attention, trained for 1 shot",
                "cifar-5-shot": "attention, trained for 5 shots",
            },
        ),
        (
            "cifar-fs-c64f-sgd",
            "The authors' SGD, 4.9 million images",
            {
                "long-mean": "mean (stage 1 alone)",
                "long-average": "average",
                "long": "attention, mixed shots (the default)",
            },
        ),
    ],
)
def test_every_preset_is_described_as_measured(folder, heading, labels):
    section = PAGE[PAGE.index(f"### {heading}\n") :].partition("\n#")[0]
    for name, label in labels.items():
        found = results(folder, name)
        cells = []
        for figure in ("novel", "base", "both"):
            means = [cell(found[shots][figure]) for shots in (1, 5)]
            cells.append(" / ".join(dict.fromkeys(means)))
        assert f"| {label} | {' | '.join(cells)} |" in section


def test_the_comparison_of_shots_was_written_by_commands():
    mixed = results("cifar-fs-c64f-sgd", "long")
    for shots in (1, 2, 3, 5, 10, 20):
        own = results("cifar-fs-c64f-sgd", f"long-{shots}")[shots]
        cells = [cell(one[figure]) for figure in ("novel", "both") for one in (mixed[shots], own)]
        assert f"| {shots} | {' | '.join(cells)} |" in PAGE


def test_the_answers_in_the_results_were_written_by_the_benchmark():
    report = json.loads((RESULTS / "cifar-fs-c64f-sgd" / "answers.json").read_text(encoding="utf-8"))
    assert report["model"] == "runs/long"
    taught = (0, 1, 2, 5, 10, 15, 20)
    curves = report["one_by_one"]
    for label, name in (
        ("pictures of base categories", "base"),
        ("pictures of taught categories", "taught"),
        ("all, every category weighted equally", "overall"),
    ):
        means = dict(zip(range(20, -1, -1), reversed(curves[name]["mean"]), strict=False))
        cells = [f"{means[number]:.1f}" if number in means else "–" for number in taught]
        assert f"| {label} | {' | '.join(cells)} |" in PAGE
    errors = (report["reliability"][when]["ece"] for when in ("before", "after"))
    assert "{:.1f} % before and {:.1f} % after".format(*errors) in PAGE
    for row in report["bias"]:
        cells = [cell(row[how][figure]) for figure in ("both", "harmonic") for how in ("without", "with")]
        assert f"| {row['ways']}, {row['shots']} | {' | '.join(cells)} |" in PAGE
    for label, name in (
        ("AUROC of the best score", "auroc"),
        ("known pictures called unknown", "known_called_unknown"),
        ("unknown pictures accepted", "unknown_accepted"),
    ):
        assert f"| {label} | {report['unknown'][name]['mean']:.1f} |" in PAGE


@pytest.mark.parametrize("name", ["omniglot", "omniglot-20"])
def test_the_results_on_omniglot_were_written_by_a_command(name):
    report = json.loads((RESULTS / "omniglot-c64f" / f"{name}.json").read_text(encoding="utf-8"))
    assert (report["model"], report["categories"], report["tasks"]) == ("runs/omniglot", "test", 600)
    for result in report["results"]:
        cells = [cell(result[figure]) for figure in ("novel", "base", "both")]
        assert f"| {report['ways']}, {result['shots']} | {' | '.join(cells)} |" in PAGE


@pytest.mark.parametrize("folder", ["table1-cifar-fs-c64f", "table1-mini-imagenet"])
def test_the_claims_are_those_of_the_reproduction(folder):
    table = (RESULTS / folder / "table1.md").read_text(encoding="utf-8")
    claims = table[table.index("| Claim | Verdict |") :].partition("\n\n")[0]
    assert claims.count("\n") == len(CLAIMS) + 2
    assert claims in PAGE


@pytest.mark.parametrize("row", TABLE_1.rows, ids=lambda row: row.key)
def test_the_rows_on_test_categories_were_written_by_a_command(row):
    found, seconds = {}, []
    for training in TABLE_1.trainings(1):
        if training.row is row:
            report = json.loads((TABLE / "test" / f"{training.name}.json").read_text(encoding="utf-8"))
            assert report["model"] == f"runs/{training.name}"
            assert (report["categories"], report["tasks"]) == ("test", 600)
            found |= {result["shots"]: result for result in report["results"]}
            seconds.append(report["seconds"])
    cells = []
    for figure in ("novel", "base", "both"):
        means = ["–" if found[shots][figure] is None else cell(found[shots][figure]) for shots in SHOTS]
        cells.append(" / ".join(dict.fromkeys(means)))
    assert f"| {row.title} | {' | '.join(cells)} | {max(seconds):.1f} |" in PAGE


def test_the_demonstration_shows_what_it_should():
    result = json.loads((RESULTS / "demo.json").read_text(encoding="utf-8"))
    for row in result["generators"]:
        cells = [cell(row[figure]) for figure in ("novel", "base", "both")]
        assert f"| {row['generator']}, {row['shots']} | {' | '.join(cells)} |" in PAGE
    one_shot = {row["generator"]: row for row in result["generators"] if row["shots"] == 1}
    assert all(60 <= row["novel"]["mean"] <= 92 for row in one_shot.values())
    for kind in ("average", "attention"):
        gain = one_shot[kind]["both_minus_mean"]
        assert gain["mean"] >= 2
        assert gain["mean"] - gain["ci95"] > 0
    assert result["taught"]["base_scores_bit_identical"]
