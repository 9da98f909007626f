"""A training whose snapshots go to a disk that is full, or that turns read-only: it goes on, and what was saved
before can be loaded.

    snapshot_disk.py LOCKSTEP RESILIENT_WORKER [unittest arguments]
"""

import os
import re
import subprocess
import sys
import tempfile
import unittest

LOCKSTEP, WORKER = map(os.path.abspath, sys.argv[1:3])
DEADLINE_S = 100
STEPS, SNAPSHOT_EVERY = 60, 10


def job(folder):
    return [LOCKSTEP, "run", "--standalone", "--max-restarts=3", "--nproc-per-node=2", WORKER, *map(str, [
        STEPS, 16, 0, SNAPSHOT_EVERY, folder, 10])]


class SnapshotDisk(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lockstep_test_")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        if subprocess.run(["unshare", "--mount", "mount", "-t", "tmpfs", "none", self.folder], check=False,
                          capture_output=True).returncode != 0:
            self.skipTest("a disk of its own needs root (CAP_SYS_ADMIN)")

    def run_on_disk(self, size, script, *command):
        """A shell in which a disk of that size is mounted; "$@" is the command."""
        script = f'set -e; mount -t tmpfs -o size={size} none "{self.folder}"; {script}'
        environment = os.environ | {"OMP_NUM_THREADS": "1", "LOCKSTEP_BACKEND": "shm"}
        return subprocess.run(["unshare", "--mount", "sh", "-c", script, "sh", *command], text=True,
                              capture_output=True, timeout=DEADLINE_S, env=environment, check=False)

    def expect_end(self, done, *warnings):
        self.assertEqual(done.returncode, 0, done.stderr)
        ends = set(re.findall("ends with .*", done.stdout))
        undisturbed = self.run_on_disk("10m", '"$@"', *job(self.folder))
        self.assertEqual(ends, set(re.findall("ends with .*", undisturbed.stdout)), done.stderr)
        self.assertEqual(len(ends), 1)
        self.assertNotIn("no snapshot", undisturbed.stderr)
        self.assertNotIn("restart", done.stderr)
        for warning in warnings:
            self.assertRegex(done.stderr, warning)

    def test_a_full_disk_does_not_end_the_training(self):
        # Two snapshots are kept, and there is no room for a third.
        done = self.run_on_disk("56k", '"$@"; ls "$0/"; "$@"'.replace("$0", self.folder), *job(self.folder))
        self.expect_end(done, r"saving the state after 30 steps failed: write .*s00000029.*No space left on device.*free some space",
                        "saving the state after 60 steps failed")
        self.assertIn("snapshot-e0000-s00000019.pt\n", done.stdout)
        self.assertEqual(done.stdout.count(".pt\n"), 2)
        self.assertIn("rank 0 of 2 begins at 20", done.stdout)

    def test_a_disk_without_room_for_one_does_not_end_the_training(self):
        done = self.run_on_disk("8k", '"$@"', *job(self.folder))
        self.expect_end(done, "saving the state after 10 steps failed: .*No space left on device")

    def test_a_disk_that_turns_read_only_does_not_end_the_training(self):
        first = [str(20) if part == str(STEPS) else part for part in job(self.folder)]
        done = self.run_on_disk("10m", f'"$@"; mount -o remount,ro "{self.folder}"; {" ".join(job(self.folder))}', *first)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("rank 0 of 2 begins at 20", done.stdout)
        self.assertRegex(done.stderr, "saving the state after 30 steps failed: create a temporary file .*Read-only file system")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]] + sys.argv[3:])
