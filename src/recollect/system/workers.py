"""Processes that compute together, as `torchrun` starts them; one process alone is a team of one."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

import torch
from torch import Tensor, distributed, nn

from recollect.errors import ConfigError
from recollect.system.progress import be_quiet

_A_DAY = timedelta(days=1)  # the first process may decode pictures for hours; torchrun notices lost ones
_JOINING_SECONDS = 60.0  # to connect, once every process is ready to


def started_together() -> bool:
    """Say whether `torchrun` started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "MASTER_ADDR" in os.environ


def is_first() -> bool:
    """Say whether this process is the one that writes and prints."""
    return not started_together() or os.environ.get("RANK", "0") == "0"


def restarted() -> bool:
    """Say whether `torchrun` started the processes again, because one was lost."""
    return started_together() and int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def count() -> int:
    """Return how many processes compute together now."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


def rank() -> int:
    """Return the number of this one among them."""
    return distributed.get_rank() if distributed.is_initialized() else 0


@contextmanager
def joined(device: str) -> Iterator[None]:
    """Compute together with the other processes that `torchrun` started, until the end or until `part`."""
    if not started_together():
        yield
        return
    if not distributed.is_available():
        raise ConfigError("this build of torch cannot train in several processes: start one without torchrun")
    cuda = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    be_quiet(not is_first())
    _join("nccl" if cuda else "gloo")
    try:
        yield
    finally:
        part()


def _join(backend: str) -> None:
    """Wait until every process is ready, then connect them, or end this one so that torchrun tries again.

    After a process was killed, gloo now and then never connects the ones that torchrun started in its place.
    """
    from torch.distributed.rendezvous import rendezvous  # which not every build of torch has

    store, rank_, processes = next(rendezvous("env://", timeout=_A_DAY))
    store.set(f"recollect/ready/{rank_}", "")
    store.wait([f"recollect/ready/{number}" for number in range(processes)], _A_DAY)
    hung = threading.Timer(_JOINING_SECONDS, _give_up)
    hung.daemon = True
    hung.start()
    try:
        distributed.init_process_group(backend, store=store, rank=rank_, world_size=processes, timeout=_A_DAY)
    finally:
        hung.cancel()


def _give_up() -> None:
    sys.stderr.write(
        f"recollect: the processes did not connect within {_JOINING_SECONDS:.0f} s; torchrun starts them "
        "again if --max-restarts allows it\n"
    )
    sys.stderr.flush()
    os._exit(1)  # the thread that connects cannot be interrupted


def part() -> None:
    """Compute alone from now on."""
    if distributed.is_initialized():
        with suppress(RuntimeError):  # another one is gone already
            distributed.destroy_process_group()


def call_helpers(folder: Path | None) -> None:
    """Give a copy of a folder to each process that waits for it; `None` lets them go."""
    if count() > 1:
        files = None if folder is None else [file for file in folder.iterdir() if file.is_file()]
        content = None if files is None else {file.name: file.read_bytes() for file in files}
        distributed.broadcast_object_list([content])


def await_call(folder: Path) -> bool:
    """Wait for the first process to call for help, with files for a folder; say whether it does."""
    content: list[dict[str, bytes] | None] = [None]
    distributed.broadcast_object_list(content)
    for name, value in (content[0] or {}).items():
        (folder / Path(name).name).write_bytes(value)
    return content[0] is not None


def put_together(values: Tensor) -> Tensor:
    """Add up what the processes computed, each a part where the others have zeros; no bit changes."""
    if count() > 1:
        whole = values.view(torch.int32 if values.element_size() == 4 else torch.int16)
        device = torch.device("cuda" if distributed.get_backend() == "nccl" else "cpu")
        there = whole.to(device, torch.int32)  # no backend adds 16-bit integers
        distributed.all_reduce(there)
        whole.copy_(there)
    return values


def share_of(total: int) -> slice:
    """Return which of so many pictures of a batch are this process's."""
    first, last = (total * number // count() for number in (rank(), rank() + 1))
    return slice(first, last)


def total_of(values: Tensor) -> Tensor:
    """Return the sum over all processes."""
    if count() == 1:
        return values
    total = values.clone()
    distributed.all_reduce(total)
    return total


def mean_of(*values: Tensor) -> list[Tensor]:
    """Return the means over all processes."""
    if count() == 1:
        return list(values)
    together = torch.stack([value.detach().float() for value in values])
    distributed.all_reduce(together)
    return list(together / count())


def any_of(flag: bool, device: torch.device) -> bool:
    """Say whether a flag is set in any process."""
    if count() == 1:
        return flag
    found = torch.tensor(float(flag), device=device)
    distributed.all_reduce(found, op=distributed.ReduceOp.MAX)
    return bool(found)


@contextmanager
def common_statistics(module: nn.Module) -> Iterator[None]:
    """Let batch norms take their statistics from the pictures of all processes meanwhile.

    torch's own `SyncBatchNorm` does so on GPUs only.
    """
    norms = [part for part in module.modules() if type(part) is nn.BatchNorm2d] if count() > 1 else []
    for one in norms:
        one.__class__ = _CommonBatchNorm
    try:
        yield
    finally:
        for one in norms:
            one.__class__ = nn.BatchNorm2d


class _Total(torch.autograd.Function):
    """The sum over all processes; a process's part of it has the gradients of all."""

    @staticmethod
    def forward(_: object, values: Tensor) -> Tensor:
        return total_of(values)

    @staticmethod
    def backward(_: object, gradient: Tensor) -> Tensor:
        return _Total.forward(_, gradient.contiguous())


def _total(values: Tensor) -> Tensor:
    found: Tensor = _Total.apply(values)  # type: ignore[no-untyped-call]
    return found


class _CommonBatchNorm(nn.BatchNorm2d):
    """A batch norm over the pictures of all processes."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        if not self.training:
            return super().forward(input)
        axes, given = [0, 2, 3], input.dtype
        input = input.to(self.weight.dtype)  # noqa: A001  # sums over bfloat16 would be too rough
        numbers = torch.tensor(float(input.numel() // input.shape[1]), device=input.device)
        distributed.all_reduce(numbers)
        mean: Tensor = _total(input.sum(axes)) / numbers
        centred = input - mean[:, None, None]
        variance: Tensor = _total(centred.square().sum(axes)) / numbers
        with torch.no_grad():
            if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
                raise ValueError("a batch norm without running statistics")
            self.num_batches_tracked += 1
            momentum = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
            self.running_mean.lerp_(mean.detach(), momentum)
            self.running_var.lerp_(variance.detach() * numbers / (numbers - 1), momentum)
        scale = self.weight * torch.rsqrt(variance + self.eps)
        return (centred * scale[:, None, None] + self.bias[:, None, None]).to(given)
