"""step_worker.cpp with PyTorch's DistributedDataParallel over gloo: what torchrun starts beside it.

    step_worker.py PIPE [STEPS]
"""
import os
import sys
import time

PIPE = os.open(sys.argv[1], os.O_WRONLY)


def tell(step):
    words = (os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"], os.getpid(), step,
             time.monotonic_ns())
    os.write(PIPE, (" ".join(map(str, words)) + "\n").encode())


tell(-1)

import torch  # noqa: E402 (the time that it takes is measured)
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(
        nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256)))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    inputs, targets = torch.randn(64, 256), torch.randn(64, 256)
    step, steps = 0, int(sys.argv[2]) if len(sys.argv) > 2 else -1
    while step != steps:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        tell(step)
        step += 1
    dist.destroy_process_group()


main()
os._exit(0)  # not through the interpreter's end, in which PyTorch's Gloo aborts now and then
