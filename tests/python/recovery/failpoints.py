"""Jobs of which a process is killed or stopped, or has a call fail, at each failpoint in turn: they end with the
bits of the undisturbed run.

    failpoints.py LOCKSTEP RESILIENT_WORKER [unittest arguments]

Over shm, or what LOCKSTEP_BACKEND says.
"""

import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

LOCKSTEP, WORKER = map(os.path.abspath, sys.argv[1:3])
DEADLINE_S = 100
STEPS, SIZE, MEMORY_EVERY, SNAPSHOT_EVERY = 40, 16, 7, 10
# Beyond the start, the first snapshots and copies.
IN_THE_MIDDLE = 25
# What rank 1 dies of, for the others to recover from.
FIRST_FAULT = f"step.begin:{IN_THE_MIDDLE}:kill:1"

# What a process passes more than once before the middle of the training.
MANY_TIMES = {"step.begin", "step.made", "step.counted", "step.kept", "collective.begin", "collective.checked",
              "collective.started", "collective.done", "file.write"}
# Of rank 0 alone: it writes.
WRITES = ("file.", "save.gathered", "save.written", "save.delete", "memory.")
SENDS = {"recover.send", "recover.described"}
RECEIVES = {"recover.receive", "recover.received", "recover.taken"}
ONLY_AGAIN = {"recover.begin", "recover.left", "recover.said", "recover.placed"}
# When ranks meet, once in each generation.
MEETS = {"meet.begin", "meet.store", "meet.joined", "meet.connected", "recover.grouped", "recover.compared",
         "recover.agreed", "group.begin"}
# The same, in the default group and once more in new_group().
CONNECTS = {"connect.begin", "connect.reached"}
AT_THE_END = {"training.end", "training.done"}
OF_THE_LAUNCHER = "launch."
# The worker of these tests makes no calls and is no Trainer.
OF_CALLS = "rpc."
OF_A_TRAINER = "metrics."
OF_SHARDS = "shards."
OF_ONE_COPY = "update."  # ranks.one_copy_kill kills ranks there.
# Where there are workers that keep their state.
LAUNCHES_AGAIN = {"launch.over", "launch.place", "launch.placed"}


def run(arguments, environment=None):
    return subprocess.run(list(map(str, arguments)), capture_output=True, text=True, timeout=DEADLINE_S,
                          env=os.environ | (environment or {}), check=False)


def failpoints():
    """The names of all that are compiled in."""
    said = run([LOCKSTEP, "env"], {"LOCKSTEP_FAILPOINT": "list"})
    if said.returncode == 0:
        return []
    return re.search("; failpoints: (.*)", said.stderr)[1].split(", ")


NAMES = failpoints()


def job(failpoints="", ranks=3, flags=(), folder=None, **environment):
    with tempfile.TemporaryDirectory(prefix="lockstep_test_") as own:
        environment |= {"OMP_NUM_THREADS": "1", "LOCKSTEP_BACKEND": os.environ.get("LOCKSTEP_BACKEND", "shm")}
        if failpoints:
            environment["LOCKSTEP_FAILPOINT"] = failpoints
        return run([LOCKSTEP, "run", "--standalone", "--max-restarts=100", f"--nproc-per-node={ranks}", *flags,
                    WORKER, STEPS, SIZE, MEMORY_EVERY, SNAPSHOT_EVERY, folder or own, 10], environment)


def ends(done):
    return set(re.findall("ends with .*", done.stdout))


class Undisturbed:
    """What jobs end with, by the number of their ranks."""
    known = {}

    @classmethod
    def ends(cls, ranks):
        if ranks not in cls.known:
            done = job(ranks=ranks)
            assert done.returncode == 0 and len(ends(done)) == 1, done.stderr
            cls.known[ranks] = ends(done)
        return cls.known[ranks]


def passes(name, first):
    """How a failpoint is passed in the middle, where that is more than once, or for the first time."""
    return f"{name}:{IN_THE_MIDDLE if name in MANY_TIMES else first}"


def times(names, *counts):
    """Each of them, passed so many times."""
    return [f"{name}:{count}" for name in sorted(names) for count in counts]


