#!/usr/bin/env python3
"""The guides of the ladder: their commands run, and print what they say.

    ladder_guides.py <folder of the programs>

Every ```sh block is run, those of one guide in one folder, one after the other. Each line of the
```text block behind it must be among what it prints, but for times, losses and the like: numbers with
a decimal point. The losses of some guides must be near what is printed, too. The Chinese guides
(*.zh.md) have the same blocks, by docs.py, and are not run.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))
from free_ports import free_port

PROGRAMS = pathlib.Path(sys.argv[1]).resolve()
ROOT = pathlib.Path(__file__).resolve().parents[3]
GUIDES = ROOT / "docs" / "guides"
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.S)
# mingpt's commands take minutes: its own test has them.
ELSEWHERE = {"README.md", "mingpt.md"}
# Guides whose losses are those of any machine, but for rounding, and how far that brings them.
SAME_LOSSES = {"pipeline.md", "tensor-parallel.md"}
LOSS_DIFFERENCE = 0.005


# What another machine's processor rounds otherwise.
def without_figures(line):
    return re.sub(r"\d+\.\d+|(?<=checksum of the parameters )\d+", "N", line)


def losses_of(line):
    return [float(loss) for loss in re.findall(r"loss (\d+\.\d+)", line)]


class Guides(unittest.TestCase):
    def run_block(self, script, folder):
        script = re.sub(r"--master-port=\d+", f"--master-port={free_port()}", script)
        path = f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(["bash", "-eu", "-c", script], cwd=folder, capture_output=True,
                              text=True, timeout=100, check=False, env={**os.environ, "PATH": path})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return (done.stdout + done.stderr).splitlines()

    def expect_printed(self, line, printed, guide):
        alike = [other for other in printed if without_figures(other) == without_figures(line)]
        self.assertTrue(alike, f"{line!r} is not among {printed}")
        if guide in SAME_LOSSES:
            for ours, theirs in zip(losses_of(line), losses_of(alike[0])):
                self.assertAlmostEqual(ours, theirs, delta=LOSS_DIFFERENCE, msg=f"{line!r}, printed: {alike[0]!r}")

    def test_commands_print_what_the_guides_say(self):
        guides = sorted(path for path in GUIDES.glob("*.md")
                        if path.name not in ELSEWHERE and not path.match("*.zh.md"))
        self.assertGreaterEqual(len(guides), 6)
        for guide in guides:
            printed = []
            with self.subTest(guide.name), tempfile.TemporaryDirectory() as folder:
                os.symlink(ROOT / "examples", f"{folder}/examples")  # as in the project's folder
                for kind, text in BLOCK.findall(guide.read_text(encoding="utf-8")):
                    if kind == "sh":
                        printed = self.run_block(text, folder)
                    elif kind == "text":
                        for line in text.splitlines():
                            self.expect_printed(line, printed, guide.name)

    def test_every_guide_is_in_both_overviews(self):
        for overview, guide in (("README.md", r"[\w-]+\.md"), ("README.zh.md", r"[\w-]+\.zh\.md")):
            names = {path.name for path in GUIDES.glob("*.md") if re.fullmatch(guide, path.name)}
            linked = set(re.findall(rf"\]\(({guide})\)", (GUIDES / overview).read_text("utf-8")))
            self.assertEqual(linked - {"README.md"}, names - {"README.md", "README.zh.md"}, overview)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
