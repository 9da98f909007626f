"""Fully sharded training beside PyTorch's FSDP2, and with ranks that die in it.

    fully_shard.py LOCKSTEP FULLY_SHARD_WORKER [unittest arguments]

The same weights and data on both sides, 40 steps (ALL_CASES: 100), on the CPU: FSDP2 over Gloo, Lockstep over each backend. Parameters
and the norms by which gradients were clipped must be within 1e-6. Units are the blocks; every third step has two
micro-batches, of which the first is not exchanged.
"""

import itertools
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import warnings

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))
from cases import ALL_CASES, some
from free_ports import free_port
from pytorch_ranks import run_pytorch_ranks
from rank_process import RankProcess, place

LOCKSTEP, WORKER = map(os.path.abspath, sys.argv[1:3])
TOKENS, WIDTH, STEPS = 11, 24, 100 if ALL_CASES else 40
OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
}
# Ranks, the backend, which ranks share memory, and where there are replicas (HSDP).
JOBS = some(((2, "shm", "00", "none"), (1, "shm", "0", "none"), (2, "gloo", "00", "none"), (4, "shm", "0000", "none"),
             (3, "hierarchical", "001", "none"), (4, "hierarchical", "0011", "machines"), (3, "shm", "000", "none"),
             (4, "gloo", "0000", "none"), (4, "hierarchical", "0011", "none")), every=5)
# Jobs that go on with the snapshots of the one before: ranks, and how many steps are made then.
NUMBERS_OF_RANKS = some(((3, 8), (1, 16), (2, 24), (4, 32)), every=2)
torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(WIDTH, 3 * WIDTH + 1)
        self.down = nn.Linear(3 * WIDTH + 1, WIDTH)

    def forward(self, inputs):
        return inputs + self.down(torch.tanh(self.up(inputs)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(3)])
        self.head = nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens):
        values = self.embedding(tokens)
        for block in self.blocks:
            values = block(values)
        return self.head(values)


def backward(model, rank, step):
    inputs = (torch.arange(20) * (rank + 3) + step * 7).remainder(TOKENS)
    nn.functional.cross_entropy(model(inputs), (inputs * 5 + 1).remainder(TOKENS)).backward()


