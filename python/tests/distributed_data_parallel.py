"""One of some ranks: lockstep_torch.DistributedDataParallel against PyTorch's own and against one process.

Two gradients have one sum in any order, so that on two ranks the bits are those of PyTorch's class.
"""

import copy
import dataclasses
import hashlib
import signal
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_module
from torch.utils.checkpoint import checkpoint

import lockstep_torch

STEPS = 12
ROWS = 256
WIDTH = 300  # 300 x 300 float32: large enough that autograd writes the gradient to shared memory


class Net(nn.Module):
    """Large and small layers, statistics, a gradient that is a view of another's, one weight used twice."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.places = nn.Parameter(torch.zeros(ROWS, WIDTH))
        self.norm = nn.BatchNorm1d(WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.second.weight = self.first.weight
        self.head = nn.Linear(WIDTH, 10, bias=False)

    def forward(self, x):
        x = self.norm(torch.relu(self.first(x) + self.places))
        return self.head(torch.relu(self.second(x)))


class Branches(nn.Module):
    """Each step leaves out one branch, another one on each rank."""

    def __init__(self):
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(WIDTH, 10) for _ in range(4))
        self.step = 0

    def forward(self, x):
        out = (self.step + dist.get_rank()) % 3
        self.step += 1
        return Output({"logits": sum(branch(x) for i, branch in enumerate(self.branches) if i not in (out, 3))})


@dataclasses.dataclass
class Output:
    parts: dict


class Recomputed(Net):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)


def dtype():
    """With three ranks sums have several orders: float64, so that rounding stays small."""
    return torch.float32 if dist.get_world_size() <= 2 else torch.float64


def batch(step, rank=None):
    generator = torch.Generator().manual_seed(1000 * step + (dist.get_rank() if rank is None else rank))
    inputs = torch.randn(ROWS, WIDTH, generator=generator)
    return inputs.to(dtype()), torch.randint(0, 10, (ROWS,), generator=generator)


def loss_of(outputs, labels):
    if isinstance(outputs, Output):
        outputs = outputs.parts["logits"]
    return nn.functional.cross_entropy(outputs, labels)


def make(kind):
    torch.manual_seed(3 + dist.get_rank())  # rank 0's values count
    return kind().to(dtype())


def train(model, micro_batches=1):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        for number in range(micro_batches):
            inputs, labels = batch(step * micro_batches + number)
            if number + 1 < micro_batches:
                with model.no_sync():
                    loss_of(model(inputs), labels).backward()
            else:
                loss_of(model(inputs), labels).backward()
        optimizer.step()
    return dict(model.state_dict())


def as_pytorch(kind, micro_batches=1, **options):
    ours = train(lockstep_torch.DistributedDataParallel(make(kind), **options), micro_batches)
    theirs = {name: options[name] for name in ("find_unused_parameters", "static_graph") if name in options}
    wanted = train(nn.parallel.DistributedDataParallel(make(kind), **theirs), micro_batches)
    assert list(ours) == list(wanted)  # a state dict of one loads into the other
    for name, value in ours.items():
        if "norm." in name and dist.get_rank() > 0:
            continue  # PyTorch's buffers of rank 0 come with the next forward, ours at the end of backward
        if dist.get_world_size() <= 2:
            assert torch.equal(value, wanted[name]), f"{name} differs from PyTorch's"
        else:
            torch.testing.assert_close(value, wanted[name], rtol=1e-9, atol=1e-11)
    replicas_agree(ours)


def replicas_agree(state):
    digest = hashlib.sha256()
    for value in state.values():
        digest.update(value.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    digests = [None] * dist.get_world_size()
    dist.all_gather_object(digests, digest.hexdigest())
    assert len(set(digests)) == 1, digests


def uneven_batches_with_weights():
    """One process on all rows has the same gradients."""
    sizes = [1 + 3 * rank for rank in range(dist.get_world_size())]
    model = lockstep_torch.DistributedDataParallel(make(lambda: nn.Linear(WIDTH, 10)).double(), gradient_norm=True)
    alone = copy.deepcopy(model.module)
    rows = [tuple(part[:size] for part in batch(7, rank)) for rank, size in enumerate(sizes)]
    inputs, labels = rows[dist.get_rank()]
    model.backward(loss_of(model(inputs.double()), labels), weight=len(labels))
    loss_of(alone(torch.cat([row[0] for row in rows]).double()), torch.cat([row[1] for row in rows])).backward()
    for ours, wanted in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, wanted.grad, rtol=1e-12, atol=1e-14)
    wanted_norm = torch.nn.utils.get_total_norm([one.grad for one in alone.parameters()]).item()
    assert abs(model.gradient_norm() - wanted_norm) < 1e-10 * wanted_norm


def travels_as_bfloat16():
    model = lockstep_torch.DistributedDataParallel(make(Net).float(), exchange_dtype=torch.bfloat16)
    whole = lockstep_torch.DistributedDataParallel(make(Net).float())
    inputs, labels = batch(1)
    for one in (model, whole):
        loss_of(one(inputs.float()), labels).backward()
    pairs = [(ours.grad, full.grad) for ours, full in zip(model.parameters(), whole.parameters(), strict=True)]
    assert dist.get_world_size() == 1 or any(not torch.equal(*pair) for pair in pairs)
    for ours, full in pairs:
        torch.testing.assert_close(ours, full, rtol=1e-2, atol=1e-3)


def evaluation_and_frozen_parameters():
    model = make(Net)
    model.head.weight.requires_grad_(False)
    ddp = lockstep_torch.DistributedDataParallel(model)
    head = model.head.weight.clone()
    train(ddp)
    assert torch.equal(model.head.weight, head) and model.head.weight.grad is None
    ddp.eval()
    if dist.get_rank() == 0:  # evaluation is not collective
        with torch.no_grad():
            ddp(batch(0)[0])
    ddp.train()
    train(ddp)
    ddp.check_replicas_agree()


class ReplacesBuffers(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, 10)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return self.linear(self.norm(x) - self.mean)


def replaced_buffers():
    """Rank 0's count, also those that forward replaces, and the statistics of a layer that alone is in training mode."""
    model = lockstep_torch.DistributedDataParallel(make(ReplacesBuffers))
    model.eval()
    model.module.norm.train()
    train(model)
    replicas_agree(dict(model.module.named_buffers()))
    model.check_replicas_agree()
    model.module.mean = torch.full((WIDTH,), float(dist.get_rank()), dtype=dtype())
    if dist.get_world_size() > 1:
        model._show_buffers()
        refuses(RuntimeError, "mean", model.check_replicas_agree)
    model.train()
    train(model)
    replicas_agree(dict(model.module.named_buffers()))


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.full((WIDTH, WIDTH), float(index), dtype=dtype())  # of the size of a gradient


