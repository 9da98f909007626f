"""A program as torchrun starts it: joins the job through the environment and sums the ranks."""
import os

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank())])
dist.all_reduce(total)
assert dist.is_torchelastic_launched()
print(f"rank {os.environ['RANK']} of {dist.get_world_size()}: sum {total.item():.0f}", flush=True)
os._exit(0)  # PyTorch's Gloo sometimes aborts in the interpreter's end.
