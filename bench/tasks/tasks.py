"""The tasks of task.cpp in PyTorch: models to train on random samples, or digits."""
import dataclasses
import pathlib
import sys
from collections.abc import Callable

import torch
from torch import nn

# The GPT that tests/python/parity/mingpt_parity.py holds to ours, bit by bit.
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests/python/support"))
from mingpt_twin import Block, Gpt  # noqa: E402, F401

TEXT_LENGTH = 64


@dataclasses.dataclass
class Task:
    model: nn.Module
    batch_size: int  # of one rank
    samples: Callable
    loss: Callable
    with_adamw: bool = False  # else SGD


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
    def __init__(self, classes=100):
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


class NextToken(nn.Module):
    def __init__(self, **sizes):
        super().__init__()
        self.gpt = Gpt(**sizes)

    def forward(self, tokens):
        return self.gpt.logits(tokens)


def next_token(batch_size, **sizes):
    def samples(count):
        text = torch.randint(sizes["vocab_size"], (count, TEXT_LENGTH + 1))
        return text[:, :-1].contiguous(), text[:, 1:].contiguous()

    def loss(outputs, targets):
        return nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())

    return Task(NextToken(**sizes), batch_size, samples, loss, with_adamw=True)


def digits(count):
    lines = (ROOT / "examples/data/digits.csv").read_text("utf-8").splitlines()[:count]
    rows = torch.tensor([list(map(int, line.split(","))) for line in lines])
    return rows[:, :-1] / 16, rows[:, -1]


def regression(model, batch_size, inputs, outputs):
    return Task(model, batch_size,
                lambda count: (torch.randn(count, inputs), torch.randn(count, outputs)),
                nn.functional.mse_loss)


def classification(model, batch_size, *shape):
    return Task(model, batch_size,
                lambda count: (torch.randn(count, *shape), torch.randint(100, (count,))),
                nn.functional.cross_entropy)


def make_task(name):
    if name == "toy":
        return regression(nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 5)), 20, 10, 5)
    if name == "linear":
        return regression(nn.Linear(20, 1), 32, 20, 1)
    if name == "digits":
        return Task(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)), 32, digits,
                    nn.functional.cross_entropy)
    if name == "mlp":
        return classification(nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024),
                                            nn.ReLU(), nn.Linear(1024, 100)), 16, 1024)
    if name == "resnet18":
        return classification(ResNet18(), 32, 3, 32, 32)
    if name == "mingpt":
        return next_token(8, n_layer=4, n_head=4, n_embd=128, vocab_size=65,
                          block_size=TEXT_LENGTH)
    if name == "gpt124m":
        return next_token(1, n_layer=12, n_head=12, n_embd=768, vocab_size=20480, block_size=1024)
    assert name == "written", name
    return Task(Written(), 1, lambda count: (torch.zeros(count), torch.zeros(count)),
                nn.functional.mse_loss)
