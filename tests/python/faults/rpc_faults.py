"""What workers do when another is gone, and what they make of messages that are none.

Usage: rpc_faults.py RPC_WORKER [unittest arguments]
"""

import os
import pathlib
import random
import signal
import re
import socket
import sys
import time
import unittest

sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))
from free_ports import free_port
from processes import open_files
from rank_process import DEADLINE_S, RankProcess, place

WORKER = os.path.abspath(sys.argv[1])
# What is promised to survivors.
NOTICED_WITHIN_S = 2
CALL_TO_WORKER_1 = "rpc call of 'wait for ever' on worker 'worker1' (rank 1)"


class Worker(RankProcess):
    def wait_until_stopped(self):
        ended = os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        if ended.si_code != os.CLD_STOPPED:
            raise AssertionError(self.process.stderr.read())

    def go_on(self):
        self.process.send_signal(signal.SIGCONT)

    def listening_at(self):
        """Host and port of each, from the process's sockets and the kernel's table."""
        inodes = {target[len("socket:["):-1] for target in open_files(self.process.pid).values()
                  if target.startswith("socket:[")}
        places = set()
        for line in pathlib.Path("/proc/net/tcp").read_text("ascii").splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                host, port = fields[1].split(":")
                places.add((socket.inet_ntoa(bytes.fromhex(host)[::-1]), int(port, 16)))
        return places


