"""Jobs whose ranks hold shards of parameters and optimizer state, and are killed: the others keep their processes, no
completed step is lost, and the end has the bits of the undisturbed run.

    live_fully_shard.py LOCKSTEP ACCELERATOR_WORKER [unittest arguments]
"""

import itertools
import json
import os
import pathlib
import random
import re
import signal
import sys
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))
from cases import ALL_CASES, some
from launch_reports import recoveries
from live_job import LiveAcceleratorTest, LiveJobTest
from missing import enter_for_class
from network_namespaces import ADDRESSES, TwoMachines

LOCKSTEP, WORKER = map(os.path.abspath, sys.argv[1:3])
LiveJobTest.LOCKSTEP, LiveJobTest.WORKER = LOCKSTEP, WORKER

JOBS_AT_ONCE = 2
# A rank leaves a copy where training begins, where the first loop begins, and after each step.
COPY = 25


class LiveFullyShard(LiveAcceleratorTest):
    VOID_AFTER_UPDATE = True  # Where not all ranks have left their copies.

    def expect_same_ends(self, cases, at_least=1, ranks=3, started_again=0, **options):
        """Jobs, each with a value of LOCKSTEP_FAILPOINT, all of whose failpoints kill."""
        self.need_failpoints()
        cases = some(cases, 6)
        undisturbed = self.undisturbed_end(ranks=ranks, **options)
        for first in range(0, len(cases), JOBS_AT_ONCE):
            jobs = [(case, self.start(ranks=ranks, environment={"LOCKSTEP_FAILPOINT": case}, **options))
                    for case in cases[first:first + JOBS_AT_ONCE]]
            for case, job in jobs:
                with self.subTest(case=case):
                    self.assertEqual(job.finish(), [0], job.errors)
                    self.expect_failpoints(job, case)
                    self.expect_kept(job, ranks + case.count(":kill:"), started_again)
                    self.assertEqual(job.ends(), undisturbed, job.errors)
                    self.assertGreaterEqual(recoveries(job.errors), at_least, job.errors)

    def expect_kept(self, job, processes, started_again=0):
        """Survivors kept their processes. `started_again`: so many replacements may not have joined before the next kill."""
        started = len({pid for pid, text in job.said if text == "starts"})
        self.assertIn(started, range(processes, processes + started_again + 1), job.errors)
        self.expect_lines_once(job)
        self.assertNotIn("wrong evaluation", str(job.said))

    def test_any_rank_may_die(self):
        for backend, kind in some((("shm", "plain+fully+fused"), ("gloo", "plain+fully"), ("shm", "plain+fully"),
                                   ("gloo", "plain+fully+fused")), 2):
            with self.subTest(backend=backend, kind=kind):
                self.kill_at_random([[0], [2], [1]], backend=backend, steps=80, arguments=(kind,))

    def test_two_of_three_at_once(self):
        self.kill_at_random([[0, 2], [1, 2]], steps=60, arguments=("plain+fully+fused",))

    def test_one_of_two_and_of_four(self):
        for ranks, victims in some(((2, [[1], [0]]), (4, [[3], [0, 1, 2]])), 2):
            with self.subTest(ranks=ranks):
                self.kill_at_random(victims, ranks=ranks, steps=60, arguments=("momentum+fully",))

    def kill_at_random(self, victims, ranks=3, **options):
        """Kills the ranks of each list, at a moment of a step that nobody has chosen."""
        options = {"ranks": ranks, **options}
        job = self.start(**options)
        processes = job.wait_for_begin(ranks)
        killed = 0
        for victim in victims:
            job.wait_for_step(job.last_step() + random.randint(5, 10))
            for rank in victim:
                os.kill(processes[rank], signal.SIGKILL)
            killed += len(victim)
            now = job.wait_for_begin(ranks)
            for rank, process in processes.items():
                (self.assertNotEqual if rank in victim else self.assertEqual)(now[rank], process, rank)
            processes = now
        self.assertEqual(job.finish(), [0], job.errors)
        self.expect_kept(job, ranks + killed)
        self.assertEqual(job.ends(), self.undisturbed_end(**options))

    def test_while_a_rank_leaves_its_copy(self):
        options = {"steps": 40, "arguments": ("plain+fully+fused",)}
        self.expect_same_ends([f"{name}:{COPY + rank}:kill:{rank}" for rank in range(3)
                               for name in ("shards.begin", "shards.copied", "shards.marked")], **options)

    def test_while_a_rank_leaves_its_copy_over_gloo(self):
        options = {"steps": 40, "arguments": ("plain+fully",), "backend": "gloo", "ranks": 2}
        self.expect_same_ends([f"{name}:{COPY}:kill:{rank}" for rank in range(2)
                               for name in ("shards.begin", "shards.copied", "shards.marked")], **options)

    def test_two_ranks_around_one_copy(self):
        options = {"steps": 40, "arguments": ("plain+fully+fused",)}
        self.expect_same_ends([f"shards.marked:{COPY}:kill:1,shards.begin:{COPY}:kill:2",
                               f"shards.marked:{COPY}:kill:0,shards.copied:{COPY}:kill:2",
                               f"shards.copied:{COPY}:kill:1,recover.agreed:1:kill:0",
                               f"shards.marked:{COPY}:kill:1,recover.compared:1:kill:2"], **options)

    def test_in_collectives_of_a_step(self):
        for backend in some(("shm", "gloo"), 2):
            options = {"steps": 40, "arguments": ("plain+fully+fused",), "backend": backend}
            self.expect_same_ends([f"collective.{name}:{count}:kill:{count % 3}" for name, count in
                                   (("begin", 301), ("started", 302), ("done", 303))], **options)

    def test_in_recovery(self):
        options = {"steps": 40, "arguments": ("plain+fully+fused",)}
        self.expect_same_ends([f"shards.begin:{COPY}:kill:1,{place}:kill:0" for place in
                               ("recover.begin:1", "recover.left:1", "recover.placed:1", "recover.grouped:2",
                                "recover.send:1", "recover.described:1", "recover.agreed:1")],
                              started_again=1, **options)

    def test_all_but_the_rank_that_has_just_received_the_memory(self):
        self.expect_same_ends([f"shards.begin:{COPY}:kill:1,shards.begin:{COPY + 6}:kill:0,shards.begin:{COPY + 6}:kill:2"],
                              steps=40, arguments=("plain+fully",))

    def test_in_an_evaluation(self):
        for kind in some(("plain", "tail", "inner"), 3):
            with self.subTest(kind=kind), tempfile.TemporaryDirectory(prefix="lockstep_test_") as folder:
                options = {"steps": 60, "arguments": (f"{kind}+fully+fused",)}
                job = self.start(environment={"ACCELERATOR_WORKER_FAULT": "evaluation",
                                              "ACCELERATOR_WORKER_FOLDER": folder}, **options)
                self.assertEqual(job.finish(), [0], job.errors)
                self.expect_kept(job, 4)
                self.assertEqual(job.ends(), self.undisturbed_end(**options))
                self.assertEqual(recoveries(job.errors), 1, job.errors)
                self.expect_audited(folder)

    def test_weights_that_are_put_back_behind_an_evaluation(self):
        # The first shards behind those of step 12 and its evaluation: those of the evaluation are other weights.
        self.expect_same_ends([f"shards.begin:{count}:kill:1" for count in some((20, 19, 21, 18), 2)], steps=30, ranks=2,
                              arguments=("tail+swaps+fully+fused",))

    def test_in_an_evaluation_of_other_weights(self):
        """No copy has the weights that survivors put back: they make the step again."""
        self.expect_same_ends([f"collective.begin:{count}:kill:1" for count in some((125, 123, 128, 124), 4)], steps=24,
                              arguments=("tail+swaps+fully+fused",))

    def test_in_a_save_of_weights_that_are_put_back(self):
        self.need_failpoints()
        options = {"steps": 14, "ranks": 2}
        undisturbed = self.undisturbed_end(arguments=("tail+swaps+fully+fused",), **options)
        for count in some((1, 2, 10), 3):
            with self.subTest(count=count), tempfile.TemporaryDirectory(prefix="lockstep_test_") as folder:
                environment = {"LOCKSTEP_FAILPOINT": f"file.write:{count}:kill:0", "ACCELERATOR_WORKER_FOLDER": folder}
                job = self.start(environment=environment, arguments=("tail+swaps+save+fully+fused",), **options)
                self.assertEqual(job.finish(), [0], job.errors)
                self.assertEqual(job.ends(), undisturbed)

    def test_every_kind_of_step(self):
        for kind in some(("accumulate+uneven", "fp16", "bf16+syncbn", "lion", "manual"), 3):
            with self.subTest(kind=kind):
                self.kill_at_random([[1]], ranks=2, steps=40, arguments=(f"{kind}+fully",))

    def test_while_ranks_save(self):
        """The snapshot is whole all the same, and each of the others' steps counts."""
        with tempfile.TemporaryDirectory(prefix="lockstep_test_") as folder:
            options = {"steps": 40, "ranks": 2, "arguments": ("save+fully+fused",)}
            self.need_failpoints()
            job = self.start(environment={"LOCKSTEP_FAILPOINT": "file.write:4:kill:0", "ACCELERATOR_WORKER_FOLDER": folder},
                             **options)
            self.assertEqual(job.finish(), [0], job.errors)
            self.expect_kept(job, 3)
            self.assertEqual(job.ends(), self.undisturbed_end(steps=40, ranks=2, arguments=("plain+fully+fused",)))

    def test_more_and_fewer_ranks_go_on_from_the_copies(self):
        job = self.start("--standalone", "--max-restarts=3", steps=600, arguments=("plain+fully+fused",))
        processes = job.wait_for_begin(3)
        for ranks in (2, 4, 1, 3):
            job.wait_for_step(job.last_step() + 10)
            self.scale(job, ranks)
            now = job.wait_for_begin(ranks)
            self.assertTrue(set(now.values()) & set(processes.values()))
            processes = now
        self.assertEqual(job.finish(), [0], job.errors)
        self.expect_no_step_lost(job)
        self.assertEqual(len(job.ends()), 1)

    def test_a_standby_worker_takes_a_rank(self):
        self.expect_standby_takes_ranks(steps=120, arguments=("plain+fully+fused",))


