"""Two machines on one, as far as ranks can tell: network namespaces joined by a cable."""

import os
import shutil
import subprocess

ADDRESSES = ("10.213.77.1", "10.213.77.2")


class Missing(Exception):
    """What this machine does not have or allow."""


def call(*command):
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise Missing(f"`{' '.join(command)}` says: {ended.stderr.strip()}")


class TwoMachines:
    """A context in which the two exist. Raises Missing."""

    def __init__(self, rate=None):
        """rate: of the cable, as tc takes it ("10gbit"); None: as fast as the kernel."""
        self.rate = rate
        self.names = [f"lockstep-{os.getpid()}-{i}" for i in range(2)]

    def __enter__(self):
        if not shutil.which("ip"):
            raise Missing("there is no `ip`: apt-get install iproute2")
        if os.geteuid() != 0:
            raise Missing("network namespaces need root (CAP_SYS_ADMIN and CAP_NET_ADMIN)")
        try:
            self._lay_cable()
        except Missing:
            self.__exit__()
            raise
        return self

    def _lay_cable(self):
        for name in self.names:
            call("ip", "netns", "add", name)
        call("ip", "link", "add", "cable", "netns", self.names[0], "type", "veth",
             "peer", "name", "cable", "netns", self.names[1])
        for name, address in zip(self.names, ADDRESSES):
            call("ip", "-n", name, "address", "add", f"{address}/24", "dev", "cable")
            call("ip", "-n", name, "link", "set", "lo", "up")
            call("ip", "-n", name, "link", "set", "cable", "up")
            if self.rate:
                call("tc", "-n", name, "qdisc", "add", "dev", "cable", "root", "tbf",
                     "rate", self.rate, "burst", "1mb", "latency", "50ms")

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL, check=False)

    def on(self, machine):
        """What to put in front of a command for it to run there."""
        return ["ip", "netns", "exec", self.names[machine]]

    def launchers(self, lockstep, ranks_each, program, port=29517):
        """The commands that start a job, one a machine."""
        return [[*self.on(machine), "env", "LOCKSTEP_JOB_SECRET=a secret", lockstep, "run", "--nnodes=2", f"--node-rank={machine}",
                 f"--nproc-per-node={ranks_each}", f"--master-addr={ADDRESSES[0]}",
                 f"--master-port={port}", *program]
                for machine in range(2)]
