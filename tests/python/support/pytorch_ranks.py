"""Ranks of PyTorch, the oracle of tests."""

import multiprocessing

import torch.multiprocessing as mp


def run_pytorch_ranks(function, arguments, world_size, start_method="fork"):
    """Calls function(rank, *arguments) in a process of each rank, which find PyTorch imported: that takes 2 s of
    processor time. Who has called backward(), or computed with several threads, forks a "forkserver" instead."""
    multiprocessing.set_forkserver_preload(["torch", "torch.distributed.checkpoint", "torch.distributed.fsdp"])
    mp.start_processes(function, arguments, nprocs=world_size, start_method=start_method)
