"""Jobs of resilient_worker whose ranks are lost, stopped and told to end while others keep their processes."""

import contextlib
import json
import os
import pathlib
import queue
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

from launch_reports import recoveries
from launcher_lines import read_lines

DEADLINE_S = 120
ANY_STEP = 2**62
# Of ranks that go on while others start, so that they are not at the end before.
STEPS_PER_S = 50


def wait_until_served(port):
    """The launcher that is started first serves the others."""
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            time.sleep(0.01)


class Job:
    """Launchers of one job, whose workers' lines, of any, are read as they come."""

    def __init__(self, backend, environment=None):
        self.environment = os.environ | {"LOCKSTEP_BACKEND": backend, "OMP_NUM_THREADS": "1"} | (environment or {})
        self.lines = queue.Queue()
        self.error_lines = queue.Queue()
        self.said = []
        self.launchers = []
        self.readers = []
        self.step = 0  # Of the last line of a step that was read.
        self.step_read = tempfile.NamedTemporaryFile(prefix="lockstep_test_")
        self.set_step_read(0)

    def launch(self, command, environment=None):
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, env=self.environment | (environment or {}))
        process.errors = []
        self.launchers.append(process)

        def on_error(line):
            process.errors.append(line)
            self.error_lines.put(line)

        self.readers += read_lines(process, lambda *line: self.lines.put(line), on_error)
        return process

    def kill(self):
        for process in self.launchers:
            process.kill()

    def set_step_read(self, step):
        """Workers of start() wait where they are many steps ahead of it."""
        os.pwrite(self.step_read.fileno(), step.to_bytes(8, sys.byteorder), 0)

    def wait_for(self, is_it):
        """The next line that is, as (pid, text)."""
        while True:
            line = self.next_line(DEADLINE_S)
            self.set_step_read(self.step)
            if is_it(*line):
                return line

    def next_line(self, timeout_s):
        line = self.lines.get(timeout=timeout_s)
        self.said.append(line)
        if line[1].startswith("step "):
            self.step = int(line[1].split()[1])
        return line

    def wait_for_step(self, step):
        """A line that a step of at least this number is done."""
        return self.wait_for(lambda pid, text: text.startswith("step ") and int(text.split()[1]) >= step)

    def wait_for_begin(self, world_size, ranks=None):
        """The processes that begin with a generation of that size, by rank. Meanwhile others make few steps."""
        begun = {}
        first, begin = self.step, time.monotonic()
        while len(begun) < (ranks or world_size):
            passed_s = time.monotonic() - begin
            self.set_step_read(min(self.step, first + int(STEPS_PER_S * passed_s)))
            try:
                pid, text = self.next_line(1 / STEPS_PER_S)
            except queue.Empty:
                if passed_s > DEADLINE_S:
                    raise
                continue
            if f" of {world_size} begins at " in text:
                begun[int(text.split()[1])] = pid
        self.set_step_read(self.step)
        return begun

    def wait_for_error(self, text):
        self.set_step_read(ANY_STEP)
        while text not in self.error_lines.get(timeout=DEADLINE_S):
            pass

    def log(self):
        """What the workers and launchers said until now, but for their steps."""
        while not self.lines.empty():
            self.said.append(self.lines.get())
        said = [f"{pid} {text}\n" for pid, text in self.said if not text.startswith("step ")]
        return "".join(said + [line for process in self.launchers for line in process.errors])

    def finish(self):
        self.set_step_read(ANY_STEP)
        codes = [process.wait(DEADLINE_S) for process in self.launchers]
        for reader in self.readers:
            reader.join()
        for process in self.launchers:
            process.stdout.close()
            process.stderr.close()
        while not self.lines.empty():
            self.said.append(self.lines.get())
        self.errors = "".join(line for process in self.launchers for line in process.errors)
        return codes

    def last_step(self):
        return max((int(text.split()[1]) for _, text in self.said if text.startswith("step ")), default=0)

    def saved(self):
        """After how many steps each preempted process saved."""
        return [int(text.split()[-1]) for _, text in self.said if text.startswith("saved after ")]

    def ends(self):
        return {text for _, text in self.said if text.startswith("ends with ")}


