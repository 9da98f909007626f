#!/usr/bin/env python3
"""The short form of bench/training/run.py and report.py for CI: both programs train, what they report
has its documented shape, and the page follows from known runs by the formulas.

    check_training.py BUILD-FOLDER
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[1]
TRAINING = ROOT / "bench" / "training"
sys.path.append(str(TRAINING))
import report  # noqa: E402

BUILD = pathlib.Path(sys.argv.pop()).resolve()


def run_of(framework, step_ms, processes=2, parallel="ddp", turn=0):
    return {"task": "toy", "parallel": parallel, "precision": "float32", "processes": processes,
            "framework": framework, "round": turn, "step_s": {"median": step_ms / 1e3},
            "epoch_s": 2.0, "start_up_s": 1.0, "peak_kb": 2048, "batch_size": 20 * processes}


class Report(unittest.TestCase):
    KEY = ("toy", "ddp", "float32", 2)

    def test_figures(self):
        rows = report.summarize([run_of("lockstep", 2), run_of("lockstep", 4, turn=1),
                                 run_of("lockstep", 4, turn=2)])
        row = rows[(*self.KEY, "lockstep")]
        self.assertAlmostEqual(row["step_ms"], 4)  # of 2, 4 and 4
        self.assertAlmostEqual(row["samples_per_s"], 40 / 4e-3)
        self.assertEqual(row["peak_mb"], 2)

    def test_ratios_are_taken_within_a_round(self):
        runs = [run_of("lockstep", 1, turn=0), run_of("pytorch", 30, turn=0),
                # The runs of a round come in any order.
                run_of("pytorch", 20, turn=2), run_of("lockstep", 1, turn=1),
                run_of("lockstep", 2, turn=2), run_of("pytorch", 50, turn=1)]
        rows = report.summarize(runs)
        ratio = report.ratio_of(rows, (*self.KEY, "lockstep"), (*self.KEY, "pytorch"))
        for value, expected in zip(ratio, (30, 10, 50)):
            self.assertAlmostEqual(value, expected)

    def test_scaling(self):
        rows = report.summarize([run_of("lockstep", 4, processes=1), run_of("lockstep", 5),
                                 run_of("lockstep", 4.5, parallel="none")])
        self.assertEqual(report.scaling_of(rows)[0][1:], ["Lockstep", "80%", "90.0%"])

    def test_goals(self):
        rows = report.summarize([run_of("lockstep", 1), run_of("pytorch", 14),
                                 run_of("lockstep", 1, processes=1)])
        self.assertEqual([line[1:] for line in report.goals_of(rows)],
                         [["≥ 15 × PyTorch's speed", "14 ×", f"no: {report.SPEED_REASON}"],
                          ["≤ 60% of PyTorch's memory", "100%", f"no: {report.MEMORY_REASON}"]])
        met = report.goals_of(report.summarize([run_of("lockstep", 1), run_of("pytorch", 16)]))
        self.assertEqual(met[0][2:], ["16 ×", "yes"])

    def test_says_where_another_is_ahead(self):
        rows = report.summarize([run_of("lockstep", 1), run_of("fabric", 0.5)])
        self.assertEqual(report.behind_of(rows),
                         ["toy, 10-10-5, SGD, DDP, 2 processes: a step takes 1 ms, 0.5 ms with Fabric."])
        self.assertEqual(report.behind_of(report.summarize([run_of("lockstep", 1),
                                                            run_of("fabric", 0.99)])), [])
        rows = report.summarize([run_of("lockstep", 1, processes=1), run_of("lockstep", 2),
                                 run_of("fabric", 2, processes=1), run_of("fabric", 3)])
        self.assertEqual(report.behind_of(rows), [
            "toy, 10-10-5, SGD, DDP, 2 processes: two processes reach 50% of twice one, 67% with Fabric."])

    def test_the_page_and_the_readme_show_what_was_measured(self):
        measured = json.loads((ROOT / "docs/training.json").read_text(encoding="utf-8"))
        rows = report.summarize(measured["runs"])
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        self.assertEqual(len(report.readme_rows_of(rows)), 5)
        step = json.loads((ROOT / "docs/step.json").read_text(encoding="utf-8"))
        for row in [*report.readme_rows_of(rows), report.step_row_of(step)]:
            self.assertIn(row, readme)
        self.assertEqual(report.page_of(measured, rows, step),
                         (ROOT / "docs/training.html").read_text(encoding="utf-8"))


class Training(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.json = pathlib.Path(folder.name) / "training.json"
        self.html = pathlib.Path(folder.name) / "training.html"

    def run_script(self, name, *arguments, exit_code=0):
        done = subprocess.run([sys.executable, TRAINING / name, *arguments], capture_output=True,
                              text=True, timeout=170, check=False)
        self.assertEqual(done.returncode, exit_code, done.stdout + done.stderr)
        return done

    def test_runs_and_page(self):
        self.run_script("run.py", f"--build={BUILD}", "--tasks=linear", "--rounds=1",
                        "--frameworks=lockstep,pytorch,pytorch-kept", f"--json={self.json}")
        runs = json.loads(self.json.read_text(encoding="utf-8"))["runs"]
        found = {(run["parallel"], run["processes"], run["framework"]) for run in runs}
        self.assertEqual(found, {("ddp", 1, "lockstep"), ("ddp", 1, "pytorch"),
                                 ("ddp", 2, "lockstep"), ("ddp", 2, "pytorch"),
                                 ("ddp", 2, "pytorch-kept"),
                                 ("none", 2, "lockstep")})
        for run in runs:
            self.assertEqual(run["batch_size"], 32 * run["processes"])
            step = run["step_s"]
            self.assertGreaterEqual(step["count"], 3)
            self.assertTrue(0 < step["least"] <= step["median"] <= step["p90"], run)
            for value in [run["epoch_s"], run["start_up_s"], run["peak_kb"]]:
                self.assertGreater(value, 0)
        table = self.run_script("report.py", str(self.json), f"--html={self.html}").stdout
        self.assertIn("| Linear(20, 1), SGD, DDP, 2 processes |", table)
        page = self.html.read_text(encoding="utf-8")
        for text in ("Linear(20, 1), SGD, DDP, 2 processes", "Goals", "Where Lockstep is not ahead",
                     'class="pytorch"'):
            self.assertIn(text, page)
        for outside in ("<script", "http:", "https:", "src="):
            self.assertNotIn(outside, page)

    def test_wrong_input_is_one_line(self):
        self.json.write_text("{}", encoding="utf-8")
        error = self.run_script("report.py", str(self.json), exit_code=1).stderr
        self.assertEqual(error.count("\n"), 1, error)
        error = self.run_script("run.py", "--tasks=lynear", "--json=x", exit_code=2).stderr
        self.assertIn("there is no 'lynear'; choose of toy, linear", error)


if __name__ == "__main__":
    unittest.main()
