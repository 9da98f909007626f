"""Jobs whose ranks have one copy of parameters and optimizer state per machine, and are killed: the others keep their
processes, no completed step is lost, and the end has the bits of the undisturbed run.

    live_one_copy.py LOCKSTEP ACCELERATOR_WORKER RESILIENT_WORKER [unittest arguments]
"""

import glob
import itertools
import os
import pathlib
import re
import signal
import sys
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))
from cases import full, some
from free_ports import free_port
from launch_reports import recoveries, restarts
from live_job import LiveAcceleratorTest, LiveJobTest, wait_until_served

LOCKSTEP, WORKER, RESILIENT_WORKER = map(os.path.abspath, sys.argv[1:4])
LiveJobTest.LOCKSTEP, LiveJobTest.WORKER = LOCKSTEP, WORKER

ONE_COPY = "onecopy+fused"
# Step 25 of a job whose gradients are clipped: ranks hand over twice in a step.
IN_STEP_25 = {"update.begin": 50, "update.handed": 50, "update.prepared": 25, "update.kept": 25, "update.begun": 25,
              "update.written": 25, "update.chunk": 25, "update.complete": 25}
JOBS_AT_ONCE = 2
# What a rank says that has the state where others need it.
SAYS_MORE = {"LOCKSTEP_LOG": "info"}
# Parameters of the workers' models, with two states of Adam each.
TENSORS = 6 * 3


def memories_of(processes):
    """Numbers of the memory files of models that processes have mapped."""
    found = set()
    for process in processes:
        with open(f"/proc/{process}/maps", encoding="utf-8") as maps:
            found |= {line.split()[4] for line in maps if "/memfd:lockstep model" in line}
    return found


def tensors_kept(errors):
    """Of each state that a rank has sent, how many of its tensors were not."""
    return [int(count) for count in re.findall(r"bytes of the state; (\d+) tensors lie in memory", errors)]


