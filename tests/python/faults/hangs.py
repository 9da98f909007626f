#!/usr/bin/env python3
"""A rank that hangs: who it is, in which collective the others wait for it, and where all threads are.

    hangs.py <lockstep> <hang_worker>
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))
import launch_reports

LOCKSTEP, WORKER = map(os.path.abspath, sys.argv[1:3])
BACKENDS = ("shm", "gloo")


def run(*command, ranks=3, environment=None, flags=()):
    return subprocess.run([LOCKSTEP, "run", "--standalone", f"--nproc-per-node={ranks}", *flags, *command],
                          env=os.environ | {"LOCKSTEP_TIMEOUT_S": "2"} | (environment or {}),
                          capture_output=True, text=True, timeout=60, check=False)


class Hangs(unittest.TestCase):
    def verdict(self, how, rank=2, backend="shm", ranks=3, flags=()):
        done = run(WORKER, how, str(rank), ranks=ranks, environment={"LOCKSTEP_BACKEND": backend}, flags=flags)
        self.assertNotEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr.count("lockstep: hang: "), 1, done.stderr)
        hang, = launch_reports.hangs(done.stderr)
        self.assertEqual((hang.rank, hang.local_rank), (rank, rank), done.stderr)
        return hang, done.stderr

    def test_an_endless_loop(self):
        # Where memory is shared, the first bucket itself says that a backward pass begins.
        for backend, operation, about in (("shm", "all_reduce", "large gradient 0: 1.weight"),
                                          ("gloo", "backward of model 0", None)):
            with self.subTest(backend=backend):
                hang, errors = self.verdict("circles", backend=backend)
                self.assertEqual((hang.stage, hang.operation, hang.group, hang.about),
                                 ("never entered", operation, "default", about), errors)
                self.assertRegex(hang.state, r"^and is in no collective \(last: \w+ number \d+ of group 'default'")
                self.assertIn("turn_in_circles()", hang.main_thread)
                self.assertEqual(hang.waiting, [0, 1], errors)
                self.assertGreaterEqual(hang.waited_ms, 2000)
                self.assertRegex(errors, r"main thread \d+ 'hang_worker' runs:\n.*turn_in_circles.*\n(.*\n)*.*main in hang_worker")
                said = f"{operation} number {hang.sequence} of group 'default'{f' ({about})' if about else ''}"
                for other in (0, 1):
                    self.assertIn(f"lockstep:   rank {other} is in {said}\n", errors)

    def test_a_deadlock_shows_both_threads(self):
        hang, errors = self.verdict("deadlock", rank=0)
        self.assertIn("wait_for_each_other()", hang.main_thread)
        self.assertRegex(errors, r"thread \d+ 'hang_worker' waits: .*lock_two")

    def test_a_stopped_rank(self):
        for backend in BACKENDS:
            with self.subTest(backend=backend):
                hang, errors = self.verdict("stop", rank=1, backend=backend)
                self.assertIn("and is stopped by a signal", hang.state)
                self.assertIn("hang(", hang.main_thread)
                self.assertRegex(errors, r"main thread \d+ 'hang_worker' is stopped:")

    def test_another_collective(self):
        """Two ranks wait for each other, in different groups; the one whose deadline passes first says so."""
        done = run(WORKER, "pair", "1")
        self.assertEqual(done.returncode, 1, done.stderr)
        hang = launch_reports.hangs(done.stderr)[0]
        self.assertIn(hang.rank, (0, 1), done.stderr)
        self.assertEqual((hang.stage, hang.operation), ("never entered", "all_reduce"), done.stderr)
        self.assertRegex(hang.group, r"^default(/\d+)?$")
        self.assertRegex(hang.state, rf"^but is in all_reduce number \d+ of group '(?!{hang.group}')")

    def test_in_a_bucket(self):
        """The thread that hangs is autograd's."""
        for backend in BACKENDS:
            with self.subTest(backend=backend):
                hang, errors = self.verdict("bucket", rank=2, backend=backend)
                self.assertEqual((hang.operation, hang.group), ("all_reduce", "default"), errors)
                self.assertRegex(hang.about, r"^(bucket|large gradient) \d: ")
                state = {"has begun": "but does not wait for it", "never entered": "and is in no collective"}[hang.stage]
                self.assertTrue(hang.state.startswith(state), errors)
                self.assertRegex(errors, "turn_in_circles")

    def test_only_members_of_a_group_are_late_in_it(self):
        hang, errors = self.verdict("group", rank=1)
        self.assertEqual((hang.stage, hang.operation), ("never entered", "all_reduce"), errors)
        self.assertRegex(hang.group, r"^default(/\d+)?$")
        self.assertIn(hang.waiting, ([0], [2]), errors)
        self.assertGreaterEqual(hang.waited_ms, 2000)

    def test_before_the_first_collective(self):
        with tempfile.TemporaryDirectory(prefix="lockstep_test_") as folder:
            script = pathlib.Path(folder, "late.sh")
            script.write_text(f'[ "$RANK" = 1 ] && exec sleep 1000\nexec {WORKER} circles 5\n')
            done = run("--no-python", "sh", str(script), ranks=2, environment={"LOCKSTEP_INIT_TIMEOUT_S": "2"})
        self.assertEqual(done.returncode, 1, done.stderr)
        hang = launch_reports.hangs(done.stderr)[0]
        self.assertEqual((hang.rank, hang.stage, hang.operation, hang.group, hang.state),
                         (1, "never entered", "init_process_group", "default", "and has entered no collective"))
        self.assertIn("sleep", hang.main_thread)

    def test_the_last_collectives_of_one_that_is_killed(self):
        done = run(WORKER, "kill", "1")
        self.assertEqual(done.returncode, 137, done.stderr)
        failure, = launch_reports.failures(done.stderr)
        self.assertEqual((failure.rank, failure.is_first, failure.signal), (1, True, "SIGKILL"), done.stderr)
        self.assertRegex(done.stderr, r"\nlockstep:   calls:  after all_reduce number \d+ of group 'default' \(.*\); before it ")

    def test_all_stacks_are_kept_with_the_logs(self):
        with tempfile.TemporaryDirectory(prefix="lockstep_test_") as folder:
            _, errors = self.verdict("circles", backend="gloo", flags=(f"--log-dir={folder}", "--redirects=3"))
            files = sorted(pathlib.Path(folder).glob("**/stacks.txt"))
            self.assertEqual(len(files), 3, errors)
            for file in files:
                self.assertIn(str(file), errors)
                text = file.read_text()
                self.assertRegex(text, r"^rank \d ")
                self.assertRegex(text, r"\n  after \w+ number \d+ of group 'default'")
                self.assertGreater(len(re.findall("^thread ", text, re.M)), 0, text)



if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
