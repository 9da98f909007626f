"""PyTorch's side of ddp_features.py: each case is what tests/workers/features_worker.cpp does under
the same name, with torch.nn.parallel.DistributedDataParallel.

A case gives tensors by name to its rank's results. Some are what one process makes of the batches of
all ranks, where PyTorch's DistributedDataParallel has another idea of it or refuses.
"""

import os
import random
import sys
import types
import unittest.mock
import warnings

import torch
import torch._dynamo  # Here, once: each process would, for as long as all cases take.
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, quantization_hooks
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as post_local
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.nn.parallel import DistributedDataParallel

from ddp_features_modules import Branches, Complex, Dtypes, Lookup, Mlp, Normed, Stack, Tied
from ddp_features_run import CASES, LEARNING_RATE, Run, case, indices_of, inputs_of, loss_of


class RandomState(random.Random):
    """All that PyTorch's PowerSGD wants of NumPy: seeds."""

    def randint(self, end):
        return self.randrange(end)


SEEDS = {"numpy": types.SimpleNamespace(random=types.SimpleNamespace(RandomState=RandomState))}


def all_gather(outputs, tensor, group, async_op):
    """With what the hooks expect of its future, which neither Gloo nor the other one gives."""
    dist.all_gather(outputs, tensor, group=group)
    future = torch.futures.Future()
    future.set_result([torch.stack(outputs)])
    return types.SimpleNamespace(get_future=lambda: future)


quantization_hooks.dist = types.SimpleNamespace(group=dist.group, get_rank=dist.get_rank,
                                                all_gather=all_gather)


@case
def plain(run):
    run.train("plain", run.wrap(Mlp()), run.plain_step)
    # Copies otherwise, to the same end.
    run.train("batched_grad_copy", run.wrap(Mlp(), batched_grad_copy=True), run.plain_step)


@case
def buckets(run):
    run.train("buckets/cap", run.wrap(Mlp(), bucket_cap_mb=1e-4), run.plain_step)
    run.train("buckets/list", run.wrap(Mlp(), bucket_cap_mb_list=[1e-5, 2e-4]), run.plain_step)


@case
def views(run):
    for view in (False, True):
        model = run.wrap(Mlp(), gradient_as_bucket_view=view)
        run.train(f"views/{int(view)}", model, run.plain_step, set_to_none=False)


@case
def frozen(run):
    module = run.load(Mlp())
    module.second.requires_grad_(False)
    run.train("frozen", DistributedDataParallel(module), run.plain_step)


@case
def init_sync(run):
    run.train("init_sync", run.wrap(Mlp(), init_sync=False), run.plain_step)


@case
def shared(run):
    run.train("shared", run.wrap(Tied()),
              lambda model, step: loss_of(model(indices_of(run.rank, step, 11))).backward())


@case
def dtypes(run):
    run.train("dtypes", run.wrap(Dtypes()), run.plain_step)


@case
def complex(run):
    run.train("complex", run.wrap(Complex()), run.plain_step)


@case
def sparse(run):
    run.train("sparse", run.wrap(Lookup()),
              lambda model, step: loss_of(model(indices_of(run.rank, step, 13, 2 + run.rank))).backward())


@case
def ignored(run):
    module = run.load(Normed())
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
        module, ["last.bias", "norm.running_mean"])
    run.train("ignored", DistributedDataParallel(module), run.plain_step)


@case
def delayed(run):
    module = run.load(Mlp())
    names = ["last.bias", "second.weight"]
    model = DistributedDataParallel(
        module, delay_all_reduce_named_params=[(n, module.get_parameter(n)) for n in names],
        param_to_hook_all_reduce=module.first.weight)

    def step_of(model, step):
        run.plain_step(model, step)
        dist.barrier()  # PyTorch does not wait for the delayed all-reduce.

    run.train("delayed", model, step_of)


@case
def buffers(run):
    run.train("buffers/on", run.wrap(Normed()), run.plain_step)
    run.train("buffers/off", run.wrap(Normed(), forward_sync_buffers=False), run.plain_step)
    run.train("buffers/own", run.wrap(Normed(), broadcast_buffers=False), run.plain_step)


def accumulate(run, model, step):
    with model.no_sync():
        for micro in range(2):
            run.plain_step(model, step + 10 * micro)
    run.plain_step(model, step + 20)


