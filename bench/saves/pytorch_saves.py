#!/usr/bin/env python3
"""The same as main.cpp by PyTorch: DistributedDataParallel over Gloo, fused AdamW, and
torch.distributed.checkpoint.async_save.

    lockstep run --standalone --nproc-per-node=2 pytorch_saves.py FOLDER SAVES WIDTH
"""
import json
import os
import shutil
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

LAYERS = 6
BATCH = 4


def main():
    folder, saves, width = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    dist.init_process_group("gloo")
    cpus = sorted(os.sched_getaffinity(0))
    if dist.get_world_size() <= len(cpus):
        os.sched_setaffinity(0, {cpus[dist.get_rank()]})
    torch.set_num_threads(1)
    # The writing thread's collectives: in the group of the gradients they would meet those of another rank's backward.
    writers = dist.new_group(backend="gloo")
    net = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(LAYERS)))
    model = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    inputs = torch.randn(BATCH, width)

    def step():
        begin = time.monotonic()
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        return (time.monotonic() - begin) * 1e3

    for _ in range(3):
        step()
    rows = []
    for number in range(saves):
        dist.barrier()
        before = [step(), step()]
        dist.barrier()
        begin, begin_cpu = time.monotonic(), time.thread_time()
        written = dcp.async_save({"model": net.state_dict(), "optimizer": optimizer.state_dict()},
                                 checkpoint_id=os.path.join(folder, f"step-{number}"), process_group=writers)
        stall = (time.monotonic() - begin) * 1e3
        stall_cpu = (time.thread_time() - begin_cpu) * 1e3
        after = [step(), step()]
        written.result()
        write = (time.monotonic() - begin) * 1e3
        figures = torch.tensor([*before, stall, *after, write, stall_cpu], dtype=torch.float64)
        dist.all_reduce(figures, dist.ReduceOp.MAX)
        figures = figures.tolist()
        rows.append({"before": figures[:2], "stall": figures[2], "after": figures[3:5], "write": figures[5],
                     "stall_cpu": figures[6]})
        if dist.get_rank() == 0:
            shutil.rmtree(os.path.join(folder, f"step-{number}"))
    if dist.get_rank() == 0:
        print(json.dumps(rows), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
