#!/usr/bin/env python3
"""Tells jobs to make room at random moments, by SIGTERM or SIGUSR1 to the launcher, to any rank, to all at once
or to one after the other, starts them again, and looks whether they lose a step: while they start, wait for data,
evaluate, save, step, and while a killed rank is being replaced.

    bench/recovery/preemption.py --binaries=build/release/bin --signals=100 --json=preemption.json

Subjects: resilient (ResilientTraining) and plain (a loop with Preemption), each over shm and gloo; the signals are
shared out among them. Each has to end its job with exit code 75 within the grace, to leave no process, and the next
job has to begin with the step after the last that was made. In the end the parameters must have the bits of an
undisturbed run. A process that is told before it has made its Preemption ends as one without would: the job with it,
or it is replaced, and the job goes on. These are counted apart.
"""
import collections
import contextlib
import json
import os
import pathlib
import random
import signal
import statistics
import sys
import tempfile
import time

from heard_job import HeardJob

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "launch"))
from jobs import (  # noqa: E402
    PATIENCE_S, machine, make_parser, seconds_now, write_figures)

SUBJECTS = ("resilient-shm", "resilient-gloo", "plain-shm", "plain-gloo")
PREEMPTED = 75
# What a signal may end a job with that has nobody yet who could note it.
UNTOLD = {128 + signal.SIGTERM, 128 + signal.SIGUSR1, -signal.SIGTERM, -signal.SIGUSR1}
# lockstep run's --shutdown-timeout, and a moment to look.
GRACE_S = 30
LIMIT_S = 1
PAUSE_MS = 20
# Until when after its beginning a signal falls into a phase.
WITHIN_S = {"start": 0.4, "waits": 0.02, "evaluates": 0.02, "saves": 0.01, "steps": 0.002, "recovery": 0.3}
# Between SIGUSR1 to a rank and SIGTERM to the launcher.
WARNING_S = 0.2
ENDLESS = 10**9
# One that has been told makes two steps more at most.
GOES_ON_STEPS = 30


class Training(HeardJob):
    """What each of its processes said last, and when."""

    def __init__(self, arguments, subject, steps, folder, pause_ms=PAUSE_MS):
        kind, _, backend = subject.partition("-")
        super().__init__([arguments.binaries / "lockstep", "run", "--standalone", f"--nproc-per-node={arguments.ranks}",
                          "--max-restarts=1000", "--notify-signals=SIGUSR1", f"--shutdown-timeout={GRACE_S}",
                          arguments.binaries / "preempted_worker", kind, steps, folder, pause_ms],
                         LOCKSTEP_BACKEND=backend)
        self.said = collections.defaultdict(list)  # by pid: (what, step, when)
        self.ends = set()

    def note(self, pid, what, words):
        step, instant_ns = map(int, words)
        self.said[pid].append((what, step, instant_ns / 1e9))
        if what == "ends":
            self.ends.add(step)

    def workers(self):
        path = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        with contextlib.suppress(OSError):
            return sorted(pid for pid in map(int, path.read_text("ascii").split()) if is_worker(pid))
        return []

    def when(self, pid, what):
        return next((instant for said, _, instant in self.said.get(pid, []) if said == what), float("inf"))

    def phase(self, pid, instant):
        """In which this process was at that instant."""
        said = [what for what, _, when in self.said.get(pid, []) if when <= instant]
        if "begins" not in said:
            return "start"
        return {"begins": "steps", "done": "steps"}.get(said[-1], said[-1])

    def all(self, what):
        """(pid, number) of all lines that said this."""
        return [(pid, step) for pid, lines in self.said.items() for said, step, _ in lines if said == what]

    def steps_made(self, without=None):
        return 1 + max((step for pid, step in self.all("done") if pid != without), default=-1)

    def steps_since(self, instant):
        """Of the process that has made most."""
        return max((sum(what == "done" and when > instant for what, _, when in lines)
                    for lines in self.said.values()), default=0)


