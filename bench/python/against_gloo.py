"""One of two ranks: all-reduce, DDP and FSDP2 steps over `lockstep` and over Gloo, interleaved; prints medians and ratios.

  lockstep run --standalone --nproc-per-node=2 python bench/python/against_gloo.py [--rounds=15] [--quick]

A ratio is the median of the rounds' ratios (Gloo / lockstep); "adds" compares the medians of step minus step without
exchange. "barrier" exchanges nothing: ranks wait for the slower one, as in any exchange. Run it on a machine that does
nothing else.
"""

import argparse
import statistics
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import lockstep_torch
from models import MODELS

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
            line += f" ({median_ratio(times['gloo'], values):.2f} x)"
    alone = times.get("no exchange")
    if alone:
        added = {name: statistics.median(all_of_it - step for all_of_it, step in zip(values, alone, strict=True))
                 for name, values in times.items() if name != "no exchange"}
        for name, seconds in added.items():
            line += f"  {name} adds {seconds * scale:.{digits}f} {unit} ({added['gloo'] / seconds:.1f} x less)"
    print(line, flush=True)


def median_ratio(gloo, ours):
    return statistics.median(one / other for one, other in zip(gloo, ours, strict=True))


def all_reduces(gloo, rounds, sizes):
    for size, count in sizes.items():
        shared = lockstep_torch.allocate_tensor(count).zero_()
        theirs, ours = torch.zeros(count), torch.zeros(count)
        calls = {
            "gloo": lambda theirs=theirs: dist.all_reduce(theirs, group=gloo),
            "lockstep": lambda ours=ours: dist.all_reduce(ours),
            "shared": lambda shared=shared: dist.all_reduce(shared),
        }
        compare(f"all_reduce of {size}", calls, 200 if count < 1 << 18 else 20 if count < 1 << 20 else 3, rounds, "us")


def step_of(model, make_inputs, after_backward=lambda: None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = make_inputs()

    def step():
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        after_backward()
        optimizer.step()

    return step


def ddp_steps(gloo, rounds, names):
    for name in names:
        make_model, make_inputs, repeats = MODELS[name]
        calls = {}
        wrappers = {
            "gloo": lambda model: DistributedDataParallel(model, process_group=gloo),
            "lockstep": DistributedDataParallel,
            "own reducer": lockstep_torch.DistributedDataParallel,
            "no exchange": lambda model: model,
        }
        for backend, wrap in wrappers.items():
            torch.manual_seed(1)
            calls[backend] = step_of(wrap(make_model()), make_inputs)
        calls["barrier"] = step_of(make_model(), make_inputs, dist.barrier)
        compare(f"DDP step, {name}", calls, repeats, rounds, "ms")


def fsdp_steps(rounds, names):
    for name in names:
        make_model, make_inputs, repeats = MODELS[name]
        calls = {}
        for backend in ("gloo", "lockstep"):
            torch.manual_seed(1)
            model = make_model()
            mesh = init_device_mesh("cpu", (dist.get_world_size(),), backend_override={0: backend})
            for layer in model:
                if isinstance(layer, torch.nn.Linear):
                    fully_shard(layer, mesh=mesh)
            fully_shard(model, mesh=mesh)
            calls[backend] = step_of(model, make_inputs)
        compare(f"FSDP2 step, {name}", calls, repeats, rounds, "ms")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="the smallest of each kind")
    arguments = parser.parse_args()
    rounds = arguments.rounds
    torch.set_num_threads(1)
    dist.init_process_group("lockstep")
    gloo = dist.new_group(backend="gloo")
    all_reduces(gloo, rounds, dict(list(SIZES.items())[:1]) if arguments.quick else SIZES)
    ddp_steps(gloo, rounds, ["toy"] if arguments.quick else MODELS)
    fsdp_steps(rounds, ["toy"] if arguments.quick else ["MLP, 8.5 M"])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
