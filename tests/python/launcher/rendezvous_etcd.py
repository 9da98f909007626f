"""The rendezvous by way of a real etcd: whichever machine is lost, the one that serves included, the others
go on.

Usage: rendezvous_etcd.py LOCKSTEP [unittest arguments]
"""

import os
import pathlib
import signal
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))
from etcd_job import EtcdJobTest
from rendezvous_job import JobTest, wait_for, wait_for_generation

JobTest.lockstep = os.path.abspath(sys.argv[1])
class EtcdTest(EtcdJobTest):
    def test_a_machine_joins_and_leaves(self):
        agents = self.start_job(2)
        before = wait_for_generation(agents)
        agents.append(self.start_agent(2))
        after = wait_for_generation(agents, before)
        self.assertEqual(after.world_size, 3)
        self.expect_stopped(before.pids)
        leaves = self.others(agents, self.leader_of(agents))[0]
        leaves.process.send_signal(signal.SIGTERM)
        self.assertEqual(leaves.ended(), 128 + signal.SIGTERM)
        self.assertEqual(wait_for_generation(self.others(agents, leaves), after).world_size, 2)

    def test_whoever_serves_may_be_lost_until_one_is_left(self):
        agents = self.start_job(conf={"keep_alive_max_attempt": 200})
        generation = wait_for_generation(agents)
        while len(agents) > 1:
            leader = self.leader_of(agents)
            leader.process.kill()
            agents = self.others(agents, leader)
            after = wait_for_generation(agents, generation)
            self.expect_stopped(generation.pids)
            self.assertEqual(after.world_size, len(agents))
            self.assertIn(f"(pid {leader.pid}) was lost", agents[0].said())
            generation = after

    def test_whoever_serves_may_leave_and_the_others_go_on_at_once(self):
        agents = self.start_job(conf={"keep_alive_interval": 20})
        before = wait_for_generation(agents)
        leader = self.leader_of(agents)
        leader.process.send_signal(signal.SIGTERM)
        after = wait_for_generation(self.others(agents, leader), before)
        self.assertEqual(after.world_size, 2)
        self.assertEqual(leader.ended(), 128 + signal.SIGTERM)
        self.expect_stopped(before.pids)

    def test_whoever_serves_is_cut_off_and_comes_back(self):
        agents = self.start_job()
        before = wait_for_generation(agents)
        leader = self.leader_of(agents)
        machine = agents.index(leader)
        self.machines.pull_cable(machine)
        self.addCleanup(self.machines.plug_cable_in, machine)
        rest = self.others(agents, leader)
        after = wait_for_generation(rest, before)
        self.assertEqual(after.world_size, 2)
        self.expect_stopped(before.pids)
        self.assertIn("no longer serves the rendezvous", leader.said())
        self.machines.plug_cable_in(machine)
        self.assertEqual(wait_for_generation([*rest, leader], after).world_size, 3)

    def test_a_short_cut_of_whoever_serves_changes_nothing(self):
        agents = self.start_job(conf={"keep_alive_max_attempt": 200})
        before = wait_for_generation(agents)
        leader = self.leader_of(agents)
        self.machines.pull_cable(agents.index(leader))
        self.addCleanup(self.machines.plug_cable_in, agents.index(leader))
        rest = self.others(agents, leader)
        self.leader_of(rest)
        self.machines.plug_cable_in(agents.index(leader))
        leader.wait_until_said("no longer serves the rendezvous")
        self.expect_undisturbed(agents, before)

    def test_whoever_served_and_slept_writes_nothing(self):
        agents = self.start_job(conf={"keep_alive_max_attempt": 200})
        before = wait_for_generation(agents)
        sleeper = self.leader_of(agents)
        sleeper.process.send_signal(signal.SIGSTOP)
        self.addCleanup(sleeper.process.send_signal, signal.SIGCONT)
        rest = self.others(agents, sleeper)
        self.leader_of(rest)
        state = self.etcd.value(self.key("state"))
        sleeper.process.send_signal(signal.SIGCONT)
        sleeper.wait_until_said("no longer serves the rendezvous")
        self.expect_undisturbed(agents, before)
        self.assertEqual(self.etcd.value(self.key("state")), state)
        self.leader_of(rest)

    def test_without_etcd_workers_run_on_for_a_while(self):
        agents = self.start_job(conf={"keep_alive_max_attempt": 200})
        before = wait_for_generation(agents)
        leader = self.leader_of(agents)
        self.etcd.stop()
        leader.wait_until_said("no longer serves the rendezvous")
        self.etcd.start()
        # What etcd held of the one before is there for as long as its lease runs.
        wait_for(lambda: any("serves the rendezvous of job" in line and "no longer" not in line
                             for agent in agents for line in agent.said().splitlines()),
                 lambda: f"another that serves; {[agent.said() for agent in agents]}")
        self.expect_undisturbed(agents, before)
        agents[0].process.send_signal(signal.SIGTERM)
        self.assertEqual(wait_for_generation(agents[1:], before).world_size, 2)

    def test_failures_are_counted_whoever_serves(self):
        agents = self.start_job(2, "--max-restarts=1", conf={"keep_alive_max_attempt": 200})
        before = wait_for_generation(agents)
        os.kill(before.pids[0], signal.SIGKILL)
        after = wait_for_generation(agents, before)
        leader = self.leader_of(agents)
        leader.process.send_signal(signal.SIGTERM)
        last = wait_for_generation(self.others(agents, leader), after)
        os.kill(last.pids[0], signal.SIGKILL)
        agent = self.others(agents, leader)[0]
        self.assertEqual(agent.ended(), 128 + signal.SIGKILL, agent.said())

    def test_nothing_stays_in_etcd(self):
        agents = self.start_job(2)
        wait_for_generation(agents)
        self.assertTrue(self.etcd.value(self.key("state")))
        for agent in agents:
            agent.process.send_signal(signal.SIGTERM)
            agent.ended()
        self.assertEqual(self.etcd.ask("get", "--prefix", self.key(""), "--keys-only").strip(), "")

    def test_a_state_that_no_agent_wrote_is_none(self):
        agents = self.start_job(2, conf={"keep_alive_max_attempt": 200})
        before = wait_for_generation(agents)
        ended = self.etcd.value(self.key("state")).replace('"phase":1', '"phase":2')
        self.etcd.ask("put", self.key("state"), ended)
        leader = self.leader_of(agents)
        leader.process.kill()
        rest = self.others(agents, leader)
        self.assertEqual(self.leader_of(rest), rest[0])
        self.assertEqual(wait_for_generation(rest, before).world_size, 1)
        self.expect_stopped(before.pids)

    def test_an_etcd_that_does_not_answer_is_named(self):
        nowhere = f"{self.machines.address(0)}:2379"
        agent = self.start(0, "--nnodes=2", "--rdzv-backend=etcd", "--rdzv-id=a", endpoint=nowhere,
                           conf={"join_timeout": 2.5})
        agent.wait_until_said(f"waiting: etcd at {nowhere.replace(':', ' port ')}: Connection refused")
        self.assertEqual(agent.ended(), 1)
        self.assertIn("check --rdzv-endpoint, and that etcd runs there", agent.said())

    def test_a_wrong_secret_is_refused(self):
        agents = self.start_job(2)
        before = wait_for_generation(agents)
        stranger = self.start_agent(2, secret="another")
        self.assertEqual(stranger.ended(), 1)
        self.assertIn("refused this machine: wrong job secret", stranger.said())
        self.expect_undisturbed(agents, before)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
