"""One rank: every collective over `lockstep` gives what Gloo gives, for all dtypes and sizes.

Values are integers that every dtype holds, so that reductions are exact in any order.
"""

import itertools
import os
import sys
import time
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional_collectives

import lockstep_torch

SIZES = [(0,), (1,), (3,), (7, 11), (4099,), (300_007,)]
REDUCED = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.int8, torch.uint8]
MOVED = REDUCED + [
    torch.bool,
    torch.complex64,
    torch.complex128,
    torch.int16,
    torch.uint16,
    torch.uint32,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]
OPS = [dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX]

warnings.filterwarnings("ignore", category=FutureWarning)  # of PyTorch, about the names of collectives
checks = 0


def values(shape, dtype, rank, seed=0):
    count = 1
    for size in shape:
        count *= size
    raw = (torch.arange(count) * 7 + rank * 3 + seed) % 5
    if dtype.is_complex:
        return torch.complex(raw.double(), (raw.double() + rank) % 3).to(dtype).view(shape)
    return raw.to(torch.float32).to(dtype).view(shape) if dtype.itemsize == 1 and dtype.is_floating_point else raw.to(dtype).view(shape)


def same(ours, theirs, what):
    global checks
    checks += 1
    ours, theirs = ours.contiguous().flatten().view(torch.uint8), theirs.contiguous().flatten().view(torch.uint8)
    assert torch.equal(ours, theirs), f"rank {dist.get_rank()}: {what} differs"


