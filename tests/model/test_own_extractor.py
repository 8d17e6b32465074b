"""Extractors that are a caller's own code, and what may be wrong with them."""

import sys

import pytest
import torch

from recollect.errors import ModelError
from recollect.model.extractors import build_extractor
from recollect.model.extractors.own import own_extractor

CODE = """
import torch
from torch import nn

def good():
    return nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, 5))

class Wrong(nn.Module):
    def __init__(self, change):
        super().__init__()
        self.change = change
    def forward(self, x):
        return self.change(x.mean((2, 3)))

class Cast(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3 * 16 * 16, 4).bfloat16()
    def forward(self, x):
        return self.inner(x.flatten(1).bfloat16()).float()

def nan(): return Wrong(lambda z: z / 0 * 0)
def wrong_rank(): return nn.Identity()
def other_count(): return Wrong(lambda z: z[:1])
def half(): return Wrong(lambda z: z.half())
def restless(): return Wrong(torch.rand_like)
def squeezed(): return Wrong(lambda z: z.squeeze())
def crowded(): return nn.Sequential(
    nn.Flatten(), nn.Linear(3 * 16 * 16, 4), nn.BatchNorm1d(4, track_running_stats=False))
def crowd(): return Wrong(lambda z: z - z.mean(0) + 1)
def a_pair(): return Wrong(lambda z: (z, z))
def no_module(): return 7
def raising(): raise ValueError("two\\nlines")
def failing(): return nn.Linear(7, 2)
number = 3
"""


@pytest.fixture(autouse=True)
def code(tmp_path, monkeypatch):
    (tmp_path / "own_code.py").write_text(CODE)
    (tmp_path / "broken_code.py").write_text("import no_such_thing")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("own_code", None)


def test_a_module_of_ones_own_gives_features():
    extractor = own_extractor("module:own_code:good", 16)
    assert extractor.feature_size(16) == 5
    with torch.inference_mode():
        assert extractor(torch.randn(3, 3, 16, 16)).shape == (3, 5)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("module:own_code", "package.module:callable is expected"),
        ("own_code:good", "package.module:callable is expected"),
        ("module:no_such_code:good", "'no_such_code'; name the folder that holds it in PYTHONPATH"),
        ("module:no_such_code.inner:good", "'no_such_code'; name the folder that holds it in PYTHONPATH"),
        ("module:broken_code:good", "ModuleNotFoundError: No module named 'no_such_thing'"),
        ("module:own_code:missing", "own_code has no 'missing'"),
        ("module:own_code:number", "'number' of own_code cannot be called"),
        ("module:own_code:no_module", "returned a int and no torch module"),
        ("module:own_code:raising", "ValueError: two lines"),
        ("module:own_code:failing", "fails on pictures"),
        ("module:own_code:nan", "not finite"),
        ("module:own_code:wrong_rank", "shape (2, 3, 16, 16)"),
        ("module:own_code:other_count", "shape (1, 3)"),
        ("module:own_code:half", "float16"),
        ("module:own_code:a_pair", "returns a tuple"),
        ("module:own_code:restless", "other features for the same pictures"),
        ("module:own_code:squeezed", "shape (3,) for one picture"),
        ("module:own_code:crowded", "fails on pictures"),
        ("module:own_code:crowd", "other features for a picture when it is alone"),
        ("module:own_code:Cast", "has bfloat16 weights"),
    ],
)
def test_what_is_wrong_with_it_is_said_in_one_line(name, complaint):
    with pytest.raises(ModelError) as told:
        own_extractor(name, 16)
    assert complaint in str(told.value)
    assert name in str(told.value)
    assert ("PYTHONPATH" in str(told.value)) == ("no_such_code" in name)
    assert "\n" not in str(told.value)


def test_no_name_out_of_a_file_imports_anything():
    with pytest.raises(ModelError, match="name it again, with --extractor module:own_code:good"):
        build_extractor("module:own_code:good", size=16)
    assert "own_code" not in sys.modules
