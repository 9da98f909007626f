"""`lockstep replay`: makes a step of the example `trainer` again on other numbers of ranks, and compares its bits.

    replay.py LOCKSTEP TRAINER DIGITS_CSV [unittest arguments]
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

LOCKSTEP, TRAINER, DATA = map(os.path.abspath, sys.argv[1:4])
DEADLINE_S = 120
LR = "LOCKSTEP_TRAINER_LR"
SHARDS = "LOCKSTEP_TRAINER_LOGICAL_SHARDS"


def run(*command, cwd=None, **environment):
    return subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=DEADLINE_S, check=False, cwd=cwd,
                          env=os.environ | {"OMP_NUM_THREADS": "1"} | environment)


def files_of(folder):
    return {path.relative_to(folder): (path.read_bytes(), path.stat().st_mtime_ns)
            for path in sorted(folder.rglob("*")) if path.is_file()}


class Replay(unittest.TestCase):
    """All replay one run: 36 steps on 2 ranks, snapshots after 10, 20, 30 and 36."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="lockstep_test_")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.run_folder = cls.folder / "run"
        # Option values of the environment are not in the log.
        cls.environment = {SHARDS: "8", LR: "0.002"}
        done = cls.train(cls.run_folder, ranks=2, flags=("--log-hashes-every=1",))
        assert done.returncode == 0, done.stderr

    @classmethod
    def train(cls, directory, ranks, flags=()):
        # The directory's name is relative.
        return run(LOCKSTEP, "run", "--standalone", f"--nproc-per-node={ranks}", TRAINER, f"--data={DATA}",
                   f"--directory={directory.name}", "--batch-size=16", "--max-duration=3ep", "--save-interval=10ba",
                   "--keep-last=9", "--log-samples", "--logger=csv", "--quiet", *flags, cwd=directory.parent, **cls.environment)

    def replay(self, step, ranks=1, run_folder=None, **environment):
        return run(LOCKSTEP, "replay", run_folder or self.run_folder, f"--step={step}", f"--nproc-per-node={ranks}",
                   **(self.environment | environment))

    def expect_verdict(self, done, code, text):
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertEqual(done.stdout, text + "\n", done.stderr)

    def copy(self):
        copy = pathlib.Path(tempfile.mkdtemp(dir=self.folder)) / "moved"
        shutil.copytree(self.run_folder, copy)
        return copy

    def test_the_bits_agree_on_any_number_of_ranks(self):
        before = files_of(self.run_folder)
        for ranks in (1, 2, 3):
            with self.subTest(ranks=ranks):
                self.expect_verdict(self.replay(33, ranks), 0,
                                    "replay: step 33 matches the log bit for bit: 3 logged steps, 4 tensors on "
                                    f"{ranks} rank{'s' * (ranks > 1)}, from snapshot-e0002-s00000030.pt")
        # Flags of `lockstep run` by the environment are those of another job.
        self.expect_verdict(self.replay(7, 3, PET_NNODES="2", PET_RUN_PATH="1"), 0,
                            "replay: step 7 matches the log bit for bit: 7 logged steps, 4 tensors on 3 ranks, "
                            "from the beginning of the run")
        self.assertEqual(files_of(self.run_folder), before)

    def test_a_tensor_of_another_hash_is_named(self):
        copy = self.copy()
        log = copy / "hashes.jsonl"
        lines = log.read_text().splitlines()
        changed = json.loads(lines[32])
        self.assertEqual(changed["step"], 32)
        changed["tensors"]["output.weight"] = "0123456789abcdef"
        log.write_text("\n".join([*lines[:32], json.dumps(changed), *lines[33:], ""]))
        before = files_of(copy)
        self.expect_verdict(self.replay(33, 3, run_folder=copy), 1,
                            "replay: step 32 differs from the log in 1 of 4 tensors (first 'output.weight') "
                            "on 3 ranks, from snapshot-e0002-s00000030.pt")
        self.expect_verdict(self.replay(31, run_folder=copy), 0, "replay: step 31 matches the log bit for bit: 1 logged step, 4 tensors "
                                                                 "on 1 rank, from snapshot-e0002-s00000030.pt")
        self.assertEqual(files_of(copy), before)

    def test_another_program_state_is_found(self):
        self.expect_verdict(self.replay(5, 2, **{LR: "0.003"}), 1,
                            "replay: step 1 differs from the log in 4 of 4 tensors (first 'hidden.weight') "
                            "on 2 ranks, from the beginning of the run")

    def test_a_run_that_resumed_on_another_number_of_ranks(self):
        copy = self.copy()
        # In place of the run, which the program names.
        kept = self.run_folder.with_name("kept")
        self.run_folder.rename(kept)
        self.addCleanup(lambda: (shutil.rmtree(self.run_folder), kept.rename(self.run_folder)))
        copy.rename(self.run_folder)
        done = self.train(self.run_folder, ranks=3, flags=("--log-hashes-every=2", "--max-duration=4ep"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.expect_verdict(self.replay(48), 0, "replay: step 48 matches the log bit for bit: 4 logged steps, 4 tensors on 1 rank, from "
                                                "snapshot-e0003-s00000040.pt")

    def test_what_cannot_be_replayed_gets_one_line(self):
        empty = self.folder / "empty"
        empty.mkdir(exist_ok=True)
        gone = self.copy()
        log = gone / "hashes.jsonl"
        log.write_text(log.read_text().replace(TRAINER, "/nowhere/trainer"))
        for folder, words in ((empty, "has no hashes.jsonl"),
                              (self.run_folder, "step 99 is not in the log of hashes; its last is 36; choose it"),
                              (gone, "step 99")):
            done = self.replay(99, run_folder=folder)
            self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), done.stderr)
            self.assertIn(words, done.stderr)
        done = self.replay(3, run_folder=gone)
        self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), done.stderr)
        self.assertIn("the program of the run, /nowhere/trainer, does not exist", done.stderr)

    def test_other_logical_shards_are_refused(self):
        done = self.replay(33, **{SHARDS: "4"})
        self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
        self.assertIn("logical_shards is 4, and the run to replay was made with 8", done.stderr)
        self.assertIn("the program ended before step 33", done.stderr.splitlines()[-1])

    def test_a_log_needs_logical_shards(self):
        done = run(TRAINER, f"--data={DATA}", "--log-hashes-every=1", f"--directory={self.folder / 'none'}")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("log_hashes_every needs logical_shards", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
