"""The backend `lockstep` of torch.distributed: collectives of CPU tensors through shared memory.

    import lockstep_torch
    torch.distributed.init_process_group("lockstep")

Everything else of the program stays as it is. lockstep_torch.DistributedDataParallel in place of
torch.nn.parallel.DistributedDataParallel exchanges gradients without a copy.
"""

import atexit
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from lockstep_torch_entry import register

from . import _build

__version__ = _build.VERSION
__all__ = ["DistributedDataParallel", "allocate_tensor", "monitored_barrier", "register"]

_installed = ".".join(torch.__version__.split(".")[:2])
if _installed != _build.TORCH_VERSION:  # before any symbol of the extension is looked up
    raise ImportError(
        f"lockstep_torch {__version__} was built for torch {_build.TORCH_VERSION}, but torch {torch.__version__} is "
        f"installed; pip install 'torch=={_build.TORCH_VERSION}.*', or build lockstep_torch against torch {_installed}: "
        f"scripts/wheel.sh --python {sys.executable}"
    )

from . import _C  # noqa: E402
from .distributed_data_parallel import DistributedDataParallel  # noqa: E402

# Before the interpreter ends: the thread may run callbacks of futures.
atexit.register(_C.stop_progress)
_C.show_python_stacks_to_launcher()
register()


def _make_backend(options, backend_options):
    return _C.make_backend(
        options.store,
        options.group_rank,
        options.group_size,
        options.timeout,
        options.group_id,
        backend_options,
    )


def _backend_of(group):
    group = dist.group.WORLD if group is None else group
    return group._get_backend(torch.device("cpu"))


def allocate_tensor(size, dtype=torch.float32, group=None):
    """A tensor of `size` elements that collectives of the group reach without a copy; not initialized."""
    return _backend_of(group).allocate_tensor(size, dtype=dtype, device=torch.device("cpu"))


def monitored_barrier(group=None, timeout=None, wait_all_ranks=False):
    """As torch.distributed.monitored_barrier, which PyTorch 2.13 refuses for every backend but Gloo.

    When the timeout expires, every rank that waits gets an error that names all missing ranks.
    """
    group = dist.group.WORLD if group is None else group
    if timeout is None:
        timeout = timedelta(0)  # the group's own
    group.monitored_barrier(timeout, wait_all_ranks=wait_all_ranks)

