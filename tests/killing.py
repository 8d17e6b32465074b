"""Trainings that are killed in the middle."""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from recollect.training import loop

_PAUSE = 0.1  # seconds after each checkpoint, for the parent to notice it
_PATIENCE = 120
_CANNOT = 77  # how a fork ends in which torch refuses to compute gradients


def kill_when(begun: Path, work: Callable[[], object], later: float = 0.0) -> None:
    """Do some work in a fork that writes checkpoints slowly; kill it once a file is there, or later."""
    process = os.fork()
    if process == 0:
        try:
            try:
                torch.ones((), requires_grad=True).backward()
            except RuntimeError:
                os._exit(_CANNOT)
            save = loop.save_checkpoint
            loop.save_checkpoint = lambda *words: (save(*words), time.sleep(_PAUSE))
            work()
        except BaseException:  # noqa: BLE001 -- whatever it is, it is said
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(1)
    deadline = time.monotonic() + _PATIENCE
    try:
        while not begun.exists():
            ended = os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None and ended.si_status == _CANNOT:
                pytest.skip("an earlier test made torch start threads for gradients, which forks lack")
            assert ended is None, "it ended"
            assert time.monotonic() < deadline, "it takes too long"
            time.sleep(0.01)
        time.sleep(later)
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
