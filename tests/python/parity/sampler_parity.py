"""Compares the indices of lockstep::DistributedSampler with those of PyTorch's, case by case.

usage: sampler_parity.py <sampler_indices program>
"""

import itertools
import subprocess
import sys

from torch.utils.data import DistributedSampler


def cases():
    sizes = (0, 1, 2, 3, 7, 8, 10, 97, 1000)
    for size, replicas, shuffle, seed, epoch, drop_last in itertools.product(
        sizes, (1, 2, 3, 4, 11), (0, 1), (0, 5), (0, 1, 2), (0, 1)
    ):
        for rank in range(replicas):
            yield size, replicas, rank, shuffle, seed, epoch, drop_last
    # One beyond the sizes of a shuffle's fast paths, seeds beyond 32 bits.
    yield 200_003, 3, 2, 1, 1, 40, 0
    yield 97, 2, 1, 1, 2**40 + 3, 1000, 0
    yield 97, 2, 1, 1, 2**63 - 5, 3, 0


def expected(size, replicas, rank, shuffle, seed, epoch, drop_last):
    sampler = DistributedSampler(
        range(size), replicas, rank, bool(shuffle), seed, bool(drop_last)
    )
    sampler.set_epoch(epoch)
    return list(sampler)


def main(program):
    all_cases = list(cases())
    lines = "".join(" ".join(map(str, case)) + "\n" for case in all_cases)
    answer = subprocess.run(
        [program], input=lines, stdout=subprocess.PIPE, text=True, timeout=60, check=True
    ).stdout.splitlines()
    if len(answer) != len(all_cases):
        sys.exit(f"{len(all_cases)} cases were asked for, {len(answer)} answered")
    for case, line in zip(all_cases, answer):
        ours = [int(index) for index in line.split()]
        theirs = expected(*case)
        if ours != theirs:
            names = "size replicas rank shuffle seed epoch drop_last".split()
            what = ", ".join(f"{name} {value}" for name, value in zip(names, case))
            sys.exit(f"{what}:\n  Lockstep {ours[:20]}\n  PyTorch  {theirs[:20]}")
    print(f"{len(all_cases)} cases alike")


if __name__ == "__main__":
    main(*sys.argv[1:])
