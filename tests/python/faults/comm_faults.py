"""What ranks do when something is wrong around them: real processes, killed, stopped or misled.

Usage: comm_faults.py FAULT_WORKER LOCKSTEP [unittest arguments]
"""

import itertools
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))
from cases import some
from free_ports import free_port
from launch_reports import failures
from processes import open_files
from rank_process import DEADLINE_S, RankProcess, place
from sanitizers import is_sanitized

WORKER = os.path.abspath(sys.argv[1])
LOCKSTEP = os.path.abspath(sys.argv[2])


class Rank(RankProcess):
    def __init__(self, test, arguments, **environment):
        super().__init__(test, [WORKER, *arguments], environment)

    def finish(self, text_in=None):
        """The exit code and what it wrote to stderr."""
        code, _, errors = super().finish(text_in)
        return code, errors


class CommFaults(unittest.TestCase):
    def rank(self, rank, world_size, mode, port, **environment):
        return Rank(self, [mode], **place(rank, world_size, port, **environment))

    def job(self, world_size, mode, **environment):
        port = free_port()
        return [self.rank(r, world_size, mode, port, **environment) for r in range(world_size)]

    def need_failpoints(self):
        if b"LOCKSTEP_FAILPOINT" not in pathlib.Path(WORKER).read_bytes():
            self.skipTest("no failpoints in this build (LOCKSTEP_FAILPOINTS)")

    def expect_failure(self, rank, *words, code=1):
        status, errors = rank.finish("\n")
        self.assertEqual(status, code, errors)
        for word in words:
            self.assertIn(word, errors)
        self.assertEqual(errors.count("\n"), 1, f"more than one line: {errors}")

    # Peers that die or hang.

    def test_a_killed_peer_is_reported_by_every_survivor(self):
        # Over Gloo a collective does not know which.
        for mode, backend, lost in (("collectives", "shm", [1]), ("train", "shm", [1]),
                                    ("collectives", "gloo", None), ("train", "gloo", None)):
            with self.subTest(mode=mode, backend=backend):
                ranks = self.job(3, mode, LOCKSTEP_BACKEND=backend)
                for rank in ranks:
                    rank.wait_for_line("running")
                ranks[1].process.kill()
                for r in (0, 2):
                    found = ranks[r].expect_error("PeerLost", group="default", own_rank=r, ranks=lost)
                    self.assertGreaterEqual(found["sequence"], 0)

    def test_a_peer_killed_in_the_middle_of_a_message_is_noticed_before_the_deadline(self):
        # Gloo alone would wait until its timeout.
        survivors = []
        for mode, backend, machines in (("large_broadcasts_from_0", "gloo", "00"),
                                        ("large_broadcasts_from_1", "gloo", "00"), ("large_messages", "gloo", "00"),
                                        ("large_sums", "hierarchical", "0011")):
            port = free_port()
            ranks = [self.rank(r, len(machines), mode, port, LOCKSTEP_BACKEND=backend, LOCKSTEP_TIMEOUT_S=80,
                               LOCKSTEP_MEMORY_DOMAIN=machine) for r, machine in enumerate(machines)]
            for rank in ranks:
                rank.wait_for_line("running")
            ranks[1].process.kill()
            survivors += [(mode, r, ranks[r]) for r in range(len(ranks)) if r != 1]
        for mode, r, rank in survivors:
            with self.subTest(mode=mode, rank=r):
                rank.expect_error("PeerLost", group="default", own_rank=r)

    def test_a_stopped_peer_is_a_timeout_at_the_deadline(self):
        for mode in ("collectives", "train"):
            with self.subTest(mode=mode):
                ranks = self.job(2, mode, LOCKSTEP_TIMEOUT_S=1)
                for rank in ranks:
                    rank.wait_for_line("running")
                ranks[1].process.send_signal(signal.SIGSTOP)
                ranks[0].expect_error("TimeoutError", group="default", own_rank=0, ranks=[1], timeout_ms=1000)

    # Programs that ask is_completed() until it is true, and only then wait.

    def harm_polling_jobs(self, harm, errors, **environment):
        """Does harm to rank 1 of a job of each backend and mode; the others must end by one of `errors`."""
        # With calls compared the first wait would come before there is a work to ask.
        environment = {"LOCKSTEP_CHECK_CALLS": 0} | environment
        cases = itertools.product((("gloo", "000"), ("shm", "000"), ("hierarchical", "0011")),
                                  ("polled_collectives", "polled_messages"))
        for (backend, machines), mode in some(cases, 3):
            with self.subTest(backend=backend, mode=mode):
                port = free_port()
                ranks = [self.rank(r, len(machines), mode, port, LOCKSTEP_BACKEND=backend,
                                   LOCKSTEP_MEMORY_DOMAIN=machine, **environment)
                         for r, machine in enumerate(machines)]
                for rank in ranks:
                    rank.wait_for_line("running")
                ranks[1].process.send_signal(harm)
                for r in [r for r in range(len(ranks)) if r != 1]:
                    status, said = ranks[r].finish()
                    error, fields = ranks[r].error()
                    self.assertEqual((status, fields["group"], fields["own_rank"]), (1, "default", r), said)
                    self.assertIn(error, errors, said)
                    self.assertIn(fields["operation"], ("all_reduce", "send", "recv"), said)

    def test_a_killed_peer_ends_a_loop_over_is_completed(self):
        # Over hierarchical, where the rank that serves the store ends first, the others learn less.
        self.harm_polling_jobs(signal.SIGKILL, ("PeerLost",))

    def test_a_stopped_peer_ends_a_loop_over_is_completed_at_the_deadline(self):
        # Who is not the first to give up may see that the first has left.
        self.harm_polling_jobs(signal.SIGSTOP, ("TimeoutError", "PeerLost"), LOCKSTEP_TIMEOUT_S=1)

    # Sums over logical shards, for which the ranks of two machines have groups of their own.

    def sum_shards(self, mode, machines, **environment):
        port = free_port()
        return [self.rank(r, len(machines), mode, port, LOCKSTEP_BACKEND="hierarchical",
                          LOCKSTEP_MEMORY_DOMAIN=machine, **environment) for r, machine in enumerate(machines)]

    def harm_sums_of_shards(self, machines, victim, harm, error, **environment):
        """The ranks that each other rank names; each fails before one has ended."""
        ranks = self.sum_shards("shards", machines, **environment)
        for rank in ranks:
            rank.wait_for_line("running")
        ranks[victim].process.send_signal(harm)
        others = [r for r in range(len(ranks)) if r != victim]
        for r in others:
            try:
                ranks[r].wait_for_line("failed")
            except AssertionError as failure:
                for rank in ranks:
                    rank.process.kill()
                texts = "\n".join(f"rank {i}: {rank.process.stderr.read()}" for i, rank in enumerate(ranks) if i != r)
                raise AssertionError(f"rank {r} {failure}\n{texts}") from failure
        return [ranks[r].expect_error(error, text_in="\n", group="default", own_rank=r).get("ranks") for r in others]

    def test_all_machines_name_the_rank_that_is_killed_in_a_sum_of_shards(self):
        for machines, victim in some((("0011", 3), ("001", 2), ("0011", 1), ("001", 1), ("0011", 2)), 2):
            with self.subTest(machines=machines, victim=victim):
                named = self.harm_sums_of_shards(machines, victim, signal.SIGKILL, "PeerLost")
                self.assertEqual(named, [[victim]] * (len(machines) - 1))

    def test_no_machine_names_another_rank_than_the_killed_one_that_served_the_store(self):
        for ranks in self.harm_sums_of_shards("0011", 0, signal.SIGKILL, "PeerLost"):
            self.assertIn(ranks, ([0], None))

    def test_all_machines_name_the_rank_that_is_stopped_in_a_sum_of_shards(self):
        named = self.harm_sums_of_shards("0011", 3, signal.SIGSTOP, "TimeoutError", LOCKSTEP_TIMEOUT_S=1)
        self.assertEqual(named, [[3]] * 3)

    def test_a_peer_killed_while_another_machine_is_late_is_noticed_at_once(self):
        # Rank 1 exchanges with rank 0 alone, which is late: only its own machine says that rank 3 is lost.
        ranks = self.sum_shards("late_broadcast", "0111", LOCKSTEP_CHECK_CALLS=0, LOCKSTEP_TIMEOUT_S=30)
        for rank in ranks:
            rank.wait_for_line("running")
        ranks[3].process.kill()
        for r in (1, 2):
            ranks[r].expect_error("PeerLost", own_rank=r, ranks=[3])

    def test_a_slow_exchange_between_machines_is_no_timeout_of_a_rank_without_a_share(self):
        self.need_failpoints()
        stops = range(6, 18, 2)
        ranks = self.sum_shards("large_shards", "001", LOCKSTEP_TIMEOUT_S=2,
                                LOCKSTEP_FAILPOINT=",".join(f"collective.started:{n}:stop:2" for n in stops))
        for rank in ranks:
            rank.wait_for_line("running")
        for _ in stops:
            ended = os.waitid(os.P_PID, ranks[2].pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            self.assertEqual(ended.si_code, os.CLD_STOPPED)
            # Rank 1 waits for all of them, longer than three timeouts; nobody for one of them as long as a timeout.
            time.sleep(1.25)
            ranks[2].process.send_signal(signal.SIGCONT)
        for rank in ranks:
            code, errors = rank.finish()
            self.assertEqual(code, 0, errors)

    def test_a_machine_that_cannot_share_memory_is_named_on_all(self):
        ranks = self.sum_shards("shards_without_memory", "0011")
        for rank in ranks:
            rank.wait_for_line("failed")
        for rank in ranks:
            self.expect_failure(rank, "rank 2 on ", "cannot share memory", "File too large")

    def test_a_rank_0_that_is_stopped_while_ranks_meet_is_a_timeout(self):
        self.need_failpoints()
        for point, backend in some(itertools.product(("meet.store", "meet.joined"), ("shm", "gloo")), 3):
            with self.subTest(point=point, backend=backend):
                ranks = self.job(2, "collectives", LOCKSTEP_FAILPOINT=f"{point}:1:stop:0",
                                 LOCKSTEP_BACKEND=backend, LOCKSTEP_INIT_TIMEOUT_S=2)
                code, errors = ranks[1].finish()
                error, fields = ranks[1].error()
                self.assertEqual((code, error, fields["own_rank"]), (1, "TimeoutError", 1), errors)
                # In a collective it asks the store who is late, which rank 0 serves.
                self.assertIn(fields.get("ranks"), ([0], None), errors)

    def test_waiting_is_not_silent(self):
        ranks = self.job(2, "collectives", LOCKSTEP_TIMEOUT_S=12)
        for rank in ranks:
            rank.wait_for_line("running")
        ranks[1].process.send_signal(signal.SIGSTOP)
        _, errors = ranks[0].finish()
        self.assertRegex(errors, r"warning: all_reduce number \d+ of group 'default' on rank 0: "
                                 r"still waiting after 10 s")
        error, fields = ranks[0].error()
        self.assertEqual((error, fields["operation"], fields["timeout_ms"]), ("TimeoutError", "all_reduce", 12000))

    def test_destroying_a_group_waits_for_no_stopped_peer(self):
        # Eight collectives of ten minutes each are under way: none is waited for. With calls compared
        # the first would wait for the peer before it is under way.
        ranks = self.job(2, "pending", LOCKSTEP_CHECK_CALLS=0)
        for rank in ranks:
            rank.wait_for_line("running")
        ranks[1].process.send_signal(signal.SIGSTOP)
        status, errors = ranks[0].finish("\n")
        self.assertEqual(status, 0, errors)

    def test_the_error_file_names_the_error(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "error.json")
            rank = self.rank(5, 2, "join", free_port(), TORCHELASTIC_ERROR_FILE=path)
            _, errors = rank.finish()
            with open(path, encoding="utf-8") as file:
                message = json.load(file)["message"]
            self.assertEqual(message["message"], "UsageError: " + errors.strip().partition("error: ")[2])
            self.assertTrue(message["extraInfo"]["timestamp"].isdigit())

    # Jobs that cannot form.

    @unittest.skipIf(is_sanitized(WORKER), "the sanitizer has handlers of its own, which stay")
    def test_a_crash_in_a_collective_is_reported_with_it(self):
        for backend in ("shm", "gloo"):
            with self.subTest(backend=backend):
                result = subprocess.run(
                    [LOCKSTEP, "run", "--standalone", "--nproc-per-node=2", "sh", "-c",
                     f"ulimit -c 0; exec {WORKER} crash"],
                    env=os.environ | {"LOCKSTEP_BACKEND": backend}, stderr=subprocess.PIPE,
                    text=True, timeout=DEADLINE_S)
                self.assertEqual(result.returncode, 128 + signal.SIGSEGV, result.stderr)
                failure, = failures(result.stderr)
                self.assertEqual((failure.rank, failure.is_first, failure.signal), (1, True, "SIGSEGV"), result.stderr)
                self.assertTrue(failure.said.startswith(" in "), result.stderr)
                self.assertRegex(result.stderr, r"stack: .*\n(.*\n)*.* main in fault_worker\n")
                self.assertIn("calls:  in all_reduce number 1 of group 'default'; before it "
                              "barrier number 0 of group 'default', init_process_group of group 'default'\n", result.stderr)

    def test_a_port_that_is_taken_is_named(self):
        with socket.socket() as owner:
            owner.bind(("127.0.0.1", 0))
            owner.listen()
            port = owner.getsockname()[1]
            self.expect_failure(self.rank(0, 2, "join", port), f"port {port}",
                                "Address already in use", "choose another port")

    def test_a_rank_outside_the_world_is_refused(self):
        self.expect_failure(self.rank(2, 2, "join", free_port()),
                            "rank 2 does not exist in a world of 2", code=2)

    def test_a_world_that_does_not_fill_up_names_who_is_missing(self):
        port = free_port()
        present = [self.rank(r, 4, "join", port, LOCKSTEP_INIT_TIMEOUT_S=2) for r in (2, 0)]
        self.expect_failure(present[0], "2 of 4 ranks joined", "missing: 1, 3")
        present[1].expect_error("TimeoutError", operation="init_process_group", own_rank=0, ranks=[1, 3],
                                timeout_ms=2000)

    def test_a_store_that_nobody_serves_is_named(self):
        port = free_port()
        self.expect_failure(self.rank(1, 2, "join", port, LOCKSTEP_INIT_TIMEOUT_S=0.5),
                            f"nobody listens at 127.0.0.1 port {port}", "rank 0 runs")

    def test_two_processes_with_one_rank_are_refused(self):
        port = free_port()
        first = [self.rank(r, 3, "join", port, LOCKSTEP_INIT_TIMEOUT_S=3) for r in (0, 1, 1)]
        outcomes = [rank.finish() for rank in first]
        refused = [errors for status, errors in outcomes if status == 2]
        self.assertEqual(len(refused), 1, outcomes)
        self.assertIn("rank 1 has already joined", refused[0])

    def test_ranks_that_disagree_on_the_world_size_are_refused(self):
        port = free_port()
        ranks = [self.rank(0, 2, "join", port, LOCKSTEP_INIT_TIMEOUT_S=3),
                 self.rank(1, 3, "join", port, LOCKSTEP_INIT_TIMEOUT_S=3)]
        self.expect_failure(ranks[0], "given a world size of 2, rank 1 one of 3", code=2)
        self.assertNotEqual(ranks[1].finish()[0], 0)

    def test_settings_that_cannot_work_are_refused_by_name(self):
        for variable, value in (("LOCKSTEP_TIMEOUT_S", "soon"), ("LOCKSTEP_BACKEND", "carrier"),
                                ("MASTER_PORT", "70000"), ("WORLD_SIZE", "two")):
            with self.subTest(variable=variable):
                environment = dict(RANK=0, WORLD_SIZE=2, MASTER_ADDR="127.0.0.1",
                                   MASTER_PORT=free_port(), LOCKSTEP_INIT_TIMEOUT_S=1)
                environment[variable] = value
                ranks = [Rank(self, ["join"], **environment)]
                if variable == "LOCKSTEP_BACKEND":  # Known only once all have joined.
                    ranks.append(Rank(self, ["join"], **(environment | {"RANK": 1})))
                for rank in ranks:
                    self.expect_failure(rank, value, code=2)

    # Ways to meet.

    def finish_all(self, ranks):
        for rank in ranks:
            status, errors = rank.finish()
            self.assertEqual((status, errors), (0, ""))

    def test_meeting_by_environment_twice_in_one_process(self):
        self.finish_all(self.job(2, "reinit"))

    def test_meeting_at_a_tcp_address(self):
        method = f"tcp://localhost:{free_port()}"
        self.finish_all([Rank(self, ["join", method, r, 3]) for r in range(3)])

    def test_meeting_at_a_file_and_refusing_one_that_is_left_over(self):
        with tempfile.TemporaryDirectory() as folder:
            method = f"file://{folder}/meet"
            self.finish_all([Rank(self, ["join", method, r, 2]) for r in range(2)])
            # A job that dies before it is complete leaves its file.
            method = f"file://{folder}/alone"
            alone = Rank(self, ["join", method, 0, 2], LOCKSTEP_INIT_TIMEOUT_S=0.2)
            alone.expect_error("TimeoutError", own_rank=0, ranks=[1])
            again = Rank(self, ["join", method, 0, 2], LOCKSTEP_INIT_TIMEOUT_S=2)
            self.expect_failure(again, "the store belongs to an earlier job", code=2)

    def test_meeting_at_a_given_store(self):
        with tempfile.TemporaryDirectory() as folder:
            self.finish_all([Rank(self, ["join", f"{folder}/store", r, 2, "store"])
                             for r in range(2)])

    def test_a_world_of_one_needs_no_launcher(self):
        self.finish_all([Rank(self, ["join"])])

    # Who can reach a standalone job.

    def test_a_standalone_job_listens_on_loopback_only(self):
        job = RankProcess(self, [LOCKSTEP, "run", "--standalone", "--nproc-per-node=2", WORKER, "collectives"],
                          {"GLOO_SOCKET_IFNAME": "not-an-interface"})
        for _ in range(2):
            job.wait_for_line("running")
        addresses = listening_addresses(descendants(job.pid))
        self.assertTrue(addresses)
        self.assertEqual(set(addresses), {"127.0.0.1"})
        job.process.terminate()
        job.finish()


def descendants(root):
    parents = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
                parents[int(pid)] = int(file.read().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            pass
    found = {root}
    while True:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        if not more:
            return found
        found |= more


def listening_addresses(pids):
    inodes = set()
    for pid in pids:
        inodes.update(target[len("socket:["):-1] for target in open_files(pid).values()
                      if target.startswith("socket:["))
    addresses = []
    for name in ("tcp", "tcp6"):
        with open(f"/proc/net/{name}", encoding="utf-8") as file:
            for line in file.readlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and fields[9] in inodes:  # 0A: LISTEN
                    address = bytes.fromhex(fields[1].partition(":")[0])
                    addresses.append(socket.inet_ntop(socket.AF_INET, address[::-1])
                                     if name == "tcp" else address.hex())
    return addresses


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
