"""The page that `lockstep report` makes of a run is whole, right and by itself.

    run_report.py LOCKSTEP SEEN_WORKER [unittest arguments]
"""

import json
import os
import pathlib
import re
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))
from html_page import Page
from seen_run import LOCKSTEP, Seen, run


class Reports(Seen):
    def report(self, *flags):
        result = run(LOCKSTEP, "report", self.folder, *flags)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result, (self.folder / "report.html").read_text()

    def check(self, text):
        """The page stands alone and its tags match."""
        page = Page(text)
        for element in page.elements:
            self.assertFalse({"src", "href"} & element.keys(), element)
        self.assertNotIn("url(", text)
        self.assertNotIn("@import", text)
        return page

    def write_metrics(self, *lines):
        self.folder.mkdir(exist_ok=True)
        (self.folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def test_it_shows_all_that_the_folder_has(self):
        self.train(2, 8, "4:6")
        self.train(3, 12)
        result, text = self.report()
        self.assertEqual(result.stderr, "")
        self.assertRegex(result.stdout, r"report\.html: \d metrics over 12 steps\n$")
        page = self.check(text)
        self.assertEqual([one["text"] for one in page.find("h1")], ["run"])
        titles = [one["text"] for one in page.find("h3")]
        for title in ("Loss", "Learning rate", "Throughput, samples/s", "Throughput in tokens, tokens/s", "Gradient norm",
                      "Memory, GiB", "Memory in use, %"):
            self.assertIn(title, titles)
        expected = [[line["step"], line["train_loss"]] for line in self.lines("metrics.jsonl") if "train_loss" in line]
        shown = page.curves()["train_loss"]
        self.assertEqual([point[2] for point in shown], [step for step, _ in expected])
        for point, (_, loss) in zip(shown, expected):
            self.assertAlmostEqual(point[3] / loss, 1, places=3)
        for chart in page.find("svg", "chart"):
            for curve in json.loads(chart["data-curves"]):
                for x, y, _, _ in curve["points"]:
                    self.assertTrue(0 <= x <= 560 and 0 <= y <= 260)
        self.assertEqual(len(page.find("line", "resumed")), len(page.find("svg", "chart")), "one in each")
        (runs,) = page.find("table", "runs")
        self.assertEqual(len(re.findall("ended", runs["text"])), 2)
        (machine,) = page.find("table", "machine")
        self.assertIn(os.uname().nodename, machine["text"])
        self.assertIn("libtorch", machine["text"])
        (snapshots,) = page.find("table", "snapshots")
        self.assertEqual(len(re.findall(r"snapshot-e\d+-s\d+\.pt", snapshots["text"])), 2)
        (lanes,) = page.find("svg", "lanes")
        for words in ("rank 0", "rank 1", "lockstep::wait for bucket 0", "backward"):
            self.assertIn(words, lanes["text"])
        self.assertIn("Each sample of each epoch was trained once.", text)

    def test_one_metric_is_enough(self):
        self.write_metrics({"step": 5, "quality <b>": 0.5})
        page = self.check(self.report()[1])
        self.assertEqual({name: [point[2:] for point in points] for name, points in page.curves().items()},
                         {"quality <b>": [[5, 0.5]]})
        self.assertEqual([one["text"] for one in page.find("h3")], ["quality <b>"])

    def test_a_hundred_thousand_lines_are_decimated(self):
        peak = 54_321
        self.write_metrics(*({"step": step, "train_loss": 1e3 if step == peak else 1 + step % 7, "lr": 0.1}
                             for step in range(1, 100_001)))
        page = self.check(text := self.report()[1])
        self.assertLess(len(text), 300_000)
        points = page.curves()["train_loss"]
        self.assertIn([peak, 1000], [point[2:] for point in points])
        self.assertEqual((points[0][2], points[-1][2]), (1, 100_000))

    def test_what_is_damaged_is_left_out_and_told(self):
        self.write_metrics({"step": 1, "loss": 2}, {"step": 2, "loss": 1})
        with open(self.folder / "metrics.jsonl", "a") as file:
            file.write('{"step": 3, "lo\n')
        (self.folder / "runs.jsonl").write_text("half\n")
        (self.folder / "traces").mkdir()
        (self.folder / "traces" / "steps-1-2.json").write_text("[]")
        result, text = self.report()
        page = self.check(text)
        (problems,) = page.find("ul", "problems")
        for words in ("metrics.jsonl: line 3 is damaged", "runs.jsonl: line 1 is damaged", "steps-1-2.json"):
            self.assertIn(words, problems["text"])
            self.assertIn(words, result.stderr)
        self.assertEqual(len(result.stderr.splitlines()), 3)
        self.assertEqual([point[2:] for point in page.curves()["loss"]], [[1, 2], [2, 1]])

    def test_what_is_no_training_gets_one_line(self):
        self.folder.mkdir()
        file = self.folder / "file"
        file.write_text("x")
        for arguments, words in (([self.folder / "none"], "is no folder"), ([file], "is no folder"),
                                 ([self.folder], "has no metrics.jsonl"), ([], "RUN is required"),
                                 ([self.folder, "--format=pdf"], "lockstep report --help")):
            with self.subTest(arguments=arguments):
                result = run(LOCKSTEP, "report", *arguments)
                self.assertEqual((result.returncode, len(result.stderr.splitlines())), (2, 1), result.stderr)
                self.assertIn(words, result.stderr)
        self.write_metrics({"step": 1, "loss": 2})
        result = run(LOCKSTEP, "report", self.folder, "--output=/proc/none/report.html")
        self.assertEqual((result.returncode, len(result.stderr.splitlines())), (1, 1), result.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]] + sys.argv[3:])