def is_worker(pid):
    with contextlib.suppress(OSError):
        return b"preempted_worker" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
    return False


def go_to(training, wished, arguments, randomness):
    """Lets it run until that phase of a random rank; the process that was killed for it, if one was."""
    killed = None
    if wished != "start":
        begun = lambda: len(training.all("begins")) >= arguments.ranks  # noqa: E731
        training.go_on_until(begun, PATIENCE_S)
        first = training.steps_made() + randomness.randrange(20)
        if wished == "recovery":
            training.go_on_until(lambda: training.steps_made() > first, PATIENCE_S)
            killed = randomness.choice(training.workers())
            os.kill(killed, signal.SIGKILL)
        else:
            training.go_on_until(lambda: any(step >= first for _, step in training.all(wished)), PATIENCE_S)
    training.listen(randomness.uniform(0, WITHIN_S[wished]))
    return killed


def send(training, killed, randomness):
    """Tells the launcher, a rank or, as SLURM does, all, or a rank and soon after the launcher:
    (whom, which ranks are told by it, the signal, when)."""
    workers = [pid for pid in training.workers() if pid != killed]
    launcher = training.process.pid
    whom = randomness.choice(["launcher", "rank", "all", "warned"]) if workers else "launcher"
    told = [randomness.choice(workers)] if whom == "rank" else workers
    which = signal.SIGUSR1 if whom == "warned" else randomness.choice([signal.SIGTERM, signal.SIGUSR1])
    instant = seconds_now()
    with contextlib.suppress(ProcessLookupError):
        if whom in ("launcher", "all"):
            os.kill(launcher, which)
        for pid in {"all": told, "rank": told, "warned": told[:1]}.get(whom, []):
            os.kill(pid, which)
        if whom == "warned":
            training.listen(randomness.uniform(0, WARNING_S))
            os.kill(launcher, signal.SIGTERM)
    return whom, told, which, instant


def left_after(training):
    """Processes of the job a second after its launcher, by pid."""
    end_s = seconds_now() + LIMIT_S
    while (left := training.processes()) and seconds_now() < end_s:
        time.sleep(0.005)
    return left


def run_trial(training, arguments, wished, randomness):
    killed = go_to(training, wished, arguments, randomness)
    begun = len(training.all("begins"))
    whom, told, which, instant = send(training, killed, randomness)
    went_on = lambda: training.steps_since(instant) > GOES_ON_STEPS  # noqa: E731
    if not training.go_on_until(went_on, GRACE_S + LIMIT_S):
        code = training.end(max(0, instant + GRACE_S + LIMIT_S - seconds_now()))
    else:
        code = "went on"
        training.process.terminate()
        training.end(GRACE_S + LIMIT_S)
    ready = [training.when(worker, "ready") < instant for worker in told]
    # A rank that keeps its state ends the job well, whatever the signal does to one that has none yet.
    could_note = any(ready) if killed else all(ready) and (whom == "rank" or len(told) == arguments.ranks)
    trial = {"whom": whom, "signal": which.name, "code": code, "steps": training.steps_made(without=killed),
             "could_note": could_note}
    if killed and begun < 2 * arguments.ranks:
        trial["phase"] = "recovery"
    else:
        trial["phase"] = training.phase(min(told, default=0), instant)
    trial["seconds"] = (training.ended_s or seconds_now()) - instant
    trial["problem"] = problem_of(trial, training)
    return trial


def problem_of(trial, training):
    last_code = training.process.poll()
    saved = {step for _, step in training.all("saved")}
    if last_code is None:
        return "it did not end within the grace"
    if left := left_after(training):
        return f"{len(left)} processes are left: {left}"
    if trial["could_note"] and trial["code"] != PREEMPTED:
        return f"exit code {trial['code']}"
    if last_code != PREEMPTED and last_code not in UNTOLD:
        return f"exit code {last_code} after it went on"
    if last_code == PREEMPTED and max(saved, default=0) < trial["steps"]:
        return f"{trial['steps']} steps were made, saved after {saved}"
    return ""


