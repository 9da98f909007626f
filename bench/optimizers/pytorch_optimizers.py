"""As bench/optimizers/main.cpp, for PyTorch's optimizers: subjects pytorch-fused-adamw, pytorch-foreach-adamw, …."""
import json
import sys
import time

import torch

OPTIMIZERS = {"adamw": (torch.optim.AdamW, {}), "sgd": (torch.optim.SGD, {"momentum": 0.9}),
              "adagrad": (torch.optim.Adagrad, {}), "rmsprop": (torch.optim.RMSprop, {}),
              "nadam": (torch.optim.NAdam, {}), "radam": (torch.optim.RAdam, {}),
              "adamax": (torch.optim.Adamax, {}), "adadelta": (torch.optim.Adadelta, {})}


def make_parameters():
    parameters = []
    for outputs, inputs in ((4096, 1024), (1024, 4096), (100, 1024)):
        for shape in ((outputs, inputs), (outputs,)):
            parameter = torch.nn.Parameter(torch.randn(shape))
            parameter.grad = torch.randn(shape)
            parameters.append(parameter)
    return parameters


def main():
    torch.set_num_threads(int(sys.argv[1]))
    for line in sys.stdin:
        subject, steps = line.split()
        _, form, name = subject.split("-")
        kind, options = OPTIMIZERS[name]
        optimizer = kind(make_parameters(), **options, **{form: True})
        for _ in range(2):
            optimizer.step()
        times = []
        for _ in range(int(steps)):
            begin = time.perf_counter()
            optimizer.step()
            times.append((time.perf_counter() - begin) * 1e6)
        del optimizer
        print(json.dumps(times), flush=True)


main()
