"""A stage of a pipeline that dies or stops: what the others do.

Usage: pipeline_faults.py PIPELINE_WORKER [unittest arguments]
"""

import os
import signal
import sys
import time
import unittest

from free_ports import free_port
from rank_process import RankProcess, place
from sanitizers import is_sanitized

WORKER = os.path.abspath(sys.argv[1])
# From the kill to the end of every survivor's process.
MOST_S = 30 if is_sanitized(WORKER) else 2
WAYS = (("gpipe", 1), ("1f1b", 1), ("interleaved-1f1b", 2))


class PipelineFaults(unittest.TestCase):
    def job(self, world_size, way, backend, replicas=1, **environment):
        port = free_port()
        ranks = [RankProcess(self, [WORKER, *way, replicas],
                             place(r, world_size, port, LOCKSTEP_BACKEND=backend, OMP_NUM_THREADS=1,
                                   **environment))
                 for r in range(world_size)]
        for rank in ranks:
            rank.wait_for_line("running")
        return ranks

    def expect_survivors_name(self, ranks, victim, says=None):
        """`says`: of each survivor a pattern; without it all are one pipeline, whose errors' fields name the
        victim."""
        start = time.monotonic()
        ranks[victim].process.kill()
        outcomes = [(r, *rank.finish()) for r, rank in enumerate(ranks) if r != victim]
        taken = time.monotonic() - start
        for r, status, error, errors in outcomes:
            self.assertEqual((status, error), (1, "PeerLost\n"), errors)
            if says:
                self.assertRegex(errors, says[r])
            else:
                _, fields = ranks[r].error()
                self.assertEqual((fields["own_rank"], fields["ranks"]), (r, [victim]), errors)
            self.assertEqual(errors.count("\n"), 1, f"more than one line: {errors}")
        self.assertLess(taken, MOST_S)

    def test_a_killed_stage_is_named_by_every_survivor(self):
        for backend in ("shm", "gloo"):
            for way in WAYS:
                for world_size, victim in ((2, 0), (2, 1), (3, 1), (4, 0), (4, 3)):
                    with self.subTest(backend=backend, way=way, ranks=world_size, victim=victim):
                        self.expect_survivors_name(self.job(world_size, way, backend), victim)

    def test_a_killed_stage_of_a_replica_is_named_by_the_other_replicas(self):
        # Ranks 0 and 1 are one pipeline, 2 and 3 the other; rank 3 is killed: rank 1 of both of its groups. Rank 0
        # hears of it from rank 1, or loses rank 2, which has heard of it: rank 1 of their group.
        # Over Gloo a collective cannot say who is gone.
        lost = r"of group '[^']*' on rank 0: .*(\brank 1\b|a peer is gone)"
        says = {0: lost, 1: lost, 2: r"pipeline: rank 0 .*\brank 1\b"}
        for backend in ("shm", "gloo"):
            for way in WAYS:
                with self.subTest(backend=backend, way=way):
                    self.expect_survivors_name(self.job(4, way, backend, replicas=2), 3, says)

    def test_a_stopped_stage_is_a_timeout_at_the_deadline(self):
        for backend in ("shm", "gloo"):
            with self.subTest(backend=backend):
                ranks = self.job(2, WAYS[1], backend, LOCKSTEP_TIMEOUT_S=2)
                ranks[1].process.send_signal(signal.SIGSTOP)
                status, error, errors = ranks[0].finish()
                self.assertEqual((status, error), (1, "TimeoutError\n"), errors)
                self.assertRegex(errors, r"pipeline: rank 0 .* rank 1: .*2000 ms")
                _, fields = ranks[0].error()
                self.assertEqual((fields["own_rank"], fields["ranks"], fields["timeout_ms"]), (0, [1], 2000))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
