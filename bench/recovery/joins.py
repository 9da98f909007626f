#!/usr/bin/env python3
"""Lets a machine join a training, leave it (SIGTERM) and be lost (its launcher and worker are killed), again and again, and
times how long the machine that stays makes no step: from its last step before until its first one after.

    bench/recovery/joins.py --binaries=build/release/bin --jobs=10 --json=joins.json

Two launchers over loopback, a rank each, over gloo. The rank that stays must keep its process and lose no step. What the
one that joins needs before, from its command to the launchers' agreement, delays nobody and does not count.
"""
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import uuid

from heard_job import HeardJob

from jobs import (
    MARK, PATIENCE_S, free_port, machine, make_parser, marked_processes, percentile, seconds_now, write_figures)

EVENTS = ("joins", "leaves", "is lost")
BETWEEN_S = 0.3


class Staying(HeardJob):
    """The machine that stays: its one process, the steps it makes, and how long it made none when its world changed."""

    def __init__(self, command, **variables):
        self.pids = set()
        self.world_size = 0
        self.last_step = -1
        self.step_s = 0.0   # when it made the last one
        self.stall_s = None
        self.lost = []
        super().__init__(command, **variables)

    def note(self, pid, what, words):
        now_s = seconds_now()
        if what == "rank":
            self.pids.add(pid)
            self.world_size = int(words[2])
            self.begins_s = now_s
            self.stall_s = None
        elif what == "step":
            step = int(words[0])
            if self.stall_s is None and self.last_step >= 0:
                self.stall_s = now_s - self.step_s
                # A step that only another has completed is not made again here.
                if step not in (self.last_step, self.last_step + 1, self.last_step + 2):
                    self.lost.append((self.last_step, step))
            self.last_step, self.step_s = step, now_s

    def goes_on(self, world_size):
        """How long it made no step when the number of ranks became this one."""
        if not self.go_on_until(lambda: self.world_size == world_size and self.stall_s is not None, PATIENCE_S):
            sys.exit(f"it does not go on with {world_size} ranks:\n{self.text()}")
        stall_s = self.stall_s
        self.listen(BETWEEN_S)
        return stall_s


def command(arguments, port):
    return list(map(str, [
        arguments.binaries / "lockstep", "run", "--nnodes=1:2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}",
        "--rdzv-id=bench", "--rdzv-conf=last_call_timeout=1,keep_alive_interval=1", "--max-restarts=100000",
        "--nproc-per-node=1", arguments.binaries / "resilient_worker", 10**9, arguments.size, 0, 0, "", 1]))


def measure(arguments, stalls):
    """In a job of its own: a host that is lost three times has to cool down before it may join again."""
    port, secret = free_port(), uuid.uuid4().hex
    variables = {"LOCKSTEP_JOB_SECRET": secret, "LOCKSTEP_BACKEND": "gloo"}
    staying = Staying(command(arguments, port), **variables)
    with contextlib.closing(staying):
        if not staying.go_on_until(lambda: staying.last_step > 10, PATIENCE_S):
            sys.exit(f"the job did not start:\n{staying.text()}")
        for _ in range(2):
            for ends_by in ("leaves", "is lost"):
                mark = uuid.uuid4().hex
                other = subprocess.Popen(command(arguments, port), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                         stderr=subprocess.DEVNULL,
                                         env=os.environ | {"OMP_NUM_THREADS": "1", MARK: mark} | variables)
                stalls["joins"].append(staying.goes_on(2))
                if ends_by == "leaves":
                    other.terminate()
                else:
                    for pid in marked_processes(f"{MARK}={mark}"):
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                stalls[ends_by].append(staying.goes_on(1))
                other.wait(PATIENCE_S)
    if len(staying.pids) != 1:
        sys.exit(f"the rank that stays had {len(staying.pids)} processes")
    if staying.lost:
        sys.exit(f"steps were lost or made twice: {staying.lost}")

def main():
    parser = make_parser(__doc__, "lockstep and resilient_worker")
    parser.add_argument("--jobs", type=int, default=10, help="in each four machines join, two leave and two are lost (default 10)")
    parser.add_argument("--size", type=int, default=16, help="width of the network (default 16)")
    arguments = parser.parse_args()
    before = machine()
    stalls = {event: [] for event in EVENTS}
    for job in range(arguments.jobs):
        measure(arguments, stalls)
        if sys.stderr.isatty():
            print(f"\r{job + 1} of {arguments.jobs} jobs" + "\n" * (job + 1 == arguments.jobs), end="", file=sys.stderr)
    print(f"{'a machine':12}{'events':>8}{'ms':>10}{'p99':>10}{'max':>10}")
    rows = []
    for event, values in stalls.items():
        row = {"event": event, "events": len(values), "ms": 1e3 * statistics.median(values),
               "ms_p99": 1e3 * percentile(values, 0.99), "ms_max": 1e3 * max(values)}
        rows.append(row)
        print(f"{event:12}{row['events']:8}{row['ms']:10.0f}{row['ms_p99']:10.0f}{row['ms_max']:10.0f}")
    write_figures(arguments.json, benchmark="machines that come and go", machine=before, rows=rows)


if __name__ == "__main__":
    main()
