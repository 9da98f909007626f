"""Holds the public headers, those directly in lockstep/ and in its folders, to what docs/architecture.md says of them:
they are few, and include nothing internal. Compiles headers alone, from a folder that holds the public ones only.

    public_headers.py ROOT_OF_THE_REPOSITORY [TORCH_DIR] [--all] [--keep=FOLDER]

Without --all: the headers without LibTorch, a second each. With it, and TORCH_DIR: every header, 10 s each, unless FOLDER
remembers that it has not changed since it was last compiled.
"""

import argparse
import concurrent.futures
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

MOST = 80
INCLUDE = re.compile(r'^\s*#include [<"]([^>"]+)[>"]', re.MULTILINE)


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("torch_dir", type=pathlib.Path, nargs="?")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--keep", type=pathlib.Path)
    return parser.parse_args()


ARGUMENTS = arguments()
ROOT = ARGUMENTS.root
PUBLIC = sorted(path.relative_to(ROOT).as_posix() for pattern in ("lockstep/*.h", "lockstep/*/*.h")
                for path in ROOT.glob(pattern))
INCLUDES = {header: INCLUDE.findall((ROOT / header).read_text()) for header in PUBLIC}


def reached_from(header):
    """The public headers that it includes, itself among them."""
    reached, waiting = set(), [header]
    while waiting:
        header = waiting.pop()
        if header not in reached and header in INCLUDES:
            reached.add(header)
            waiting += INCLUDES[header]
    return reached


def has_libtorch(header):
    return any(path.startswith(("torch/", "ATen/", "c10/")) for reached in reached_from(header)
               for path in INCLUDES[reached])


class Compiler:
    """Compiles headers with nothing else of the repository in sight."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        for header in PUBLIC:
            copy = self.folder / header
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / header, copy)
        self.command = [os.environ.get("CXX", "g++"), "-std=c++20", "-fsyntax-only", "-I", str(self.folder)]
        if ARGUMENTS.torch_dir:
            torch = ARGUMENTS.torch_dir.resolve().parents[2] / "include"
            self.command += ["-isystem", str(torch), "-isystem", str(torch / "torch/csrc/api/include")]

    def stamp(self, header):
        """Changes with the header and what it includes of ours."""
        text = " ".join(self.command[:3] + self.command[5:])
        for reached in sorted(reached_from(header)):
            text += f"\n{reached}\n{(ROOT / reached).read_text()}"
        return hashlib.sha256(text.encode()).hexdigest()

    def error(self, header):
        """What the compiler says of a source file with the header alone; empty: nothing."""
        stamp = ARGUMENTS.keep / header.replace("/", "+") if ARGUMENTS.keep else None
        if stamp and stamp.exists() and stamp.read_text() == self.stamp(header):
            return ""
        # Twice: it is guarded, too.
        source = f'#include "{header}"\n#include "{header}"\n'
        done = subprocess.run(self.command + ["-x", "c++", "-"], input=source, text=True, capture_output=True,
                              timeout=300)
        if done.returncode != 0:
            return f"{header}:\n{done.stderr[:2000]}"
        if stamp:
            stamp.parent.mkdir(parents=True, exist_ok=True)
            stamp.write_text(self.stamp(header))
        return ""


class PublicHeaders(unittest.TestCase):
    @unittest.skipIf(ARGUMENTS.all, "the test public_headers counts them")
    def test_they_are_few(self):
        self.assertGreater(len(PUBLIC), 40)
        self.assertLessEqual(len(PUBLIC), MOST, "\n".join(PUBLIC))

    @unittest.skipIf(ARGUMENTS.all, "the test public_headers reads them")
    def test_they_include_public_headers_only(self):
        ours = ("lockstep/", "launcher/", "diagnose/", "tools/", "models/", "examples/", "bench/", "tests/")
        wrong = [f"{header} includes {path}" for header, paths in INCLUDES.items() for path in paths
                 if path.startswith(ours) and path not in INCLUDES]
        self.assertEqual(wrong, [])

    def test_each_compiles_alone(self):
        headers = [header for header in PUBLIC if ARGUMENTS.all or not has_libtorch(header)]
        self.assertGreater(len(headers), 0)
        with tempfile.TemporaryDirectory() as folder:
            compiler = Compiler(folder)
            with concurrent.futures.ThreadPoolExecutor(min(os.cpu_count(), 4)) as pool:
                errors = [error for error in pool.map(compiler.error, headers) if error]
        self.assertEqual(errors, [], "\n".join(errors))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