class LiveFullyShardTrainer(LiveAcceleratorTest):
    """A Trainer counts a step when all ranks have left their copies: no process makes a step again that it has counted, and
    nothing that it counts is lost."""

    undisturbed_ends = {}

    def finished(self, kind, failpoints="", victims=(), scaled_to=None, ranks=3, backend="shm", steps=30):
        """A job that has ended well, and what it has left behind."""
        with tempfile.TemporaryDirectory(prefix="lockstep_test_") as folder:
            job = self.start(ranks=ranks, steps=steps, arguments=(f"trainer+fully+{kind}",), backend=backend,
                             environment={"LOCKSTEP_FAILPOINT": failpoints, "ACCELERATOR_WORKER_FOLDER": folder})
            if victims or scaled_to:
                processes = job.wait_for_begin(ranks)
                job.wait_for_step(random.randint(5, 12))
            for rank in victims:
                os.kill(processes[rank], signal.SIGKILL)
            if scaled_to:
                self.scale(job, scaled_to)
                self.assertTrue(set(job.wait_for_begin(scaled_to).values()) <= set(processes.values()))
            self.assertEqual(job.finish(), [0], job.errors)
            self.expect_failpoints(job, failpoints)
            self.expect_no_step_lost(job)
            self.assertEqual({int(text.split()[1]) for _, text in job.said if text.startswith("step ")}, set(range(steps)))
            audit = self.expect_audited(folder)
            best = os.path.join(folder, "best")
            return job, {"ends": job.ends(), "lines": self.lines_of(folder),
                         "samples": [epoch["given"] for epoch in audit[0]["epochs"]],
                         "snapshots": sorted(os.listdir(os.path.join(folder, "snapshots"))),
                         "best": [(name, os.path.getsize(os.path.join(best, name))) for name in sorted(os.listdir(best))]}

    def expect_undisturbed(self, kind, cases, killed=1, started_again=0, **options):
        """Each case: what disturbs a job, as finished() takes it."""
        self.need_failpoints()
        key = (kind, *sorted(options.items()))
        if key not in self.undisturbed_ends:
            self.undisturbed_ends[key] = self.finished(kind, **options)[1]
        for case in cases:
            with self.subTest(kind=kind, **case, **options):
                job, end = self.finished(kind, **options, **case)
                self.assertEqual(end, self.undisturbed_ends[key], job.errors)
                least = options.get("ranks", 3) + killed
                self.assertIn(len({pid for pid, text in job.said if text == "starts"}), range(least, least + started_again + 1))
                self.assertGreaterEqual(recoveries(job.errors), 1, job.errors)

    def test_around_the_copy_of_a_step(self):
        # Step 20 ends an epoch; behind 21 the Trainer validates and saves.
        for ranks, kind, backend, chosen in ((3, "fused", "shm", ("shards.marked:22:kill:0", "shards.begin:21:kill:1")),
                                             (2, "accumulate+fused", "gloo", ("shards.copied:23:kill:0",))):
            cases = chosen if not ALL_CASES else [
                f"{name}:{count}:kill:{rank}" for count in (22, 21, 23) for rank in range(ranks)
                for name in ("shards.marked", "shards.begin", "shards.copied")]
            self.expect_undisturbed(kind, [{"failpoints": case} for case in cases], ranks=ranks, backend=backend)

    def test_at_random(self):
        for victims in some(([1], [0], [0, 2]), 3):
            self.expect_undisturbed("fused", [{"victims": victims}], killed=len(victims), started_again=len(victims) - 1)

    def test_while_rank_0_writes(self):
        """The weights of the best validation are first: another rank has none until it gathers them."""
        self.expect_undisturbed("fused", [{"failpoints": f"{name}:{count}:kill:0"} for name, count in some((
            ("file.write", 2), ("metrics.written", 7), ("file.write", 4), ("file.write", 5), ("metrics.written", 8)), 2)])

    def test_in_collectives_behind_a_step(self):
        # Behind step 6 the Trainer saves.
        cases = [{"failpoints": f"collective.begin:{count}:kill:{count % 3}"} for count in range(265, 299)]
        self.expect_undisturbed("fused", some(cases, 17))

    def norms_of(self, **environment):
        """The norm of gradients that a job logged, by step."""
        with tempfile.TemporaryDirectory(prefix="lockstep_test_") as folder:
            job = self.start(ranks=2, steps=36, arguments=("trainer+fully+fused",),
                             environment={"ACCELERATOR_WORKER_FOLDER": folder} | environment)
            self.assertEqual(job.finish(), [0], job.errors)
            with open(os.path.join(folder, "metrics.jsonl"), encoding="utf-8") as file:
                lines = map(json.loads, file)
                return {line["step"]: line["grad_norm"] for line in lines if "grad_norm" in line}

    def test_a_norm_that_lacks_gradients_of_a_lost_rank_is_not_logged(self):
        """Rank 0 is killed behind step 30, before the others have its part of the norm."""
        undisturbed = self.norms_of()
        self.assertIn(30, undisturbed)
        self.assertEqual(self.norms_of(ACCELERATOR_WORKER_FAULT="log"),
                         {step: norm for step, norm in undisturbed.items() if step != 30})

    def test_fewer_ranks_go_on(self):
        undisturbed = self.finished("fused")[1]
        job, end = self.finished("fused", scaled_to=2)
        self.assertEqual(len(end["ends"]), 1, job.errors)
        self.assertNotIn("Trainer: ", job.errors)  # The rank that is removed ends without an error.
        for what in ("lines", "samples", "snapshots"):  # The bits are those of other ranks.
            self.assertEqual(end[what], undisturbed[what], job.errors)


