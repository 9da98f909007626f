#!/usr/bin/env python3
"""Times how a job on three machines takes in one, lets one go and gets over the loss of one: from the event
until the last worker of the round after it has started. Needs root and iproute2.

    bench/recovery/membership.py --lockstep=build/release/bin/lockstep

The machines are network namespaces on this one. Workers are shells that say who they are and wait. Machine 0
serves the rendezvous. A loss by kill -9 closes the connection, and its agent has a second to come back; a machine
whose cable is cut is lost at the limit of the keep-alive, here 2 s.
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
sys.path.insert(0, str(ROOT / "tests/python"))
from rendezvous_job import JobTest, wait_for_round  # noqa: E402


class Membership(JobTest):
    cycles = 50
    cuts = 10

    def runTest(self):  # noqa: N802
        self.times = {}
        for _ in range(self.cuts):
            self.port += 1
            start = time.monotonic()
            agents = [self.start(machine, "--nnodes=2", "--rdzv-backend=c10d") for machine in range(2)]
            wait_for_round(agents)
            self.note("two machines meet, from the command", start)
            for agent in agents:
                agent.end()
        stay, last = self.begin()
        for what, count in (("leave", self.cycles), ("loss by kill -9", self.cycles),
                            ("loss by a cut cable", self.cuts)):
            for cycle in range(count):
                # A machine that is lost a third time would have to cool down.
                if what != "leave" and cycle % 2 == 0:
                    for agent in stay:
                        agent.end()
                    stay, last = self.begin()
                last = self.come_and_go(stay, last, what)
        for what, times in self.times.items():
            print(f"{what}: n={len(times)} median {statistics.median(times) * 1e3:.0f} ms, "
                  f"max {max(times) * 1e3:.0f} ms")
        for role, agent in zip(("serves", "joined"), stay):
            print(f"VmRSS of the agent that {role}, after {last.attempt + 1} rounds: {agent.resident_kib()} KiB")

    def begin(self):
        self.port += 1
        stay = [self.start_elastic(machine) for machine in range(2)]
        return stay, wait_for_round(stay)

    def come_and_go(self, stay, last, what):
        start = time.monotonic()
        third = self.start_elastic(2)
        before = wait_for_round([*stay, third], last)
        self.note("join, from the command", start)
        start = time.monotonic()
        if what == "leave":
            third.process.send_signal(signal.SIGTERM)
        elif what == "loss by kill -9":
            third.process.kill()
        else:
            self.machines.pull_cable(2)
        after = wait_for_round(stay, before)
        self.note(what, start)
        third.end()
        self.expect_stopped(before.pids)
        if what == "loss by a cut cable":
            self.machines.plug_cable_in(2)
        return after

    def note(self, what, start):
        self.times.setdefault(what, []).append(time.monotonic() - start)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--lockstep", default="build/release/bin/lockstep", help="the program")
    parser.add_argument("--cycles", type=int, default=50, help="leaves, and losses by kill -9")
    parser.add_argument("--cuts", type=int, default=10, help="losses by a cut cable, and meetings")
    arguments = parser.parse_args()
    JobTest.lockstep = os.path.abspath(arguments.lockstep)
    Membership.cycles, Membership.cuts = arguments.cycles, arguments.cuts
    result = unittest.TextTestRunner(verbosity=0).run(unittest.TestSuite([Membership()]))
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
