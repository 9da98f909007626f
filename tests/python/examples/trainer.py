"""Runs the example `trainer` as users do: processes of its own, by the launcher, killed and resumed on another number
of ranks; what it writes is read by PyTorch.

    trainer.py LOCKSTEP TRAINER DIGITS_CSV [unittest arguments]
"""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

LOCKSTEP, TRAINER, DATA = map(os.path.abspath, sys.argv[1:4])
DEADLINE_S = 120


def environment():
    return os.environ | {"OMP_NUM_THREADS": "1"}


def run(*command):
    return subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=DEADLINE_S, env=environment())


class Trainer(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lockstep_test_")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name, "run")

    def trainer(self, *flags):
        return [TRAINER, f"--data={DATA}", f"--directory={self.folder}", "--log-samples", *flags]

    def job(self, ranks, *flags):
        return [LOCKSTEP, "run", "--standalone", f"--nproc-per-node={ranks}", *self.trainer(*flags)]

    def metrics(self):
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]

    def test_it_starts_its_own_processes(self):
        result = run(*self.trainer("--devices=2", "--max-duration=2ep"))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, r"^trained for 2 epochs, 46 steps; ")
        self.assertRegex(result.stderr, r"(?m)^epoch 2  train_loss [\d.]+  samples_per_second \d+  lr 0.001  val_loss ")

    def test_killed_and_resumed_on_another_number_of_ranks(self):
        with subprocess.Popen(self.job(2, "--max-duration=100000ep", "--patience=100000"), stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True, env=environment()) as job:
            for line in job.stderr:
                if line.startswith("epoch 3 "):
                    job.send_signal(signal.SIGKILL)  # The launcher, with which the ranks end.
                    break
        before = self.metrics()[-1]["epoch"]
        self.assertGreaterEqual(before, 2)
        epochs = before + 5
        result = run(*self.job(3, f"--max-duration={epochs}ep"))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(f"trained for {epochs} epochs", result.stdout)
        self.assertIn(f"epoch {epochs}  train_loss", result.stderr)
        audit = run(LOCKSTEP, "audit", self.folder / "data", "--json")
        self.assertEqual(audit.returncode, 0, audit.stdout)
        (loader,) = json.loads(audit.stdout)
        self.assertEqual((loader["runs"], loader["least_ranks"], loader["most_ranks"]), (2, 2, 3))
        self.assertEqual([epoch["given"] for epoch in loader["epochs"]], [1438] * epochs)
        again = run(*self.trainer(f"--max-duration={epochs}ep"))
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertIn(f"trained for {epochs} epochs", again.stdout)

    def test_pytorch_reads_the_best_weights_and_the_snapshots(self):
        import torch
        self.assertEqual(run(*self.trainer("--max-duration=3ep")).returncode, 0)
        (best,) = (self.folder / "best").iterdir()
        net = torch.nn.ModuleDict({"hidden": torch.nn.Linear(64, 128), "output": torch.nn.Linear(128, 10)})
        net.load_state_dict(torch.load(best, weights_only=True))
        snapshot = torch.load(sorted((self.folder / "snapshots").glob("snapshot-*"))[-1], weights_only=True, mmap=True)
        net.load_state_dict(snapshot["model"])
        adam = torch.optim.Adam(net.parameters())
        adam.load_state_dict(snapshot["optimizer"])
        self.assertEqual(snapshot["values"]["data"][0], {"seed": 0, "epoch": 3, "consumed": 0, "batches": 0, "dataset_size": 1438})
        last = self.metrics()[-1]
        self.assertEqual((last["step"], last["samples"]), (135, 3 * 1438))

    def test_one_copy_per_machine_trains_to_the_bits_of_replicas(self):
        import torch
        runs = []
        for name, flags in (("replicas", ()), ("shared", ("--one-copy-per-machine",))):
            self.folder = self.folder.parent / name
            result = run(*self.job(2, "--max-duration=3ep", *flags))
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertNotIn("warning", result.stderr)
            runs.append(torch.load(sorted((self.folder / "snapshots").glob("snapshot-*"))[-1], weights_only=True))
        for part in ("model", "optimizer"):
            self.assert_same_bits(runs[0][part], runs[1][part], part)

    def assert_same_bits(self, left, right, where):
        import torch
        self.assertIs(type(left), type(right), where)
        if isinstance(left, dict):
            self.assertEqual(left.keys(), right.keys(), where)
            for key in left:
                self.assert_same_bits(left[key], right[key], f"{where} {key}")
        elif isinstance(left, torch.Tensor):
            self.assertTrue(torch.equal(left, right), where)
        else:
            self.assertEqual(left, right, where)

    def test_preempted_it_saves_and_goes_on(self):
        with subprocess.Popen(self.job(2, "--max-duration=100000ep", "--patience=100000"), stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True, env=environment()) as job:
            for line in job.stderr:
                if line.startswith("epoch 2 "):
                    job.send_signal(signal.SIGTERM)
                    break
            job.stderr.read()
        self.assertEqual(job.returncode, 75)
        self.assertTrue(list((self.folder / "snapshots").glob("snapshot-*")))
        self.assertEqual(run(LOCKSTEP, "audit", self.folder / "data").returncode, 0)

    def test_its_own_processes_make_room(self):
        for told, number in (("child", signal.SIGTERM), ("starter", signal.SIGTERM), ("starter", signal.SIGUSR1)):
            with self.subTest(told=told, number=number):
                with subprocess.Popen(self.trainer("--devices=2", "--max-duration=100000ep", "--patience=100000"),
                                      stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                      env=environment()) as job:
                    line = next(line for line in job.stderr if line.startswith("epoch "))
                    children = pathlib.Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
                    os.kill(int(children[-1]) if told == "child" else job.pid, number)
                    rest = line + job.stderr.read()
                self.assertEqual(job.returncode, 75, rest)
                self.assertTrue(list((self.folder / "snapshots").glob("snapshot-*")))

    def test_a_flag_counts_more_than_the_environment_and_that_more_than_a_file(self):
        file = self.folder.parent / "train.toml"
        file.write_text('max_duration = "4ep"\nbatch_size = 719\nlr = 0.5\n[ddp]\nstatic_graph = true\n')
        with_file = {**environment(), "LOCKSTEP_TRAINER_MAX_DURATION": "3ep", "LOCKSTEP_TRAINER_LR": "0.25"}
        command = [*self.trainer(f"--config={file}", "--lr=0.125"), "--devices=2"]
        result = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=DEADLINE_S, env=with_file)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, "^trained for 3 epochs, 3 steps")
        self.assertEqual(self.metrics()[0]["lr"], 0.125)
        shown = run(*self.trainer(f"--config={file}"), "--print-config")
        self.assertEqual(shown.returncode, 0, shown.stderr)
        import tomllib
        values = tomllib.loads(shown.stdout)
        self.assertEqual((values["max_duration"], values["batch_size"], values["lr"]), ("4ep", 719, 0.5))
        self.assertIs(values["ddp"]["static_graph"], True)
        again = self.folder.parent / "again.toml"
        again.write_text(shown.stdout)
        self.assertEqual(run(TRAINER, f"--config={again}", "--print-config").stdout, shown.stdout)

    def test_loggers_trace_and_snapshots_by_options(self):
        result = run(*self.trainer("--devices=2", "--max-duration=2ep", "--logger=tensorboard,csv", "--trace", "steps=3:5",
                                   "--asynchronous-saves", "--sharded-saves"))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertTrue(list((self.folder / "tensorboard").glob("events.out.tfevents.*")))
        self.assertIn("val_accuracy", (self.folder / "metrics.csv").read_text().splitlines()[0])
        trace = json.loads((self.folder / "traces" / "steps-3-4.json").read_text())
        names = {event["args"]["name"] for event in trace["traceEvents"] if event.get("name") == "process_name"}
        self.assertLessEqual({"rank 0", "rank 1"}, names)
        events = [json.loads(line)["event"] for line in (self.folder / "runs.jsonl").read_text().splitlines()]
        self.assertEqual(events, ["begin", "end"])
        self.assertEqual(len(list((self.folder / "snapshots").glob("*/manifest.json"))), 2)
        report = run(LOCKSTEP, "report", self.folder)
        self.assertEqual(report.returncode, 0, report.stderr)
        self.assertIn("snapshot-e0001-s00000046/", (self.folder / "report.html").read_text())
        again = run(*self.trainer("--max-duration=3ep", "--lr=0.5"))
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertIn("using learning rate 0.001 of the snapshot, not 0.5", again.stderr)
        self.assertIn(f"resumed from the newest snapshot in {self.folder}, after step 46\n", again.stderr)
        self.assertRegex(again.stdout, "^trained for 3 epochs, 91 steps")

    def test_a_folder_is_one_jobs_while_it_runs(self):
        for ranks in 1, 2:
            with self.subTest(ranks=ranks):
                with subprocess.Popen(self.job(ranks, "--max-duration=100000ep", "--patience=100000"),
                                      stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                      env=environment()) as job, contextlib.ExitStack() as stack:
                    stack.callback(job.kill)
                    next(line for line in job.stderr if line.startswith("epoch "))
                    second = run(*self.trainer("--max-duration=1ep"))
                    self.assertEqual(second.returncode, 2, second.stderr)
                    self.assertRegex(second.stderr, r"^lockstep error: .*/snapshots is in use by another job: process \d+ on "
                                                    r".*; wait for its end, or choose another folder\n$")
                    self.assertTrue(list((self.folder / "snapshots").glob("snapshot-*")))
                    job.send_signal(signal.SIGTERM)
                    job.stderr.read()
                self.assertEqual(job.returncode, 75)
                third = run(*self.trainer("--max-duration=1ep"))
                self.assertEqual(third.returncode, 0, third.stderr)

    def test_quiet_it_says_nothing(self):
        result = run(*self.trainer("--quiet", "--max-duration=1ep"))
        self.assertEqual((result.returncode, result.stderr), (0, ""))

    def test_what_cannot_work_gets_one_line(self):
        file = self.folder.parent / "train.json"
        file.write_text('{"max_duration": "1ep", "ddp": {"statik_graph": true}}')
        for flags, code, words in (([f"--config={file}"], 2, "train.json: no option is called ddp.statik_graph; did you "
                                                             "mean ddp.static_graph?"),
                                   (["--max-duraton=1ep"], 2, "unknown flag --max-duraton; did you mean --max-duration?"),
                                   (["--logger=wandb"], 2, "must be '', tensorboard, csv, tensorboard,csv or csv,tensorboard"),
                                   (["--num-nodes=2", "--devices=3"], 2, "lockstep run --nnodes=2 --nproc-per-node=3"),
                                   (["--max-duration=10"], 2, "max_duration is '10'; give a number with ep"),
                                   (["--precision=fp8"], 2, "must be fp32, bf16, fp16, 32-true, bf16-mixed or 16-mixed"),
                                   (["--directory="], 2, "directory is empty; name a folder"),
                                   (["--lr=1e30"], 1, "the training's loss is not finite on rank 0 in step 2"),
                                   (["--directory=/proc/none"], 1, "choose a folder that this process may write")):
            with self.subTest(flags=flags):
                result = run(*self.trainer()[:2], "--fast-dev-run=0", *flags)
                self.assertEqual(result.returncode, code, result.stderr)
                self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
                self.assertIn(words, result.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]] + sys.argv[4:])
