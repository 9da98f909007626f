"""One of two ranks: DDP, FSDP2, DTensor and checkpoints give over `lockstep` the bits that they give over Gloo.

Two numbers have one sum in any order, so that Gloo's results are the expected ones.
"""

import os
import sys
import tempfile
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as checkpoint
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import lockstep_torch  # noqa: F401

STEPS = 10


def make_model():
    torch.manual_seed(3)
    return torch.nn.Sequential(
        torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 10, bias=False)
    )


def batch(step):
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    return torch.randn(16, 20, generator=generator), torch.randint(0, 10, (16,), generator=generator)


def train(model, optimizer):
    for step in range(STEPS):
        inputs, labels = batch(step)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    return [value.to_local() if isinstance(value, DTensor) else value for value in model.state_dict().values()]


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def plain_ddp(group):
    model = DistributedDataParallel(make_model(), process_group=group)
    return train(model, sgd(model))


def ddp_with_buckets(group):
    model = DistributedDataParallel(
        make_model(), process_group=group, bucket_cap_mb=0.001, gradient_as_bucket_view=True, static_graph=True
    )
    return train(model, sgd(model))


def ddp_with_no_sync(group):
    """Two micro-batches a step, of which the first is not exchanged."""
    model = DistributedDataParallel(make_model(), process_group=group)
    optimizer = sgd(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        with model.no_sync():
            torch.nn.functional.cross_entropy(model(batch(2 * step)[0]), batch(2 * step)[1]).backward()
        torch.nn.functional.cross_entropy(model(batch(2 * step + 1)[0]), batch(2 * step + 1)[1]).backward()
        optimizer.step()
    return [*model.state_dict().values(), *(parameter.grad for parameter in model.parameters())]


class WithUnused(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used = make_model()
        self.unused = torch.nn.Linear(3, 3)

    def forward(self, inputs):
        return self.used(inputs)


def ddp_with_unused_parameters(group):
    model = DistributedDataParallel(WithUnused(), process_group=group, find_unused_parameters=True)
    return train(model, sgd(model))


def ddp_in_float16(group):
    model = DistributedDataParallel(make_model(), process_group=group)
    model.register_comm_hook(group, default_hooks.fp16_compress_hook)
    return train(model, sgd(model))


def ddp_with_power_sgd(group):
    # One bucket: with several, Gloo's threads start the hook's collectives in another order on each rank.
    model = DistributedDataParallel(make_model(), process_group=group)
    state = powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=1, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return train(model, sgd(model))


def ddp_of_sparse_gradients(group):
    torch.manual_seed(5)
    table = DistributedDataParallel(torch.nn.Embedding(50, 4, sparse=True), process_group=group)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        rows = torch.randint(0, 50, (7,), generator=torch.Generator().manual_seed(step * 2 + dist.get_rank()))
        table(rows).square().sum().backward()
        optimizer.step()
    return list(table.state_dict().values())


def zero_redundancy(group):
    model = DistributedDataParallel(make_model(), process_group=group)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.Adam, process_group=group, lr=0.01
    )
    return train(model, optimizer)


def fsdp2(backend):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), backend_override={0: backend})
    model = make_model()
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return train(model, torch.optim.Adam(model.parameters(), lr=0.01))


def dtensor(backend):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), backend_override={0: backend})
    whole = torch.arange(35.0).view(7, 5)  # rows do not divide evenly
    sharded = distribute_tensor(whole, mesh, [Shard(0)])
    by_columns = sharded.redistribute(mesh, [Shard(1)])
    product = sharded.t().matmul(sharded)  # a partial sum
    return [
        sharded.full_tensor(),
        by_columns.to_local().contiguous(),
        product.redistribute(mesh, [Replicate()]).to_local(),
    ]


def functional_collectives(group):
    rank, size = dist.get_rank(), dist.get_world_size()
    tensor = torch.arange(6.0).view(2, 3) + rank
    results = [
        functional.all_reduce(tensor, "sum", group),
        functional.all_gather_tensor(tensor, 1, group),
        functional.reduce_scatter_tensor(torch.cat([tensor] * size), "sum", 0, group),
        functional.broadcast(tensor, size - 1, group),
        *functional.all_reduce_coalesced([tensor, tensor * 2], "sum", group),
    ]
    return [functional.wait_tensor(result).clone() for result in results]


def save_and_load(_):
    """Sharded state, saved by all ranks and loaded into models with other weights."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = make_model()
    fully_shard(model, mesh=mesh)
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder, src=0)
    checkpoint.save({"model": model.state_dict()}, checkpoint_id=folder[0])
    other = make_model()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    fully_shard(other, mesh=mesh)
    state = {"model": other.state_dict()}
    checkpoint.load(state, checkpoint_id=folder[0])
    other.load_state_dict(state["model"])
    for ours, expected in zip(other.state_dict().values(), model.state_dict().values(), strict=True):
        if isinstance(ours, DTensor):
            ours, expected = ours.to_local(), expected.to_local()
        assert torch.equal(ours, expected)


def main():
    dist.init_process_group("lockstep", timeout=timedelta(seconds=120))
    gloo = dist.new_group(backend="gloo")
    by_group = [
        plain_ddp,
        ddp_with_buckets,
        ddp_with_no_sync,
        ddp_with_unused_parameters,
        ddp_in_float16,
        ddp_with_power_sgd,
        ddp_of_sparse_gradients,
        zero_redundancy,
        functional_collectives,
    ]
    for run in by_group:
        compare(run.__name__, run(dist.group.WORLD), run(gloo))
    for run in (fsdp2, dtensor):
        compare(run.__name__, run("lockstep"), run("gloo"))
    save_and_load(None)
    dist.barrier()
    print(f"rank {dist.get_rank()}: all as over Gloo", flush=True)
    dist.destroy_process_group()


def compare(what, ours, expected):
    assert len(ours) == len(expected)
    for number, (value, wanted) in enumerate(zip(ours, expected, strict=True)):
        assert torch.equal(value, wanted), f"rank {dist.get_rank()}: tensor {number} of {what} differs from Gloo's"
    if os.environ.get("VERBOSE"):
        print(f"rank {dist.get_rank()}: {what}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
