"""Several machines on one, as far as programs can tell: network namespaces joined by cables."""

import ctypes
import os
import shutil
import socket
import subprocess

from missing import Missing

ADDRESSES = ("10.213.77.1", "10.213.77.2")


def call(*command):
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise Missing(f"`{' '.join(command)}` says: {ended.stderr.strip()}")


class Namespaces:
    """A context in which they exist. Raises Missing."""

    def __init__(self, names):
        self.names = [f"lockstep-{os.getpid()}-{name}" for name in names]

    def __enter__(self):
        if not shutil.which("ip"):
            raise Missing("there is no `ip`: apt-get install iproute2")
        if os.geteuid() != 0:
            raise Missing("network namespaces need root (CAP_SYS_ADMIN and CAP_NET_ADMIN)")
        try:
            for name in self.names:
                call("ip", "netns", "add", name)
                call("ip", "-n", name, "link", "set", "lo", "up")
            self.lay_cables()
        except Missing:
            self.__exit__()
            raise
        return self

    def lay_cables(self):
        raise NotImplementedError

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL, check=False)

    def on(self, machine):
        """What to put in front of a command for it to run there."""
        return ["ip", "netns", "exec", self.names[machine]]

    def set_up_cable(self, machine, address):
        call("ip", "-n", self.names[machine], "address", "add", f"{address}/24", "dev", "cable")
        call("ip", "-n", self.names[machine], "link", "set", "cable", "up")


class TwoMachines(Namespaces):
    """Two, with one cable between them."""

    def __init__(self, rate=None):
        """rate: of the cable, as tc takes it ("10gbit"); None: as fast as the kernel."""
        super().__init__(["0", "1"])
        self.rate = rate

    def lay_cables(self):
        call("ip", "link", "add", "cable", "netns", self.names[0], "type", "veth",
             "peer", "name", "cable", "netns", self.names[1])
        for machine, address in enumerate(ADDRESSES):
            self.set_up_cable(machine, address)
            if self.rate:
                call("tc", "-n", self.names[machine], "qdisc", "add", "dev", "cable", "root", "tbf",
                     "rate", self.rate, "burst", "1mb", "latency", "50ms")

    def launchers(self, lockstep, ranks_each, program, port=29517):
        """The commands that start a job, one a machine."""
        return [[*self.on(machine), "env", "LOCKSTEP_JOB_SECRET=a secret", lockstep, "run",
                 "--nnodes=2", f"--node-rank={machine}",
                 f"--nproc-per-node={ranks_each}", f"--master-addr={ADDRESSES[0]}",
                 f"--master-port={port}", *program]
                for machine in range(2)]


class BridgedMachines(Namespaces):
    """Several, each with a name of its own and a cable to a switch, from which it can be pulled."""

    def __init__(self, count):
        super().__init__([*map(str, range(count)), "switch"])
        self.count = count

    def lay_cables(self):
        switch = self.names[self.count]
        call("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
        call("ip", "-n", switch, "link", "set", "bridge", "up")
        for machine in range(self.count):
            call("ip", "link", "add", f"port{machine}", "netns", switch, "type", "veth",
                 "peer", "name", "cable", "netns", self.names[machine])
            call("ip", "-n", switch, "link", "set", f"port{machine}", "master", "bridge", "up")
            self.set_up_cable(machine, self.address(machine))

    @staticmethod
    def address(machine):
        return f"10.213.78.{machine + 1}"

    @staticmethod
    def host_name(machine):
        return f"machine-{machine}"

    def on(self, machine):
        # All of them execute one another, so that the process is in the end the command's.
        return [*super().on(machine), "unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"',
                self.host_name(machine)]

    def pull_cable(self, machine):
        """Nothing gets through any more, and nobody is told."""
        call("ip", "-n", self.names[self.count], "link", "set", f"port{machine}", "down")

    def plug_cable_in(self, machine):
        call("ip", "-n", self.names[self.count], "link", "set", f"port{machine}", "up")

    def socket_on(self, machine):
        """A TCP socket of that machine."""
        libc = ctypes.CDLL(None, use_errno=True)
        with (open("/proc/thread-self/ns/net", "rb") as own,
              open(f"/run/netns/{self.names[machine]}", "rb") as other):
            if libc.setns(other.fileno(), 0) != 0:
                raise Missing(f"setns: {os.strerror(ctypes.get_errno())}")
            try:
                return socket.socket()
            finally:
                libc.setns(own.fileno(), 0)