@case
def no_sync(run):
    run.train("no_sync", run.wrap(Mlp()), lambda model, step: accumulate(run, model, step))
    # PyTorch refuses it in the first step of a static graph.
    run.refuses("no_sync in the first step of a static graph", lambda: accumulate(
        run, run.wrap(Stack(), static_graph=True), 0))
    run.train("no_sync/static", run.wrap(Stack(), find_unused_parameters=True),
              lambda model, step: accumulate(run, model, step))


@case
def passes(run):
    def forwards(model, step):
        (loss_of(model(run.inputs(step))) + loss_of(model(run.inputs(step + 7)))).backward()

    def backwards(model, step):
        run.plain_step(model, step)
        run.plain_step(model, step + 7)

    run.train("passes/forwards", run.wrap(Mlp()), forwards)
    run.train("passes/backwards", run.wrap(Mlp()), backwards)


def branch_step(run):
    return lambda model, step: loss_of(
        model(run.inputs(step), (run.rank + step) % 2)[1]).backward()


@case
def unused(run):
    run.train("unused", run.wrap(Branches(), find_unused_parameters=True), branch_step(run), steps=4)
    def outside(model, step):
        (loss_of(model(run.inputs(step))) * model.module.unused.sum()).backward()

    # With the option PyTorch refuses what does not come from the outputs of forward.
    run.train("outside", run.wrap(Stack()), outside)
    found = run.wrap(Stack(), find_unused_parameters=True)
    run.refuses("parameters used outside of forward", lambda: outside(found, 0))
    # Without the option PyTorch refuses the second forward.
    model = run.wrap(Stack())
    run.refuses("unused parameters without an option", lambda: [
        run.plain_step(model, step) for step in range(2)])


@case
def static_graph(run):
    run.train("static_graph/plain", run.wrap(Stack(2), static_graph=True), run.plain_step)
    run.train("static_graph/checkpoint", run.wrap(Stack(3, True), static_graph=True), run.plain_step)
    run.train("skip_all_reduce_unused_params",
              run.wrap(Stack(2), find_unused_parameters=True, skip_all_reduce_unused_params=True),
              run.plain_step)
    # Without static_graph PyTorch refuses a part that is recomputed several times.
    model = run.wrap(Stack(3, True))
    run.refuses("checkpoints without static_graph", lambda: run.plain_step(model, 0))


def with_hook(run, hook, state=None, module=None):
    model = run.wrap(module or Mlp())
    model.register_comm_hook(state, hook)
    return model


@case
def hooks(run):
    def fp16(state, bucket):
        return default_hooks.fp16_compress_hook(state, bucket)

    def bf16(state, bucket):  # By its own name PyTorch takes it only with devices.
        return default_hooks.bf16_compress_hook(state, bucket)

    def noop(state, bucket):
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    for name, hook in {"all_reduce": default_hooks.allreduce_hook, "fp16": fp16, "bf16": bf16,
                       "noop": noop}.items():
        run.train(f"hooks/{name}", with_hook(run, hook), run.plain_step)
    # No rank has a gradient for one of the parameters; some have none in some steps.
    model = run.wrap(Branches(), find_unused_parameters=True)
    model.register_comm_hook(None, default_hooks.allreduce_hook)
    run.train("hooks/unused", model, branch_step(run), steps=4)
    # The first step alone: later ones amplify what rounding does.
    run.train("hooks/per_tensor", with_hook(run, quantization_hooks.quantization_pertensor_hook),
              run.plain_step, steps=1)
    run.train("hooks/per_channel", with_hook(run, quantization_hooks.quantization_perchannel_hook),
              run.plain_step, steps=1)


def power_state(rank, min_compression_rate=2):
    with unittest.mock.patch.dict(sys.modules, SEEDS):
        return power_sgd.PowerSGDState(None, rank, start_powerSGD_iter=2,
                                       min_compression_rate=min_compression_rate)


def last_loss(run, model):
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    for _ in range(20):
        optimizer.zero_grad()
        loss = loss_of(model(run.inputs(0)))
        loss.backward()
        optimizer.step()
    return loss


@case
def power(run):
    model = with_hook(run, power_sgd.powerSGD_hook, power_state(9, 1e-3))
    run.train("power/full", model, run.plain_step, steps=4)
    model = with_hook(run, power_sgd.powerSGD_hook, power_state(1))
    run.add("power/low/loss", last_loss(run, model))
    model = with_hook(run, power_sgd.batched_powerSGD_hook, power_state(1))
    run.refuses("batched PowerSGD", lambda: last_loss(run, model))


