"""How this machine computes: threads, device, and memory that is kept between steps."""

import ctypes
import os
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from recollect.errors import ConfigError
from recollect.system import compiled

if TYPE_CHECKING:
    import torch

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_asked: dict[str, int] = {}


def set_threads(threads: int | None) -> None:
    """Let whatever computes from now on do it with this many threads; `None` changes nothing."""
    if threads is not None:
        _asked["threads"] = threads
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.set_num_threads(threads)


def asked_threads() -> int | None:
    """Return how many threads were asked for, if any number was."""
    return _asked.get("threads")


def usual_threads() -> int | None:
    """Return how many threads were asked for, here or in OMP_NUM_THREADS, if any number was."""
    words = os.environ.get("OMP_NUM_THREADS", "")
    return _asked.get("threads") or (int(words) if words.isdecimal() else None) or None


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def prepare(threads: int | None = None) -> int:
    """Set the number of torch's threads (default: its own) and return it; keep freed memory for reuse."""
    import torch

    set_threads(threads)
    torch.backends.cudnn.deterministic = True  # the same seed gives the same weights
    keep_freed_memory()
    compiled.forget_failures()
    return torch.get_num_threads()


def keep_freed_memory() -> None:
    """Tell glibc to keep large freed blocks instead of giving them back to the system.

    A training step frees and asks again for the same tens of megabytes; with glibc's own settings every one
    of them is mapped and zeroed anew by the kernel, which costs c64f at 32×32 about a third of its speed. All
    threads share one arena, for only the first one can keep blocks as large.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)
        mallopt(_M_ARENA_MAX, 1)


def give_back_freed_memory() -> None:
    """Return to the system what `keep_freed_memory` kept, between two kinds of work."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform.startswith("linux") else None
    if trim is not None:
        trim(0)


def mixed_precision(device: "torch.device", *, on_cpu: bool = False) -> AbstractContextManager[object]:
    """Let convolutions compute in bfloat16 on GPUs that can and, if `on_cpu`, on CPUs that can.

    bfloat16 has the range of float32, so no gradient gets lost, and nothing has to be scaled.
    """
    import torch

    if device.type == "cuda":
        able = torch.cuda.is_bf16_supported()
    else:  # older versions of torch cannot tell
        known: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
        can = any(known.get(name) for name in ("avx512_bf16", "amx_bf16"))
        able = on_cpu and device.type == "cpu" and can
    return torch.autocast(device.type, torch.bfloat16) if able else nullcontext()


def find_device(name: str = "auto") -> "torch.device":
    """Return the device called `name`; `auto` takes CUDA, then MPS, then the CPU."""
    import torch

    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.ones(1, device=device).cpu()  # fails on `meta`, which holds no data
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ConfigError(f"the device {name!r} cannot be used here: {str(error).splitlines()[0]}") from error
    return device
