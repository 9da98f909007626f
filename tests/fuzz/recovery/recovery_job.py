"""A job of recovery_worker, and what happens to its processes and is seen of them."""

import collections
import dataclasses
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "python"))

import faults as drawn_faults
from free_ports import free_port
from launcher_lines import read_lines

TIMEOUT_S, INIT_TIMEOUT_S = 3, 6
JOB_S = 150
# When somebody continues a process that the launcher has reported as stopped: after all deadlines.
CONTINUE_AFTER_S = 12
# Exit code of a job that has saved its state and ended because it was asked to.
PREEMPTED = 75


@dataclasses.dataclass
class Case:
    seed: int
    ranks: int
    backend: str
    faults: list

    def may_be_preempted(self):
        return any(isinstance(fault, drawn_faults.SecondMachine) and fault.signal != "SIGKILL" for fault in self.faults)

    def __str__(self):
        said = "; ".join(map(str, self.faults)) or "no fault"
        return f"seed {self.seed}, {self.ranks or 'any'} ranks over {self.backend}: {said}"


@dataclasses.dataclass
class Outcome:
    code: int
    lines: list      # (pid, text) of workers, in the order in which they were seen
    errors: str
    silence_s: float
    is_stuck: bool

    def ends(self):
        return {text for _, text in self.lines if text.startswith("ends with ")}


class Job:
    """One launcher and its workers, whose lines are read as they come."""

    def __init__(self, programs, case, folder):
        lockstep, worker = programs
        failpoints = [str(fault) for fault in case.faults if isinstance(fault, drawn_faults.AtFailpoint)]
        environment = os.environ | {
            "LOCKSTEP_BACKEND": case.backend, "OMP_NUM_THREADS": "1", "LOCKSTEP_TIMEOUT_S": str(TIMEOUT_S),
            "LOCKSTEP_INIT_TIMEOUT_S": str(INIT_TIMEOUT_S)}
        if failpoints:
            environment["LOCKSTEP_FAILPOINT"] = ",".join(failpoints)
        self.instants = [fault for fault in case.faults if isinstance(fault, drawn_faults.AtInstant)]
        self.counts = collections.Counter()
        self.pids = {}
        self.lines = []
        self.errors = []
        self.heard_s = time.monotonic()
        self.silence_s = 0.0
        self.lock = threading.Lock()
        self.timers = []
        self.others = []  # The launchers of other machines.
        if case.ranks:
            flags = ["--standalone", f"--nproc-per-node={case.ranks}"]
        else:
            environment["LOCKSTEP_JOB_SECRET"] = "s" * 32
            flags = ["--nnodes=1:2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=job",
                     "--rdzv-conf=last_call_timeout=1,keep_alive_interval=1", "--nproc-per-node=1"]
        self.command = [lockstep, "run", "--max-restarts=100", *flags, worker, str(case.seed), str(case.ranks), folder]
        self.environment = environment
        self.process = self.launch()
        self.joins = [fault for fault in case.faults if isinstance(fault, drawn_faults.SecondMachine)]

    def launch(self):
        return subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True, env=self.environment)

    def at(self, after_s, call, *arguments):
        self.timers.append(threading.Timer(after_s, call, arguments))
        self.timers[-1].start()

    def hear(self):
        now = time.monotonic()
        self.silence_s = max(self.silence_s, now - self.heard_s)
        self.heard_s = now

    def join(self, fault):
        with self.lock:
            if self.process.poll() is not None:
                return
            machine = self.launch()
            self.others.append(machine)
            self.at(fault.for_s, self.leave, machine, fault)
            self.errors.append(f"fuzz: {fault}\n")
        self.read(machine)

    def leave(self, machine, fault):
        with self.lock:
            machine.send_signal(getattr(signal, fault.signal))
            self.errors.append("fuzz: the second machine leaves\n")

    def read(self, process):
        for reader in read_lines(process, self.on_line, self.on_error):
            reader.join()
        process.stdout.close()
        process.stderr.close()

    def on_error(self, line):
        with self.lock:
            self.hear()
            self.errors.append(line)
            if stopped := re.search(r"pid (\d+)\) is stopped by", line):
                self.at(CONTINUE_AFTER_S, self.send_to, int(stopped[1]), "SIGCONT")

    def on_line(self, pid, text):
        with self.lock:
            self.hear()
            self.lines.append((pid, text))
            self.note(pid, text)

    def note(self, pid, text):
        event = drawn_faults.event_of(text)
        if not event:
            return
        if event == "starts":
            while self.joins:  # Not before: the first machine serves the rendezvous.
                fault = self.joins.pop()
                self.at(fault.after_s, self.join, fault)
        elif event == "begins":
            self.pids[int(text.split()[1])] = pid
        self.counts[event] += 1
        for fault in self.instants:
            if fault.after == event and fault.n == self.counts[event]:
                self.at(fault.after_s, self.send, fault, pid)

    def send(self, fault, pid_of_event):
        """To the rank that it names; where ranks are not known yet, to the process that was seen."""
        if self.send_to(self.pids.get(fault.rank, pid_of_event), fault.signal):
            self.errors.append(f"fuzz: {fault}\n")

    def send_to(self, pid, name):
        with self.lock:
            # Of a child that the launcher has reaped the number may be another's.
            lives = any(launcher.poll() is None and pid in children_of(launcher.pid)
                        for launcher in [self.process, *self.others])
            if lives:
                os.kill(pid, getattr(signal, name))
            return lives

    def finish(self):
        is_stuck = threading.Event()
        limit = threading.Timer(JOB_S, lambda: (is_stuck.set(), self.process.kill()))
        limit.start()
        self.read(self.process)
        code = self.process.wait()
        limit.cancel()
        for timer in self.timers:  # One of them may start another.
            timer.cancel()
        for machine in self.others:
            machine.kill()
        for timer in self.timers:
            timer.join()
        for machine in self.others:
            machine.wait()
        errors = "".join(self.errors)
        return Outcome(code, self.lines, errors, self.silence_s, is_stuck.is_set())


def children_of(pid):
    try:
        return set(map(int, pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except FileNotFoundError:
        return set()


def run_job(programs, case):
    """The job; where a machine that leaves by SIGTERM or SIGINT has ended all of it, also the one that goes on."""
    with tempfile.TemporaryDirectory(prefix="lockstep_test_") as folder:
        outcome = Job(programs, case, folder).finish()
        if outcome.code == PREEMPTED and case.may_be_preempted():
            resumed = Job(programs, dataclasses.replace(case, faults=[]), folder).finish()
            resumed.errors = outcome.errors + resumed.errors
            return resumed
        return outcome
