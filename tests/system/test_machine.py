"""Memory between the steps of a training: kept while they last, given back where another work begins."""

import subprocess
import sys

import pytest

_PROGRAM = """
import torch
from recollect.system import machine

def resident():
    words = open("/proc/self/statm").read().split()
    return int(words[1]) << 12

machine.prepare(1)
before = resident()
blocks = [torch.ones(1 << 20) for _ in range(100)]
pin = torch.ones(1 << 20)  # what lies above it cannot be cut off the heap's end
del blocks
kept = resident() - before
machine.give_back_freed_memory()
print(kept >> 20, (resident() - before) >> 20)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc alone is told what to keep")
def test_freed_memory_is_kept_until_it_is_given_back() -> None:
    kept, left = map(int, subprocess.check_output([sys.executable, "-c", _PROGRAM], text=True).split())
    assert kept > 350
    assert left < 50
