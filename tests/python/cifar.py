#!/usr/bin/env python3
"""The programs of examples/cifar on a few images that are made up.

    cifar.py <lockstep> <folder of the programs>
"""
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import unittest

LOCKSTEP, PROGRAMS = (pathlib.Path(path).resolve() for path in sys.argv[1:])
EPOCH = re.compile(r"epoch (\d+)/(\d+)  loss ([\d.]+)  accuracy ([\d.]+) %  test accuracy ([\d.]+) %  "
                   r"[\d.]+ s")
SMALL = ["--synthetic", "50", "--batch_size", "16", "--epochs", "1", "--lr", "0.01"]


def command(program, *arguments, ranks=None):
    launcher = [LOCKSTEP, "run", "--standalone", f"--nproc-per-node={ranks}"] if ranks else []
    return [str(part) for part in [*launcher, PROGRAMS / program, *SMALL, *arguments]]


class Cifar(unittest.TestCase):
    def run_program(self, *arguments, expected=0, **where):
        done = subprocess.run(command(*arguments, **where), capture_output=True, text=True, timeout=200,
                              check=False)
        self.assertEqual(done.returncode, expected, done.stdout + done.stderr)
        return done

    def result(self, output):
        """Of the last epoch: loss, accuracy and test accuracy."""
        lines = output.splitlines()
        self.assertRegex(lines[-1], r"^time per epoch: [\d.]+ s$")
        match = EPOCH.fullmatch(lines[-2])
        self.assertIsNotNone(match, lines[-2])
        self.assertEqual(match[1], match[2])
        return tuple(float(match[i]) for i in (3, 4, 5))

    def train(self, *arguments, **where):
        return self.result(self.run_program(*arguments, **where).stdout)

    def test_processes_train_what_one_trains(self):
        # 50 images in batches of 16: with three processes they have 17, 17 and 16.
        one = self.train("distributed", ranks=1)
        self.assertTrue(3 < one[0] < 7, one)
        launched = self.train("distributed", ranks=2)
        self.assertEqual(self.train("distributed_mp", "--nproc_per_node", "2"), launched)
        self.assertAlmostEqual(launched[0], one[0], delta=0.02)
        apart = self.train("distributed", "--no_sync_bn", ranks=2)
        self.assertNotEqual(apart[0], launched[0])

    def test_the_other_ways(self):
        for arguments in (["dataparallel", "--nproc_per_node", "2"],
                          ["distributed_gradient_accumulation", "--grad_accu_steps", "2"],
                          ["distributed_amp"]):
            with self.subTest(arguments):
                loss, accuracy, test = self.train(*arguments)
                self.assertTrue(3 < loss < 7, loss)
                self.assertTrue(0 <= accuracy <= 100 and 0 <= test <= 100)

    def test_two_machines(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        jobs = [subprocess.Popen(command("distributed_mp", "--nnodes", "2", "--node_rank", node,
                                         "--nproc_per_node", "1", "--port", port),
                                 stdout=subprocess.PIPE, text=True) for node in "01"]
        outputs = [job.communicate(timeout=200)[0] for job in jobs]
        self.assertEqual([job.returncode for job in jobs], [0, 0])
        self.assertEqual(outputs[1], "")
        self.result(outputs[0])

    def test_a_folder_that_is_missing_says_how_to_get_it(self):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([PROGRAMS / "distributed_mp", "--data", f"{folder}/none"],
                                  capture_output=True, text=True, timeout=100, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("lockstep data get", done.stderr)

    def test_wrong_arguments_are_refused(self):
        for arguments, words in ((["--node_rank", "1"], "--node_rank 1 of --nnodes 1"),
                                 (["--amp_dtype", "fp8"], "fp8"), (["--epohcs", "2"], "--epohcs")):
            with self.subTest(arguments):
                done = self.run_program("distributed", *arguments, expected=2)
                self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
                self.assertIn(words, done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