@case
def local_sgd(run):
    pairs = [dist.new_group(list(range(first, min(first + 2, run.world_size))))
             for first in range(0, run.world_size, 2)]
    state = post_local.PostLocalSGDState(None, pairs[run.rank // 2], start_localSGD_iter=2)
    model = with_hook(run, post_local.post_localSGD_hook, state)
    averager = PeriodicModelAverager(period=3, warmup_steps=2)
    run.train("local_sgd", model, run.plain_step, steps=7,
              after_step=lambda: averager.average_parameters(model.parameters()))


# Rank r has this many batches, of so many rows each.
BATCHES = (2, 4, 0, 1)


def rows_of(rank, step):
    return 2 + (3 * rank + step) % 4 if step < BATCHES[rank] else 0


def most_batches(run):
    return max(BATCHES[:run.world_size])


def join_plainly(run, name, model):
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    with model.join(divide_by_initial_world_size=False):
        for step in range(BATCHES[run.rank]):
            optimizer.zero_grad()
            model(run.inputs(step, rows_of(run.rank, step))).square().mean().backward()
            run.add_gradients(f"{name}/{step}", model.module)
            optimizer.step()
    run.add_state(name, model.module)


@case
def join(run):
    join_plainly(run, "join/plain", run.wrap(Mlp()))
    # Hooks divide by the number of ranks, with or without data.
    join_plainly(run, "wrong/join_with_hook", with_hook(run, default_hooks.allreduce_hook))

    # Two batches a step; rank 0 has but the first one, which PyTorch forgets.
    model = run.wrap(Mlp())
    with model.join(divide_by_initial_world_size=False):
        with model.no_sync():
            run.plain_step(model, 0)
        if run.rank > 0:
            run.plain_step(model, 1)
    if run.world_size > 1:
        run.add_gradients("wrong/join_with_accumulation", model.module)
    whole = run.one_process(Mlp())
    batches = [inputs_of(rank, step) for rank in range(run.world_size) for step in range(2)
               if step == 0 or rank > 0]
    (loss_of(whole(torch.cat(batches))) / len(batches)).backward()
    run.add_gradients("join/accumulation", whole)

    # A mean over samples PyTorch has not: one process on what all ranks have.
    whole = run.one_process(Mlp())
    optimizer = torch.optim.SGD(whole.parameters(), lr=LEARNING_RATE)
    for step in range(most_batches(run)):
        optimizer.zero_grad()
        whole(run.all_inputs(step, lambda rank: rows_of(rank, step))).square().mean().backward()
        optimizer.step()
    run.add_state("join/weighted", whole)


@case
def weighted(run):
    def step_of(model, step):
        batches = [inputs_of(rank, step + micro, 1 + rank + micro)
                   for rank in range(run.world_size) for micro in range(2)]
        model(torch.cat(batches)).square().mean().backward()

    run.train("weighted", run.one_process(Mlp()), step_of)


@case
def sync_batch_norm(run):
    def refused():
        model = DistributedDataParallel(nn.SyncBatchNorm.convert_sync_batchnorm(run.load(Normed())))
        model(run.inputs(0))

    run.refuses("SyncBatchNorm on the CPU", refused)
    rows = lambda rank: 2 + rank
    run.train("sync_batch_norm", run.one_process(Normed()),
              lambda model, step: model(run.all_inputs(step, rows)).square().mean().backward())


def penalize(model, x):
    """Differentiates what was exchanged."""
    model(x).square().mean().backward(create_graph=True)
    parameters = [p for p in model.parameters()]
    penalty = sum(p.grad.pow(3).sum() for p in parameters)
    for p in parameters:
        p.grad = None
    penalty.backward()


@case
def double_backward(run):
    model = run.wrap(Mlp())
    run.refuses("double backward", lambda: penalize(model, run.inputs(0)))
    run.train("double_backward", run.one_process(Mlp()),
              lambda model, step: penalize(model, run.all_inputs(step)), steps=1)


@case
def refusals(run):
    module = Mlp().requires_grad_(False)
    run.refuses("nothing to train", lambda: DistributedDataParallel(module))
    module = Mlp()
    run.refuses("delayed parameters without one to follow", lambda: DistributedDataParallel(
        module, delay_all_reduce_named_params=[("last.bias", module.last.bias)]))


def run_rank(rank, world_size, folder):
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store.{world_size}", rank=rank,
                            world_size=world_size)
    run = Run(rank, world_size, folder)
    for function in CASES.values():
        function(run)
    torch.save(run.results, f"{folder}/pytorch.{world_size}.{rank}")
    dist.barrier()
    # Past PyTorch's own clean-up, in which a thread of its sometimes ends the process.
    os._exit(0)
