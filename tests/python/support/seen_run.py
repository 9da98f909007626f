"""What tests share that look at what a run writes of itself."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

LOCKSTEP, WORKER = map(os.path.abspath, sys.argv[1:3])
DEADLINE_S = 90


def run(*command):
    return subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=DEADLINE_S,
                          env=os.environ | {"OMP_NUM_THREADS": "1"})


class Seen(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lockstep_test_")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name, "run")

    def train(self, ranks, batches, *arguments):
        result = self.try_to_train(ranks, batches, *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)

    def try_to_train(self, ranks, batches, *arguments):
        return run(LOCKSTEP, "run", "--standalone", f"--nproc-per-node={ranks}", WORKER, self.folder, batches, *arguments)

    def lines(self, name):
        return [json.loads(line) for line in (self.folder / name).read_text().splitlines()]