class LiveJobTest(unittest.TestCase):
    LOCKSTEP, WORKER = "", ""
    undisturbed = {}

    def run(self, result=None):
        """Shows the logs of the jobs of a test that fails."""
        self.jobs = []
        result = result or self.defaultTestResult()
        failed = len(result.failures + result.errors)
        super().run(result)
        if len(result.failures + result.errors) > failed:
            for job in self.jobs:
                print(f"A job of {self.id()}:\n{job.log()}", file=sys.stderr)
        return result

    def expect_failpoints(self, job, text):
        for name in re.findall(r"[a-z_]+\.[a-z_]+", text):
            self.assertIn(f"failpoint {name}, passed", job.errors)

    @classmethod
    def need_failpoints(cls):
        listed = subprocess.run([cls.LOCKSTEP, "env"], env=os.environ | {"LOCKSTEP_FAILPOINT": "list"},
                                capture_output=True, check=False, timeout=DEADLINE_S)
        if listed.returncode == 0:
            raise unittest.SkipTest("no failpoints in this build (LOCKSTEP_FAILPOINTS)")

    def add_job(self, backend, environment):
        job = Job(backend, environment)
        self.jobs.append(job)
        self.addCleanup(job.kill)
        return job

    def start(self, *flags, backend="shm", ranks=3, steps=300, arguments=(), environment=None):
        job = self.add_job(backend, environment)
        job.environment["LIVE_WORKER_STEP_READ"] = job.step_read.name
        job.launch([self.LOCKSTEP, "run", *(flags or ("--standalone", "--max-restarts=100")),
                    f"--nproc-per-node={ranks}", self.WORKER, str(steps), *map(str, arguments)])
        return job

    def wait_until_it_polls(self, pid):
        """A standby worker says that it starts; once it is ready it waits in poll() for the launcher."""
        until = time.monotonic() + DEADLINE_S
        while "poll" not in pathlib.Path(f"/proc/{pid}/wchan").read_text():
            self.assertLess(time.monotonic(), until, "the standby worker is not ready")
            time.sleep(0.01)

    @contextlib.contextmanager
    def stopped(self, processes):
        """The ranks make no step meanwhile."""
        for process in processes.values():
            os.kill(process, signal.SIGSTOP)
        yield
        for process in processes.values():
            os.kill(process, signal.SIGCONT)

    def wait_for_standby(self, job, processes):
        """A standby worker that is ready, beside the ranks' processes, which make no step until it is."""
        with self.stopped(processes):
            # It may have started before the ranks began, whose lines have been read.
            begun = {pid for pid, text in job.said if " begins at " in text}
            started = [pid for pid, text in job.said if text == "starts" and pid not in begun]
            standby = next((pid for pid in started if os.path.exists(f"/proc/{pid}")), None)
            if standby is None:
                standby, _ = job.wait_for(lambda pid, text: text == "starts" and pid not in processes.values())
            self.wait_until_it_polls(standby)
        return standby

    def undisturbed_end(self, **options):
        key = tuple(sorted(options.items()))
        if key not in self.undisturbed:
            job = self.start(**options)
            self.assertEqual(job.finish(), [0], job.errors)
            self.assertEqual(len(job.ends()), 1)
            self.undisturbed[key] = job.ends()
        return self.undisturbed[key]

    def expect_no_step_lost(self, job):
        """Each process goes from step to step; what it leaves out another has done and handed over."""
        done = {}
        for pid, text in job.said:
            if text.startswith("step "):
                step = int(text.split()[1])
                if pid in done:
                    self.assertIn(step - done[pid], (1, 2), f"{pid} went from {done[pid]} to {step}")
                done[pid] = step

    def expect_same_end(self, job, **options):
        self.assertEqual(job.finish(), [0], job.errors)
        self.expect_no_step_lost(job)
        self.assertEqual(job.ends(), self.undisturbed_end(**options))

    def expect_recoveries(self, victims, every=50, **options):
        """Kills the ranks of each list at once, after so many steps each."""
        ranks = options.get("ranks", 3)
        job = self.start(**options)
        processes = job.wait_for_begin(ranks)
        for number, killed in enumerate(victims):
            job.wait_for_step(every * (number + 1))
            for rank in killed:
                os.kill(processes[rank], signal.SIGKILL)
            now = job.wait_for_begin(ranks)
            for rank, process in processes.items():
                (self.assertNotEqual if rank in killed else self.assertEqual)(now[rank], process, rank)
            processes = now
        self.expect_same_end(job, **options)
        # Deaths of one instant are seen one after the other.
        self.assertTrue(len(victims) <= recoveries(job.errors) <= sum(map(len, victims)), job.errors)
        return job

    def job_of_machines(self, environment=None):
        return self.add_job("gloo", {"LOCKSTEP_JOB_SECRET": "s" * 32} | (environment or {}))

    def machine(self, job, port, nodes="1:2", ranks=1, arguments=(), steps=10**9, environment=None):
        return job.launch([self.LOCKSTEP, "run", f"--nnodes={nodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}",
                           "--rdzv-id=job", "--rdzv-conf=last_call_timeout=1,keep_alive_interval=1",
                           "--max-restarts=5", f"--nproc-per-node={ranks}", self.WORKER, str(steps),
                           *map(str, arguments)], environment)


