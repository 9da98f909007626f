"""Jobs whose ranks are lost while others keep their processes: no step is lost, and the end has the bits of
the undisturbed run.

    live_recovery.py LOCKSTEP RESILIENT_WORKER [unittest arguments]
"""

import glob
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))
from free_ports import free_port
from launch_reports import failures, failures_of
from live_job import DEADLINE_S, LiveJobTest

LOCKSTEP, WORKER = map(os.path.abspath, sys.argv[1:3])
LiveJobTest.LOCKSTEP, LiveJobTest.WORKER = LOCKSTEP, WORKER


def environment_of(pid):
    """That of its start."""
    with open(f"/proc/{pid}/environ") as file:
        return dict(line.split("=", 1) for line in file.read().split("\0") if "=" in line)


def fork_servers(worker):
    """Those of the job of this worker."""
    mark = environment_of(worker)["LOCKSTEP_JOB"]
    found = []
    for path in glob.glob("/proc/[0-9]*/comm"):
        try:
            pid = int(path.split("/")[2])
            with open(path) as file:
                if file.read() == "fork-server\n" and environment_of(pid).get("LOCKSTEP_JOB") == mark:
                    found.append(pid)
        except (FileNotFoundError, ProcessLookupError):
            pass
    return found


class LiveRecovery(LiveJobTest):
    def test_any_rank_may_die(self):
        self.expect_recoveries([[0], [2], [1], [0]])

    def test_any_rank_may_die_over_gloo(self):
        self.expect_recoveries([[0], [2], [1], [0]], backend="gloo")

    def test_two_of_four_at_once(self):
        self.expect_recoveries([[0, 3], [1, 2]], ranks=4)

    def test_one_of_two_across_machines_that_share_no_memory(self):
        self.expect_recoveries([[1], [0]], backend="hierarchical", ranks=2)

    def test_the_newcomer_dies_too(self):
        for backend in ("shm", "gloo"):
            with self.subTest(backend=backend):
                job = self.start(backend=backend)
                processes = job.wait_for_begin(3)
                job.wait_for_step(50)
                os.kill(processes[1], signal.SIGKILL)
                for _ in range(3):
                    newcomer, _ = job.wait_for(lambda pid, text: text == "starts")
                    os.kill(newcomer, signal.SIGKILL)
                now = job.wait_for_begin(3)
                self.assertEqual((now[0], now[2]), (processes[0], processes[2]))
                self.expect_same_end(job, backend=backend)

    def test_replacements_are_forked_and_executed_where_the_fork_server_is_lost(self):
        job = self.start()
        processes = job.wait_for_begin(3)
        for number, rank in enumerate((1, 2, 0)):
            job.wait_for_step(50 * (number + 1))
            servers = fork_servers(processes[0])
            self.assertEqual(len(servers), 1)
            if number == 1:
                os.kill(servers[0], signal.SIGKILL)
            os.kill(processes[rank], signal.SIGKILL)
            now = job.wait_for_begin(3)
            # Only one that is executed has been asked for a server.
            self.assertEqual("LOCKSTEP_FORK_SERVER_FD" in environment_of(now[rank]), number == 1)
            self.assertEqual(environment_of(now[rank])["RANK"], str(rank))
            processes = now
        self.expect_same_end(job)

    def test_all_die_at_once_and_no_step_is_made_again(self):
        job = self.start()
        processes = job.wait_for_begin(3)
        job.wait_for_step(50)
        for process in processes.values():
            os.kill(process, signal.SIGKILL)
        self.assertEqual(job.finish(), [1], job.errors)
        failure = failures(job.errors)[-1]
        self.assertEqual((failure.is_first, failure.exit_code), (True, 1), job.errors)
        self.assertRegex(failure.said, r"Error: ResilientTraining on rank \d: the state after (5\d|[6-9]\d|\d{3}) "
                                       r"steps or more is lost: .*; start the job again from step 0; set memory_every or snapshots")
        # Deaths of one instant are seen one after the other; the error is no restart.
        self.assertLessEqual(job.errors.count("; restart "), 3, job.errors)
        self.assertEqual(sum(" begins at " in text for _, text in job.said), 3, "nothing begins again")

    def test_all_die_before_the_first_step_and_begin_again(self):
        self.need_failpoints()
        job = self.start(steps=60, environment={"LOCKSTEP_FAILPOINT": "step.begin:1:kill"})
        self.assertEqual(job.finish(), [0], job.errors)
        self.assertEqual(job.ends(), self.undisturbed_end(steps=60))

    def test_all_die_at_once_with_a_copy_in_memory(self):
        for backend in ("shm", "gloo"):
            with self.subTest(backend=backend):
                job = self.start(backend=backend, arguments=(16, 10))
                for round in range(1, 4):
                    processes = job.wait_for_begin(3)
                    job.wait_for_step(70 * round)
                    for process in processes.values():
                        os.kill(process, signal.SIGKILL)
                self.assertEqual(job.finish(), [0], job.errors)
                self.assertEqual(job.ends(), self.undisturbed_end(backend=backend))
                begins = [int(text.split()[-1]) for _, text in job.said if "begins at" in text]
                for round in range(1, 4):
                    latest = begins[3 * round]
                    self.assertGreaterEqual(latest, 70 * round - 10, "more than ten steps lost")
                    self.assertEqual(latest % 10, 0)

    def test_all_die_at_once_with_a_snapshot_newer_than_the_copy_in_memory(self):
        with tempfile.TemporaryDirectory(prefix="lockstep_test_") as folder:
            job = self.start(arguments=(16, 40, 25, folder))
            processes = job.wait_for_begin(3)
            job.wait_for_step(50)
            for process in processes.values():
                os.kill(process, signal.SIGKILL)
            job.wait_for_begin(3)
            self.assertEqual(job.finish(), [0], job.errors)
            self.assertEqual(job.ends(), self.undisturbed_end())
            last = max(int(text.split()[1]) for pid, text in job.said
                       if text.startswith("step ") and pid in processes.values())
            # The latest of the multiples of 25 and of 40, unless they were killed while they wrote it.
            kept = sorted(step for step in range(1, last + 2) if step % 25 == 0 or step % 40 == 0)
            begins = [int(text.split()[-1]) for _, text in job.said if "begins at" in text]
            self.assertIn(begins[3], kept[-2:])

    def test_a_snapshot_on_disk_for_a_job_that_is_started_again(self):
        with tempfile.TemporaryDirectory(prefix="lockstep_test_") as folder:
            job = self.start(arguments=(16, 0, 25, folder))
            job.wait_for_step(60)
            job.launchers[0].kill()
            job.finish()
            # With another number of ranks the samples are others; the same number goes on as it would have.
            again = self.start(arguments=(16, 0, 25, folder))
            self.assertEqual(again.finish(), [0], again.errors)
            self.assertEqual(again.ends(), self.undisturbed_end())
            begins = {int(text.split()[-1]) for _, text in again.said if "begins at" in text}
            self.assertEqual(len(begins), 1)
            self.assertGreaterEqual(begins.pop(), 50)

    def test_a_launcher_that_is_a_rank_of_another_job_by_its_environment(self):
        job = self.start(environment={"RANK": "7", "WORLD_SIZE": "9", "LOCAL_RANK": "5", "MASTER_PORT": "1"})
        processes = job.wait_for_begin(3)
        job.wait_for_step(50)
        os.kill(processes[0], signal.SIGKILL)
        self.assertEqual(sorted(job.wait_for_begin(3)), [0, 1, 2])
        self.expect_same_end(job)

    def test_a_port_that_the_user_chose(self):
        port = free_port()
        job = self.start("--max-restarts=5", f"--master-port={port}")
        for victim in (0, 1):
            processes = job.wait_for_begin(3)
            job.wait_for_step(50)
            os.kill(processes[victim], signal.SIGKILL)
        self.expect_same_end(job)

    def test_restarts_are_counted(self):
        job = self.start("--standalone", "--max-restarts=1", steps=10**9)
        for _ in range(2):
            processes = job.wait_for_begin(3)
            job.wait_for_step(10)
            os.kill(processes[1], signal.SIGKILL)
        self.assertEqual(job.finish(), [128 + signal.SIGKILL])
        first, last = failures_of(1, job.errors)
        self.assertEqual((first.is_first, first.signal, first.restart), (False, "SIGKILL", 1), job.errors)
        self.assertEqual((last.is_first, last.signal, last.restart), (True, "SIGKILL", None), job.errors)
        self.assertGreaterEqual(last.step, first.step)
        self.assertEqual(job.ends(), set())

    def test_a_crash_is_named(self):
        job = self.start()
        processes = job.wait_for_begin(3)
        job.wait_for_step(20)
        os.kill(processes[2], signal.SIGSEGV)
        self.expect_same_end(job)
        failure, = failures_of(2, job.errors)
        self.assertEqual((failure.pid, failure.signal, failure.restart, bool(failure.kept)),
                         (processes[2], "SIGSEGV", 1, True), job.errors)
        self.assertIsNotNone(failure.step, job.errors)
        # The others did not wait for its stack's names.
        self.assertRegex(job.errors, rf"(?s)restart 1 of .*rank 2 \(pid {processes[2]}\) crashed: SIGSEGV sent by .*"
                                     r"stack:  .*\n(lockstep:           .*\n)*?lockstep:           .+ in \S+\n")

    def test_a_crash_that_ends_the_job_is_explained_once(self):
        job = self.start("--standalone", "--max-restarts=1", environment={"RESILIENT_WORKER_FAULT": "crash:60"})
        self.assertEqual(job.finish(), [128 + signal.SIGSEGV], job.errors)
        self.assertEqual([failure.is_first for failure in failures_of(1, job.errors)], [False, True], job.errors)
        self.assertEqual(job.errors.count("lockstep:   stack: "), 2, job.errors)

    def test_without_the_launcher_it_is_a_plain_loop(self):
        alone = subprocess.run([WORKER, "20"], capture_output=True, text=True, timeout=DEADLINE_S, check=True)
        self.assertEqual(alone.stdout.count(" step "), 20)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]] + sys.argv[3:])
