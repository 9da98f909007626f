"""Standby workers, and jobs whose number of workers or machines changes: the ranks that stay keep their state.

    live_standby.py LOCKSTEP RESILIENT_WORKER [unittest arguments]
"""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))
from free_ports import free_port
from live_job import DEADLINE_S, LiveJobTest

LOCKSTEP, WORKER = map(os.path.abspath, sys.argv[1:3])
LiveJobTest.LOCKSTEP, LiveJobTest.WORKER = LOCKSTEP, WORKER


class LiveStandby(LiveJobTest):
    STEPS = 500  # The ranks make some between the moments at which they are stopped.

    def replace_by_standbys(self, job):
        """Kills two ranks of three, one after the other."""
        processes = job.wait_for_begin(3)
        for victim in (0, 2):
            standby = self.wait_for_standby(job, processes)
            step = int(job.wait_for_step(0)[1].split()[1])
            job.wait_for_step(step + 10)
            os.kill(processes[victim], signal.SIGKILL)
            now = job.wait_for_begin(3)
            self.assertEqual(now[victim], standby)
            processes = now

    def test_a_standby_worker_takes_the_place(self):
        for backend in ("shm", "gloo"):
            with self.subTest(backend=backend):
                job = self.start("--standalone", "--max-restarts=10", "--standby=1", backend=backend, steps=300)
                self.replace_by_standbys(job)
                self.expect_same_end(job, backend=backend, steps=300)

    def test_a_standby_worker_has_a_copy_that_was_made_after_it_started(self):
        """The other rank is killed before it has sent the state."""
        self.need_failpoints()
        options = {"ranks": 2, "steps": self.STEPS, "arguments": (16, 200)}
        job = self.start("--standalone", "--max-restarts=10", "--standby=1",
                         environment={"LOCKSTEP_FAILPOINT": "recover.grouped:2:kill:1"}, **options)
        processes = job.wait_for_begin(2)
        standby = self.wait_for_standby(job, processes)
        self.assertLess(job.last_step(), 199)
        job.wait_for_step(205)
        os.kill(processes[0], signal.SIGKILL)
        now = job.wait_for_begin(2)
        self.assertEqual((now[0], now[1] in processes.values()), (standby, False))
        self.assertEqual(job.finish(), [0], job.errors)
        self.expect_failpoints(job, "recover.grouped")
        begins = [int(text.split()[-1]) for _, text in job.said if "begins at" in text]
        self.assertEqual(begins, [0, 0, 200, 200])
        self.assertEqual(job.ends(), self.undisturbed_end(**options))

    def worker_whose_starts_fail(self, *numbers):
        """A worker that ends at once when it is the first, second, … process of the job that starts."""
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        worker = pathlib.Path(folder, "worker.sh")
        worker.write_text(f"""#!/bin/sh
echo >> {folder}/starts
case " {' '.join(map(str, numbers))} " in *" $(wc -l < {folder}/starts) "*) exit 3; esac
exec {WORKER} "$@"
""")
        worker.chmod(0o755)
        self.WORKER = str(worker)

    def test_standby_workers_that_fail_in_a_row_are_given_up(self):
        self.worker_whose_starts_fail(4, 5, 6)
        job = self.start("--standalone", "--standby=1")
        with self.stopped(job.wait_for_begin(3)):
            job.wait_for_error("no more standby workers: the last 3 ended before they were ready (exit code 3)")
        self.expect_same_end(job, backend="shm")
        self.assertEqual(sum(text == "starts" for _, text in job.said), 3)

    def test_a_standby_worker_that_is_ready_forgives_those_before(self):
        self.worker_whose_starts_fail(4, 5, 7, 8)
        job = self.start("--standalone", "--max-restarts=10", "--standby=1", steps=self.STEPS)
        self.replace_by_standbys(job)
        self.expect_same_end(job, backend="shm", steps=self.STEPS)

    # Machines that come and go.

    def test_a_machine_joins_leaves_and_is_lost(self):
        port = free_port()
        job = self.job_of_machines()
        self.machine(job, port, ranks=2)
        first = job.wait_for_begin(2)
        for how in (signal.SIGTERM, signal.SIGKILL):
            job.wait_for_step(10)
            other = self.machine(job, port)
            both = job.wait_for_begin(3)
            self.assertEqual((both[0], both[1]), (first[0], first[1]))
            step = int(job.wait_for_step(0)[1].split()[1])
            job.wait_for_step(step + 50)
            other.send_signal(how)
            alone = job.wait_for_begin(2)
            self.assertEqual(alone, first)
        step = int(job.wait_for_step(0)[1].split()[1])
        job.wait_for_step(step + 50)
        job.launchers[0].send_signal(signal.SIGTERM)
        job.finish()
        self.expect_no_step_lost(job)

    def test_workers_are_added_and_taken_away(self):
        folder = tempfile.TemporaryDirectory(prefix="lockstep_test_")
        self.addCleanup(folder.cleanup)
        job = self.start("--standalone", "--max-restarts=1", ranks=2, steps=10**9,
                         environment={"TMPDIR": folder.name})
        before = job.wait_for_begin(2)
        for count in (3, 1, 2):
            job.wait_for_step(10)
            subprocess.run([LOCKSTEP, "scale", str(count)], env=job.environment, check=True,
                           timeout=DEADLINE_S, capture_output=True)
            now = job.wait_for_begin(count)
            for rank in range(min(count, len(before))):
                self.assertEqual(now[rank], before[rank])
            before = now
        job.launchers[0].send_signal(signal.SIGTERM)
        job.finish()
        self.expect_no_step_lost(job)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]] + sys.argv[3:])