class RpcFaults(unittest.TestCase):
    def start(self, mode, world_size=3, machines="000", **environment):
        """`machines`: a digit a rank, equal where they are on one machine."""
        port = free_port()
        return [Worker(self, [WORKER, mode],
                       place(rank, world_size, port, LOCKSTEP_MEMORY_DOMAIN=machines[rank], **environment))
                for rank in range(world_size)]

    def workers(self, *arguments, **options):
        workers = self.start(*arguments, **options)
        for worker in workers:
            worker.wait_for_line("running")
        return workers

    def start_and_let_strangers_in(self, times, machines):
        """Workers, to a port of one of which something else connects while they connect to each other."""
        if b"LOCKSTEP_FAILPOINT" not in pathlib.Path(WORKER).read_bytes():
            self.skipTest("no failpoints in this build (LOCKSTEP_FAILPOINTS)")
        stops = ",".join(f"rpc.listening:{time}:stop:1" for time in range(1, times + 1))
        workers = self.start("serve", machines=machines, LOCKSTEP_FAILPOINT=stops)
        for _ in range(times):
            workers[1].wait_until_stopped()
            for address in workers[1].listening_at():
                socket.create_connection(address, timeout=DEADLINE_S).close()
            workers[1].go_on()
        return workers

    def expect_calls(self, workers):
        for worker in workers:
            worker.say()
        workers[0].wait_for_line("worker1")
        for worker in workers:
            status, _, errors = worker.finish()
            self.assertEqual(status, 0, errors)

    def expect_lost(self, worker, **fields):
        """`fields`: of the error, by which others know who is lost, and in which operation."""
        begin = time.monotonic()
        worker.expect_error("PeerLost", **fields)
        self.assertLess(time.monotonic() - begin, NOTICED_WITHIN_S)

    def test_a_call_to_a_killed_worker(self):
        for machines in ("000", "012", "001"):
            with self.subTest(machines=machines):
                workers = self.workers("call", machines=machines)
                workers[1].process.kill()
                for survivor in (workers[0], workers[2]):
                    self.expect_lost(survivor, operation=CALL_TO_WORKER_1, ranks=[1])

    def test_a_loop_over_done_ends_with_the_worker_or_at_the_deadline(self):
        for machines in ("000", "012"):
            for stop, error in ((signal.SIGKILL, "PeerLost"), (signal.SIGSTOP, "TimeoutError")):
                with self.subTest(machines=machines, stop=stop.name):
                    workers = self.workers("poll", machines=machines)
                    workers[1].process.send_signal(stop)
                    for survivor in (workers[0], workers[2]):
                        survivor.expect_error(error, operation=CALL_TO_WORKER_1, ranks=[1], timeout_ms=3000)

    def test_gradients_through_a_killed_worker(self):
        for killed, machines in ((1, "000"), (2, "000"), (2, "012")):
            with self.subTest(killed=killed, machines=machines):
                workers = self.workers("backward", machines=machines)
                workers[killed].process.kill()
                workers[killed].process.wait()
                workers[0].say()
                self.expect_lost(workers[0], ranks=[killed],
                                 operation="rpc::AutogradContext::backward on worker 'worker0' (rank 0)")

    def test_a_worker_that_dies_before_all_have_met(self):
        for backend in ("shm", "gloo"):
            with self.subTest(backend=backend):
                workers = self.workers("meet", LOCKSTEP_BACKEND=backend)
                workers[1].process.kill()
                for survivor in (workers[0], workers[2]):
                    self.expect_lost(survivor, ranks=[1] if backend == "shm" else None)

    def test_rank_0_dies_while_workers_connect(self):
        if b"LOCKSTEP_FAILPOINT" not in pathlib.Path(WORKER).read_bytes():
            self.skipTest("no failpoints in this build (LOCKSTEP_FAILPOINTS)")
        workers = self.start("serve", LOCKSTEP_FAILPOINT="rpc.listening:1:stop:1")
        workers[1].wait_until_stopped()
        workers[0].process.kill()
        workers[0].process.wait()
        workers[1].go_on()
        for survivor in workers[1:]:
            status, _, errors = survivor.finish()  # The failpoint has a line of its own.
            error, fields = survivor.error()
            self.assertEqual((status, error, fields.get("ranks")), (1, "PeerLost", [0]), errors)

    def test_shutdown_while_one_is_killed(self):
        workers = self.workers("shutdown")
        workers[1].process.kill()
        for survivor in (workers[0], workers[2]):
            self.expect_lost(survivor, ranks=[1])

    def test_what_was_never_sent_holds_no_shutdown_up(self):
        workers = self.workers("late", world_size=2)
        workers[1].process.send_signal(signal.SIGSTOP)
        workers[0].say()
        for _ in range(2):
            workers[0].wait_for_line("late")
        workers[1].go_on()
        workers[0].say()
        for worker in workers:
            code, _, errors = worker.finish()
            self.assertEqual(code, 0, errors)

    def test_strangers_while_workers_connect_change_nothing(self):
        for machines in ("000", "012"):
            with self.subTest(machines=machines):
                workers = self.start_and_let_strangers_in(2, machines)
                for worker in workers:
                    worker.wait_for_line("running")
                self.expect_calls(workers)

    def test_strangers_at_each_try_to_connect_are_named(self):
        workers = self.start_and_let_strangers_in(3, "000")
        for worker in workers:
            status, _, errors = worker.finish()
            error, fields = worker.error()
            self.assertEqual((status, error, fields.get("ranks")), (1, "CommError", [1]), errors)
            self.assertIn("check for programs that connect to any port of its machine", errors)
            # Nobody died.
            self.assertNotIn("gone", errors)

    def test_nobody_connects_to_workers_that_are_connected(self):
        workers = self.workers("serve", world_size=2, machines="00")
        for address in workers[1].listening_at():
            try:
                with socket.create_connection(address, timeout=DEADLINE_S) as stranger:
                    self.assertEqual(stranger.recv(1), b"")
            except ConnectionError:
                pass  # It does not listen any more, or has hung up.
        self.assertEqual(workers[1].listening_at(), set())
        self.expect_calls(workers)

    def test_strangers_change_nothing(self):
        for machines in ("00", "01"):
            with self.subTest(machines=machines):
                self.send_noise(machines)

    def send_noise(self, machines):
        workers = self.workers("serve", world_size=2, machines=machines)
        seed = random.randrange(1 << 32)
        print(f"seed {seed}", flush=True)
        chance = random.Random(seed)
        lengths = [0, 1, 8, 100, 5000, 100000]
        chance.shuffle(lengths)
        for address in workers[1].listening_at():
            for length in lengths:
                try:
                    with socket.create_connection(address, timeout=DEADLINE_S) as stranger:
                        stranger.sendall(chance.randbytes(length))
                except OSError:
                    pass  # It hung up, or listens no more: that is an answer.
        self.expect_calls(workers)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
