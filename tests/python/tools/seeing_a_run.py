"""What a Trainer's callbacks write of a run on several ranks, that is resumed; and timelines of all ranks.

    seeing_a_run.py LOCKSTEP SEEN_WORKER [unittest arguments]
"""

import csv
import importlib.util
import json
import os
import pathlib
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))
from launch_reports import failures
from seen_run import LOCKSTEP, WORKER, Seen, run


class Logs(Seen):
    def test_all_files_say_the_same_of_a_run_that_is_resumed(self):
        self.train(2, 8)
        self.train(3, 12)
        lines = self.lines("metrics.jsonl")
        metrics = [line for line in lines if "resumed" not in line]
        self.assertEqual([line["step"] for line in lines if "resumed" in line], [8])
        training = {line["step"]: line for line in metrics if "train_loss" in line}
        self.assertEqual(list(training), list(range(1, 13)))
        for line in training.values():
            self.assertLess(0, line["grad_norm"])
            self.assertTrue(0.001 < line["memory_gib"] < 100 and 0 < line["memory_percent"] < 100, line)
            self.assertAlmostEqual(line["tokens_per_second"] / line["samples_per_second"], 8, places=5)
        with open(self.folder / "metrics.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual(len(rows), len(metrics))
        for row, line in zip(rows, metrics):
            self.assertEqual({name: float(value) for name, value in row.items() if value}, line)
        begun, ended, begun_again, ended_again = self.lines("runs.jsonl")
        self.assertEqual([begun["ranks"], begun["step"], ended["step"]], [2, 0, 8])
        self.assertEqual([begun_again["ranks"], begun_again["step"], ended_again["step"]], [3, 8, 12])
        self.assertEqual(begun["machine"]["host"], os.uname().nodename)
        self.assertRegex(begun["versions"]["libtorch"], r"^2\.\d+")

    @unittest.skipUnless(importlib.util.find_spec("tensorboard"), "Python's tensorboard is not installed")
    def test_tensorboard_shows_what_was_logged(self):
        from tensorboard.backend.event_processing import event_accumulator
        self.train(2, 8)
        self.train(1, 12)
        events = event_accumulator.EventAccumulator(str(self.folder / "tensorboard"),
                                                    size_guidance={event_accumulator.SCALARS: 0}).Reload()
        for name in ("train_loss", "val_loss", "lr", "grad_norm", "samples_per_second"):
            expected = [(line["step"], line[name]) for line in self.lines("metrics.jsonl") if name in line]
            seen = [(event.step, event.value) for event in events.Scalars(name)]
            self.assertEqual([step for step, _ in seen], [step for step, _ in expected])
            for (_, a), (_, b) in zip(seen, expected):
                self.assertAlmostEqual(a / b, 1, places=5)


class Traces(Seen):
    def test_the_timeline_has_all_ranks_their_operators_and_the_exchange(self):
        self.train(2, 8, "4:6")
        timeline = self.folder / "traces" / "steps-4-5.json"
        events = json.loads(timeline.read_text())["traceEvents"]
        names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
        self.assertEqual(names, {0: "rank 0", 1: "rank 1"})
        meetings = {}
        for rank in (0, 1):
            own = [event for event in events if event["pid"] == rank and event["ph"] == "X"]
            named = lambda prefix: [event for event in own if event["name"].startswith(prefix)]
            self.assertEqual(len(named("autograd::engine::evaluate_function: MseLossBackward0")), 2, "a step each")
            self.assertTrue(named("aten::addmm") and named("autograd::engine::evaluate_function"))
            self.assertEqual(len(named("lockstep::wait for bucket 0")), 2)
            meetings[rank] = named("lockstep::clock")
            self.assertEqual(len(meetings[rank]), 10)
            self.assertGreaterEqual(min(event["ts"] for event in own), 0)
        for ours, theirs in zip(meetings[0], meetings[1]):
            self.assertLessEqual(ours["ts"], theirs["ts"] + theirs["dur"])
            self.assertLessEqual(theirs["ts"], ours["ts"] + ours["dur"])
        again = run(LOCKSTEP, "trace", "merge", self.folder / "again.json", self.folder / "traces")
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertIn(f"{len(events)} events of 2 ranks", again.stdout)
        self.assertEqual((self.folder / "again.json").read_text(), timeline.read_text())

    def test_a_run_traces_those_of_the_steps_that_it_makes(self):
        self.train(1, 5, "4:9")
        self.assertTrue((self.folder / "traces" / "steps-4-8.json").exists(), "it ended after 5")
        self.train(1, 7, "4:9")
        self.assertTrue((self.folder / "traces" / "steps-6-8.json").exists())
        self.train(1, 12, "4:7")
        self.assertEqual(len(list((self.folder / "traces").iterdir())), 4, "they were made before")

    def test_a_rank_that_cannot_trace_is_named(self):
        result = self.try_to_train(2, 8, "4:6", "busy")
        self.assertNotEqual(result.returncode, 0)
        failure, = failures(result.stderr)
        self.assertEqual((failure.rank, failure.is_first), (1, True), result.stderr)
        self.assertIn("a profiler runs already", failure.said)

    def test_steps_that_are_none_get_one_line(self):
        result = run(WORKER, self.folder, 8, "6:4")
        self.assertEqual((result.returncode, len(result.stderr.splitlines())), (2, 1), result.stderr)
        self.assertIn("TraceCallback: steps is '6:4'; give the first step", result.stderr)

    def test_what_cannot_be_merged_gets_one_line(self):
        self.folder.mkdir()
        (self.folder / "a.rank0.json").write_text('{"traceEvents": [')
        for arguments, code, words in ((["merge", "out.json", self.folder / "none.json"], 1, "No such file"),
                                       (["merge", "out.json", self.folder], 1, "or truncated"),
                                       (["merge", "out.json"], 2, "TRACES is required"),
                                       (["split"], 2, "unknown action 'split'; it is one of merge")):
            with self.subTest(arguments=arguments):
                result = run(LOCKSTEP, "trace", *arguments)
                self.assertEqual((result.returncode, len(result.stderr.splitlines())), (code, 1), result.stderr)
                self.assertIn(words, result.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]] + sys.argv[3:])
