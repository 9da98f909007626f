"""Builds on digits_loop, a program without Lockstep, and digits_accelerated, what becomes of it.

    accelerator.py LOCKSTEP BINARIES EXAMPLES [unittest arguments]
"""

import difflib
import os
import pathlib
import re
import subprocess
import sys
import unittest

LOCKSTEP, BINARIES, EXAMPLES = (pathlib.Path(path).resolve() for path in sys.argv[1:4])
DEADLINE_S = 120
DATA = EXAMPLES / "data/digits.csv"


def run(*command, **variables):
    return subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=DEADLINE_S,
                          env=os.environ | {"OMP_NUM_THREADS": "1"} | variables)


def code_of(name):
    lines = (EXAMPLES / "accelerator" / name).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if not line.startswith("//")]


class Accelerated(unittest.TestCase):
    def accuracy(self, *command, **variables):
        result = run(*command, DATA, **variables)
        self.assertEqual(result.returncode, 0, result.stderr)
        found = re.fullmatch(r"test accuracy ([\d.]+) %\n", result.stdout)
        self.assertTrue(found, result.stdout)
        return float(found[1])

    def test_four_lines_of_the_training_change(self):
        before, after = code_of("digits_loop.cpp"), code_of("digits_accelerated.cpp")
        changed = [line[2:] for line in difflib.ndiff(before, after) if line.startswith("+ ")]
        marked = [line for line in changed if line.endswith("// ←")]
        self.assertEqual(len(marked), 4, changed)
        self.assertEqual([line for line in changed if line not in marked],
                         ['  accelerator.print("test accuracy ", accuracy, " %");'])

    def test_both_learn_and_the_job_prints_once(self):
        self.assertGreater(self.accuracy(BINARIES / "digits_loop"), 90)
        self.assertGreater(self.accuracy(BINARIES / "digits_accelerated"), 90)
        for backend in ("shm", "gloo"):
            job = [LOCKSTEP, "run", "--standalone", "--nproc-per-node=3", BINARIES / "digits_accelerated"]
            self.assertGreater(self.accuracy(*job, LOCKSTEP_BACKEND=backend), 90)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]] + sys.argv[4:])
