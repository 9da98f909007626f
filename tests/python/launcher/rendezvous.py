"""The rendezvous of the launchers of three machines: who joins, leaves, is lost or fails.

Usage: rendezvous.py LOCKSTEP [unittest arguments]
"""

import os
import pathlib
import signal
import subprocess
import sys
import time
import unittest

sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))
from launch_reports import failures
from rendezvous_job import KEEP_ALIVE_LIMIT_S, JobTest, wait_for, wait_for_generation

JobTest.lockstep = os.path.abspath(sys.argv[1])


class MembershipTest(JobTest):
    def start_machines(self, count, conf=None):
        """The first of them serves the rendezvous, and so is the first to join."""
        agents = [self.start_elastic(machine, "--nproc-per-node=2", conf=conf)
                  for machine in range(count)]
        return agents, wait_for_generation(agents)

    def cut_off(self, machine):
        self.machines.pull_cable(machine)
        self.addCleanup(self.machines.plug_cable_in, machine)

    def test_a_machine_joins_and_those_there_keep_their_order(self):
        agents, before = self.start_machines(2)
        self.assertEqual(before.ranks, [[0, 1], [2, 3]])
        agents.append(self.start_elastic(2, "--nproc-per-node=1"))
        after = wait_for_generation(agents, before)
        self.assertEqual(after.ranks, [[0, 1], [2, 3], [4]])
        self.assertNotEqual(after.store, before.store)
        self.expect_stopped(before.pids)
        for agent in agents[:2]:
            self.assertIn(f"machine machine-2 (pid {agents[2].pid}) joined", agent.said())

    def test_a_machine_leaves_and_the_others_go_on_at_once(self):
        agents, before = self.start_machines(3)
        start = time.monotonic()
        agents[1].process.send_signal(signal.SIGTERM)
        after = wait_for_generation([agents[0], agents[2]], before)
        self.assertLess(time.monotonic() - start, KEEP_ALIVE_LIMIT_S)
        self.assertEqual(after.ranks, [[0, 1], [2, 3]])
        self.assertEqual(agents[1].ended(), 128 + signal.SIGTERM)
        self.expect_stopped(before.pids)
        for agent in (agents[0], agents[2]):
            self.assertIn(f"machine machine-1 (pid {agents[1].pid}) left, stopped by SIGTERM",
                          agent.said())

    def test_a_killed_agent_is_lost_with_its_workers(self):
        agents, before = self.start_machines(3)
        agents[1].process.kill()
        after = wait_for_generation([agents[0], agents[2]], before)
        self.assertEqual(after.ranks, [[0, 1], [2, 3]])
        self.expect_stopped(before.pids)
        for agent in (agents[0], agents[2]):
            self.assertIn(f"machine machine-1 (pid {agents[1].pid}) was lost", agent.said())

    def test_a_machine_that_is_cut_off_stops_its_workers_and_comes_back(self):
        agents, before = self.start_machines(3)
        self.cut_off(1)
        after = wait_for_generation([agents[0], agents[2]], before)
        self.assertEqual(after.ranks, [[0, 1], [2, 3]])
        self.assertIn(f"machine machine-1 (pid {agents[1].pid}) was lost", agents[0].said())
        self.expect_stopped(before.pids)
        agents[1].wait_until_said("no contact with the rendezvous at 10.213.78.1")
        self.machines.plug_cable_in(1)
        whole = wait_for_generation([agents[0], agents[2], agents[1]], after)
        self.assertEqual(whole.ranks, [[0, 1], [2, 3], [4, 5]])

    def test_a_short_cut_changes_nothing(self):
        limit_s = 4.0
        agents, before = self.start_machines(2, conf={"keep_alive_max_attempt": 20})
        self.cut_off(1)
        time.sleep(0.55 * limit_s)
        self.machines.plug_cable_in(1)
        time.sleep(0.6 * limit_s)
        self.expect_undisturbed(agents, before)


class NetworkTest(JobTest):
    def route(self, machine, verb, towards):
        subprocess.run([*self.machines.on(machine), "ip", "route", verb, "blackhole",
                        f"{self.machines.address(towards)}/32"], check=True)

    def test_a_network_that_is_cut_in_one_direction_leaves_one_job(self):
        agents = [self.start_elastic(machine) for machine in range(3)]
        before = wait_for_generation(agents)
        self.route(1, "add", 0)  # Machine 1 hears the others, and they do not hear it.
        self.addCleanup(subprocess.run, [*self.machines.on(1), "ip", "route", "flush", "type",
                                         "blackhole"], check=False)
        after = wait_for_generation([agents[0], agents[2]], before)
        self.assertEqual(after.world_size, 2)
        self.expect_stopped(before.pids)
        agents[1].wait_until_said("no contact with the rendezvous")
        self.route(1, "del", 0)
        self.assertEqual(wait_for_generation([agents[0], agents[2], agents[1]], after).world_size, 3)

    def test_a_slow_network_is_enough(self):
        # Some 500 bytes are on their way for a second.
        for machine in range(3):
            subprocess.run([*self.machines.on(machine), "tc", "qdisc", "add", "dev", "cable", "root", "tbf",
                            "rate", "64kbit", "burst", "1540", "latency", "2s"], check=True)
            self.addCleanup(subprocess.run, [*self.machines.on(machine), "tc", "qdisc", "del", "dev",
                                             "cable", "root"], check=False)
        agents = [self.start_elastic(machine, conf={"keep_alive_interval": 1}) for machine in range(3)]
        before = wait_for_generation(agents)
        agents[2].process.send_signal(signal.SIGTERM)
        self.assertEqual(wait_for_generation(agents[:2], before).world_size, 2)

    def test_a_name_that_nobody_knows_is_said(self):
        agent = self.start(1, "--nnodes=2", "--rdzv-backend=c10d", endpoint=f"no-such-host:{self.port}",
                           conf={"join_timeout": 2.5})
        agent.wait_until_said("waiting: the rendezvous at no-such-host port")
        self.assertEqual(agent.ended(), 1)
        self.assertIn("host 'no-such-host'", agent.said())


