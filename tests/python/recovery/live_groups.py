"""Ranks that are killed or stopped while process groups are made again after the loss of a rank.

    live_groups.py LOCKSTEP RESILIENT_WORKER [unittest arguments]
"""

import itertools
import os
import pathlib
import re
import signal
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))
from cases import some
from free_ports import free_port
from launch_reports import recoveries
from live_job import LiveJobTest

LOCKSTEP, WORKER = map(os.path.abspath, sys.argv[1:3])
LiveJobTest.LOCKSTEP, LiveJobTest.WORKER = LOCKSTEP, WORKER


class LiveGroups(LiveJobTest):
    # Where the one that takes a lost rank's place is killed, while another connects to it: in the default
    # group and, where the name is passed the second time, in new_group().
    WHILE_GROUPS_ARE_MADE = ("meet.joined:1", "connect.begin:1", "connect.reached:1", "group.begin:1", "connect.begin:2",
                             "connect.reached:2")

    def test_the_newcomer_dies_while_groups_are_made(self):
        self.need_failpoints()
        cases = itertools.product(("shm", "gloo"), (0, 1), self.WHILE_GROUPS_ARE_MADE)
        for backend, rank, place in some(cases, 5):
            with self.subTest(backend=backend, place=place, rank=rank):
                faults = f"step.begin:25:kill:{rank},{place}:kill:{rank}:1"
                job = self.start(backend=backend, ranks=2, steps=60, environment={"LOCKSTEP_FAILPOINT": faults})
                self.expect_same_end(job, backend=backend, ranks=2, steps=60)
                self.expect_failpoints(job, faults)
                self.assertEqual(recoveries(job.errors), 2, job.errors)
                survivor = {pid for pid, text in job.said if text.startswith(f"rank {1 - rank} of")}
                self.assertEqual(len(survivor), 1, job.said)

    def test_the_newcomer_dies_while_groups_of_two_machines_are_made(self):
        """Over shared memory within each, and Gloo between them."""
        self.need_failpoints()
        ends = None
        for place in (None, *some(self.WHILE_GROUPS_ARE_MADE, 4)):
            with self.subTest(place=place):
                faults = place and f"step.begin:25:kill:3,{place}:kill:3:1"
                job = self.job_of_machines({"LOCKSTEP_BACKEND": "hierarchical"} |
                                           ({"LOCKSTEP_FAILPOINT": faults} if place else {}))
                port = free_port()
                for domain in ("a", "b"):
                    self.machine(job, port, "2", ranks=2, steps=60, environment={"LOCKSTEP_MEMORY_DOMAIN": domain})
                self.assertEqual(job.finish(), [0, 0], job.errors)
                if place:
                    self.expect_failpoints(job, faults)
                    self.assertEqual(len({pid for pid, text in job.said if re.match("rank [012] of", text)}), 3)
                self.expect_no_step_lost(job)
                ends = ends or job.ends()
                self.assertEqual(job.ends(), ends)

    def test_one_is_stopped_while_groups_are_made_and_another_dies(self):
        """The rank that waits for the stopped one goes on with the others."""
        self.need_failpoints()
        for backend, place in some(itertools.product(("shm", "gloo"), ("connect.begin:2", "connect.reached:2")), 3):
            with self.subTest(backend=backend, place=place):
                faults = f"step.begin:25:kill:1,{place}:stop:1:1"
                job = self.start(backend=backend, steps=60, environment={
                    "LOCKSTEP_FAILPOINT": faults, "LOCKSTEP_TIMEOUT_S": "5", "LOCKSTEP_INIT_TIMEOUT_S": "100"})
                processes = job.wait_for_begin(3)
                job.wait_for_error("stopped")
                os.kill(processes[2], signal.SIGKILL)
                self.expect_same_end(job, steps=60, backend=backend)
                survivor = {pid for pid, text in job.said if text.startswith("rank 0 of")}
                self.assertEqual(survivor, {processes[0]})


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]] + sys.argv[3:])
