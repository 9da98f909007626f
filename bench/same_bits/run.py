#!/usr/bin/env python3
"""Trains tasks in logical shards on several numbers of ranks, backends and machines, and while ranks are killed and the
job is resized; compares the bits at the end with those of one process that sums the shards itself, with LibTorch alone.

    bench/same_bits/run.py --build=build/release --json=same_bits.json
    bench/same_bits/run.py --build=build/release --cost --json=cost.json

Jobs: shm and gloo on 1, 2, 3, 4 and 8 ranks, two machines of two ranks in network namespaces (needs root and iproute2),
and three ranks over shm and gloo, of which random ones are killed at random points of a step, and whose number changes.
An epoch has seven steps, the last of three samples.

--cost: a step with logical shards beside the same step without them, for one, two and four micro-batches per rank and
step; without them, gradients of as many micro-batches are accumulated. The medians of rounds, in each of which all are
measured in turn.
"""
import argparse
import contextlib
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "bench/recovery"))
sys.path.append(str(ROOT / "tests/python/support"))
from heard_job import HeardJob, PATIENCE_S  # noqa: E402
from missing import Missing  # noqa: E402
from network_namespaces import TwoMachines  # noqa: E402

TASKS = {"digits": "digits", "mingpt_dropout": "minGPT with dropout", "resnet18_narrow": "ResNet-18 with BatchNorm"}
COST_STEPS = {"digits": 400, "mingpt": 30, "resnet18": 4}  # of a turn: half a second and more
STEPS_PER_EPOCH = 7
MOST_RANKS = 4  # of a job that is resized


class Job(HeardJob):
    """Who is which rank of the generation that runs, and with which bits ranks end."""

    def __init__(self, command, **variables):
        self.pids, self.ends, self.ranks, self.step = {}, set(), 0, -1
        super().__init__(command, **variables)

    def note(self, pid, what, words):
        if what == "rank":
            if int(words[2]) != self.ranks:
                self.pids, self.ranks = {}, int(words[2])
            self.pids[int(words[0])] = pid
        elif what == "step":
            self.step = max(self.step, int(words[0]))
        elif what == "ends":
            self.ends.add(words[-1])

    def is_whole(self):
        return len(self.pids) == self.ranks > 0

    def bits(self):
        code = self.end(PATIENCE_S * 100)
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


