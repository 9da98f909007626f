#!/usr/bin/env python3
"""The programs of examples/cifar on a few images that are made up.

    cifar.py <lockstep> <folder of the programs>
"""
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))
from example_data_run import Mirror, data_set, load_script, png, source, zip_of
from free_ports import free_port

LOCKSTEP, PROGRAMS = (pathlib.Path(path).resolve() for path in sys.argv[1:])
EPOCH = re.compile(r"epoch (\d+)/(\d+)  loss ([\d.]+)  accuracy ([\d.]+) %  test accuracy ([\d.]+) %  "
                   r"([\d.]+) s")
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}
SMALL = {"--synthetic": "50", "--batch_size": "16", "--epochs": "1", "--lr": "0.01"}


def noise(count, first=0):
    """Records of CIFAR-100's format: one of three labels and an image, both drawn."""
    draws = [random.Random(first + i) for i in range(count)]
    return [bytes([0, draw.randrange(3)]) + draw.randbytes(3072) for draw in draws]


def write_data(folder, records, test_records=None):
    (folder / "train.bin").write_bytes(b"".join(records))
    (folder / "test.bin").write_bytes(b"".join(test_records or records))
    (folder / "fine_label_names.txt").write_text("a\nb\nc\n")


def command(program, *arguments, ranks=None):
    launcher = [LOCKSTEP, "run", "--standalone", f"--nproc-per-node={ranks}"] if ranks else []
    given = {*arguments, "--synthetic"} if "--data" in arguments else arguments
    small = [part for flag in SMALL.items() if flag[0] not in given for part in flag]
    return [str(part) for part in [*launcher, PROGRAMS / program, *small, *arguments]]


