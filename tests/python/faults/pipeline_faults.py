"""A stage of a pipeline that dies or stops: what the others do.

Usage: pipeline_faults.py PIPELINE_WORKER [unittest arguments]
"""

import itertools
import os
import pathlib
import signal
import sys
import time
import unittest

sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))
from cases import some
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

    def kill(self, ranks, victim):
        """The fields of the survivors' errors, by rank."""
        start = time.monotonic()
        ranks[victim].process.kill()
        found = {r: rank.expect_error("PeerLost") for r, rank in enumerate(ranks) if r != victim}
        self.assertLess(time.monotonic() - start, MOST_S)
        return found

    def test_a_killed_stage_is_named_by_every_survivor(self):
        places = ((2, 0), (2, 1), (3, 1), (4, 0), (4, 3))
        for backend, way, (world_size, victim) in some(itertools.product(("shm", "gloo"), WAYS, places), 4):
            with self.subTest(backend=backend, way=way, ranks=world_size, victim=victim):
                found = self.kill(self.job(world_size, way, backend), victim)
                for r, fields in found.items():
                    self.assertEqual((fields["own_rank"], fields["ranks"]), (r, [victim]), found)

    def test_a_killed_stage_of_a_replica_is_named_by_the_other_replicas(self):
        # Ranks 0 and 1 are one pipeline, 2 and 3 the other; rank 3 is killed: rank 1 of both of its groups, 1 and 3.
        # Rank 0 learns it from rank 1, in whose words the lost rank has no number, or loses rank 2, which has ended
        # by it: rank 1 of their group, 2. Over Gloo a collective cannot say who is gone.
        for backend, way in some(itertools.product(("shm", "gloo"), WAYS), 4):
            with self.subTest(backend=backend, way=way):
                found = self.kill(self.job(4, way, backend, replicas=2), 3)
                self.assertEqual((found[1]["group"], found[2]["group"]), ("default/3", "default/1"), found)
                self.assertIn(found[0]["group"], ("default/0", "default/2"), found)
                for r, fields in found.items():
                    self.assertEqual(fields["own_rank"], 0, found)
                    may_not_know = backend == "gloo" and r != 2 or fields["group"] == "default/0"
                    self.assertIn(fields.get("ranks"), ([1], None) if may_not_know else ([1],), found)

    def test_a_stopped_stage_is_a_timeout_at_the_deadline(self):
        for backend in ("shm", "gloo"):
            with self.subTest(backend=backend):
                ranks = self.job(2, WAYS[1], backend, LOCKSTEP_TIMEOUT_S=2)
                ranks[1].process.send_signal(signal.SIGSTOP)
                _, _, errors = ranks[0].finish()
                self.assertRegex(errors, r"pipeline: rank 0 .* rank 1: .*2000 ms")
                error, fields = ranks[0].error()
                self.assertEqual((error, fields["own_rank"], fields["ranks"], fields["timeout_ms"]),
                                 ("TimeoutError", 0, [1], 2000))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
