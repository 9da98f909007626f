"""How long a death takes to reach the survivors, over the backend shm: from the kill of rank 1 in
the middle of a collective to the error that each survivor's program catches.

Usage: bench/peer_death.py [--build=DIR] [--kills=N] [--held-bytes=N] [--json=FILE]

A row for each world size, collective and size of what the victim held: over all kills and
survivors the median and the longest time, in milliseconds. SHM_WORKER is built by target `tests`.
"""

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VICTIM = 1
LIMIT_MS = 5
# (ranks, collective, whether the victim holds memory)
CASES = [(2, "small", False), (3, "small", False), (4, "small", False),
         (2, "private", False), (2, "shared", False), (2, "small", True), (2, "private", True)]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(worker, world_size, action, held_bytes):
    port = free_port()
    return [subprocess.Popen(
        [worker, action, str(held_bytes)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True, env=os.environ | {
            "RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port), "LOCKSTEP_BACKEND": "shm"}) for rank in range(world_size)]


def kill_once(worker, world_size, action, held_bytes):
    """Milliseconds from the kill to each survivor's error."""
    ranks = start(worker, world_size, action, held_bytes)
    try:
        for rank in ranks:
            line = rank.stdout.readline().strip()
            if line != "running":
                sys.exit(f"a rank said {line!r} instead of 'running'")
        killed_ns = time.monotonic_ns()
        os.kill(ranks[VICTIM].pid, signal.SIGKILL)
        delays_ms = []
        for number, rank in enumerate(ranks):
            if number == VICTIM:
                continue
            error, instant_ns = rank.stdout.readline().split()
            if error != "PeerLost":
                sys.exit(f"rank {number} ended with {error}")
            delays_ms.append((int(instant_ns) - killed_ns) / 1e6)
        return delays_ms
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=f"{ROOT}/build/release")
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--held-bytes", type=int, default=2 << 30)
    parser.add_argument("--json", help="write the rows to this file too")
    options = parser.parse_args()
    worker = f"{options.build}/bin/shm_worker"
    rows = []
    print(f"{'ranks':>5}  {'all_reduce':<10}  {'held':>8}  {'median ms':>9}  {'max ms':>8}")
    for world_size, action, holds in CASES:
        held_bytes = options.held_bytes if holds else 0
        delays = [delay for _ in range(options.kills)
                  for delay in kill_once(worker, world_size, action, held_bytes)]
        row = {"ranks": world_size, "all_reduce": action, "held_bytes": held_bytes,
               "kills": options.kills, "ms": round(statistics.median(delays), 3),
               "ms_max": round(max(delays), 3),
               "within_limit": sum(delay <= LIMIT_MS for delay in delays) / len(delays)}
        rows.append(row)
        print(f"{world_size:>5}  {action:<10}  {held_bytes >> 20:>5} MB  {row['ms']:>9.3f}  "
              f"{row['ms_max']:>8.3f}", flush=True)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
