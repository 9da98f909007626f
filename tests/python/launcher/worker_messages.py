"""Jobs whose workers send the launcher the messages that a test wants, when it wants them.

    worker_messages.py LOCKSTEP [unittest arguments]
"""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

LOCKSTEP = os.path.abspath(sys.argv[1])
DEADLINE_S = 60

# The numbers of lockstep/job/internal/worker_message.cpp.
KEEPS_STATE, LEFT_GROUP, TRAINING_DONE, TOOK_PLACE, PLACE, LEAVE_GROUP = 1, 2, 3, 5, 8, 9

# Does what the lines of the test's socket say, and sends it a line for each message of the launcher.
WORKER = """
import os, socket, sys, threading
link = socket.socket(fileno=int(os.environ["LOCKSTEP_LAUNCHER_FD"]))
test = socket.socket(socket.AF_UNIX)
test.connect(sys.argv[1])
generation = int(os.environ["TORCHELASTIC_RESTART_COUNT"]) + 1
test.sendall(f"{os.environ['RANK']} {generation} {os.getpid()}\\n".encode())

def read_launcher():
    while message := link.recv(65536):
        digits = message[1:].split(b"\\0")[0].decode()
        test.sendall(f"{message[0]} {digits}\\n".encode())

threading.Thread(target=read_launcher, daemon=True).start()
for line in test.makefile():
    word, *rest = line.split()
    if word == "send":
        link.send(bytes([int(rest[0])]) + "\\0".join(rest[1:]).encode())
    elif word == "exit":
        os._exit(int(rest[0]))
    test.sendall(b"did it\\n")
"""


class Worker:
    def __init__(self, connection):
        self.connection = connection
        self.lines = connection.makefile()
        self.rank, self.generation, self.pid = map(int, self.lines.readline().split())
        self.received = []

    def _next(self):
        line = self.lines.readline().strip()
        if line and line != "did it":
            self.received.append(tuple(map(int, line.split())))
        return line

    def do(self, *words):
        """Returns once the worker has done it."""
        self.connection.sendall((" ".join(map(str, words)) + "\n").encode())
        while (line := self._next()) != "did it":
            assert line, f"rank {self.rank} has ended"

    def send(self, number, generation=0, *lines):
        self.do("send", number, generation, *lines)

    def keep_state(self):
        self.send(KEEPS_STATE, 0, 10_000)

    def end(self, code=0):
        self.connection.sendall(f"exit {code}\n".encode())

    def wait_for(self, number):
        """The generation of the launcher's next message of this number."""
        while not (found := [generation for what, generation in self.received if what == number]):
            assert self._next(), f"rank {self.rank} has ended"
        self.received = [message for message in self.received if message[0] != number]
        return found[-1]

    def has_received(self, number):
        self.do("nothing")
        return any(what == number for what, _ in self.received)


