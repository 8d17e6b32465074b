"""How this machine computes: threads, device, and memory that is kept between steps."""

import ctypes
import sys
from contextlib import AbstractContextManager, nullcontext

import torch

from recollect.errors import ConfigError

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8


def prepare(threads: int | None = None) -> int:
    """Set the number of threads (default: torch's own choice) and return it; keep freed memory for reuse."""
    if threads is not None:
        torch.set_num_threads(threads)
    torch.backends.cudnn.deterministic = True  # the same seed gives the same weights
    keep_freed_memory()
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


def mixed_precision(device: torch.device) -> AbstractContextManager[object]:
    """Let convolutions compute in bfloat16 on GPUs that can; the CPU computes as ever.

    bfloat16 has the range of float32, so no gradient gets lost, and nothing has to be scaled.
    """
    if device.type == "cuda" and torch.cuda.is_bf16_supported():
        return torch.autocast("cuda", torch.bfloat16)
    return nullcontext()


def find_device(name: str = "auto") -> torch.device:
    """Return the device called `name`; `auto` takes CUDA, then MPS, then the CPU."""
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
