"""One of two ranks: all-reduce and DDP step over `lockstep` and over Gloo, interleaved; prints medians and ratios.

  lockstep run --standalone --nproc-per-node=2 python bench/python/against_gloo.py [--rounds=15]

A ratio is the median of the rounds' ratios (Gloo / lockstep). Run it on a machine that does nothing else.
"""

import argparse
import statistics
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import lockstep_torch

SIZES = {"4 B": 1, "64 KB": 16 << 10, "1 MB": 256 << 10, "46.8 MB": 11_700_000}


def seconds_each(call, repeats):
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - begin) / repeats


def compare(what, calls, repeats, rounds, unit):
    """`calls` by name, 'gloo' among them."""
    times = {name: [] for name in calls}
    for call in calls.values():
        seconds_each(call, max(1, repeats // 4))
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(seconds_each(call, repeats))
    if dist.get_rank() != 0:
        return
    scale, digits = {"us": (1e6, 1), "ms": (1e3, 3)}[unit]
    line = f"{what:28}"
    for name, values in times.items():
        line += f"  {name} {statistics.median(values) * scale:.{digits}f} {unit}"
        if name != "gloo":
            ratios = [gloo / ours for gloo, ours in zip(times["gloo"], values, strict=True)]
            line += f" ({statistics.median(ratios):.1f} x)"
    print(line, flush=True)


def all_reduces(gloo, rounds):
    for size, count in SIZES.items():
        shared = lockstep_torch.allocate_tensor(count).zero_()
        theirs, ours = torch.zeros(count), torch.zeros(count)
        calls = {
            "gloo": lambda theirs=theirs: dist.all_reduce(theirs, group=gloo),
            "lockstep": lambda ours=ours: dist.all_reduce(ours),
            "shared": lambda shared=shared: dist.all_reduce(shared),
        }
        compare(f"all_reduce of {size}", calls, 200 if count < 1 << 18 else 20 if count < 1 << 20 else 3, rounds, "us")


def mlp(width, depth):
    layers = []
    for _ in range(depth):
        layers += [torch.nn.Linear(width, width), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers)


def steps(gloo, rounds):
    for name, width, depth, batch, repeats in (("toy", 20, 1, 32, 50), ("MLP, 8.5 M", 1680, 3, 32, 2)):
        calls = {}
        for backend, group in (("gloo", gloo), ("lockstep", None), ("no exchange", False)):
            torch.manual_seed(1)
            model = mlp(width, depth)
            if group is not False:
                model = DistributedDataParallel(model, process_group=group)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            inputs = torch.randn(batch, width)

            def step(model=model, optimizer=optimizer, inputs=inputs):
                optimizer.zero_grad()
                model(inputs).square().mean().backward()
                optimizer.step()

            calls[backend] = step
        compare(f"DDP step, {name}", calls, repeats, rounds, "ms")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    dist.init_process_group("lockstep")
    gloo = dist.new_group(backend="gloo")
    all_reduces(gloo, rounds)
    steps(gloo, rounds)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
