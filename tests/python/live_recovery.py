"""Jobs whose ranks are lost while others keep their processes: no step is lost, and the end has the bits of
the undisturbed run.

    live_recovery.py LOCKSTEP RESILIENT_WORKER [unittest arguments]
"""

import os
import pathlib
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

from free_ports import free_port

LOCKSTEP, WORKER = map(os.path.abspath, sys.argv[1:3])
DEADLINE_S = 120


class Job:
    """Launchers of one job, whose workers' lines, of any, are read as they come."""

    def __init__(self, backend, environment=None):
        self.environment = os.environ | {"LOCKSTEP_BACKEND": backend, "OMP_NUM_THREADS": "1"} | (environment or {})
        self.lines = queue.Queue()
        self.error_lines = queue.Queue()
        self.said = []
        self.launchers = []
        self.readers = []

    def launch(self, command):
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, env=self.environment)
        process.errors = []
        self.launchers.append(process)
        for read in (self.read_lines, self.read_errors):
            self.readers.append(threading.Thread(target=read, args=[process]))
            self.readers[-1].start()
        return process

    def read_lines(self, process):
        for line in process.stdout:
            pid, text = line.rstrip("\n").split(" ", 1)
            self.lines.put((int(pid), text))

    def read_errors(self, process):
        for line in process.stderr:
            process.errors.append(line)
            self.error_lines.put(line)

    def kill(self):
        for process in self.launchers:
            process.kill()

    def wait_for(self, is_it):
        """The next line that is, as (pid, text)."""
        while True:
            line = self.lines.get(timeout=DEADLINE_S)
            self.said.append(line)
            if is_it(*line):
                return line

    def wait_for_step(self, step):
        """A line that a step of at least this number is done."""
        return self.wait_for(lambda pid, text: text.startswith("step ") and int(text.split()[1]) >= step)

    def wait_for_begin(self, world_size, ranks=None):
        """The processes that begin with a generation of that size, by rank."""
        begun = {}
        while len(begun) < (ranks or world_size):
            pid, text = self.wait_for(lambda pid, text: f" of {world_size} begins at " in text)
            begun[int(text.split()[1])] = pid
        return begun

    def wait_for_error(self, text):
        while text not in self.error_lines.get(timeout=DEADLINE_S):
            pass

    def finish(self):
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

    def ends(self):
        return {text for _, text in self.said if text.startswith("ends with ")}


