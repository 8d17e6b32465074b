"""Training in several processes: the same as in one, up to the order of summation."""

import subprocess
import sys
from pathlib import Path

import pytest
import together
import torch

from recollect.errors import ConfigError
from recollect.system import workers
from recollect.training.config import make_config
from recollect.training.train import train

SETTINGS = (
    "exact=yes",
    "compared=4",
    "stage1.batch=63",
    "stage1.muon=0.1",
    "stage1.small.size=16",
    "stage1.small.until=0.5",
)


def torchrun(*words, processes=2, restarts=0):
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    return [*run, "--max-restarts", str(restarts), *map(str, words)]


def learned_alone_and_by_two(folder, *settings):
    """Return what one process finds, and what each of two finds."""
    script = Path(__file__).with_name("together.py")
    both = subprocess.Popen(
        torchrun(script, folder, *settings), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    together.main(str(folder), *settings)
    said = both.communicate(timeout=120)[0].decode()
    assert both.returncode == 0, said
    return [torch.load(folder / f"{name}.pt") for name in ("0-of-1", "0-of-2", "1-of-2")]


@pytest.mark.slow
def test_a_step_of_two_processes_is_that_of_one(tmp_path):
    """In single precision, and with the blocks in C where there is a compiler."""
    alone, first, second = learned_alone_and_by_two(tmp_path, "compared=1", "stage1.batch=63")
    for name in alone["weights"]:
        assert torch.equal(first["weights"][name], second["weights"][name]), name
        step, other = (found["weights"][name] - alone["before"][name] for found in (alone, first))
        assert (step.float() - other).norm() <= 2e-3 * step.float().norm(), name
    moved = alone["weights"]["extractor.blocks.1.0.weight"] - alone["before"]["extractor.blocks.1.0.weight"]
    assert moved.norm() > 0


@pytest.mark.slow
def test_two_processes_learn_and_extract_what_one_does(tmp_path):
    """In double precision, where rounding does not grow: one loss curve, one set of weights and features."""
    alone, first, second = learned_alone_and_by_two(tmp_path, *SETTINGS)
    assert alone["share"] == 63
    assert first["share"] + second["share"] == 63
    assert abs(first["share"] - second["share"]) == 1
    torch.testing.assert_close(first["losses"].double(), alone["losses"].double(), rtol=1e-6, atol=1e-6)
    for name, weight in alone["weights"].items():
        assert torch.equal(first["weights"][name], second["weights"][name]), name
        torch.testing.assert_close(first["weights"][name], weight, rtol=1e-9, atol=1e-9)
    for name in ("features", "views"):
        assert torch.equal(first[name], second[name])
        torch.testing.assert_close(first[name], alone[name], rtol=1e-3, atol=1e-3)
    assert len(alone["features"].unique(dim=0)) == 42


@pytest.mark.slow
def test_two_processes_learn_in_bfloat16_what_one_does(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict, raising=False)  # together.py sets it
    settings = ("bfloat16=yes", "extractor=resnet10", "compared=1", "stage1.batch=63")
    alone, first, second = learned_alone_and_by_two(tmp_path, *settings)
    torch.testing.assert_close(first["losses"][:, 0], alone["losses"][:, 0], rtol=0.02, atol=0.02)
    for name, weight in first["weights"].items():
        assert torch.equal(weight, second["weights"][name]), name
        assert weight.dtype == alone["weights"][name].dtype, name
    moved, other = (
        torch.cat([(one["weights"][name] - one["before"][name]).flatten() for name in one["before"]])
        for one in (first, alone)
    )
    assert torch.nn.functional.cosine_similarity(moved, other, dim=0) > 0.9


@pytest.mark.slow
def test_processes_that_do_not_connect_are_started_again(tmp_path):
    """As gloo sometimes hangs after a kill: here it always does in the first attempt."""
    script = tmp_path / "hangs.py"
    script.write_text(
        "import time\n"
        "import torch\n"
        "from recollect.system import workers\n"
        "if not workers.restarted():\n"
        "    workers._JOINING_SECONDS = 1.0\n"
        "    workers.distributed.init_process_group = lambda *words, **settings: time.sleep(600)\n"
        "with workers.joined('cpu'):\n"
        "    ones, = workers.mean_of(torch.ones(3))\n"  # nobody leaves before all are there
        "    print(f'{workers.count()} connected, {ones.tolist()}')\n"
    )
    command = torchrun(script, restarts=1)
    found = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr
    assert "did not connect within 1 s" in found.stderr
    assert found.stdout.count("2 connected, [1.0, 1.0, 1.0]") == 2


def test_one_process_is_a_team_of_one():
    values = torch.randn(3)
    assert workers.count() == 1
    assert workers.is_first()
    assert not workers.restarted()
    assert workers.share_of(63) == slice(0, 63)
    assert workers.put_together(values) is values
    assert workers.any_of(True, torch.device("cpu"))


def test_other_methods_refuse_to_train_in_several_processes(monkeypatch, tmp_path):
    for name, value in (("WORLD_SIZE", "2"), ("RANK", "0"), ("MASTER_ADDR", "127.0.0.1")):
        monkeypatch.setenv(name, value)
    config = make_config({}, {"data": "glyphs", "method": "imprinting"}, {})
    with pytest.raises(ConfigError, match="trains in one process: start it without torchrun"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
