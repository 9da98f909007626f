"""What the cases of ddp_features_pytorch.py have in common."""

import torch
from torch.nn.parallel import DistributedDataParallel

STEPS = 3
LEARNING_RATE = 0.01
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def loss_of(outputs):
    return outputs.square().sum()


def inputs_of(rank, step, rows=5):
    return torch.sin(torch.arange(rows * 6, dtype=torch.float32) * (1 + rank) + step).view(rows, 6)


def indices_of(rank, step, modulus, count=7):
    return torch.remainder(torch.arange(count) * (2 + rank) + step, modulus)


class Run:
    """One rank's part in all cases."""

    def __init__(self, rank, world_size, folder):
        self.rank = rank
        self.world_size = world_size
        self.folder = folder
        self.results = {}

    def load(self, module, rank=None):
        """On each rank another multiple of the weights: only the exchange makes them equal."""
        rank = self.rank if rank is None else rank
        module.load_state_dict(torch.load(f"{self.folder}/{type(module).__name__}.pt"))
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.mul_(1 + rank)
            for buffer in module.buffers():
                buffer.add_(rank)
        return module

    def wrap(self, module, **options):
        return DistributedDataParallel(self.load(module), **options)

    def one_process(self, module):
        return self.load(module, rank=0)

    def inputs(self, step, rows=5):
        return inputs_of(self.rank, step, rows)

    def all_inputs(self, step, rows_of=lambda rank: 5):
        return torch.cat([inputs_of(rank, step, rows_of(rank)) for rank in range(self.world_size)])

    def add(self, name, tensor):
        tensor = tensor.detach()
        if tensor.is_sparse:
            tensor = tensor.to_dense()
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor)
        self.results[name] = tensor.clone()

    def add_gradients(self, name, module):
        for key, parameter in module.named_parameters():
            if parameter.grad is not None:
                self.add(f"{name}/{key}.grad", parameter.grad)

    def add_state(self, name, module):
        for key, tensor in [*module.named_parameters(), *module.named_buffers()]:
            self.add(f"{name}/end/{key}", tensor)

    def train(self, name, model, step_of, steps=STEPS, set_to_none=True, after_step=lambda: None):
        module = model.module if isinstance(model, DistributedDataParallel) else model
        optimizer = torch.optim.SGD(module.parameters(), lr=LEARNING_RATE)
        for step in range(steps):
            optimizer.zero_grad(set_to_none=set_to_none)
            step_of(model, step)
            self.add_gradients(f"{name}/{step}", module)
            optimizer.step()
            after_step()
        self.add_state(name, module)

    def plain_step(self, model, step):
        loss_of(model(self.inputs(step))).backward()

    def refuses(self, name, action):
        """Records whether PyTorch refuses. On every rank alike, or the others would wait."""
        try:
            action()
        except (AssertionError, RuntimeError, ValueError) as error:
            self.results[f"refused/{name}"] = str(error)
