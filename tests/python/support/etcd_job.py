"""A job on three machines whose launchers meet by way of an etcd on a fourth."""

import json
import os
import shutil
import subprocess
import tempfile
import unittest

from rendezvous_job import DEADLINE_S, JobTest, wait_for

ETCD_MACHINE = 3


class Etcd:
    """On a machine of its own."""

    def __init__(self, machines, machine):
        self.directory = tempfile.TemporaryDirectory()
        self.on = machines.on(machine)
        self.address = f"{machines.address(machine)}:2379"
        self.process = None

    def start(self):
        url = f"http://{self.address}"
        peer = f"http://{self.address.partition(':')[0]}:2380"
        self.process = subprocess.Popen(
            [*self.on, "etcd", f"--data-dir={self.directory.name}", f"--listen-client-urls={url}",
             f"--advertise-client-urls={url}", f"--listen-peer-urls={peer}",
             f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(lambda: self.ask("get", "/") is not None, lambda: "an answer of etcd")

    def stop(self):
        self.process.kill()
        self.process.wait(DEADLINE_S)

    def close(self):
        self.stop()
        self.directory.cleanup()

    def ask(self, *words):
        """What etcdctl prints; None: it failed."""
        done = subprocess.run([*self.on, "etcdctl", f"--endpoints={self.address}", *words], text=True,
                              capture_output=True, check=False, env=os.environ | {"ETCDCTL_API": "3"})
        return done.stdout if done.returncode == 0 else None

    def value(self, key):
        return (self.ask("get", key, "--print-value-only") or "").strip()


class EtcdJobTest(JobTest):
    machine_count = 4

    @classmethod
    def setUpClass(cls):
        if not shutil.which("etcd") or not shutil.which("etcdctl"):
            raise unittest.SkipTest("there is no etcd: apt-get install etcd-server etcd-client")
        super().setUpClass()
        cls.etcd = Etcd(cls.machines, ETCD_MACHINE)
        cls.addClassCleanup(cls.etcd.close)
        cls.etcd.start()

    def start_job(self, count=3, *flags, conf=None):
        return [self.start_agent(machine, *flags, conf=conf) for machine in range(count)]

    def start_agent(self, machine, *flags, nodes="1:3", **options):
        return self.start(machine, f"--nnodes={nodes}", "--rdzv-backend=etcd", f"--rdzv-id={self.id()}",
                          *flags, endpoint=self.etcd.address, **options)

    def key(self, name):
        return f"/lockstep/{self.id()}/{name}"

    def leader_of(self, agents):
        """The agent that serves."""
        def found():
            record = self.etcd.value(self.key("leader"))
            return [a for a in agents if record and f"-{a.pid}-" in json.loads(record)["id"]]
        return wait_for(found, lambda: f"a leader; {[agent.said() for agent in agents]}")[0]

    def others(self, agents, agent):
        return [other for other in agents if other is not agent]
