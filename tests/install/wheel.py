"""The wheel in a Debian of its own that has g++, cmake and python3: pip, a C++ project, PyTorch's tutorial.

    wheel.py PYTHON FOLDER [unittest arguments]

FOLDER: where scripts/wheel.sh --python=PYTHON has put the wheel. Needs root, debootstrap, Debian's archive, and the
package index from which pip downloads PyTorch.
"""

import importlib.metadata
import pathlib
import resource
import shutil
import sys
import tempfile
import time
import unittest

from debootstrapped import MISSING, Debian, run

PYTHON, BUILT = sys.argv[1], pathlib.Path(sys.argv[2])
PYTORCH_INDEX = "https://download.pytorch.org/whl/cpu"
if sys.version_info[:2] != (3, 11):
    MISSING.append("Python 3.11, that of Debian 12")
ENVIRONMENT = ". /tmp/environment/bin/activate; export OMP_NUM_THREADS=1; cd /tmp; "


def download_pytorch(folder):
    """That of PYTHON, with what it needs."""
    torch = f"torch=={importlib.metadata.version('torch')}"
    command = (PYTHON, "-m", "pip", "download", "--quiet", f"--dest={folder}", torch)
    try:
        run(*command)
    except AssertionError:  # The usual index has no versions such as 2.13.0+cpu.
        run(*command, f"--extra-index-url={PYTORCH_INDEX}")


def processor_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@unittest.skipIf(MISSING, f"needs {', '.join(MISSING)}")
class InDebian(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-debian-"))
        cls.addClassCleanup(shutil.rmtree, folder)
        [cls.wheel] = BUILT.glob("*.whl")
        # Before the clock runs: PyTorch, as users have it.
        download_pytorch(folder / "packages")
        # cmake recommends make, so that apt-get installs it.
        cls.debian = Debian(folder / "debian", "g++", "cmake", "make", "python3", "python3-pip", "python3-venv")
        cls.debian.mount(folder / "packages", "packages")
        cls.debian.mount(BUILT, "wheel")
        cls.debian.run("python3 -m venv /tmp/environment")
        cls.run_it("pip install --no-index --find-links=/packages torch")
        shutil.copy(pathlib.Path(__file__).parent / "multigpu_torchrun.py", cls.debian.folder / "tmp")

    @classmethod
    def run_it(cls, script):
        return cls.debian.run(ENVIRONMENT + script)

    def files(self):
        return set(self.run_it("find environment -not -path '*__pycache__*'").splitlines())

    def test_1_from_pip_install_to_training(self):
        type(self).before = self.files()
        begin = time.monotonic(), processor_seconds()
        for name, script in {
            "pip install": f"pip install --no-index /wheel/{self.wheel.name}",
            "build": "lockstep new spirals; cd spirals; cmake --preset default; cmake --build --preset default",
            "train": "cd spirals; ./build/spirals --devices=2",
        }.items():
            out = self.run_it(script)
            print(f"{name}: ended after {time.monotonic() - begin[0]:.1f} s, {processor_seconds() - begin[1]:.1f} s of "
                  "processor time", flush=True)
        self.assertIn("trained for 20 epochs", out)
        self.run_it("lockstep test")

    def test_2_the_tutorial_trains_under_either_launcher(self):
        launchers = {"lockstep run": "lockstep run --standalone --nproc-per-node=2 python",
                     "torchrun": "torchrun --standalone --nproc-per-node=2"}
        for name, launcher in launchers.items():
            with self.subTest(launcher=name):
                out = self.run_it(f"rm -f snapshot.pt; {launcher} multigpu_torchrun.py 3 1")
                for rank in range(2):
                    self.assertIn(f"[rank {rank}] Epoch 2 | Batchsize: 32 | Steps: 32", out)
                out = self.run_it(f"{launcher} multigpu_torchrun.py 5 1")
                self.assertIn("Resuming training from snapshot at Epoch 3", out)
                self.assertIn("Epoch 4 | Training snapshot saved at snapshot.pt", out)

    def test_3_nothing_is_left_of_it(self):
        self.run_it("pip uninstall --yes lockstep-torch")
        self.assertEqual(self.files() - self.before, set())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
