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
import textwrap
import unittest

LOCKSTEP, WORKER = map(os.path.abspath, sys.argv[1:3])
WHO = r"lockstep: hang: rank {rank} \(local rank {rank}, pid \d+\) "
BACKENDS = ("shm", "gloo")


def run(*command, ranks=3, environment=None, flags=()):
    return subprocess.run([LOCKSTEP, "run", "--standalone", f"--nproc-per-node={ranks}", *flags, *command],
                          env=os.environ | {"LOCKSTEP_TIMEOUT_S": "2"} | (environment or {}),
                          capture_output=True, text=True, timeout=60, check=False)


class Hangs(unittest.TestCase):
    def verdict(self, how, rank=2, backend="shm", ranks=3, flags=()):
        done = run(WORKER, how, str(rank), ranks=ranks, environment={"LOCKSTEP_BACKEND": backend}, flags=flags)
        self.assertNotEqual(done.returncode, 0, done.stderr)
        verdicts = [line for line in done.stderr.splitlines() if line.startswith("lockstep: hang: ")]
        self.assertEqual(len(verdicts), 1, done.stderr)
        self.assertRegex(verdicts[0], WHO.format(rank=rank))
        return verdicts[0], done.stderr

    def test_an_endless_loop(self):
        # Where memory is shared, the first bucket itself says that a backward pass begins.
        for backend, what, about in (("shm", "all_reduce", r" \(large gradient 0: 1\.weight\)"), ("gloo", "backward of model 0", "")):
            with self.subTest(backend=backend):
                awaited = rf"{what} number \d+ of group 'default'{about}"
                line, errors = self.verdict("circles", backend=backend)
                self.assertRegex(line, rf" never entered {awaited}, and is in none "
                                       r"after \w+ number \d+ of group 'default'")
                self.assertRegex(line, r"; main thread in .*turn_in_circles\(\)")
                self.assertRegex(line, r"; ranks 0,1 have waited for ([2-9]|\d\d+)\d{3} ms$")
                self.assertRegex(errors, r"main thread \d+ 'hang_worker', which runs:\n.*turn_in_circles.*\n(.*\n)*.*main in hang_worker")
                for other in (0, 1):
                    self.assertRegex(errors, rf"lockstep:   rank {other} is in {awaited}\n")

    def test_a_deadlock_shows_both_threads(self):
        line, errors = self.verdict("deadlock", rank=0)
        self.assertRegex(line, r"main thread in .*wait_for_each_other\(\)")
        self.assertRegex(errors, r"thread \d+ 'hang_worker', which waits: .*lock_two")

    def test_a_stopped_rank(self):
        for backend in BACKENDS:
            with self.subTest(backend=backend):
                line, errors = self.verdict("stop", rank=1, backend=backend)
                self.assertRegex(line, "and is stopped by a signal")
                self.assertRegex(line, r"; main thread in .*hang\(")
                self.assertRegex(errors, r"main thread \d+ 'hang_worker', which is stopped:")

    def test_another_collective(self):
        """Two ranks wait for each other, in different groups; the one whose deadline passes first says so."""
        done = run(WORKER, "pair", "1")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stderr, WHO.format(rank="[01]") + r"never entered all_reduce number \d+ of group '(default|[^']+[0-9])'.*, "
                                      r"but is in all_reduce number \d+ of group '(?!\1')")

    def test_in_a_bucket(self):
        """The thread that hangs is autograd's."""
        bucket = r"all_reduce number \d+ of group 'default' \((bucket|large gradient) \d: .*\)"
        for backend in BACKENDS:
            with self.subTest(backend=backend):
                line, errors = self.verdict("bucket", rank=2, backend=backend)
                self.assertRegex(line, rf"(has begun {bucket}, but does not wait for it|never entered {bucket}, and is in none)")
                self.assertRegex(errors, "turn_in_circles")

    def test_only_members_of_a_group_are_late_in_it(self):
        line, _ = self.verdict("group", rank=1)
        self.assertRegex(line, r" never entered all_reduce number \d+ of group '(default'|[^']+[0-9]')")
        self.assertRegex(line, r"; rank [02] has waited for ([2-9]|\d\d+)\d{3} ms$")

    def test_before_the_first_collective(self):
        with tempfile.TemporaryDirectory(prefix="lockstep_test_") as folder:
            script = pathlib.Path(folder, "late.sh")
            script.write_text(f'[ "$RANK" = 1 ] && exec sleep 1000\nexec {WORKER} circles 5\n')
            done = run("--no-python", "sh", str(script), ranks=2, environment={"LOCKSTEP_INIT_TIMEOUT_S": "2"})
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stderr, WHO.format(rank=1) + r"never entered init_process_group of group 'default', and has made no "
                                                           r"collective; main thread in .*sleep")

    def test_the_last_collectives_of_one_that_is_killed(self):
        done = run(WORKER, "kill", "1")
        self.assertEqual(done.returncode, 137, done.stderr)
        self.assertRegex(done.stderr, r"rank 1 \(local rank 1, pid \d+\) failed first: killed by SIGKILL.*\n"
                                      r"lockstep:   calls:  after all_reduce number \d+ of group 'default' \(.*\); before it ")

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
