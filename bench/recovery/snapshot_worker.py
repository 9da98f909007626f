"""tests/workers/resilient_worker.cpp as one writes it for torchrun: PyTorch's DistributedDataParallel over gloo, a
snapshot by rank 0 every 50 steps, which all load when they are started again. Says what that says.

    snapshot_worker.py SIZE FOLDER SAY_EVERY [TIMEOUT_S]
"""
import datetime
import os
import sys

SAVE_EVERY = 50


def say(*words):
    # One write, which is not mixed with those of other ranks.
    os.write(1, (" ".join(map(str, (os.getpid(), *words))) + "\n").encode())


say("starts")

import torch  # noqa: E402 (the time that it takes is measured)
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402


def main():
    size, path, say_every = int(sys.argv[1]), os.path.join(sys.argv[2], "snapshot.pt"), int(sys.argv[3])
    torch.set_num_threads(1)
    timeout = datetime.timedelta(seconds=int(sys.argv[4])) if len(sys.argv) > 4 else None
    dist.init_process_group("gloo", timeout=timeout)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = nn.Sequential(nn.Linear(8, size), nn.BatchNorm1d(size), nn.ReLU(), nn.Dropout(0.2), nn.Linear(size, 1))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.9)
    step = 0
    if os.path.exists(path):
        snapshot = torch.load(path)
        model.load_state_dict(snapshot["model"])
        optimizer.load_state_dict(snapshot["optimizer"])
        scheduler.load_state_dict(snapshot["scheduler"])
        step = snapshot["step"]
    model = nn.parallel.DistributedDataParallel(model)
    say("rank", rank, "of", world_size, "begins at", step)
    is_first = True
    while True:
        torch.manual_seed(step * world_size + rank)
        inputs = (torch.arange(32.0) * (step * world_size + rank + 1)).sin().view(4, 8)
        optimizer.zero_grad()
        (model(inputs) - inputs.sum(1, True)).square().mean().backward()
        optimizer.step()
        scheduler.step()
        if is_first or step % say_every == 0:
            say("step", step)
        is_first = False
        step += 1
        if rank == 0 and step % SAVE_EVERY == 0:
            torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(),
                        "scheduler": scheduler.state_dict(), "step": step}, path)


main()