def workers_forked_within_a_pass():
    """Their memory is their own, while this rank's next gradients come from shared memory."""
    model = lockstep_torch.DistributedDataParallel(make(lambda: nn.Linear(WIDTH, WIDTH, bias=False)))
    model(batch(0)[0]).sum().backward()
    model.zero_grad()
    model.eval()
    for _ in range(2):
        for index, rows in enumerate(torch.utils.data.DataLoader(Rows(), batch_size=None, num_workers=1)):
            assert rows.eq(index).all()
            model(rows)  # no backward follows
    model.train()
    model(batch(0)[0]).sum().backward()


def dropped_in_its_own_backward():
    """Nothing but the graph refers to the wrapper then, which exchanges the gradients all the same."""
    net = make(lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 10)))
    holder = [lockstep_torch.DistributedDataParallel(net)]
    net[1].weight.register_hook(lambda _: holder.clear())
    loss_of(holder[0](batch(0)[0]), batch(0)[1]).backward()
    assert not holder
    replicas_agree({str(number): parameter.grad for number, parameter in enumerate(net.parameters())})


def call_in_a_signal_handler():
    """An error, not a deadlock: the reducer waits for the other rank and holds its lock."""
    if dist.get_world_size() == 1:
        return
    model = lockstep_torch.DistributedDataParallel(make(Net))
    loss = loss_of(model(batch(0)[0]), batch(0)[1])
    errors = []

    def handle(*_):
        try:
            model.zero_grad()
        except RuntimeError as error:
            errors.append(str(error))
        store.set("handled", "1")

    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 0:
        signal.signal(signal.SIGALRM, handle)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        loss.backward()
        assert len(errors) == 1 and "signal handler" in errors[0], errors
    else:
        store.wait(["handled"])
        loss.backward()


def given_up_passes():
    """zero_grad of the wrapper forgets the micro-batches before it."""
    model = lockstep_torch.DistributedDataParallel(make(Net))
    inputs, labels = batch(2)
    with model.no_sync():
        model.backward(loss_of(model(batch(9)[0]), labels), weight=5)
    model.zero_grad()
    model.backward(loss_of(model(inputs), labels), weight=2)
    model.module.norm.reset_running_stats()
    found = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    model.backward(loss_of(model(inputs), labels), weight=2)
    for first, second in zip(found, model.parameters(), strict=True):
        assert torch.equal(first, second.grad)


def refuses(kind, text, call):
    try:
        call()
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"no error with {text!r}")


