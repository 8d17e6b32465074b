"""`recollect info`: what a model file says of itself."""

import json
import subprocess
import sys
from io import StringIO

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file

from recollect import modelfile
from recollect.commands.info import info_table, model_info
from recollect.errors import ModelError
from recollect.model.extractors import extractor_names
from recollect.modelfile import (
    FORMAT,
    TrainedOn,
    fingerprint,
    read_header,
    save_model,
    summarise,
)

PROVENANCE = {
    "finished": True,
    "written": "2018-04-25T12:00:00+00:00",
    "recollect": "0.1.0",
    "torch": "2.13.0",
    "machine": "x86_64, 2 threads, cpu",
    "config": {"data": "cifar-fs:images.zip", "preset": "paper", "seed": 3},
    "images_seen": 1209600,
    "stage1_seconds": 961,
    "episodes_seen": 96000,
    "stage2_seconds": 121,
    "validation": {"novel": 61.5, "base": 70.25, "both": 55.0},
}


@pytest.fixture
def path(tmp_path, tiny_model):
    path = tmp_path / "model.safetensors"
    save_model(path, tiny_model, PROVENANCE, TrainedOn(split="7", skip_bad=True, key="abc"))
    return path


def printed(info):
    console = Console(width=120, file=StringIO())
    console.print(info_table(info))
    return dict(line.rstrip().split("  ", 1) for line in console.file.getvalue().splitlines())


def test_info_says_what_the_model_is(path, tiny_model):
    info = model_info(path)
    assert json.loads(json.dumps(info)) == info
    assert info == {
        "file": str(path),
        "megabytes": round(path.stat().st_size / 1e6, 2),
        "format": FORMAT,
        "method": "recollect",
        "parameters": sum(parameter.numel() for parameter in tiny_model.parameters()),
        "fingerprint": fingerprint(tiny_model),
        "extractor": "c32f",
        "last_relu": False,
        "centred": False,
        "mirrored": False,
        "shifted": 0,
        "classifier": "cosine",
        "generator": "attention",
        "shot_aware": False,
        "learner": None,
        "preprocessing": {"size": 16, "short_side": None, "mean": [120, 115, 104], "std": [70, 68, 72]},
        "base_categories": 7,
        "first_categories": [f"base-{index}" for index in range(5)],
        "taught": 0,
        "calibration": {
            "temperature": 1.0,
            "bias": 0.0,
            "bias_rise": 0.0,
            "most_shots": 5,
            "bias_slope": 0.0,
            "tightness": 0.0,
            "unknown": None,
            "report": {},
        },
        "trained_on": {"data": "cifar-fs:images.zip", "split": "7", "skip_bad": True, "key": "abc"},
        "provenance": PROVENANCE,
    }
    assert model_info(path.parent) == info, "a run folder is as good as its file"


def test_the_table_says_the_same(path):
    rows = {name: text.strip() for name, text in printed(model_info(path)).items()}
    assert rows["base categories"] == "7: base-0, base-1, base-2, base-3, base-4, …"
    assert rows["input"] == "16 × 16 pixels; mean 120, 115, 104; std 70, 68, 72"
    assert rows["trained on"] == "cifar-fs:images.zip"
    assert rows["split"] == "7"
    assert rows["seed"] == "3"
    assert rows["finished"] == "yes"
    assert rows["stage 1"] == "1,209,600 pictures seen, 16 min 1 s"
    assert rows["stage 2"] == "96,000 episodes seen, 2 min 1 s"
    assert rows["validation"] == "novel 61.5 %, base 70.2 %, both 55.0 %"


def test_a_model_that_says_nothing_of_its_origin_has_no_rows_for_it(tmp_path, make_model):
    save_model(tmp_path / "m.safetensors", make_model(categories=("[red]ant", "bee")))
    rows = printed(model_info(tmp_path / "m.safetensors"))
    assert "[red]ant, bee" in rows["base categories"], "a name is no markup"
    assert not {"trained on", "split", "seed", "finished", "stage 1", "validation", "with"} & rows.keys()


@pytest.mark.parametrize(
    "odd", [[1], {"finished": [1], "config": 3, "validation": "good", "images_seen": "x"}]
)
def test_an_origin_that_makes_no_sense_is_passed_over(tmp_path, tiny_model, odd):
    provenance = odd if isinstance(odd, dict) else {"machine": odd, "config": odd, "stage1_seconds": odd}
    save_model(tmp_path / "m.safetensors", tiny_model, provenance)
    assert "extractor" in printed(model_info(tmp_path / "m.safetensors"))


@pytest.mark.parametrize("extractor", extractor_names())
def test_parameters_and_fingerprint_are_read_from_the_file(tmp_path, make_model, make_spec, extractor):
    prepare = make_spec().preprocessing.model_copy(update={"size": 32})
    model = make_model(extractor=extractor, preprocessing=prepare, classifier="dot", generator="average")
    save_model(tmp_path / "m.safetensors", model)
    summary = summarise(tmp_path / "m.safetensors")
    assert summary.parameters == sum(one.numel() for one in model.parameters())
    assert summary.fingerprint == fingerprint(model)


def test_the_file_is_opened_once(path, monkeypatch):
    opened = []
    real = modelfile.safe_open
    monkeypatch.setattr(modelfile, "safe_open", lambda file, **how: opened.append(file) or real(file, **how))
    model_info(path)
    assert opened == [path]


def test_weights_of_another_kind_are_refused_by_name(path):
    weights = load_file(path)
    name = next(name for name in weights if name.startswith("extractor."))
    words = read_header(path).model_dump_json()
    save_file({**weights, name: weights[name].to(torch.bfloat16)}, path, metadata={"recollect": words})
    with pytest.raises(ModelError, match=r"model.safetensors holds numbers of an unknown type"):
        model_info(path)


@pytest.mark.parametrize(
    "words", [("--help",), ("plot", "--help"), ("info", "MODEL", "--json"), ("info", "MODEL")]
)
def test_info_and_help_answer_without_torch_or_matplotlib(path, words):
    code = (
        "import sys; from recollect import cli\n"
        "try:\n    cli.main()\nfinally:\n"
        "    sys.stderr.write(' '.join(sorted({'torch', 'matplotlib', 'sklearn'} & sys.modules.keys())))"
    )
    words = [str(path) if word == "MODEL" else word for word in words]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert "Usage" in done.stdout if "--help" in words else "c32f" in done.stdout
