"""Jobs whose ranks are lost while others keep their processes: no step is lost, and the end has the bits of
the undisturbed run.

    live_recovery.py LOCKSTEP RESILIENT_WORKER [unittest arguments]
"""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from free_ports import free_port
from launch_reports import failures, failures_of, recoveries
from live_job import DEADLINE_S, LiveJobTest

LOCKSTEP, WORKER = map(os.path.abspath, sys.argv[1:3])
LiveJobTest.LOCKSTEP, LiveJobTest.WORKER = LOCKSTEP, WORKER


class LiveRecovery(LiveJobTest):
    def expect_recoveries(self, victims, **options):
        """Kills the ranks of each list at once, at different steps."""
        job = self.start(**options)
        processes = job.wait_for_begin(options.get("ranks", 3))
        for number, ranks in enumerate(victims):
            job.wait_for_step(50 * (number + 1))
            for rank in ranks:
                os.kill(processes[rank], signal.SIGKILL)
            now = job.wait_for_begin(options.get("ranks", 3))
            for rank, process in processes.items():
                (self.assertNotEqual if rank in ranks else self.assertEqual)(now[rank], process, rank)
            processes = now
        self.expect_same_end(job, **options)
        # Deaths of one instant are seen one after the other.
        self.assertTrue(len(victims) <= recoveries(job.errors) <= sum(map(len, victims)), job.errors)

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

    # Where the one that takes a lost rank's place is killed, while another connects to it: in the default
    # group and, where the name is passed the second time, in new_group().
    WHILE_GROUPS_ARE_MADE = ("meet.joined:1", "connect.begin:1", "connect.reached:1", "group.begin:1", "connect.begin:2",
                             "connect.reached:2")

    def test_the_newcomer_dies_while_groups_are_made(self):
        self.need_failpoints()
        for backend in ("shm", "gloo"):
            for place in self.WHILE_GROUPS_ARE_MADE:
                for rank in (0, 1):
                    with self.subTest(backend=backend, place=place, rank=rank):
                        faults = f"step.begin:25:kill:{rank},{place}:kill:{rank}:1"
                        job = self.start(backend=backend, ranks=2, steps=60, environment={"LOCKSTEP_FAILPOINT": faults})
                        self.expect_same_end(job, backend=backend, ranks=2, steps=60)
                        self.expect_failpoints(job, faults)
                        self.assertEqual(recoveries(job.errors), 2, job.errors)
                        survivor = {pid for pid, text in job.said if text.startswith(f"rank {1 - rank} of")}
                        self.assertEqual(len(survivor), 1, job.said)

    def test_the_newcomer_dies_while_groups_of_two_machines_are_made(self):
        """Over shared memory within each, and Gloo between them."""
        self.need_failpoints()
        ends = None
        for place in (None, *self.WHILE_GROUPS_ARE_MADE):
            with self.subTest(place=place):
                faults = place and f"step.begin:25:kill:3,{place}:kill:3:1"
                job = self.job_of_machines({"LOCKSTEP_BACKEND": "hierarchical"} |
                                           ({"LOCKSTEP_FAILPOINT": faults} if place else {}))
                port = free_port()
                for domain in ("a", "b"):
                    self.machine(job, port, "2", ranks=2, steps=60, environment={"LOCKSTEP_MEMORY_DOMAIN": domain})
                self.assertEqual(job.finish(), [0, 0], job.errors)
                if place:
                    self.expect_failpoints(job, faults)
                    self.assertEqual(len({pid for pid, text in job.said if re.match("rank [012] of", text)}), 3)
                self.expect_no_step_lost(job)
                ends = ends or job.ends()
                self.assertEqual(job.ends(), ends)

    def test_one_is_stopped_while_groups_are_made_and_another_dies(self):
        """The rank that waits for the stopped one goes on with the others."""
        self.need_failpoints()
        for backend in ("shm", "gloo"):
            for place in ("connect.begin:2", "connect.reached:2"):
                with self.subTest(backend=backend, place=place):
                    faults = f"step.begin:25:kill:1,{place}:stop:1:1"
                    job = self.start(backend=backend, steps=60, environment={
                        "LOCKSTEP_FAILPOINT": faults, "LOCKSTEP_TIMEOUT_S": "5", "LOCKSTEP_INIT_TIMEOUT_S": "100"})
                    processes = job.wait_for_begin(3)
                    job.wait_for_error("stopped")
                    os.kill(processes[2], signal.SIGKILL)
                    self.expect_same_end(job, steps=60, backend=backend)
                    survivor = {pid for pid, text in job.said if text.startswith("rank 0 of")}
                    self.assertEqual(survivor, {processes[0]})

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
                                       r"steps or more is lost: .*Start the job again to begin with step 0; memory_every or snapshots")
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

    def wait_until_it_polls(self, pid):
        """A standby worker says that it starts; once it is ready it waits in poll() for the launcher."""
        until = time.monotonic() + DEADLINE_S
        while "poll" not in pathlib.Path(f"/proc/{pid}/wchan").read_text():
            self.assertLess(time.monotonic(), until, "the standby worker is not ready")
            time.sleep(0.01)

    def replace_by_standbys(self, job):
        """Kills two ranks of three, one after the other."""
        processes = job.wait_for_begin(3)
        for victim in (0, 2):
            # Stopped meanwhile, so that the training does not end before the standby worker is ready.
            for process in processes.values():
                os.kill(process, signal.SIGSTOP)
            standby, _ = job.wait_for(lambda pid, text: text == "starts" and pid not in processes.values())
            self.wait_until_it_polls(standby)
            for process in processes.values():
                os.kill(process, signal.SIGCONT)
            step = int(job.wait_for_step(0)[1].split()[1])
            job.wait_for_step(step + 10)
            os.kill(processes[victim], signal.SIGKILL)
            now = job.wait_for_begin(3)
            self.assertEqual(now[victim], standby)
            processes = now

    def test_a_standby_worker_takes_the_place(self):
        for backend in ("shm", "gloo"):
            with self.subTest(backend=backend):
                job = self.start("--standalone", "--max-restarts=10", "--standby=1", backend=backend, steps=2000)
                self.replace_by_standbys(job)
                self.expect_same_end(job, backend=backend, steps=2000)

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
        job = self.start("--standalone", "--standby=1", steps=2000)
        job.wait_for_begin(3)
        job.wait_for_error("no more standby workers: the last 3 ended before they were ready (exit code 3)")
        self.expect_same_end(job, backend="shm", steps=2000)
        self.assertEqual(sum(text == "starts" for _, text in job.said), 3)

    def test_a_standby_worker_that_is_ready_forgives_those_before(self):
        self.worker_whose_starts_fail(4, 5, 7, 8)
        steps = 2000
        job = self.start("--standalone", "--max-restarts=10", "--standby=1", steps=steps)
        self.replace_by_standbys(job)
        self.expect_same_end(job, backend="shm", steps=steps)

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

    def test_without_the_launcher_it_is_a_plain_loop(self):
        alone = subprocess.run([WORKER, "20"], capture_output=True, text=True, timeout=DEADLINE_S, check=True)
        self.assertEqual(alone.stdout.count(" step "), 20)

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
