"""The page that `lockstep report` makes of the example `trainer`, as users run both.

    trainer_report.py LOCKSTEP TRAINER DIGITS_CSV [unittest arguments]
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))
from html_page import Page

LOCKSTEP, TRAINER, DATA = map(os.path.abspath, sys.argv[1:4])
DEADLINE_S = 120


def run(*command):
    return subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=DEADLINE_S,
                          env=os.environ | {"OMP_NUM_THREADS": "1"})


class TrainerReport(unittest.TestCase):
    def test_a_run_of_the_example_has_its_page(self):
        folder = tempfile.TemporaryDirectory(prefix="lockstep_test_")
        self.addCleanup(folder.cleanup)
        run_folder = pathlib.Path(folder.name, "digits")
        for epochs in (2, 3):
            trained = run(TRAINER, f"--data={DATA}", f"--directory={run_folder}", "--log-samples", "--devices=2",
                          f"--max-duration={epochs}ep")
            self.assertEqual(trained.returncode, 0, trained.stderr)
        made = run(LOCKSTEP, "report", run_folder)
        self.assertEqual((made.returncode, made.stderr), (0, ""))
        page = Page((run_folder / "report.html").read_text())
        self.assertEqual([one["text"] for one in page.find("h1")], ["digits"])
        logged = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
        for name in ("train_loss", "val_loss", "val_accuracy", "lr", "samples_per_second"):
            self.assertEqual([point[2] for point in page.curves()[name]],
                             [line["step"] for line in logged if name in line], name)
        (samples,) = page.find("pre")
        self.assertIn("2 runs on 2 ranks", samples["text"])
        self.assertEqual(len(page.find("p", "good")), 1)
        (best,) = page.find("table", "best")
        self.assertRegex(best["text"], r"val_accuracy=0\.\d+\.pt")
        (snapshots,) = page.find("table", "snapshots")
        self.assertTrue(re.search(r"snapshot-e\d+-s00000069\.pt", snapshots["text"]))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]] + sys.argv[4:])
