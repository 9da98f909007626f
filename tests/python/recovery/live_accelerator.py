"""Jobs of an Accelerator's program whose ranks are killed: the others keep their processes, no step is lost, and
the end has the bits of the undisturbed run.

    live_accelerator.py LOCKSTEP ACCELERATOR_WORKER [unittest arguments]
"""

import csv
import glob
import json
import os
import pathlib
import re
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))
from cases import full, some
from free_ports import free_port
from launch_reports import recoveries, restarts
from live_job import DEADLINE_S, LiveAcceleratorTest, LiveJobTest, wait_until_served

LOCKSTEP, WORKER = map(os.path.abspath, sys.argv[1:3])
LiveJobTest.LOCKSTEP, LiveJobTest.WORKER = LOCKSTEP, WORKER


def write_mnist(folder):
    """Files of MNIST's format: bright squares, whose place is their label."""
    for name, count in (("train", 60000), ("t10k", 10000)):
        labels = bytes((7 * i + i // 11) % 10 for i in range(count))
        images = []
        for label in range(10):
            row, column = 5 * (label // 5) + 6, 5 * (label % 5) + 2
            images.append(b"".join(bytes(200 if y // 5 == row // 5 and x // 5 == column // 5 else 10 for x in range(28))
                                   for y in range(28)))
        with open(os.path.join(folder, f"{name}-labels-idx1-ubyte"), "wb") as file:
            file.write(struct.pack(">II", 2049, count) + labels)
        with open(os.path.join(folder, f"{name}-images-idx3-ubyte"), "wb") as file:
            file.write(struct.pack(">IIII", 2051, count, 28, 28) + b"".join(images[label] for label in labels))


def varint_of(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 0x80:
            return value, at


def fields_of(data):
    """Of a message of Protocol Buffers, by number."""
    fields, at = {}, 0
    while at < len(data):
        key, at = varint_of(data, at)
        if key & 7 == 0:
            value, at = varint_of(data, at)
        else:
            size, at = {1: (8, at), 5: (4, at)}.get(key & 7) or varint_of(data, at)
            value, at = data[at:at + size], at + size
        fields.setdefault(key >> 3, []).append(value)
    return fields


def events_of(path):
    """The events of a file of TensorBoard; what is cut off is none."""
    with open(path, "rb") as file:
        data = file.read()
    events, at = [], 0
    while at + 12 <= len(data):
        size, = struct.unpack_from("<Q", data, at)
        if at + 16 + size > len(data):
            break
        events.append(fields_of(data[at + 12:at + 12 + size]))
        at += 16 + size
    return events


class LiveAccelerator(LiveAcceleratorTest):
    def test_any_rank_may_die(self):
        self.expect_recoveries([[0], [2], [1], [0]], steps=120)

    def test_two_of_three_at_once(self):
        self.expect_recoveries([[0, 2], [1, 2]], steps=120)

    def test_after_the_last_step(self):
        for loop in some(("for", "while"), 2):
            with self.subTest(loop=loop):
                arguments = ("plain", 0, loop)
                job = self.start(steps=20, arguments=arguments)
                processes = job.wait_for_begin(3)
                job.wait_for(lambda pid, text: pid == processes[1] and text.startswith("step 19 "))
                os.kill(processes[1], signal.SIGKILL)
                self.assertEqual(job.finish(), [0], job.errors)
                self.assertEqual(job.ends(), self.undisturbed_end(steps=20, arguments=arguments))
                self.assertNotIn("wrong evaluation", str(job.said))

    def test_a_rank_dies_in_an_evaluation(self):
        # Between two epochs, or within a step, which then is void.
        for kind in some(("plain", "two", "inner"), 2):
            with self.subTest(kind=kind), tempfile.TemporaryDirectory(prefix="lockstep_test_") as folder:
                options = {"steps": 60, "arguments": (kind,)}
                job = self.start(environment={"ACCELERATOR_WORKER_FAULT": "evaluation",
                                              "ACCELERATOR_WORKER_FOLDER": folder}, **options)
                self.expect_same_end(job, **options)
                self.assertNotIn("wrong evaluation", str(job.said))
                self.assertEqual(recoveries(job.errors), 1, job.errors)
                self.expect_lines_once(job)
                self.expect_audited(folder)

    def expect_planned(self, folder, samples, batch_of_rank, seed, drops=False):
        """Each rank had its block of each batch of the first loader, by the order of seed and epoch."""
        runs, given = {}, []
        for path in glob.glob(os.path.join(folder, "data", "samples.rank*.jsonl")):
            with open(path, encoding="utf-8") as file:
                events = [json.loads(line) for line in file]
            rank = int(re.search(r"rank(\d+)", os.path.basename(path))[1])
            for event in events:
                if event["loader"] == 0 and event["event"] == "begin":
                    ranks = runs.setdefault(event["run"], event["world_size"])
                    dropped = batch_of_rank * ranks - 1 if drops else 0
                    self.assertEqual((event["world_size"], event["least_of_epoch"]), (ranks, samples - dropped), event)
                if event["loader"] == 0 and event["event"] == "batch":
                    given.append((rank, event))
        epochs = sorted({event["epoch"] for _, event in given})
        orders = subprocess.run([os.path.join(os.path.dirname(WORKER), "sampler_indices")], capture_output=True,
                                input="".join(f"{samples} 1 0 1 {seed} {epoch} 0\n" for epoch in epochs), text=True,
                                timeout=DEADLINE_S, check=True).stdout.splitlines()
        order = {epoch: [int(sample) for sample in line.split()] for epoch, line in zip(epochs, orders)}
        for rank, event in given:
            ranks = runs[event["run"]]
            batch = order[event["epoch"]][event["begin"]:event["begin"] + batch_of_rank * ranks]
            self.assertEqual(event["end"], event["begin"] + len(batch), event)
            sizes = [len(batch[other::ranks]) for other in range(ranks)]
            before = sum(sizes[:rank])
            self.assertEqual(event["samples"], batch[before:before + sizes[rank]], event)

    def rows_of(self, folder):
        with open(os.path.join(folder, "metrics.csv"), encoding="utf-8") as file:
            return [(int(row["step"]), bool(row["train_loss"]), row["val_one"]) for row in csv.DictReader(file)]

    def points_of(self, folder):
        """What TensorBoard shows: a restart hides the points of its step and later ones in the files before."""
        points = []
        for path in sorted(glob.glob(os.path.join(folder, "tensorboard", "events.out.tfevents.*"))):
            for event in events_of(path):
                step = event.get(2, [0])[0]
                if 7 in event:
                    points = [point for point in points if point[0] < step]
                for summary in event.get(5, []):
                    value = fields_of(fields_of(summary)[1][0])
                    points.append((step, value[1][0].decode()))
        return sorted(points)

    def test_rank_0_dies_between_its_write_of_metrics_and_the_word_of_it(self):
        self.need_failpoints()
        options = {"steps": 60, "ranks": 2, "arguments": ("trainer",)}
        found = []
        # Each process of rank 0 behind another logger's write: log and validation of a step have three each.
        for failpoint in ("", "metrics.written:7:kill:0:*"):
            with tempfile.TemporaryDirectory(prefix="lockstep_test_") as folder:
                job = self.start(environment={"LOCKSTEP_FAILPOINT": failpoint, "ACCELERATOR_WORKER_FOLDER": folder},
                                 **options)
                self.assertEqual(job.finish(), [0], job.errors)
                with open(os.path.join(folder, "runs.jsonl"), encoding="utf-8") as file:
                    ends = [line for line in file if '"end"' in line]
                found.append((self.lines_of(folder), self.rows_of(folder), self.points_of(folder), len(ends)))
        self.assertGreater(recoveries(job.errors), 5, job.errors)
        for undisturbed, disturbed in zip(*found):
            self.assertEqual(disturbed, undisturbed)
        points = found[0][2]
        self.assertEqual(len(points), len(set(points)))
        self.assertIn((30, "train_loss"), points)
        self.assertIn((30, "val_one"), points)

    def test_rank_0_dies_before_or_behind_a_write_of_metrics(self):
        with tempfile.TemporaryDirectory(prefix="lockstep_test_") as folder:
            job = self.start(steps=60, ranks=2, arguments=("trainer",), environment={"ACCELERATOR_WORKER_FOLDER": folder})
            self.assertEqual(job.finish(), [0], job.errors)
            lines, rows = self.lines_of(folder), self.rows_of(folder)
        self.assertIn((30, 360, True, False), lines)
        self.assertIn((30, 360, False, True), lines)
        for fault in some(("log", "logged", "validation", "validated"), 3):
            with self.subTest(fault=fault), tempfile.TemporaryDirectory(prefix="lockstep_test_") as folder:
                job = self.start(steps=60, ranks=2, arguments=("trainer",),
                                 environment={"ACCELERATOR_WORKER_FAULT": fault, "ACCELERATOR_WORKER_FOLDER": folder})
                self.assertEqual(job.finish(), [0], job.errors)
                self.assertEqual(recoveries(job.errors), 1, job.errors)
                self.assertEqual(self.lines_of(folder), lines)
                self.assertEqual(self.rows_of(folder), rows)

    def test_a_step_that_counted_and_is_made_again_is_logged_once(self):
        """Rank 1 is killed behind a validation of other weights, before it puts its shard of the weights back."""
        def results(environment, kills):
            with tempfile.TemporaryDirectory(prefix="lockstep_test_") as folder:
                job = self.start(steps=36, ranks=2, arguments=("trainer+fully+fused+swaps",),
                                 environment=environment | {"ACCELERATOR_WORKER_FOLDER": folder})
                self.assertEqual(job.finish(), [0], job.errors)
                self.assertEqual(recoveries(job.errors), kills, job.errors)
                return job.ends(), self.lines_of(folder), self.rows_of(folder), self.points_of(folder)

        undisturbed = results({}, kills=0)
        for fault in ("swapped", "unlogged"):
            with self.subTest(fault=fault):
                self.assertEqual(results({"ACCELERATOR_WORKER_FAULT": fault}, kills=1), undisturbed)

    def test_a_rank_that_fails_when_others_have_ended_ends_with_the_state_of_the_end(self):
        """Without any snapshot: nothing is trained again."""
        for loop in some(("while", "for"), 2):
            with self.subTest(loop=loop):
                arguments = ("plain", 0, loop)
                job = self.start(steps=20, ranks=2, arguments=arguments, environment={"ACCELERATOR_WORKER_FAULT": "ended"})
                self.assertEqual(job.finish(), [0], job.errors)
                self.assertEqual(job.ends(), self.undisturbed_end(steps=20, ranks=2, arguments=arguments))
                self.assertEqual(restarts(job.errors), [1], job.errors)
                steps = [text.split()[1] for _, text in job.said if text.startswith("step ")]
                self.assertEqual(len(steps), 40, job.said)

    def test_a_trainer_that_is_preempted_while_it_waits_for_a_machine_saves(self):
        for told in some(("launcher", "rank"), 2):
            with self.subTest(told=told), tempfile.TemporaryDirectory(prefix="lockstep_test_") as folder:
                environment = {"ACCELERATOR_WORKER_FOLDER": folder}
                port = free_port()
                job = self.job_of_machines(environment)
                self.machine(job, port, "2", ranks=2, arguments=("trainer",))
                wait_until_served(port)
                other = self.machine(job, port, "2", arguments=("trainer",))
                processes = job.wait_for_begin(3)
                job.wait_for_step(10)
                other.kill()
                job.wait_for_error("waiting: ")
                if told == "launcher":
                    job.launchers[0].send_signal(signal.SIGTERM)
                else:
                    os.kill(processes[1], signal.SIGUSR1)
                self.assertEqual(job.finish()[0], 75, job.errors)
                again = self.start(arguments=("trainer",), steps=job.last_step() + 31, environment=environment)
                self.assertEqual(again.finish(), [0], again.errors)
                begins = [int(text.split()[-1]) for _, text in again.said if "begins at" in text]
                self.assertEqual(min(begins), job.last_step() + 1)
                self.expect_audited(folder)

    def test_a_rank_that_is_killed_when_a_preempted_training_has_ended_resumes_it(self):
        with tempfile.TemporaryDirectory(prefix="lockstep_test_") as folder:
            options = {"steps": 60, "ranks": 2, "arguments": ("trainer",)}
            environment = {"ACCELERATOR_WORKER_FOLDER": folder}
            job = self.start(environment=environment | {"ACCELERATOR_WORKER_FAULT": "preempted"}, **options)
            processes = job.wait_for_begin(2)
            job.wait_for_step(10)
            os.kill(processes[0], signal.SIGUSR1)
            ended = job.finish()
            if ended == [75]:  # The launcher learned only after rank 1's death that rank 0 was preempted.
                job = self.start(environment=environment, **options)
                ended = job.finish()
            self.assertEqual(ended, [0], job.errors)
            resumed = [pid for pid, text in job.said if " of 2 begins at " in text][-2:]
            self.assertEqual(len(set(resumed) - set(processes.values())), 2)
            self.assertEqual(job.last_step(), 59)
            self.expect_audited(folder)

    def test_rank_0_dies_while_it_writes_the_best_weights(self):
        self.need_failpoints()
        found = []
        for failpoint in ("", "file.write:3:kill:0"):
            with tempfile.TemporaryDirectory(prefix="lockstep_test_") as folder:
                job = self.start(steps=20, ranks=2, arguments=("trainer",),
                                 environment={"LOCKSTEP_FAILPOINT": failpoint, "ACCELERATOR_WORKER_FOLDER": folder})
                self.assertEqual(job.finish(), [0], job.errors)
                self.expect_failpoints(job, failpoint)
                found.append(os.listdir(os.path.join(folder, "best")))
        self.assertEqual(found[1], found[0])

    def test_all_die_at_once_with_a_copy_in_memory(self):
        job = self.start(arguments=("plain", 10), steps=120)
        processes = job.wait_for_begin(3)
        job.wait_for_step(35)
        for process in processes.values():
            os.kill(process, signal.SIGKILL)
        self.assertEqual(job.finish(), [0], job.errors)
        self.assertEqual(job.ends(), self.undisturbed_end(steps=120))
        begins = [int(text.split()[-1]) for _, text in job.said if "begins at" in text]
        self.assertGreaterEqual(begins[3], 20, begins)

    def test_all_die_at_once_and_resume_from_a_snapshot(self):
        with tempfile.TemporaryDirectory(prefix="lockstep_test_") as folder:
            job = self.start(arguments=("save",), steps=120, environment={"ACCELERATOR_WORKER_FOLDER": folder})
            processes = job.wait_for_begin(3)
            job.wait_for_step(35)
            for process in processes.values():
                os.kill(process, signal.SIGKILL)
            self.assertEqual(job.finish(), [0], job.errors)
            self.assertEqual(job.ends(), self.undisturbed_end(steps=120))
            self.expect_audited(folder)

    def test_with_a_comm_hook_a_killed_rank_restarts_all_from_the_snapshot(self):
        with tempfile.TemporaryDirectory(prefix="lockstep_test_") as folder:
            job = self.start(arguments=("save+hook",), steps=100, environment={"ACCELERATOR_WORKER_FOLDER": folder})
            processes = job.wait_for_begin(3)
            job.wait_for_step(35)
            os.kill(processes[1], signal.SIGKILL)
            again = job.wait_for_begin(3)
            self.assertFalse(set(processes.values()) & set(again.values()))
            self.assertEqual(job.finish(), [0], job.errors)
            self.assertEqual(restarts(job.errors), [1], job.errors)
            warning = "recovery is off (a comm hook has state of its own"
            self.assertEqual(job.errors.count(warning), 2, job.errors)
            begins = [int(text.split()[-1]) for _, text in job.said if "begins at" in text]
            self.assertGreaterEqual(min(begins[3:]), 28, begins)
            self.expect_audited(folder)

    def test_all_die_at_once_with_a_snapshot_newer_than_the_copy_in_memory(self):
        with tempfile.TemporaryDirectory(prefix="lockstep_test_") as folder:
            job = self.start(arguments=("save", 40), steps=120, environment={"ACCELERATOR_WORKER_FOLDER": folder})
            processes = job.wait_for_begin(3)
            job.wait_for_step(60)
            for process in processes.values():
                os.kill(process, signal.SIGKILL)
            self.assertEqual(job.finish(), [0], job.errors)
            self.assertEqual(job.ends(), self.undisturbed_end(steps=120))
            last = max(int(text.split()[1]) for pid, text in job.said
                       if text.startswith("step ") and pid in processes.values())
            # Each fourth step is saved; they may have been killed while they wrote.
            begins = [int(text.split()[-1]) for _, text in job.said if "begins at" in text]
            self.assertGreaterEqual(begins[3], last - 9, begins)
            self.expect_audited(folder)

    def test_all_die_at_once_with_damaged_snapshots(self):
        """They are newer than the copy in memory, by their names."""
        with tempfile.TemporaryDirectory(prefix="lockstep_test_") as folder:
            job = self.start(arguments=("save", 40), steps=120, environment={"ACCELERATOR_WORKER_FOLDER": folder})
            processes = job.wait_for_begin(3)
            job.wait_for_step(50)
            for process in processes.values():
                os.kill(process, signal.SIGSTOP)
            for path in glob.glob(os.path.join(folder, "snapshots", "*.pt")):
                os.truncate(path, os.path.getsize(path) // 2)
            for process in processes.values():
                os.kill(process, signal.SIGKILL)
            self.assertEqual(job.finish(), [0], job.errors)
            self.assertEqual(job.ends(), self.undisturbed_end(steps=120))
            begins = [int(text.split()[-1]) for _, text in job.said if "begins at" in text]
            self.assertIn(begins[3] % 40, (0, 39), begins)
            self.assertGreaterEqual(begins[3], 39, begins)
            self.expect_audited(folder)

    def test_more_and_fewer_ranks(self):
        for kind, steps, first, changes in some((("per_rank", 800, 2, ((0, 3), (2, 1), (None, 3))),
                                                 ("per_rank+drop", 800, 1, ((None, 3), (1, 1))),
                                                 ("plain", 800, 2, ((1, 3), (0, 1), (None, 2)))), 3):
            with self.subTest(kind=kind), tempfile.TemporaryDirectory(prefix="lockstep_test_") as folder:
                train, test = self.scale_and_kill(kind, steps, first, changes, folder)
                for loader in (train, test):
                    self.assertEqual((loader["least_ranks"], loader["most_ranks"]), (1, 3))
                if "drop" not in kind:
                    self.assertEqual({epoch["given"] for epoch in train["epochs"]}, {127 if kind == "per_rank" else 120})
                self.assertEqual({epoch["given"] for epoch in test["epochs"]}, {31})
                self.assertTrue(all(epoch["complete"] for epoch in train["epochs"]), train["epochs"])
                if "per_rank" in kind:
                    self.expect_planned(folder, samples=127, batch_of_rank=12, seed=3, drops="drop" in kind)

    def test_a_standby_worker_takes_the_rank(self):
        self.expect_standby_takes_ranks()

    def test_an_error_of_the_program_costs_its_rank_alone(self):
        job = self.start(steps=60, environment={"LIVE_WORKER_THROW": "1:30"})
        processes = job.wait_for_begin(3)
        now = job.wait_for_begin(3)
        self.assertEqual((now[0], now[2]), (processes[0], processes[2]))
        self.assertNotEqual(now[1], processes[1])
        self.expect_same_end(job, steps=60)
        self.assertEqual(recoveries(job.errors), 1, job.errors)

    def test_a_flipped_bit_is_repaired(self):
        options = {"steps": 60, "arguments": ("fp16",)}
        job = self.start(environment={"ACCELERATOR_WORKER_FAULT": "flip"}, **options)
        self.expect_same_end(job, **options)
        self.assertRegex(job.errors, "after step 30 the parameters of rank 1 differ from rank 0's, which replace them")

    def test_state_that_is_not_registered_is_found(self):
        job = self.start(steps=200, arguments=("forgets",))
        processes = job.wait_for_begin(3)
        job.wait_for_step(20)
        os.kill(processes[1], signal.SIGKILL)
        self.assertEqual(job.finish(), [0], job.errors)
        self.assertRegex(job.errors, "the parameters of rank 1 differ from rank 0's, which replace them; check for state "
                                     "that steps read but that is not named or registered")
        self.assertEqual(job.errors.count("the parameters of rank 1 differ"), 1, job.errors)

    def test_a_rank_that_hangs_is_replaced(self):
        job = self.start(steps=60, environment={"ACCELERATOR_WORKER_FAULT": "hang", "LOCKSTEP_TIMEOUT_S": "3"})
        processes = job.wait_for_begin(3)
        now = job.wait_for_begin(3)
        self.assertEqual((now[0], now[2]), (processes[0], processes[2]))
        self.expect_same_end(job, steps=60)
        self.assertIn("turn_in_circles", job.errors)

    @full
    def test_the_mnist_program(self):
        with tempfile.TemporaryDirectory(prefix="lockstep_test_") as folder:
            write_mnist(folder)
            command = [LOCKSTEP, "run", "--standalone", "--nproc-per-node=2", "--max-restarts=9",
                       os.path.join(os.path.dirname(WORKER), "mnist"), folder, "1"]
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            undisturbed = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=True,
                                         env=environment).stdout.splitlines()
            self.assertEqual(len(undisturbed), 5, undisturbed)
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                  env=environment) as job:
                self.addCleanup(job.kill)
                lines = []
                for line in job.stdout:
                    lines.append(line.strip())
                    if len(lines) in (1, 3):
                        os.kill(self.worker_of(job.pid, rank=len(lines) // 2), signal.SIGKILL)
                errors = job.stderr.read()
            self.assertEqual((job.returncode, lines), (0, undisturbed), errors)
            self.assertEqual(recoveries(errors), 2, errors)

    def worker_of(self, launcher, rank):
        status = subprocess.run([LOCKSTEP, "ps", "--json", str(launcher)], capture_output=True, text=True,
                                timeout=DEADLINE_S, check=True).stdout
        worker, = (worker for worker in json.loads(status)[0]["workers"] if worker["rank"] == rank)
        return worker["pid"]

    def test_without_restarts_an_error_ends_the_program(self):
        job = self.start("--standalone", "--max-restarts=0", steps=10**6)
        processes = job.wait_for_begin(3)
        job.wait_for_step(20)
        os.kill(processes[1], signal.SIGKILL)
        self.assertEqual(job.finish(), [128 + signal.SIGKILL], job.errors)
        self.assertEqual(job.ends(), set())


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]] + sys.argv[3:])
