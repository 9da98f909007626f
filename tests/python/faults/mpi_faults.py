"""What a job of mpirun does when a rank dies or stops: real processes under the system's MPI.

Usage: mpi_faults.py FAULT_WORKER MPIEXEC [unittest arguments]
"""

import os
import pathlib
import signal
import subprocess
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))
from killed_rank import is_below

WORKER = os.path.abspath(sys.argv[1])
MPIEXEC = sys.argv[2]
RANKS = 3
# A bound on what hangs, far above what anything here takes.
DEADLINE_S = 60


def workers_of(launcher):
    """The workers of this launcher, however many helpers are between."""
    found = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            if os.readlink(f"/proc/{pid}/exe") == WORKER and is_below(pid, launcher):
                found.append(pid)
        except OSError:
            pass  # Gone in between, or not ours to look at.
    return sorted(found)


class MpiFaults(unittest.TestCase):
    def start(self, mode="collectives"):
        job = subprocess.Popen(
            [MPIEXEC, "-n", str(RANKS), WORKER, mode], stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=os.environ | {"LOCKSTEP_BACKEND": "mpi", "LOCKSTEP_TIMEOUT_S": "2"})
        self.addCleanup(self.end, job)
        self.read_until(job, lambda output: output.count("running") == RANKS)
        return job

    def read_until(self, job, is_complete):
        """What the ranks wrote: launchers mix up lines of different ranks."""
        output = ""
        while not is_complete(output):
            piece = os.read(job.stdout.fileno(), 4096).decode()
            self.assertTrue(piece, f"ended after: {output}")
            output += piece
        return output

    @staticmethod
    def end(job):
        for pid in workers_of(job.pid):
            os.kill(pid, signal.SIGKILL)
        job.kill()
        job.communicate()

    def test_a_killed_rank_ends_the_job(self):
        job = self.start()
        os.kill(workers_of(job.pid)[1], signal.SIGKILL)
        job.communicate(timeout=DEADLINE_S)
        self.assertNotEqual(job.returncode, 0)

    def test_a_stopped_rank_is_a_timeout_at_the_deadline(self):
        # The modes that ask is_completed() are ended by that alone.
        for mode in ("collectives", "polled_collectives", "polled_messages"):
            with self.subTest(mode=mode):
                job = self.start(mode)
                workers = workers_of(job.pid)
                self.assertEqual(len(workers), RANKS)
                os.kill(workers[1], signal.SIGSTOP)
                output = self.read_until(job, lambda text: "within 2000 ms" in text)
                self.assertRegex(output, r"(all_reduce|send|recv) number \d+ of group 'default' on "
                                         r"rank [02]: not complete within 2000 ms")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
