#!/usr/bin/env python3
"""Trains tasks in logical shards on several numbers of ranks, backends and machines, and while ranks are killed and the
job is resized; compares the bits at the end with those of one process that sums the shards itself, with LibTorch alone.

    bench/same_bits/run.py --build=build/release --json=same_bits.json
    bench/same_bits/run.py --build=build/release --cost

Jobs: shm on 1, 2, 3, 4 and 8 ranks, gloo on 2 and 3, two machines of two ranks in network namespaces (needs root and
iproute2), and three ranks over shm and gloo of which random ones are killed, and whose number changes. An epoch has
seven steps, the last of three samples. --cost: a step with logical shards beside the same step without them, or with as
many accumulated batches, in turns in the same processes.
"""
import argparse
import contextlib
import json
import os
import pathlib
import random
import signal
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "bench/recovery"))
sys.path.append(str(ROOT / "tests/python"))
from heard_job import HeardJob, PATIENCE_S  # noqa: E402
from missing import Missing  # noqa: E402
from network_namespaces import TwoMachines  # noqa: E402

TASKS = ("digits", "mingpt_dropout", "resnet18")
STEPS_PER_EPOCH = 7
MOST_RANKS = 4  # of a job that is resized
PAUSE_S = 0.15


class Job(HeardJob):
    """Who is which rank of the generation that runs, and with which bits ranks end."""

    def __init__(self, command, **variables):
        self.pids, self.ends, self.ranks, self.steps = {}, set(), 0, set()
        super().__init__(command, **variables)

    def note(self, pid, what, words):
        if what == "rank":
            if int(words[2]) != self.ranks:
                self.pids, self.ranks = {}, int(words[2])
            self.pids[int(words[0])] = pid
        elif what == "step":
            self.steps.add(int(words[0]))
        elif what == "ends":
            self.ends.add(words[-1])

    def is_whole(self):
        return len(self.pids) == self.ranks > 0

    def bits(self):
        code = self.end(PATIENCE_S * 10)
        if code != 0 or len(self.ends) != 1:
            sys.exit(f"a job ended with exit code {code} and the bits {self.ends}:\n{self.text()}")
        return self.ends.pop()


def run_job(arguments, task, ranks, backend):
    command = [arguments.binaries / "lockstep", "run", "--standalone", f"--nproc-per-node={ranks}",
               arguments.binaries / "same_bits", "train", task, arguments.shards, arguments.epochs]
    with contextlib.closing(Job(command, LOCKSTEP_BACKEND=backend)) as job:
        return job.bits()


def run_on_two_machines(arguments, task):
    program = [arguments.binaries / "same_bits", "train", task, arguments.shards, arguments.epochs]
    with TwoMachines() as machines:
        jobs = [Job(command) for command in machines.launchers(arguments.binaries / "lockstep", 2, program)]
        try:
            bits = {job.bits() for job in jobs}
        finally:
            for job in jobs:
                job.close()
    if len(bits) != 1:
        sys.exit(f"the machines ended with the bits {bits}")
    return bits.pop()


def run_disturbed(arguments, task, backend, disturbances):
    """(the bits, kills, resizes). A resize now and then; else a rank is killed, or two of more than two."""
    dice = random.Random(f"{arguments.seed} {task} {backend}")
    lockstep = arguments.binaries / "lockstep"
    command = [lockstep, "run", "--standalone", "--nproc-per-node=3", "--max-restarts=100000",
               arguments.binaries / "same_bits", "train", task, arguments.shards, arguments.epochs]
    kills = resizes = 0
    with contextlib.closing(Job(command, LOCKSTEP_BACKEND=backend)) as job:
        for _ in range(disturbances):
            if not job.go_on_until(job.is_whole, PATIENCE_S):
                break  # It has ended.
            job.listen(dice.uniform(0, PAUSE_S))
            if dice.random() < 0.2:
                wanted = dice.choice([ranks for ranks in range(1, MOST_RANKS + 1) if ranks != job.ranks])
                done = subprocess.run([lockstep, "scale", str(job.process.pid), str(wanted)], capture_output=True,
                                      text=True, check=False)
                resizes += done.returncode == 0
                job.go_on_until(lambda: job.ranks == wanted and job.is_whole(), PATIENCE_S)
                continue
            count = min(job.ranks - 1, dice.choice([1, 1, 1, 2]))
            for rank in dice.sample(sorted(job.pids), count):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(job.pids.pop(rank), signal.SIGKILL)
                    kills += 1
        return job.bits(), kills, resizes


def rows_of(arguments, task):
    oracle = [arguments.binaries / "same_bits", "oracle", task, arguments.shards, arguments.epochs]
    with contextlib.closing(Job(oracle)) as job:
        yield "one process, LibTorch alone", job.bits()
    for ranks in (1, 2, 3, 4, 8):
        yield f"shm, {ranks} ranks", run_job(arguments, task, ranks, "shm")
    for ranks in (2, 3):
        yield f"gloo, {ranks} ranks", run_job(arguments, task, ranks, "gloo")
    try:
        yield "hierarchical, 2 machines of 2 ranks", run_on_two_machines(arguments, task)
    except Missing as missing:
        yield f"hierarchical, 2 machines of 2 ranks: {missing}", None
    for backend in ("shm", "gloo"):
        bits, kills, resizes = run_disturbed(arguments, task, backend, arguments.disturbances)
        yield f"{backend}, {kills} kills, {resizes} resizes", bits


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=143, help="of seven steps each (default 143: 1,001 steps)")
    parser.add_argument("--disturbances", type=int, default=100, help="kills and resizes of each disturbed job")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cost", action="store_true", help="measure what it costs, and nothing else")
    parser.add_argument("--ranks", type=int, default=2, help="of --cost")
    parser.add_argument("--turns", type=int, default=9, help="of --cost")
    parser.add_argument("--steps", type=int, default=50, help="of each turn")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    arguments.binaries = arguments.build.resolve() / "bin"
    tasks = arguments.tasks.split(",")
    if arguments.cost:
        for task in tasks:
            subprocess.run([arguments.binaries / "lockstep", "run", "--standalone", f"--nproc-per-node={arguments.ranks}",
                            arguments.binaries / "same_bits", "cost", task, str(arguments.turns), str(arguments.steps)],
                           check=True)
        return 0
    found, differs = [], False
    for task in tasks:
        expected = None
        for job, bits in rows_of(arguments, task):
            expected = expected or bits
            differs = differs or bits not in (None, expected)
            found.append({"task": task, "steps": arguments.epochs * STEPS_PER_EPOCH, "job": job, "bits": bits})
            print(f"{task:15} {arguments.epochs * STEPS_PER_EPOCH:5} steps  {bits or '':>20}  {job}"
                  + ("" if bits in (None, expected) else "  DIFFERS"), flush=True)
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 1 if differs else 0


if __name__ == "__main__":
    sys.exit(main())
