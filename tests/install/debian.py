"""The Debian packages: built by cpack, checked by lintian, installed and used in a Debian of their own.

    debian.py BUILD_FOLDER SOURCE_FOLDER TORCH_DIR

Needs root, lintian and debootstrap, and Debian's archive.
"""

import pathlib
import shutil
import sys
import tempfile
import unittest

from debootstrapped import MISSING, Debian, run

BUILD, SOURCE, TORCH = map(pathlib.Path, sys.argv[1:4])
NAMES = ("lockstep", "liblockstep-dev", "lockstep-doc")
MISSING += [program for program in ("cpack", "lintian", "objdump") if not shutil.which(program)]
PROGRAM = """#include <cstdio>
#include <lockstep/lockstep.h>
int main() {
  return lockstep::run_main([] {
    const auto group = lockstep::init_process_group();
    auto sum = at::ones({1});
    group.all_reduce(sum);
    std::printf("rank %d of %d: sum %g\\n", group.rank(), group.world_size(), sum.item<double>());
    return 0;
  });
}
"""


@unittest.skipIf(MISSING, f"needs {', '.join(MISSING)}")
class Packages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-debian-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        run("cpack", "-G", "DEB", "--config", BUILD / "CPackConfig.cmake", "-B", cls.folder / "packages", cwd=cls.folder)
        cls.files = {path.name.split("_")[0]: path for path in (cls.folder / "packages").glob("*.deb")}

    def test_there_are_three(self):
        self.assertEqual(self.files.keys(), set(NAMES))
        launcher = run("dpkg-deb", "--contents", self.files["lockstep"])
        for name in ("/usr/bin/lockstep\n", "/usr/share/man/man1/lockstep-run.1.gz", "/usr/share/bash-completion/completions/lockstep"):
            self.assertIn(name, launcher)
        for name in ("lockstep-snapshot", "lockstep.h"):
            self.assertNotIn(f"{name}\n", launcher)
            self.assertIn(f"{name}\n", run("dpkg-deb", "--contents", self.files["liblockstep-dev"]))

    def test_lintian_finds_nothing(self):
        """But what packaging/deb/*.lintian-overrides list, with a reason each."""
        print(run("lintian", "--fail-on=error,warning", *self.files.values()))

    def test_they_are_installed_and_used(self):
        debian = Debian(self.folder / "debian", "g++", "cmake", "ninja-build")
        for path in self.files.values():
            shutil.copy(path, debian.folder / "tmp")
        debian.mount(TORCH.parent.parent.parent, "torch")
        debian.run("apt-get install -y --no-install-recommends /tmp/*.deb")
        self.assertIn("rank 1\n", debian.run("lockstep run --standalone --nproc-per-node=2 sh -c 'echo rank $RANK'"))
        self.assertIn("no job", debian.run("lockstep ps"))
        debian.run("source /usr/share/bash-completion/completions/lockstep; complete -p lockstep")
        self.assertIn("Lockstep", debian.run("cat /usr/share/doc/lockstep-doc/README.md"))

        debian.run("mkdir -p /usr/lib/lockstep; ln -s /torch /usr/lib/lockstep/libtorch")
        self.assertIn("success", debian.run("lockstep test"))
        program = debian.folder / "tmp/program"
        program.mkdir()
        (program / "main.cpp").write_text(PROGRAM)
        (program / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.22)\nproject(program LANGUAGES CXX)\nfind_package(lockstep REQUIRED)\n"
            "add_executable(program main.cpp)\ntarget_link_libraries(program lockstep::lockstep)\n")
        out = debian.run("cd /tmp/program; cmake -B build -G Ninja -DTorch_DIR=/torch/share/cmake/Torch; "
                         "cmake --build build; lockstep run --standalone --nproc-per-node=2 build/program")
        self.assertIn("rank 0 of 2: sum 2\n", out)
        self.assertIn("rank 1 of 2: sum 2\n", out)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[4:])
