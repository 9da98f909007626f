"""The other program that run.py times in turns: the same training steps by PyTorch's
DistributedDataParallel with gloo. Commands and answers are those of main.cpp."""
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

LEARNING_RATE = 1e-3
WARM_UP_STEPS = 3


class BasicBlock(nn.Module):
    def __init__(self, in_channels, channels, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.shortcut = nn.Sequential()
        if in_channels != channels or stride != 1:
            self.shortcut = nn.Sequential(nn.Conv2d(in_channels, channels, 1, stride, bias=False),
                                          nn.BatchNorm2d(channels))

    def forward(self, images):
        features = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(images)))))
        return torch.relu(features + self.shortcut(images))


class ResNet18(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.conv = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        self.norm = nn.BatchNorm2d(64)
        blocks, in_channels = [], 64
        for channels in (64, 128, 256, 512):
            blocks += [BasicBlock(in_channels, channels, 1 if channels == 64 else 2),
                       BasicBlock(channels, channels, 1)]
            in_channels = channels
        self.stages = nn.Sequential(*blocks)
        self.classes = nn.Linear(512, classes)

    def forward(self, images):
        features = self.stages(torch.relu(self.norm(self.conv(images))))
        return self.classes(torch.nn.functional.adaptive_avg_pool2d(features, 1).flatten(1))


class Written(nn.Module):
    """Backward does nothing but write the gradients of ResNet-18."""

    def __init__(self):
        super().__init__()
        self.model = ResNet18()

    def forward(self, factor):
        total = factor
        for parameter in self.parameters():
            total = total + parameter.sum()
        return total


def make_task(name):
    mse, cross_entropy = nn.functional.mse_loss, nn.functional.cross_entropy
    if name == "toy":
        return (nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 5)),
                torch.randn(20, 10), torch.randn(20, 5), mse)
    if name == "linear":
        return nn.Linear(20, 1), torch.randn(32, 20), torch.randn(32, 1), mse
    if name == "mlp":
        return (nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024), nn.ReLU(),
                              nn.Linear(1024, 100)),
                torch.randn(16, 1024), torch.randint(100, (16,)), cross_entropy)
    if name == "written":
        return Written(), torch.zeros(1), torch.zeros(1), mse
    assert name == "resnet18", name
    return ResNet18(), torch.randn(32, 3, 32, 32), torch.randint(10, (32,)), cross_entropy


class Training:
    def __init__(self, model):
        module, self.inputs, self.targets, self.loss = make_task(model)
        self.model = nn.parallel.DistributedDataParallel(module)
        self.optimizer = torch.optim.SGD(self.model.parameters(), LEARNING_RATE)
        for _ in range(WARM_UP_STEPS):
            self.step()

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        self.loss(self.model(self.inputs), self.targets).backward()
        self.optimizer.step()


def time_steps(training, steps):
    times = torch.empty(steps, dtype=torch.float64)
    dist.barrier()
    training.step()
    for i in range(steps):
        start = time.perf_counter()
        training.step()
        times[i] = (time.perf_counter() - start) * 1e6
    dist.all_reduce(times, dist.ReduceOp.MAX)
    return times.tolist()


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
        model, _, steps = line.split()
        if model not in trainings:
            trainings[model] = Training(model)
        times = time_steps(trainings[model], int(steps))
        if rank == 0:
            print(json.dumps({"us": times}), file=answers, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
