"""The other program that run.py times in turns: the training of main.cpp in Python, by PyTorch,
Accelerate or Lightning Fabric. Answers are those of main.cpp."""
import argparse
import json
import os
import pathlib
import re
import sys
import time

import torch
import torch.distributed as dist

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "tasks"))
from tasks import make_task  # noqa: E402

LEARNING_RATE = 1e-3
WARM_UP_STEPS = 3
FEWEST_STEPS = 5
SECONDS = 1  # of steps
REPLICAS = 2  # of DataParallel


def make_loader(dataset, batch_size, sampler=None):
    return torch.utils.data.DataLoader(dataset, batch_size, shuffle=sampler is None, sampler=sampler)


class PyTorch:
    def __init__(self, arguments, model):
        self.distributed = arguments.parallel == "ddp"
        if self.distributed:
            dist.init_process_group("gloo")
            model = torch.nn.parallel.DistributedDataParallel(model)
        else:
            model = torch.nn.DataParallel(model)
        self.model = model

    def set_up(self, optimizer):
        return self.model, optimizer

    def loader(self, dataset, batch_size):
        if not self.distributed:
            return make_loader(dataset, batch_size)
        return make_loader(dataset, batch_size, torch.utils.data.DistributedSampler(dataset))

    def backward(self, loss):
        loss.backward()


class Accelerate:
    def __init__(self, arguments, model):
        import accelerate
        self.accelerator = accelerate.Accelerator(cpu=True)
        self.model = model

    def set_up(self, optimizer):
        return self.accelerator.prepare(self.model, optimizer)

    def loader(self, dataset, batch_size):
        return self.accelerator.prepare(make_loader(dataset, batch_size))

    def backward(self, loss):
        self.accelerator.backward(loss)


class Fabric:
    def __init__(self, arguments, model):
        import lightning
        self.fabric = lightning.Fabric(accelerator="cpu", strategy="ddp",
                                       devices=int(os.environ["LOCAL_WORLD_SIZE"]))
        self.fabric.launch()
        self.model = model

    def set_up(self, optimizer):
        return self.fabric.setup(self.model, optimizer)

    def loader(self, dataset, batch_size):
        return self.fabric.setup_dataloaders(make_loader(dataset, batch_size))

    def backward(self, loss):
        self.fabric.backward(loss)


FRAMEWORKS = {"pytorch": PyTorch, "accelerate": Accelerate, "fabric": Fabric}


class Training:
    def __init__(self, arguments):
        self.task = make_task(arguments.task)
        self.batch_size = self.task.batch_size * (REPLICAS if arguments.parallel == "dp" else 1)
        self.with_bfloat16 = arguments.precision == "bfloat16"
        self.framework = FRAMEWORKS[arguments.framework](arguments, self.task.model)
        kind = torch.optim.AdamW if self.task.with_adamw else torch.optim.SGD
        self.model, self.optimizer = self.framework.set_up(
            kind(self.task.model.parameters(), LEARNING_RATE))

    def step(self, inputs, targets):
        self.optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=self.with_bfloat16):
            loss = self.task.loss(self.model(inputs), targets)
        self.framework.backward(loss)
        self.optimizer.step()


def count_steps(before):
    """The same on all ranks: as many as fit the time, by the shortest of the steps before."""
    return max(FEWEST_STEPS, int(SECONDS / max_over_ranks([min(before)])[0]))


def time_steps(training, batch, steps):
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        training.step(*batch)
        times.append(time.perf_counter() - start)
    return times


def time_epoch(training, samples):
    dataset = torch.utils.data.TensorDataset(*training.task.samples(samples))
    loader = training.framework.loader(dataset, training.batch_size)
    barrier()
    start = time.perf_counter()
    for batch in loader:
        training.step(*batch)
    return time.perf_counter() - start


def peak_kilobytes():
    status = pathlib.Path("/proc/self/status").read_text(encoding="utf-8")
    return int(re.search(r"VmHWM:\s*(\d+) kB", status)[1])


def barrier():
    if dist.is_initialized():
        dist.barrier()


def max_over_ranks(values):
    tensor = torch.tensor(values, dtype=torch.float64)
    if dist.is_initialized():
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return tensor.tolist()


def use_processors(arguments):
    if arguments.parallel == "dp":
        torch.set_num_threads(REPLICAS)
        return
    cpus = sorted(os.sched_getaffinity(0))
    if int(os.environ["WORLD_SIZE"]) <= len(cpus):
        os.sched_setaffinity(0, {cpus[int(os.environ["RANK"])]})
    torch.set_num_threads(1)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task")
    parser.add_argument("--framework", choices=FRAMEWORKS, default="pytorch")
    parser.add_argument("--parallel", choices=["ddp", "dp"], default="ddp")
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--samples", type=int, default=1024)
    parser.add_argument("--result", required=True)
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    use_processors(arguments)
    training = Training(arguments)
    batch = training.task.samples(training.batch_size)
    training.step(*batch)
    first_step_at = time.monotonic()
    warm_up = time_steps(training, batch, WARM_UP_STEPS)
    count = count_steps(warm_up)

    barrier()
    steps = max_over_ranks(time_steps(training, batch, count))
    first_step_at, epoch, peak = max_over_ranks(
        [first_step_at, time_epoch(training, arguments.samples), peak_kilobytes()])
    world_size = dist.get_world_size() if dist.is_initialized() else 1
    if int(os.environ.get("RANK", "0")) == 0:
        pathlib.Path(arguments.result).write_text(json.dumps(
            {"steps_s": steps, "first_step_at_s": first_step_at, "epoch_s": epoch, "peak_kb": peak,
             "batch_size": training.batch_size * world_size}), encoding="utf-8")
    # PyTorch's processes with gloo now and then abort or hang as they end ("terminate called without
    # an active exception"); all that is timed is complete.
    barrier()
    os._exit(0)


if __name__ == "__main__":
    main()
