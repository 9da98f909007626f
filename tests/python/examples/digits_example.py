"""Runs the example `digits` as users do: alone, in two processes, interrupted, with bad input.

usage: digits_example.py <lockstep program> <digits program> <digits.csv>
"""

import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import unittest

import torch

sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))
from killed_rank import assert_same_bits, run_and_kill

LOCKSTEP, DIGITS, DATA = None, None, None


class DigitsExample(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.snapshots = pathlib.Path(self.folder.name) / "snapshots"

    def command(self, *options, processes=2, snapshots=None, data=None, flags=()):
        launcher = [LOCKSTEP, "run", "--standalone", f"--nproc-per-node={processes}", *flags]
        return [
            *(launcher if processes > 1 else []),
            *[DIGITS, "--data", data or DATA, "--directory", snapshots or self.snapshots],
            *options,
        ]

    def run_digits(self, *options, **where):
        return subprocess.run(
            self.command(*options, **where), capture_output=True, text=True, timeout=120
        )

    def train(self, *options, **where):
        result = self.run_digits(*options, **where)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def newest(self, folder=None):
        path = sorted((folder or self.snapshots).glob("*.pt"))[-1]
        return torch.load(path, weights_only=True)

    def test_two_processes_learn_and_say_that_the_training_is_complete(self):
        first = self.train()
        accuracy = float(re.search(r"Test accuracy: ([\d.]+) %", first.stdout)[1])
        self.assertGreaterEqual(accuracy, 97.0)
        self.assertIn("of 359 digits", first.stdout, "each held-out digit counts once")
        self.assertEqual(first.stderr.count("test accuracy"), 20, first.stderr)
        self.assertNotIn("\x1b", first.stderr, "no terminal, no colours")

        again = self.train()
        self.assertIn("Training is complete", again.stdout)
        self.assertIn(f"Test accuracy: {accuracy:.2f} %", again.stdout)

    def test_an_interrupted_run_ends_with_the_bits_of_one_that_was_not(self):
        whole = pathlib.Path(self.folder.name) / "whole"
        self.train("--epochs", "3", snapshots=whole)
        self.train("--epochs", "1")
        resumed = self.train("--epochs", "3")
        self.assertIn("resumed from", resumed.stderr)
        assert_same_bits(self, self.newest()["model"], self.newest(whole)["model"])

    def test_a_killed_rank_costs_no_bit(self):
        whole = pathlib.Path(self.folder.name) / "whole"
        self.train("--epochs", "15", snapshots=whole)
        code, _, lines = run_and_kill(
            self.command("--epochs", "15", flags=["--max-restarts=1"]), "epoch  2/15", DIGITS,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.assertEqual(code, 0, lines)
        self.assertIn("resumed from", "\n".join(lines))
        assert_same_bits(self, self.newest()["model"], self.newest(whole)["model"])

    def test_ctrl_c_stops_it_and_leaves_its_snapshots(self):
        process = subprocess.Popen(
            self.command("--epochs", "100000"), stderr=subprocess.PIPE, text=True
        )
        for line in process.stderr:
            if "epoch      2/" in line:
                break
        process.send_signal(signal.SIGINT)
        process.stderr.read()
        process.stderr.close()
        self.assertNotEqual(process.wait(timeout=60), 0)
        self.assertGreaterEqual(self.newest()["epoch"], 1)

    def test_one_process_needs_no_launcher(self):
        self.assertIn("Test accuracy", self.train("--epochs", "1", processes=1).stdout)

    def test_bad_input_gets_one_clear_line(self):
        malformed = pathlib.Path(self.folder.name) / "malformed.csv"
        malformed.write_text("0,1,2\n")
        for options, where, code, message in (
            ([], {"data": "absent.csv"}, 1, r"absent\.csv: No such file"),
            ([], {"data": malformed}, 1, r"malformed\.csv, line 1: 3 columns instead of 65"),
            (["--epochs", "0"], {}, 2, r"--epochs"),
            (["--epochs", "1e3"], {}, 2, r"--epochs must be an integer from 1 to \d+, not '1e3'"),
            (["--epochs", "9" * 20], {}, 2, r"--epochs must be an integer from 1 to"),
            (["--batch-size", "0"], {}, 2, r"--batch-size must be an integer from 1 to"),
            (["--seed=-1"], {}, 2, r"--seed must be an integer of at least 0"),
            (["--lr", "fast"], {}, 2, r"--lr must be a positive number, not 'fast'"),
            (["--lr", "inf"], {}, 2, r"--lr must be a positive number, not 'inf'"),
            (["--rate", "1"], {}, 2, r"--rate"),
        ):
            with self.subTest(options=options, **where):
                result = self.run_digits(*options, processes=1, **where)
                self.assertEqual(result.returncode, code, result.stderr)
                self.assertRegex(result.stderr, message)
                self.assertLessEqual(len(result.stderr.splitlines()), 2, result.stderr)
        self.assertFalse(self.snapshots.exists())

    def test_the_launcher_passes_on_what_is_wrong_with_the_options(self):
        result = self.run_digits("--epochs", "none")
        self.assertNotEqual(result.returncode, 0)
        self.assertRegex(result.stderr, r"lockstep\[\d\] error: --epochs must be an integer")


if __name__ == "__main__":
    LOCKSTEP, DIGITS, DATA = sys.argv[1:4]
    unittest.main(argv=sys.argv[:1] + sys.argv[4:], verbosity=2)