class Pair:
    """Runs a call over both groups."""

    def __init__(self):
        self.ours = dist.group.WORLD
        self.gloo = dist.new_group(backend="gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def compare(self, what, call):
        for ours, theirs in zip(call(self.ours), call(self.gloo), strict=True):
            same(ours, theirs, what)


def moves(pair, shape, dtype, gloo_has_it):
    rank, size = pair.rank, pair.size
    last = size - 1

    def broadcast(group):
        tensor = values(shape, dtype, rank)
        dist.broadcast(tensor, src=last, group=group)
        return [tensor]

    def all_gather(group):
        outputs = [torch.zeros(shape, dtype=dtype) for _ in range(size)]
        dist.all_gather(outputs, values(shape, dtype, rank), group=group)
        return outputs

    def all_gather_into_tensor(group):
        output = torch.zeros((size * shape[0], *shape[1:]), dtype=dtype)
        dist.all_gather_into_tensor(output, values(shape, dtype, rank), group=group)
        return [output]

    def gather(group):
        outputs = [torch.zeros(shape, dtype=dtype) for _ in range(size)] if rank == last else None
        dist.gather(values(shape, dtype, rank), outputs, dst=last, group=group)
        return outputs or []

    def scatter(group):
        output = torch.zeros(shape, dtype=dtype)
        inputs = [values(shape, dtype, rank, seed) for seed in range(size)] if rank == last else None
        dist.scatter(output, inputs, src=last, group=group)
        return [output]

    def all_to_all_single(group):
        # Rank r sends r + target + 1 rows to `target`.
        sent = [rank + target + 1 for target in range(size)]
        row = shape[1:] if len(shape) > 1 else (3,)
        output = torch.zeros((sum(sent), *row), dtype=dtype)
        dist.all_to_all_single(output, values((sum(sent), *row), dtype, rank), sent, sent, group=group)
        return [output]

    def send_recv(group):
        if size == 1:
            return []
        target, source = (rank + 1) % size, (rank - 1) % size
        output = torch.zeros(shape, dtype=dtype)
        request = dist.isend(values(shape, dtype, rank), target, group=group, tag=3)
        dist.recv(output, source, group=group, tag=3)
        request.wait()
        return [output]

    def all_to_all(group):
        outputs = [torch.zeros(shape, dtype=dtype) for _ in range(size)]
        dist.all_to_all(outputs, [values(shape, dtype, rank, seed) for seed in range(size)], group=group)
        return outputs

    expected = {
        broadcast: [values(shape, dtype, last)],
        all_gather: [values(shape, dtype, source) for source in range(size)],
        gather: [values(shape, dtype, source) for source in range(size)] if rank == last else [],
        scatter: [values(shape, dtype, last, rank)],
        all_to_all: [values(shape, dtype, source, rank) for source in range(size)],
        send_recv: [values(shape, dtype, (rank - 1) % size)] if size > 1 else [],
    }
    for call, results in expected.items():
        for ours, wanted in zip(call(pair.ours), results, strict=True):
            same(ours, wanted, f"{call.__name__} of {shape} {dtype}")
    if gloo_has_it:
        for call in (all_gather_into_tensor, all_to_all_single, broadcast, gather, scatter):
            pair.compare(f"{call.__name__} of {shape} {dtype}", call)


def reductions(pair, shape, dtype, op):
    rank, size = pair.rank, pair.size

    def all_reduce(group):
        tensor = values(shape, dtype, rank)
        dist.all_reduce(tensor, op, group=group)
        return [tensor]

    def reduce(group):
        tensor = values(shape, dtype, rank)
        dist.reduce(tensor, dst=size - 1, op=op, group=group)
        return [tensor] if rank == size - 1 else []

    def reduce_scatter_tensor(group):
        output = torch.zeros(shape, dtype=dtype)
        dist.reduce_scatter_tensor(output, values((size * shape[0], *shape[1:]), dtype, rank), op, group=group)
        return [output]

    def reduce_scatter(group):
        output = torch.zeros(shape, dtype=dtype)
        dist.reduce_scatter(output, [values(shape, dtype, rank, seed) for seed in range(size)], op, group=group)
        return [output]

    def coalesced(group):
        tensors = [values(shape, dtype, rank, seed) for seed in range(3)]
        tensors.append(tensors[0])  # given twice, reduced once
        dist.all_reduce_coalesced(tensors, op, group=group)
        return tensors

    calls = [all_reduce, reduce, reduce_scatter_tensor, reduce_scatter]
    if op == dist.ReduceOp.SUM:
        calls.append(coalesced)
    for call in calls:
        pair.compare(f"{call.__name__} of {shape} {dtype} {op}", call)


def strided(pair):
    rank, size = pair.rank, pair.size

    def transposed(group):
        tensor = values((6, 5), torch.float32, rank).t()
        dist.all_reduce(tensor, group=group)
        return [tensor]

    def strides_differ(group):
        """The same values on ranks whose strides differ."""
        plain = values((6, 5), torch.float32, rank)
        tensor = plain if rank == 0 else plain.t().contiguous().t()
        dist.all_reduce(tensor, group=group)
        return [tensor]

    def with_gaps(group):
        tensor = values((8, 6), torch.int64, rank)[::2, ::3]
        outputs = [torch.zeros(4, 4, dtype=torch.int64)[:, ::2] for _ in range(size)]
        dist.all_gather(outputs, tensor, group=group)
        return outputs

    # Gloo takes none of these, so what it gives for contiguous tensors is expected.
    for call, shape in ((transposed, (6, 5)), (strides_differ, (6, 5))):
        expected = values(shape, torch.float32, rank)
        dist.all_reduce(expected, group=pair.gloo)
        got = call(pair.ours)[0]
        same(got.t() if call is transposed else got, expected, call.__name__)
    got = with_gaps(pair.ours)
    for source in range(size):
        same(got[source], values((8, 6), torch.int64, source)[::2, ::3], "all_gather with gaps")
    conjugate = values((5,), torch.complex64, rank).conj()
    backend = pair.ours._get_backend(torch.device("cpu"))
    backend.broadcast([conjugate], torch._C._distributed_c10d.BroadcastOptions()).wait()
    same(conjugate.resolve_conj(), values((5,), torch.complex64, 0).conj().resolve_conj(), "broadcast of a conjugate")


def sparse(pair):
    def all_reduce(group):
        rows = 2 if pair.rank % 2 == 0 else 0
        indices = torch.tensor([[0, 3][:rows]], dtype=torch.int64)
        tensor = torch.sparse_coo_tensor(
            indices.view(1, -1), torch.ones(rows, 2) + pair.rank, (5, 2), check_invariants=True
        )
        dist.all_reduce(tensor, group=group)
        return [tensor.to_dense()]

    pair.compare("sparse all_reduce", all_reduce)


def resident_bytes():
    with open("/proc/self/statm", encoding="utf-8") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def coalescing(pair):
    size = pair.size
    backend = pair.ours._get_backend(torch.device("cpu"))
    try:  # A batch that an error leaves open keeps nothing of the calls after it, and is forgotten.
        with dist._coalescing_manager(device=torch.device("cpu")):
            raise KeyError
    except KeyError:
        pass
    before = resident_bytes()
    for _ in range(400):
        dist.broadcast(torch.ones(1 << 18), src=0)
    grown = resident_bytes() - before
    assert grown < 200 << 20, f"{grown >> 20} MB more after 400 broadcasts of 1 MB"
    tensors = [values((9,), torch.float32, pair.rank, seed) for seed in range(3)]
    expected = [sum(values((9,), torch.float32, rank, seed) for rank in range(size)) for seed in range(3)]
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    for tensor, wanted in zip(tensors, expected, strict=True):
        same(tensor, wanted, "coalesced all_reduce")
    outputs = [torch.zeros(size * 4), torch.zeros(size * 2)]
    inputs = [values((4,), torch.float32, pair.rank), values((2,), torch.float32, pair.rank)]
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        for output, tensor in zip(outputs, inputs, strict=True):
            dist.all_gather_into_tensor(output, tensor)
    manager.wait()
    for output, count in zip(outputs, (4, 2), strict=True):
        same(output, torch.cat([values((count,), torch.float32, rank) for rank in range(size)]), "coalesced all_gather")
    if size > 1:
        target, source = (pair.rank + 1) % size, (pair.rank - 1) % size
        received = torch.zeros(5)
        operations = [
            dist.P2POp(dist.isend, values((5,), torch.float32, pair.rank), target),
            dist.P2POp(dist.irecv, received, source),
        ]
        before = backend._get_sequence_number_for_group()
        for request in dist.batch_isend_irecv(operations):
            request.wait()
        assert backend._get_sequence_number_for_group() == before  # others may take no part
        same(received, values((5,), torch.float32, source), "batch_isend_irecv")


def from_any(pair):
    """Each other rank sends rank 0 two messages, of which some come while rank 0 receives the other tag."""
    global checks
    count = pair.size - 1
    for tag, shape in ((5, (0,)), (7, (5,)), (9, (200_003,))):  # the larger one takes several chunks
        if pair.rank != 0:
            dist.send(values(shape, torch.float32, pair.rank), 0, tag=tag)
            continue
        seen = set()
        for _ in range(count):
            received = torch.zeros(shape)
            source = dist.recv(received, tag=tag)
            same(received, values(shape, torch.float32, source), "recv from any rank")
            seen.add(source)
        assert seen == set(range(1, pair.size)), seen
    # Receives match in the order of their calls, whether they name the rank or not.
    if pair.size > 1 and pair.rank == 1:
        for number in range(3):
            dist.send(torch.full((2,), float(number)), 0, tag=8)
    elif pair.size > 1 and pair.rank == 0:
        received = [torch.zeros(2) for _ in range(3)]
        requests = [dist.irecv(received[0], 1, tag=8), dist.irecv(received[1], tag=8), dist.irecv(received[2], 1, tag=8)]
        for request in requests:
            request.wait()
        for number in range(3):
            same(received[number], torch.full((2,), float(number)), "order of receives")
            assert requests[number]._source_rank() == 1
    dist.barrier()


def refused(pair):
    """Mistakes are errors of the rank that makes them, before anything is sent."""
    global checks
    group, tensor = pair.ours, torch.ones(3)
    backend = group._get_backend(torch.device("cpu"))
    c10d = torch._C._distributed_c10d

    def rooted(options, root):
        options.rootRank = root
        return options

    mistakes = {
        "broadcast from rank 9": lambda: backend.broadcast([tensor], rooted(c10d.BroadcastOptions(), 9)),
        "reduce to rank -1": lambda: backend.reduce([tensor], rooted(c10d.ReduceOptions(), -1)),
        "scatter from rank 9": lambda: backend.scatter([tensor], [], rooted(c10d.ScatterOptions(), 9)),
        "gather to rank 9": lambda: backend.gather([], [tensor], rooted(c10d.GatherOptions(), 9)),
        "two tensors": lambda: backend.allreduce([tensor, tensor]),
        "too few outputs": lambda: backend.allgather([[tensor] * (pair.size + 1)], [tensor]),
        "other dtype": lambda: backend.allgather([[torch.ones(3, dtype=torch.int32)] * pair.size], [tensor]),
        "other shape": lambda: backend.allgather([[torch.ones(3, 1)] * pair.size], [tensor]),
        "send to itself": lambda: backend.send([tensor], pair.rank, 0),
        "maximum of complex numbers": lambda: backend.allreduce([torch.ones(2, dtype=torch.complex64)], dist.ReduceOp.MAX),
        "sparse broadcast": lambda: backend.broadcast([tensor.to_sparse()], c10d.BroadcastOptions()),
    }
    for what, call in mistakes.items():
        try:
            call()
        except RuntimeError as error:
            assert "\n" not in str(error).strip(), f"{what}: {error}"
            checks += 1
        else:
            raise AssertionError(f"{what} was accepted")


def works(pair):
    """What a Work tells, and calls that nobody waits for."""
    global checks
    tensor = torch.ones(5)
    work = dist.all_reduce(tensor, async_op=True)
    assert work.wait()
    assert work.is_completed() and work.is_success() and work.exception() is None
    future = dist.all_reduce(torch.ones(4), async_op=True).get_future()
    doubled = future.then(lambda done: done.value()[0] * 2)
    same(doubled.wait(), torch.full((4,), 2.0 * pair.size), "future.then")
    outputs = [torch.zeros(2) for _ in range(pair.size)]
    work = dist.all_gather(outputs, torch.full((2,), float(pair.rank)), async_op=True)
    work.wait()
    assert len(work.result()) == pair.size if pair.size > 1 else True
    backend = pair.ours._get_backend(torch.device("cpu"))
    before = backend._get_sequence_number_for_group()
    dist.barrier()
    assert backend._get_sequence_number_for_group() == before + 1
    assert backend.name() == "lockstep" and backend.options.backend == "lockstep"
    objects = [None] * pair.size
    dist.all_gather_object(objects, {"rank": pair.rank})
    assert objects == [{"rank": rank} for rank in range(pair.size)]
    scattered = [None]
    dist.scatter_object_list(scattered, [{"for": rank} for rank in range(pair.size)] if pair.rank == 0 else None, src=0)
    assert scattered == [{"for": pair.rank}]
    lockstep_torch.monitored_barrier(timeout=timedelta(seconds=60))
    shared = lockstep_torch.allocate_tensor(1000).fill_(1)
    dist.all_reduce(shared)
    same(shared, torch.full((1000,), float(pair.size)), "all_reduce in shared memory")
    groups = [dist.new_group([rank]) for rank in range(pair.size)]
    alone = torch.full((2,), float(pair.rank))
    dist.all_reduce(alone, group=groups[pair.rank])
    same(alone, torch.full((2,), float(pair.rank)), "a group of one rank")
    checks += 4


def inference(pair):
    """Results are written while the program computes, too, to tensors of inference mode that are no whole memory."""
    with torch.inference_mode():
        outputs = [torch.ones(5, 3).t(), torch.ones(7)]
        started = [dist.all_reduce(outputs[0], async_op=True).get_future(),
                   dist.all_reduce_coalesced(outputs[1:], async_op=True)]
        for future, output in zip(started, outputs):
            while not future.done():
                pass
            future.wait()
            same(output, torch.full_like(output, pair.size), "all_reduce in inference mode")


def dropped(pair):
    """Results arrive without a wait, also those of a backward pass that are copied to where they belong."""
    outputs = [torch.zeros(5, 3).t() for _ in range(pair.size)]
    leaf = torch.ones(1, requires_grad=True)
    own = values((3, 5), torch.float32, pair.rank)
    leaf.register_hook(lambda _: dist.all_gather(outputs, own, async_op=True) and None)
    leaf.sum().backward()
    end = time.monotonic() + 30
    for source in range(pair.size):
        expected = values((3, 5), torch.float32, source)
        while not torch.equal(outputs[source], expected):
            assert time.monotonic() < end, f"rank {pair.rank} did not get the tensor of rank {source}"


def in_call(pair):
    """Calls that are not asynchronous are complete when they return; PyTorch gets no work of them."""
    global checks
    backend = pair.ours._get_backend(torch.device("cpu"))
    options = torch._C._distributed_c10d.AllreduceOptions()
    options.asyncOp = False
    for tensor in (torch.ones(4), torch.ones(3, 2).t()):
        assert backend.allreduce([tensor], options) is None
        same(tensor, torch.full_like(tensor, pair.size), "all_reduce in the call")
    with torch.autograd.profiler.profile() as profile:
        dist.all_reduce(torch.ones(4))
    assert [event for event in profile.function_events if event.name == "lockstep:all_reduce"]
    with functional_collectives.allow_inflight_collective_as_graph_input_ctx():
        tensor = torch.ones(4)
        dist.all_reduce(tensor)
        same(tensor, torch.full((4,), float(pair.size)), "all_reduce whose work may be an input of a graph")
    assert torch._C._distributed_c10d._get_work_registry_size() == 0
    checks += 4


def main():
    dist.init_process_group("lockstep", timeout=timedelta(seconds=120))
    pair = Pair()
    for shape, dtype in itertools.product(SIZES, MOVED):
        moves(pair, shape, dtype, dtype in REDUCED)
    for shape, dtype, op in itertools.product(SIZES, REDUCED, OPS):
        reductions(pair, shape, dtype, op)
    strided(pair)
    sparse(pair)
    coalescing(pair)
    from_any(pair)
    refused(pair)
    works(pair)
    inference(pair)
    dropped(pair)
    in_call(pair)
    dist.barrier()
    print(f"rank {pair.rank}: {checks} results as from Gloo", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