class FailureTest(JobTest):
    def test_restarts_are_counted_for_the_job(self):
        agents = [self.start_numbered(machine, "--max-restarts=2") for machine in range(2)]
        generation = wait_for_generation(agents)
        for restart, machine in ((1, 0), (2, 1)):
            os.kill(generation.pids[machine], signal.SIGKILL)
            after = wait_for_generation(agents, generation)
            self.expect_stopped(generation.pids)
            self.assertEqual(after.restarts, restart)
            for agent in agents:
                self.assertIn(f"restart {restart} of 2", agent.said())
            generation = after
        os.kill(generation.pids[1], signal.SIGKILL)
        for agent in agents:
            self.assertEqual(agent.ended(), 128 + signal.SIGKILL, agent.said())
        self.expect_stopped(generation.pids)
        for agent in agents:
            last = failures(agent.said())[-1]
            self.assertEqual((last.rank, last.local_rank, last.pid, last.signal, last.restart),
                             (1, 0, generation.pids[1], "SIGKILL", None), agent.said())
        self.assertIn(f"job failed: rank 1 (local rank 0, pid {generation.pids[1]}) on machine-1 killed",
                      agents[0].said())

    def test_a_lost_machine_of_a_numbered_job_ends_it(self):
        agents = [self.start_numbered(machine) for machine in range(2)]
        before = wait_for_generation(agents)
        agents[1].process.kill()
        self.assertEqual(agents[0].ended(), 1)
        self.assertIn(f"job failed: machine machine-1 (pid {agents[1].pid}) was lost",
                      agents[0].said())
        self.expect_stopped(before.pids)

    def test_without_the_machine_that_serves_the_rendezvous_all_end(self):
        agents = [self.start_elastic(machine) for machine in range(3)]
        before = wait_for_generation(agents)
        agents[0].process.send_signal(signal.SIGTERM)
        self.assertEqual(agents[0].ended(), 128 + signal.SIGTERM)
        for agent in agents[1:]:
            self.assertEqual(agent.ended(), 1, agent.said())
            self.assertIn(f"machine machine-0 (pid {agents[0].pid}), which serves the rendezvous, left, "
                          "stopped by SIGTERM", agent.said())
        self.expect_stopped(before.pids)

    def test_who_is_missing_is_said_until_the_join_timeout(self):
        agent = self.start_numbered(0, conf={"join_timeout": 2.5})
        agent.wait_until_said(f"waiting: 1 of 2 machines joined (machine-0 (pid {agent.pid}))")
        self.assertEqual(agent.ended(), 1)
        self.assertIn("1 of at least 2 machines joined in time: machine-0", agent.said())

    def test_who_serves_no_rendezvous_is_said_until_the_join_timeout(self):
        agent = self.start_numbered(1, conf={"join_timeout": 2.5})
        agent.wait_until_said("waiting: the rendezvous at 10.213.78.1 port")
        self.assertEqual(agent.ended(), 1)
        self.assertIn("does not answer (Connection refused)", agent.said())


class DifferenceTest(JobTest):
    def test_a_machine_with_other_options_is_refused_naming_the_difference(self):
        agents = [self.start_elastic(machine, "--max-restarts=3") for machine in range(2)]
        before = wait_for_generation(agents)
        other = self.start_elastic(2, "--max-restarts=1")
        self.assertEqual(other.ended(), 1)
        self.assertIn("refused this machine: it was started as --max-restarts=1, and machine-", other.said())
        self.assertIn("as --max-restarts=3; use the same on all machines", other.said())
        agents[0].wait_until_said("as --max-restarts=3")
        self.expect_undisturbed(agents, before)

    def test_another_program_is_told_and_not_refused(self):
        agents = [self.start_numbered(0)]
        wait_for(lambda: "waiting" in agents[0].said(), agents[0].said)  # This is the one to compare with.
        self.worker.write_text(f"{self.worker.read_text()}# another\n")
        agents.append(self.start_numbered(1))
        wait_for_generation(agents)
        agents[0].wait_until_said(f"machine machine-1 (pid {agents[1].pid}) runs another program file than "
                                  f"machine machine-0 (pid {agents[0].pid})")


class OneMachineTest(JobTest):
    machine_count = 1

    def test_two_agents_meet_on_loopback_without_a_secret(self):
        agents = [self.start(0, "--nnodes=2", "--rdzv-backend=c10d", secret=None,
                             endpoint=f"localhost:{self.port}") for _ in range(2)]
        self.assertEqual(wait_for_generation(agents).world_size, 2)

    def test_two_agents_meet_by_version_6(self):
        agents = [self.start(0, "--nnodes=2", "--rdzv-backend=c10d", secret=None,
                             endpoint=f"[::1]:{self.port}") for _ in range(2)]
        generation = wait_for_generation(agents)
        self.assertEqual(generation.world_size, 2)
        self.assertTrue(generation.store.startswith("::1:"), generation.store)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
