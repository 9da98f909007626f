"""A job of a program, and what happens to its processes and is seen of them."""

import collections
import csv
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
import uuid

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "python/support"))

import faults as drawn_faults
from free_ports import free_port
from launcher_lines import read_lines
from processes import processes_with

# On a machine that starts processes in time; on a busy one longer, by Case.pace.
TIMEOUT_S, INIT_TIMEOUT_S = 3, 6
JOB_S = 150
STARTS_WITHIN_S = 0.75
# When somebody continues a process that the launcher has reported as stopped: after all deadlines.
CONTINUE_AFTER_S = 12
# Exit code of a job that has saved its state and ended because it was asked to.
PREEMPTED = 75
# How long processes of a job that has ended may be seen.
GONE_S = 5


@dataclasses.dataclass
class Outcome:
    code: int
    lines: list      # (pid, text) of workers, in the order in which they were seen
    errors: str
    silence_s: float
    is_stuck: bool
    started_s: float  # until the first rank began
    left: list       # processes and files of a job that has ended
    audit: str = ""  # what `lockstep audit` finds wrong
    metrics: tuple = ()  # rows of the Trainer's metrics.csv, without what depends on time and ranks

    def ends(self):
        return {text for _, text in self.lines if text.startswith("ends with ")}


class Job:
    """One launcher and its workers, whose lines are read as they come."""

    def __init__(self, binaries, case, folder):
        self.lockstep = os.path.join(binaries, "lockstep")
        self.temporary = os.path.join(folder, "tmp")
        os.makedirs(self.temporary, exist_ok=True)
        self.mark = uuid.uuid4().hex
        failpoints = [str(fault) for fault in case.faults if isinstance(fault, drawn_faults.AtFailpoint)]
        environment = os.environ | {
            "LOCKSTEP_BACKEND": case.backend, "OMP_NUM_THREADS": "1", "LOCKSTEP_TIMEOUT_S": str(TIMEOUT_S * case.pace),
            "LOCKSTEP_INIT_TIMEOUT_S": str(INIT_TIMEOUT_S * case.pace), "ACCELERATOR_WORKER_FOLDER": folder,
            "TMPDIR": self.temporary, "LOCKSTEP_FUZZ_MARK": self.mark}
        for fault in case.faults:
            if isinstance(fault, drawn_faults.Throws):
                environment["LIVE_WORKER_THROW"] = f"{fault.rank}:{fault.step}"
        if failpoints:
            environment["LOCKSTEP_FAILPOINT"] = ",".join(failpoints)
        self.instants = [fault for fault in case.faults if isinstance(fault, drawn_faults.AtInstant)]
        self.scales = [fault for fault in case.faults if isinstance(fault, drawn_faults.Scale)]
        self.counts = collections.Counter()
        self.pids = {}
        self.lines = []
        self.errors = []
        self.pace = case.pace
        self.begun_s = self.heard_s = time.monotonic()
        self.started_s = 0.0
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
        self.command = [self.lockstep, "run", "--max-restarts=100", *case.flags, *flags, *case.command(binaries, folder)]
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
                self.at(CONTINUE_AFTER_S * self.pace, self.send_to, int(stopped[1]), "SIGCONT")

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
            self.started_s = self.started_s or time.monotonic() - self.begun_s
            self.pids[int(text.split()[1])] = pid
        self.counts[event] += 1
        for fault in self.instants:
            if fault.after == event and fault.n == self.counts[event]:
                self.at(fault.after_s, self.send, fault, pid)
        for fault in self.scales:
            if event == "begins" and fault.n == self.counts[event]:
                self.at(fault.after_s, self.scale, fault)

    def send(self, fault, pid_of_event):
        """To the ranks that it names; where ranks are not known yet, to the process that was seen."""
        pids = {self.pids.get(rank, pid_of_event) for rank in fault.ranks}
        if any([self.send_to(pid, fault.signal) for pid in pids]):
            self.errors.append(f"fuzz: {fault}\n")

    def scale(self, fault):
        done = subprocess.run([self.lockstep, "scale", str(self.process.pid), str(fault.ranks)], capture_output=True,
                              timeout=JOB_S, check=False, env=self.environment)
        if done.returncode == 0:
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
        limit = threading.Timer(JOB_S * self.pace, lambda: (is_stuck.set(), self.process.kill()))
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
        return Outcome(code, self.lines, errors, self.silence_s, is_stuck.is_set(), self.started_s,
                       self.left())

    def left(self):
        deadline_s = time.monotonic() + GONE_S * self.pace
        while (left := list(processes_with(self.mark.encode()).values())) and time.monotonic() < deadline_s:
            time.sleep(0.02)
        return left + os.listdir(self.temporary)


def children_of(pid):
    try:
        return set(map(int, pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except FileNotFoundError:
        return set()


def audit(binaries, folder):
    done = subprocess.run([os.path.join(binaries, "lockstep"), "audit", os.path.join(folder, "data")],
                          capture_output=True, text=True, timeout=JOB_S, check=False)
    return done.stdout + done.stderr if done.returncode else ""


def metrics_in(folder):
    try:
        with open(os.path.join(folder, "metrics.csv"), encoding="utf-8") as file:
            return tuple((row["step"], row["epoch"], row["samples"], bool(row["train_loss"]), row.get("val_one"))
                         for row in csv.DictReader(file))
    except FileNotFoundError:
        return ()


def run_job(binaries, case):
    """The job; where a machine that leaves by SIGTERM or SIGINT has ended all of it, also the one that goes on."""
    with tempfile.TemporaryDirectory(prefix="lockstep_test_") as folder:
        outcome = Job(binaries, case, folder).finish()
        if outcome.code == PREEMPTED and case.may_be_preempted():
            resumed = Job(binaries, dataclasses.replace(case, faults=[]), folder).finish()
            resumed.errors = outcome.errors + resumed.errors
            resumed.lines = outcome.lines + resumed.lines
            return resumed
        if case.is_of_accelerator():
            outcome.audit = audit(binaries, folder)
            outcome.metrics = metrics_in(folder)
        return outcome
