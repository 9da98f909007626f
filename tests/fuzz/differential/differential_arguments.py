#!/usr/bin/env python3
"""What the program `differential` says about arguments that it refuses (docs/fuzzing.md).

Usage: differential_arguments.py DIFFERENTIAL LOCKSTEP [unittest arguments]
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

DIFFERENTIAL = os.path.abspath(sys.argv[1])
LOCKSTEP = os.path.abspath(sys.argv[2])
USAGE_ERROR = 2


class DifferentialArguments(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def check_refused(self, text, *arguments):
        # Logs of jobs that --shrink starts go to TMPDIR.
        done = subprocess.run([DIFFERENTIAL, *arguments], capture_output=True, text=True, timeout=60, check=False,
                              env=os.environ | {"TMPDIR": str(self.folder)})
        self.assertEqual(done.returncode, USAGE_ERROR, done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertIn(text, done.stderr)

    def test_seeds(self):
        self.check_refused("no seeds; give --seeds=FIRST:COUNT")
        for value in ("abc", "1x", "-1", "1:", "1:0", ":5", "1:2:3", "99999999999999999999"):
            self.check_refused(f"--seeds='{value}': give a seed from 0", f"--seeds={value}")
        self.check_refused("--seed='1x': give a seed from 0", "--seed=1x")
        self.check_refused("--seed needs a value", "--seed")

    def test_kept_seeds(self):
        kept = self.folder / "kept"
        self.check_refused(f"--kept='{kept}': cannot be read", f"--kept={kept}")
        kept.write_text("# remark\n2 17  # another\n")
        self.check_refused(f"--kept='{kept}': no seed of 3 ranks is in it", f"--kept={kept}", "--ranks=3")
        kept.write_text("2 x\n")
        self.check_refused("the line '2 x' is not '<ranks> <seed>'", f"--kept={kept}")

    def test_ranks(self):
        for value in ("0", "5", "two"):
            self.check_refused(f"--ranks='{value}': give a number of ranks from 1 to 4", "--seed=1", f"--ranks={value}",
                               "--print")

    def test_cuts(self):
        self.check_refused("--cuts='1,x': give numbers of cuts", "--seed=1", "--cuts=1,x", "--print")
        self.check_refused("seed 1 of 2 ranks has no cut 9999 there", "--seed=1", "--cuts=9999", "--ranks=2", "--print")

    def test_flags(self):
        self.check_refused("unknown argument '--sed=1'; there are --seeds", "--sed=1")
        self.check_refused("--print takes no value", "--seed=1", "--print=1")

    def test_shrink_takes_one_seed_that_fails_and_a_launcher(self):
        self.check_refused("no seeds; give", f"--shrink={LOCKSTEP}")
        self.check_refused("--shrink takes one seed, but has 2", f"--shrink={LOCKSTEP}", "--seeds=1:2")
        missing = self.folder / "lockstep"
        self.check_refused(f"--shrink='{missing}': the job did not start", f"--shrink={missing}", "--seed=1")
        self.check_refused("seed 1 of 1 ranks passes; give a seed that fails", f"--shrink={LOCKSTEP}", "--seed=1",
                           "--ranks=1")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
