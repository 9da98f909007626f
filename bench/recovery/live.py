#!/usr/bin/env python3
"""Kills random ranks of a training that survives it, again and again, and times how long the job takes until
all ranks have made a step again. The others must keep their processes, and the end must have the bits of an
undisturbed run.

    bench/recovery/live.py --binaries=build/release/bin --kills=500 --json=live.json

Subjects: shm and gloo, and each with --standby=1. Most kills fall at a random instant of the training, one of
five right after the last recovery began, one of ten takes two ranks at once. The job is told to save and end
after its kills, and a second one makes the same steps undisturbed.
"""
import argparse
import contextlib
import json
import os
import pathlib
import random
import select
import signal
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "launch"))
from jobs import PATIENCE_S, ROOT, file_to_write, machine, percentile, seconds_now  # noqa: E402

# Longer than a standby worker needs until it is ready.
STANDBY_READY_S = 1.2
TRAINING_S = 0.1


class Training:
    """A job, heard through its workers' lines: a process, and what it says."""

    def __init__(self, arguments, backend, flags, worker):
        self.ranks = arguments.ranks
        command = [arguments.binaries / "lockstep", "run", "--standalone", f"--nproc-per-node={self.ranks}",
                   "--max-restarts=100000", *flags, arguments.binaries / "resilient_worker", *worker]
        environment = os.environ | {"LOCKSTEP_BACKEND": backend, "OMP_NUM_THREADS": "1"}
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=self.log, env=environment)
        os.set_blocking(self.process.stdout.fileno(), False)
        self.rest = b""
        self.pids = {}      # by rank, of the generation that runs
        self.stepped = {}   # when each of these made its first step there
        self.ends = set()
        self.saved = set()

    def read(self, deadline_s):
        """Takes note of what was said; false when nothing was until the deadline."""
        left_s = deadline_s - seconds_now()
        if left_s <= 0 or not select.select([self.process.stdout], [], [], left_s)[0]:
            return False
        data = os.read(self.process.stdout.fileno(), 1 << 16)
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            pid, what, *words = line.decode().split()
            if what == "rank":
                self.pids[int(words[0])] = int(pid)
                self.stepped.pop(int(words[0]), None)
            elif what == "step":
                rank = next((rank for rank, known in self.pids.items() if known == int(pid)), None)
                if rank is not None:
                    self.stepped.setdefault(rank, seconds_now())
            elif what == "saved":
                self.saved.add(int(words[-1]))
            elif what == "ends":
                self.ends.add(words[-1])
        return bool(data)

    def all_step(self):
        return len(self.stepped) == self.ranks

    def go_on_until(self, condition, patience_s):
        deadline_s = seconds_now() + patience_s
        while not condition():
            if not self.read(deadline_s):
                return condition()
        return True

    def listen(self, seconds):
        self.go_on_until(lambda: False, seconds)

    def end(self):
        """Its exit code, once it has ended by itself."""
        while self.read(seconds_now() + PATIENCE_S):
            pass
        return self.process.wait(PATIENCE_S)

    def text(self):
        self.log.seek(0)
        return self.log.read()[-3000:]

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.log.close()


def kill_some(training, randomness):
    """Kills one or two ranks. The ranks, and the processes of the others."""
    count = 2 if training.ranks > 2 and randomness.random() < 0.1 else 1
    victims = randomness.sample(sorted(training.pids), count)
    others = {rank: pid for rank, pid in training.pids.items() if rank not in victims}
    for rank in victims:
        with contextlib.suppress(ProcessLookupError):
            os.kill(training.pids[rank], signal.SIGKILL)
        del training.pids[rank]
    training.stepped = {}
    return others


