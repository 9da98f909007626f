#!/usr/bin/env python3
"""Kills random ranks of a training with an Accelerator or a Trainer, again and again, as live.py does of
ResilientTraining, and times how long the job takes until all ranks have made a step again. The others must keep
their processes. No step of the job may be missing, no process may repeat one that it has completed, and each must have
the bits of an undisturbed job's.

    bench/recovery/accelerator.py --binaries=build/release/bin --kills=200 --json=accelerator.json

Subjects: a loop of one's own over two and three ranks, the Trainer over two and three, with a snapshot every seven
steps, and the loop with --standby=1. Half of the ranks are killed by SIGKILL, half by SIGSEGV. Most kills fall at a
random instant of the training; with three ranks one of ten takes two at once. Some fall into the recovery from another:
with three ranks three of ten, with two one of ten.
"""
import argparse
import contextlib
import pathlib
import random
import signal
import tempfile

from live import Training, file_to_write, kill_again_and_again, report
from jobs import PATIENCE_S, ROOT

# Kind of the worker, ranks, and whether there is a standby worker.
SUBJECTS = {"accelerator-2": ("plain", 2, False), "accelerator-3": ("plain", 3, False),
            "trainer-2": ("trainer", 2, False), "trainer-3": ("trainer", 3, False),
            "accelerator-standby": ("plain", 3, True)}
# Of the worker: the undisturbed job ends with an epoch.
STEPS_PER_EPOCH = 10


class HashedTraining(Training):
    """Whose workers say the bits that each step has."""

    def __init__(self, arguments, subject, folder, steps, randomness=None):
        kind, ranks, standby = SUBJECTS[subject]
        flags = ["--standby=1"] if standby and randomness else []
        self.randomness = randomness
        self.bits = {}  # by step, of all that said it
        self.newest = {}  # by process
        self.repeated = ""
        super().__init__(argparse.Namespace(ranks=ranks), [arguments.binaries / "lockstep", "run", *flags],
                         arguments.binaries / "accelerator_worker", steps, kind, LOCKSTEP_BACKEND=arguments.backend,
                         ACCELERATOR_WORKER_FOLDER=folder if kind == "trainer" else "")

    def note(self, pid, what, words):
        if what == "starts":
            self.newest.pop(pid, None)
        elif what == "step":
            step = int(words[0])
            self.bits.setdefault(step, set()).add(words[-1])
            if step <= self.newest.get(pid, -1):
                self.repeated = f"process {pid} makes step {step} after step {self.newest[pid]}"
            self.newest[pid] = step
        super().note(pid, what, words)

    def kill(self, victims, by=None):
        return super().kill(victims, by or self.randomness.choice((signal.SIGKILL, signal.SIGSEGV)))


def difference(training, undisturbed):
    """What is wrong with the steps of the job, or nothing."""
    found = training.bits
    if training.repeated:
        return f"a complete step is lost: {training.repeated}"
    if missing := set(range(max(found) + 1)) - set(found):
        return f"{len(missing)} steps are lost, the first of them {min(missing)}"
    differ = sorted(step for step in found if len(found[step] | undisturbed.get(step, {"none"})) != 1)
    if differ:
        step = differ[0]
        return (f"{len(differ)} of {len(found)} steps have other bits than in the undisturbed job, "
                f"the first of them {step}: {found[step]}, undisturbed {undisturbed.get(step)}")
    return ""


def run(arguments, subject):
    _, _, standby = SUBJECTS[subject]
    randomness = random.Random(f"{arguments.seed} {subject}")
    found = {"subject": subject, "kills": 0, "ms": [], "problem": ""}
    with tempfile.TemporaryDirectory(prefix="lockstep_bench_") as folder:
        training = HashedTraining(arguments, subject, folder, 10**9, randomness)
        with contextlib.closing(training):
            if not kill_again_and_again(training, found, arguments, standby, randomness):
                return found
        steps = max(training.bits) + 1
    found["steps"] = steps
    with tempfile.TemporaryDirectory(prefix="lockstep_bench_") as folder:
        undisturbed = HashedTraining(arguments, subject, folder, steps + -steps % STEPS_PER_EPOCH)
        with contextlib.closing(undisturbed):
            if undisturbed.end(PATIENCE_S * 10) != 0:
                found["problem"] = f"the undisturbed job failed:\n{undisturbed.text()}"
                return found
    found["problem"] = difference(training, undisturbed.bits)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binaries", type=pathlib.Path, default=ROOT / "build/release/bin",
                        help="where lockstep and accelerator_worker lie")
    parser.add_argument("--subjects", type=lambda text: text.split(","), default=list(SUBJECTS))
    parser.add_argument("--kills", type=int, default=200, help="of each subject (default 200)")
    parser.add_argument("--backend", default="shm", help="of the collectives (default shm)")
    parser.add_argument("--deadline", type=float, default=20, help="seconds until stuck (default 20)")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--quick", action="store_true", help="5 kills of accelerator-3 and of trainer-2")
    parser.add_argument("--json", type=file_to_write, help="write all figures to this file")
    arguments = parser.parse_args()
    if unknown := set(arguments.subjects) - set(SUBJECTS):
        parser.error(f"there is no {unknown.pop()}; choose of {', '.join(SUBJECTS)}")
    arguments.binaries = arguments.binaries.resolve()
    if arguments.quick:
        arguments.kills, arguments.subjects = 5, ["accelerator-3", "trainer-2"]
    report("recovery of Accelerator and Trainer", arguments, run)


if __name__ == "__main__":
    main()
