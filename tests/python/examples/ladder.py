#!/usr/bin/env python3
"""The programs of examples/ladder, as users run them: what they print, what they save, how they resume.

    ladder.py <lockstep> <folder of the programs>
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import torch

sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))
from cases import some
from free_ports import free_port
from killed_rank import assert_same_bits, run_and_kill

LOCKSTEP, PROGRAMS = (pathlib.Path(path).resolve() for path in sys.argv[1:])


def loss_of(state):
    """Of a linear layer on the samples that all programs train on."""
    torch.manual_seed(0)
    inputs, targets = torch.rand(4096, 20), torch.rand(4096, 1)
    return torch.nn.functional.mse_loss(inputs @ state["weight"].T + state["bias"], targets).item()


def trained_by_pytorch(world_size, epochs, batch_size=32):
    """The weights of the ladder's training: all ranks' gradients averaged."""
    torch.manual_seed(0)
    inputs, targets = torch.rand(4096, 20), torch.rand(4096, 1)
    torch.manual_seed(0)
    model = torch.nn.Linear(20, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    samplers = [torch.utils.data.DistributedSampler(inputs, world_size, rank)
                for rank in range(world_size)]
    for epoch in range(epochs):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        for batches in zip(*(torch.tensor(list(sampler)).split(batch_size) for sampler in samplers)):
            optimizer.zero_grad()
            for batch in batches:
                loss = torch.nn.functional.mse_loss(model(inputs[batch]), targets[batch])
                (loss / world_size).backward()
            optimizer.step()
    return model.state_dict()


def launched(ranks, *arguments, flags=()):
    return [LOCKSTEP, "run", "--standalone", f"--nproc-per-node={ranks}", *flags,
            PROGRAMS / arguments[0], *arguments[1:]]


class Ladder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_program(self, command, expected=0):
        done = subprocess.run([str(part) for part in command], cwd=self.folder, capture_output=True,
                              text=True, timeout=100, check=False,
                              env=os.environ | {"TMPDIR": str(self.folder)})
        self.assertEqual(done.returncode, expected, done.stdout + done.stderr)
        return done.stdout.splitlines(), done.stderr

    def load(self, name):
        return torch.load(self.folder / name, weights_only=True)

    def assert_learned(self, first, last):
        self.assertLess(loss_of(last), 0.9 * loss_of(first))

    def assert_trained(self, state, world_size, epochs):
        for name, value in trained_by_pytorch(world_size, epochs).items():
            torch.testing.assert_close(state[name], value, rtol=0, atol=1e-6)

    def test_single_gpu(self):
        lines, _ = self.run_program([PROGRAMS / "single_gpu", "1", "1"])
        self.assertEqual(lines, ["[GPU0] Epoch 0 | Batchsize: 32 | Steps: 128",
                                 "Epoch 0 | Training checkpoint saved at checkpoint.pt"])
        first = self.load("checkpoint.pt")
        lines, _ = self.run_program([PROGRAMS / "single_gpu", "31", "30", "--batch_size", "100"])
        self.assertEqual(lines[-2:], ["[GPU0] Epoch 30 | Batchsize: 100 | Steps: 41",
                                      "Epoch 30 | Training checkpoint saved at checkpoint.pt"])
        self.assert_learned(first, self.load("checkpoint.pt"))

    def test_multigpu(self):
        lines, _ = self.run_program([PROGRAMS / "multigpu", "1", "1"])
        self.assertEqual(sorted(lines), ["Epoch 0 | Training checkpoint saved at checkpoint.pt",
                                         "[GPU0] Epoch 0 | Batchsize: 32 | Steps: 64",
                                         "[GPU1] Epoch 0 | Batchsize: 32 | Steps: 64"])
        self.assert_trained(self.load("checkpoint.pt"), world_size=2, epochs=1)
        lines, _ = self.run_program([PROGRAMS / "multigpu", "5", "4", "--world_size", "3"])
        self.assertIn("[GPU2] Epoch 4 | Batchsize: 32 | Steps: 43", lines)
        self.assert_trained(self.load("checkpoint.pt"), world_size=3, epochs=5)

    def test_multigpu_torchrun_resumes(self):
        for program in some(("multigpu_torchrun", "multinode"), 2):
            with self.subTest(program):
                lines, _ = self.run_program(launched(2, program, "3", "2"))
                self.assertEqual(sum("Resuming" in line for line in lines), 0)
                self.assertEqual(self.load("snapshot.pt")["EPOCHS_RUN"], 3)
                lines, _ = self.run_program(launched(2, program, "5", "2"))
                self.assertEqual(lines.count("Resuming training from snapshot at Epoch 3"), 2)
                for gpu in "01":
                    self.assertIn(f"[GPU{gpu}] Epoch 3 | Batchsize: 32 | Steps: 64", lines)
                snapshot = self.load("snapshot.pt")
                self.assertEqual(snapshot["EPOCHS_RUN"], 5)
                self.assertEqual(set(snapshot["MODEL_STATE"]), {"weight", "bias"})
                self.assert_trained(snapshot["MODEL_STATE"], world_size=2, epochs=5)
                lines, _ = self.run_program(launched(2, program, "5", "2"))
                self.assertIn("Training is complete: snapshot.pt has 5 epochs; delete it to start anew",
                              lines)
                torch.save({**snapshot, "EPOCHS_RUN": -5}, self.folder / "snapshot.pt")
                _, err = self.run_program(launched(2, program, "5", "2"), expected=2)
                self.assertIn("snapshot.pt: EPOCHS_RUN is -5; delete the file", err)
                os.remove(self.folder / "snapshot.pt")

    def test_machines_resume_from_the_snapshot_of_the_first(self):
        folders = [self.folder / name for name in ("first", "second")]
        for folder in folders:
            folder.mkdir()
        (folders[1] / "snapshot.pt").write_text("of another job")
        for epochs in (1, 2):
            port = free_port()
            jobs = [subprocess.Popen(
                [LOCKSTEP, "run", "--nnodes=2", f"--node-rank={node}", "--master-addr=127.0.0.1",
                 f"--master-port={port}", PROGRAMS / "multinode", str(epochs), "1"],
                cwd=folder, stdout=subprocess.PIPE, text=True) for node, folder in enumerate(folders)]
            for job in jobs:
                self.addCleanup(job.kill)
            outputs = [job.communicate(timeout=100)[0] for job in jobs]
            self.assertEqual([job.returncode for job in jobs], [0, 0])
        for rank, output in enumerate(outputs):
            self.assertIn("Resuming training from snapshot at Epoch 1\n", output)
            self.assertIn(f"[GPU{rank}] Epoch 1 | Batchsize: 32 | Steps: 64\n", output)
        self.assertEqual((folders[1] / "snapshot.pt").read_text(), "of another job")
        self.assert_trained(self.load("first/snapshot.pt")["MODEL_STATE"], world_size=2, epochs=2)

    def test_a_killed_rank_costs_no_bit(self):
        for program in some(("multinode", "multigpu_torchrun"), 2):
            with self.subTest(program):
                self.run_program(launched(2, program, "100", "1"))
                undisturbed = self.load("snapshot.pt")["MODEL_STATE"]
                os.remove(self.folder / "snapshot.pt")
                code, _, lines = run_and_kill(
                    launched(2, program, "100", "1", flags=["--max-restarts=1"]),
                    "Epoch 7 | Training snapshot saved", PROGRAMS / program, cwd=self.folder)
                self.assertEqual(code, 0, lines)
                resumed = [int(match[1]) for line in lines if (match := re.fullmatch(
                    r"Resuming training from snapshot at Epoch (\d+)", line))]
                self.assertEqual(len(resumed), 2)
                self.assertGreaterEqual(resumed[0], 8)
                snapshot = self.load("snapshot.pt")
                self.assertEqual(snapshot["EPOCHS_RUN"], 100)
                assert_same_bits(self, snapshot["MODEL_STATE"], undisturbed)
                os.remove(self.folder / "snapshot.pt")

    def test_dp_sizes(self):
        for replicas, parts, last in ((1, [30], [10]), (2, [15, 15], [5, 5]),
                                      (3, [10, 10, 10], [4, 4, 2]),
                                      (8, [4] * 7 + [2], [2] * 5)):
            with self.subTest(replicas):
                lines, _ = self.run_program([PROGRAMS / "dp_sizes", "--replicas", replicas])
                self.assertEqual(lines[0] == f"Let's use {replicas} replicas!", replicas > 1)
                inside, batches = [], []
                for line in lines[replicas > 1:]:
                    sizes = re.findall(r"\[(\d+), (\d)\]", line)
                    self.assertEqual([int(size[1]) for size in sizes], [5, 2], line)
                    self.assertEqual(sizes[0][0], sizes[1][0])
                    if line.startswith("\tIn Model"):
                        inside.append(int(sizes[0][0]))
                    else:
                        batches.append((int(sizes[0][0]), sorted(inside)))
                        inside = []
                self.assertEqual(batches, [(30, sorted(parts))] * 3 + [(10, sorted(last))])

    def test_toy_ddp(self):
        others = self.folder / "model.checkpoint"
        others.touch()
        for demo in ("basic", "checkpoint", "model_parallel"):
            with self.subTest(demo):
                lines, _ = self.run_program([PROGRAMS / "toy_ddp", demo, "--world_size", "3"])
                self.assertEqual(sorted(lines), sorted(
                    f"{what} {demo} DDP example on rank {rank}."
                    for what in ("Running", "Finished running") for rank in range(3)))
                self.assertEqual(list(self.folder.iterdir()), [others], "in the folder for temporaries")
        lines, _ = self.run_program(launched(2, "toy_ddp", "elastic"))
        self.assertIn("Finished running elastic DDP example on rank 1.", lines)

    def test_what_starts_its_own_processes_refuses_a_launcher(self):
        for command, other in ((["multigpu", "1", "1"], "multigpu_torchrun"),
                               (["toy_ddp", "basic"], "toy_ddp elastic")):
            with self.subTest(command):
                lines, err = self.run_program(launched(2, *command), expected=2)
                self.assertEqual(lines, [])
                self.assertIn(f"start it without one, or take {other}", err)

    def test_help_shows_how_to_start(self):
        for program in ("single_gpu", "multigpu", "multigpu_torchrun", "multinode", "toy_ddp",
                        "dp_sizes", "distributed", "distributed_mp", "dataparallel",
                        "distributed_amp", "distributed_gradient_accumulation", "digits", "mingpt"):
            lines, _ = self.run_program([PROGRAMS / program, "--help"])
            self.assertTrue(any(re.search(rf"(^  |`|=2 ){program}( |$|`)|=FILE {program}", line)
                                for line in lines), lines)

    def test_wrong_arguments_are_refused_with_a_line(self):
        for command, words in ((["single_gpu"], "total_epochs is required"),
                               (["multigpu", "0", "1"], "total_epochs"),
                               (["multigpu", "2", "1", "--batchsize", "3"], "--batchsize"),
                               (["multigpu", "010", "1"], "integer from 1 to 1000000000, not 010"),
                               (["toy_ddp", "fast"], "fast not in"),
                               (["toy_ddp", "elastic", "--world_size", "3"], "give it to the launcher"),
                               (["dp_sizes", "--replicas", "0"], "--replicas")):
            with self.subTest(command):
                _, err = self.run_program([PROGRAMS / command[0], *command[1:]], expected=2)
                self.assertEqual(len(err.splitlines()), 1, err)
                self.assertIn(words, err)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
