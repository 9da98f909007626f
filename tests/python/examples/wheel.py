"""The wheel as users have it: installed into an environment of its own, used from C++ and Python, removed.

    wheel.py PYTHON FOLDER [unittest arguments]

FOLDER: where scripts/wheel.sh --python=PYTHON has put it.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

PYTHON, BUILT = os.path.abspath(sys.argv[1]), pathlib.Path(sys.argv[2]).resolve()
MAX_WHEEL_BYTES = 15_000_000
DEADLINE_S = 600

TRAIN = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("lockstep")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(20, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
torch.manual_seed(dist.get_rank())
for _ in range(10):
    optimizer.zero_grad()
    model(torch.randn(8, 20)).square().sum().backward()
    optimizer.step()
weights = [torch.empty(1, 20) for _ in range(dist.get_world_size())]
dist.all_gather(weights, model.module.weight.data)
assert all(torch.equal(one, weights[0]) for one in weights)
print(f"trained over {dist.get_backend()} on rank {dist.get_rank()} of {dist.get_world_size()}", flush=True)
dist.destroy_process_group()
"""


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="lockstep_test_")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        [cls.wheel] = BUILT.glob("*.whl")
        cls.environment = cls.folder / "environment"
        cls.expect(PYTHON, "-m", "venv", cls.environment)
        cls.python = cls.environment / "bin/python"
        # That of the build, with what it needs, in place of another download.
        [torch] = cls.expect(PYTHON, "-c", "import importlib.util as u; "
                             "print(u.find_spec('torch').submodule_search_locations[0])").stdout.split()
        [cls.packages] = cls.environment.glob("lib/python*/site-packages")
        for package in pathlib.Path(torch).parent.iterdir():
            if not (cls.packages / package.name).exists() and not package.name.startswith("lockstep_torch"):
                (cls.packages / package.name).symlink_to(package)
        cls.before = cls.files()
        cls.expect(cls.python, "-m", "pip", "install", "--no-index", cls.wheel)
        cls.lockstep = cls.environment / "bin/lockstep"

    @classmethod
    def files(cls):
        return {path for path in cls.environment.rglob("*") if "__pycache__" not in path.parts}

    @classmethod
    def run_it(cls, *command, **variables):
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return subprocess.run([*map(str, command)], cwd=cls.folder, capture_output=True, text=True, check=False,
                              timeout=DEADLINE_S, env=environment | {"OMP_NUM_THREADS": "1"} | variables)

    @classmethod
    def expect(cls, *command, **variables):
        done = cls.run_it(*command, **variables)
        if done.returncode:
            raise AssertionError(f"{command}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def test_1_programs_are_native(self):
        self.assertLess(self.wheel.stat().st_size, MAX_WHEEL_BYTES)
        for name in ("lockstep", "lockstep-bench-rank", "lockstep-replay", "lockstep-snapshot", "lockstep-test-rank"):
            self.assertEqual((self.environment / "bin" / name).read_bytes()[:4], b"\x7fELF", name)
        self.expect(self.lockstep, "test")
        self.expect(self.lockstep, "snapshot", "--help")
        self.assertIn("shm", self.expect(self.lockstep, "bench", "all-reduce", "--backends=shm",
                                         "--sizes=4", "--rounds=1").stdout)

    def test_2_python_trains_under_either_launcher(self):
        script = self.folder / "train.py"
        for first in ("import lockstep_torch", ""):  # By PyTorch's entry point, too.
            script.write_text(first + TRAIN, encoding="utf-8")
            for launcher in ([self.lockstep, "run"], [self.python, "-m", "torch.distributed.run"]):
                with self.subTest(first=first, launcher=launcher):
                    path = f"{self.environment / 'bin'}:{os.environ['PATH']}"
                    done = self.expect(*launcher, "--standalone", "--nproc-per-node=2", script, PATH=path)
                    for rank in range(2):
                        self.assertIn(f"trained over lockstep on rank {rank} of 2", done.stdout)

    def test_3_a_new_project_trains(self):
        self.expect(self.lockstep, "new", "spirals")
        project = self.folder / "spirals"
        self.expect("cmake", "-S", project, "-B", project / "build", "--preset", "default", CMAKE_GENERATOR="Ninja")
        self.expect("cmake", "--build", project / "build")
        done = self.expect(project / "build/spirals", "--devices=2", f"--directory={project / 'run'}")
        self.assertIn("trained for 20 epochs", done.stdout)
        # From the wheel, which has their archives only: this machine may have no development packages of them.
        needed = self.expect("readelf", "-d", project / "build/spirals").stdout
        for library in ("libz", "libdw", "libelf", "liblzma", "libbz2"):
            self.assertNotIn(f"{library}.so", needed)
            self.assertTrue((self.packages / f"lockstep_torch/sdk/lib/system/{library}.a").exists(), library)
        self.assertIn("GNU", (self.packages / "lockstep_torch/sdk/licenses/libdw-dev.txt").read_text(encoding="utf-8"))

    def test_4_cmake_finds_it_by_what_env_prints(self):
        [prefix, libtorch] = self.expect(self.lockstep, "env", "--cmake-prefix").stdout.strip().split(";")
        self.assertTrue(os.path.samefile(prefix, self.packages / "lockstep_torch/sdk"))
        self.assertTrue(os.path.samefile(libtorch, self.packages / "torch"))

    def test_5_another_pytorch_is_one_line(self):
        fake = self.folder / "fake"
        (fake / "torch/distributed").mkdir(parents=True)
        (fake / "torch/distributed/__init__.py").write_text("", encoding="utf-8")
        (fake / "torch/__init__.py").write_text("__version__ = '2.99.1'\nfloat32 = None\n", encoding="utf-8")
        done = self.run_it(self.python, "-c", "import lockstep_torch", PYTHONPATH=str(fake))
        self.assertEqual(done.returncode, 1)
        [error] = [line for line in done.stderr.splitlines() if line.startswith("ImportError")]
        self.assertIn("torch 2.99.1 is installed", error)
        self.assertIn("pip install", error)

    def test_6_nothing_is_left_of_it(self):
        self.expect(self.python, "-m", "pip", "uninstall", "--yes", "lockstep-torch")
        self.assertEqual(self.files() - self.before, set())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