def run_subject(arguments, backend, standby, randomness):
    name = f"{backend} --standby=1" if standby else backend
    found = {"subject": name, "kills": 0, "ms": [], "problem": ""}
    with tempfile.TemporaryDirectory(prefix="lockstep_bench_") as folder:
        flags = ["--standby=1"] if standby else []
        worker = [10**9, arguments.size, 0, 0, folder, arguments.say_every]
        training = Training(arguments, backend, flags, worker)
        with contextlib.closing(training):
            training.go_on_until(training.all_step, PATIENCE_S)
            while found["kills"] < arguments.kills:
                training.listen(STANDBY_READY_S if standby else randomness.uniform(0, TRAINING_S))
                if not standby and randomness.random() < 0.2:
                    # One that falls into the recovery from another.
                    kill_some(training, randomness)
                    training.listen(randomness.uniform(0, 0.25))
                    found["kills"] += 1
                    if len(training.pids) < training.ranks:
                        training.go_on_until(lambda: len(training.pids) == training.ranks, PATIENCE_S)
                others = kill_some(training, randomness)
                killed_s = seconds_now()
                found["kills"] += 1
                if not training.go_on_until(training.all_step, arguments.deadline):
                    found["problem"] = f"stuck or ended after {found['kills']} kills:\n{training.text()}"
                    return found
                found["ms"].append((max(training.stepped.values()) - killed_s) * 1e3)
                if any(training.pids[rank] != pid for rank, pid in others.items()):
                    found["problem"] = f"a survivor lost its process at kill {found['kills']}"
                    return found
                if sys.stderr.isatty():
                    print(f"\r{name}: {found['kills']} of {arguments.kills}", end="", file=sys.stderr)
            training.process.terminate()
            code = training.end()
            if code != 75 or len(training.saved) != 1:
                found["problem"] = f"exit code {code}, saved after {training.saved}:\n{training.text()}"
                return found
        steps = training.saved.pop()
        found["steps"] = steps
        ends = []
        for snapshots in ([0, 0, folder], [0, 0, f"{folder}/none"]):
            last = Training(arguments, backend, [], [steps, arguments.size, *snapshots, 10**9])
            with contextlib.closing(last):
                if last.end() != 0:
                    found["problem"] = last.text()
                    return found
                ends.append(last.ends)
        if ends[0] != ends[1] or len(ends[0]) != 1:
            found["problem"] = f"after {steps} steps other bits than the undisturbed run: {ends}"
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    return found


def row_of(found):
    row = {key: found.get(key, 0) for key in ("subject", "kills", "steps", "problem")}
    if found["ms"]:
        row |= {"ms": statistics.median(found["ms"]), "ms_p99": percentile(found["ms"], 0.99),
                "ms_max": max(found["ms"])}
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binaries", type=pathlib.Path, default=ROOT / "build/release/bin",
                        help="where lockstep and resilient_worker lie")
    parser.add_argument("--subjects", default="shm,gloo,shm-standby,gloo-standby")
    parser.add_argument("--kills", type=int, default=500, help="of each subject (default 500)")
    parser.add_argument("--ranks", type=int, default=3, help="of the job (default 3)")
    parser.add_argument("--size", type=int, default=16,
                        help="width of the network; 833000 makes 10 million parameters (default 16)")
    parser.add_argument("--say-every", type=int, default=100, help="steps between a worker's lines (default 100)")
    parser.add_argument("--deadline", type=float, default=20, help="seconds until stuck (default 20)")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--quick", action="store_true", help="4 kills of shm and gloo")
    parser.add_argument("--json", type=file_to_write, help="write all figures to this file")
    arguments = parser.parse_args()
    arguments.binaries = arguments.binaries.resolve()
    if arguments.quick:
        arguments.kills, arguments.subjects = 4, "shm,gloo"
    print(f"seed {arguments.seed}")
    print(f"{'':20}{'kills':>7}{'steps':>10}{'ms':>10}{'p99':>10}{'max':>10}")
    rows, before = [], machine()
    for subject in arguments.subjects.split(","):
        backend, _, standby = subject.partition("-")
        rows.append(row_of(run_subject(arguments, backend, bool(standby),
                                       random.Random(f"{arguments.seed} {subject}"))))
        row = rows[-1]
        figures = "".join(f"{row[key]:10.0f}" if key in row else f"{'-':>10}" for key in ("ms", "ms_p99", "ms_max"))
        print(f"{row['subject']:20}{row['kills']:7}{row['steps']:10}{figures}", flush=True)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"benchmark": "live recovery", "machine": before, "seed": arguments.seed, "rows": rows},
                      file, indent=2)
    for row in rows:
        if row["problem"]:
            sys.exit(f"{row['subject']}: {row['problem']}")


if __name__ == "__main__":
    main()