@unittest.skipUnless(NAMES, "no failpoints in this build (LOCKSTEP_FAILPOINTS)")
class Failpoints(unittest.TestCase):
    def expect_same_end(self, cases, ranks=3, at_once=2, code=0, **options):
        """Each case a value of LOCKSTEP_FAILPOINT, all of whose failpoints take effect."""
        expected = Undisturbed.ends(ranks)
        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            running = {case: pool.submit(job, case, ranks=ranks, **options) for case in cases}
        for case, done in running.items():
            with self.subTest(case=case):
                done = done.result()
                for name in re.findall(r"[a-z_]+\.[a-z_]+", case):
                    self.assertIn(f"failpoint {name}, passed", done.stderr)
                self.assertEqual(done.returncode, code, done.stderr)
                self.assertEqual(ends(done), expected, done.stderr)

    def of_workers(self):
        others = (OF_THE_LAUNCHER, OF_CALLS, OF_A_TRAINER, OF_SHARDS, OF_ONE_COPY)
        return [name for name in NAMES if not name.startswith(others)]

    def test_rank_0_is_killed(self):
        names = [name for name in self.of_workers() if name not in RECEIVES | ONLY_AGAIN]
        self.expect_same_end([f"{passes(name, 1)}:kill:0" for name in names], ranks=2)

    def test_rank_1_is_killed(self):
        names = [name for name in self.of_workers()
                 if name not in SENDS | ONLY_AGAIN and not name.startswith(WRITES)]
        self.expect_same_end([f"{passes(name, 1)}:kill:1" for name in names], ranks=2)

    def test_another_is_killed_while_it_recovers(self):
        for rank in (0, 2):
            passed = [*times(ONLY_AGAIN, 1), *times(MEETS, 2), *times(CONNECTS, 3, 4), *(times(SENDS, 2) if rank == 0 else ())]
            self.expect_same_end([f"{FIRST_FAULT},{place}:kill:{rank}" for place in passed])

    def test_the_newcomer_is_killed(self):
        passed = [*times((MEETS | RECEIVES) & set(NAMES), 1), *times(CONNECTS, 1, 2)]
        self.expect_same_end([f"{FIRST_FAULT},{place}:kill:1:1" for place in passed])

    def test_the_only_other_is_killed_while_it_recovers(self):
        passed = [*times(ONLY_AGAIN, 1), *times(MEETS | SENDS, 2), *times(CONNECTS, 3, 4)]
        self.expect_same_end([f"{FIRST_FAULT},{place}:kill:0" for place in passed], ranks=2)

    def test_a_rank_is_stopped(self):
        cases = [f"{name}:{IN_THE_MIDDLE}:stop:1" for name in ("step.begin", "step.made", "collective.started")]
        cases += ["file.write:25:stop:0", "save.deleted:1:stop:0", "memory.part:9:stop:0"]
        cases += [f"{name}:1:stop:{rank}" for name, rank in (("meet.store", 0), ("meet.store", 1), ("recover.send", 0))]
        cases += [f"{FIRST_FAULT},{name}:1:stop:2" for name in sorted(ONLY_AGAIN)]
        cases += [f"{FIRST_FAULT},{name}:2:stop:0" for name in ("meet.joined", "recover.grouped", "recover.send")]
        cases += [f"{FIRST_FAULT},{name}:1:stop:1:1" for name in ("meet.store", "recover.receive")]
        self.expect_same_end(cases, at_once=6, LOCKSTEP_TIMEOUT_S="2", LOCKSTEP_INIT_TIMEOUT_S="5")

    def test_the_disk_fails(self):
        calls = ("file.create", "file.sync", "file.rename", "file.sync_directory", "save.delete")
        self.expect_same_end([f"{name}:1:eio" for name in calls] + ["file.write:25:eio", "file.write:25:short"])

    def test_the_launcher_is_killed_and_started_again(self):
        for name in NAMES:
            if not name.startswith(OF_THE_LAUNCHER):
                continue
            again = name in LAUNCHES_AGAIN
            with self.subTest(name=name), tempfile.TemporaryDirectory(prefix="lockstep_test_") as folder:
                # It has ended when nothing that it started has its output open.
                killed = job(f"{FIRST_FAULT},{name}:1:kill" if again else f"{name}:1:kill", folder=folder)
                self.assertEqual(killed.returncode, -9, killed.stderr)
                self.assertIn(f"failpoint {name}, passed", killed.stderr)
                self.assertEqual(ends(killed), set())
                done = job(folder=folder)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(ends(done), Undisturbed.ends(3))

    def test_one_that_is_none_is_said_in_one_line(self):
        done = job("step.middle:1:kill")
        self.assertEqual(done.returncode, 2)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertIn("'step.middle:1:kill' names no failpoint", done.stderr)


@unittest.skipIf(NAMES, "a build with failpoints")
class LeftOut(unittest.TestCase):
    def test_nothing_of_them_is_in_the_programs(self):
        for program in (LOCKSTEP, WORKER):
            code = pathlib.Path(program).read_bytes()
            for text in (b"LOCKSTEP_FAILPOINT", b"recover.described", b"file.sync_directory", b"failpoint"):
                self.assertNotIn(text, code)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]] + sys.argv[3:])
