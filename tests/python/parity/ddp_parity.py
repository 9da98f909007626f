"""Trains one network in PyTorch's DistributedDataParallel and in Lockstep's, and compares.

Usage: ddp_parity.py PARITY_WORKER LOCKSTEP DIGITS_CSV

Same initial weights, same indices (each side from its own DistributedSampler), two ranks, 100 steps:
every loss on every rank and the final parameters and buffers must be the same bits. A sum of two
numbers has one order only, so nothing may differ; nor with gradients that travel as bfloat16 over
gloo, as PyTorch's bf16_compress_hook lets them; nor in mixed precision, with autocast and GradScaler,
where rank 1's loss overflows in some steps: both ranks skip these, with PyTorch's scale after every
step. Then two ranks with batches of 32 against one process with batches of 64, which rounds
differently, within 1e-4.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import warnings

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))
from pytorch_ranks import run_pytorch_ranks

WORKER, LOCKSTEP, DIGITS = sys.argv[1:4]
STEPS = 100
OVERFLOWS = (5, 6, 40)  # Steps in which rank 1's loss overflows, in mixed precision.
torch.set_num_threads(1)  # Ranks are forked from here.


class Net(nn.Module):
    def __init__(self, with_norm):
        super().__init__()
        self.with_norm = with_norm
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.hidden = nn.Linear(8 * 8 * 8, 32)
        self.output = nn.Linear(32, 10)
        if not with_norm:
            self.norm.requires_grad_(False)

    def forward(self, x):
        x = self.conv(x)
        if self.with_norm:
            x = self.norm(x)
        return self.output(torch.relu(self.hidden(torch.relu(x).flatten(1))))


def state_of(net):
    tensors = list(net.parameters()) + [b for b in net.buffers() if b.is_floating_point()]
    return torch.cat([t.detach().reshape(-1) for t in tensors])


def read_digits():
    table = torch.tensor([[float(v) for v in line.split(",")] for line in open(DIGITS)])
    return (table[:, :64] / 16).view(-1, 1, 8, 8), table[:, 64].long()


def compress_as_bfloat16(state, bucket):
    # By another name: by its own PyTorch takes the hook only with devices, though gloo sums bfloat16.
    return bf16_compress_hook(state, bucket)


def pytorch_rank(rank, world_size, folder, with_norm, compress, mixed):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank,
                            world_size=world_size)
    images, labels = read_digits()
    torch.manual_seed(rank)  # Rank 0's weights alone count.
    net = Net(with_norm)
    if rank == 0:
        net.load_state_dict(torch.load(f"{folder}/initial.pt"))
    model = nn.parallel.DistributedDataParallel(net)
    if compress:
        model.register_comm_hook(None, compress_as_bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    sampler = torch.utils.data.DistributedSampler(range(len(images)), seed=5)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024, growth_interval=7, enabled=mixed)
    losses = []
    scales = []
    epoch = 0
    while len(losses) < STEPS:
        sampler.set_epoch(epoch)
        indices = list(sampler)
        for first in range(0, len(indices), 32):
            if len(losses) == STEPS:
                break
            batch = torch.tensor(indices[first:first + 32])
            optimizer.zero_grad()
            with torch.autocast("cpu", enabled=mixed):
                loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            step = len(losses)
            losses.append(loss.detach())
            if mixed and rank == 1 and step in OVERFLOWS:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        epoch += 1
    torch.save((torch.stack(losses), state_of(net), torch.tensor(scales)), f"{folder}/pytorch.{rank}")
    dist.barrier()
    # Past PyTorch's own clean-up, in which a thread of its sometimes ends the process by std::terminate.
    os._exit(0)


def lockstep_job(folder, name, world_size, batch_size, with_norm, compress=False, mixed=False):
    output = f"{folder}/{name}"
    os.mkdir(output)
    subprocess.run([LOCKSTEP, "run", "--standalone", f"--nproc-per-node={world_size}", WORKER,
                    DIGITS, f"{folder}/initial.bin", output, str(batch_size), str(STEPS),
                    str(int(with_norm)), str(int(compress)), str(int(mixed))],
                   check=True, timeout=300,
                   env=os.environ | {"OMP_NUM_THREADS": "1"} |
                   ({"LOCKSTEP_BACKEND": "gloo"} if compress else {}))

    def floats(path):
        with open(path, "rb") as file:
            return torch.frombuffer(bytearray(file.read()), dtype=torch.float32)

    return [(floats(f"{output}/losses.{r}"), floats(f"{output}/state.{r}"), floats(f"{output}/scales.{r}"))
            for r in range(world_size)]


def check(condition, what):
    if not condition:
        sys.exit(f"FAILED: {what}")
    print(f"ok: {what}")


def compare_with_pytorch(with_norm, compress=False, mixed=False):
    name = ("with" if with_norm else "without") + " batch norm" + (", bfloat16" if compress else "")
    name += ", mixed precision" if mixed else ""
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(20)
        net = Net(with_norm)
        torch.save(net.state_dict(), f"{folder}/initial.pt")
        with open(f"{folder}/initial.bin", "wb") as file:
            file.write(bytes(state_of(net).untyped_storage()))
        run_pytorch_ranks(pytorch_rank, (2, folder, with_norm, compress, mixed), 2)
        ours = lockstep_job(folder, "two", 2, 32, with_norm, compress, mixed)
        for rank in range(2):
            losses, state, scales = torch.load(f"{folder}/pytorch.{rank}")
            check(len(ours[rank][0]) == STEPS, f"{name}: rank {rank} made {STEPS} steps")
            check(torch.equal(ours[rank][0], losses),
                  f"{name}: rank {rank}: all losses are PyTorch's bits "
                  f"({losses[0]:.4f} to {losses[-1]:.4f})")
            check(torch.equal(ours[rank][2], scales),
                  f"{name}: rank {rank}: all scales are PyTorch's ({scales.min()} to {scales.max()})")
            if with_norm and rank == 1:
                # PyTorch leaves rank 1 its own running statistics after the last step; Lockstep has
                # given it rank 0's by then.
                parameters = sum(p.numel() for p in net.parameters())
                check(torch.equal(ours[1][1][:parameters], state[:parameters]),
                      f"{name}: rank 1: final parameters are PyTorch's bits")
                check(torch.equal(ours[1][1], ours[0][1]), f"{name}: rank 1 holds rank 0's buffers")
            else:
                check(torch.equal(ours[rank][1], state),
                      f"{name}: rank {rank}: final parameters and buffers are PyTorch's bits")
        if not with_norm and not compress and not mixed:
            whole = lockstep_job(folder, "one", 1, 64, with_norm)[0]
            mean_losses = (ours[0][0] + ours[1][0]) / 2
            whole_steps = whole[0]
            # Batches cover the same samples only up to the first end of an epoch with a remainder.
            same = 1797 // 64
            check(torch.allclose(mean_losses[:same], whole_steps[:same], rtol=1e-4),
                  "two ranks with batches of 32 equal one process with batches of 64")


if __name__ == "__main__":
    compare_with_pytorch(with_norm=True)
    compare_with_pytorch(with_norm=False)
    compare_with_pytorch(with_norm=False, compress=True)
    compare_with_pytorch(with_norm=True, mixed=True)
