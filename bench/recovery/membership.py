#!/usr/bin/env python3
"""Times how a job on three machines takes in one, lets one go and gets over the loss of one: from the event
until the last worker of the generation after it has started. Needs root and iproute2.

    bench/recovery/membership.py --lockstep=build/release/bin/lockstep

The machines are network namespaces on this one. Workers are shells that say who they are and wait. Machine 0
serves the rendezvous; with --etcd whoever is elected, and each machine that leaves or is lost is the one that
serves at that time. A loss by kill -9 closes the connection, and its agent has a second to come back; a machine
whose cable is cut is lost at the limit of the keep-alive, here 2 s (with --etcd 6 s, and a lease of 2 s).
"""
import argparse
import os
import pathlib
import signal
import statistics
import sys
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/python/support"))
from etcd_job import EtcdJobTest  # noqa: E402
from rendezvous_job import JobTest, wait_for_generation  # noqa: E402

EVENTS = {"leave": lambda job, agent: agent.process.send_signal(signal.SIGTERM),
          "loss by kill -9": lambda job, agent: agent.process.kill(),
          "loss by a cut cable": lambda job, agent: job.machines.pull_cable(agent.machine)}


class Figures:
    cycles = 50
    cuts = 10

    def counts(self):
        return {"leave": self.cycles, "loss by kill -9": self.cycles, "loss by a cut cable": self.cuts}

    def note(self, what, start):
        self.times.setdefault(what, []).append(time.monotonic() - start)

    @staticmethod
    def progress(text):
        if sys.stderr.isatty():
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)

    def print_figures(self):
        self.progress("")
        for what, times in self.times.items():
            print(f"{what}: n={len(times)} median {statistics.median(times) * 1e3:.0f} ms, "
                  f"max {max(times) * 1e3:.0f} ms")


class Membership(Figures, JobTest):
    def runTest(self):  # noqa: N802
        self.times = {}
        for _ in range(self.cuts):
            self.port += 1
            start = time.monotonic()
            agents = [self.start(machine, "--nnodes=2", "--rdzv-backend=c10d") for machine in range(2)]
            wait_for_generation(agents)
            self.note("two machines meet, from the command", start)
            for agent in agents:
                agent.end()
        stay, last = self.begin()
        for what, count in self.counts().items():
            for cycle in range(count):
                self.progress(f"{what}: {cycle + 1} of {count}")
                # A machine that is lost a third time would have to cool down.
                if what != "leave" and cycle % 2 == 0:
                    for agent in stay:
                        agent.end()
                    stay, last = self.begin()
                last = self.come_and_go(stay, last, what)
        self.print_figures()
        for role, agent in zip(("serves", "joined"), stay):
            print(f"VmRSS of the agent that {role}, after {last.restarts + 1} generations: {agent.resident_kib()} KiB")

    def begin(self):
        self.port += 1
        stay = [self.start_elastic(machine) for machine in range(2)]
        return stay, wait_for_generation(stay)

    def come_and_go(self, stay, last, what):
        start = time.monotonic()
        third = self.start_elastic(2)
        third.machine = 2
        before = wait_for_generation([*stay, third], last)
        self.note("join, from the command", start)
        start = time.monotonic()
        EVENTS[what](self, third)
        after = wait_for_generation(stay, before)
        self.note(what, start)
        third.end()
        self.expect_stopped(before.pids)
        self.machines.plug_cable_in(2)
        return after


class ShortCuts(Figures, JobTest):
    """The cable of a machine is pulled for so long, with the keep-alive that users have: a limit of 30 s."""

    cuts_s = (1, 2, 5, 10, 15, 20, 25)
    watched_s = 12

    def runTest(self):  # noqa: N802
        agents = [self.start_elastic(machine, conf={"keep_alive_interval": 5, "keep_alive_max_attempt": 6})
                  for machine in range(2)]
        before = wait_for_generation(agents)
        for cut_s in self.cuts_s:
            self.progress(f"cut for {cut_s} s")
            self.machines.pull_cable(1)
            time.sleep(cut_s)
            self.machines.plug_cable_in(1)
            time.sleep(self.watched_s)
            self.expect_undisturbed(agents, before)
            self.progress("")
            print(f"cut for {cut_s} s: the same workers go on")


class MembershipWithEtcd(Figures, EtcdJobTest):
    def runTest(self):  # noqa: N802
        self.times = {}
        agents, last = [], None
        for what, count in self.counts().items():
            for cycle in range(count):
                self.progress(f"{what}: {cycle + 1} of {count}")
                # A machine that is lost a third time would have to cool down.
                if cycle % 3 == 0:
                    for agent in agents:
                        agent.end()
                    self.job = f"{what.replace(' ', '-')}-{cycle}"
                    agents = [self.begin_on(machine) for machine in range(3)]
                    last = wait_for_generation(agents)
                agents, last = self.lose_who_serves(agents, last, what)
        self.print_figures()

    def id(self):  # names its keys
        return self.job

    def begin_on(self, machine):
        # The first generation waits for three, so that each job begins with all.
        agent = self.start_agent(machine, nodes="2:3",
                                 conf={"keep_alive_max_attempt": 30, "last_call_timeout": 2})
        agent.machine = machine
        return agent

    def lose_who_serves(self, agents, last, what):
        leader = self.leader_of(agents)
        rest = self.others(agents, leader)
        start = time.monotonic()
        EVENTS[what](self, leader)
        after = wait_for_generation(rest, last)
        self.note(f"{what} of who serves", start)
        leader.end()
        self.expect_stopped(last.pids)
        self.machines.plug_cable_in(leader.machine)
        start = time.monotonic()
        agents = [*rest, self.begin_on(leader.machine)]
        last = wait_for_generation(agents, after)
        self.note("join, from the command", start)
        return agents, last


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--lockstep", default="build/release/bin/lockstep", help="the program")
    parser.add_argument("--cycles", type=int, default=50, help="leaves, and losses by kill -9")
    parser.add_argument("--cuts", type=int, default=10, help="losses by a cut cable, and meetings")
    parser.add_argument("--etcd", action="store_true", help="meet by way of etcd; lose who serves")
    parser.add_argument("--short-cuts", action="store_true", help="only links that are cut for 1 to 25 s")
    arguments = parser.parse_args()
    JobTest.lockstep = os.path.abspath(arguments.lockstep)
    Figures.cycles, Figures.cuts = arguments.cycles, arguments.cuts
    test = ShortCuts() if arguments.short_cuts else MembershipWithEtcd() if arguments.etcd else Membership()
    result = unittest.TextTestRunner(verbosity=0).run(unittest.TestSuite([test]))
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
