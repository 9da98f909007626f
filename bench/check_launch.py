#!/usr/bin/env python3
"""The short forms of the launcher's benchmarks for CI: they run, nothing is stuck, lost or left, and what
they report has its documented shape.

    check_launch.py launch|recovery BINARIES
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
BINARIES = pathlib.Path(sys.argv.pop()).resolve()
sys.path.append(str(HERE / "launch"))
from jobs import percentile  # noqa: E402


class Benchmark(unittest.TestCase):
    def report_of(self, *command):
        """(what it printed, what it wrote)"""
        with tempfile.TemporaryDirectory() as folder:
            report = pathlib.Path(folder) / "report.json"
            done = subprocess.run([*map(str, command), "--quick", f"--json={report}"], text=True,
                                  capture_output=True, timeout=170, check=False,
                                  env=os.environ | {"PYTHON_EXEC": sys.executable})
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            return done.stdout, json.loads(report.read_text(encoding="utf-8"))

    def script(self, path):
        return self.report_of(sys.executable, HERE / path, f"--binaries={BINARIES}")


class Launch(Benchmark):
    def test_figures(self):
        table, report = self.report_of(BINARIES / "lockstep", "bench", "launch")
        rows = {row["case"]: row for row in report["rows"]}
        self.assertIn("first instruction, 2 workers, ms", table)
        self.assertGreater(rows["first instruction, 1 worker"]["exec"], 0)
        for case, row in rows.items():
            self.assertGreater(row["lockstep"], 0, case)
            self.assertGreater(row["torchrun_over_lockstep"], 1, case)

    def test_at_once(self):
        _, report = self.script("launch/at_once.py")
        self.assertEqual((report["launches"], report["failed"], report["ports_given_twice"]),
                         (20, [], 0))

    def test_flags_are_the_scripts(self):
        done = subprocess.run([BINARIES / "lockstep", "bench", "launch", "--runds=1"], text=True,
                              capture_output=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("lockstep bench launch: error: ", done.stderr)


class Recovery(Benchmark):
    def test_killed_ranks(self):
        _, report = self.script("recovery/run.py")
        self.assertEqual([row["subject"] for row in report["rows"]], ["gloo", "shm"])
        for row in report["rows"]:
            self.assertEqual((row["recovered"], row["stuck"], row["lost"]), (4, 0, 0))
            self.assertTrue(0 < row["ms"] <= row["ms_p99"] <= row["ms_max"], row)

    def test_killed_launchers(self):
        _, report = self.script("recovery/launcher_kills.py")
        self.assertEqual(set(report["left"].values()), {0}, report["left"])
        self.assertEqual(len(report["kills"]), 4)

    def test_messages_of_many_agents(self):
        with tempfile.TemporaryDirectory() as folder:
            report = pathlib.Path(folder) / "report.json"
            done = subprocess.run([BINARIES / "many_agents", report, "16", "256"], text=True,
                                  capture_output=True, timeout=170, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            few, many = json.loads(report.read_text(encoding="utf-8"))
        for count in ("sent_per_agent", "told_per_agent"):
            self.assertLess(many[count], few[count] + 1, "messages grow with the agents' number")
            self.assertLess(many[count], 8)

    def test_percentile(self):
        self.assertEqual(percentile(range(1, 201), 0.99), 198)
        self.assertEqual(percentile([7], 0.99), 7)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], sys.argv[1].capitalize()])
