"""The example `mingpt_pipeline`: a GPT divided into stages learns as the whole one does.

Usage: mingpt_pipeline.py LOCKSTEP MINGPT_PIPELINE [unittest arguments]
"""

import os
import re
import subprocess
import sys
import unittest

LOCKSTEP, PROGRAM = map(os.path.abspath, sys.argv[1:3])
STEPS = ["--steps=8", "--n-layer=3"]


class MingptPipeline(unittest.TestCase):
    def losses(self, *arguments, ranks=1, backend="shm"):
        launch = [LOCKSTEP, "run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
        result = subprocess.run([*launch, PROGRAM, *STEPS, *arguments], capture_output=True,
                                text=True, timeout=200, check=False,
                                env=os.environ | {"OMP_NUM_THREADS": "1", "LOCKSTEP_BACKEND": backend})
        self.assertEqual(result.returncode, 0, result.stderr)
        return [float(loss) for loss in re.findall(r"loss ([\d.]+)", result.stdout)]

    def test_the_grid_learns_as_the_whole_model_does(self):
        whole = self.losses("--no-pipeline")
        self.assertEqual(len(whole), 8)
        self.assertLess(whole[-1], whole[0] - 0.5)
        for ranks, backend, arguments in (
                (4, "shm", ()), (4, "gloo", ("--schedule=gpipe", "--micro-batches=3")),
                (4, "shm", ("--schedule=interleaved-1f1b", "--chunks=2")),
                (3, "shm", ("--stages=3", "--micro-batches=5")), (2, "shm", ("--stages=1",))):
            with self.subTest(ranks=ranks, arguments=arguments):
                losses = self.losses(*arguments, ranks=ranks, backend=backend)
                self.assertEqual(len(losses), len(whole))
                for ours, theirs in zip(losses, whole):
                    self.assertAlmostEqual(ours, theirs, delta=2e-4)

    def test_a_grid_that_does_not_come_out_even_is_refused(self):
        result = subprocess.run([LOCKSTEP, "run", "--standalone", "--nproc-per-node=3", PROGRAM],
                                capture_output=True, text=True, timeout=100, check=False)
        self.assertEqual(result.returncode, 2)
        self.assertIn("3 processes do not divide into pipelines of so many", result.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
