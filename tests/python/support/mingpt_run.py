"""What the tests of the example `mingpt` have in common: a text, small settings, and runs of it."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

# Text that repeats with a long period: a few steps learn much of it.
TEXT = "".join(f"{i} times {i % 7} is {i * (i % 7)}; — so it is.\n" for i in range(400))
TINY = {
    "gpt_config.n_layer": 2, "gpt_config.n_head": 2, "gpt_config.n_embd": 32,
    "data_config.block_size": 16, "trainer_config.batch_size": 8,
}


class MingptTestCase(unittest.TestCase):
    """A folder with a text, and mingpt trained on it, alone or in several processes."""

    lockstep, mingpt = None, None

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "text.txt").write_text(TEXT, encoding="utf-8")

    def command(self, *arguments, ranks=1, name="run", launch=(), **settings):
        settings = TINY | {"data_config.path": self.folder / "text.txt",
                           "trainer_config.snapshot_path": self.folder / name} | settings
        launcher = [self.lockstep, "run", "--standalone", f"--nproc-per-node={ranks}", *launch]
        return [*(launcher if ranks > 1 else []), self.mingpt, *arguments,
                *(f"{key}={value}" for key, value in settings.items())]

    def run_mingpt(self, *arguments, **where):
        return subprocess.run(self.command(*arguments, **where), capture_output=True, text=True,
                              timeout=200, env=os.environ | {"OMP_NUM_THREADS": "1"})

    def train(self, *arguments, **where):
        result = self.run_mingpt(*arguments, **where)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    @staticmethod
    def train_losses(output):
        return [float(loss) for loss in re.findall(r"Train Loss ([\d.]+)", output)]

    @staticmethod
    def eval_line(output):
        return re.findall(r".*Eval Loss.*", output)[-1]


def main():
    """Runs the tests of the program; its arguments are `lockstep` and `mingpt`."""
    MingptTestCase.lockstep = sys.argv[1]
    MingptTestCase.mingpt = os.path.realpath(sys.argv[2])
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