def run_disturbed(arguments, task, backend):
    """(the bits, kills, resizes). A tenth of the disturbances are resizes, the others kills (random_kills.h)."""
    dice = random.Random(f"{arguments.seed} {task} {backend}")
    lockstep = arguments.binaries / "lockstep"
    steps = arguments.epochs * STEPS_PER_EPOCH
    resizes_wanted = arguments.disturbances // 10
    resize_steps = sorted(dice.randrange(steps * 9 // 10) for _ in range(resizes_wanted))
    resizes = 0
    with tempfile.TemporaryDirectory(prefix="lockstep_same_bits_") as folder:
        command = [lockstep, "run", "--standalone", "--nproc-per-node=3", "--max-restarts=100000",
                   arguments.binaries / "same_bits", "train", task, arguments.shards, arguments.epochs,
                   arguments.disturbances - resizes_wanted, dice.randrange(1, 10**6), folder]
        with contextlib.closing(Job(command, LOCKSTEP_BACKEND=backend)) as job:
            for step in resize_steps:
                if not job.go_on_until(lambda: job.step >= step and job.is_whole(), PATIENCE_S):
                    break  # It has ended.
                wanted = dice.choice([ranks for ranks in range(1, MOST_RANKS + 1) if ranks != job.ranks])
                done = subprocess.run([lockstep, "scale", str(job.process.pid), str(wanted)], capture_output=True,
                                      text=True, check=False)
                resizes += done.returncode == 0
                job.go_on_until(lambda: job.ranks == wanted and job.is_whole(), PATIENCE_S)
            return job.bits(), len(os.listdir(folder)), resizes


def rows_of(arguments, task):
    oracle = [arguments.binaries / "same_bits", "oracle", task, arguments.shards, arguments.epochs]
    with contextlib.closing(Job(oracle)) as job:
        yield "one process, LibTorch alone", job.bits()
    for backend in ("shm", "gloo"):
        for ranks in (1, 2, 3, 4, 8):
            yield f"{backend}, {ranks} ranks", run_job(arguments, task, ranks, backend)
    try:
        yield "hierarchical, 2 machines of 2 ranks", run_on_two_machines(arguments, task)
    except Missing as missing:
        yield f"hierarchical, 2 machines of 2 ranks: {missing}", None
    for backend in ("shm", "gloo"):
        bits, kills, resizes = run_disturbed(arguments, task, backend)
        yield f"{backend}, {kills} kills, {resizes} resizes", bits


def compare(arguments, tasks):
    found, differs = [], False
    for task in tasks:
        expected = None
        for job, bits in rows_of(arguments, task):
            expected = expected or bits
            differs = differs or bits not in (None, expected)
            found.append({"task": task, "steps": arguments.epochs * STEPS_PER_EPOCH, "job": job, "bits": bits})
            print(f"{task:15} {arguments.epochs * STEPS_PER_EPOCH:5} steps  {bits or '':>20}  {job}"
                  + ("" if bits in (None, expected) else "  DIFFERS"), flush=True)
    return found, differs


def turns_of(arguments, task, steps):
    """Of one round: (micro-batches of a rank, ms of a step without logical shards, with them)"""
    done = subprocess.run([arguments.binaries / "lockstep", "run", "--standalone", f"--nproc-per-node={arguments.ranks}",
                           arguments.binaries / "same_bits", "cost", task, str(steps)],
                          check=True, stdout=subprocess.PIPE, text=True)
    for line in done.stdout.splitlines():
        if line.startswith("cost "):
            batches, without_ms, with_ms = line.split()[1:]
            yield int(batches), float(without_ms), float(with_ms)


def measure(arguments, tasks):
    turns = {}
    for number in range(arguments.rounds):
        for task in tasks:
            for batches, without_ms, with_ms in turns_of(arguments, task, arguments.steps or COST_STEPS[task]):
                turns.setdefault((task, batches), []).append((without_ms, with_ms))
        print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr, flush=True)
    found = []
    print(f"{arguments.ranks} ranks, medians of {arguments.rounds} rounds (in brackets: quartiles)")
    for (task, batches), taken in sorted(turns.items()):
        costs = [100 * (with_ms / without_ms - 1) for without_ms, with_ms in taken]
        quartiles = statistics.quantiles(costs, n=4) if len(costs) > 1 else costs * 3
        row = {"task": task, "ranks": arguments.ranks, "shards": arguments.ranks * batches, "rounds": arguments.rounds,
               "without_ms": statistics.median(without_ms for without_ms, _ in taken),
               "with_ms": statistics.median(with_ms for _, with_ms in taken),
               "cost_percent": statistics.median(costs), "cost_percent_quartiles": [quartiles[0], quartiles[2]]}
        found.append(row)
        print(f"{task:10} {row['shards']:3} shards  {row['without_ms']:9.3f} ms  {row['with_ms']:9.3f} ms  "
              f"{row['cost_percent']:+6.2f} % ({quartiles[0]:+.2f} to {quartiles[2]:+.2f})", flush=True)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--tasks", help=f"of {','.join(TASKS)}; of --cost: {','.join(COST_STEPS)}")
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=143, help="of seven steps each (default 143: 1,001 steps)")
    parser.add_argument("--disturbances", type=int, default=200, help="kills and resizes of each disturbed job")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cost", action="store_true", help="measure what it costs, and nothing else")
    parser.add_argument("--ranks", type=int, default=2, help="of --cost")
    parser.add_argument("--rounds", type=int, default=9, help="of --cost")
    parser.add_argument("--steps", type=int, help="of each turn (default: half a second and more)")
    parser.add_argument("--json", help="file for the rows")
    arguments = parser.parse_args()
    arguments.binaries = arguments.build.resolve() / "bin"
    differs = False
    if arguments.cost:
        found = measure(arguments, arguments.tasks.split(",") if arguments.tasks else list(COST_STEPS))
    else:
        found, differs = compare(arguments, arguments.tasks.split(",") if arguments.tasks else list(TASKS))
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 1 if differs else 0


if __name__ == "__main__":
    sys.exit(main())