class Cifar(unittest.TestCase):
    def run_program(self, *arguments, expected=0, **where):
        done = subprocess.run(command(*arguments, **where), capture_output=True, text=True, timeout=200,
                              check=False, env=ENVIRONMENT)
        self.assertEqual(done.returncode, expected, done.stdout + done.stderr)
        return done

    def epochs(self, output):
        """Of each: loss, accuracy and test accuracy."""
        *lines, last = output.splitlines()
        matches = [EPOCH.fullmatch(line) for line in lines]
        self.assertNotIn(None, matches, output)
        self.assertEqual([(int(match[1]), int(match[2])) for match in matches],
                         [(epoch, len(lines)) for epoch in range(1, len(lines) + 1)])
        mean_s = re.fullmatch(r"time per epoch: ([\d.]+) s", last)
        seconds = [float(match[6]) for match in matches]
        self.assertAlmostEqual(float(mean_s[1]), sum(seconds) / len(seconds), delta=0.011)
        return [tuple(float(match[i]) for i in (3, 4, 5)) for match in matches]

    def train(self, *arguments, **where):
        return self.epochs(self.run_program(*arguments, **where).stdout)[-1]

    def folder_of(self, *records):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        write_data(pathlib.Path(folder.name), *records)
        return folder.name

    def test_processes_train_what_one_trains(self):
        # 50 images in batches of 16: with three processes they have 17, 17 and 16.
        one = self.train("distributed", ranks=1)
        self.assertTrue(3 < one[0] < 7, one)
        launched = self.train("distributed", ranks=2)
        self.assertEqual(self.train("distributed_mp", "--nproc_per_node", "2"), launched)
        self.assertAlmostEqual(launched[0], one[0], delta=0.02)
        apart = self.train("distributed", "--no_sync_bn", ranks=2)
        self.assertNotEqual(apart[0], launched[0])

    def test_each_image_counts_once_whatever_the_number_of_processes(self):
        # 29 images: no number of processes divides them. The weights stay: all see the same batches.
        arguments = ["--data", self.folder_of(noise(29)), "--epochs", "2",
                     "--lr", "1e-30"]

        def train(*more, ranks, batch_size=12, program="distributed"):
            return self.epochs(self.run_program(program, *arguments, "--batch_size", str(batch_size),
                                                *more, ranks=ranks).stdout)

        one = train(ranks=1)
        for loss, *percentages in one:
            for percent in percentages:
                self.assertTrue(0 < percent < 100, one)
                self.assertAlmostEqual(percent * 0.29, round(percent * 0.29), delta=0.01)
        self.assertNotAlmostEqual(one[0][0], one[1][0], delta=1e-3)  # other batches
        for ranks in (2, 3):
            for ours, theirs in zip(train(ranks=ranks), one, strict=True):
                self.assertAlmostEqual(ours[0], theirs[0], delta=2e-4)
                self.assertEqual(ours[1:], theirs[1:])
        self.assertNotAlmostEqual(train("--no_sync_bn", ranks=2)[0][0], one[0][0], delta=1e-3)
        parts = train("--grad_accu_steps", "2", program="distributed_gradient_accumulation", ranks=1)
        halves = train(batch_size=6, ranks=1)
        self.assertAlmostEqual(parts[0][0], halves[0][0], delta=2e-4)
        self.assertNotAlmostEqual(parts[0][0], one[0][0], delta=1e-3)

    def test_each_image_has_the_same_part_in_a_step(self):
        # The step of the last image decides on the second epoch's loss.
        arguments = ["distributed", "--data", self.folder_of(noise(7)),
                     "--batch_size", "6", "--epochs", "2"]
        one = self.train(*arguments, ranks=1)
        for ranks in (2, 3):
            self.assertAlmostEqual(self.train(*arguments, ranks=ranks)[0], one[0], delta=0.02)

    def test_an_image_of_the_test_is_judged_without_the_others(self):
        dark, light = ([record[:2] + bytes(add + byte // 4 for byte in record[2:])
                        for record in noise(20, first=100 + add)] for add in (0, 192))

        def correct(records):
            arguments = ["--data", self.folder_of(noise(12), records)]
            return self.train("distributed", *arguments, ranks=1)[2] / 100 * len(records)

        self.assertAlmostEqual(correct(dark + light), correct(dark) + correct(light), delta=0.01)

    def test_gradients_of_parts_make_the_step_of_the_whole_batch(self):
        # Of one image with many labels, parts have the statistics of the batch.
        image = noise(1)[0][2:]
        folder = self.folder_of([record[:2] + image for record in noise(29)])
        data = ["--data", folder]
        whole = self.train("distributed", *data, "--batch_size", "12", ranks=1)
        for ranks in (1, 2):
            parts = self.train("distributed_gradient_accumulation", *data, "--batch_size", "12",
                               "--grad_accu_steps", "2", ranks=ranks)
            self.assertAlmostEqual(parts[0], whole[0], delta=0.01)
        halves = self.train("distributed", *data, "--batch_size", "6", ranks=1)
        self.assertNotAlmostEqual(halves[0], whole[0], delta=0.1)

    def test_mixed_precision_is_that_asked_for(self):
        # Few images: float16 is slow on a CPU.
        arguments = ["--synthetic", "4", "--batch_size", "2"]
        losses = [self.train("distributed", *arguments, ranks=1)[0]]
        for dtype in ("bf16", "fp16"):
            loss, _, _ = self.train("distributed_amp", *arguments, "--amp_dtype", dtype, ranks=1)
            self.assertAlmostEqual(loss, losses[0], delta=0.1)
            losses.append(loss)
        self.assertEqual(len(set(losses)), 3, losses)
        # A new scale is too large: the first of the two steps is skipped, whatever its length.
        fast = self.train("distributed_amp", *arguments, "--amp_dtype", "fp16", "--lr", "0.1", ranks=1)
        self.assertEqual(fast[0], losses[-1])

    def test_photographs_become_images_that_are_learned(self):
        # Two photographs, one dark and one light: get.py cuts them, programs learn them; the others are like
        # distributed to the last digits, as other tests show.
        script = load_script()
        mirror = Mirror()
        self.addCleanup(mirror.close)
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            images = {f"pack/{shade}.png": png(160, 40, lambda x, y, base=base: (base + x % 64, base + y, base))
                      for shade, base in (("dark", 0), ("light", 190))}
            mirror.files["pack.whl"] = zip_of(images)
            script.DATA_SETS = {"shades": data_set("crops", source("pack.whl", mirror.files["pack.whl"], images),
                                                   train_crops=24, test_crops=8)}
            script.main(["shades", f"--to={folder}/shades", f"--mirror={mirror.url}"])
            for program, epochs, where in (
                    ("distributed", 8, {"ranks": 2}), ("distributed_amp", 3, {"ranks": 2}),
                    ("dataparallel", 5, {})):
                with self.subTest(program):
                    done = self.run_program(program, "--data",
                                            folder / "shades", "--batch_size", "8", "--epochs",
                                            str(epochs), **where)
                    losses, accuracies, tests = zip(*self.epochs(done.stdout))
                    self.assertLess(min(losses[1:]), 0.7 * losses[0])
                    self.assertGreaterEqual(max(accuracies), 95)
                    if epochs == 8:  # batch norm's averages have followed
                        self.assertGreaterEqual(max(tests), 95)

    def test_data_parallel(self):
        loss, accuracy, test = self.train("dataparallel", "--nproc_per_node", "2")
        self.assertTrue(3 < loss < 7, loss)
        self.assertTrue(0 <= accuracy <= 100 and 0 <= test <= 100)

    def test_a_terminal_shows_how_far_an_epoch_is(self):
        terminal, inside = os.openpty()
        self.addCleanup(os.close, terminal)
        done = subprocess.run(command("distributed_mp"), stdout=subprocess.PIPE, stderr=inside,
                              text=True, timeout=200, check=True, env=ENVIRONMENT)
        os.close(inside)
        self.assertIn(b"epoch 1/1", os.read(terminal, 1 << 16))
        self.epochs(done.stdout)

    def test_two_machines(self):
        for program in ("distributed_mp", "distributed"):
            with self.subTest(program):
                self.train_on_two_machines(program)

    def train_on_two_machines(self, program):
        port = str(free_port())
        jobs = [subprocess.Popen(command(program, "--nnodes", "2", "--node_rank", node,
                                         "--nproc_per_node", "2", "--port", port),
                                 stdout=subprocess.PIPE, text=True, env=ENVIRONMENT) for node in "01"]
        for job in jobs:
            self.addCleanup(job.kill)
        outputs = [job.communicate(timeout=200)[0] for job in jobs]
        self.assertEqual([job.returncode for job in jobs], [0, 0])
        self.assertEqual(outputs[1], "")
        self.epochs(outputs[0])

    def test_a_folder_that_is_missing_says_how_to_get_it(self):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([PROGRAMS / "distributed_mp", "--data", f"{folder}/none"],
                                  capture_output=True, text=True, timeout=100, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("examples/data/get.py", done.stderr)

    def test_what_cannot_be_trained_is_refused(self):
        for program, arguments, words in (
                ("distributed", ["--batch_size", "1"],
                 "--batch_size 1 cannot be divided over 2 processes with 1 parts each; give a multiple of 2"),
                ("distributed_gradient_accumulation", ["--batch_size", "6", "--grad_accu_steps", "2"],
                 "give a multiple of 4"),
                ("distributed", ["--nproc_per_node", "2"], "give it to the launcher"),
                ("distributed_mp", [], "start it without one, or take distributed"),
                ("dataparallel", [], "was started as 2: start it without a launcher")):
            with self.subTest(program):
                done = self.run_program(program, "--synthetic", "20", *arguments, ranks=2, expected=2)
                self.assertIn(words, done.stderr)
                self.assertEqual(done.stdout, "")

    def test_wrong_arguments_are_refused(self):
        for program, arguments, words in (
                ("distributed", ["--node_rank", "1"], "--node_rank 1 of --nnodes 1"),
                ("distributed", ["--epohcs", "2"], "--epohcs"),
                ("distributed", ["--synthetic", "8", "--data", "x"], "excludes"),
                ("distributed_amp", ["--amp_dtype", "fp8"], "fp8"),
                ("distributed", ["--amp_dtype", "fp16"], "--amp_dtype"),
                ("dataparallel", ["--grad_accu_steps", "2"], "--grad_accu_steps")):
            with self.subTest(arguments):
                done = self.run_program(program, *arguments, expected=2)
                self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
                self.assertIn(words, done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
