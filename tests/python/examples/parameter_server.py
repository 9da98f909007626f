"""Runs the example `parameter_server` as users do, kills its trainers and servers, and starts it again.

    parameter_server.py LOCKSTEP PARAMETER_SERVER DIGITS_CSV [unittest arguments]
"""

import functools
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))
from cases import some
from free_ports import free_port
from killed_rank import run_and_kill_each
from launch_reports import recoveries
from rank_process import DEADLINE_S, RankProcess, place
from sanitizers import is_sanitized

LOCKSTEP, PROGRAM, DATA = map(os.path.abspath, sys.argv[1:4])
STEPS = 300
# What is promised to survivors.
NOTICED_WITHIN_S = 20 if is_sanitized(PROGRAM) else 2


def environment():
    return os.environ | {"OMP_NUM_THREADS": "1"}


def job(*options, ranks=4, steps=STEPS):
    return [LOCKSTEP, "run", "--standalone", f"--nproc-per-node={ranks}", "--max-restarts=10", PROGRAM,
            f"--steps={steps}", f"--data={DATA}", *options]


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, env=environment())


def run_and_kill(victims, *options, timeout_s=60, **more):
    return run_and_kill_each(job(*options), victims, PROGRAM, "trainers: ",
                             env=environment() | {"LOCKSTEP_TIMEOUT_S": str(timeout_s)}, **more)


def begins(lines):
    return [int(re.search(r"from step (\d+) on", line)[1]) for line in lines if line.startswith("trainers: ")]


@functools.cache
def last_line(*command):
    """Of what the job prints; it must end well."""
    ended = run(*command)
    if ended.returncode != 0:
        raise AssertionError(f"{command}: {ended.returncode}\n{ended.stderr}")
    return ended.stdout.splitlines()[-1]


