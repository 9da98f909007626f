"""One job of C++ and Python ranks trains one model: all ranks end with the bits of a job of Python ranks alone.

Gradients are averaged by all_reduce, or by DistributedDataParallel of lockstep_torch and of the C++ library.

usage: mixed_job.py LOCKSTEP MIXED_JOB_WORKER DIGITS_CSV
       mixed_job.py rank CSV FOLDER WORKER RANKS_IN_CPP (all_reduce | ddp): a rank
"""

import os
import subprocess
import sys
import tempfile

HERE = os.path.abspath(__file__)
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "..", "..", "tests", "python", "support"))
from cases import some  # noqa: E402

STEPS = 100
BATCH = 32


def run_rank(digits, folder, worker, ranks_in_cpp, exchange):
    rank = os.environ["RANK"]
    output = os.path.join(folder, f"state.{rank}")
    if rank in ranks_in_cpp.split(","):
        os.execv(worker, [worker, digits, output, str(STEPS), exchange])

    import torch
    import torch.distributed as dist

    import lockstep_torch

    dist.init_process_group("lockstep")
    with open(digits, encoding="utf-8") as file:
        table = torch.tensor([[float(value) for value in line.split(",")] for line in file])
    images, labels = table[:, :64] / 16, table[:, 64].long()
    net = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    for parameter in net.parameters():
        index = torch.arange(parameter.numel(), dtype=torch.float32)
        parameter.data.copy_(((index + dist.get_rank()).sin() * 0.1).view(parameter.shape))
        if exchange == "all_reduce":
            dist.broadcast(parameter.data, 0)
    model = net if exchange == "all_reduce" else lockstep_torch.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    size = dist.get_world_size()
    for step in range(STEPS):
        first = (step * size + dist.get_rank()) * BATCH
        index = torch.arange(first, first + BATCH) % len(images)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images[index]), labels[index]).backward()
        for parameter in net.parameters() if exchange == "all_reduce" else ():
            dist.all_reduce(parameter.grad)
            parameter.grad.div_(size)
        optimizer.step()
    with open(output, "wb") as file:
        for parameter in net.parameters():
            file.write(bytes(parameter.detach().clone().untyped_storage()))
    dist.destroy_process_group()


def states(worker, digits, launcher, ranks_in_cpp, backend, exchange):
    with tempfile.TemporaryDirectory(prefix="lockstep_test_") as folder:
        subprocess.run([*launcher, HERE, "rank", digits, folder, worker, ranks_in_cpp, exchange], check=True, timeout=120,
                       env=os.environ | {"OMP_NUM_THREADS": "1", "LOCKSTEP_BACKEND": backend})
        texts = []
        for rank in range(3):
            with open(os.path.join(folder, f"state.{rank}"), "rb") as file:
                texts.append(file.read())
        return texts


def main():
    lockstep, worker, digits = sys.argv[1:4]
    flags = ["--standalone", "--nproc-per-node=3"]
    by_lockstep = [lockstep, "run", *flags, "--", sys.executable]
    by_torchrun = [sys.executable, "-m", "torch.distributed.run", *flags]
    jobs = some([
        (by_lockstep, "0,2", "shm", "ddp"),  # C++ serves the store
        (by_lockstep, "1", "shm", "all_reduce"),
        (by_torchrun, "0,1", "shm", "ddp"),  # torchrun serves the store
        (by_lockstep, "1", "gloo", "ddp"),
        (by_lockstep, "0", "gloo", "all_reduce"),
    ], every=2)
    of_python = {}
    # They round differently: one divides, one multiplies by a third.
    for exchange in {exchange for _, _, backend, exchange in jobs if backend == "shm"}:
        replicas = of_python[exchange] = states(worker, digits, by_lockstep, "none", "shm", exchange)
        assert len(replicas[0]) == 4 * (64 * 32 + 32 + 32 * 10 + 10)
        assert replicas[0] == replicas[1] == replicas[2], "Python ranks differ"
    for launcher, ranks_in_cpp, backend, exchange in jobs:
        mixed = states(worker, digits, launcher, ranks_in_cpp, backend, exchange)
        case = f"C++ ranks {ranks_in_cpp}, {exchange} over {backend}, started by {os.path.basename(launcher[0])}"
        assert mixed[0] == mixed[1] == mixed[2], f"ranks differ: {case}"
        if backend == "shm":  # Gloo adds in another order.
            assert mixed == of_python[exchange], f"other bits than a job of Python ranks: {case}"
        print(f"ok: {case}", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "rank":
        run_rank(*sys.argv[2:])
    else:
        main()