class LiveOneCopy(LiveAcceleratorTest):
    def expect_kept(self, job, tensors=TENSORS):
        """Parameters and optimizer state were mapped, and never sent."""
        self.assertEqual(set(tensors_kept(job.errors)), {tensors}, job.errors)

    def expect_same_ends(self, cases, ranks=3, **options):
        """Jobs, each with a value of LOCKSTEP_FAILPOINT, all of whose failpoints kill: a rank keeps its process."""
        self.need_failpoints()
        cases = some(cases, 6)
        undisturbed = self.undisturbed_end(ranks=ranks, **options)
        for first in range(0, len(cases), JOBS_AT_ONCE):
            jobs = [(case, self.start(ranks=ranks, environment=SAYS_MORE | {"LOCKSTEP_FAILPOINT": case}, **options))
                    for case in cases[first:first + JOBS_AT_ONCE]]
            for case, job in jobs:
                with self.subTest(case=case):
                    self.assertEqual(job.finish(), [0], job.errors)
                    self.expect_failpoints(job, case)
                    self.expect_no_step_lost(job)
                    self.assertEqual(job.ends(), undisturbed, job.errors)
                    self.assertGreaterEqual(recoveries(job.errors), 1, job.errors)
                    self.expect_kept(job)

    def test_a_replacement_maps_the_memory_that_survivors_keep(self):
        for kind in some((f"plain+{ONE_COPY}", "plain+onecopy"), 2):
            with self.subTest(kind=kind):
                options = {"steps": 60, "arguments": (kind,)}
                job = self.start(environment=SAYS_MORE, **options)
                processes = job.wait_for_begin(3)
                memories = memories_of(processes.values())
                self.assertEqual(len(memories), 1)
                for killed in ([1], [0, 2]):
                    job.wait_for_step(job.last_step() + 10)
                    for rank in killed:
                        os.kill(processes[rank], signal.SIGKILL)
                    processes = job.wait_for_begin(3)
                    self.assertEqual(memories_of(processes.values()), memories)
                self.expect_same_end(job, **options)
                self.expect_kept(job)

    def test_more_and_fewer_ranks_go_on_in_the_memory(self):
        job = self.start("--standalone", "--max-restarts=3", steps=500, arguments=(f"plain+{ONE_COPY}",),
                         environment=SAYS_MORE)
        memories = memories_of(job.wait_for_begin(3).values())
        for ranks in (2, 3):
            job.wait_for_step(job.last_step() + 10)
            self.scale(job, ranks)
            self.assertEqual(memories_of(job.wait_for_begin(ranks).values()), memories)
        self.assertEqual(job.finish(), [0], job.errors)
        self.expect_kept(job)
        bits = {}
        for _, text in job.said:
            if text.startswith("step "):
                bits.setdefault(text.split()[1], set()).add(text)
        self.assertEqual([texts for texts in bits.values() if len(texts) > 1], [])
        self.assertEqual(len(job.ends()), 1)

    def test_a_rank_that_is_alone_owns_its_memory(self):
        job = self.start("--standalone", "--max-restarts=3", steps=500, ranks=2, arguments=(f"plain+{ONE_COPY}",),
                         environment=SAYS_MORE)
        before = memories_of(job.wait_for_begin(2).values())
        job.wait_for_step(job.last_step() + 10)
        self.scale(job, 1)
        alone = job.wait_for_begin(1)
        # The optimizer's state, too: its first step is made when another one is said.
        job.wait_for_step(job.last_step() + 10)
        self.assertEqual(memories_of(alone.values()), set())
        self.scale(job, 3)
        after = memories_of(job.wait_for_begin(3).values())
        self.assertEqual(len(after), 1)
        self.assertNotEqual(after, before)
        self.assertEqual(job.finish(), [0], job.errors)
        self.expect_kept(job, tensors=0)
        self.assertEqual(len(job.ends()), 1)

    def test_where_survivors_have_changed_what_they_see_the_state_is_sent(self):
        """The second update of a step fails, and the first is undone, which the memory does not show."""
        self.need_failpoints()
        options = {"steps": 40, "arguments": (f"two+{ONE_COPY}",)}
        # A rank hands over three times in a step: for the first update, the norm and the second.
        failpoint = "update.begin:75:kill:1"
        job = self.start(environment=SAYS_MORE | {"LOCKSTEP_FAILPOINT": failpoint}, **options)
        self.expect_same_end(job, **options)
        self.expect_failpoints(job, failpoint)
        self.expect_kept(job, tensors=0)

    def test_the_rank_that_offers_the_memory_dies(self):
        places = [f"{name}:{count}" for name in ("recover.send", "recover.described") for count in (1, 2)]
        self.expect_same_ends([f"update.written:25:kill:1,{place}:kill:0" for place in places], steps=40,
                              arguments=(f"plain+{ONE_COPY}",))

    def test_all_die_but_the_rank_that_has_just_mapped_the_memory(self):
        self.expect_same_ends(["update.written:25:kill:1,recover.agreed:1:kill:0,recover.agreed:1:kill:2"], steps=40,
                              arguments=(f"plain+{ONE_COPY}",))

    def test_any_rank_may_die(self):
        self.expect_recoveries([[0], [2], [1], [0]], steps=120, arguments=(f"plain+{ONE_COPY}",))

    def test_two_of_three_at_once(self):
        """Nothing is left of them in shared memory either."""
        before = set(glob.glob("/dev/shm/*lockstep*"))
        self.expect_recoveries([[0, 2], [1, 2], [0, 1]], steps=120, arguments=(f"plain+{ONE_COPY}",))
        self.assertEqual(set(glob.glob("/dev/shm/*lockstep*")) - before, set())

    def trainer_end(self, kind, victim=None):
        with tempfile.TemporaryDirectory(prefix="lockstep_test_") as folder:
            job = self.start(steps=60, ranks=2, arguments=(kind,), environment={"ACCELERATOR_WORKER_FOLDER": folder})
            if victim is not None:
                processes = job.wait_for_begin(2)
                job.wait_for_step(20)
                os.kill(processes[victim], signal.SIGKILL)
            self.assertEqual(job.finish(), [0], job.errors)
            self.assertEqual(recoveries(job.errors), 0 if victim is None else 1, job.errors)
            self.expect_audited(folder)
            self.assertEqual(len(job.ends()), 1)
            return job.ends()

    def test_the_end_of_a_trainer_is_that_of_replicas(self):
        """It clips no gradients, by a norm whose last bit may differ."""
        for kind, victim in some(itertools.product(("trainer+fused", "trainer+accumulate"), (0, 1)), 4):
            with self.subTest(kind=kind, victim=victim):
                self.assertEqual(self.trainer_end(kind + "+onecopy", victim), self.trainer_end(kind))

    def test_every_kind_of_step(self):
        for kind in some(("momentum", "two", "lion", "tail", "accumulate+uneven", "check", "fp16", "bf16+syncbn"), 4):
            with self.subTest(kind=kind):
                self.expect_recoveries([[1]], steps=40, ranks=2, arguments=(f"{kind}+{ONE_COPY}",))

    def test_in_step(self):
        options = {"steps": 40, "arguments": (f"plain+{ONE_COPY}",)}
        self.expect_same_ends([f"{name}:{count}:kill:{rank}" for rank, (name, count)
                               in enumerate(IN_STEP_25.items(), start=1) for rank in (rank % 3,)], **options)

    @full
    def test_in_step_of_an_optimizer_of_libtorch(self):
        cases = [f"{name}:{count}:kill:{count % 3}" for name, count in
                 (("update.prepared", 25), ("update.kept", 26), ("update.begun", 27), ("update.written", 25),
                  ("update.chunk", 26), ("update.complete", 27))]
        self.expect_same_ends(cases, steps=40, arguments=("plain+onecopy",))

    def test_while_it_clips_gradients(self):
        """Where they are averaged in place, and unscaled before."""
        for kind in some(("fp16", "plain"), 2):
            self.expect_same_ends(["update.begin:49:kill:0", "update.handed:49:kill:1"], steps=40, ranks=2,
                                  arguments=(f"{kind}+{ONE_COPY}",))

    def test_a_rank_that_is_stopped_in_step_tears_the_copy(self):
        """No rank has the state any more: all go back to the copy that the launcher keeps."""
        self.need_failpoints()
        options = {"steps": 40, "ranks": 2}
        job = self.start(arguments=(f"plain+{ONE_COPY}", 10), **options,
                         environment={"LOCKSTEP_FAILPOINT": "update.begun:25:stop:1", "LOCKSTEP_TIMEOUT_S": "3"})
        self.assertEqual(job.finish(), [0], job.errors)
        begins = [int(text.split()[-1]) for _, text in job.said if "begins at" in text]
        self.assertEqual(begins, [0, 0, 20, 20], job.errors)
        self.assertEqual(job.ends(), self.undisturbed_end(arguments=(f"plain+{ONE_COPY}",), **options))

    def test_while_it_finishes_the_share_of_another(self):
        options = {"steps": 40, "arguments": (f"plain+{ONE_COPY}",)}
        # Either survivor may take the share over: both are killed there, and the one that comes second lives.
        self.expect_same_ends([f"update.written:25:kill:2,update.complete:26:kill:{rank}" for rank in (0, 1)], **options)

    def expect_step_happens(self, failpoint, happens):
        """Survivors are at the step after the one of the kill, or at it."""
        job = self.start(steps=40, ranks=2, arguments=(f"plain+{ONE_COPY}",), environment={"LOCKSTEP_FAILPOINT": failpoint})
        self.assertEqual(job.finish(), [0], job.errors)
        self.expect_failpoints(job, failpoint)
        begins = [int(text.split()[-1]) for _, text in job.said if "begins at" in text]
        self.assertEqual(begins[2:], [25 if happens else 24] * 2, job.errors)

    def test_a_step_that_survivors_have_finished_counts(self):
        self.need_failpoints()
        self.expect_step_happens("update.begun:25:kill:1", happens=True)
        self.expect_step_happens("update.begin:50:kill:1", happens=False)

    def test_the_newcomer_dies_too(self):
        first = "update.begin:50:kill:1"
        places = [f"{name}:1" for name in ("meet.joined", "recover.grouped", "recover.compared", "recover.receive",
                                           "recover.received", "recover.taken", "recover.agreed")]
        places += ["recover.receive:2"]
        # While the ranks divide the memory again, and in the first step.
        places += [f"collective.begin:{count}" for count in (8, 12, 16, 17, 18, 19)]
        places += ["update.begin:1", "update.handed:2", "update.begun:1"]
        self.expect_same_ends([f"{first},{place}:kill:1:1" for place in places], steps=40, arguments=(f"plain+{ONE_COPY}",))

    def test_a_survivor_dies_while_it_recovers(self):
        first = "update.written:25:kill:1"
        places = [f"{name}:1" for name in ("recover.begin", "recover.left", "recover.said", "recover.placed")]
        places += ["meet.joined:2", "recover.grouped:2", "recover.compared:1", "recover.agreed:1"]
        self.expect_same_ends([f"{first},{place}:kill:{2 * (number % 2)}" for number, place in enumerate(places)],
                              steps=40, arguments=(f"plain+{ONE_COPY}",))

    def test_a_rank_dies_in_an_evaluation_between_two_epochs(self):
        for kind in some(("plain", "two"), 2):
            with self.subTest(kind=kind), tempfile.TemporaryDirectory(prefix="lockstep_test_") as folder:
                options = {"steps": 60, "arguments": (f"{kind}+{ONE_COPY}",)}
                job = self.start(environment={"ACCELERATOR_WORKER_FAULT": "evaluation",
                                              "ACCELERATOR_WORKER_FOLDER": folder}, **options)
                self.expect_same_end(job, **options)
                self.assertEqual(recoveries(job.errors), 1, job.errors)
                self.expect_lines_once(job)
                self.expect_audited(folder)

    def test_a_rank_dies_in_a_save(self):
        self.need_failpoints()
        undisturbed = self.undisturbed_end(steps=40, arguments=(f"plain+{ONE_COPY}",))
        for kind, failpoint in some((("save+sharded", "save.begin:5:kill:1"), ("save", "file.write:12:kill:0"),
                                     ("save+async", "save.gathered:4:kill:0")), 2):
            with self.subTest(kind=kind), tempfile.TemporaryDirectory(prefix="lockstep_test_") as folder:
                job = self.start(steps=40, arguments=(f"{kind}+{ONE_COPY}",),
                                 environment={"LOCKSTEP_FAILPOINT": failpoint, "ACCELERATOR_WORKER_FOLDER": folder})
                self.assertEqual(job.finish(), [0], job.errors)
                self.expect_failpoints(job, failpoint)
                self.assertEqual(job.ends(), undisturbed)
                self.assertEqual(recoveries(job.errors), 1, job.errors)
                self.expect_audited(folder)

    def test_all_die_at_once(self):
        for kind, memory_every, flags in some((("plain", 10, ("--standby=1",)), ("plain", 10, ()), ("save", 0, ())), 2):
            with self.subTest(kind=kind, flags=flags), tempfile.TemporaryDirectory(prefix="lockstep_test_") as folder:
                job = self.start("--standalone", "--max-restarts=9", *flags, steps=120,
                                 arguments=(f"{kind}+{ONE_COPY}", memory_every),
                                 environment={"ACCELERATOR_WORKER_FOLDER": folder})
                processes = job.wait_for_begin(3)
                job.wait_for_step(35)
                for process in processes.values():
                    os.kill(process, signal.SIGKILL)
                self.assertEqual(job.finish(), [0], job.errors)
                self.assertEqual(job.ends(), self.undisturbed_end(arguments=(f"plain+{ONE_COPY}",), steps=120))
                begins = [int(text.split()[-1]) for _, text in job.said if "begins at" in text]
                self.assertGreaterEqual(begins[3], 20, begins)

    def test_a_standby_worker_takes_the_rank(self):
        self.expect_standby_takes_ranks(arguments=(f"plain+{ONE_COPY}",))

    @full
    def test_more_and_fewer_ranks(self):
        with tempfile.TemporaryDirectory(prefix="lockstep_test_") as folder:
            self.scale_and_kill(f"plain+{ONE_COPY}", 1200, 2, ((1, 3), (0, 1), (None, 2)), folder)

    @full
    def test_where_ranks_share_no_memory_any_more_each_has_a_replica(self):
        job = self.job_of_machines()
        port = free_port()
        options = {"steps": 1500, "arguments": (f"per_rank+{ONE_COPY}",)}
        self.machine(job, port, **options)
        wait_until_served(port)
        job.wait_for_begin(1)
        job.wait_for_step(20)
        self.machine(job, port, **options)
        job.wait_for_begin(2)
        self.assertEqual(job.finish(), [0, 0], job.errors)
        self.assertEqual(len(job.ends()), 1)
        warning = "one_copy_per_machine: the ranks no longer share memory (backend gloo); each continues with a replica"
        self.assertEqual(job.errors.count(warning), 1, job.errors)

    def end_on_two_machines(self, failpoint=None, **options):
        environment = {"LOCKSTEP_BACKEND": "hierarchical"} | ({"LOCKSTEP_FAILPOINT": failpoint} if failpoint else {})
        job = self.job_of_machines(environment)
        port = free_port()
        for domain in ("a", "b"):
            self.machine(job, port, "2", ranks=2, environment={"LOCKSTEP_MEMORY_DOMAIN": domain}, **options)
        self.assertEqual(job.finish(), [0, 0], job.errors)
        self.expect_no_step_lost(job)
        self.assertEqual(len(job.ends()), 1, job.errors)
        if failpoint:
            self.expect_failpoints(job, failpoint)
            self.assertEqual(recoveries(job.errors), 2, job.errors)  # Each launcher says so.
        return job.ends()

    def test_on_two_machines_any_rank_may_die_in_step(self):
        """A rank hands over three times in a step: for the sum, the norm and the update. The machine of the rank may be
        a step behind the other."""
        self.need_failpoints()
        places = ("update.written:25", "update.begin:75", "update.begin:73", "update.handed:73", "update.handed:75",
                  "update.complete:25")
        options = {"steps": 40, "arguments": (f"plain+{ONE_COPY}",)}
        undisturbed = self.end_on_two_machines(**options)
        for number, place in some(enumerate(places), 6):
            with self.subTest(place=place):
                self.assertEqual(self.end_on_two_machines(f"{place}:kill:{(3 + number) % 4}", **options), undisturbed)

    @full
    def test_a_rank_that_hangs_is_replaced(self):
        options = {"steps": 60, "arguments": (f"plain+{ONE_COPY}",)}
        job = self.start(environment={"ACCELERATOR_WORKER_FAULT": "hang", "LOCKSTEP_TIMEOUT_S": "3"}, **options)
        processes = job.wait_for_begin(3)
        now = job.wait_for_begin(3)
        self.assertEqual((now[0], now[2]), (processes[0], processes[2]))
        self.expect_same_end(job, **options)

    def test_a_flipped_bit_is_repaired(self):
        options = {"steps": 60, "arguments": (f"plain+{ONE_COPY}",)}
        job = self.start(environment={"ACCELERATOR_WORKER_FAULT": "flip"}, **options)
        self.expect_same_end(job, **options)
        self.assertRegex(job.errors, "after step 30 the parameters of rank 1 differ from rank 0's, which replace them")


