"""The other program that run.py times in turns: the same training steps by PyTorch's
DistributedDataParallel with gloo, or, as exchange fsdp2, by its fully_shard of a GPT's blocks. Commands and answers
are those of main.cpp."""
import json
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "tasks"))
from tasks import Block, make_task  # noqa: E402

LEARNING_RATE = 1e-3
OPTIMIZERS = {
    "sgd": torch.optim.SGD,
    "adamw-fused": lambda parameters, lr: torch.optim.AdamW(parameters, lr, fused=True),
    "adamw-foreach": lambda parameters, lr: torch.optim.AdamW(parameters, lr, foreach=True),
}
WARM_UP_STEPS = 3


def shard(model):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for module in model.modules():
        if isinstance(module, Block):
            fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


class Training:
    def __init__(self, model, exchange, optimizer):
        task = make_task(model)
        self.inputs, self.targets = task.samples(task.batch_size)
        self.loss = task.loss
        self.model = shard(task.model) if exchange == "fsdp2" else nn.parallel.DistributedDataParallel(task.model)
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters(), LEARNING_RATE)
        for _ in range(WARM_UP_STEPS):
            self.step()

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        self.loss(self.model(self.inputs), self.targets).backward()
        start = time.perf_counter()
        self.optimizer.step()
        return (time.perf_counter() - start) * 1e6


def memory_mb():
    with open("/proc/self/smaps_rollup", encoding="ascii") as lines:
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:"))


def time_steps(training, steps):
    times = torch.empty(2, steps, dtype=torch.float64)
    dist.barrier()
    training.step()
    for i in range(steps):
        start = time.perf_counter()
        times[1, i] = training.step()
        times[0, i] = (time.perf_counter() - start) * 1e6
    dist.all_reduce(times, dist.ReduceOp.MAX)
    return {"us": times[0].tolist(), "step_us": times[1].tolist()}


def share_line(commands):
    text = torch.zeros(256, dtype=torch.uint8)
    if commands:
        line = commands.readline().strip().encode()
        text[:len(line)] = torch.tensor(list(line), dtype=torch.uint8)
    dist.broadcast(text, 0)
    return bytes(text.tolist()).rstrip(b"\0").decode()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    cpus = sorted(os.sched_getaffinity(0))
    if dist.get_world_size() <= len(cpus):
        os.sched_setaffinity(0, {cpus[rank]})
    torch.set_num_threads(1)
    commands = open(sys.argv[1], encoding="utf-8") if rank == 0 else None
    answers = open(sys.argv[2], "w", encoding="utf-8") if rank == 0 else None
    trainings = {}
    while True:
        line = share_line(commands)
        if not line:
            break
        if line == "memory":
            of_ranks = torch.zeros(dist.get_world_size(), dtype=torch.float64)
            of_ranks[rank] = memory_mb()
            dist.all_reduce(of_ranks)
            answer = {"mb": of_ranks.tolist()}
        else:
            *training, steps = line.split()
            if tuple(training) not in trainings:
                trainings[tuple(training)] = Training(*training)
            answer = time_steps(trainings[tuple(training)], int(steps))
        if rank == 0:
            print(json.dumps(answer), file=answers, flush=True)
    dist.destroy_process_group()
    if answers:
        answers.close()


if __name__ == "__main__":
    main()
    os._exit(0)  # not through the interpreter's end, in which PyTorch's Gloo aborts now and then
