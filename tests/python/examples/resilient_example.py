"""Runs the example `resilient` as users do: alone, in two processes, with ranks killed, with bad flags.

    resilient_example.py LOCKSTEP RESILIENT DIGITS_CSV [unittest arguments]
"""

import os
import pathlib
import re
import subprocess
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))
from killed_rank import run_and_kill_each
from launch_reports import recoveries

LOCKSTEP, RESILIENT, DATA = map(os.path.abspath, sys.argv[1:4])
DEADLINE_S = 120
STEPS = 4000


def environment():
    return os.environ | {"OMP_NUM_THREADS": "1"}


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, env=environment())


def job():
    return [LOCKSTEP, "run", "--standalone", "--nproc-per-node=2", "--max-restarts=10", RESILIENT,
            f"--steps={STEPS}", f"--data={DATA}"]


def run_and_kill(victims):
    return run_and_kill_each(job(), victims, RESILIENT, "ranks: ", env=environment())


class ResilientExample(unittest.TestCase):
    def test_killed_ranks_cost_no_bit(self):
        undisturbed = run(*job())
        self.assertEqual(undisturbed.returncode, 0, undisturbed.stderr)
        end = undisturbed.stdout.splitlines()[-1]
        self.assertRegex(end, r"^test accuracy \d\d\.\d\d %, checksum of the parameters -?\d+$")

        code, lines, errors = run_and_kill([0, 1])
        self.assertEqual(code, 0, errors)
        self.assertEqual(lines[-1], end)
        self.assertEqual(recoveries(errors), 2, errors)
        self.assertEqual(re.findall(r"^lockstep: rank (\d) was replaced; training continues$", errors, re.MULTILINE),
                         ["0", "1"], errors)
        begins = [int(re.search(r"from step (\d+) on", line)[1]) for line in lines if line.startswith("ranks: ")]
        self.assertEqual(begins[0], 0)
        self.assertEqual(begins, sorted(set(begins)), "each goes on from where the one before was")

    def test_one_process_needs_no_launcher(self):
        alone = run(RESILIENT, "--steps=1000", f"--data={DATA}")
        self.assertEqual(alone.returncode, 0, alone.stderr)
        self.assertEqual(len(re.findall(r"^step \d+/1000  loss ", alone.stdout, re.MULTILINE)), 10)
        self.assertGreater(float(re.search(r"test accuracy ([\d.]+) %", alone.stdout)[1]), 95)

    def test_fewer_steps_than_lines(self):
        alone = run(RESILIENT, "--steps=3", f"--data={DATA}")
        self.assertEqual(alone.returncode, 0, alone.stderr)
        self.assertIn("step 3/3", alone.stdout)

    def test_bad_flags_get_one_line(self):
        for options, code, message in (
            (["--steps=0"], 2, r"--steps: must be an integer from 1 to \d+, not 0"),
            (["--steps=many"], 2, r"--steps: must be an integer from 1 to \d+, not many"),
            (["--rate=1"], 2, r"--rate"),
            (["--data=absent.csv"], 1, r"absent\.csv: No such file"),
        ):
            with self.subTest(options=options):
                result = run(RESILIENT, *options)
                self.assertEqual(result.returncode, code, result.stderr)
                self.assertRegex(result.stderr, message)
                self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]] + sys.argv[4:])
