"""Kills a training 200 times, each time goes on with another number of ranks, and audits which samples it had.

    resume.py LOCKSTEP RESUME_WORKER [unittest arguments]
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

LOCKSTEP, WORKER = map(os.path.abspath, sys.argv[1:3])
DEADLINE_S = 280
KILLS = int(os.environ.get("RESUME_KILLS", "200"))
SAMPLES = 97


def run(*command):
    return subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=DEADLINE_S,
                          env=os.environ | {"OMP_NUM_THREADS": "1"})


def audit(folder):
    result = run(LOCKSTEP, "audit", folder, "--json")
    return result.returncode, json.loads(result.stdout) if result.stdout else result.stderr


class Resume(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lockstep_test_")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def trained(self, name, *arguments):
        """How many epochs, and what the parameters are, in a number."""
        (self.folder / name).mkdir()
        result = run(WORKER, self.folder / name, *arguments)
        self.assertEqual(result.returncode, 0, result.stderr[-2000:])
        epochs, value = result.stdout.strip().splitlines()[-1].split(" epochs: ")
        return int(epochs), float(value)

    def test_each_sample_once_through_200_kills_and_resizes(self):
        epochs, value = self.trained("killed", KILLS, 5)
        code, (loader,) = audit(self.folder / "killed/data")
        self.assertEqual(code, 0, loader["problems"])
        # Runs that were killed before all ranks had met leave no line.
        self.assertGreater(loader["runs"], KILLS / 2)
        self.assertEqual((loader["least_ranks"], loader["most_ranks"]), (1, 4))
        self.assertGreater(loader["batches_made_again"], KILLS / 4)
        self.assertEqual(loader["dataset_size"], SAMPLES)
        self.assertEqual([(epoch["epoch"], epoch["given"], epoch["complete"]) for epoch in loader["epochs"]],
                         [(number, SAMPLES, True) for number in range(epochs)])

        # The batches do not depend on the number of ranks, so that it has learned what one rank alone learns.
        undisturbed_epochs, undisturbed = self.trained("undisturbed", epochs)
        self.assertEqual(undisturbed_epochs, epochs)
        self.assertAlmostEqual(value, undisturbed, places=4)

        # A sample that is not trained, or twice, is found.
        log = self.folder / "undisturbed/data/samples.rank0.jsonl"
        lines = log.read_text().splitlines(keepends=True)
        first = json.loads(lines[1])
        first["samples"][0] = first["samples"][1]
        log.write_text("".join([lines[0], json.dumps(first) + "\n", *lines[2:]]))
        code, (loader,) = audit(self.folder / "undisturbed/data")
        self.assertEqual(code, 1)
        self.assertEqual((loader["epochs"][0]["twice"], loader["epochs"][0]["missing"]), (1, 1))
        self.assertIn("was already in an earlier batch", loader["problems"][0])

    def test_what_cannot_be_audited(self):
        for arguments, code, words in (([], 2, "DIR is required"), ([self.folder], 2, "sample_log_directory"),
                                       ([self.folder / "none"], 1, "No such file")):
            result = run(LOCKSTEP, "audit", *arguments)
            self.assertEqual(result.returncode, code)
            self.assertIn(words, result.stderr)
            self.assertEqual(len(result.stderr.splitlines()), 1)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]] + sys.argv[3:])
