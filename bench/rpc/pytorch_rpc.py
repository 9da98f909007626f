"""The other program that run.py times in turns: the same calls by torch.distributed.rpc.

    pytorch_rpc.py SIZE:CALLS...
"""
import json
import os
import sys
import time

import torch
import torch.distributed.rpc as rpc


def nothing():
    pass


def echo(tensor):
    return tensor


def call_once(tensor):
    if tensor.numel() == 0:
        rpc.rpc_sync("worker1", nothing)
    else:
        rpc.rpc_sync("worker1", echo, args=(tensor,))


def time_calls(size_bytes, calls):
    tensor = torch.ones(size_bytes, dtype=torch.uint8)
    for _ in range(3):
        call_once(tensor)
    times = []
    for _ in range(calls):
        begin = time.perf_counter()
        call_once(tensor)
        times.append((time.perf_counter() - begin) * 1e6)
    return times


def main():
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
    if rank == 0:
        plans = [tuple(map(int, plan.split(":"))) for plan in sys.argv[1:]]
        print(json.dumps({size: time_calls(size, calls) for size, calls in plans}), flush=True)
    rpc.shutdown()


if __name__ == "__main__":
    main()
