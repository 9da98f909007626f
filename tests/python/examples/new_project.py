"""A project from nothing, as a user has it: installed, `lockstep new`, built, trained, killed, resumed on another number
of ranks, reported.

    new_project.py BUILD_FOLDER [unittest arguments]
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

BUILD = os.path.abspath(sys.argv[1])
# A bound on what hangs: a program with all of LibTorch's headers is compiled in half a minute.
DEADLINE_S = 400


class NewProject(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="lockstep_test_")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.environment = os.environ | {"OMP_NUM_THREADS": "1", "CMAKE_GENERATOR": "Ninja"}
        installed = cls.folder / "installed"
        subprocess.run(["cmake", "--install", BUILD, "--prefix", str(installed)], check=True, capture_output=True,
                       timeout=DEADLINE_S)
        cls.lockstep = installed / "bin" / "lockstep"
        cls.project = cls.folder / "spirals"
        cls.first = cls.run_in(cls.folder, cls.lockstep, "new", "spirals")
        for step in ("--preset", "default"), ("--build", "--preset", "default"):
            done = cls.run_in(cls.project, "cmake", *step)
            if done.returncode:
                raise AssertionError(done.stdout + done.stderr)

    @classmethod
    def run_in(cls, folder, *command):
        return subprocess.run([*map(str, command)], cwd=folder, capture_output=True, text=True, check=False,
                              timeout=DEADLINE_S, env=cls.environment)

    def job(self, ranks, *flags):
        return [str(self.lockstep), "run", "--standalone", f"--nproc-per-node={ranks}", "./build/spirals",
                "--config=train.toml", "--log-samples", *flags]

    def test_what_it_says_leads_to_a_training(self):
        self.assertEqual(self.first.returncode, 0, self.first.stderr)
        self.assertIn("./build/spirals --devices=2", self.first.stdout)
        done = self.run_in(self.project, "./build/spirals", "--devices=2", "--directory=runs/short")
        self.assertEqual(done.returncode, 0, done.stderr)
        accuracy = float(done.stdout.rsplit("accuracy ", 1)[1])
        self.assertRegex(done.stdout, r"^trained for 20 epochs, \d+ steps; accuracy ")
        self.assertGreater(accuracy, 0.9)
        again = self.run_in(self.project, "./build/spirals", "--directory=runs/short")
        self.assertEqual((again.returncode, again.stdout[:22]), (0, "trained for 20 epochs,"), again.stderr)

    def test_killed_resumed_on_another_number_of_ranks_and_reported(self):
        with subprocess.Popen(self.job(2, "--max-duration=100000ep"), cwd=self.project, stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True, env=self.environment) as job:
            for line in job.stderr:
                if line.startswith("epoch 2 "):
                    job.send_signal(signal.SIGKILL)  # The launcher, with which the ranks end.
                    break
        run = self.project / "runs" / "spirals"
        reached = [json.loads(line)["epoch"] for line in (run / "metrics.jsonl").read_text().splitlines()][-1]
        epochs = reached + 4
        done = self.run_in(self.project, *self.job(3, f"--max-duration={epochs}ep"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"trained for {epochs} epochs", done.stdout)
        audit = self.run_in(self.project, self.lockstep, "audit", run / "data", "--json")
        self.assertEqual(audit.returncode, 0, audit.stdout + audit.stderr)
        (loader,) = json.loads(audit.stdout)
        self.assertEqual([epoch["given"] for epoch in loader["epochs"]], [6000] * epochs)
        verified = self.run_in(self.project, self.lockstep, "snapshot", "verify", run / "snapshots")
        self.assertEqual(verified.returncode, 0, verified.stdout + verified.stderr)
        report = self.run_in(self.project, self.lockstep, "report", run)
        self.assertEqual(report.returncode, 0, report.stderr)
        page = (run / "report.html").read_text()
        for words in ("val_accuracy", "train_loss", "6000"):
            self.assertIn(words, page)

    def test_what_is_installed_checks_itself(self):
        for arguments, words in ((["test"], "Test is a success"), (["env"], "LibTorch    2."),
                                 (["bench", "all-reduce", "--sizes=1024", "--rounds=1", "--sample-ms=1"], "shm")):
            with self.subTest(arguments):
                done = self.run_in(self.folder, self.lockstep, *arguments)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn(words, done.stdout)

    def test_what_cannot_be_made_gets_one_line(self):
        for name, words in (("spirals", "spirals exists; choose another name"),
                            ("1st", "'1st' cannot name a program; take letters, digits, _ and -")):
            with self.subTest(name):
                done = self.run_in(self.folder, self.lockstep, "new", name)
                self.assertEqual(done.returncode, 2)
                self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
                self.assertIn(words, done.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
