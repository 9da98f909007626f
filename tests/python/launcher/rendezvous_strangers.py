"""Who may not take part in the rendezvous of a job's launchers, and what strangers cannot do to it.

Usage: rendezvous_strangers.py LOCKSTEP [unittest arguments]
"""

import contextlib
import os
import pathlib
import random
import socket
import sys
import threading
import unittest

sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))
from rendezvous_job import DEADLINE_S, JobTest, wait_for_generation
from sanitizers import is_sanitized

JobTest.lockstep = os.path.abspath(sys.argv[1])
STRANGER = 2


class Recorder:
    """Passes what one client sends on to a server and back, and keeps what the client sent."""

    def __init__(self, machines, machine, server):
        self.sent = b""
        self.listening = machines.socket_on(machine)
        self.listening.bind((machines.address(machine), 0))
        self.listening.listen()
        self.port = self.listening.getsockname()[1]
        self.to_server = machines.socket_on(machine)
        self.sockets = [self.listening, self.to_server]
        self.server = server
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        with contextlib.suppress(OSError):
            client, _ = self.listening.accept()
            self.sockets.append(client)
            self.to_server.connect(self.server)
            back = threading.Thread(target=self.copy, args=(self.to_server, client), daemon=True)
            back.start()
            self.copy(client, self.to_server, keep=True)
            back.join()

    def close(self):
        for each in self.sockets:
            each.close()

    def copy(self, source, target, keep=False):
        with contextlib.suppress(OSError):
            while data := source.recv(4096):
                if keep:
                    self.sent += data
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)


class StrangersTest(JobTest):
    def setUp(self):
        super().setUp()
        self.server = (self.machines.address(0), self.port)

    def start_job(self, count=2):
        agents = [self.start_elastic(machine) for machine in range(count)]
        return agents, wait_for_generation(agents)

    def knock(self, data=b""):
        """A connection of a stranger that sends this."""
        connection = self.machines.socket_on(STRANGER)
        self.addCleanup(connection.close)
        connection.settimeout(DEADLINE_S)
        connection.connect(self.server)
        # Who is turned away may see it while it sends.
        with contextlib.suppress(OSError):
            connection.sendall(data)
        return connection

    @staticmethod
    def read_to_the_end(connection):
        received = b""
        with contextlib.suppress(ConnectionResetError):
            while data := connection.recv(4096):
                received += data
        return received

    def expect_refused(self, reason, *flags, **options):
        agents, before = self.start_job()
        reason = reason.format(server=agents[0].pid)
        stranger = self.start_elastic(STRANGER, *flags, **options)
        self.assertEqual(stranger.ended(), 1, stranger.said())
        self.assertIn(f"the rendezvous at {self.server[0]} port {self.port} refused this machine: "
                      f"{reason}", stranger.said())
        agents[0].wait_until_said(f"refused {self.machines.address(STRANGER)}: {reason}")
        self.expect_undisturbed(agents, before)

    def test_a_wrong_secret_is_refused(self):
        self.expect_refused("wrong job secret", secret="another secret")

    def test_another_job_is_refused(self):
        self.expect_refused("this rendezvous serves agents of job 'none' of machine-0 (pid {server})",
                            "--rdzv-id=another")

    def test_without_a_secret_nothing_is_started(self):
        stranger = self.start_elastic(STRANGER, secret=None)
        self.assertEqual(stranger.ended(), 2, stranger.said())
        self.assertIn("LOCKSTEP_JOB_SECRET", stranger.said())

    def test_a_second_machine_0_is_refused_naming_the_first(self):
        agents = [self.start_numbered(machine) for machine in range(2)]
        before = wait_for_generation(agents)
        second = self.start_numbered(0)
        self.assertEqual(second.ended(), 1, second.said())
        self.assertIn(f"Address already in use; agents of job 'none' of machine-0 (pid {agents[0].pid}) use this port; "
                      "give this machine another --node-rank", second.said())
        self.expect_undisturbed(agents, before)

    def test_a_port_of_another_program_is_named(self):
        taken = self.machines.socket_on(0)
        self.addCleanup(taken.close)
        taken.bind(self.server)
        taken.listen()
        agent = self.start_numbered(0)
        self.assertEqual(agent.ended(), 1, agent.said())
        self.assertIn("Address already in use; another program listens there; choose another port", agent.said())

    def test_a_node_rank_that_is_taken_is_refused_naming_its_owner(self):
        agents = [self.start_numbered(machine) for machine in range(2)]
        before = wait_for_generation(agents)
        second = self.start_numbered(STRANGER, rank=1)
        self.assertEqual(second.ended(), 1, second.said())
        reason = f"node rank 1 is taken by machine-1 (pid {agents[1].pid})"
        self.assertIn(reason, second.said())
        agents[0].wait_until_said(f"refused {self.machines.address(STRANGER)}: {reason}")
        self.expect_undisturbed(agents, before)

    def test_what_was_overheard_opens_nothing(self):
        agents, alone = self.start_job(1)
        recorder = Recorder(self.machines, STRANGER, self.server)
        self.addCleanup(recorder.close)
        agents.append(self.start_elastic(1, endpoint=f"{self.machines.address(STRANGER)}:{recorder.port}"))
        before = wait_for_generation(agents, alone)
        self.assertIn(b"Lockstep-Proof", recorder.sent)
        for secret in (b"a secret", b"machine-1"):
            self.assertNotIn(secret, recorder.sent)
        greeting, end, messages = recorder.sent.partition(b"\r\n\r\n")
        connection = self.knock(greeting + end)
        # As far as the first message one who repeats all looks like an agent.
        self.assertIn(b"101 Switching Protocols", connection.recv(4096))
        with contextlib.suppress(OSError):
            connection.sendall(messages)
        self.read_to_the_end(connection)
        agents[0].wait_until_said(f"refused {self.machines.address(STRANGER)}: a message that does "
                                  "not open: changed, repeated or forged")
        self.expect_undisturbed(agents, before)

    def test_a_flood_of_connections_keeps_nobody_out(self):
        agents, before = self.start_job()
        noise = random.Random(1)
        for number in range(300):
            self.knock(noise.randbytes(noise.randrange(8192)) if number % 2 else b"")
        self.assertEqual(wait_for_generation(agents), before)
        agents.append(self.start_elastic(2))
        after = wait_for_generation(agents, before)
        self.assertEqual(after.world_size, 3)
        for agent in agents:
            if not is_sanitized(JobTest.lockstep):
                self.assertLess(agent.resident_kib(), 15 * 1024)

    def test_workers_are_not_given_the_secret(self):
        agents, _ = self.start_job()
        for agent in agents:
            environment = agent.environment_of(agent.workers()[0])
            self.assertIn("RANK=", environment)
            self.assertNotIn("LOCKSTEP_JOB_SECRET", environment)
            self.assertNotIn("a secret", environment)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
