"""model_worker.cpp as one writes it for torchrun: PyTorch's DistributedDataParallel over gloo, and a snapshot by rank 0
after each epoch, which all load when they are started again. Says what that says, but for the bits.

    epoch_worker.py TASK FOLDER
"""
import os
import pathlib
import sys

TRAINING_BATCHES, EVALUATION_BATCHES = 48, 8  # of one rank


def say(*words):
    # One write, which is not mixed with those of other ranks.
    os.write(1, (" ".join(map(str, (os.getpid(), *words))) + "\n").encode())


say("starts")

import torch  # noqa: E402 (the time that it takes is measured)
import torch.distributed as dist  # noqa: E402

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "tasks"))
from tasks import make_task  # noqa: E402


def main():
    task_name, path = sys.argv[1], os.path.join(sys.argv[2], "snapshot.pt")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    task = make_task(task_name)
    inputs, targets = task.samples((TRAINING_BATCHES + EVALUATION_BATCHES) * task.batch_size)
    training = TRAINING_BATCHES * task.batch_size
    make_optimizer = torch.optim.AdamW if task.with_adamw else torch.optim.Adam
    optimizer = make_optimizer(task.model.parameters(), 1e-3)
    epoch = 0
    if os.path.exists(path):
        snapshot = torch.load(path)
        task.model.load_state_dict(snapshot["model"])
        optimizer.load_state_dict(snapshot["optimizer"])
        epoch = snapshot["epoch"]
    model = torch.nn.parallel.DistributedDataParallel(task.model)
    dataset = torch.utils.data.TensorDataset(inputs[:training], targets[:training])
    sampler = torch.utils.data.DistributedSampler(dataset)
    loader = torch.utils.data.DataLoader(dataset, task.batch_size, sampler=sampler)
    step = epoch * len(loader)
    say("rank", rank, "of", world_size, "begins at", step)
    while True:
        sampler.set_epoch(epoch)
        for data, target in loader:
            optimizer.zero_grad()
            task.loss(model(data), target).backward()
            optimizer.step()
            say("step", step)
            step += 1
        with torch.no_grad():
            loss = task.loss(model(inputs[training:]), targets[training:])
            dist.all_reduce(loss)
        epoch += 1
        if rank == 0:
            torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch},
                       path + ".new")
            os.rename(path + ".new", path)


main()