class ParameterServer(unittest.TestCase):
    def result(self, *command):
        return last_line(*command)

    def number(self, line, pattern):
        return float(re.search(pattern, line)[1])

    def test_the_bits_are_those_of_distributed_data_parallel(self):
        by_all = self.result(*job("--servers=0", ranks=2))
        for servers in (1, 2):
            self.assertEqual(self.result(*job(f"--servers={servers}", ranks=2 + servers)), by_all)

    def test_embeddings_learn_as_by_distributed_data_parallel(self):
        options = ["--model=ratings"]
        error = r"test error ([\d.]+) of"
        by_all = self.number(self.result(*job("--servers=0", *options, ranks=2, steps=1000)), error)
        by_servers = self.number(self.result(*job("--servers=2", *options, steps=1000)), error)
        self.assertAlmostEqual(by_servers, by_all, delta=0.01)
        self.assertLess(by_servers, 1)  # Of a variance of 4.

    def test_trainers_that_drift_apart_learn_too(self):
        line = self.result(*job("--staleness=3", ranks=3, steps=1000))
        self.assertGreater(self.number(line, r"accuracy ([\d.]+) %"), 94)

    def test_killed_trainers_cost_no_bit(self):
        end = self.result(*job("--servers=2"))
        code, lines, errors = run_and_kill([3, 2], "--servers=2")
        self.assertEqual(code, 0, errors)
        self.assertEqual(lines[-1], end)
        self.assertEqual(recoveries(errors), 2, errors)
        # Both may die in the step whose line was seen, before it is pushed.
        self.assertEqual(begins(lines), sorted(begins(lines)), "each goes on from where the one before was")
        self.assertGreaterEqual(begins(lines)[1], STEPS // 10 - 1)

    def test_killed_servers_go_back_to_their_snapshots_and_cost_no_bit(self):
        end = self.result(*job("--servers=2"))
        with tempfile.TemporaryDirectory() as folder:
            code, lines, errors = run_and_kill([0, 1, 3], "--servers=2", f"--directory={folder}",
                                               "--save-interval=10")
            self.assertEqual(code, 0, errors)
            self.assertEqual(lines[-1], end)
            self.assertEqual([begin % 10 for begin in begins(lines)[:3]], [0, 0, 0], lines)
            self.assertRegex(errors, r"parameter server \d rolls back from update \d+ to \d+0, like all servers")

    def test_a_killed_trainer_and_a_killed_server_of_an_asynchronous_job(self):
        with tempfile.TemporaryDirectory() as folder:
            code, lines, errors = run_and_kill([2, 1], "--servers=2", "--staleness=2", f"--directory={folder}",
                                               "--save-interval=5")
            self.assertEqual(code, 0, errors)
            self.assertGreater(self.number(lines[-1], r"accuracy ([\d.]+) %"), 85)

    def test_a_server_without_snapshots_is_said_to_be_lost(self):
        code, lines, errors = run_and_kill([1], "--servers=2")
        # The job begins anew, as the launcher has restarts left.
        self.assertEqual(code, 0, errors)
        self.assertIn("the state of server 1 is lost, and there is no complete snapshot of it at an update that all "
                      "servers have; set `directory` in the options to save snapshots", errors)
        self.assertEqual(begins(lines), [0, 0])

    def test_a_job_that_is_started_again_goes_on(self):
        for options in some((["--model=ratings"], []), 2):
            with self.subTest(options=options), tempfile.TemporaryDirectory() as folder:
                end = self.result(*job("--servers=2", *options, steps=90))
                options = ["--servers=2", f"--directory={folder}", *options]
                self.result(*job(*options, steps=30))
                again = run(*job(*options, steps=90))
                self.assertIn("trainers: 2, from step 30 on", again.stdout, again.stderr)
                self.assertEqual(again.stdout.splitlines()[-1], end)
                other = run(*job("--servers=1", *options[1:]))
                self.assertNotEqual(other.returncode, 0)
                self.assertIn("was not saved by 1 servers", other.stderr)

    def test_without_a_launcher_each_survivor_names_who_died(self):
        command = [PROGRAM, "--servers=2", "--steps=1000000", f"--data={DATA}"]
        for victim in (0, 1, 3):
            with self.subTest(victim=victim):
                port = free_port()
                ranks = [RankProcess(self, command, place(rank, 4, port, OMP_NUM_THREADS=1)) for rank in range(4)]
                ranks[2].wait_for_line("trainers: 2, from step 0 on")
                ranks[victim].process.kill()
                begin = time.monotonic()
                for rank, process in enumerate(ranks):
                    if rank == victim:
                        continue
                    self.assertIn(victim, process.expect_error("PeerLost")["ranks"])
                    self.assertLess(time.monotonic() - begin, NOTICED_WITHIN_S)

    def expect_late(self, ranks, late):
        """All others end, one of them by the error that `late` did not answer in time; returns what they write."""
        others = [process for rank, process in enumerate(ranks) if rank != late]
        ends = [process.finish() for process in others]
        self.assertEqual([code for code, _, _ in ends], [1, 1, 1], ends)
        # Who waits for the first that ends may say no more than that.
        found = [process.error() for process in others]
        self.assertIn(("TimeoutError", [late]), [(error, fields.get("ranks")) for error, fields in found], found)
        return "".join(errors for _, _, errors in ends)

    def test_a_stopped_process_is_named(self):
        command = [PROGRAM, "--servers=2", "--steps=1000000", f"--data={DATA}"]
        for stopped, words in (
            (3, r"parameter server \d: no message from trainer1 \(rank 3\) for 3000 ms; it is stuck or stopped"),
            (1, r"worker 'server1' \(rank 1\): no answer within \d+ ms; it is slow, stuck or stopped"),
        ):
            with self.subTest(stopped=stopped):
                port = free_port()
                ranks = [RankProcess(self, command, place(rank, 4, port, OMP_NUM_THREADS=1, LOCKSTEP_TIMEOUT_S=3))
                         for rank in range(4)]
                ranks[2].wait_for_line("trainers: 2, from step 0 on")
                ranks[stopped].process.send_signal(signal.SIGSTOP)
                self.assertRegex(self.expect_late(ranks, stopped), words)

    def test_who_stops_at_the_end_is_named(self):
        if b"LOCKSTEP_FAILPOINT" not in pathlib.Path(PROGRAM).read_bytes():
            self.skipTest("no failpoints in this build (LOCKSTEP_FAILPOINTS)")
        command = [PROGRAM, "--servers=2", "--steps=3", f"--data={DATA}"]
        for point, stopped in (("training.end", 1), ("training.done", 3)):
            with self.subTest(point=point):
                port = free_port()
                ranks = [RankProcess(self, command,
                                     place(rank, 4, port, OMP_NUM_THREADS=1, LOCKSTEP_TIMEOUT_S=2,
                                           LOCKSTEP_FAILPOINT=f"{point}:1:stop:{stopped}"))
                         for rank in range(4)]
                self.expect_late(ranks, stopped)

    def test_a_stopped_trainer_costs_no_bit(self):
        end = self.result(*job("--servers=2"))
        code, lines, errors = run_and_kill([3], "--servers=2", kill_with=signal.SIGSTOP, timeout_s=2)
        self.assertEqual(code, 0, errors)
        self.assertEqual(lines[-1], end)

    def test_bad_flags_get_one_line(self):
        for options, ranks, message in (
            (["--servers=3"], 3, "3 ranks for 3 servers; at least one server, and one rank more as trainer"),
            (["--servers=-1"], 2, r"--servers: must be an integer from 0 to \d+, not -1"),
            (["--model=other"], 2, r"--model: other not in {digits,ratings}"),
        ):
            with self.subTest(options=options):
                ended = run(LOCKSTEP, "run", "--standalone", f"--nproc-per-node={ranks}", PROGRAM, *options,
                            f"--data={DATA}")
                self.assertNotEqual(ended.returncode, 0)
                self.assertRegex(ended.stderr, message)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
