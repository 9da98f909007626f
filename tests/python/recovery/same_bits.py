"""logical_shards: a training ends with the same bits on any number of ranks, over any backend, through kills and resizes.

    same_bits.py LOCKSTEP ACCELERATOR_WORKER [unittest arguments]
"""

import itertools
import json
import os
import pathlib
import signal
import sys
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))
from cases import full, some
from free_ports import free_port
from launch_reports import recoveries
from live_job import LiveAcceleratorTest, LiveJobTest

LOCKSTEP, WORKER = map(os.path.abspath, sys.argv[1:3])
LiveJobTest.LOCKSTEP, LiveJobTest.WORKER = LOCKSTEP, WORKER

STEPS = 40


class SameBits(LiveAcceleratorTest):
    def end_of(self, job):
        self.assertEqual(job.finish(), [0], job.errors)
        self.assertNotIn("wrong evaluation", str(job.said))
        self.assertEqual(len(job.ends()), 1, job.ends())
        return job.ends()

    def one_rank(self, kind="shards", steps=STEPS):
        return self.undisturbed_end(ranks=1, steps=steps, arguments=(kind,))

    def test_on_any_number_of_ranks(self):
        for backend, ranks in some((("shm", 3), ("gloo", 3), ("shm", 4), ("gloo", 4), ("shm", 2), ("gloo", 2)), 3):
            with self.subTest(backend=backend, ranks=ranks):
                # How many threads a launcher would give each rank depends on their number.
                environment = {"OMP_NUM_THREADS": str(1 + ranks % 2)}
                job = self.start(backend=backend, ranks=ranks, steps=STEPS, arguments=("shards",), environment=environment)
                self.assertEqual(self.end_of(job), self.one_rank())

    def test_without_shards_the_number_of_ranks_decides(self):
        """Else the other tests would show nothing."""
        ends = [self.undisturbed_end(ranks=ranks, steps=STEPS, arguments=("plain",)) for ranks in (1, 2, 3)]
        self.assertEqual(len(set().union(*ends)), 3)

    def test_in_half_precision(self):
        for kind, ranks in some(itertools.product(("shards+fp16", "shards+bf16"), (3, 2)), 2):
            with self.subTest(kind=kind, ranks=ranks):
                job = self.start(ranks=ranks, steps=STEPS, arguments=(kind,))
                self.assertEqual(self.end_of(job), self.one_rank(kind))

    def metrics_of_trainer(self, ranks, kind="shards+trainer", fault=None):
        """The bits at the end, and the values of all metrics that do not depend on time."""
        with tempfile.TemporaryDirectory(prefix="lockstep_test_") as folder:
            environment = {"ACCELERATOR_WORKER_FOLDER": folder}
            if fault:
                environment["ACCELERATOR_WORKER_FAULT"] = fault
            job = self.start(ranks=ranks, steps=STEPS, arguments=(kind,), environment=environment)
            end = self.end_of(job)
            self.assertEqual(recoveries(job.errors), 1 if fault else 0, job.errors)
            with open(os.path.join(folder, "metrics.jsonl"), encoding="utf-8") as file:
                lines = [json.loads(line) for line in file]
            if not fault:
                self.expect_audited(folder)
            return end, [(name, line[name]) for line in lines for name in ("train_loss", "logged_loss", "val_loss")
                         if name in line]

    def test_of_a_trainer(self):
        """Also what the program logs in its steps and validations."""
        kind = "shards+trainer+logs"
        end, metrics = self.metrics_of_trainer(ranks=1, kind=kind)
        for name, least in (("train_loss", STEPS // 5), ("logged_loss", STEPS // 5), ("val_loss", STEPS // 3)):
            self.assertGreaterEqual(len([one for one, _ in metrics if one == name]), least, metrics)
        for ranks in some((3, 2, 4), 3):
            with self.subTest(ranks=ranks):
                self.assertEqual(self.metrics_of_trainer(ranks, kind), (end, metrics))

    @full
    def test_metrics_when_rank_0_is_killed_behind_an_update(self):
        expected = self.metrics_of_trainer(ranks=1)
        for fault in ("stepped", "interval"):
            with self.subTest(fault=fault):
                self.assertEqual(self.metrics_of_trainer(ranks=3, fault=fault), expected)

    def test_when_ranks_are_killed(self):
        for backend in some(("shm", "gloo"), 2):
            with self.subTest(backend=backend):
                job = self.start(backend=backend, ranks=3, steps=60, arguments=("shards",))
                processes = job.wait_for_begin(3)
                for number, victim in enumerate((1, 0, 2)):
                    job.wait_for_step(15 * (number + 1))
                    os.kill(processes[victim], signal.SIGKILL)
                    processes = job.wait_for_begin(3)
                self.assertEqual(self.end_of(job), self.one_rank(steps=60))
                self.assertEqual(recoveries(job.errors), 3, job.errors)

    def test_when_a_rank_is_killed_in_the_middle_of_an_exchange(self):
        self.need_failpoints()
        started = ("collective.started:72:kill:0", "collective.started:73:kill:2", "collective.done:74:kill:1")
        # Over Gloo ranks do not compare the calls of the exchange, which is where collective.begin is.
        cases = [("collective.begin:71:kill:1", "shm"), *itertools.product(started, ("gloo", "shm"))]
        for failpoint, backend in some(cases, 3):
            with self.subTest(backend=backend, failpoint=failpoint):
                job = self.start(backend=backend, ranks=3, steps=STEPS, arguments=("shards",),
                                 environment={"LOCKSTEP_FAILPOINT": failpoint})
                self.assertEqual(self.end_of(job), self.one_rank())
                self.assertEqual(recoveries(job.errors), 1, job.errors)
                self.expect_failpoints(job, failpoint)

    def on_two_machines(self, steps, environment=None):
        """A job of four ranks: over shared memory within each machine, and Gloo between them."""
        job = self.job_of_machines({"LOCKSTEP_BACKEND": "hierarchical"} | (environment or {}))
        job.environment["LIVE_WORKER_STEP_READ"] = job.step_read.name
        port = free_port()
        for domain in ("a", "b"):
            self.machine(job, port, "2", ranks=2, steps=steps, arguments=("shards",),
                         environment={"LOCKSTEP_MEMORY_DOMAIN": domain})
        return job

    def expect_end_on_two_machines(self, job, steps, failures):
        self.assertEqual(job.finish(), [0, 0], job.errors)
        self.assertEqual(job.ends(), self.one_rank(steps=steps))
        # Each launcher says so.
        self.assertEqual(recoveries(job.errors), 2 * failures, job.errors)

    @full
    def test_on_two_machines_when_ranks_are_killed(self):
        job = self.on_two_machines(steps=60)
        processes = job.wait_for_begin(4)
        for number, victim in enumerate((3, 0)):
            job.wait_for_step(20 * (number + 1))
            os.kill(processes[victim], signal.SIGKILL)
            processes = job.wait_for_begin(4)
        self.expect_end_on_two_machines(job, steps=60, failures=2)

    def test_on_two_machines_when_a_rank_is_killed_in_the_middle_of_an_exchange(self):
        self.need_failpoints()
        for failpoint in some(("collective.begin:71:kill:1", "collective.started:72:kill:3", "collective.done:73:kill:0",
                               "collective.started:74:kill:2", "collective.begin:75:kill:3"), 5):
            with self.subTest(failpoint=failpoint):
                job = self.on_two_machines(STEPS, {"LOCKSTEP_FAILPOINT": failpoint})
                self.expect_end_on_two_machines(job, STEPS, failures=1)
                self.expect_failpoints(job, failpoint)

    def test_with_one_copy_per_machine(self):
        for kind, ranks in some(itertools.product(("shards", "shards+fused", "shards+fused+fp16"), (2, 3, 4)), 4):
            with self.subTest(kind=kind, ranks=ranks):
                job = self.start(ranks=ranks, steps=STEPS, arguments=(kind + "+onecopy",))
                self.assertEqual(self.end_of(job), self.one_rank(kind))

    def test_with_one_copy_when_ranks_are_killed_in_its_update(self):
        self.need_failpoints()
        for kind, places in (("shards+fused", ("begin", "handed", "written", "complete", "prepared")),
                             ("shards", ("begun", "chunk"))):
            for number, place in some(enumerate(places), 3):
                # Clipping hands nothing over: each place is passed once in a step.
                failpoint = f"update.{place}:25:kill:{number % 3}"
                with self.subTest(kind=kind, failpoint=failpoint):
                    job = self.start(steps=STEPS, arguments=(kind + "+onecopy",),
                                     environment={"LOCKSTEP_FAILPOINT": failpoint})
                    self.assertEqual(self.end_of(job), self.one_rank(kind))
                    self.assertEqual(recoveries(job.errors), 1, job.errors)
                    self.expect_failpoints(job, failpoint)

    def test_with_one_copy_when_the_job_is_resized(self):
        with tempfile.TemporaryDirectory(prefix="lockstep_test_") as folder:
            job = self.start(ranks=3, steps=200, arguments=("shards+fused+onecopy",),
                             environment={"ACCELERATOR_WORKER_FOLDER": folder})
            processes = job.wait_for_begin(3)
            os.kill(processes[1], signal.SIGKILL)
            job.wait_for_begin(3)
            for ranks in (2, 1, 7):
                job.wait_for_step(job.last_step() + 20)
                self.scale(job, ranks)
                job.wait_for_begin(ranks)
            self.assertEqual(self.end_of(job), self.one_rank("shards+fused", steps=200))
            self.expect_audited(folder)

    def test_with_sync_batch_norm_on_as_many_ranks_as_shards(self):
        options = {"ranks": 4, "steps": 100, "arguments": ("shards4+syncbn",)}
        expected = self.undisturbed_end(**options)
        for backend in some(("gloo", "shm"), 2):
            with self.subTest(backend=backend):
                job = self.start(backend=backend, **options)
                processes = job.wait_for_begin(4)
                for number, victim in enumerate((1, 0)):
                    job.wait_for_step(20 * (number + 1))
                    os.kill(processes[victim], signal.SIGKILL)
                    processes = job.wait_for_begin(4)
                self.assertEqual(self.end_of(job), expected)
                self.assertEqual(recoveries(job.errors), 2, job.errors)

    def test_with_sync_batch_norm_on_fewer_ranks_is_refused(self):
        job = self.start("--standalone", ranks=2, steps=STEPS, arguments=("shards4+syncbn",))
        self.assertNotEqual(job.finish(), [0])
        self.assertIn("2 ranks for 4 shards", job.errors)

    def test_with_sync_batch_norm_the_job_ends_when_its_number_of_ranks_changes(self):
        job = self.start("--standalone", ranks=4, steps=10**6, arguments=("shards4+syncbn",))
        job.wait_for_begin(4)
        job.wait_for_step(20)
        self.scale(job, 3)
        self.assertNotEqual(job.finish(), [0])
        self.assertRegex(job.errors, r"job failed: rank \d .*there are 3 ranks for 4 shards; use BatchNorm")

    def test_when_the_job_is_resized(self):
        # 8 ranks are more than there are shards: two of them have no work.
        for first, changes in some(((2, (3, 1, 4)), (1, (6, 2)), (3, (8, 3))), 3):
            with self.subTest(first=first, changes=changes), tempfile.TemporaryDirectory(prefix="lockstep_test_") as folder:
                job = self.start(ranks=first, steps=200, arguments=("shards",),
                                 environment={"ACCELERATOR_WORKER_FOLDER": folder})
                job.wait_for_begin(first)
                for ranks in changes:
                    job.wait_for_step(job.last_step() + 20)
                    self.scale(job, ranks)
                    job.wait_for_begin(ranks)
                self.assertEqual(self.end_of(job), self.one_rank(steps=200))
                self.expect_audited(folder)

    def test_when_it_resumes_on_another_number_of_ranks(self):
        with tempfile.TemporaryDirectory(prefix="lockstep_test_") as folder:
            for ranks, steps in ((3, 20), (2, 40), (4, 60)):
                job = self.start(ranks=ranks, steps=steps, arguments=("shards+save",),
                                 environment={"ACCELERATOR_WORKER_FOLDER": folder})
                end = self.end_of(job)
            begins = [int(text.split()[-1]) for _, text in job.said if "begins at" in text]
            self.assertGreater(min(begins), 30, begins)
            self.assertEqual(end, self.one_rank(steps=60))
            self.expect_audited(folder)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]] + sys.argv[3:])