def run_subject(arguments, subject, signals, randomness):
    """The trials, and what is wrong with the subject as a whole."""
    trials, steps, problem = [], 0, ""
    with tempfile.TemporaryDirectory(prefix="lockstep_bench_") as folder:
        phases = [phase for phase in arguments.phases if phase != "recovery" or subject.startswith("resilient")]
        for number in range(signals):
            wished = phases[number % len(phases)]
            if sys.stderr.isatty():
                print(f"\r\033[K{subject}: {number} of {signals}, {wished}", end="", file=sys.stderr, flush=True)
            with contextlib.closing(Training(arguments, subject, ENDLESS, f"{folder}/told")) as training:
                trial = run_trial(training, arguments, wished, randomness)
                begins = min((step for _, step in training.all("begins")), default=steps)
                if begins != steps and not trial["problem"]:
                    trial["problem"] = f"{steps} steps had been made, it began with {begins}"
                steps = trial["steps"] or steps
                if trial["problem"]:
                    trial["log"] = training.text()
            trials.append({"subject": subject, "wished": wished} | trial)
        steps += 20
        ends = [ends_of(arguments, subject, steps, f"{folder}/{name}") for name in ("told", "undisturbed")]
        if ends[0] != ends[1] or len(ends[0]) != 1:
            problem = f"after {steps} steps other bits than the undisturbed run: {ends}"
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    return trials, problem


def ends_of(arguments, subject, steps, folder):
    with contextlib.closing(Training(arguments, subject, steps, folder, pause_ms=0)) as training:
        training.end()
        return training.ends


def line_of(phase, trials):
    """Of the trials of a phase: how they ended, and how soon those that made room."""
    noted = [trial for trial in trials if trial["code"] == PREEMPTED]
    counts = [sum(not trial["could_note"] and trial["code"] == "went on" for trial in trials),
              sum(not trial["could_note"] and trial["code"] not in (PREEMPTED, "went on") for trial in trials),
              sum(bool(trial["problem"]) for trial in trials)]
    seconds = [trial["seconds"] for trial in noted]
    figures = f"{statistics.median(seconds):9.3f}{max(seconds):9.3f}" if seconds else f"{'-':>9}{'-':>9}"
    return f"{phase:12}{len(trials):8}{len(noted):8}" + "".join(f"{count:10}" for count in counts) + figures


def main():
    parser = make_parser(__doc__, "lockstep and preempted_worker")
    parser.add_argument("--subjects", type=lambda text: text.split(","), default=list(SUBJECTS))
    parser.add_argument("--phases", type=lambda text: text.split(","), default=list(WITHIN_S))
    parser.add_argument("--signals", type=int, default=100, help="of all subjects together (default 100)")
    parser.add_argument("--ranks", type=int, default=2, help="of the jobs (default 2)")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--quick", action="store_true", help="6 signals each to resilient-shm and plain-gloo")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.subjects, arguments.signals = ["resilient-shm", "plain-gloo"], 12
    print(f"seed {arguments.seed}")
    before, trials, problems = machine(), [], []
    for number, subject in enumerate(arguments.subjects):
        share = -(-(arguments.signals - len(trials)) // (len(arguments.subjects) - number))
        found, problem = run_subject(arguments, subject, share, random.Random(f"{arguments.seed} {subject}"))
        trials += found
        problems += [f"{subject}: {problem}"] if problem else []
    print(f"{'told':12}{'times':>8}{'code 75':>8}{'replaced':>10}{'ended':>10}{'problem':>10}{'s':>9}{'max':>9}")
    for phase in WITHIN_S:
        of_phase = [trial for trial in trials if trial["phase"] == phase]
        print(line_of(phase, of_phase))
    print(line_of("all", trials))
    write_figures(arguments.json, benchmark="preemption", machine=before, seed=arguments.seed, trials=trials,
                  problems=problems)
    problems += [json.dumps({key: value for key, value in trial.items() if key != "log"}) + "\n" + trial["log"]
                 for trial in trials if trial["problem"]]
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
