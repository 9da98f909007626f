"""Preempted jobs: all ranks save at the same step, end with code 75 and go on from there
when they are started again, bit for bit.

    preemption.py LOCKSTEP PREEMPT_WORKER [unittest arguments]
"""

import os
import pathlib
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

LOCKSTEP, WORKER = map(os.path.abspath, sys.argv[1:3])
DEADLINE_S = 120
# More than there is time for: such a run ends by being preempted.
ENDLESS = 10**9
PREEMPTED = 75


class Job:
    """A launcher whose lines are read as they come."""

    def __init__(self, folder, *flags, steps=ENDLESS, backend="shm", ranks=2):
        environment = os.environ | {"LOCKSTEP_BACKEND": backend, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [LOCKSTEP, "run", "--standalone", f"--nproc-per-node={ranks}", *flags, WORKER, str(steps), folder],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        self.lines = queue.Queue()
        self.reader = threading.Thread(target=self.read)
        self.reader.start()
        self.said = []

    def read(self):
        for line in self.process.stdout:
            self.lines.put(line.rstrip("\n"))

    def wait_for(self, begin):
        while not self.said or not self.said[-1].startswith(begin):
            self.said.append(self.lines.get(timeout=DEADLINE_S))

    def workers(self):
        children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text("ascii")
        return [int(pid) for pid in children.split()
                if pathlib.Path(f"/proc/{pid}/cmdline").read_text("ascii").startswith(WORKER)]

    def ended(self):
        code = self.process.wait(DEADLINE_S)
        self.reader.join()
        while not self.lines.empty():
            self.said.append(self.lines.get())
        self.errors = self.process.stderr.read()
        self.process.stderr.close()
        self.process.stdout.close()
        return code

    def last(self, begin):
        return int([line for line in self.said if line.startswith(begin)][-1].split()[-1])


def launcher(job):
    return job.process.pid


def rank(number):
    return lambda job: job.workers()[number]


class PreemptionTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lockstep_test_")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def start(self, name, *flags, **options):
        job = Job(os.path.join(self.folder, name), *flags, **options)
        self.addCleanup(job.process.kill)
        return job

    def bits(self, job):
        self.assertEqual(job.ended(), 0, job.errors)
        return job.said[-1]

    def preempt(self, job, whom, sent, after):
        """Where it saved."""
        job.wait_for(f"step {after}")
        os.kill(whom(job), sent)
        self.assertEqual(job.ended(), PREEMPTED, job.errors)
        saved, done = job.last("saved "), job.last("step ")
        self.assertEqual(saved, done, "what was done was not saved")
        return saved

    def expect_same_end(self, cases, flags=(), **options):
        saved = -1
        for whom, sent, after in cases:
            job = self.start("preempted", *flags, **options)
            saved_now = self.preempt(job, whom, sent, max(after, saved + 1))
            self.assertEqual(job.last("begins at "), saved + 1)
            self.assertIn("preempted", job.errors)
            self.assertEqual(len(re.findall("start the job again to resume", job.errors)), 1, job.errors)
            saved = saved_now
        steps = saved + 50
        last = self.start("preempted", *flags, steps=steps, **options)
        undisturbed = self.start("undisturbed", steps=steps, **options)
        self.assertEqual(self.bits(last), self.bits(undisturbed))
        self.assertEqual(last.last("begins at "), saved + 1)

    def test_a_signal_to_the_launcher_or_to_any_rank(self):
        self.expect_same_end([(launcher, signal.SIGTERM, 20), (rank(0), signal.SIGUSR1, 60),
                              (rank(1), signal.SIGTERM, 100)], ["--max-restarts=3"])

    def test_over_gloo_and_with_three_ranks(self):
        self.expect_same_end([(rank(2), signal.SIGUSR1, 5), (launcher, signal.SIGTERM, 40)],
                             backend="gloo", ranks=3)

    def test_one_rank(self):
        self.expect_same_end([(launcher, signal.SIGTERM, 20)], ranks=1)

    def test_a_notice_by_the_launcher(self):
        self.expect_same_end([(launcher, signal.SIGUSR1, 20)], ["--notify-signals=SIGUSR1"])

    def test_a_notice_before_a_worker_listens(self):
        """It is told once it does, and not ended."""
        with tempfile.TemporaryDirectory(prefix="lockstep_test_") as folder:
            go = pathlib.Path(folder, "go")
            script = f'echo starts; until [ -e {go} ]; do sleep 0.02; done; trap "echo told; exit 0" USR1; while :; do sleep 0.05; done'
            job = subprocess.Popen([LOCKSTEP, "run", "--notify-signals=USR1", "sh", "-c", script], stdout=subprocess.PIPE, text=True)
            self.addCleanup(job.kill)
            self.assertEqual(job.stdout.readline(), "starts\n")
            job.send_signal(signal.SIGUSR1)
            os.kill(job.pid, 0)
            go.touch()
            self.assertEqual(job.communicate(timeout=DEADLINE_S)[0], "told\n")
            self.assertEqual(job.returncode, 0)

    def test_a_second_signal_finds_it_on_its_way_out(self):
        for number in range(5):
            job = self.start(f"told_twice_{number}")
            job.wait_for("step 20")
            os.kill(rank(1)(job), signal.SIGUSR1)
            job.wait_for("saved")
            job.process.terminate()
            self.assertEqual(job.ended(), PREEMPTED, job.errors)

    def test_a_notice_stops_nothing(self):
        script = 'trap "echo told $RANK" USR1; echo ready; while :; do sleep 0.05; done'
        job = subprocess.Popen([LOCKSTEP, "run", "--nproc-per-node=2", "--notify-signals=USR1", "sh", "-c", script],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(job.kill)
        self.assertEqual([job.stdout.readline() for _ in range(2)], ["ready\n"] * 2)
        job.send_signal(signal.SIGUSR1)
        self.assertEqual({job.stdout.readline() for _ in range(2)}, {"told 0\n", "told 1\n"})
        job.terminate()
        errors = job.communicate(timeout=DEADLINE_S)[1]
        self.assertEqual(job.returncode, 128 + signal.SIGTERM, errors)

    def test_a_signal_that_stops_cannot_be_a_notice(self):
        result = subprocess.run([LOCKSTEP, "run", "--notify-signals=TERM", "true"], capture_output=True, text=True,
                                timeout=DEADLINE_S, check=False)
        self.assertEqual(result.returncode, 2)
        self.assertIn("SIGTERM stops the job, by --signals-to-handle", result.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
