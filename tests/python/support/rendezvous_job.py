"""A job on several machines whose workers say who they are and then wait, for tests of what its
launchers agree on."""

import collections
import functools
import os
import pathlib
import signal
import subprocess
import tempfile
import unittest

import processes
from missing import enter_for_class
from network_namespaces import BridgedMachines
from processes import is_running

# A bound on what hangs, far above what anything here takes.
DEADLINE_S = 30
wait_for = functools.partial(processes.wait_for, deadline_s=DEADLINE_S)
KEEP_ALIVE_LIMIT_S = 2
CONF = {"keep_alive_interval": 0.2, "keep_alive_max_attempt": 10, "last_call_timeout": 0.5,
        "join_timeout": 20}
SECRET = "a secret of this job"

# A file for each start of a worker, there at once with all that is in it.
WORKER = """#!/bin/sh
file=$1/$TORCHELASTIC_RESTART_COUNT-$RANK
env > "$file.env"
echo "$WORLD_SIZE $MASTER_ADDR:$MASTER_PORT $$" > "$file.new"
mv "$file.new" "$file"
exec sleep 1000
"""

Worker = collections.namedtuple("Worker", "restarts rank world_size store pid")
Generation = collections.namedtuple("Generation", "restarts world_size store ranks pids")


class Agent:
    """A launcher on one of the machines."""

    def __init__(self, command, directory, environment):
        self.directory = pathlib.Path(directory)
        self.stderr = self.directory / "stderr"
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("LOCKSTEP_")}
        with open(self.stderr, "wb") as stderr:
            self.process = subprocess.Popen([*command, self.directory], stdin=subprocess.DEVNULL,
                                            stdout=stderr, stderr=stderr, env=inherited | environment)
        self.pid = self.process.pid

    def said(self):
        return self.stderr.read_text("utf-8")

    def wait_until_said(self, text):
        wait_for(lambda: text in self.said(), lambda: f"'{text}' in:\n{self.said()}")

    def ended(self):
        """Its exit code."""
        try:
            return self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end: {self.said()}") from None

    def workers(self):
        """Of the last generation, by rank."""
        started = [tuple(map(int, path.name.split("-"))) for path in self.directory.glob("*-*")
                   if not path.suffix]
        last = max(started, default=(-1,))[0]
        return [self.worker(restarts, rank) for restarts, rank in sorted(started) if restarts == last]

    def worker(self, restarts, rank):
        world_size, store, pid = (self.directory / f"{restarts}-{rank}").read_text("utf-8").split()
        return Worker(restarts, rank, int(world_size), store, int(pid))

    def environment_of(self, worker):
        return (self.directory / f"{worker.restarts}-{worker.rank}.env").read_text("utf-8")

    def resident_kib(self):
        status = pathlib.Path(f"/proc/{self.pid}/status").read_text("utf-8")
        return int(status.partition("VmRSS:")[2].split()[0])

    def end(self):
        """However it stands."""
        for sent in (signal.SIGTERM, signal.SIGKILL):
            if self.process.poll() is None:
                self.process.send_signal(sent)
                try:
                    self.process.wait(DEADLINE_S)
                except subprocess.TimeoutExpired:
                    pass


def wait_for_generation(agents, after=None):
    """The first generation after another in which the agents, and they alone, run all their workers."""
    def complete():
        workers = [agent.workers() for agent in agents]
        flat = [worker for of_agent in workers for worker in of_agent]
        if not all(workers) or len({(w.restarts, w.world_size, w.store) for w in flat}) != 1:
            return None
        first = flat[0]
        if after and first.restarts <= after.restarts:
            return None
        if sorted(w.rank for w in flat) != list(range(first.world_size)):
            return None
        return Generation(first.restarts, first.world_size, first.store,
                     [[w.rank for w in of_agent] for of_agent in workers], [w.pid for w in flat])
    return wait_for(complete, lambda: "a generation; there are " + "".join(
        f"{agent.workers()} of one that says\n{agent.said()}\n" for agent in agents))


class JobTest(unittest.TestCase):
    """With machines of its own."""

    lockstep = None
    machine_count = 3
    next_port = 29_600

    @classmethod
    def setUpClass(cls):
        cls.machines = enter_for_class(cls, BridgedMachines(cls.machine_count))

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)
        self.worker = self.directory / "worker.sh"
        self.worker.write_text(WORKER)
        self.worker.chmod(0o700)
        # A job that has just ended may still hold its port.
        JobTest.next_port += 1
        self.port = JobTest.next_port
        self.agents = 0

    def start(self, machine, *flags, conf=None, secret=SECRET, endpoint=None):
        """An agent; without other flags of a job whose first machine is machine 0."""
        self.agents += 1
        directory = self.directory / f"agent-{self.agents}"
        directory.mkdir()
        endpoint = endpoint or f"{self.machines.address(0)}:{self.port}"
        timeouts = ",".join(f"{key}={value}" for key, value in (CONF | (conf or {})).items())
        command = [*self.machines.on(machine), self.lockstep, "run", f"--rdzv-endpoint={endpoint}",
                   f"--rdzv-conf={timeouts}", *flags, self.worker]
        agent = Agent(command, directory, {"LOCKSTEP_JOB_SECRET": secret} if secret else {})
        self.addCleanup(agent.end)
        return agent

    def start_elastic(self, machine, *flags, **options):
        return self.start(machine, "--nnodes=1:3", "--rdzv-backend=c10d", *flags, **options)

    def start_numbered(self, machine, *flags, rank=None, **options):
        rank = machine if rank is None else rank
        return self.start(machine, "--nnodes=2", f"--node-rank={rank}", *flags, **options)

    def expect_undisturbed(self, agents, before):
        """The same workers as before still run."""
        self.assertEqual(wait_for_generation(agents), before)
        for pid in before.pids:
            self.assertTrue(is_running(pid), f"worker {pid} of {before}")

    def expect_stopped(self, pids):
        """Nothing of a generation that is over may run beside that which follows."""
        wait_for(lambda: not any(map(is_running, pids)),
                 lambda: f"{[pid for pid in pids if is_running(pid)]} still run")
