#!/usr/bin/env python3
"""lockstep::spawn(): processes of a program of one's own, their failures, and that none stays behind.

    spawn.py <spawn_worker>
"""
import os
import pathlib
import re
import select
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))
from launch_reports import failures

WORKER = sys.argv[1]


def run(way, expected=0, **variables):
    done = subprocess.run([WORKER, way], capture_output=True, text=True, timeout=60, check=False,
                          env=os.environ | variables)
    if done.returncode != expected:
        raise AssertionError(f"{way}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout.splitlines(), done.stderr


def pids(lines):
    return [int(match[1]) for line in lines if (match := re.search(r"pid (\d+)$", line))]


def wait_until_gone(process):
    """Returns when the process, which is not ours, has ended: the test's time limit ends the wait."""
    try:
        handle = os.pidfd_open(process)
    except ProcessLookupError:
        return
    select.select([handle], [], [])
    os.close(handle)


class Spawn(unittest.TestCase):
    def failure(self, err):
        """Of rank 1, which the last line says and nothing else."""
        failure, = failures(err.splitlines()[-1])
        self.assertEqual((failure.rank, failure.local_rank), (1, 1), err)
        return failure

    def test_each_rank_runs_once_and_then_the_first_process_goes_on(self):
        lines, _ = run("ranks")
        self.assertEqual(lines[-1], "all have ended")
        ranks = sorted(line.rsplit(",", 1)[0] for line in lines[:-1])
        self.assertEqual(ranks, [f"rank {r} of 3, local rank {r}" for r in range(3)])
        self.assertEqual(len(set(pids(lines))), 3)

    def test_one_process(self):
        lines, _ = run("one")
        self.assertEqual(len(pids(lines)), 1)

    def test_what_rank_0_returns_comes_back(self):
        lines, _ = run("result")
        self.assertEqual(lines, ["100002 bytes end with 0 in rank 0", "all have ended"])

    def test_no_process_is_refused(self):
        _, err = run("none", expected=2)
        self.assertIn("spawn: 0 processes; there must be at least one", err)

    def test_an_exception_reaches_the_parent_with_its_rank(self):
        lines, err = run("exception", expected=1)
        self.assertNotIn("all have ended", lines)
        failure = self.failure(err)
        self.assertEqual((failure.exit_code, failure.said), (1, ": Exception: out of luck"), err)
        for process in pids(lines):
            wait_until_gone(process)

    def test_the_exit_code_is_the_failed_process_s(self):
        for way, code, sent in (("error", 2, None), ("exit", 7, None), ("signal", 137, "SIGKILL")):
            with self.subTest(way):
                _, err = run(way, expected=code)
                failure = self.failure(err)
                self.assertEqual((failure.signal, failure.exit_code), (sent, None if sent else code), err)
                if way == "error":
                    self.assertEqual(failure.said, ": UsageError: a wrong size")

    def test_a_crash_is_named_with_its_place(self):
        _, err = run("crash", expected=134)
        failure = self.failure(err)
        self.assertEqual(failure.signal, "SIGABRT", err)
        self.assertRegex(failure.said, "^ in .*(kWays|spawn_worker)")

    def test_all_the_others_are_told_to_end(self):
        with tempfile.TemporaryDirectory() as folder:
            for rank in (0, 2):
                os.mkfifo(f"{folder}/{rank}")
            lines, _ = run("told", expected=1, FIFO_FOLDER=folder)
        self.assertEqual(lines.count("told to end"), 2)

    def test_one_that_ignores_sigterm_is_killed(self):
        lines, err = run("stubborn", expected=1)
        self.assertEqual(self.failure(err).said, ": Exception: out of luck")
        for process in pids(lines):
            wait_until_gone(process)

    def test_a_failure_can_be_caught(self):
        lines, _ = run("caught")
        self.assertEqual(lines[-2:], ["rank 1 with 1", "all have ended"])

    def test_several_calls_one_after_the_other(self):
        lines, _ = run("twice")
        self.assertEqual(sorted(lines[:2]), ["first 0", "first 1"])
        self.assertEqual(sorted(lines[2:4]), ["second 0", "second 1"])
        self.assertEqual(lines[4:], ["all have ended"])

    def test_within_another_it_is_refused(self):
        _, err = run("within", expected=2)
        self.assertIn("spawn: called within the body of another spawn", err)

    def test_a_program_that_a_body_starts_may_spawn_too(self):
        lines, _ = run("nested_program")
        self.assertEqual(sorted(line.rsplit(",", 1)[0] for line in lines),
                         ["all have ended"] * 2 + ["rank 0 of 1, local rank 0"])

    def test_a_store_whose_process_has_ended_refuses_connections(self):
        lines, _ = run("store_gone")
        self.assertEqual(lines, ["refused", "all have ended"])

    def test_other_threads_do_no_harm(self):
        lines, _ = run("beside_threads")
        self.assertEqual(len(pids(lines)), 2)

    def test_a_signal_to_end_is_passed_on_and_leaves_nothing(self):
        for stop in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            with self.subTest(stop), tempfile.TemporaryDirectory() as folder:
                with subprocess.Popen([WORKER, "handle"], stdout=subprocess.PIPE, text=True,
                                      env=os.environ | {"TMPDIR": folder}) as parent:
                    self.assertEqual(len(pids([parent.stdout.readline() for _ in range(2)])), 2)
                    parent.send_signal(stop)
                    self.assertEqual(parent.stdout.read().splitlines(), ["told to end"] * 2)
                self.assertEqual(parent.returncode, -stop)
                self.assertEqual(os.listdir(folder), [])

    def test_a_signal_that_another_thread_gets_is_passed_on(self):
        with subprocess.Popen([WORKER, "handle_beside_threads"], stdout=subprocess.PIPE,
                              text=True) as parent:
            self.assertEqual(len(pids([parent.stdout.readline() for _ in range(2)])), 2)
            parent.send_signal(signal.SIGTERM)
            self.assertEqual(parent.stdout.read().splitlines(), ["told to end"] * 2)
        self.assertEqual(parent.returncode, -signal.SIGTERM)

    def test_a_program_s_own_handler_has_the_signal(self):
        with subprocess.Popen([WORKER, "own_handler"], stdout=subprocess.PIPE, text=True) as parent:
            self.assertEqual(len(pids([parent.stdout.readline()])), 1)
            parent.send_signal(signal.SIGTERM)
            self.assertEqual(parent.stdout.read().splitlines(), ["told to end"])
        self.assertEqual(parent.returncode, 0)

    def test_none_outlives_the_parent(self):
        for stop in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
            with self.subTest(stop), tempfile.TemporaryDirectory() as folder:
                with subprocess.Popen([WORKER, "wait"], stdout=subprocess.PIPE, text=True,
                                      env=os.environ | {"TMPDIR": folder}) as parent:
                    started = pids([parent.stdout.readline(), parent.stdout.readline()])
                    parent.send_signal(stop)
                    for process in started:
                        wait_until_gone(process)
                self.assertEqual(os.listdir(folder), [])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