class WorkerMessages(unittest.TestCase):
    def start(self, ranks, *flags):
        folder = tempfile.TemporaryDirectory(prefix="lockstep_test_")
        self.addCleanup(folder.cleanup)
        path = pathlib.Path(folder.name)
        (path / "worker.py").write_text(WORKER, "utf-8")
        self.server = socket.socket(socket.AF_UNIX)
        self.addCleanup(self.server.close)
        self.server.bind(str(path / "test"))
        self.server.listen()
        self.server.settimeout(DEADLINE_S)
        self.said = []
        self.launcher = subprocess.Popen(
            [LOCKSTEP, "run", "--standalone", "--max-restarts=3", f"--nproc-per-node={ranks}", *flags,
             sys.executable, path / "worker.py", path / "test"],
            stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(self.launcher.stderr.close)
        self.addCleanup(self.launcher.wait)
        self.addCleanup(self.launcher.kill)
        return self.workers(ranks)

    def workers(self, count):
        """The next that start, by rank."""
        started = []
        for _ in range(count):
            connection, _ = self.server.accept()
            self.addCleanup(connection.close)
            connection.settimeout(DEADLINE_S)
            started.append(Worker(connection))
            self.addCleanup(started[-1].lines.close)
        return {worker.rank: worker for worker in started}

    def wait_until_said(self, text):
        for line in self.launcher.stderr:
            self.said.append(line)
            if text in line:
                return
        self.fail(f"'{text}' in {self.said}")

    def expect_end(self, code):
        self.said += self.launcher.stderr.readlines()
        self.assertEqual(self.launcher.wait(DEADLINE_S), code, self.said)

    def restarts(self):
        return sum("; restart " in line for line in self.said)

    def test_a_rank_that_is_done_ends_by_itself_before_all_restart(self):
        workers = self.start(2)
        for worker in workers.values():
            worker.keep_state()
        workers[0].send(TRAINING_DONE)
        os.kill(workers[1].pid, signal.SIGKILL)
        self.wait_until_said("rank 0 has completed the training or been preempted; time to end: 30 s")
        workers[0].do("nothing")  # It runs.
        workers[0].end()
        again = self.workers(2)
        self.assertEqual({worker.generation for worker in again.values()}, {2})
        for worker in again.values():
            worker.end()
        self.expect_end(0)
        self.assertEqual(self.restarts(), 1, self.said)

    def test_a_rank_that_keeps_its_state_goes_on_once_those_that_are_done_have_ended(self):
        workers = self.start(3)
        for worker in workers.values():
            worker.keep_state()
        workers[0].send(TRAINING_DONE)
        os.kill(workers[1].pid, signal.SIGKILL)
        self.wait_until_said("rank 0 has completed the training")
        workers[2].wait_for(LEAVE_GROUP)
        workers[2].send(LEFT_GROUP, 1, "PeerLost", "follows", 60)
        self.assertFalse(workers[2].has_received(PLACE), "rank 0 runs")
        workers[0].end()
        self.assertEqual(workers[2].wait_for(PLACE), 2)
        workers[2].send(TOOK_PLACE, 2)
        again = self.workers(2)
        self.assertEqual(set(again), {0, 1})
        for worker in (*again.values(), workers[2]):
            worker.send(TRAINING_DONE)
            worker.end()
        self.expect_end(0)
        self.assertEqual(self.restarts(), 1, self.said)

    def test_a_rank_that_trains_on_without_recovery_is_stopped_at_once(self):
        workers = self.start(2)
        for worker in workers.values():
            worker.keep_state()
        workers[0].send(TRAINING_DONE, 0, "incomplete")
        os.kill(workers[1].pid, signal.SIGKILL)
        for worker in self.workers(2).values():
            worker.end()
        self.expect_end(0)
        self.assertEqual(self.restarts(), 1, self.said)
        self.assertNotIn("has completed the training", "".join(self.said))

    def test_a_rank_that_is_done_and_does_not_end_is_killed(self):
        workers = self.start(2, "--shutdown-timeout=1")
        for worker in workers.values():
            worker.keep_state()
        workers[0].send(TRAINING_DONE)
        os.kill(workers[1].pid, signal.SIGKILL)
        for worker in self.workers(2).values():
            worker.end()
        self.expect_end(0)

    def test_a_stop_ends_ranks_that_are_done_too(self):
        workers = self.start(2)
        for worker in workers.values():
            worker.keep_state()
        workers[0].send(TRAINING_DONE)
        os.kill(workers[1].pid, signal.SIGKILL)
        self.wait_until_said("rank 0 has completed the training")
        self.launcher.send_signal(signal.SIGTERM)
        self.launcher.wait(20)  # s; of the 30 s that the rank had.
        self.expect_end(128 + signal.SIGTERM)

    def test_a_rank_that_dies_before_it_joins_is_replaced_in_the_same_generation(self):
        workers = self.start(2)
        for worker in workers.values():
            worker.keep_state()
        os.kill(workers[1].pid, signal.SIGKILL)
        workers[0].wait_for(LEAVE_GROUP)
        workers[0].send(LEFT_GROUP, 1, "PeerLost", "follows", 60)
        self.assertEqual(workers[0].wait_for(PLACE), 2)
        workers[1] = self.workers(1)[1]
        os.kill(workers[0].pid, signal.SIGKILL)
        workers[0] = self.workers(1)[0]
        self.assertEqual(workers[0].generation, 2)
        self.assertEqual(workers[1].generation, 2)
        for worker in workers.values():
            worker.end()
        self.expect_end(0)
        self.assertEqual(self.restarts(), 1, self.said)
        self.assertIn("ended before it joined generation 2; a replacement takes its rank", "".join(self.said))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