def run_fsdp2(rank, world_size, folder):
    """Trains from the weights in `folder`; rank 0 writes what came of it."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store.{world_size}", rank=rank, world_size=world_size)
    mesh = dist.device_mesh.init_device_mesh("cpu", (world_size,))
    for kind, make in OPTIMIZERS.items():
        model = Net()
        model.load_state_dict(torch.load(f"{folder}/weights.pt"))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = make(model.parameters())
        norms = torch.zeros(STEPS, dtype=torch.float64)
        for step in range(STEPS):
            optimizer.zero_grad()
            if step % 3 == 0:
                model.set_requires_gradient_sync(False)
                backward(model, rank, step + 1000)
                model.set_requires_gradient_sync(True)
            backward(model, rank, step)
            norms[step] = nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()
            optimizer.step()
        trained = {name: value.full_tensor() for name, value in model.state_dict().items()}
        if rank == 0:
            torch.save(trained | {"norms": norms}, f"{folder}/{kind}.{world_size}.pt")
    dist.barrier()
    # Past PyTorch's own clean-up, in which a thread of its sometimes ends the process.
    os._exit(0)


class Parity(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(directory.cleanup)
        cls.folder = directory.name
        torch.manual_seed(28)
        torch.save(Net().state_dict(), f"{cls.folder}/weights.pt")
        for world_size in sorted({job[0] for job in JOBS}):
            run_pytorch_ranks(run_fsdp2, (world_size, cls.folder), world_size)

    def test_the_parameters_are_those_of_fsdp2(self):
        for ranks, backend, machines, replicas in JOBS:
            for kind in OPTIMIZERS:
                with self.subTest(ranks=ranks, backend=backend, machines=machines, replicas=replicas, optimizer=kind):
                    result = f"{self.folder}/ours.pt"
                    self.train(ranks, backend, machines, replicas, kind, result)
                    ours = torch.load(result)["extra"]
                    theirs = torch.load(f"{self.folder}/{kind}.{ranks}.pt")
                    self.assertEqual(ours.keys(), theirs.keys())
                    start = torch.load(f"{self.folder}/weights.pt")
                    for name, value in theirs.items():
                        difference = (ours[name] - value).abs().max().item()
                        self.assertLess(difference, 1e-6, name)
                        if name in start:  # It has been trained.
                            self.assertGreater((start[name] - value).abs().max().item(), 1e-3, name)

    def train(self, ranks, backend, machines, replicas, kind, result):
        port = free_port()
        processes = []
        for rank in range(ranks):
            environment = place(rank, ranks, port, LOCKSTEP_BACKEND=backend, OMP_NUM_THREADS=1,
                                LOCKSTEP_MEMORY_DOMAIN=machines[rank])
            command = [WORKER, "train", kind, f"{self.folder}/weights.pt", result, replicas, STEPS]
            processes.append(RankProcess(self, command, environment))
        for process in processes:
            code, _, errors = process.finish()
            self.assertEqual(code, 0, errors)


class Faults(unittest.TestCase):
    def job(self, world_size, backend, *arguments, machines="0000", **environment):
        port = free_port()
        return [RankProcess(self, [WORKER, *arguments],
                            place(rank, world_size, port, LOCKSTEP_BACKEND=backend, OMP_NUM_THREADS=1,
                                  LOCKSTEP_MEMORY_DOMAIN=machines[rank], **environment))
                for rank in range(world_size)]

    def test_a_rank_that_dies_between_collectives_is_named_with_the_collective(self):
        # In forward the others wait for a unit, in backward in the reduction of one.
        cases = itertools.product((("shm", "000"), ("gloo", "000"), ("hierarchical", "001")), ("forward", "backward"))
        for (backend, machines), where in some(cases, 3):
            gather = "barrier" if backend == "shm" else "all_gather"
            operation = gather if where == "forward" else "reduce_scatter"
            with self.subTest(where=where, backend=backend):
                ranks = self.job(3, backend, "die", where, machines=machines)
                for rank in (0, 2):
                    fields = ranks[rank].expect_error("PeerLost", group="default", own_rank=rank)
                    self.assertIn(operation, fields["operation"], fields)
                    if backend == "shm":  # Over Gloo a collective does not know which.
                        self.assertEqual(fields["ranks"], [1], fields)

    def test_all_replicas_name_a_rank_that_dies(self):
        # Rank 2 shares no group with rank 1. Those who learn of it do not end, so no connection breaks by that.
        cases = itertools.product(("gloo", "hierarchical"), ("forward", "backward"))
        for backend, where in some(cases, 2):
            with self.subTest(where=where, backend=backend):
                ranks = self.job(4, backend, "die-hybrid", where, machines="0011", LOCKSTEP_TIMEOUT_S=60)
                for rank in (0, 2, 3):
                    ranks[rank].wait_for_line("running")
                begin = time.monotonic()
                for rank in (0, 2, 3):
                    error = ranks[rank].read_line()
                    self.assertIn(f"of group 'default' on rank {rank}: a peer is gone: rank 1 ended", error)
                self.assertLess(time.monotonic() - begin, 30, "they waited for the timeout")

    def test_a_stopped_rank_is_a_timeout_at_the_deadline(self):
        for backend in ("shm", "gloo"):
            with self.subTest(backend=backend):
                ranks = self.job(2, backend, "for-ever", LOCKSTEP_TIMEOUT_S=2)
                for rank in ranks:
                    rank.wait_for_line("running")
                ranks[1].process.send_signal(signal.SIGSTOP)
                ranks[0].expect_error("TimeoutError", group="default", own_rank=0, ranks=[1], timeout_ms=2000)


class Restarts(unittest.TestCase):
    """Jobs of an Accelerator without recovery, of which a rank is killed: all restart from the newest snapshot."""

    def job(self, folder, strategy, ranks, steps, killed_at=-1):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("LOCKSTEP_")} | {"OMP_NUM_THREADS": "1"}
        result = subprocess.run(
            [LOCKSTEP, "run", "--standalone", f"--nproc-per-node={ranks}", "--max-restarts=1", WORKER, "accelerator",
             strategy, folder, str(steps), str(killed_at)],
            env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def bits(self, result):
        return re.findall(r"ends with (\d+)", result.stdout)

    def test_a_killed_rank_costs_the_steps_since_the_newest_snapshot_and_no_bit(self):
        for ranks in some((3, 2), 2):
            with self.subTest(ranks=ranks), tempfile.TemporaryDirectory() as folder:
                expected = self.bits(self.job(f"{folder}/ddp", "ddp", ranks, 30))
                self.assertEqual(len(expected), 1)
                self.assertEqual(self.bits(self.job(f"{folder}/undisturbed", "fully_shard", ranks, 30)), expected)
                killed = self.job(f"{folder}/killed", "fully_shard", ranks, 30, killed_at=18)
                self.assertEqual(re.findall(r"begins at step (\d+)", killed.stdout), ["0", "16"])
                self.assertEqual(self.bits(killed), expected)

    def test_other_numbers_of_ranks_go_on_with_the_bits_of_replicas(self):
        with tempfile.TemporaryDirectory() as folder:
            ends = {strategy: [self.bits(self.job(f"{folder}/{strategy}", strategy, ranks, steps))
                               for ranks, steps in NUMBERS_OF_RANKS]
                    for strategy in ("ddp", "fully_shard")}
            self.assertEqual(ends["fully_shard"], ends["ddp"])
            self.assertEqual(len({bits for bits, in ends["ddp"]}), len(NUMBERS_OF_RANKS), ends)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
