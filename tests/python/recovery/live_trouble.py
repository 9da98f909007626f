"""Jobs whose ranks hang, fail again and again, or are preempted, at any time: who it was is said, the
others keep their processes, and no step is lost.

    live_trouble.py LOCKSTEP RESILIENT_WORKER [unittest arguments]
"""

import os
import pathlib
import signal
import sys
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))
from free_ports import free_port
from launch_reports import failures, failures_of, hangs, recoveries, restarts
from live_job import LiveJobTest, wait_until_served

LiveJobTest.LOCKSTEP, LiveJobTest.WORKER = map(os.path.abspath, sys.argv[1:3])


def parent_of(process):
    return int(pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


# What others say of a rank that is late, whose deadline passed first or later.
LATE = "(not complete within 2000 ms|the timeout of .* expired)"


class Hangs(LiveJobTest):
    def expect_replaced(self, job, rank, said):
        """That one was killed as it hung, in a step; the report has `said`."""
        failure = next(failure for failure in failures_of(rank, job.errors) if failure.is_hang)
        self.assertIsNotNone(failure.step, job.errors)
        self.assertRegex(failure.said, "^ in .*" + said)
        return failure

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
                hang = hangs(job.errors)[0]
                self.assertEqual((hang.rank, hang.group), (1, "default"), job.errors)
                self.assertTrue(hang.is_stopped, job.errors)
                self.assertTrue(hang.main_thread, job.errors)
                self.assertTrue({0, 2}.issuperset(hang.waiting) and hang.waiting, job.errors)
                self.assertGreaterEqual(hang.waited_ms, 2000)
                self.expect_replaced(job, 1, LATE)

    def test_one_that_turns_in_circles_is_named_with_its_place(self):
        job = self.start("--standalone", "--max-restarts=10",
                         environment={"LOCKSTEP_TIMEOUT_S": "2", "RESILIENT_WORKER_FAULT": "hang:60"})
        self.expect_same_end(job)
        failure = self.expect_replaced(job, 1, "turn_in_circles.*" + LATE)
        self.assertEqual((failure.step, failure.restart), (60, 1), job.errors)
        self.assertEqual(job.errors.count("restart"), 1, job.errors)
        self.assertEqual(job.errors.count("hang: "), 1, job.errors)

    def test_hangs_at_different_steps_do_not_end_the_job(self):
        job = self.start("--standalone", "--max-restarts=10", environment={"LOCKSTEP_TIMEOUT_S": "1"}, ranks=2)
        for _ in range(3):
            processes = job.wait_for_begin(2)
            job.wait_for_step(int(job.wait_for_step(0)[1].split()[1]) + 10)
            os.kill(processes[1], signal.SIGSTOP)
        job.wait_for_begin(2)
        self.expect_same_end(job, ranks=2)
        self.assertEqual([hang.rank for hang in hangs(job.errors)], [1] * 3, job.errors)

    def test_three_crashes_at_a_step_end_the_job(self):
        job = self.start("--standalone", "--max-restarts=10", environment={"RESILIENT_WORKER_FAULT": "crash:60"})
        self.assertEqual(job.finish(), [128 + signal.SIGSEGV], job.errors)
        last = failures(job.errors)[-1]
        self.assertEqual((last.rank, last.is_first, last.step, last.signal), (1, True, 60, "SIGSEGV"), job.errors)
        self.assertIn("crash_here", last.said)
        self.assertIn("3 times in a row", job.errors)
        self.assertEqual(job.errors.count("lockstep:   stack:"), 3, job.errors)
        self.assertEqual(sum(bool(failure.kept) for failure in failures(job.errors)), 2, job.errors)
        self.expect_no_step_lost(job)

    def test_one_alone_on_its_machine(self):
        job = self.job_of_machines({"LOCKSTEP_TIMEOUT_S": "2"})
        port = free_port()
        self.machine(job, port, "2")
        other = self.machine(job, port, "2")
        processes = job.wait_for_begin(2)
        job.wait_for_step(50)
        os.kill(processes[1], signal.SIGSTOP)
        now = job.wait_for_begin(2)
        self.assertEqual(now[0], processes[0])
        self.assertNotEqual(now[1], processes[1])
        job.wait_for_step(int(job.wait_for_step(0)[1].split()[1]) + 10)
        for launcher in job.launchers:
            launcher.send_signal(signal.SIGTERM)
        job.finish()
        self.expect_no_step_lost(job)
        errors = "".join(other.errors) + "".join(job.launchers[0].errors)
        self.assertEqual([(failure.rank, failure.is_hang) for failure in failures(errors)], [(1, True)], errors)
        failure, = failures(errors)
        self.assertEqual(set(restarts(errors)), {1}, errors)
        self.assertRegex(failure.said, "^ in .*left its group: ")
        self.assertRegex(errors, "hang: the late rank is on another machine; all ranks here are in .* of group 'default'")
        self.assertEqual([hang.rank for hang in hangs(errors)], [1], errors)
        hang, = hangs(errors)
        self.assertTrue(hang.is_stopped, errors)
        self.assertTrue(hang.main_thread, errors)

    def test_one_stopped_while_another_dies(self):
        """It is kept, as nobody was late, and does not take the place that it is given."""
        job = self.start(environment={"LOCKSTEP_TIMEOUT_S": "2"})
        processes = job.wait_for_begin(3)
        job.wait_for_step(50)
        os.kill(processes[2], signal.SIGSTOP)
        os.kill(processes[1], signal.SIGKILL)
        now = job.wait_for_begin(3)
        self.assertEqual(now[0], processes[0])
        self.assertTrue({now[1], now[2]}.isdisjoint(processes.values()))
        self.expect_same_end(job)
        self.expect_replaced(job, 2, "it did not join generation 2 within 2000 ms")

    def test_one_that_is_busy_while_others_wait_to_meet_is_no_hang(self):
        """It has the deadline of a collective to take its place, though others give up meeting before."""
        job = self.start(ranks=2, environment={"LOCKSTEP_TIMEOUT_S": "60", "LOCKSTEP_INIT_TIMEOUT_S": "2"})
        processes = job.wait_for_begin(2)
        job.wait_for_step(50)
        os.kill(processes[0], signal.SIGSTOP)
        os.kill(processes[1], signal.SIGKILL)
        job.wait_for_error("hang: ")  # Of the one that came in place of rank 1.
        os.kill(processes[0], signal.SIGCONT)
        now = job.wait_for_begin(2)
        self.assertEqual(now[0], processes[0])
        self.expect_same_end(job, ranks=2)

    def test_an_error_of_communication_that_comes_again_ends_the_job(self):
        job = self.start("--standalone", "--max-restarts=10", environment={"RESILIENT_WORKER_FAULT": "cut:60"})
        self.assertEqual(job.finish(), [1], job.errors)
        self.assertRegex(job.errors, r"rank 1 .* left its group: .*the cable is cut.*3 times in a row")
        self.assertEqual(recoveries(job.errors), 2, job.errors)

    def test_one_that_fails_while_it_waits_is_named(self):
        port = free_port()
        job = self.job_of_machines()
        self.machine(job, port, "2", ranks=2)
        wait_until_served(port)
        other = self.machine(job, port, "2")
        processes = job.wait_for_begin(3)
        victim, survivor = (process for process in processes.values() if parent_of(process) == job.launchers[0].pid)
        job.wait_for_step(10)
        other.kill()
        job.wait_for_error("waiting: ")
        os.kill(victim, signal.SIGSEGV)
        job.wait_for_error("while it waited for the next generation")
        self.machine(job, port, "2")
        now = job.wait_for_begin(3)
        self.assertIn(survivor, now.values())
        self.assertNotIn(victim, now.values())
        for launcher in job.launchers:
            launcher.send_signal(signal.SIGTERM)
        job.finish()
        self.expect_no_step_lost(job)


class Divergence(LiveJobTest):
    def test_a_bit_that_flips_in_one_of_three(self):
        job = self.start(environment={"RESILIENT_WORKER_FAULT": "flip:60"})
        self.expect_same_end(job)
        self.assertRegex(job.errors, "after step 60 the parameters of rank 1 differ from rank 0's, which replace them")
        self.assertEqual(job.errors.count("differ"), 1, job.errors)

    def test_a_bit_that_flips_in_one_of_two(self):
        """Nobody knows whose is right: they go on from the last copy, where it flips again, until it is enough."""
        job = self.start("--standalone", "--max-restarts=2", ranks=2, arguments=(16, 10),
                         environment={"RESILIENT_WORKER_FAULT": "flip:60"})
        self.assertEqual(job.finish(), [1], job.errors)
        self.assertIn("the parameters of rank 1 differ from rank 0's, and no state has a majority", job.errors)
        begins = [int(text.split()[-1]) for _, text in job.said if "begins at" in text]
        self.assertEqual(begins, [0, 0, 60, 60, 60, 60])
        self.assertEqual(job.ends(), set())


class MakingRoom(LiveJobTest):
    def test_it_makes_room_when_it_is_told_to(self):
        for backend in ("shm", "gloo"):
            with self.subTest(backend=backend), tempfile.TemporaryDirectory(prefix="lockstep_test_") as folder:
                arguments = (16, 0, 0, folder)
                job = self.start(backend=backend, arguments=arguments, steps=10**9)
                processes = job.wait_for_begin(3)
                job.wait_for_step(50)
                os.kill(processes[2], signal.SIGUSR1)
                self.assertEqual(job.finish(), [75], job.errors)
                saved = set(job.saved())
                self.assertEqual(len(saved), 1, saved)
                done = saved.pop()
                self.assertEqual(done, job.last_step() + 1, "what was done was not saved")
                again = self.start(backend=backend, arguments=arguments)
                self.assertEqual(again.finish(), [0], again.errors)
                self.assertIn(f"rank 0 of 3 begins at {done}", {text for _, text in again.said})
                self.assertEqual(again.ends(), self.undisturbed_end(backend=backend))

    def test_what_cannot_be_saved_is_no_preemption(self):
        """Which would be taken for a state that is on disk."""
        with tempfile.TemporaryDirectory(prefix="lockstep_test_") as parent:
            folder = os.path.join(parent, "snapshots")
            job = self.start(arguments=(16, 0, 0, folder))
            job.wait_for_begin(3)
            job.wait_for_step(50)
            with open(folder, "w", encoding="utf-8"):
                pass  # In the way of the folder.
            job.launchers[0].send_signal(signal.SIGTERM)
            self.assertEqual(job.finish(), [128 + signal.SIGTERM], job.errors)
            self.assertRegex(job.errors, r"preempted after \d+ steps, but the state is not saved: make the snapshot directory")

    def test_it_makes_room_while_it_waits_for_a_machine(self):
        with tempfile.TemporaryDirectory(prefix="lockstep_test_") as folder:
            port = free_port()
            job = self.job_of_machines()
            arguments = (16, 0, 0, folder)
            self.machine(job, port, "2", arguments=arguments)
            other = self.machine(job, port, "2", arguments=arguments)
            job.wait_for_begin(2)
            job.wait_for_step(10)
            other.kill()
            job.wait_for_error("waiting: ")
            job.launchers[0].send_signal(signal.SIGTERM)
            self.assertEqual(job.finish(), [75, -signal.SIGKILL], job.errors)
            self.assertEqual(job.saved(), [job.last_step() + 1])

    def test_a_launcher_is_told_to_stop_while_its_workers_wait_for_a_machine(self):
        port = free_port()
        job = self.job_of_machines()
        self.machine(job, port, "2")
        other = self.machine(job, port, "2")
        job.wait_for_begin(2)
        job.wait_for_step(10)
        other.kill()
        job.wait_for_error("waiting: ")
        job.launchers[0].send_signal(signal.SIGTERM)
        self.assertEqual(job.finish(), [128 + signal.SIGTERM, -signal.SIGKILL], job.errors)

    def test_a_rank_is_told_while_all_wait_for_a_machine(self):
        for serves in ("that stays", "that is lost"):
            with self.subTest(serves=serves), tempfile.TemporaryDirectory(prefix="lockstep_test_") as folder:
                port = free_port()
                job = self.job_of_machines()
                arguments = (16, 0, 0, folder)
                machines = {}
                for machine, ranks in (("that stays", 2), ("that is lost", 1)) if serves == "that stays" else (
                        ("that is lost", 1), ("that stays", 2)):
                    machines[machine] = self.machine(job, port, "2", ranks=ranks, arguments=arguments)
                    wait_until_served(port)
                processes = job.wait_for_begin(3)
                job.wait_for_step(10)
                machines["that is lost"].kill()
                job.wait_for_error("waiting: ")
                os.kill(processes[1], signal.SIGUSR1)
                codes = dict(zip(job.launchers, job.finish()))
                self.assertEqual(codes[machines["that stays"]], 75, job.errors)
                self.assertRegex(job.errors, "preempted: rank 1 ")
                # One rank may have done a step of which another only lost the end.
                self.assertEqual(max(job.saved()), job.last_step() + 1)

    def test_the_rendezvous_is_lost_for_good(self):
        """Its machine's launcher served it: the others have the time to save."""
        with tempfile.TemporaryDirectory(prefix="lockstep_test_") as folder:
            port = free_port()
            job = self.job_of_machines()
            arguments = (16, 0, 0, folder)
            self.machine(job, port, "2", arguments=arguments)
            wait_until_served(port)
            self.machine(job, port, "2", arguments=arguments)
            job.wait_for_begin(2)
            job.wait_for_step(10)
            job.launchers[0].kill()
            self.assertEqual(job.finish()[1], 1, job.errors)
            self.assertIn("does not answer", job.errors)
            self.assertEqual(job.saved(), [job.last_step() + 1])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]] + sys.argv[3:])
