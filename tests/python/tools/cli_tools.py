"""lockstep test, estimate, env and new, as users run them.

    cli_tools.py LOCKSTEP [unittest arguments]
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest

import numpy
from safetensors.numpy import save_file

LOCKSTEP = os.path.abspath(sys.argv[1])
DEADLINE_S = 120


def run(*arguments, **variables):
    return subprocess.run([LOCKSTEP, *arguments], capture_output=True, text=True, check=False, timeout=DEADLINE_S,
                          env=os.environ | {"OMP_NUM_THREADS": "1"} | variables)


class Tools(unittest.TestCase):
    def test_the_self_check_passes_on_each_backend(self):
        for backend, ranks in (("shm", 2), ("gloo", 3), ("", 1)):
            with self.subTest(backend):
                variables = {"LOCKSTEP_BACKEND": backend} if backend else {}
                done = run("test", f"--nproc-per-node={ranks}", **variables)
                self.assertEqual(done.returncode, 0, done.stderr)
                lines = done.stdout.splitlines()
                self.assertIn(f"{ranks} ranks connected, backend {backend}" if ranks > 1 else "1 rank connected", lines[0])
                self.assertIn("Test is a success", lines[-1])

    def test_the_self_check_fails_where_ranks_cannot_meet(self):
        done = run("test", LOCKSTEP_BACKEND="none")
        self.assertNotEqual(done.returncode, 0)
        self.assertNotIn("success", done.stdout)

    def test_an_estimate_adds_up(self):
        done = run("estimate", "1.5B", "--nnodes=2", "--nproc-per-node=8", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        told = json.loads(done.stdout)
        self.assertEqual(told["rank_bytes"], 1.5e9 * 16)
        self.assertEqual(told["network_bytes"], 1.5e9 * 4)
        self.assertIn("total of a machine", run("estimate", "124M").stdout)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "net.safetensors")
            save_file({"a": numpy.zeros((20, 5), numpy.float32), "b": numpy.zeros(7, numpy.float16)}, path)
            told = json.loads(run("estimate", path, "--json").stdout)
            self.assertEqual(told["parameters"], 107)
            with open(path, "wb") as file:
                file.write(b"nothing")
            done = run("estimate", path)
            self.assertEqual(done.returncode, 2)
            self.assertIn("cannot be read", done.stderr)

    def test_a_program_in_path_becomes_a_command(self):
        with tempfile.TemporaryDirectory() as folder:
            tool = os.path.join(folder, "lockstep-mine")
            with open(tool, "w") as script:
                script.write('#!/bin/sh\necho "mine: $*"\nexit 7\n')
            os.chmod(tool, 0o755)
            done = run("mine", "a b", "--flag", PATH=f"{folder}:{os.environ['PATH']}")
            self.assertEqual((done.returncode, done.stdout), (7, "mine: a b --flag\n"))
            # Not from the folder at hand, which PATH does not name.
            done = subprocess.run([LOCKSTEP, "mine"], capture_output=True, text=True, cwd=folder, timeout=DEADLINE_S,
                                  env={name: value for name, value in os.environ.items() if name != "PATH"})
            self.assertEqual(done.returncode, 2)
            self.assertIn("unknown command 'mine'", done.stderr)

    def test_env_says_what_a_bug_report_needs(self):
        done = run("env", LOCKSTEP_TIMEOUT_S="60")
        self.assertEqual(done.returncode, 0, done.stderr)
        for words in ("lockstep ", "processors", "kernel", "LOCKSTEP_TIMEOUT_S (seconds) = 60"):
            self.assertIn(words, done.stdout)

    def test_a_unique_prefix_stands_for_a_flag(self):
        in_full = run("estimate", "1M", "--nproc-per-node=4", "--precision=bf16", "--json")
        self.assertEqual(in_full.returncode, 0, in_full.stderr)
        self.assertEqual(run("estimate", "1M", "--nproc_per", "4", "--pre", "bf16", "--js").stdout, in_full.stdout)
        self.assertEqual(run("env", "--he").stdout, run("env", "--help").stdout)

    def test_what_cannot_work_gets_one_line(self):
        for arguments, words in ((["estimate"], "MODEL is required"),
                                 (["estimate", "many"], "'many' is neither a file nor a number of parameters, as 124M"),
                                 (["estimate", "1M", "--optimizer=lamb"], "--optimizer"),
                                 (["estimate", "1M", "--precision=fp8"], "--precision"),
                                 (["test", "--nproc-per-node=0"], "--nproc-per-node"),
                                 (["test", "x"], "not expected: x"),
                                 (["new"], "NAME is required"),
                                 (["env", "x"], "not expected: x"),
                                 (["audit"], "DIR is required"),
                                 (["audit", "a", "b"], "not expected: b"),
                                 (["audit", "a", "--tofu=1"], "--tofu"),
                                 (["trace"], "it is one of merge"),
                                 (["trace", "split"], "unknown action 'split'"),
                                 (["trace", "merge", "out.json"], "TRACES is required"),
                                 (["replay"], "RUN is required"),
                                 (["replay", "a"], "--step is required"),
                                 (["replay", "a", "--step=0"], "--step"),
                                 (["report"], "RUN is required"),
                                 (["report", "a", "b"], "not expected: b"),
                                 (["snapshot", "export", "--p=x"], "--p may be any of --part, --prefix"),
                                 (["bench", "all-reduce", "--size=6"], "multiple of 4 bytes")):
            with self.subTest(arguments):
                done = run(*arguments)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
                self.assertIn(words, done.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