class LiveRecovery(unittest.TestCase):
    undisturbed = {}

    def start(self, *flags, backend="shm", ranks=3, steps=300, arguments=(), environment=None):
        job = Job(backend, environment)
        self.addCleanup(job.kill)
        job.launch([LOCKSTEP, "run", *(flags or ("--standalone", "--max-restarts=100")),
                    f"--nproc-per-node={ranks}", WORKER, str(steps), *map(str, arguments)])
        return job

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
        recoveries = job.errors.count("the others keep their state and go on")
        self.assertTrue(len(victims) <= recoveries <= sum(map(len, victims)), job.errors)

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

    def test_all_die_at_once(self):
        job = self.start()
        processes = job.wait_for_begin(3)
        job.wait_for_step(50)
        for process in processes.values():
            os.kill(process, signal.SIGKILL)
        self.assertEqual(len({*processes.values(), *job.wait_for_begin(3).values()}), 6)
        self.expect_same_end(job)

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

    def test_it_makes_room_when_it_is_told_to(self):
        for backend in ("shm", "gloo"):
            with self.subTest(backend=backend), tempfile.TemporaryDirectory(prefix="lockstep_test_") as folder:
                arguments = (16, 0, 0, folder)
                job = self.start(backend=backend, arguments=arguments, steps=10**9)
                processes = job.wait_for_begin(3)
                job.wait_for_step(50)
                os.kill(processes[2], signal.SIGUSR1)
                self.assertEqual(job.finish(), [75], job.errors)
                saved = {text for _, text in job.said if text.startswith("saved after ")}
                self.assertEqual(len(saved), 1, saved)
                done = int(saved.pop().split()[-1])
                last = max(int(text.split()[1]) for _, text in job.said if text.startswith("step "))
                self.assertEqual(done, last + 1, "what was done was not saved")
                again = self.start(backend=backend, arguments=arguments)
                self.assertEqual(again.finish(), [0], again.errors)
                self.assertIn(f"rank 0 of 3 begins at {done}", {text for _, text in again.said})
                self.assertEqual(again.ends(), self.undisturbed_end(backend=backend))

    def test_it_makes_room_while_it_waits_for_a_machine(self):
        with tempfile.TemporaryDirectory(prefix="lockstep_test_") as folder:
            port = free_port()
            job = Job("gloo", {"LOCKSTEP_JOB_SECRET": "s" * 32})
            self.addCleanup(job.kill)
            arguments = (16, 0, 0, folder)
            self.machine(job, port, "2", arguments=arguments)
            other = self.machine(job, port, "2", arguments=arguments)
            job.wait_for_begin(2)
            job.wait_for_step(10)
            other.kill()
            job.wait_for_error("waiting: ")
            job.launchers[0].send_signal(signal.SIGTERM)
            self.assertEqual(job.finish(), [75, -signal.SIGKILL], job.errors)
            done = [int(text.split()[-1]) for _, text in job.said if text.startswith("saved after ")]
            last = max(int(text.split()[1]) for _, text in job.said if text.startswith("step "))
            self.assertEqual(done, [last + 1])

    def test_a_standby_worker_takes_the_place(self):
        for backend in ("shm", "gloo"):
            with self.subTest(backend=backend):
                job = self.start("--standalone", "--max-restarts=10", "--standby=1", backend=backend, steps=2000)
                processes = job.wait_for_begin(3)
                for victim in (0, 2):
                    standby, _ = job.wait_for(lambda pid, text: text == "starts" and pid not in processes.values())
                    # It says so before it is ready; a few steps later it is.
                    step = int(job.wait_for_step(0)[1].split()[1])
                    job.wait_for_step(step + 100)
                    os.kill(processes[victim], signal.SIGKILL)
                    now = job.wait_for_begin(3)
                    self.assertEqual(now[victim], standby)
                    processes = now
                self.expect_same_end(job, backend=backend, steps=2000)

    def test_one_that_hangs_is_named_and_replaced(self):
        for backend in ("shm", "gloo"):
            with self.subTest(backend=backend):
                job = self.start(backend=backend, environment={"LOCKSTEP_TIMEOUT_S": "2"})
                processes = job.wait_for_begin(3)
                job.wait_for_step(50)
                os.kill(processes[1], signal.SIGSTOP)
                now = job.wait_for_begin(3)
                self.assertEqual((now[0], now[2]), (processes[0], processes[2]))
                self.assertNotEqual(now[1], processes[1])
                self.expect_same_end(job, backend=backend)
                self.assertRegex(job.errors, r"rank 1 .* failed: killed, as it hung in .*(not complete within 2000 ms|gave up waiting)")

    def test_one_that_turns_in_circles_is_named_with_its_place(self):
        job = self.start("--standalone", "--max-restarts=10",
                         environment={"LOCKSTEP_TIMEOUT_S": "2", "RESILIENT_WORKER_FAULT": "hang:60"})
        self.expect_same_end(job)
        self.assertRegex(job.errors, r"rank 1 .* failed: killed, as it hung in .*turn_in_circles.*"
                                     r"(not complete within 2000 ms|gave up waiting).* \(in step 60\); restart 1 of 10")
        self.assertEqual(job.errors.count("restart"), 1, job.errors)

    def test_three_crashes_at_a_step_end_the_job(self):
        job = self.start("--standalone", "--max-restarts=10", environment={"RESILIENT_WORKER_FAULT": "crash:60"})
        self.assertEqual(job.finish(), [128 + signal.SIGSEGV], job.errors)
        self.assertRegex(job.errors, r"rank 1 .*SIGSEGV.* in .*crash_here")
        self.assertIn("3 times in a row", job.errors)
        self.assertEqual(job.errors.count("keep their state"), 2, job.errors)
        self.expect_no_step_lost(job)

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
        self.assertRegex(job.errors, "rank 1 .* failed first: killed by SIGKILL")
        self.assertEqual(job.ends(), set())

    def test_a_crash_is_named(self):
        job = self.start()
        processes = job.wait_for_begin(3)
        job.wait_for_step(20)
        os.kill(processes[2], signal.SIGSEGV)
        self.expect_same_end(job)
        self.assertRegex(job.errors, r"rank 2 \(.*\) failed: killed by SIGSEGV.*restart 1 of 100; the others keep")

    def test_without_the_launcher_it_is_a_plain_loop(self):
        alone = subprocess.run([WORKER, "20"], capture_output=True, text=True, timeout=DEADLINE_S, check=True)
        self.assertEqual(alone.stdout.count(" step "), 20)

    # Machines that come and go.

    def machine(self, job, port, nodes="1:2", ranks=1, arguments=()):
        return job.launch([LOCKSTEP, "run", f"--nnodes={nodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}",
                           "--rdzv-id=job", "--rdzv-conf=last_call_timeout=1,keep_alive_interval=1",
                           "--max-restarts=5", f"--nproc-per-node={ranks}", WORKER, str(10**9), *map(str, arguments)])

    def test_a_machine_joins_leaves_and_is_lost(self):
        port = free_port()
        job = Job("gloo", {"LOCKSTEP_JOB_SECRET": "s" * 32})
        self.addCleanup(job.kill)
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

    def test_a_launcher_is_told_to_stop_while_its_workers_wait_for_a_machine(self):
        port = free_port()
        job = Job("gloo", {"LOCKSTEP_JOB_SECRET": "s" * 32})
        self.addCleanup(job.kill)
        self.machine(job, port, "2")
        other = self.machine(job, port, "2")
        job.wait_for_begin(2)
        job.wait_for_step(10)
        other.kill()
        job.wait_for_error("waiting: ")
        job.launchers[0].send_signal(signal.SIGTERM)
        self.assertEqual(job.finish(), [128 + signal.SIGTERM, -signal.SIGKILL], job.errors)

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
