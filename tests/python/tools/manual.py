"""Man pages and completion for bash, as the build made them from the parsers.

    manual.py LOCKSTEP FOLDER_OF_THE_MANUAL [unittest arguments]
"""

import os
import pathlib
import pty
import re
import select
import shutil
import subprocess
import sys
import time
import unittest

LOCKSTEP = os.path.abspath(sys.argv[1])
FOLDER = pathlib.Path(sys.argv[2])
DEADLINE_S = 60
COMMANDS = [match[1] for match in re.finditer(
    r"^  (\w+) +\S", subprocess.run([LOCKSTEP, "--help"], capture_output=True, text=True, check=True,
                                   timeout=DEADLINE_S).stdout.split("Options:")[0], re.MULTILINE)]


def help_of(*command):
    return subprocess.run([LOCKSTEP, *command, "--help"], capture_output=True, text=True, check=True,
                          timeout=DEADLINE_S).stdout


def flags_of(*command):
    return set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", help_of(*command), re.MULTILINE))


@unittest.skipUnless(shutil.which("man"), "needs man (Debian: man-db)")
class ManPages(unittest.TestCase):
    def render(self, page):
        done = subprocess.run(["man", "-l", "--warnings=w", str(page)], capture_output=True, text=True,
                              env=os.environ | {"MANWIDTH": "100", "MANROFFSEQ": "", "LC_ALL": "C.UTF-8"},
                              check=True, timeout=DEADLINE_S)
        self.assertEqual(done.stderr, "", page)
        return done.stdout

    def test_there_is_one_of_each_command(self):
        pages = {page.name for page in (FOLDER / "man1").glob("*.1")}
        self.assertEqual(pages, {"lockstep.1"} | {f"lockstep-{command}.1" for command in COMMANDS})
        self.assertGreater(len(COMMANDS), 12)

    def test_each_renders_with_all_flags(self):
        for command in COMMANDS:
            with self.subTest(command):
                text = self.render(FOLDER / f"man1/lockstep-{command}.1").replace("‐", "-")
                self.assertEqual({flag for flag in flags_of(command) if flag not in text}, set())
                self.assertIn("SYNOPSIS", text)
        text = self.render(FOLDER / "man1/lockstep.1")
        for command in COMMANDS:
            self.assertIn(f"lockstep {command}", text)

    def test_an_action_has_its_flags(self):
        text = self.render(FOLDER / "man1/lockstep-snapshot.1").replace("‐", "-")
        self.assertIn("lockstep snapshot prune", text)
        self.assertEqual({flag for flag in flags_of("snapshot", "prune") if flag not in text}, set())


@unittest.skipUnless(shutil.which("bash"), "needs bash")
class Completion(unittest.TestCase):
    """In an interactive bash, in which `lockstep` prints its arguments; `lockstep ps` lists a job."""

    @classmethod
    def setUpClass(cls):
        cls.pid, cls.terminal = pty.fork()
        if cls.pid == 0:
            os.environ.update(PS1="", INPUTRC="/dev/null", TERM="dumb")
            os.chdir(FOLDER)
            os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])
        # On a line of its own, so that it is not found in what the terminal echoes.
        cls.send(f"source {FOLDER}/lockstep; bind 'set completion-ignore-case off'; bind 'set bell-style none'\n")
        cls.send("lockstep() { if [[ $* == ps ]]; then printf 'JOB  PID\\ntrain  7\\n'; "
                 "else printf '<%s>' \"$@\"; echo; fi; }\n")
        cls.send("echo rea''dy\n")
        cls.read_until("ready")

    @classmethod
    def tearDownClass(cls):
        cls.send("exit\n")
        os.close(cls.terminal)
        os.waitpid(cls.pid, 0)

    @classmethod
    def send(cls, text):
        os.write(cls.terminal, text.encode())

    @classmethod
    def read_until(cls, end):
        text = ""
        deadline = time.monotonic() + DEADLINE_S
        while not re.search(end, text):
            left = deadline - time.monotonic()
            if left < 0 or not select.select([cls.terminal], [], [], left)[0]:
                raise AssertionError(f"no {end!r} in {text!r}")
            text += os.read(cls.terminal, 4096).decode(errors="replace")
        return text

    def completed(self, typed):
        """The words that bash makes of `typed`, in which \\t stands for the key Tab."""
        self.send(typed + "\n")
        text = self.read_until(r"<[^\n]*>\r?\n")
        return re.findall(r"<([^>]*)>", text.splitlines()[-1])

    def test_commands(self):
        self.assertEqual(self.completed("lockstep sca\t4"), ["scale", "4"])
        self.assertEqual(self.completed("lockstep help snap\t"), ["help", "snapshot"])
        for command in COMMANDS:
            self.assertEqual(self.completed(f"lockstep help {command}\t"), ["help", command])

    def test_flags(self):
        self.assertEqual(self.completed("lockstep run --standa\t--nproc-per-n\t2 ./train"),
                         ["run", "--standalone", "--nproc-per-node=2", "./train"])
        self.assertEqual(self.completed("lockstep estimate --shard\t1B"), ["estimate", "--shard-optimizer", "1B"])
        self.assertEqual(self.completed("lockstep doctor --rdzv\ta"), ["doctor", "--rdzv-endpoint=a"])

    def test_values(self):
        self.assertEqual(self.completed("lockstep run --rdzv-backend=c\ttrain"), ["run", "--rdzv-backend=c10d", "train"])
        self.assertEqual(self.completed("lockstep run --rdzv-backend et\ttrain"), ["run", "--rdzv-backend", "etcd", "train"])
        self.assertEqual(self.completed("lockstep run --log-dir=ma\t"), ["run", "--log-dir=man1/"])

    def test_actions_of_a_tool(self):
        self.assertEqual(self.completed("lockstep snapshot pru\t--ke\t3"), ["snapshot", "prune", "--keep=3"])

    def test_running_jobs(self):
        self.assertEqual(self.completed("lockstep stop tr\t--no\t"), ["stop", "train", "--now"])

    def test_the_programs_own_words_are_files(self):
        self.assertEqual(self.completed("lockstep run --standalone ./train sta\t"),
                         ["run", "--standalone", "./train", "stamp"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
