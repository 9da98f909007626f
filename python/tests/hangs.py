"""A Python rank that hangs: the launcher names it, with the stacks of its Python threads.

usage: hangs.py LOCKSTEP [unittest arguments]   (or hangs.py rank HOW, one rank of such a job)
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
from datetime import timedelta

HERE = os.path.abspath(__file__)


def wait_in_the_loader():
    threading.Event().wait()


def search_for_ever():
    re.match("(a+)+$", "a" * 64 + "b")  # one call in C, which keeps the GIL


def run_rank(how):
    import torch
    import torch.distributed as dist

    if how == "handles_the_signal":
        signal.signal(signal.SIGRTMAX - 1, lambda *_: print("handled", flush=True))
    import lockstep_torch  # noqa: F401

    # Ranks may meet late: only the group of the hang has a short deadline.
    dist.init_process_group("lockstep")
    tensor = torch.ones(8)
    dist.all_reduce(tensor)
    group = dist.new_group(timeout=timedelta(seconds=1))
    dist.all_reduce(tensor, group=group)
    if dist.get_rank() == 1:
        threading.Thread(target=wait_in_the_loader, daemon=True).start()
        if how == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        search_for_ever() if how == "keeps_the_gil" else wait_in_the_loader()
    dist.all_reduce(tensor, group=group)


class Hangs(unittest.TestCase):
    def report(self, how, *flags):
        command = [LOCKSTEP, "run", "--standalone", "--nproc-per-node=2", *flags, sys.executable, HERE, "rank", how]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False,
                              env=dict(os.environ, OMP_NUM_THREADS="1"))
        self.assertNotEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, r"lockstep: hang: rank 1 .*never entered all_reduce number 1 of group '")
        self.assertRegex(done.stderr, r"lockstep: job failed: rank 1 \(pid \d+\) hangs in .*; rank 0 \(pid \d+\) exited with code 1\n")
        return done.stderr

    def test_the_stack_of_python_comes_first_and_all_stacks_are_kept_with_the_logs(self):
        with tempfile.TemporaryDirectory(prefix="lockstep_test_") as folder:
            report = self.report("waits", f"--log-dir={folder}", "--redirects=3")
            files = re.findall(r"all stacks: (\S+)", report)
            self.assertEqual(len(files), 2, report)
            texts = []
            for file in files:
                with open(file, encoding="utf-8") as text:
                    texts.append(text.read())
        self.assertIn("all_reduce at ", texts[0])  # in torch/distributed
        self.assertRegex(texts[1], r"\nmain thread in Python:\n(  .*\n)*  wait_in_the_loader at ")
        self.assertRegex(report, r"main thread is in wait threading\.py:\d+, called from wait_in_the_loader hangs\.py:\d+\n"
                         r"lockstep:     main thread in Python:\n"
                         r"lockstep:       wait at .*threading\.py:\d+\n"
                         r"(lockstep:       wait at .*threading\.py:\d+\n)?"
                         r"lockstep:       wait_in_the_loader at .*hangs\.py:\d+\n"
                         r"lockstep:       run_rank at .*hangs\.py:\d+\n")
        self.assertRegex(report, r"lockstep:     thread in Python: wait threading\.py:\d+\n")
        self.assertRegex(report, r"lockstep:     main thread \d+ '.*' waits:\n")

    def test_a_thread_that_keeps_the_gil(self):
        report = self.report("keeps_the_gil")
        self.assertRegex(report, r"called from search_for_ever hangs\.py:\d+\n")

    def test_a_stopped_rank_has_its_native_stack(self):
        report = self.report("stopped")
        self.assertIn("and is stopped by a signal", report)
        self.assertNotIn("in Python:", report)

    def test_the_signal_stays_that_of_the_program(self):
        report = self.report("handles_the_signal")
        self.assertNotIn("in Python:", report)


if __name__ == "__main__":
    if sys.argv[1] == "rank":
        run_rank(sys.argv[2])
    else:
        LOCKSTEP = sys.argv[1]
        unittest.main(argv=sys.argv[:1] + sys.argv[2:])
