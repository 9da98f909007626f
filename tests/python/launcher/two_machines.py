"""Jobs on two machines: 2 × 2 ranks in two network namespaces.

Usage: two_machines.py MACHINES_WORKER LOCKSTEP [unittest arguments]
"""

import os
import pathlib
import subprocess
import sys
import time
import unittest

sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))
from missing import enter_for_class
from network_namespaces import ADDRESSES, TwoMachines
from rank_process import RankProcess

WORKER = os.path.abspath(sys.argv[1])
LOCKSTEP = os.path.abspath(sys.argv[2])
# A bound on what hangs, far above what anything here takes.
DEADLINE_S = 60


class TwoMachinesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.machines = enter_for_class(cls, TwoMachines())

    def start(self, command, **environment):
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("LOCKSTEP_")}
        process = subprocess.Popen(command, text=True, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, env=inherited | environment)
        self.addCleanup(self.end, process)
        return process

    @staticmethod
    def end(process):
        if process.poll() is None:
            process.terminate()  # A launcher ends its workers.
        process.communicate(timeout=DEADLINE_S)

    # Started by themselves: a launcher would end the others before they can say what they saw.
    def start_ranks(self, action):
        return [RankProcess(self, [*self.machines.on(rank // 2), WORKER, action],
                            dict(RANK=rank, WORLD_SIZE=4, LOCAL_RANK=rank % 2, LOCAL_WORLD_SIZE=2,
                                 MASTER_ADDR=ADDRESSES[0], MASTER_PORT=29518))
                for rank in range(4)]

    def expect_backend(self, backend, **environment):
        jobs = [self.start(command, **environment)
                for command in self.machines.launchers(LOCKSTEP, 2, [WORKER, "check"])]
        for job in jobs:
            output, errors = job.communicate(timeout=DEADLINE_S)
            self.assertEqual(job.returncode, 0, errors)
            self.assertEqual(output.count(f"ok {backend}\n"), 2, output + errors)

    def test_hierarchical_is_chosen_and_sums_are_right(self):
        self.expect_backend("hierarchical")

    def test_a_backend_named_by_the_user_is_taken(self):
        self.expect_backend("gloo", LOCKSTEP_BACKEND="gloo")

    def test_a_killed_rank_is_named_on_both_machines(self):
        for victim in (1, 3):
            with self.subTest(victim=victim):
                ranks = self.start_ranks("loop")
                for number, rank in enumerate(ranks):
                    self.assertEqual(rank.read_line().split()[:2], ["running", str(number)])
                ranks[victim].process.kill()
                ranks[victim].process.wait()
                start = time.monotonic()
                for number, rank in enumerate(ranks):
                    if number != victim:
                        rank.expect_error("PeerLost", operation="all_reduce", own_rank=number, ranks=[victim])
                self.assertLess(time.monotonic() - start, 5)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