class LiveFullyShardMachines(LiveAcceleratorTest):
    """Copies of shards are of one machine: if ranks of several are lost, all restart from the newest snapshot."""

    PORT = 29519  # In network namespaces of its own.

    @classmethod
    def setUpClass(cls):
        cls.machines = enter_for_class(cls, TwoMachines())

    def launch_on(self, job, machine, kind, steps):
        return job.launch([*self.machines.on(machine), LOCKSTEP, "run", "--nnodes=2", "--rdzv-backend=c10d",
                           f"--rdzv-endpoint={ADDRESSES[0]}:{self.PORT}", "--rdzv-id=job",
                           "--rdzv-conf=last_call_timeout=1,keep_alive_interval=1", "--max-restarts=5",
                           "--nproc-per-node=2", WORKER, str(steps), kind])

    def finished(self, kind, lost="", steps=40):
        """A job of 2 × 2 ranks that has ended well."""
        with tempfile.TemporaryDirectory(prefix="lockstep_test_") as folder:
            job = self.add_job("hierarchical", {"LOCKSTEP_JOB_SECRET": "s" * 32, "ACCELERATOR_WORKER_FOLDER": folder})
            job.environment["LIVE_WORKER_STEP_READ"] = job.step_read.name
            first, second = (self.launch_on(job, machine, kind, steps) for machine in range(2))
            processes = job.wait_for_begin(4)
            codes = {first: 0, second: 0}
            if lost:
                job.wait_for_step(14)
                if lost == "rank":
                    os.kill(processes[3], signal.SIGKILL)
                else:
                    second.kill()  # Its ranks with it.
                    codes = {first: 0, second: -signal.SIGKILL, self.launch_on(job, 1, kind, steps): 0}
                self.assertFalse(set(processes.values()) & set(job.wait_for_begin(4).values()))
            self.assertEqual(job.finish(), list(codes.values()), job.errors)
            self.expect_audited(folder)
            return job

    def test_all_ranks_restart_from_the_newest_snapshot(self):
        for loop, hybrid, lost in some(itertools.product(("norandom+save", "trainer"), ("", "+hybrid"), ("rank", "machine")), 7):
            with self.subTest(loop=loop, hybrid=hybrid, lost=lost):
                kind = f"{loop}+fully+fused{hybrid}"
                undisturbed, job = self.finished(kind), self.finished(kind, lost)
                self.assertEqual(len(job.ends()), 1)
                self.assertEqual(job.ends(), undisturbed.ends(), job.errors)
                reason = "hybrid_shard" if hybrid else "several machines"
                for one, generations in ((undisturbed, 1), (job, 2)):
                    warnings = re.findall(r"recovery is off \(strategy kFullyShard .*\b(.+?)\): if a rank fails, all ranks restart",
                                          one.errors)
                    self.assertEqual(len(warnings), generations, one.errors)
                    self.assertIn(reason, one.errors)
                begins = [int(text.split()[-1]) for _, text in job.said if "begins at" in text]
                self.assertEqual(begins[:4], [0] * 4)
                # The newest behind step 14, and no step behind it.
                self.assertEqual(len(set(begins[4:])), 1, begins)
                self.assertIn(begins[4], range(13, 40), begins)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]] + sys.argv[3:])