def pass_in_a_hook_of_another():
    """A pass within a node of another graph ends with that graph's pass; not where the node's own hooks run it."""
    model = lockstep_torch.DistributedDataParallel(nn.Linear(WIDTH, WIDTH))

    @torch.enable_grad()
    def run_a_pass(*_):
        model(torch.ones(2, WIDTH)).sum().backward()

    outer = torch.ones(1, requires_grad=True) * 2
    outer.grad_fn.register_hook(run_a_pass)
    refuses(RuntimeError, "runs inside of MulBackward0, which has hooks of its own", outer.backward)
    model = lockstep_torch.DistributedDataParallel(nn.Linear(WIDTH, WIDTH))
    outer = torch.ones(1, requires_grad=True) * 2
    outer.register_hook(run_a_pass)
    outer.backward()
    assert torch.equal(model.module.bias.grad, torch.full((WIDTH,), 2.0))

    # Nothing but the graph of the inner pass refers to this wrapper.
    def make_a_wrapper(*_):
        with torch.enable_grad():
            lockstep_torch.DistributedDataParallel(nn.Linear(WIDTH, 2))(torch.ones(2, WIDTH)).sum().backward()

    outer = torch.ones(1, requires_grad=True) * 2
    outer.register_hook(make_a_wrapper)
    refuses(RuntimeError, "the wrapper was destroyed", outer.backward)


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.block = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x):
        inner = checkpoint(self.block, self.first(x), use_reentrant=True)
        if inner.grad_fn is not None:
            inner.grad_fn.register_hook(lambda *_: None)
        return self.head(inner)


def reentrant_checkpoint_with_hooks():
    model = lockstep_torch.DistributedDataParallel(make(Checkpointed))
    plain = make(Checkpointed)
    plain.load_state_dict(model.module.state_dict())
    for number in range(3):
        inputs, targets = batch(number)
        for net in (model, plain):
            net.zero_grad()
            loss_of(net(inputs), targets).backward()
        for averaged, own in zip(model.module.parameters(), plain.parameters()):
            total = own.grad.clone()
            dist.all_reduce(total)
            assert torch.allclose(averaged.grad, total / dist.get_world_size(), atol=1e-6)


def mistakes_are_refused():
    ddp = lockstep_torch.DistributedDataParallel
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    gloo = dist.new_group(backend="gloo")
    refuses(TypeError, "not 'lockstep'", lambda: ddp(make(Net), process_group=gloo))
    refuses(RuntimeError, "lazy module", lambda: ddp(nn.LazyLinear(3)))
    refuses(RuntimeError, "on meta", lambda: ddp(nn.Linear(3, 3, device="meta")))
    partly = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3, device="meta"))
    ddp(partly, parameters_and_buffers_to_ignore=["1.weight", "1.bias"])
    refuses(RuntimeError, "exchange_dtype=torch.float64", lambda: ddp(make(Net), exchange_dtype=torch.float64))
    refuses(RuntimeError, "'nothing'", lambda: ddp(make(Net), parameters_and_buffers_to_ignore=["nothing"]))
    refuses(RuntimeError, "gradient_norm() was not asked for", lambda: ddp(make(Net)).gradient_norm())
    refuses(TypeError, "cannot be pickled", lambda: copy.deepcopy(ddp(make(Net))))
    if last > 0:
        refuses(RuntimeError, "", lambda: ddp(nn.Linear(3, 3 if rank < last else 4)))
        model = ddp(make(Net))
        with torch.no_grad():
            model.module.first.bias[5] = rank
        refuses(RuntimeError, "first.bias", model.check_replicas_agree)
    model = ddp(make(Net))
    model.module.head.weight = nn.Parameter(model.module.head.weight.detach().clone())
    refuses(RuntimeError, "['head.weight']; wrap the module again", lambda: model(batch(0)[0]))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    sharded = distribute_module(nn.Linear(4, 4), mesh)
    refuses(RuntimeError, "'weight' is a DTensor", lambda: ddp(sharded))
    model = ddp(make(Net))
    model.module.head.weight.requires_grad_(False)
    refuses(RuntimeError, "head.weight", lambda: model(batch(0)[0]))


def main():
    dist.init_process_group("lockstep", timeout=timedelta(seconds=120))
    as_pytorch(Net)
    as_pytorch(Net, gradient_as_bucket_view=False, bucket_cap_mb=0.01)
    as_pytorch(Net, static_graph=True, bucket_cap_mb_list=[0.1, 1])
    as_pytorch(Net, micro_batches=3)
    as_pytorch(Recomputed)
    as_pytorch(Branches, find_unused_parameters=True)
    uneven_batches_with_weights()
    travels_as_bfloat16()
    evaluation_and_frozen_parameters()
    replaced_buffers()
    workers_forked_within_a_pass()
    dropped_in_its_own_backward()
    call_in_a_signal_handler()
    given_up_passes()
    pass_in_a_hook_of_another()
    reentrant_checkpoint_with_hooks()
    mistakes_are_refused()
    dist.barrier()
    print(f"rank {dist.get_rank()}: as PyTorch's", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
