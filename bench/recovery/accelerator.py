#!/usr/bin/env python3
"""Kills random ranks of a training with an Accelerator or a Trainer, again and again, as live.py does of
ResilientTraining, and times how long the job takes until all ranks have made a step again. The others must keep
their processes. No step of the job may be missing, no process may repeat one that it has completed, and each must have
the bits of an undisturbed job's.

    bench/recovery/accelerator.py --binaries=build/release/bin --kills=200 --table --json=accelerator.json

Subjects, LOOP-TASK-RANKS: a loop of one's own under the Accelerator and the Trainer, with digits and minGPT, on two and
three ranks; an evaluation and a snapshot after each epoch. Those that end with -standby have --standby=1, those with
-stopped have ranks that SIGSTOP stops, and a timeout of 1 s, which their times include. Of the others half of the ranks
are killed by SIGKILL, half by SIGSEGV. Those that end with -onecopy have one copy per machine of a model of so many million
parameters, which a step of two samples trains, and SIGKILL; kills of the training and its recovery alone. Most kills fall at a random instant of the training, of an evaluation or of a
save; with three ranks one of ten takes two at once. Some fall into the recovery from another: with three ranks three of
ten, with two one of ten.

Beside them torchrun-TASK-RANKS, the same in Python over gloo, with the snapshot of each epoch, from which all ranks
start again (TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, without which they may read the addresses of dead ones). The subjects
are measured by turns, in --rounds jobs of each.
"""
import contextlib
import random
import signal
import tempfile

from live import HERE, Training, kill_again_and_again, parse, parser_of, report, run_torchrun
from jobs import PATIENCE_S, find_torchrun, seconds_now

TASKS = ("digits", "mingpt")
SUBJECTS = [*(f"{loop}-{task}-{ranks}" for loop in ("accelerator", "trainer", "torchrun") for task in TASKS
              for ranks in (2, 3)),
            *(f"{loop}-{task}-3-standby" for loop in ("accelerator", "trainer") for task in TASKS),
            "accelerator-digits-3-stopped", "trainer-mingpt-3-stopped",
            *(f"accelerator-mlp{millions}m-3-onecopy{kind}" for millions in (1, 10, 100) for kind in ("", "-standby"))]
# Of --kills, for subjects of which each takes more than a second.
SHARE_OF_SLOW = 0.2
STOPPED_TIMEOUT_S = 1


class HashedTraining(Training):
    """Whose workers say the bits that each step has."""

    def __init__(self, arguments, subject, folder, epochs, randomness=None):
        loop, task, ranks, *kind = subject.split("-")
        flags = ["--standby=1"] if "standby" in kind and randomness else []
        self.signals = [signal.SIGSTOP] if "stopped" in kind else [signal.SIGKILL, signal.SIGSEGV]
        if "onecopy" in kind:
            self.signals = [signal.SIGKILL]
            task += "+onecopy"
        timeout = {"LOCKSTEP_TIMEOUT_S": str(STOPPED_TIMEOUT_S)} if "stopped" in kind else {}
        self.randomness = randomness
        self.bits = {}  # by step, of all that said it
        self.newest = {}  # by process
        self.repeated = ""
        self.steps_per_epoch = 0
        self.said_s = {}  # when a process said its newest step, where it was not disturbed since
        self.step_ms = []
        super().__init__(int(ranks), [arguments.binaries / "lockstep", "run", *flags],
                         arguments.binaries / "model_worker", loop, task, epochs, folder,
                         LOCKSTEP_BACKEND=arguments.backend, **timeout)

    def note(self, pid, what, words):
        if what == "starts":
            self.newest.pop(pid, None)
        elif what == "epoch":
            self.steps_per_epoch = int(words[0])
        elif what == "step":
            step = int(words[0])
            self.bits.setdefault(step, set()).add(words[-1])
            if step <= self.newest.get(pid, -1):
                self.repeated = f"process {pid} makes step {step} after step {self.newest[pid]}"
            self.newest[pid] = step
            now_s = seconds_now()
            if pid in self.said_s:
                self.step_ms.append((now_s - self.said_s[pid]) * 1e3)
            if len(self.pids) == self.ranks:
                self.said_s[pid] = now_s
        super().note(pid, what, words)

    def kill(self, victims, by=None):
        self.said_s = {}
        return super().kill(victims, by or self.randomness.choice(self.signals))


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


def run_job(arguments, subject, kills, randomness):
    found = {"subject": subject, "kills": 0, "ms": [], "problem": ""}
    with tempfile.TemporaryDirectory(prefix="lockstep_bench_") as folder:
        training = HashedTraining(arguments, subject, folder, 10**6, randomness)
        with contextlib.closing(training):
            if not kill_again_and_again(training, found, kills, arguments.deadline, subject.endswith("standby"),
                                        randomness):
                return found
    found["steps"] = max(training.bits) + 1
    found["step_ms"] = training.step_ms
    with tempfile.TemporaryDirectory(prefix="lockstep_bench_") as folder:
        undisturbed = HashedTraining(arguments, subject, folder, -(-found["steps"] // training.steps_per_epoch))
        with contextlib.closing(undisturbed):
            if undisturbed.end(PATIENCE_S * 10) != 0:
                found["problem"] = f"the undisturbed job failed:\n{undisturbed.text()}"
                return found
    found["problem"] = difference(training, undisturbed.bits)
    return found


def run(arguments, subject, number):
    def of_this_round(kills):
        return kills * (number + 1) // arguments.rounds - kills * number // arguments.rounds

    randomness = random.Random(f"{arguments.seed} {subject} {number}")
    loop, task, ranks, *kind = subject.split("-")
    if loop != "torchrun":
        return run_job(arguments, subject, of_this_round(round(arguments.kills * (SHARE_OF_SLOW if kind else 1))),
                       randomness)
    if not (torchrun := find_torchrun(arguments.torchrun)):
        return None
    return run_torchrun(int(ranks), of_this_round(arguments.torchrun_kills), arguments.deadline, subject, torchrun,
                        randomness, lambda folder: (HERE / "epoch_worker.py", task, folder), with_own_store=True)


def main():
    parser = parser_of(__doc__, "model_worker", SUBJECTS, 200)
    parser.add_argument("--backend", default="shm", help="of Lockstep's collectives (default shm)")
    parser.add_argument("--rounds", type=int, default=4, help="jobs of each subject (default 4)")
    parser.add_argument("--quick", action="store_true",
                        help="one job each of accelerator-digits-3 and trainer-mingpt-2, 5 kills")
    arguments = parse(parser, SUBJECTS)
    if arguments.quick:
        arguments.kills, arguments.rounds = 5, 1
        arguments.subjects = ["accelerator-digits-3", "trainer-mingpt-2"]
    report("recovery of Accelerator and Trainer", arguments, run, arguments.rounds)


if __name__ == "__main__":
    main()
