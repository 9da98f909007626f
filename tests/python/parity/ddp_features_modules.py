"""The modules of ddp_features_pytorch.py; tests/workers/features_modules.h has them under the same names."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 9)
        self.second = nn.Linear(9, 9)
        self.last = nn.Linear(9, 3)

    def forward(self, x):
        return self.last(torch.tanh(self.second(torch.tanh(self.first(x)))))


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 9, bias=False)
        self.norm = nn.BatchNorm1d(9)
        self.last = nn.Linear(9, 3)

    def forward(self, x):
        return self.last(torch.tanh(self.norm(self.first(x))))


class Project(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = weight

    def forward(self, x):
        return x @ self.weight.t()


class Tied(nn.Module):
    """Two modules share a parameter, and one module is used twice."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(11, 6)
        self.hidden = nn.Linear(6, 6)
        self.output = Project(self.words.weight)

    def forward(self, indices):
        x = self.words(indices)
        for _ in range(2):
            x = torch.tanh(self.hidden(x))
        return self.output(x)


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        for i in range(3):
            self.add_module(f"branch{i}", nn.Linear(6, 6))

    def forward(self, x, branch):
        return [None, torch.tanh(getattr(self, f"branch{branch}")(x))]


class Stack(nn.Module):
    """The body is used `uses` times, recomputed in backward or not; one parameter is not used."""

    def __init__(self, uses=1, checkpointed=False):
        super().__init__()
        self.entry = nn.Linear(6, 7)
        self.body = nn.Linear(7, 7)
        self.unused = nn.Parameter(torch.ones(3))
        self.uses = uses
        self.checkpointed = checkpointed

    def part(self, x):
        return torch.tanh(self.body(x))

    def forward(self, x):
        x = self.entry(x)
        for _ in range(self.uses):
            x = checkpoint(self.part, x, use_reentrant=True) if self.checkpointed else self.part(x)
        return x


class Dtypes(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide = nn.Parameter(torch.randn(6, 5, dtype=torch.float64))
        self.middle = nn.Parameter(torch.randn(5, 7))
        self.narrow = nn.Parameter(torch.randn(7, 3).bfloat16())
        self.scale = nn.Parameter(torch.randn(5, dtype=torch.float64))

    def forward(self, x):
        x = torch.tanh((x.double() @ self.wide) * self.scale)
        return (torch.tanh(x.float() @ self.middle).bfloat16() @ self.narrow).float()


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.turn = nn.Parameter(torch.randn(6, 5, dtype=torch.complex64))
        self.scale = nn.Parameter(torch.randn(5))

    def forward(self, x):
        return ((x.to(torch.complex64) @ self.turn) * self.scale).abs()


class Lookup(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(13, 3, sparse=True)
        self.linear = nn.Linear(3, 2)

    def forward(self, indices):
        return self.linear(self.table(indices))


MODULES = (Mlp, Normed, Tied, Branches, Stack, Dtypes, Complex, Lookup)


def write_weights(folder):
    for module in MODULES:
        torch.manual_seed(7)
        torch.save(module().state_dict(), f"{folder}/{module.__name__}.pt")
