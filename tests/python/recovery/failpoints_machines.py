"""A machine whose launcher is killed at each of its failpoints, while it joins a job and while it recovers: the
others' ranks keep their processes and go on.

    failpoints_machines.py LOCKSTEP RESILIENT_WORKER [unittest arguments]
"""

import concurrent.futures
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))
from free_ports import free_port

LOCKSTEP, WORKER = map(os.path.abspath, sys.argv[1:3])
DEADLINE_S = 100
# Of one of its two workers, whichever numbers they have.
WORKER_DIES = "step.begin:25:kill:1:*,step.begin:25:kill:3:*"
JOINING = ("launch.join", "launch.joined", "launch.begin", "launch.start", "launch.started")
RECOVERING = ("launch.over", "launch.place", "launch.placed")
FURTHER_STEPS = 1000


class Machine:
    """A launcher of the job, whose workers' lines are read as they come."""

    def __init__(self, port, folder, failpoints=""):
        environment = os.environ | {"LOCKSTEP_BACKEND": "gloo", "OMP_NUM_THREADS": "1",
                                    "LOCKSTEP_JOB_SECRET": "s" * 32, "LOCKSTEP_FAILPOINT": failpoints}
        command = [LOCKSTEP, "run", "--nnodes=1:2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}",
                   "--rdzv-id=job", "--rdzv-conf=last_call_timeout=1,keep_alive_interval=1", "--max-restarts=5",
                   "--nproc-per-node=2", WORKER, str(10**9), "16", "0", "0", folder, "10"]
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=self.errors, text=True, env=environment)
        self.said = threading.Condition()
        self.step, self.pids, self.saved = -1, set(), set()
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            pid, text = line.split(" ", 1)
            with self.said:
                self.pids.add(int(pid))
                if found := re.match(r"step (\d+)", text):
                    self.step = max(self.step, int(found[1]))
                if text.startswith("saved after"):
                    self.saved.add(text)
                self.said.notify_all()

    def makes_steps_until(self, step):
        with self.said:
            return self.said.wait_for(lambda: self.step >= step, DEADLINE_S)

    def text(self):
        self.errors.seek(0)
        return self.errors.read()

    def close(self):
        self.process.kill()
        self.process.wait()
        self.reader.join()
        self.process.stdout.close()
        self.errors.close()


def has_failpoints():
    said = subprocess.run([LOCKSTEP, "env"], env=os.environ | {"LOCKSTEP_FAILPOINT": "list"}, check=False,
                          capture_output=True)
    return said.returncode != 0


@unittest.skipUnless(has_failpoints(), "no failpoints in this build (LOCKSTEP_FAILPOINTS)")
class Machines(unittest.TestCase):
    def lose_one(self, name):
        """What is wrong afterwards; None where nothing is."""
        failpoints = f"{name}:1:kill" if name in JOINING else f"{WORKER_DIES},{name}:1:kill"
        with tempfile.TemporaryDirectory(prefix="lockstep_test_") as folder:
            port = free_port()
            stays = Machine(port, folder)
            try:
                if not stays.makes_steps_until(10):
                    return f"did not begin: {stays.text()}"
                lost = Machine(port, folder, failpoints)
                try:
                    lost.reader.join(DEADLINE_S)  # When all that it started has ended, too.
                    code = lost.process.wait(DEADLINE_S)
                    if code != -signal.SIGKILL or f"failpoint {name}, passed" not in lost.text():
                        return f"the other ended with {code}: {lost.text()}"
                finally:
                    lost.close()
                if not stays.makes_steps_until(stays.step + FURTHER_STEPS):
                    return f"did not go on: {stays.text()}"
                stays.process.terminate()
                code = stays.process.wait(DEADLINE_S)
                stays.reader.join()
                if code != 75 or len(stays.pids) != 2 or len(stays.saved) != 1:
                    return f"{code}, processes {stays.pids}, saved {stays.saved}: {stays.text()}"
            finally:
                stays.close()
        return None

    def test_its_launcher_is_killed(self):
        names = JOINING + RECOVERING
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for name, trouble in zip(names, pool.map(self.lose_one, names)):
                with self.subTest(name=name):
                    self.assertIsNone(trouble)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]] + sys.argv[3:])
