"""One rank of a job by torchrun, whose store outlives the groups: each life of the default group is a new one."""

import sys
from datetime import timedelta

import torch
import torch.distributed as dist

import lockstep_torch


def communicate(life):
    rank, size = dist.get_rank(), dist.get_world_size()
    tensor = torch.full((5,), float(rank + life))
    dist.all_reduce(tensor)
    assert torch.equal(tensor, torch.full((5,), float(sum(range(size)) + size * life)))
    lockstep_torch.monitored_barrier(timeout=timedelta(seconds=60))


def main():
    for life in range(3):
        dist.init_process_group("lockstep", timeout=timedelta(seconds=120))
        # Of another size in each life: groups of the same name.
        others = dist.new_group([0, 1] if life % 2 == 0 else None)
        communicate(life)
        if others is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.all_reduce(torch.ones(1), group=others)
        dist.destroy_process_group()
    # Nobody passes the barrier of this life by what the ranks left of those before.
    dist.init_process_group("lockstep", timeout=timedelta(seconds=120))
    if dist.get_rank() == 0:
        try:
            lockstep_torch.monitored_barrier(timeout=timedelta(seconds=1))
        except RuntimeError as error:
            assert "did not join" in str(error), error
        else:
            raise AssertionError("rank 0 passed the barrier alone")
    dist.barrier()
    print(f"rank {dist.get_rank()}: four lives", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