class LiveResilientTraining(LiveJobTest):
    """ResilientTraining, whose step makes the wrapper."""
    ENVIRONMENT = {"RESILIENT_WORKER_ONE_COPY": "1"}
    undisturbed = {}

    def setUp(self):
        self.WORKER = RESILIENT_WORKER

    def start(self, *flags, environment=None, **options):
        return super().start(*flags, environment=self.ENVIRONMENT | (environment or {}), **options)

    def test_any_rank_may_die(self):
        job = self.expect_recoveries([[0], [2], [1]], every=30, steps=120)
        self.assertEqual(recoveries(job.errors), 3, job.errors)
        self.assertEqual(restarts(job.errors), [1, 2, 3], job.errors)

    def test_a_replacement_maps_the_memory_that_survivors_keep(self):
        job = self.start(steps=120, environment=SAYS_MORE)
        processes = job.wait_for_begin(3)
        memories = memories_of(processes.values())
        self.assertEqual(len(memories), 1)
        job.wait_for_step(20)
        os.kill(processes[0], signal.SIGKILL)
        self.assertEqual(memories_of(job.wait_for_begin(3).values()), memories)
        self.expect_same_end(job, steps=120)
        # First that with which the job begins.
        self.assertEqual(tensors_kept(job.errors), [0, TENSORS], job.errors)

    def test_all_die_at_once_with_a_copy_in_memory(self):
        job = self.start(steps=120, arguments=(16, 10))
        processes = job.wait_for_begin(3)
        job.wait_for_step(35)
        for process in processes.values():
            os.kill(process, signal.SIGKILL)
        self.assertEqual(job.finish(), [0], job.errors)
        self.assertEqual(job.ends(), self.undisturbed_end(steps=120))
        begins = [int(text.split()[-1]) for _, text in job.said if "begins at" in text]
        self.assertGreaterEqual(begins[3], 30, begins)

    def test_the_newcomer_dies_too(self):
        self.need_failpoints()
        for place in some(("recover.receive:1", "recover.taken:1", "update.handed:1", "update.begun:1"), 2):
            with self.subTest(place=place):
                failpoint = f"update.written:25:kill:1,{place}:kill:1:1"
                job = self.start(steps=40, environment={"LOCKSTEP_FAILPOINT": failpoint})
                self.expect_same_end(job, steps=40)
                self.expect_failpoints(job, failpoint)

    def test_in_step(self):
        self.need_failpoints()
        names = ("update.begin", "update.handed", "update.begun", "update.written", "update.complete")
        for name, rank in some(itertools.product(names, (0, 1)), 6):
            with self.subTest(name=name, rank=rank):
                failpoint = f"{name}:25:kill:{rank}"
                job = self.start(steps=40, ranks=2, environment={"LOCKSTEP_FAILPOINT": failpoint})
                self.expect_same_end(job, steps=40, ranks=2)
                self.expect_failpoints(job, failpoint)
                self.assertEqual(recoveries(job.errors), 1, job.errors)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]] + sys.argv[4:])