class LiveAcceleratorTest(LiveJobTest):
    """Jobs of accelerator_worker."""

    # Whether a step may be void, and made again, after the program has said that it is made.
    VOID_AFTER_UPDATE = False

    def expect_no_step_lost(self, job):
        """Of each step, one process at least says that it is made; no process makes one twice."""
        made = {}
        for pid, text in job.said:
            if text.startswith("step "):
                check = self.assertGreaterEqual if self.VOID_AFTER_UPDATE else self.assertGreater
                check(int(text.split()[1]), made.get(pid, -1), f"{pid} made a step again")
                made[pid] = int(text.split()[1])

    def expect_recoveries(self, victims, **options):
        job = super().expect_recoveries(victims, every=20, **options)
        self.assertNotIn("wrong evaluation", str(job.said))
        self.expect_lines_once(job)
        return job

    def scale_and_kill(self, kind, steps, first, changes, folder):
        """A job of `first` ranks that is scaled to the ranks of each change; before, its victim is killed."""
        job = self.start("--standalone", "--max-restarts=3", steps=steps, ranks=first, arguments=(kind,),
                         environment={"ACCELERATOR_WORKER_FOLDER": folder})
        processes = job.wait_for_begin(first)
        for victim, ranks in changes:
            if victim is not None:
                job.wait_for_step(job.last_step() + 20)
                os.kill(processes[victim], signal.SIGKILL)
                job.wait_for_begin(len(processes))
            job.wait_for_step(job.last_step() + 20)
            self.scale(job, ranks)
            processes = job.wait_for_begin(ranks)
        self.assertEqual(job.finish(), [0], job.errors)
        self.assertEqual(len(job.ends()), 1)
        self.expect_no_step_lost(job)
        return self.expect_audited(folder)

    def expect_standby_takes_ranks(self, **options):
        options = {"steps": 120, **options}
        job = self.start("--standalone", "--max-restarts=9", "--standby=1", **options)
        processes = job.wait_for_begin(3)
        for victim in (1, 0):
            standby = self.wait_for_standby(job, processes)
            job.wait_for_step(job.last_step() + 20)
            os.kill(processes[victim], signal.SIGKILL)
            processes = job.wait_for_begin(3)
            self.assertEqual(processes[victim], standby)
        self.assertEqual(job.finish(), [0], job.errors)
        self.assertEqual(job.ends(), self.undisturbed_end(**options))

    def lines_of(self, folder):
        """Of a Trainer's metrics."""
        with open(os.path.join(folder, "metrics.jsonl"), encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        return [(line["step"], line["samples"], "train_loss" in line, "val_one" in line) for line in lines
                if "resumed" not in line]

    def expect_lines_once(self, job):
        printed = [text for _, text in job.said if text.startswith("epoch ")]
        self.assertEqual(len(printed), len(set(printed)), printed)

    def expect_audited(self, folder):
        audit = subprocess.run([self.LOCKSTEP, "audit", os.path.join(folder, "data"), "--json"], capture_output=True,
                               text=True, timeout=DEADLINE_S, check=False)
        self.assertEqual(audit.returncode, 0, audit.stdout + audit.stderr)
        return json.loads(audit.stdout)

    def scale(self, job, ranks):
        done = subprocess.run([self.LOCKSTEP, "scale", str(job.launchers[0].pid), str(ranks)], capture_output=True, text=True,
                              timeout=DEADLINE_S, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
